//! `POST /v1/chat/completions`, streamed and not.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{Finish, Logprob};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::error::{self, ApiError};
use super::request::Job;
use super::wire::{ChatRequest, Usage};
use crate::chat::{Reply, ReplyEvent};
use crate::limits;
use crate::server::{Open, Service};

/// Answers one request.
pub async fn completions(
    State(service): State<Arc<Service>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let open = service.opened();
    let started = match body {
        Ok(body) => compose(&service, body).await,
        Err(refused) => Err(unread(&refused)),
    };
    match started {
        Ok((reply, job)) if job.stream => stream(&service, reply, job, open),
        Ok((reply, job)) => whole(&service, reply, &job).await,
        Err(error) => error.into_response(),
    }
}

/// Reads and composes away from the threads that serve: a long body takes seconds. No more of them at once
/// than there are cores.
async fn compose(service: &Arc<Service>, body: Bytes) -> Result<(Reply, Answering), ApiError> {
    let stopped = || ApiError::from(crate::error::Error::bug("a request could not be composed"));
    let _turn = service.composing.acquire().await.map_err(|_| stopped())?;
    let shared = Arc::clone(service);
    tokio::task::spawn_blocking(move || start(&shared, &body))
        .await
        .unwrap_or_else(|_| Err(stopped()))
}

/// A body that could not be read to its end.
fn unread(refused: &BytesRejection) -> ApiError {
    let status = refused.status();
    let message = match status {
        StatusCode::PAYLOAD_TOO_LARGE => format!(
            "the body is longer than {} MiB, more than any context window holds",
            limits::BODY_BYTES_MAX >> 20
        ),
        _ => format!("the body could not be read: {}", refused.body_text()),
    };
    ApiError {
        status,
        message,
        param: None,
    }
}

struct Answering {
    include_usage: bool,
    stream: bool,
    logprobs: bool,
}

fn start(service: &Arc<Service>, body: &[u8]) -> Result<(Reply, Answering), ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let request: ChatRequest = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            "." => ApiError::bad(
                "body",
                format!("the body is not a chat request: {}", error.inner()),
            ),
            _ => ApiError::bad(path.clone(), format!("`{path}`: {}", error.inner())),
        }
    })?;
    reader.end().map_err(|error| {
        ApiError::bad("body", format!("the body is not one JSON object: {error}"))
    })?;
    let mut job = Job::from_wire(request, service.surroundings())?;
    service.model.format.settle_clock(&mut job.conversation);
    let answering = Answering {
        include_usage: job.include_usage,
        stream: job.stream,
        logprobs: job.options.logprobs.is_some(),
    };
    let reply = service.model.reply(job.conversation, job.options)?;
    Ok((reply, answering))
}

/// What is the same in every chunk of one answer.
#[derive(Clone)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(service: &Service) -> Head {
        Head {
            id: format!("chatcmpl-{}", service.next_id()),
            created: service.now_s(),
            model: service.model.name.clone(),
        }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model, "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        chunk
    }
}

fn call_id(head: &Head, index: usize) -> String {
    format!("call_{}_{index}", head.id.trim_start_matches("chatcmpl-"))
}

fn finish_reason(finish: &Finish, called: bool) -> &'static str {
    match finish {
        Finish::Length => "length",
        _ if called => "tool_calls",
        _ => "stop",
    }
}

fn logprob_entry(bytes: &[u8], logprob: &Logprob, service: &Service) -> Value {
    let entry = |bytes: &[u8], value: f32| json!({ "token": String::from_utf8_lossy(bytes), "logprob": value.max(limits::LOGPROB_MIN), "bytes": bytes });
    let mut whole = entry(bytes, logprob.logprob);
    let tokenizer = service.model.format.tokenizer();
    whole["top_logprobs"] = logprob
        .top
        .iter()
        .map(|(id, value)| entry(tokenizer.token_bytes(*id), *value))
        .collect();
    whole
}

/// Collects the reply. A client that goes away drops the future, and with it the generation.
async fn whole(service: &Arc<Service>, mut reply: Reply, job: &Answering) -> Response {
    let head = Head::new(service);
    let (mut text, mut thinking) = (String::new(), String::new());
    let (mut calls, mut logprobs) = (Vec::new(), Vec::new());
    while let Some(event) = reply.recv_async().await {
        match event {
            ReplyEvent::Plan(_) => {}
            ReplyEvent::Text(more) => text.push_str(&more),
            ReplyEvent::Thinking(more) => thinking.push_str(&more),
            // A call that cannot be read is shown as what it is: text.
            ReplyEvent::Broken { raw, .. } => text.push_str(&raw),
            ReplyEvent::Call {
                index,
                name,
                arguments,
            } => calls.push(json!({
                "id": call_id(&head, index), "type": "function",
                "function": { "name": name, "arguments": arguments },
            })),
            ReplyEvent::Token { bytes, logprob, .. } => {
                logprobs.push(logprob_entry(&bytes, &logprob, service))
            }
            ReplyEvent::Done {
                finish: Finish::Error(error),
                ..
            } => {
                return ApiError::from(crate::error::Error::from(error)).into_response();
            }
            ReplyEvent::Done {
                finish,
                report,
                ids,
            } => {
                let called = !calls.is_empty();
                let content = if called && text.trim().is_empty() {
                    Value::Null
                } else {
                    text.into()
                };
                let mut message =
                    json!({ "role": "assistant", "content": content, "refusal": null });
                if !thinking.is_empty() {
                    message["reasoning_content"] = thinking.into();
                }
                if called {
                    message["tool_calls"] = calls.into();
                }
                let logprobs = if job.logprobs {
                    json!({ "content": logprobs })
                } else {
                    Value::Null
                };
                return Json(json!({
                    "id": head.id, "object": "chat.completion", "created": head.created, "model": head.model,
                    "choices": [{
                        "index": 0, "message": message, "logprobs": logprobs,
                        "finish_reason": finish_reason(&finish, called),
                    }],
                    "usage": Usage::new(report.tokens, report.reused, ids.len()),
                }))
                .into_response();
            }
        }
    }
    error::refuse(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the engine stopped in the middle of the answer",
    )
}

