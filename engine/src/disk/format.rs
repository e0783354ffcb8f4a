//! One file of the disk tier: a run of KV blocks that follow one another, and what they are.
//!
//! ```text
//!   0  magic        8   "ostlerkv"
//!   8  version      4   numbers are little-endian
//!  12  blocks       4
//!  16  tokens       4   32 a block; fewer in the last of a run that ends a sequence
//!  20  about_len    4
//!  24  block_bytes  8
//!  32  identity    32   ModelIdentity
//!  64  parent      32   BlockKey of what comes before the run
//!  96  sum         16   XXH3-128 of the header without `sum` and `hits`
//! 112  hits         8   written in place; may be wrong after a crash, and nothing depends on it
//! 120  part_bytes   8   of a block in layers with a window; 0: no part of any block is here
//! 128  ids          4 a token
//!      sums        16 a block: XXH3-128 of its BlockKey and its bytes
//!      part sums   16 a block, if there are parts: the same of its part, or 0 when that is not here
//!      about          JSON: model, time, pieces
//!      zeros          up to a multiple of 4,096
//!      blocks         block_bytes each, as the model's executor keeps them
//!      parts          part_bytes each, if there are some
//! ```
//!
//! Invariant: nothing is believed because of a file's name or place. The ids and the parent give the
//! keys, the keys are part of the sums, and a header or a block whose sum is wrong does not exist.

use crate::keys::BlockKey;
use crate::limits::{DISK_ABOUT_BYTES_MAX, DISK_RUN_BLOCKS_MAX};
use crate::piece::Layer;
use kernels::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"ostlerkv";
pub const VERSION: u32 = 1;
/// Bytes of the part whose length is fixed.
pub const FIXED_BYTES: usize = 128;
pub const HITS_OFFSET: u64 = 112;
const SUM: std::ops::Range<usize> = 96..112;
const PART_BYTES: std::ops::Range<usize> = 120..128;
const DATA_ALIGN: u64 = 4096;
const SUM_BYTES: usize = 16;

/// What a run is, as its file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub identity: [u8; 32],
    pub parent: BlockKey,
    pub ids: Vec<u32>,
    /// One a block.
    pub sums: Vec<u128>,
    /// Of the parts in layers with a window: one a block, 0 for those that are not here; or none.
    pub part_sums: Vec<u128>,
    pub bytes: BlockBytes,
    /// Where the first block begins.
    pub data_offset: u64,
    pub about: About,
    pub hits: u64,
}

/// Bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockBytes {
    pub all: u64,
    /// Of its part in layers with a window; 0 for none.
    pub part: u64,
}

/// For people and for retention; no answer depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct About {
    /// What the model was called.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    pub pieces: Vec<AboutPiece>,
}

/// The part of a piece that lies in the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutPiece {
    pub name: String,
    pub layer: Layer,
    pub tokens: usize,
}

/// Why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("it is not a file of KV blocks")]
    Foreign,
    #[error("it has format version {0}, this program reads version {VERSION}")]
    Version(u32),
    #[error("it belongs to another model, or to this one computed in another way")]
    OtherModel,
    #[error("it has {have} bytes, its header asks for {need}")]
    Length { need: u64, have: u64 },
    #[error("its header says {0}, which cannot be")]
    Impossible(String),
    #[error("its header does not match its checksum")]
    Header,
    #[error("block {0} is cut short or does not match its checksum")]
    Block(usize),
    #[error("it has gone")]
    Gone,
    #[error("it cannot be read: {0}")]
    Io(String),
}

impl From<models::Error> for Unfit {
    fn from(error: models::Error) -> Self {
        Unfit::Io(error.to_string())
    }
}

