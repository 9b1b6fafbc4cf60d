//! Responses: JSON, text, or a stream of events.

use crate::serve::protocol::{ApiError, Chunks};
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use hyper::{Response, StatusCode};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The page may load nothing and speak to this server alone.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'";

/// The body of a response.
pub(super) enum ResponseBody {
    Whole(Option<Bytes>),
    Stream(Box<Chunks>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            ResponseBody::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            ResponseBody::Stream(chunks) => Pin::new(&mut **chunks).poll_frame(context),
        }
    }
}

fn response(status: u16, content_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

pub(super) fn json(value: &Value) -> Response<ResponseBody> {
    response(200, "application/json", ResponseBody::Whole(Some(value.to_string().into())))
}

pub(super) fn text(text: String) -> Response<ResponseBody> {
    response(200, "text/plain; version=0.0.4; charset=utf-8", ResponseBody::Whole(Some(text.into())))
}

pub(super) fn page(html: &'static str) -> Response<ResponseBody> {
    let body = ResponseBody::Whole(Some(Bytes::from_static(html.as_bytes())));
    let mut response = response(200, "text/html; charset=utf-8", body);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

pub(super) fn stream(chunks: Chunks) -> Response<ResponseBody> {
    let mut response = response(200, "text/event-stream; charset=utf-8", ResponseBody::Stream(Box::new(chunks)));
    // nginx would collect the chunks.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

pub(super) fn error(error: &ApiError) -> Response<ResponseBody> {
    let body = ResponseBody::Whole(Some(error.to_json().to_string().into()));
    let mut response = response(error.status, "application/json", body);
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The methods that a path takes instead.
pub(super) fn with_allowed(mut response: Response<ResponseBody>, allowed: &'static str) -> Response<ResponseBody> {
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
