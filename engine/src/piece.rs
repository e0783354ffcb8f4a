//! A piece: a named part of a prompt.
//!
//! Invariant: `fingerprint` is the fingerprint of `ids`; a piece cannot be changed once made.

use crate::keys::{self, Fingerprint};
use std::sync::Arc;

/// How often a piece changes. Pieces are sent in this order, rarest change first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Instructions,
    Tools,
    Memory,
    History,
    Turn,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::Instructions => "instructions",
            Layer::Tools => "tools",
            Layer::Memory => "memory",
            Layer::History => "history",
            Layer::Turn => "turn",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub name: Arc<str>,
    pub layer: Layer,
    pub ids: Arc<[u32]>,
    pub fingerprint: Fingerprint,
    /// Says whether the text changed when the ids did. Never part of a key.
    pub text_hash: [u8; 32],
}

impl Piece {
    /// `text` is what `ids` were made from; it is hashed, not kept.
    pub fn new(
        name: impl Into<Arc<str>>,
        layer: Layer,
        ids: impl Into<Arc<[u32]>>,
        text: &[u8],
    ) -> Self {
        let ids = ids.into();
        Piece {
            name: name.into(),
            layer,
            fingerprint: Fingerprint::of(&ids),
            text_hash: keys::text_hash(text),
            ids,
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
