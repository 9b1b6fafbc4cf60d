//! HTTP/1.1: connections, with limits on their number, on headers and bodies, and on the time that a client takes.

mod access;
mod respond;
mod routes;
mod stall;

use super::Shared;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stall::WriteTimeout;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections at once; further ones wait to be accepted.
const MOST_CONNECTIONS: usize = 512;
/// Headers of a request, by number and bytes.
const MOST_HEADERS: usize = 64;
const MOST_HEADER_BYTES: usize = 64 << 10;
/// Bytes of a body.
const MOST_BODY_BYTES: usize = 8 << 20;
/// How long a client may take to send its headers, which includes the pause between two requests, and its body.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may leave an answer unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long connections have to deliver what they hold when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// After an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Threads that read prompts.
const READERS: usize = 4;

/// Serves connections until `stop` changes, and then until their answers are delivered.
///
/// # Errors
/// If the threads or the listener cannot be set up.
pub(super) fn run(listener: TcpListener, shared: &Arc<Shared>, stop: watch::Receiver<bool>) -> std::io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(READERS).build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        accept(tokio::net::TcpListener::from_std(listener)?, shared, stop).await;
        Ok(())
    })
}

async fn accept(listener: tokio::net::TcpListener, shared: &Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            accepted = accepted => accepted,
            _ = stop.changed() => break,
        };
        match stream {
            Ok((stream, _)) => {
                let (shared, stop) = (shared.clone(), stop.clone());
                connections.spawn(async move {
                    serve(stream, shared, stop).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await.is_err() {
        tracing::warn!("some clients did not read their answers in time");
    }
}

/// One connection, of which requests come one after the other.
async fn serve(stream: TcpStream, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    // A chunk of a stream is sent when it is there.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| routes::handle(request, shared.clone()));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_headers(MOST_HEADERS).max_buf_size(MOST_HEADER_BYTES);
    let io = TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stop.changed() => {
            // After the answer under way.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!("a connection ended: {error}");
    }
}
