//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::Error;

/// The error object of a status.
pub fn body(status: StatusCode, message: &str, param: Option<&str>) -> Value {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        400..=499 => "invalid_request_error",
        503 => "service_unavailable",
        _ => "server_error",
    };
    json!({ "error": { "message": message, "type": kind, "param": param, "code": status.as_u16() } })
}

/// A refusal in words of our own.
pub fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(body(status, message, None))).into_response()
}

/// What is wrong with a request, and where in it.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field that is wrong, as a path.
    pub param: Option<String>,
}

impl ApiError {
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: Some(param.into()),
        }
    }

    pub fn body(&self) -> Value {
        body(self.status, &self.message, self.param.as_deref())
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let status =
            StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        ApiError {
            status,
            message: error.to_string(),
            param: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
