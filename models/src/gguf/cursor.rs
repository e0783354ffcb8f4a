//! Reads a GGUF header front to back. Every length and count is compared with the bytes that are
//! left before it is used, so nothing is allocated or looped over that the file could not hold.

use bytes::Bytes;

use crate::limits::HEADER_BYTES_MAX;
use crate::{Error, Result};

/// A position in a file's header.
pub struct Cursor<'a> {
    file: &'a Bytes,
    position: usize,
    /// Where reading must stop: the end of the file or of the longest header.
    end: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a Bytes) -> Self {
        let header_max = usize::try_from(HEADER_BYTES_MAX).unwrap_or(usize::MAX);
        Self {
            file,
            position: 0,
            end: file.len().min(header_max),
        }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn left(&self) -> usize {
        self.end - self.position
    }

    /// The next `count` bytes, shared with the file.
    pub fn take(&mut self, count: u64, what: &str) -> Result<Bytes> {
        let start = self.advance(count, what)?;
        Ok(self.file.slice(start..self.position))
    }

    /// What was read since `start`, shared with the file.
    pub fn since(&self, start: usize) -> Bytes {
        self.file.slice(start..self.position)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let start = self.advance(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.file[start..self.position]);
        Ok(out)
    }

    /// A string with its length before it, not yet checked to be UTF-8.
    pub fn string(&mut self, what: &str) -> Result<Bytes> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// Skips a string with its length before it.
    pub fn skip_string(&mut self, what: &str) -> Result<()> {
        let length = self.u64(what)?;
        self.advance(length, what).map(drop)
    }

    /// Skips `count` bytes and returns where they began.
    pub fn advance(&mut self, count: u64, what: &str) -> Result<usize> {
        let start = self.position;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() => {
                self.position += count;
                Ok(start)
            }
            _ => Err(self.too_short(what, u128::from(count))),
        }
    }

    /// A count is possible when as many elements, each of at least `each` bytes, are left.
    pub fn check_count(&self, count: u64, each: u64, what: &str) -> Result<usize> {
        let need = u128::from(count) * u128::from(each);
        match usize::try_from(count) {
            Ok(count) if need <= self.left() as u128 => Ok(count),
            _ => Err(self.too_short(&format!("{count} {what}"), need)),
        }
    }

    fn too_short(&self, what: &str, need: u128) -> Error {
        let (at, have) = (self.position, self.left());
        if self.end < self.file.len() {
            return Error::input(format!(
                "{what}: need {need} bytes at byte {at}, but a header may have {HEADER_BYTES_MAX} \
                 bytes at most; the file is damaged or not a model"
            ));
        }
        Error::input(format!(
            "{what}: need {need} bytes at byte {at}, have {have} to the end of the file; it is cut \
             short or damaged, fetch it again"
        ))
    }
}
