//! Server-sent events: an answer in chunks, as the body of a response.

use super::{Answer, ApiError};
use crate::serve::job::Event;
use hyper::body::{Body, Bytes, Frame};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep, sleep};

/// A comment is sent when there was nothing else for so long: proxies and clients close silent connections.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The body of a stream. It is polled, and takes events, only while the client reads.
pub(in crate::serve) struct Chunks {
    events: Receiver<Event>,
    answer: Answer,
    include_usage: bool,
    ready: VecDeque<Bytes>,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

impl Chunks {
    pub fn new(events: Receiver<Event>, answer: Answer, include_usage: bool) -> Chunks {
        let keep_alive = Box::pin(sleep(KEEP_ALIVE));
        Chunks { events, answer, include_usage, ready: VecDeque::new(), keep_alive, ended: false }
    }

    fn send(&mut self, value: &Value) {
        self.ready.push_back(format!("data: {value}\n\n").into());
    }

    fn take(&mut self, event: Event) {
        let i = match self.answer.take(event) {
            Ok(i) => i,
            Err(error) => return self.fail(&error),
        };
        for chunk in self.answer.chunks(i, self.include_usage) {
            self.send(&chunk);
        }
        if self.answer.is_complete() {
            if self.include_usage {
                self.send(&self.answer.usage_chunk());
            }
            self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            self.ended = true;
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.send(&error.to_json());
        self.ended = true;
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match self.events.poll_recv(context) {
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => {
                    self.fail(&ApiError::internal("the text was cut: the server ended, or it was read too slowly"))
                }
                Poll::Pending if self.keep_alive.as_mut().poll(context).is_ready() => {
                    self.ready.push_back(Bytes::from_static(b": keep-alive\n\n"));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
