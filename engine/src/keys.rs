//! The keys of the prefix cache: what names a piece, the end of a piece, and a block.
//!
//! Invariant: every key is sha256 over a tag that ends in NUL, then fixed-width or
//! length-prefixed fields, so two kinds of key, or two cuts of the same bytes, never collide.
//! Token ids are hashed as u32, little-endian. ARCHITECTURE.md tells what they are for.

use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

macro_rules! key_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
            pub fn from_bytes(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }
            /// All 64 hex digits.
            pub fn hex(&self) -> String {
                hex(&self.0)
            }
            /// The first 8 hex digits, for tables that people read.
            pub fn short(&self) -> String {
                hex(&self.0[..4])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.short())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.hex())
            }
        }
    };
}

key_type! {
    /// Names the token ids of one piece, wherever it stands.
    Fingerprint
}
key_type! {
    /// Names the end of a piece: everything before it, in this model and this namespace.
    ChainKey
}
key_type! {
    /// Names one full block of KV: its ids and everything before them.
    BlockKey
}

/// A namespace of the cache. Prompts of two salts never share KV. The empty salt is the default.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Salt(Arc<str>);

impl Salt {
    pub fn new(salt: &str) -> Self {
        Salt(salt.into())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Salt {
    fn default() -> Self {
        Salt::new("")
    }
}

impl Fingerprint {
    pub fn of(ids: &[u32]) -> Self {
        let mut hash = tagged("ostler.piece.v1");
        update_ids(&mut hash, ids);
        Fingerprint(hash.finalize().into())
    }
}

impl ChainKey {
    /// Where every chain of this model and namespace begins. `identity` is the ModelIdentity.
    pub fn root(identity: &[u8; 32], salt: &Salt) -> Self {
        ChainKey(root("ostler.chain-root.v1", identity, salt))
    }

    /// The key of the end of the piece `fingerprint` when it follows `self`.
    pub fn then(&self, fingerprint: &Fingerprint) -> Self {
        let mut hash = tagged("ostler.chain.v1");
        hash.update(self.0);
        hash.update(fingerprint.0);
        ChainKey(hash.finalize().into())
    }
}

impl BlockKey {
    pub fn root(identity: &[u8; 32], salt: &Salt) -> Self {
        BlockKey(root("ostler.block-root.v1", identity, salt))
    }

    /// The key of the block that holds `ids` (a whole block) when it follows `self`.
    pub fn then(&self, ids: &[u32]) -> Self {
        let mut hash = tagged("ostler.block.v1");
        hash.update(self.0);
        update_ids(&mut hash, ids);
        BlockKey(hash.finalize().into())
    }
}

/// The hash of a piece's text. It says whether the text changed; it is never part of a key.
pub fn text_hash(text: &[u8]) -> [u8; 32] {
    let mut hash = tagged("ostler.text.v1");
    hash.update(text);
    hash.finalize().into()
}

fn root(tag: &str, identity: &[u8; 32], salt: &Salt) -> [u8; 32] {
    let mut hash = tagged(tag);
    hash.update(identity);
    hash.update((salt.0.len() as u64).to_le_bytes());
    hash.update(salt.0.as_bytes());
    hash.finalize().into()
}

fn tagged(tag: &str) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(tag.as_bytes());
    hash.update([0]);
    hash
}

fn update_ids(hash: &mut Sha256, ids: &[u32]) {
    let mut bytes = [0u8; 256];
    for part in ids.chunks(64) {
        for (id, out) in part.iter().zip(bytes.chunks_exact_mut(4)) {
            out.copy_from_slice(&id.to_le_bytes());
        }
        hash.update(&bytes[..part.len() * 4]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_tagged_sha256_of_little_endian_ids() {
        let ids: Vec<u32> = (0..200).map(|i| i * 7919).collect();
        let mut bytes = b"ostler.piece.v1\0".to_vec();
        ids.iter()
            .for_each(|i| bytes.extend_from_slice(&i.to_le_bytes()));
        let plain: [u8; 32] = Sha256::digest(&bytes).into();
        assert_eq!(Fingerprint::of(&ids).as_bytes(), &plain);
        assert_eq!(Fingerprint::of(&ids).short(), hex(&plain[..4]));
    }

    #[test]
    fn kinds_of_key_salts_and_order_never_collide() {
        let identity = [7; 32];
        let (a, b) = (Fingerprint::of(&[1]), Fingerprint::of(&[2]));
        let root = ChainKey::root(&identity, &Salt::default());
        assert_ne!(
            root.as_bytes(),
            BlockKey::root(&identity, &Salt::default()).as_bytes()
        );
        assert_ne!(root, ChainKey::root(&identity, &Salt::new("tenant")));
        assert_ne!(root, ChainKey::root(&[8; 32], &Salt::default()));
        assert_ne!(root.then(&a).then(&b), root.then(&b).then(&a));
        assert_ne!(Fingerprint::of(&[1, 2]), Fingerprint::of(&[1]));
    }
}
