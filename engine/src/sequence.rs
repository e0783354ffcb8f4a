//! One live request: its ids, its blocks, and how far it has come.
//!
//! Invariant: the first `filled` of `ids` have their KV in `lease`; rows are owed for the rest.
//! There is no prefill state and no decode state: a decoding sequence owes one row.

use crate::cache::Keyed;
use crate::disk::Found;
use crate::draft::Drafter;
use crate::error::Result;
use crate::plan::Goal;
use crate::pool::Lease;
use crate::reply::Reply;
use crate::report::Report;
use crate::request::{Event, Priority};
use crate::tally::Tally;
use crate::worth::Visit;
use kernels::BLOCK_TOKENS;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

pub struct Sequence {
    pub id: u64,
    pub keyed: Keyed,
    /// The prompt, then what was sampled.
    pub ids: Vec<u32>,
    pub lease: Lease,
    pub filled: usize,
    /// Blocks that come from disk, the first of them from `filled` on.
    pub loads: VecDeque<Found>,
    /// Blocks before this one are not needed in the layers with a window.
    pub window_from: usize,
    /// Positions that the tree has had from this sequence.
    pub inserted: usize,
    /// Positions that admission set blocks aside for.
    pub reserved_tokens: usize,
    pub priority: Priority,
    pub task: Task,
    pub tally: Tally,
    /// What its use of the tree counts as.
    pub visit: Visit,
    pub drafter: Drafter,
    pub _load: Load,
}

/// A place in the bounded crowd of live requests; given back when dropped.
#[derive(Debug)]
pub struct Load(Arc<AtomicUsize>);

impl Load {
    /// `None` when `max` are taken.
    pub fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let taken = count.fetch_add(1, Ordering::Relaxed);
        let load = Load(count.clone());
        (taken < max).then_some(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub enum Task {
    Reply {
        reply: Box<Reply>,
        outlet: Outlet,
        /// The timeline that this reply is part of.
        timeline: Option<u64>,
    },
    /// Make the prompt resident and let the timeline hold it.
    Sync {
        timeline: u64,
        done: Option<oneshot::Sender<Result<Report>>>,
    },
}

impl Task {
    /// What holds the result.
    pub fn timeline(&self) -> Option<u64> {
        match self {
            Task::Sync { timeline, .. } => Some(*timeline),
            Task::Reply { timeline, .. } => *timeline,
        }
    }
}

/// Where a reply's events go.
pub struct Outlet {
    pub events: mpsc::UnboundedSender<Event>,
    pub cancel: Arc<AtomicBool>,
}

impl Sequence {
    pub fn goal(&self) -> Goal {
        match self.task {
            Task::Reply { .. } => Goal::Reply,
            Task::Sync { .. } => Goal::Resident,
        }
    }

    pub fn prompt_tokens(&self) -> usize {
        self.keyed.ids.len()
    }

    /// Rows owed.
    pub fn pending(&self) -> usize {
        self.ids.len() - self.filled
    }

    /// Whether more than the next row is owed.
    pub fn is_prefilling(&self) -> bool {
        self.pending() > 1
    }

    /// The most positions this sequence will ever fill: the last token sampled is never forwarded.
    pub fn tokens_max(&self) -> usize {
        match &self.task {
            Task::Sync { .. } => self.prompt_tokens(),
            Task::Reply { reply, .. } => self.prompt_tokens() + reply.tokens_max.saturating_sub(1),
        }
    }

    /// Tokens that may follow those that are known, at most `max`, for its next row. They fit into the
    /// blocks it holds: a guess is not worth another's block.
    pub fn draft(&mut self, max: usize) -> Vec<u32> {
        let Task::Reply { reply, .. } = &self.task else {
            return Vec::new();
        };
        if reply.no_drafts || self.pending() != 1 {
            return Vec::new();
        }
        let known = self.ids.len();
        let wanted = reply.tokens_max.saturating_sub(reply.ids.len() + 1);
        let room = (self.lease.len() * BLOCK_TOKENS).saturating_sub(known);
        match max.min(wanted).min(room) {
            0 => Vec::new(),
            max => self.drafter.draft(&self.ids, max),
        }
    }

    /// Whether its reader has gone or asked it to end.
    pub fn is_cancelled(&self) -> bool {
        match &self.task {
            Task::Reply { outlet, .. } => {
                outlet.cancel.load(Ordering::Relaxed) || outlet.events.is_closed()
            }
            Task::Sync { done, .. } => done.as_ref().is_some_and(oneshot::Sender::is_closed),
        }
    }

    /// Tokens that `other` and this one begin with alike, if they share a namespace.
    pub fn common_prefix(&self, other: &Sequence) -> usize {
        match self.keyed.root == other.keyed.root {
            true => crate::tree::common_prefix(&self.ids, &other.ids),
            false => 0,
        }
    }
}
