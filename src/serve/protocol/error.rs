//! OpenAI's error object.

use serde_json::{Value, json};

/// A refused request: its status, and what the client is told.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct ApiError {
    pub status: u16,
    kind: &'static str,
    code: Option<&'static str>,
    /// The field that is wrong.
    param: Option<String>,
    pub message: String,
}

impl ApiError {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, code: None, param: None, message: message.into() }
    }

    /// A request that makes no sense.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "invalid_request_error", message)
    }

    /// A field with a wrong value.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(name.into()), ..ApiError::invalid(message) }
    }

    /// A prompt that is too long for the context.
    pub fn too_long(param: &str, tokens: usize, context: usize) -> ApiError {
        let message = format!(
            "the prompt has {tokens} tokens, which leaves no room for an answer in a context of {context}; shorten it, \
             or start the server with a larger --context"
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::field(param, message) }
    }

    pub fn unauthorized(is_missing: bool) -> ApiError {
        let message = if is_missing {
            "no API key; send it as `Authorization: Bearer KEY`"
        } else {
            "the API key is not the one in the server's --api-key-file"
        };
        ApiError { code: Some("invalid_api_key"), ..ApiError::new(401, "authentication_error", message) }
    }

    /// A request from another site.
    pub fn forbidden(message: &str) -> ApiError {
        ApiError::new(403, "permission_error", message)
    }

    pub fn no_model(name: &str, served: &str) -> ApiError {
        let message = format!("there is no model {name:?}; this server has {served:?}");
        ApiError {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..ApiError::new(404, "invalid_request_error", message)
        }
    }

    pub fn no_path(path: &str) -> ApiError {
        ApiError::new(404, "invalid_request_error", format!("unknown path {path}; see docs/serve.md"))
    }

    pub fn wrong_method(method: &str, path: &str, allowed: &str) -> ApiError {
        ApiError::new(405, "invalid_request_error", format!("{path} takes {allowed}, not {method}"))
    }

    pub fn timed_out() -> ApiError {
        ApiError::new(408, "invalid_request_error", "the body of the request did not arrive in time")
    }

    pub fn too_large(most: usize) -> ApiError {
        ApiError::new(413, "invalid_request_error", format!("the body has more than {most} bytes; send less at once"))
    }

    /// As many texts wait as may.
    pub fn busy() -> ApiError {
        let message = "too many requests wait for a slot; try again later, or start the server with more --slots";
        ApiError { code: Some("rate_limit_exceeded"), ..ApiError::new(429, "rate_limit_error", message) }
    }

    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(500, "server_error", message)
    }

    pub fn stopping() -> ApiError {
        ApiError::new(503, "server_error", "the server is stopping")
    }

    /// Seconds after which it makes sense to try again.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(self.status, 429 | 503).then_some(1)
    }

    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}