impl Header {
    /// Of a run that is to be written, its sums not known yet. What `about` has too much is left out.
    pub fn new(
        identity: [u8; 32],
        parent: BlockKey,
        ids: Vec<u32>,
        bytes: BlockBytes,
        mut about: About,
    ) -> Self {
        let about_len = loop {
            let len = about.json().len();
            // It is for people: the first pieces of so many say enough.
            match about.pieces.len() {
                _ if len <= DISK_ABOUT_BYTES_MAX => break len,
                0 => about.model.clear(),
                pieces => about.pieces.truncate(pieces / 2),
            }
        };
        let sums = vec![0; ids.len().div_ceil(BLOCK_TOKENS)];
        let part_sums = match bytes.part {
            0 => Vec::new(),
            _ => sums.clone(),
        };
        let variable = ids.len() * 4 + (sums.len() + part_sums.len()) * SUM_BYTES + about_len;
        Header {
            identity,
            parent,
            ids,
            sums,
            part_sums,
            bytes,
            data_offset: data_offset(variable),
            about,
            hits: 0,
        }
    }

    pub fn blocks(&self) -> usize {
        self.ids.len().div_ceil(BLOCK_TOKENS)
    }

    /// The name of each block, in order.
    pub fn keys(&self) -> Vec<BlockKey> {
        let mut key = self.parent;
        let next = |ids: &[u32]| {
            key = key.then(ids);
            key
        };
        self.ids.chunks(BLOCK_TOKENS).map(next).collect()
    }

    pub fn file_bytes(&self) -> u64 {
        self.data_offset + self.blocks() as u64 * (self.bytes.all + self.bytes.part)
    }

    /// Where a block begins.
    pub fn block_offset(&self, block: usize) -> u64 {
        self.data_offset + block as u64 * self.bytes.all
    }

    /// Where the part of a block begins.
    pub fn part_offset(&self, block: usize) -> u64 {
        self.block_offset(self.blocks()) + block as u64 * self.bytes.part
    }

    /// Whether the part of a block is here.
    pub fn has_part(&self, block: usize) -> bool {
        self.part_sums.get(block).is_some_and(|sum| *sum != 0)
    }

    /// The file up to the first block.
    pub fn encode(&self) -> Vec<u8> {
        let about = self.about.json();
        let mut bytes = Vec::with_capacity(self.data_offset as usize);
        bytes.extend_from_slice(MAGIC);
        let numbers = [VERSION, self.blocks() as u32, self.ids.len() as u32];
        numbers
            .iter()
            .chain([&(about.len() as u32)])
            .for_each(|n| bytes.extend_from_slice(&n.to_le_bytes()));
        bytes.extend_from_slice(&self.bytes.all.to_le_bytes());
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(self.parent.as_bytes());
        bytes.extend_from_slice(&[0; SUM_BYTES]);
        bytes.extend_from_slice(&self.hits.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.part.to_le_bytes());
        debug_assert_eq!(bytes.len(), FIXED_BYTES);
        let ids = self.ids.iter();
        ids.for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
        let sums = self.sums.iter().chain(&self.part_sums);
        sums.for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        bytes.extend_from_slice(&about);
        let sum = header_sum(&bytes);
        bytes[SUM].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(self.data_offset as usize, 0);
        bytes
    }
}

impl About {
    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain JSON")
    }
}

/// How long a header is, from its fixed part.
///
/// # Errors
/// What is not ours, of another version, or asks for more than a run may have.
pub fn header_len(fixed: &[u8; FIXED_BYTES]) -> Result<usize, Unfit> {
    let fields = Fixed::read(fixed)?;
    Ok(FIXED_BYTES + fields.variable_bytes())
}

