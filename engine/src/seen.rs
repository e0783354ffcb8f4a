//! What was computed before, piece by piece: enough to say why a prefix broke, and how often a prompt comes
//! back.
//!
//! Nothing is reused because of it. Invariant: bounded. Two generations
//! are kept; when the younger is full it becomes the older, and the older is forgotten.

use crate::cache::Keyed;
use crate::keys::{ChainKey, Fingerprint};
use crate::limits::SEEN_PIECES_MAX;
use crate::piece::{Layer, Piece};
use crate::report::Why;
use crate::tree::Mark;
use crate::worth::Rhythm;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Seen {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    namespaces: HashSet<ChainKey>,
    ends: HashMap<ChainKey, End>,
    /// (namespace, piece)
    pieces: HashSet<(ChainKey, Fingerprint)>,
    /// What stood behind this end under this name: its ids and its text.
    followers: HashMap<(ChainKey, Arc<str>), (Fingerprint, [u8; 32])>,
}

/// The end of a piece that was computed.
#[derive(Debug, Clone)]
pub struct End {
    pub name: Arc<str>,
    pub layer: Layer,
    pub tokens: usize,
    /// Calls that went on from here, or ended here.
    pub uses: u64,
    /// When the last of them did, by the engine's clock.
    pub used: Duration,
    rhythm: Rhythm,
}

/// When a use is.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// Of the tree.
    pub tick: u64,
    pub now: Duration,
}

impl Seen {
    /// When what `keyed` goes on from was used, as far back as the piece end that it shares with a prompt
    /// before.
    pub fn rhythm(&self, keyed: &Keyed) -> Rhythm {
        self.deepest(keyed)
            .map(|end| end.rhythm)
            .unwrap_or_default()
    }

    fn deepest(&self, keyed: &Keyed) -> Option<&End> {
        keyed.marks.iter().rev().find_map(|m| self.end(&m.key))
    }

    pub fn end(&self, key: &ChainKey) -> Option<&End> {
        let mut generations = [&self.young, &self.old].into_iter();
        generations.find_map(|g| g.ends.get(key))
    }

    /// Remembers a prompt whose KV has been computed to the end. Returns how long ago what it goes on from was
    /// used, if it was.
    pub fn record(&mut self, keyed: &Keyed, when: When) -> Option<Duration> {
        let ago = self
            .deepest(keyed)
            .map(|end| when.now.saturating_sub(end.used));
        if self.young.ends.len() + keyed.marks.len() > SEEN_PIECES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        let pieces = || keyed.prompt.pieces.iter().zip(&keyed.marks);
        let end = |(piece, mark): (&Piece, &Mark)| {
            let before = self.end(&mark.key);
            let end = End {
                name: piece.name.clone(),
                layer: piece.layer,
                tokens: piece.len(),
                uses: before.map_or(0, |end| end.uses) + 1,
                used: when.now,
                rhythm: before
                    .map(|end| end.rhythm)
                    .unwrap_or_default()
                    .used(when.tick),
            };
            (mark.key, end)
        };
        let ends: Vec<_> = pieces().map(end).collect();
        let young = &mut self.young;
        young.ends.extend(ends);
        young.namespaces.insert(keyed.root_key);
        let mut parent = keyed.root_key;
        for (piece, mark) in pieces() {
            young.pieces.insert((keyed.root_key, piece.fingerprint));
            let now = (piece.fingerprint, piece.text_hash);
            young.followers.insert((parent, piece.name.clone()), now);
            parent = mark.key;
        }
        ago
    }

    /// Why piece `index`, the first that is not wholly kept, is not; `reused` tokens before are.
    pub fn why(&self, keyed: &Keyed, index: usize, reused: usize) -> Why {
        let generations = [&self.young, &self.old];
        let any = |seen: &dyn Fn(&Generation) -> bool| generations.iter().any(|g| seen(g));
        let piece = &keyed.prompt.pieces[index];
        let parent = match index.checked_sub(1) {
            Some(before) => keyed.marks[before].key,
            None => keyed.root_key,
        };
        if !any(&|g| g.namespaces.contains(&keyed.root_key)) {
            // What another process left on disk was computed once, but not under our eyes.
            return match reused {
                0 => Why::FirstCall,
                _ => Why::NewPiece,
            };
        }
        if any(&|g| g.ends.contains_key(&keyed.marks[index].key)) {
            return Why::Evicted;
        }
        let place = (parent, piece.name.clone());
        let follower = generations.iter().find_map(|g| g.followers.get(&place));
        if let Some((_, text)) = follower {
            return match *text == piece.text_hash {
                true => Why::Template,
                false => Why::Edited,
            };
        }
        match any(&|g| g.pieces.contains(&(keyed.root_key, piece.fingerprint))) {
            true => Why::Reordered,
            false => Why::NewPiece,
        }
    }
}
