//! The header of one GGUF file, version 2 or 3: metadata and tensor table.
//!
//! After the GGUF specification (ggml, `docs/gguf.md`). Big-endian files are told apart and refused:
//! weights are used where they lie in the mapped file, and turning them round would mean a copy.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use super::cursor::Cursor;
use super::tensor::{TABLE_ROW_BYTES_MIN, TableRow};
use super::value::Value;
use crate::error::quote;
use crate::limits::{ALIGNMENT_MAX, ALIGNMENT_MIN, KEY_BYTES_MAX, METADATA_PAIRS_MAX, TENSORS_MAX};
use crate::{Error, Result};

const MAGIC: &[u8] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;

/// The fewest bytes a pair can take: key length, value type, a value of one byte.
const PAIR_BYTES_MIN: u64 = 8 + 4 + 1;

#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub pairs: BTreeMap<String, Value>,
    pub rows: Vec<TableRow>,
    pub alignment: u64,
    /// The first byte of the data section.
    pub data_start: u64,
}

impl Header {
    pub(super) fn read(file: &Bytes) -> Result<Self> {
        check_magic(file)?;
        let mut cursor = Cursor::new(file);
        cursor.advance(MAGIC.len() as u64, "the magic")?;
        let version = check_version(cursor.u32("the version")?)?;
        let tensors = cursor.u64("the number of tensors")?;
        let pairs = cursor.u64("the number of metadata pairs")?;
        check_limit(tensors, TENSORS_MAX, "tensors")?;
        check_limit(pairs, METADATA_PAIRS_MAX, "metadata pairs")?;
        let pairs = cursor.check_count(pairs, PAIR_BYTES_MIN, "metadata pairs")?;
        cursor.check_count(tensors, TABLE_ROW_BYTES_MIN, "tensors")?;
        let pairs = read_pairs(&mut cursor, pairs)?;
        let alignment = alignment(&pairs)?;
        let tensors = cursor.check_count(tensors, TABLE_ROW_BYTES_MIN, "tensors")?;
        let rows: Vec<_> = (0..tensors)
            .map(|i| TableRow::read(&mut cursor, i))
            .collect::<Result<_>>()?;
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        Ok(Self {
            version,
            pairs,
            rows,
            alignment,
            data_start,
        })
    }
}

fn check_limit(count: u64, max: u64, what: &str) -> Result<()> {
    if count <= max {
        return Ok(());
    }
    Err(Error::input(format!(
        "the header promises {count} {what}, more than the {max} that this reader takes; the file \
         is damaged or not a model"
    )))
}

fn read_pairs(cursor: &mut Cursor<'_>, count: usize) -> Result<BTreeMap<String, Value>> {
    let mut pairs = BTreeMap::new();
    for index in 0..count {
        let within = |e: Error| e.within(&format!("metadata key number {index}"));
        let key = read_key(cursor).map_err(within)?;
        let value =
            Value::read(cursor).map_err(|e| e.within(&format!("metadata key {}", quote(&key))))?;
        match pairs.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(value);
            }
            Entry::Occupied(slot) => {
                return Err(Error::input(format!(
                    "metadata key {} occurs twice: which value holds cannot be known; convert the \
                     model again",
                    quote(slot.key())
                )));
            }
        }
    }
    Ok(pairs)
}

fn read_key(cursor: &mut Cursor<'_>) -> Result<String> {
    let length = cursor.u64("the key")?;
    if length > KEY_BYTES_MAX {
        return Err(Error::input(format!(
            "a key of {length} bytes, where GGUF allows {KEY_BYTES_MAX}; the file is damaged"
        )));
    }
    let bytes = cursor.take(length, "the key")?;
    match std::str::from_utf8(&bytes) {
        Ok(key) => Ok(key.to_owned()),
        Err(_) => {
            let shown = quote(&String::from_utf8_lossy(&bytes));
            Err(Error::input(format!(
                "the key {shown} is not UTF-8; the file is damaged"
            )))
        }
    }
}

fn alignment(pairs: &BTreeMap<String, Value>) -> Result<u64> {
    let found = match pairs.get(ALIGNMENT_KEY) {
        None => return Ok(ALIGNMENT_DEFAULT),
        Some(Value::U32(value)) => u64::from(*value),
        Some(other) => {
            return Err(Error::input(format!(
                "metadata key {ALIGNMENT_KEY}: need u32, have {}; convert the model again",
                other.describe()
            )));
        }
    };
    if found.is_power_of_two() && (ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&found) {
        return Ok(found);
    }
    Err(Error::input(format!(
        "metadata key {ALIGNMENT_KEY}: need a power of two from {ALIGNMENT_MIN} to \
         {ALIGNMENT_MAX}, have {found}; convert the model again"
    )))
}

fn check_version(version: u32) -> Result<u32> {
    match version {
        2 | 3 => Ok(version),
        1 => Err(Error::input(
            "GGUF version 1 is not supported; convert the model again",
        )),
        // Versions are small, so a number that is small only when turned round was written so.
        other if other.swap_bytes() < 256 => Err(Error::input(format!(
            "this is a big-endian GGUF file (version {}), and only little-endian ones are \
             supported; turn it round with llama.cpp's gguf_convert_endian.py or fetch the usual \
             file",
            other.swap_bytes()
        ))),
        other => Err(Error::input(format!(
            "GGUF version {other} is not supported: this reader knows 2 and 3; the file is damaged \
             or newer than this program"
        ))),
    }
}

/// What people open by mistake, with what to do about it.
fn check_magic(file: &[u8]) -> Result<()> {
    if file.starts_with(MAGIC) {
        return Ok(());
    }
    let mistakes: [(&[u8], &str); 7] = [
        (
            b"version https://git-lfs",
            "this is a Git LFS pointer, not the model itself: run `git lfs pull` where it came from, \
             or download the file",
        ),
        (
            b"<",
            "not a GGUF file but a web page: the download gave an error page, fetch it again",
        ),
        (
            b"PK\x03\x04",
            "not a GGUF file but a zip archive: unpack it and open the .gguf inside",
        ),
        (
            b"\x1f\x8b",
            "not a GGUF file but a gzip archive: unpack it and open the .gguf inside",
        ),
        (
            b"lmgg",
            "not a GGUF file but an old GGML one: fetch the model as .gguf",
        ),
        (
            b"fmgg",
            "not a GGUF file but an old GGML one: fetch the model as .gguf",
        ),
        (
            b"tjgg",
            "not a GGUF file but an old GGML one: fetch the model as .gguf",
        ),
    ];
    if let Some((_, message)) = mistakes.iter().find(|(start, _)| file.starts_with(start)) {
        return Err(Error::input(*message));
    }
    if file.len() < MAGIC.len() {
        return Err(Error::input(format!(
            "not a GGUF file: it has {} bytes; fetch it again",
            file.len()
        )));
    }
    let start = quote(&String::from_utf8_lossy(&file[..MAGIC.len()]));
    Err(Error::input(format!(
        "not a GGUF file: it begins with {start}; give a .gguf file"
    )))
}
