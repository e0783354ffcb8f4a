//! Ctrl-C. While an answer comes, the first one stops the answer and keeps it; at any other time, and the
//! second time, it ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::error::{EXIT_INTERRUPTED, Error, Result};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPED: u8 = 2;

/// Calls `heard` at each Ctrl-C, on a thread of its own. The handler is in place when this returns: a line
/// editor that starts later and puts back what it found finds ours.
pub fn on_ctrl_c(mut heard: impl FnMut() + Send + 'static) -> Result<()> {
    let cannot =
        |error: std::io::Error| Error::device(format!("cannot listen for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(cannot)?;
    let mut signals = {
        let _inside = runtime.enter();
        listener().map_err(cannot)?
    };
    let listen = move || {
        runtime.block_on(async {
            while signals.recv().await.is_some() {
                heard();
            }
        });
    };
    std::thread::Builder::new()
        .name("ctrl-c".to_owned())
        .spawn(listen)
        .map_err(cannot)?;
    Ok(())
}

#[cfg(unix)]
fn listener() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}

#[cfg(windows)]
fn listener() -> std::io::Result<tokio::signal::windows::CtrlC> {
    tokio::signal::windows::ctrl_c()
}

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
        let shared = Arc::new(Shared {
            state: AtomicU8::new(IDLE),
            stop: Notify::new(),
        });
        let heard = Arc::clone(&shared);
        on_ctrl_c(move || {
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
        })?;
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
