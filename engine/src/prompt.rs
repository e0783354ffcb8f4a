//! A prompt: pieces in order.
//!
//! Invariant: the fixed layers (Instructions, Tools, Memory) stand in order. History and Turn are
//! not checked against each other: a Turn note stays where it was and becomes history (law 3).

use crate::error::{Error, PieceTokens, Result};
use crate::keys::{ChainKey, Salt};
use crate::piece::{Layer, Piece};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    pub pieces: Vec<Piece>,
}

impl Prompt {
    /// Errors when a fixed layer comes after a later fixed layer.
    pub fn new(pieces: Vec<Piece>) -> Result<Self> {
        let mut latest = Layer::Instructions;
        for piece in pieces.iter().filter(|p| p.layer <= Layer::Memory) {
            if piece.layer < latest {
                return Err(Error::LayerOrder {
                    name: piece.name.to_string(),
                    layer: piece.layer.name(),
                    after: latest.name(),
                });
            }
            latest = piece.layer;
        }
        Ok(Prompt { pieces })
    }

    /// For a template that orders the system block its own way (tools before the instructions, or
    /// in the first user turn): the template decides, and the order of layers is not checked.
    pub fn in_template_order(pieces: Vec<Piece>) -> Self {
        Prompt { pieces }
    }

    /// All token ids, piece after piece.
    pub fn ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.len());
        self.pieces
            .iter()
            .for_each(|p| ids.extend_from_slice(&p.ids));
        ids
    }

    /// Tokens in all pieces.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Piece::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chain key of each piece's end, in order.
    pub fn chain_keys(&self, identity: &[u8; 32], salt: &Salt) -> Vec<ChainKey> {
        let mut key = ChainKey::root(identity, salt);
        let step = |piece: &Piece| {
            key = key.then(&piece.fingerprint);
            key
        };
        self.pieces.iter().map(step).collect()
    }

    /// Tokens per piece, for a table.
    pub fn piece_tokens(&self) -> Vec<PieceTokens> {
        let row = |p: &Piece| PieceTokens {
            name: p.name.to_string(),
            tokens: p.len(),
        };
        self.pieces.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, layer: Layer) -> Piece {
        Piece::new(name, layer, vec![1, 2], b"")
    }

    #[test]
    fn fixed_layers_keep_their_order_and_notes_may_stay_in_history() {
        use Layer::*;
        let ok = [Instructions, Tools, Memory, History, Turn, History, Turn];
        let pieces = ok.iter().map(|l| piece("p", *l)).collect();
        assert_eq!(Prompt::new(pieces).expect("in order").len(), 14);

        let bad = vec![piece("tools", Tools), piece("rules", Instructions)];
        let error = Prompt::new(bad.clone()).expect_err("out of order");
        assert!(error.to_string().contains("\"rules\""), "{error}");
        assert_eq!(Prompt::in_template_order(bad).ids(), [1, 2, 1, 2]);
    }
}
