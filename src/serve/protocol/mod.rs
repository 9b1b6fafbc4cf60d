//! OpenAI's protocol: requests are read to texts to generate, and what becomes of those is written as answers.
//! <https://platform.openai.com/docs/api-reference>

mod answer;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod logprobs;
mod prompts;
mod sampling;
mod stream;
mod tools;

pub(super) use answer::{Answer, Endpoint, unix_time};
pub(super) use embeddings::Embeddings;
pub(super) use error::ApiError;
pub(super) use fields::{Fields, parse, token_ids};
pub(super) use stream::Chunks;

use super::Shared;
use super::job::Job;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::Receiver;

/// A request that was understood: the texts to generate, where their events come from, and how to answer.
pub(super) struct Accepted {
    pub jobs: Vec<Job>,
    pub events: Receiver<super::job::Event>,
    pub answer: Answer,
    /// Whether the answer is a stream, and that it ends with the usage.
    pub stream: bool,
    pub include_usage: bool,
}

/// Reads the body of a request to generate texts.
///
/// # Errors
/// If it is not understood, or asks for something else than the model can do.
pub(super) fn read(endpoint: Endpoint, body: &[u8], shared: &Arc<Shared>) -> Result<Accepted, ApiError> {
    let body = parse(body)?;
    let fields = Fields::new(&body);
    check_model(&fields, shared)?;
    match endpoint {
        Endpoint::Chat => chat::read(&fields, shared),
        Endpoint::Completions => completions::read(&fields, shared),
    }
}

/// A number for an id or a seed: the standard library's hashes have random keys.
fn random_number() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

/// Checks the name of the model, if there is one.
fn check_model(fields: &Fields, shared: &Shared) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(name) if name != shared.options.name => Err(ApiError::no_model(name, &shared.options.name)),
        _ => Ok(()),
    }
}

/// Checks that the texts of one request may wait together.
fn check_count(param: &str, count: usize, shared: &Shared) -> Result<(), ApiError> {
    let most = shared.queue.limit;
    if count <= most {
        return Ok(());
    }
    let message = format!("{param}: {count} texts in one request, of at most {most}; send fewer at once");
    Err(ApiError::field(param, message))
}
