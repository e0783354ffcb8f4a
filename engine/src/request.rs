//! A request, and the stream of events that answers it.
//!
//! Invariant: a stream that was accepted ends with exactly one `Done`, whatever happens, unless
//! its reader goes away first.

use crate::engine::Shared;
use crate::error::Error;
use crate::grammar::GrammarSpec;
use crate::keys::Salt;
use crate::prompt::Prompt;
use crate::report::{Plan, Report};
use crate::sampler::SamplingParams;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// Who goes first when requests wait. Within one priority it is first come, first served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    #[default]
    Interactive,
    Background,
}

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub prompt: Prompt,
    pub salt: Salt,
    pub sampling: SamplingParams,
    /// Tokens to sample at most. `None`, or more than the context holds: as many as it holds.
    /// `Some(0)` computes the prompt and samples nothing.
    pub max_tokens: Option<usize>,
    /// Byte strings that end the reply; they are not part of it.
    pub stop: Vec<Vec<u8>>,
    pub grammar: Option<GrammarSpec>,
    /// `Some(n)`: each token carries its log probability and those of the n most likely tokens.
    pub logprobs: Option<usize>,
    /// Compute every token alone, also where it could be guessed. The reply is the same. For
    /// measurements.
    pub no_drafts: bool,
    /// Sample on past end-of-generation tokens, to the limit. For measurements.
    pub ignore_end: bool,
    pub priority: Priority,
}

impl Request {
    pub fn new(prompt: Prompt) -> Self {
        Request {
            prompt,
            ..Request::default()
        }
    }
}

/// Log probabilities of one sampled token, before any sampling parameter changed the logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// First: what the call will cost.
    Plan(Plan),
    /// A token of the reply. Its bytes may end inside a UTF-8 character. Where a stop string
    /// begins inside a token, only the bytes before it are given.
    Token {
        id: u32,
        bytes: Vec<u8>,
        logprob: Option<Logprob>,
    },
    /// Last.
    Done {
        reason: Finish,
        report: Report,
        /// All ids that were sampled, the end token included: what a later prompt should carry
        /// in place of the text.
        ids: Vec<u32>,
    },
}

#[derive(Debug, Clone)]
pub enum Finish {
    /// The grammar is complete and admits nothing more.
    Stop,
    /// The model sampled an end-of-generation token.
    EndToken,
    /// The n-th stop string of the request appeared.
    StopString(usize),
    /// `max_tokens`, or the end of the context window.
    Length,
    Cancelled,
    Error(Error),
}

impl Finish {
    pub fn name(&self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::EndToken => "end token",
            Finish::StopString(_) => "stop string",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
            Finish::Error(_) => "error",
        }
    }
}

/// The events of one request. Dropping it cancels the request and frees its blocks at once.
pub struct Generation {
    pub(crate) id: u64,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    pub(crate) cancel: Arc<AtomicBool>,
    /// The engine lives while its events are read.
    pub(crate) _engine: Arc<Shared>,
}

impl Generation {
    /// Distinguishes requests of one engine, in logs and in [`crate::TraceRow`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the next event; `None` after `Done`. Not for async code: see [`Self::recv_async`].
    pub fn recv(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    pub async fn recv_async(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// An event if one is there now.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Ends the request after the step that is running; `Done` with `Cancelled` still comes.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// A way to cancel from elsewhere (a Ctrl-C handler) while this is being read.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.cancel.clone())
    }
}

#[derive(Debug, Clone)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
