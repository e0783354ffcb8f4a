//! The ids of a conversation so far, piece by piece. A thread only grows: what was sent stays as it
//! was sent (law 3).

use std::collections::HashMap;
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
    inner: Mutex<Recent<FrozenClock>>,
}

impl Clocks {
    /// The clock of the first call with this beginning on the same day; `now` for a new one.
    pub fn settle(&self, beginning: [u8; 32], now: &FrozenClock) -> FrozenClock {
        let mut clocks = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let day = |clock: &FrozenClock| clock.format("%Y-%m-%d");
        match clocks.get(&beginning) {
            Some(known) if day(&known) == day(now) => known,
            Some(_) | None => {
                clocks.put(beginning, now.clone());
                now.clone()
            }
        }
    }
}

/// Threads by the digest of the messages they stand for.
#[derive(Default)]
pub struct Threads {
    inner: Mutex<Recent<Thread>>,
}

impl Threads {
    pub fn get(&self, digest: &[u8; 32]) -> Option<Thread> {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(digest)
    }

    pub fn put(&self, digest: [u8; 32], thread: Thread) {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .put(digest, thread);
    }
}

/// A bounded map; the one unused for the longest time goes first.
struct Recent<T> {
    /// The value, and when it was used last.
    entries: HashMap<[u8; 32], (T, u64)>,
    uses: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent {
            entries: HashMap::new(),
            uses: 0,
        }
    }
}

impl<T: Clone> Recent<T> {
    fn get(&mut self, digest: &[u8; 32]) -> Option<T> {
        self.uses += 1;
        let (value, used) = self.entries.get_mut(digest)?;
        *used = self.uses;
        Some(value.clone())
    }

    fn put(&mut self, digest: [u8; 32], value: T) {
        self.uses += 1;
        self.entries.insert(digest, (value, self.uses));
        if self.entries.len() > limits::THREADS_MAX {
            // A quarter goes at once, so that the search for the oldest is rare.
            let mut uses: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
            let (_, oldest_kept, _) = uses.select_nth_unstable(limits::THREADS_MAX / 4);
            let oldest_kept = *oldest_kept;
            self.entries.retain(|_, (_, used)| *used >= oldest_kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_lately_stays() {
        let mut recent: Recent<usize> = Recent::default();
        let key = |n: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            key
        };
        for n in 0..limits::THREADS_MAX * 3 {
            recent.put(key(n), n);
            assert_eq!(recent.get(&key(0)), Some(0), "used with every step");
            assert!(recent.entries.len() <= limits::THREADS_MAX);
        }
        assert_eq!(recent.get(&key(1)), None);
        assert_eq!(
            recent.get(&key(limits::THREADS_MAX * 3 - 1)),
            Some(limits::THREADS_MAX * 3 - 1)
        );
    }
}
