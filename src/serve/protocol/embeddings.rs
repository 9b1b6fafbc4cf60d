//! `POST /embeddings`: the mean of the final hidden states of a text's tokens, of length 1.

use super::fields::wrong;
use super::prompts::prompts;
use super::sampling::Settings;
use super::{ApiError, Fields, check_count, check_model, parse};
use crate::serve::Shared;
use crate::serve::job::{Event, EventKind, Job, Task, UNREAD_EVENTS};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, channel};

/// A request that was understood: the texts to embed, and how to answer.
pub(in crate::serve) struct Embeddings {
    pub jobs: Vec<Job>,
    pub events: Receiver<Event>,
    shared: Arc<Shared>,
    /// Whether vectors are written as the base64 of their bytes.
    in_base64: bool,
    vectors: Vec<Option<Vec<f32>>>,
    tokens: usize,
}

impl Embeddings {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// If it is not understood, or a text is longer than the context.
    pub fn read(body: &[u8], shared: &Arc<Shared>) -> Result<Embeddings, ApiError> {
        let body = parse(body)?;
        let fields = Fields::new(&body);
        check_model(&fields, shared)?;
        let width = shared.config.n_embd as i64;
        if fields.integer("dimensions", 1..=i64::MAX)?.is_some_and(|dimensions| dimensions != width) {
            return Err(ApiError::field("dimensions", format!("dimensions: the model's embeddings have {width}")));
        }
        let in_base64 = match fields.text("encoding_format")? {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => return Err(wrong("encoding_format", "float or base64", &other.into())),
        };
        let settings = Settings::read(&fields, shared)?;
        let inputs = prompts(&fields, "input", shared)?;
        check_count("input", inputs.len(), shared)?;
        if let Some(long) = inputs.iter().find(|input| input.ids.len() > shared.context) {
            return Err(ApiError::too_long("input", long.ids.len(), shared.context));
        }
        let (sender, events) = channel(UNREAD_EVENTS * inputs.len());
        let vectors = vec![None; inputs.len()];
        let job = |(i, ids): (usize, Vec<u32>)| Job { task: Task::Embed, ..settings.job(i, 0, ids, 0, &sender) };
        let jobs = inputs.into_iter().map(|input| input.ids).enumerate().map(job).collect();
        Ok(Embeddings { jobs, events, shared: shared.clone(), in_base64, vectors, tokens: 0 })
    }

    /// The answer, once all texts are embedded.
    ///
    /// # Errors
    /// If one failed, or the server is stopping.
    pub async fn answer(mut self) -> Result<Value, ApiError> {
        while self.vectors.iter().any(Option::is_none) {
            match self.events.recv().await {
                Some(Event { index, kind: EventKind::Embedding { vector, tokens } }) => {
                    self.vectors[index] = Some(vector);
                    self.tokens += tokens;
                }
                Some(Event { kind: EventKind::Failed(message), .. }) => return Err(ApiError::internal(message)),
                Some(_) => {}
                None => return Err(ApiError::stopping()),
            }
        }
        let entry = |(index, vector): (usize, &Vec<f32>)| {
            let embedding = if self.in_base64 {
                BASE64_STANDARD.encode(bytemuck::cast_slice::<_, u8>(vector)).into()
            } else {
                json!(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        };
        let data: Value = self.vectors.iter().flatten().enumerate().map(entry).collect();
        let usage = json!({"prompt_tokens": self.tokens, "total_tokens": self.tokens});
        Ok(json!({"object": "list", "data": data, "model": self.shared.options.name, "usage": usage}))
    }
}