/// Sends the reply as server-sent events. A client that goes away closes the channel: the task ends,
/// the reply is dropped, and its blocks are free.
fn stream(service: &Arc<Service>, reply: Reply, job: Answering, open: Open) -> Response {
    let (sender, receiver) = mpsc::channel::<String>(limits::STREAM_CHUNKS_AHEAD);
    let service = service.clone();
    tokio::spawn(async move {
        let _open = open;
        let mut writer = Writer {
            head: Head::new(&service),
            service,
            sender,
            job,
            called: false,
        };
        // The send error says that the client left; there is nobody to tell.
        let _ = writer.run(reply).await;
    });
    let chunks = futures_of(receiver);
    (
        [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-cache"),
        ],
        Body::from_stream(chunks),
    )
        .into_response()
}

fn futures_of(
    receiver: mpsc::Receiver<String>,
) -> impl tokio_stream::Stream<Item = Result<String, Infallible>> {
    ReceiverStream::new(receiver).map(Ok)
}

struct Writer {
    head: Head,
    service: Arc<Service>,
    sender: mpsc::Sender<String>,
    job: Answering,
    called: bool,
}

type Gone = mpsc::error::SendError<String>;

impl Writer {
    async fn run(&mut self, mut reply: Reply) -> Result<(), Gone> {
        self.delta(json!({ "role": "assistant", "content": "" }), Value::Null)
            .await?;
        loop {
            let event = tokio::select! {
                event = reply.recv_async() => event,
                () = self.sender.closed() => return Ok(()),
                () = tokio::time::sleep(limits::KEEP_ALIVE) => {
                    self.sender.send(": \n\n".into()).await?;
                    continue;
                }
            };
            match event {
                Some(ReplyEvent::Plan(_)) => {}
                Some(ReplyEvent::Text(text)) => {
                    self.delta(json!({ "content": text }), Value::Null).await?
                }
                Some(ReplyEvent::Thinking(text)) => {
                    self.delta(json!({ "reasoning_content": text }), Value::Null)
                        .await?
                }
                Some(ReplyEvent::Broken { raw, .. }) => {
                    self.delta(json!({ "content": raw }), Value::Null).await?
                }
                Some(ReplyEvent::Call {
                    index,
                    name,
                    arguments,
                }) => self.call(index, &name, &arguments).await?,
                Some(ReplyEvent::Token { bytes, logprob, .. }) => {
                    self.logprob(&bytes, &logprob).await?
                }
                Some(ReplyEvent::Done {
                    finish,
                    report,
                    ids,
                }) => {
                    return self
                        .done(finish, Usage::new(report.tokens, report.reused, ids.len()))
                        .await;
                }
                None => {
                    let body = error::body(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "the engine stopped in the middle of the answer",
                        None,
                    );
                    return self.send(&body).await;
                }
            }
        }
    }

    async fn call(&mut self, index: usize, name: &str, arguments: &str) -> Result<(), Gone> {
        self.called = true;
        let id = call_id(&self.head, index);
        let opening = json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        self.delta(json!({ "tool_calls": [opening] }), Value::Null)
            .await?;
        let rest = json!({ "index": index, "function": { "arguments": arguments } });
        self.delta(json!({ "tool_calls": [rest] }), Value::Null)
            .await
    }

    async fn logprob(&mut self, bytes: &[u8], logprob: &Logprob) -> Result<(), Gone> {
        let entry = logprob_entry(bytes, logprob, &self.service);
        let choice = json!([{ "index": 0, "delta": {}, "logprobs": { "content": [entry] }, "finish_reason": null }]);
        let chunk = self.head.chunk(choice, self.no_usage());
        self.send(&chunk).await
    }

    async fn done(&mut self, finish: Finish, usage: Usage) -> Result<(), Gone> {
        if let Finish::Error(error) = finish {
            // After the 200 the error is an event, and the stream closes without a finish reason.
            let body = ApiError::from(crate::error::Error::from(error)).body();
            return self.send(&body).await;
        }
        let reason = finish_reason(&finish, self.called);
        self.delta(json!({}), reason.into()).await?;
        if self.job.include_usage {
            let usage = serde_json::to_value(usage).unwrap_or_default();
            let chunk = self.head.chunk(json!([]), Some(usage));
            self.send(&chunk).await?;
        }
        self.sender.send("data: [DONE]\n\n".into()).await
    }

    async fn delta(&mut self, delta: Value, finish: Value) -> Result<(), Gone> {
        let choice =
            json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
        let chunk = self.head.chunk(choice, self.no_usage());
        self.send(&chunk).await
    }

    /// `usage: null` in each chunk only where usage was asked for.
    fn no_usage(&self) -> Option<Value> {
        self.job.include_usage.then_some(Value::Null)
    }

    async fn send(&mut self, value: &Value) -> Result<(), Gone> {
        self.sender.send(format!("data: {value}\n\n")).await
    }
}
