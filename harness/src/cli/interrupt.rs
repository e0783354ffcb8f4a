//! Ctrl-C. While an answer comes, the first one stops the answer and keeps it; at any other time, and the
//! second time, it ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::error::{EXIT_INTERRUPTED, Error, Result};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPED: u8 = 2;

/// Listens from now on. One a process.
pub struct Interrupts {
    shared: Arc<Shared>,
}

struct Shared {
    state: AtomicU8,
    stop: Notify,
}

/// While this lives, Ctrl-C stops the answer.
pub struct Answering<'a> {
    shared: &'a Shared,
}

impl Interrupts {
    pub fn listen() -> Result<Interrupts> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(|error| Error::device(format!("cannot listen for Ctrl-C: {error}")))?;
        let shared = Arc::new(Shared {
            state: AtomicU8::new(IDLE),
            stop: Notify::new(),
        });
        let heard = Arc::clone(&shared);
        let spawned = std::thread::Builder::new()
            .name("ctrl-c".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    while tokio::signal::ctrl_c().await.is_ok() {
                        let was = heard.state.compare_exchange(
                            ANSWERING,
                            STOPPED,
                            Ordering::SeqCst,
                            Ordering::SeqCst,
                        );
                        match was {
                            Ok(_) => heard.stop.notify_one(),
                            Err(_) => std::process::exit(i32::from(EXIT_INTERRUPTED)),
                        }
                    }
                });
            });
        spawned.map_err(|error| Error::device(format!("cannot listen for Ctrl-C: {error}")))?;
        Ok(Interrupts { shared })
    }

    pub fn answering(&self) -> Answering<'_> {
        self.shared.state.store(ANSWERING, Ordering::SeqCst);
        Answering {
            shared: &self.shared,
        }
    }
}

impl Answering<'_> {
    /// Ends when Ctrl-C is pressed.
    pub async fn stopped(&self) {
        self.shared.stop.notified().await;
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.shared.state.store(IDLE, Ordering::SeqCst);
    }
}
