//! Takes a stream of any length in bounded memory: the raw bytes go to a file when they are many,
//! the clean text keeps its start and its end.
//!
//! Invariant: memory is at most a few times `KEEP_CHARS` plus `COMMAND_MEMORY_BYTES`, whatever
//! comes; every character is either kept or counted in the gap.

use std::io;

use super::artifacts::{ArtifactId, ArtifactWriter, Artifacts};
use super::bound::{Gap, Source};
use super::clean::{Cleaner, LoneReturn};
use super::sniff::{Kind, sniff};
use crate::limits::{COMMAND_MEMORY_BYTES, KEEP_CHARS, SNIFF_BYTES};

/// The start and the end of a text that is pushed in parts.
#[derive(Default)]
pub struct Ends {
    head: String,
    head_chars: usize,
    tail: String,
    tail_chars: usize,
    gap: Gap,
}

impl Ends {
    pub fn push(&mut self, text: &str) {
        let mut rest = text;
        if self.head_chars < KEEP_CHARS {
            let room = KEEP_CHARS - self.head_chars;
            let at = char_offset(rest, room);
            let (taken, after) = rest.split_at(at);
            self.head_chars += taken.chars().count();
            self.head.push_str(taken);
            rest = after;
        }
        if rest.is_empty() {
            return;
        }
        self.tail_chars += rest.chars().count();
        self.tail.push_str(rest);
        if self.tail_chars > 2 * KEEP_CHARS {
            self.evict(self.tail_chars - KEEP_CHARS);
        }
    }

    /// Moves the first characters of the tail into the gap.
    fn evict(&mut self, chars: usize) {
        let at = match self.tail.is_ascii() {
            true => chars,
            false => char_offset(&self.tail, chars),
        };
        let gone = &self.tail[..at];
        let newlines = gone.matches('\n').count();
        if self.gap.newlines == 0 {
            let first_line = gone.split('\n').next().unwrap_or("");
            self.gap.head_line_rest += first_line.chars().count();
        }
        match gone.rsplit_once('\n') {
            Some((_, after)) => self.gap.tail_line_before = after.chars().count(),
            None => self.gap.tail_line_before += chars,
        }
        self.gap.chars += chars - newlines;
        self.gap.newlines += newlines;
        self.tail_chars -= chars;
        self.tail.drain(..at);
    }

    pub fn finish(mut self) -> Source {
        if self.gap == Gap::default() {
            self.head.push_str(&self.tail);
            return Source::whole(self.head);
        }
        // A head that ends on a line end has no open line.
        if self.head.ends_with('\n') {
            self.gap.head_line_rest = 0;
        }
        Source {
            head: self.head,
            tail: self.tail,
            gap: self.gap,
        }
    }
}

/// Where the character number `n` begins, or the end.
fn char_offset(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

/// Takes the output of one command.
pub struct Capture<'a> {
    artifacts: &'a Artifacts,
    /// All bytes so far, until they are too many; then the writer has them.
    raw: Vec<u8>,
    writer: Option<ArtifactWriter>,
    trouble: Option<io::Error>,
    kind: Option<Kind>,
    cleaner: Cleaner,
    ends: Ends,
    bytes: u64,
}

/// What a command said.
pub struct Captured {
    pub source: Source,
    pub kind: Kind,
    pub bytes: u64,
    raw: Vec<u8>,
    writer: Option<ArtifactWriter>,
    /// Why the raw bytes are not complete on disk.
    trouble: Option<io::Error>,
}

