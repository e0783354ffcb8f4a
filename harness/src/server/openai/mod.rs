//! OpenAI's dialect: `/v1/chat/completions` and `/v1/models`.

mod chat;
pub mod error;
mod request;
mod wire;

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

pub use request::Surroundings;

use super::Service;

pub fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
}

fn card(service: &Service) -> Value {
    json!({
        "id": service.model.name, "object": "model", "created": service.started_s, "owned_by": "local",
        "context_length": service.model.engine.context().tokens,
    })
}

async fn models(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&service)] }))
}

async fn model(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Response {
    if id == service.model.name {
        return Json(card(&service)).into_response();
    }
    let text = format!("no model {id:?} is loaded; have {:?}", service.model.name);
    error::refuse(StatusCode::NOT_FOUND, &text)
}
