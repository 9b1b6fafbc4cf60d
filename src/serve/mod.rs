//! An OpenAI-compatible HTTP server for one model: `protocol/` reads requests and writes answers, `http/` speaks with
//! clients, and `scheduler.rs` generates texts in continuous batches. Between them is a bounded queue.

mod http;
mod job;
mod metrics;
mod protocol;
mod queue;
mod scheduler;
mod text;

use crate::data::{ChatTemplate, TextConventions};
use crate::error::panic_message;
use crate::models::{LanguageModel, ModelConfig, Slots};
use crate::{Error, Result};
use metrics::Metrics;
use protocol::Endpoint;
use queue::Queue;
use scheduler::Scheduler;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio::sync::watch;

/// How a server is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeOptions {
    /// The model's name in requests.
    pub name: String,
    pub host: IpAddr,
    /// 0 for any free port.
    pub port: u16,
    /// The key that requests must have.
    pub api_key: Option<String>,
    /// Texts that are generated at once.
    pub slots: usize,
    /// Most tokens of a prompt and its answer; at most the model's context.
    pub context: usize,
    /// Most texts that wait for a slot.
    pub queue: usize,
}

/// What connections and the scheduler share.
struct Shared {
    options: ServeOptions,
    config: ModelConfig,
    text: TextConventions,
    template: Option<ChatTemplate>,
    /// Most tokens of a prompt and its answer.
    context: usize,
    queue: Queue,
    metrics: Metrics,
    started: Instant,
    /// In seconds since 1970.
    created: u64,
}

impl Shared {
    fn new(
        config: ModelConfig,
        text: TextConventions,
        template: Option<ChatTemplate>,
        options: ServeOptions,
        context: usize,
    ) -> Shared {
        let (queue, metrics, started) = (Queue::new(options.queue), Metrics::default(), Instant::now());
        Shared { options, config, text, template, context, queue, metrics, started, created: protocol::unix_time() }
    }
}

/// Closes the queue when connections end, also by a panic: without them there is nothing to generate.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

/// Serves `model` until `stop` is set, and then until the accepted texts are complete. Chats need a `template`.
/// `on_listening` is called once with the address. The model is used by the calling thread alone.
///
/// # Errors
/// If a size is 0, the address is not free, or the device runs out of memory or is lost.
pub fn serve(
    model: &dyn LanguageModel,
    text: TextConventions,
    template: Option<ChatTemplate>,
    options: ServeOptions,
    stop: &AtomicBool,
    on_listening: &mut dyn FnMut(SocketAddr) -> Result<()>,
) -> Result<()> {
    if options.queue == 0 {
        return Err(Error::Invalid("--queue is 0; expected at least 1".into()));
    }
    let slots = Slots::new(model, options.slots, options.context)?;
    let address = SocketAddr::new(options.host, options.port);
    let listen = |error| {
        let ServeOptions { host, port, .. } = &options;
        Error::Invalid(format!("--host {host} --port {port}: {error}; choose another address"))
    };
    let listener = TcpListener::bind(address).map_err(listen)?;
    let bound = listener.local_addr().map_err(listen)?;
    let shared = Arc::new(Shared::new(model.config().clone(), text, template, options, slots.context()));
    let (stop_http, http_stops) = watch::channel(false);
    let of_http = shared.clone();
    let http = std::thread::Builder::new().name("http".into());
    let http = http.spawn(move || {
        let closing = Closing(of_http);
        http::run(listener, &closing.0, http_stops)
    });
    let http = http.map_err(|error| Error::Invalid(format!("cannot start the thread for connections: {error}")))?;
    let generated = on_listening(bound).and_then(|()| Scheduler::new(model, slots, &shared).run(stop));
    // After an error nobody else takes what waits.
    shared.queue.close();
    while shared.queue.pop().is_some() {}
    // Nobody listens if that thread has ended.
    let _ = stop_http.send(true);
    let served = http.join();
    generated?;
    match served {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::Invalid(format!("cannot serve connections: {error}"))),
        Err(panic) => Err(Error::Panicked { thread: "the thread for connections", message: panic_message(&*panic) }),
    }
}

/// Reads the bodies of requests as a server does, for fuzzing.
#[doc(hidden)]
pub struct RequestReader(Arc<Shared>);

impl RequestReader {
    /// For a model with this context.
    pub fn new(config: ModelConfig, text: TextConventions, template: ChatTemplate, context: usize) -> RequestReader {
        let host = IpAddr::from([127, 0, 0, 1]);
        let options = ServeOptions { name: "fuzz".into(), host, port: 0, api_key: None, slots: 1, context, queue: 8 };
        RequestReader(Arc::new(Shared::new(config, text, Some(template), options, context)))
    }

    /// The prompts of a chat and of completions with this body; none if it is refused.
    pub fn prompts(&self, body: &[u8]) -> Vec<Vec<u32>> {
        let read = |endpoint| protocol::read(endpoint, body, &self.0).map_or(vec![], |accepted| accepted.jobs);
        let jobs = [Endpoint::Chat, Endpoint::Completions].into_iter().flat_map(read);
        jobs.map(|job| job.prompt).collect()
    }
}