impl<'a> Capture<'a> {
    pub fn new(artifacts: &'a Artifacts) -> Capture<'a> {
        Capture {
            artifacts,
            raw: Vec::new(),
            writer: None,
            trouble: None,
            kind: None,
            cleaner: Cleaner::new(LoneReturn::Restarts),
            ends: Ends::default(),
            bytes: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.store(bytes);
        if self.kind.is_some() {
            self.show(bytes);
        } else if self.bytes >= SNIFF_BYTES as u64 {
            self.decide();
        }
    }

    /// Text or binary: from the start, which `raw` still holds.
    fn decide(&mut self) {
        self.kind = Some(match sniff(&self.raw) {
            Kind::Utf16 => Kind::Binary("UTF-16 text"),
            kind => kind,
        });
        let start = std::mem::take(&mut self.raw);
        self.show(&start);
        self.raw = start;
    }

    fn show(&mut self, bytes: &[u8]) {
        if matches!(self.kind, Some(Kind::Text)) {
            let mut clean = String::with_capacity(bytes.len());
            self.cleaner.push(bytes, &mut clean);
            self.ends.push(&clean);
        }
    }

    fn store(&mut self, bytes: &[u8]) {
        if self.trouble.is_some() {
            return;
        }
        let result = match &mut self.writer {
            Some(writer) => writer.write(bytes),
            None => {
                self.raw.extend_from_slice(bytes);
                if self.raw.len() <= COMMAND_MEMORY_BYTES || self.kind.is_none() {
                    return;
                }
                self.spill()
            }
        };
        if let Err(error) = result {
            self.trouble = Some(error);
            self.writer = None;
        }
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut writer = self.artifacts.create()?;
        writer.write(&std::mem::take(&mut self.raw))?;
        self.writer = Some(writer);
        Ok(())
    }

    pub fn finish(mut self) -> Captured {
        if self.kind.is_none() {
            self.decide();
        }
        let mut rest = String::new();
        self.cleaner.finish(&mut rest);
        self.ends.push(&rest);
        Captured {
            source: self.ends.finish(),
            kind: self.kind.unwrap_or(Kind::Text),
            bytes: self.bytes,
            raw: self.raw,
            writer: self.writer,
            trouble: self.trouble,
        }
    }
}

impl Captured {
    /// Keeps all bytes as an artifact.
    pub fn keep(self, artifacts: &Artifacts, origin: &str) -> io::Result<ArtifactId> {
        if let Some(error) = self.trouble {
            return Err(error);
        }
        let writer = match self.writer {
            Some(writer) => writer,
            None => {
                let mut writer = artifacts.create()?;
                writer.write(&self.raw)?;
                writer
            }
        };
        writer.finish(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::bound::{Caps, Keep, ReadOn, bound};
    use proptest::prelude::*;

    fn artifacts() -> (tempfile::TempDir, Artifacts) {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open(dir.path()).unwrap();
        (dir, artifacts)
    }

    #[test]
    fn a_long_stream_is_on_disk_and_its_ends_in_memory() {
        let (_dir, artifacts) = artifacts();
        let mut capture = Capture::new(&artifacts);
        let mut all = Vec::new();
        for i in 0..60_000 {
            let line = format!("line {i}\n");
            capture.push(line.as_bytes());
            all.extend_from_slice(line.as_bytes());
        }
        let captured = capture.finish();
        assert!(captured.raw.is_empty() && captured.writer.is_some());
        assert!(captured.source.head.len() + captured.source.tail.len() <= 3 * KEEP_CHARS);
        let caps = Caps {
            chars: 3_200,
            tokens: 4_000,
        };
        let bounded = bound(
            &captured.source,
            caps,
            Keep::HeadAndTail,
            ReadOn::Nothing,
            "",
            &|t| t.len(),
        );
        assert_eq!(bounded.lines_total(), 60_000);
        assert!(bounded.text().starts_with("line 0\n") && bounded.text().ends_with("\nline 59999"));
        let id = captured.keep(&artifacts, "test").unwrap();
        assert_eq!(std::fs::read(artifacts.path(id)).unwrap(), all);
    }

    #[test]
    fn binary_is_not_shown_but_kept() {
        let (_dir, artifacts) = artifacts();
        let mut capture = Capture::new(&artifacts);
        let bytes: Vec<u8> = b"\x7fELF"
            .iter()
            .copied()
            .chain((0..400_000u32).map(|i| i as u8))
            .collect();
        bytes.chunks(1000).for_each(|chunk| capture.push(chunk));
        let captured = capture.finish();
        assert_eq!(captured.kind, Kind::Binary("ELF program or library"));
        assert_eq!(captured.source, Source::default());
        let id = captured.keep(&artifacts, "test").unwrap();
        assert_eq!(std::fs::read(artifacts.path(id)).unwrap(), bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn the_ends_and_the_gap_make_the_whole(
            parts in prop::collection::vec((0usize..30_000, 0usize..4), 0..25),
        ) {
            let mut ends = Ends::default();
            let mut whole = String::new();
            for (length, newlines) in parts {
                let part = "é".repeat(length) + &"\n".repeat(newlines);
                ends.push(&part);
                whole.push_str(&part);
            }
            let source = ends.finish();
            let caps = Caps { chars: 5_000, tokens: 20_000 };
            let count = |t: &str| t.len();
            let from_ends = bound(&source, caps, Keep::HeadAndTail, ReadOn::Nothing, "", &count);
            let direct = bound(&Source::whole(whole), caps, Keep::HeadAndTail, ReadOn::Nothing, "", &count);
            prop_assert_eq!(from_ends.lines_total(), direct.lines_total());
            prop_assert_eq!(from_ends.chars_total(), direct.chars_total());
            // Which lines are shown may differ, as the middle of a long one may be gone.
            prop_assert_eq!(from_ends.cut().is_some(), direct.cut().is_some());
        }
    }
}