/// Reads a header of exactly [`header_len`] bytes; the file has `file_bytes`.
pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Header, Unfit> {
    let (fixed, rest) = bytes.split_first_chunk().ok_or(Unfit::Foreign)?;
    let fields = Fixed::read(fixed)?;
    if rest.len() != fields.variable_bytes() || header_sum(bytes) != fields.sum {
        return Err(Unfit::Header);
    }
    let (ids, rest) = rest.split_at(fields.tokens * 4);
    let (sums, rest) = rest.split_at(fields.blocks * SUM_BYTES);
    let (part_sums, about) = rest.split_at(fields.part_sums() * SUM_BYTES);
    let read_sums = |bytes: &[u8]| {
        let sums = bytes.as_chunks().0.iter();
        sums.map(|b| u128::from_le_bytes(*b)).collect()
    };
    let header = Header {
        identity: fields.identity,
        parent: fields.parent,
        ids: ids
            .as_chunks()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect(),
        sums: read_sums(sums),
        part_sums: read_sums(part_sums),
        bytes: fields.bytes,
        data_offset: data_offset(fields.variable_bytes()),
        about: serde_json::from_slice(about).map_err(|e| Unfit::Impossible(e.to_string()))?,
        hits: fields.hits,
    };
    let data = header.data_offset;
    let need = (fields.bytes.all)
        .checked_add(fields.bytes.part)
        .and_then(|n| n.checked_mul(fields.blocks as u64))
        .and_then(|n| n.checked_add(data));
    match need {
        Some(need) if need == file_bytes => Ok(header),
        need => Err(Unfit::Length {
            need: need.unwrap_or(u64::MAX),
            have: file_bytes,
        }),
    }
}

/// The checksum of a block, which holds under one key only.
pub fn block_sum(key: &BlockKey, bytes: &[u8]) -> u128 {
    let mut sum = Xxh3::new();
    sum.update(key.as_bytes());
    sum.update(bytes);
    sum.digest128()
}

/// The fixed part, checked for what can be checked without the rest.
struct Fixed {
    blocks: usize,
    tokens: usize,
    about_len: usize,
    bytes: BlockBytes,
    identity: [u8; 32],
    parent: BlockKey,
    sum: u128,
    hits: u64,
}

impl Fixed {
    fn read(bytes: &[u8; FIXED_BYTES]) -> Result<Fixed, Unfit> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8"));
        let key_at = |at: usize| -> [u8; 32] { bytes[at..at + 32].try_into().expect("32") };
        if &bytes[..8] != MAGIC {
            return Err(Unfit::Foreign);
        }
        if u32_at(8) != VERSION {
            return Err(Unfit::Version(u32_at(8)));
        }
        let fixed = Fixed {
            blocks: u32_at(12) as usize,
            tokens: u32_at(16) as usize,
            about_len: u32_at(20) as usize,
            bytes: BlockBytes {
                all: u64_at(24),
                part: u64_at(PART_BYTES.start),
            },
            identity: key_at(32),
            parent: BlockKey::from_bytes(key_at(64)),
            sum: u128::from_le_bytes(bytes[SUM].try_into().expect("16")),
            hits: u64_at(HITS_OFFSET as usize),
        };
        let Fixed { blocks, tokens, .. } = fixed;
        let fits = (1..=DISK_RUN_BLOCKS_MAX).contains(&blocks)
            && tokens.div_ceil(BLOCK_TOKENS) == blocks
            && fixed.about_len <= DISK_ABOUT_BYTES_MAX;
        match fits {
            true => Ok(fixed),
            false => Err(Unfit::Impossible(format!(
                "{blocks} blocks of {tokens} tokens and {} bytes about them",
                fixed.about_len
            ))),
        }
    }

    fn part_sums(&self) -> usize {
        match self.bytes.part {
            0 => 0,
            _ => self.blocks,
        }
    }

    fn variable_bytes(&self) -> usize {
        let sums = self.blocks + self.part_sums();
        self.tokens * 4 + sums * SUM_BYTES + self.about_len
    }
}

fn data_offset(variable_bytes: usize) -> u64 {
    ((FIXED_BYTES + variable_bytes) as u64).next_multiple_of(DATA_ALIGN)
}

