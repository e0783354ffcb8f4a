//! The HTTP server. Each dialect is a folder beside `openai`, with its own wire types; all of them
//! ask [`crate::chat::ChatModel`], and none knows another.

pub mod cache;
mod guard;
mod openai;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::chat::ChatModel;
use crate::error::Error;
use crate::limits;
use models::template::FrozenClock;

/// What the handlers share.
pub struct Service {
    pub model: Arc<ChatModel>,
    pub started_s: u64,
    /// The time now; `ChatFormat::settle_clock` freezes it for a conversation.
    clock: fn() -> FrozenClock,
    /// Wall clock, seconds since 1970.
    now_s: fn() -> u64,
    ids: AtomicU64,
    seed: AtomicU64,
    /// Requests that may be composed at once.
    composing: Semaphore,
    /// Requests that are not answered to their end.
    open: Arc<AtomicUsize>,
}

/// A request that is being answered; over when it is dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service {
    pub fn new(
        model: Arc<ChatModel>,
        clock: fn() -> FrozenClock,
        now_s: fn() -> u64,
        seed: u64,
    ) -> Service {
        Service {
            model,
            started_s: now_s(),
            clock,
            now_s,
            ids: AtomicU64::new(1),
            seed: AtomicU64::new(seed),
            composing: Semaphore::new(available_parallelism().map_or(1, usize::from)),
            open: Arc::default(),
        }
    }

    fn opened(&self) -> Open {
        self.open.fetch_add(1, Ordering::SeqCst);
        Open(Arc::clone(&self.open))
    }

    fn now_s(&self) -> u64 {
        (self.now_s)()
    }

    fn next_id(&self) -> String {
        format!(
            "{:x}{:06x}",
            self.started_s,
            self.ids.fetch_add(1, Ordering::Relaxed)
        )
    }

    fn surroundings(&self) -> openai::Surroundings {
        // Weyl sequence: each request that brings no seed gets another one.
        let random_seed = self
            .seed
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        openai::Surroundings {
            clock: (self.clock)(),
            random_seed,
        }
    }
}

/// Where to listen, and who may come.
#[derive(Clone, Debug)]
pub struct Listen {
    pub host: String,
    pub port: u16,
    pub api_key: Option<String>,
}

impl Listen {
    /// Binds. Without a key only loopback is served: whoever reaches the port can use the model.
    pub async fn bind(&self) -> Result<TcpListener, Error> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, self.port))
            .await
            .map(Iterator::collect)
            .unwrap_or_default();
        if addresses.is_empty() {
            return Err(Error::caller(format!(
                "--host {}: there is no such address or name; listen on 127.0.0.1",
                self.host
            )));
        }
        if self.api_key.is_none() && !addresses.iter().all(|a| a.ip().is_loopback()) {
            return Err(Error::caller(format!(
                "--host {} can be reached by other machines; add --api-key KEY, or listen on 127.0.0.1",
                self.host
            )));
        }
        TcpListener::bind(&addresses[..])
            .await
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::AddrInUse => Error::device(format!(
                    "port {} is in use; choose another with --port",
                    self.port
                )),
                _ => Error::device(format!("cannot listen on {}:{}: {e}", self.host, self.port)),
            })
    }
}

/// Serves until `stop` resolves and the answers that are being given then are given. A connection that
/// sends nothing, or half a request, is not waited for.
pub async fn serve(
    service: Arc<Service>,
    listen: &Listen,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let guard = guard::Guard::new(listen.host.clone(), listen.api_key.as_deref());
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let stop = async {
        stop.await;
        let _ = stopping.send(());
    };
    let answered = {
        let open = Arc::clone(&service.open);
        async move {
            // Nobody stops a server whose `serve` has ended.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            let mut idle = 0;
            while idle < limits::IDLE_LOOKS_BEFORE_STOP {
                tokio::time::sleep(Duration::from_millis(limits::IDLE_LOOK_MS)).await;
                let busy = open.load(Ordering::SeqCst) > 0;
                idle = if busy { 0 } else { idle + 1 };
            }
        }
    };
    let serving = axum::serve(listener, router(service, guard)).with_graceful_shutdown(stop);
    tokio::select! {
        ended = serving.into_future() => {
            ended.map_err(|e| Error::device(format!("the server stopped: {e}")))
        }
        () = answered => Ok(()),
    }
}

fn router(service: Arc<Service>, guard: guard::Guard) -> Router {
    Router::new()
        .merge(openai::routes())
        .route("/health", get(health))
        .route("/cache", get(cache::held))
        .route("/metrics", get(cache::metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(limits::BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .with_state(service)
}

async fn health(State(service): State<Arc<Service>>) -> Response {
    match service.model.engine.stats_async().await {
        Ok(stats) => {
            Json(json!({ "status": "ok", "running": stats.active, "waiting": stats.waiting }))
                .into_response()
        }
        Err(error) => openai::error::ApiError::from(Error::from(error)).into_response(),
    }
}

async fn not_found() -> Response {
    openai::error::refuse(
        StatusCode::NOT_FOUND,
        "no such path; have /v1/chat/completions, /v1/models, /cache, /metrics, /health",
    )
}

async fn not_allowed() -> Response {
    openai::error::refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take that method",
    )
}

/// The address a listener got, for the line that tells the person.
pub fn address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener
        .local_addr()
        .map_err(|e| Error::device(format!("cannot read the listener's address: {e}")))
}
