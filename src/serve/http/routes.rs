//! What each path answers. All but `/`, `/health` and `/metrics` are OpenAI's or llama.cpp's, with and without `/v1`.

use super::respond::{self, ResponseBody};
use super::{BODY_TIMEOUT, MOST_BODY_BYTES, access};
use crate::data::ChatTemplate;
use crate::serve::Shared;
use crate::serve::job::Job;
use crate::serve::protocol::{self, Accepted, ApiError, Chunks, Embeddings, Endpoint, Fields};
use crate::serve::queue::Refused;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::{Method, Request, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

const PAGE: &str = include_str!("../page.html");

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Page,
    Health,
    Metrics,
    Models,
    Model,
    Generate(Endpoint),
    Embeddings,
    TokenizerInfo,
    Tokenize,
    Detokenize,
}

impl Route {
    /// The route of a path, and its name in metrics.
    fn of(path: &str) -> Option<(Route, &'static str)> {
        let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
        Some(match path {
            "/" => (Route::Page, "/"),
            "/health" => (Route::Health, "/health"),
            "/metrics" => (Route::Metrics, "/metrics"),
            "/models" => (Route::Models, "/models"),
            "/chat/completions" => (Route::Generate(Endpoint::Chat), "/chat/completions"),
            "/completions" => (Route::Generate(Endpoint::Completions), "/completions"),
            "/embeddings" => (Route::Embeddings, "/embeddings"),
            "/tokenizer_info" => (Route::TokenizerInfo, "/tokenizer_info"),
            "/tokenize" => (Route::Tokenize, "/tokenize"),
            "/detokenize" => (Route::Detokenize, "/detokenize"),
            _ if path.starts_with("/models/") => (Route::Model, "/models/{name}"),
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Route::Generate(_) | Route::Embeddings | Route::Tokenize | Route::Detokenize => Method::POST,
            _ => Method::GET,
        }
    }

    /// The page asks its user for the key, and whoever watches the server has none.
    fn is_open(self) -> bool {
        matches!(self, Route::Page | Route::Health)
    }
}

/// Answers a request. The log says what was served, and nothing of its text.
pub(super) async fn handle(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<ResponseBody>, Infallible> {
    let started = Instant::now();
    let method = request.method().clone();
    let route = Route::of(request.uri().path());
    let response = match route {
        None => respond::error(&ApiError::no_path(request.uri().path())),
        Some((route, _)) if method != route.method() => {
            let allowed = if route.method() == Method::GET { "GET" } else { "POST" };
            let error = ApiError::wrong_method(method.as_str(), request.uri().path(), allowed);
            respond::with_allowed(respond::error(&error), allowed)
        }
        Some((route, _)) => answer(route, request, &shared).await.unwrap_or_else(|error| respond::error(&error)),
    };
    let (path, status) = (route.map_or("other", |(_, path)| path), response.status().as_u16());
    shared.metrics.request(path, status);
    tracing::info!("{method} {path} {status}, {:.1} ms", 1e3 * started.elapsed().as_secs_f64());
    Ok(response)
}

async fn answer(
    route: Route,
    request: Request<Incoming>,
    shared: &Arc<Shared>,
) -> Result<Response<ResponseBody>, ApiError> {
    access::check_site(request.headers(), shared)?;
    if !route.is_open() {
        access::check_key(request.headers(), shared)?;
    }
    match route {
        Route::Page => Ok(respond::page(PAGE)),
        Route::Health if shared.queue.is_closed() => Err(ApiError::stopping()),
        Route::Health => Ok(respond::json(&json!({"status": "ok"}))),
        Route::Metrics => Ok(respond::text(shared.metrics.to_text(shared.options.slots, shared.started))),
        Route::Models => Ok(respond::json(&json!({"object": "list", "data": [model(shared)]}))),
        Route::Model => {
            let name = request.uri().path().rsplit_once("/models/").map_or("", |(_, name)| name);
            let is_served = percent_decode_str(name).eq(shared.options.name.bytes());
            if is_served {
                Ok(respond::json(&model(shared)))
            } else {
                Err(ApiError::no_model(name, &shared.options.name))
            }
        }
        Route::TokenizerInfo => Ok(respond::json(&tokenizer_info(shared))),
        Route::Generate(endpoint) => generate(endpoint, body(request).await?, shared).await,
        Route::Embeddings => embed(body(request).await?, shared).await,
        Route::Tokenize => in_background(body(request).await?, shared, tokenize).await,
        Route::Detokenize => in_background(body(request).await?, shared, detokenize).await,
    }
}

/// The body of a request, within limits of size and time.
async fn body(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MOST_BODY_BYTES as u64) {
        return Err(ApiError::too_large(MOST_BODY_BYTES));
    }
    let body = Limited::new(request.into_body(), MOST_BODY_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Err(_) => Err(ApiError::timed_out()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MOST_BODY_BYTES)),
        Ok(Err(error)) => Err(ApiError::invalid(format!("the body did not arrive: {error}"))),
    }
}