fn header_sum(bytes: &[u8]) -> u128 {
    let mut sum = Xxh3::new();
    sum.update(&bytes[..SUM.start]);
    // Where these bytes are zero, as they were before there were parts, the sum is as it was.
    if bytes[PART_BYTES] != [0; 8] {
        sum.update(&bytes[PART_BYTES]);
    }
    sum.update(&bytes[FIXED_BYTES..]);
    sum.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(tokens: usize) -> Header {
        header_with_parts(tokens, 0)
    }

    fn header_with_parts(tokens: usize, part: u64) -> Header {
        let about = About {
            model: "a model".into(),
            created: 1,
            pieces: vec![AboutPiece {
                name: "rules".into(),
                layer: Layer::Instructions,
                tokens,
            }],
        };
        let parent = BlockKey::from_bytes([4; 32]);
        let ids = (0..tokens as u32).collect();
        let bytes = BlockBytes { all: 2048, part };
        let mut header = Header::new([3; 32], parent, ids, bytes, about);
        header.hits = 7;
        let sums = header.sums.iter_mut().chain(&mut header.part_sums);
        sums.enumerate().for_each(|(i, sum)| *sum = i as u128);
        header
    }

    fn read(bytes: &[u8], file_bytes: u64) -> Result<Header, Unfit> {
        let fixed = bytes.first_chunk().ok_or(Unfit::Foreign)?;
        let len = header_len(fixed)?;
        decode(bytes.get(..len).ok_or(Unfit::Header)?, file_bytes)
    }

    #[test]
    fn what_was_written_is_read() {
        for (tokens, part) in [1, 31, 32, 33, 320]
            .map(|n| [(n, 0), (n, 512)])
            .as_flattened()
        {
            let header = header_with_parts(*tokens, *part);
            let bytes = header.encode();
            assert_eq!(bytes.len() as u64, header.data_offset);
            assert_eq!(read(&bytes, header.file_bytes()), Ok(header));
        }
    }

    /// Every bit of a header counts, but for the hits and the padding.
    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        for header in [header(40), header_with_parts(40, 512)] {
            let good = header.encode();
            let len = header_len(good.first_chunk().unwrap()).unwrap();
            let hits = HITS_OFFSET as usize..PART_BYTES.start;
            for at in (0..len).filter(|at| !hits.contains(at)) {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[at] ^= 1 << bit;
                    assert!(
                        read(&bad, header.file_bytes()).is_err(),
                        "byte {at} bit {bit}"
                    );
                }
            }
        }
    }

    #[test]
    fn parts_lie_behind_the_blocks() {
        let header = header_with_parts(320, 512);
        assert_eq!(header.part_offset(0), header.block_offset(9) + 2048);
        assert_eq!(header.part_offset(9) + 512, header.file_bytes());
        assert!(header.has_part(0) && !self::header(40).has_part(0));
        let mut without = header;
        without.part_sums[3] = 0;
        assert!(!without.has_part(3) && without.has_part(4));
    }

    #[test]
    fn other_lengths_other_versions_and_huge_numbers_are_refused() {
        let header = header(40);
        let good = header.encode();
        let size = header.file_bytes();
        for have in [0, size - 1, size + 1, u64::MAX] {
            assert!(matches!(read(&good, have), Err(Unfit::Length { .. })));
        }
        let with = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            read(&bytes, size)
        };
        assert_eq!(with(0, 0), Err(Unfit::Foreign));
        assert_eq!(with(8, 99), Err(Unfit::Version(99)));
        for at in [12, 16, 20] {
            assert!(matches!(with(at, u32::MAX), Err(Unfit::Impossible(_))));
            assert!(with(at, 0).is_err());
        }
    }

    #[test]
    fn about_is_bounded_whatever_the_pieces_are_called() {
        let Header {
            ids,
            bytes,
            mut about,
            parent,
            ..
        } = header(32);
        about.pieces = vec![about.pieces[0].clone(); 100_000];
        about.model = "m".repeat(1 << 20);
        let header = Header::new([3; 32], parent, ids, bytes, about);
        let bytes = header.encode();
        assert!(read(&bytes, header.file_bytes()).is_ok());
    }

    #[test]
    fn a_block_holds_under_one_key_only() {
        let (a, b) = (BlockKey::from_bytes([1; 32]), BlockKey::from_bytes([2; 32]));
        assert_eq!(block_sum(&a, b"kv"), block_sum(&a, b"kv"));
        assert_ne!(block_sum(&a, b"kv"), block_sum(&b, b"kv"));
        assert_ne!(block_sum(&a, b"kv"), block_sum(&a, b"kw"));
    }
}
