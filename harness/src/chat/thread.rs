//! The ids of a conversation so far, piece by piece. A thread only grows: what was sent stays as it
//! was sent (law 3).

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use engine::{Layer, Piece};
use models::template::FrozenClock;

use super::runs::Stretch;
use crate::limits;

/// Ids already decided on.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    pieces: Vec<Piece>,
    /// The ids end with a token that ends a turn.
    pub ended: bool,
}

impl Thread {
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// What was the newest turn becomes history.
    pub fn settle(&mut self) {
        for piece in &mut self.pieces {
            if piece.layer == Layer::Turn {
                piece.layer = Layer::History;
            }
        }
    }

    /// Adds stretches behind what is there.
    pub fn extend(&mut self, stretches: Vec<Stretch>) {
        for stretch in stretches {
            if stretch.ids.is_empty() {
                continue;
            }
            self.ended = false;
            self.pieces.push(Piece::new(
                stretch.name,
                stretch.layer,
                stretch.ids,
                stretch.text.as_bytes(),
            ));
        }
    }

    /// Adds a reply: behind its opening, which is then named after it, or as a piece of its own.
    pub fn reply(&mut self, opening: &str, name: &str, ids: &[u32], text: &str) {
        match self.pieces.last_mut() {
            Some(last) if &*last.name == opening => {
                last.name = name.into();
                self.append_to_last(ids, text);
            }
            Some(_) | None => self.extend(vec![Stretch {
                name: name.to_owned(),
                layer: Layer::Turn,
                ids: ids.to_vec(),
                text: text.to_owned(),
            }]),
        }
    }

    /// Adds ids to the last piece: a closing behind a reply.
    pub fn append_to_last(&mut self, ids: &[u32], text: &str) {
        let Some(last) = self.pieces.last_mut() else {
            return;
        };
        if ids.is_empty() {
            return;
        }
        let mut all = last.ids.to_vec();
        all.extend_from_slice(ids);
        // The text's hash is for diagnosis: it stands for the ids' bytes once a reply is in.
        let mut bytes = last.text_hash.to_vec();
        bytes.extend_from_slice(text.as_bytes());
        *last = Piece::new(last.name.clone(), last.layer, all, &bytes);
        self.ended = false;
    }
}

/// The clocks of conversations, by the digest of their beginning.
#[derive(Default)]
pub struct Clocks {
    inner: Mutex<(HashMap<[u8; 32], FrozenClock>, VecDeque<[u8; 32]>)>,
}

impl Clocks {
    /// The clock of the first call with this beginning on the same day; `now` for a new one.
    pub fn settle(&self, beginning: [u8; 32], now: &FrozenClock) -> FrozenClock {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (clocks, order) = &mut *inner;
        let day = |clock: &FrozenClock| clock.format("%Y-%m-%d");
        if let Some(known) = clocks.get(&beginning)
            && day(known) == day(now)
        {
            return known.clone();
        }
        if clocks.insert(beginning, now.clone()).is_none() {
            order.push_back(beginning);
        }
        while order.len() > limits::THREADS_MAX {
            let Some(oldest) = order.pop_front() else {
                break;
            };
            clocks.remove(&oldest);
        }
        now.clone()
    }
}

/// Threads by the digest of the messages they stand for; the oldest unused goes first.
#[derive(Default)]
pub struct Threads {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    threads: HashMap<[u8; 32], Thread>,
    order: VecDeque<[u8; 32]>,
}

impl Threads {
    pub fn get(&self, digest: &[u8; 32]) -> Option<Thread> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = inner.threads.get(digest).cloned()?;
        if let Some(at) = inner.order.iter().position(|d| d == digest) {
            inner.order.remove(at);
        }
        inner.order.push_back(*digest);
        Some(thread)
    }

    pub fn put(&self, digest: [u8; 32], thread: Thread) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.threads.insert(digest, thread).is_none() {
            inner.order.push_back(digest);
        }
        while inner.order.len() > limits::THREADS_MAX {
            let Some(oldest) = inner.order.pop_front() else {
                break;
            };
            inner.threads.remove(&oldest);
        }
    }
}