/// Generates the texts of a request.
async fn generate(endpoint: Endpoint, body: Bytes, shared: &Arc<Shared>) -> Result<Response<ResponseBody>, ApiError> {
    let reader = shared.clone();
    // Tokenizing a long prompt takes time, in which other connections go on.
    let read = tokio::task::spawn_blocking(move || protocol::read(endpoint, &body, &reader)).await;
    let Accepted { jobs, mut events, mut answer, stream, include_usage } = read.map_err(|_| bug())??;
    enqueue(jobs, shared)?;
    if stream {
        return Ok(respond::stream(Chunks::new(events, answer, include_usage)));
    }
    while let Some(event) = events.recv().await {
        answer.take(event)?;
        if answer.is_complete() {
            return Ok(respond::json(&answer.whole()));
        }
    }
    Err(ApiError::stopping())
}

/// Embeds the texts of a request.
async fn embed(body: Bytes, shared: &Arc<Shared>) -> Result<Response<ResponseBody>, ApiError> {
    let reader = shared.clone();
    let read = tokio::task::spawn_blocking(move || Embeddings::read(&body, &reader)).await;
    let mut embeddings = read.map_err(|_| bug())??;
    enqueue(std::mem::take(&mut embeddings.jobs), shared)?;
    embeddings.answer().await.map(|value| respond::json(&value))
}

fn enqueue(jobs: Vec<Job>, shared: &Shared) -> Result<(), ApiError> {
    shared.queue.push(jobs).map_err(|refused| match refused {
        Refused::Full => ApiError::busy(),
        Refused::Closed => ApiError::stopping(),
    })
}

/// Answers from a body, on a thread for work that takes time.
async fn in_background(
    body: Bytes,
    shared: &Arc<Shared>,
    answer: fn(&Fields, &Shared) -> Result<Value, ApiError>,
) -> Result<Response<ResponseBody>, ApiError> {
    let shared = shared.clone();
    let work = move || {
        let object = protocol::parse(&body)?;
        answer(&Fields::new(&object), &shared)
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| bug())?.map(|value| respond::json(&value))
}

fn bug() -> ApiError {
    ApiError::internal("the request could not be read: this is a bug in rustyflow, please report it")
}

/// The tokens of a text: `content`, as llama.cpp's server calls it, or `prompt`, as vLLM does.
fn tokenize(fields: &Fields, shared: &Shared) -> Result<Value, ApiError> {
    let name = if fields.get("content").is_some() { "content" } else { "prompt" };
    let text =
        fields.text(name)?.ok_or_else(|| ApiError::field("content", "content: expected the text to tokenize"))?;
    let refused = |error: crate::Error| ApiError::field(name, format!("{name}: {error}"));
    let mut ids = shared.text.tokenizer.encode(text).map_err(refused)?;
    if fields.boolean("add_special")?.or(fields.boolean("add_special_tokens")?).unwrap_or(false) {
        ids = [shared.text.tokenizer.begin_of_text().map_err(refused)?, ids].concat();
    }
    Ok(json!({"tokens": ids, "count": ids.len(), "max_model_len": shared.context}))
}

/// The text of tokens: `content` and `prompt` are both of it.
fn detokenize(fields: &Fields, shared: &Shared) -> Result<Value, ApiError> {
    let list =
        fields.list("tokens")?.ok_or_else(|| ApiError::field("tokens", "tokens: expected a list of token ids"))?;
    if list.len() > shared.context {
        return Err(ApiError::too_long("tokens", list.len(), shared.context));
    }
    let ids = protocol::token_ids("tokens", list, shared.text.tokenizer.vocab_size())?;
    let text = shared.text.tokenizer.decode(&ids).map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(json!({"content": text, "prompt": text}))
}

/// The special tokens by transformers' names, as vLLM reports them: evaluation harnesses tokenize by this server then.
fn tokenizer_info(shared: &Shared) -> Value {
    let tokenizer = &shared.text.tokenizer;
    let token = |name: &str| tokenizer.special_token(name).map(|(_, text)| text);
    json!({
        "eos_token": tokenizer.end_of_text().map(|(_, text)| text), "bos_token": token("bos_token"),
        "pad_token": token("pad_token"), "chat_template": shared.template.as_ref().map(ChatTemplate::source),
    })
}

/// The entry of the model in a list of models.
fn model(shared: &Shared) -> Value {
    let shape = &shared.config;
    json!({
        "id": shared.options.name, "object": "model", "created": shared.created, "owned_by": "rustyflow",
        "max_model_len": shared.context,
        "meta": {
            "kind": shape.kind.as_str(), "n_vocab": shape.vocab_size, "n_embd": shape.n_embd,
            "n_layer": shape.n_layer, "has_chat_template": shared.template.is_some(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_route_with_and_without_their_version() {
        for path in ["/chat/completions", "/v1/chat/completions", "/v1/chat/completions/"] {
            assert_eq!(Route::of(path).unwrap().0, Route::Generate(Endpoint::Chat), "{path}");
        }
        assert_eq!(Route::of("/").unwrap().0, Route::Page);
        assert_eq!(Route::of("/v1/models/a/b").unwrap().0, Route::Model);
        for path in ["", "/v1", "/v1models", "/v2/models", "/nothing", "/models.json"] {
            assert_eq!(Route::of(path), None, "{path}");
        }
        assert!(percent_decode_str("a%2Fb%20c%zz%").eq(*b"a/b c%zz%"));
    }
}
