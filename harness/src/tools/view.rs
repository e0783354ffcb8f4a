//! A range of a text file with line numbers: what `read` and `artifact` show.
//!
//! The file is streamed, never loaded, so its size does not matter. A range begins at a line or, in
//! a file of very long lines, at a byte; either way the text says where to read on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use regex::Regex;

use super::bound::{Caps, Gap, Source, counted, grouped};
use super::clean::{LoneReturn, for_model};
use crate::limits::{KEEP_CHARS, LINE_CHARS, READ_COUNT_BYTES_MAX};

/// Which part is wanted.
#[derive(Clone, Debug)]
pub struct Range {
    /// 1-based.
    pub start: u64,
    pub lines: Option<u64>,
    /// Starts here instead of at a line.
    pub byte: Option<u64>,
    /// Only lines that match.
    pub pattern: Option<Regex>,
}

/// The part, and where it stands in the file.
#[derive(Debug)]
pub struct View {
    pub source: Source,
    /// What to say below it: the range, the total, how to read on.
    pub footer: String,
}

/// How to name the file in a call that reads on.
pub struct Call<'a> {
    pub tool: &'a str,
    pub key: &'a str,
    pub value: &'a str,
}

impl Call<'_> {
    fn with(&self, position: &str, at: u64) -> String {
        let value = serde_json::Value::from(self.value);
        format!(
            "{} {{\"{}\": {value}, \"{position}\": {at}}}",
            self.tool, self.key
        )
    }
}

/// How much is shown at once.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Of one line among others.
    pub line_chars: usize,
    /// Of a range that begins at a byte.
    pub bytes: usize,
}

impl Most {
    /// Less in a small window, so that other lines fit too, or the whole part.
    pub fn for_caps(caps: Caps) -> Most {
        Most {
            line_chars: LINE_CHARS.min(caps.chars / 4).min(caps.tokens),
            // Two bytes a token is dense; denser text is cut once more, and says so.
            bytes: (caps.chars * 2 / 3).min(caps.tokens * 2).max(1),
        }
    }
}

/// Reads `range` of `file`.
pub fn view(file: File, range: &Range, most: Most, call: &Call<'_>) -> io::Result<View> {
    match range.byte {
        Some(byte) => bytes(file, byte, most.bytes, call),
        None => lines(file, range, most.line_chars, call),
    }
}

/// One line of a file: its first bytes, and how many it has.
struct RawLine {
    start: Vec<u8>,
    bytes: u64,
    ended: bool,
}

/// The next line, of which at most `most` bytes are kept.
fn next_line(reader: &mut impl BufRead, most: usize) -> io::Result<Option<RawLine>> {
    let mut line = RawLine {
        start: Vec::new(),
        bytes: 0,
        ended: false,
    };
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(if line.bytes == 0 { None } else { Some(line) });
        }
        let newline = buffer.iter().position(|b| *b == b'\n');
        let part = newline.unwrap_or(buffer.len());
        let room = most.saturating_sub(line.start.len()).min(part);
        line.start.extend_from_slice(&buffer[..room]);
        line.bytes += part as u64;
        let used = part + usize::from(newline.is_some());
        reader.consume(used);
        if newline.is_some() {
            line.ended = true;
            return Ok(Some(line));
        }
    }
}

fn lines(file: File, range: &Range, line_chars: usize, call: &Call<'_>) -> io::Result<View> {
    let size = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let mut shown = Shown::default();
    let mut at = Position { line: 0, byte: 0 };
    let wanted_end = range
        .lines
        .map_or(u64::MAX, |n| range.start.saturating_add(n));
    // Four bytes a character at most, and the ends of lines that are CRLF.
    while let Some(raw) = next_line(&mut reader, line_chars * 4 + 4)? {
        at.line += 1;
        let line_start = at.byte;
        at.byte += raw.bytes + u64::from(raw.ended);
        let in_range = (range.start..wanted_end).contains(&at.line);
        let pattern_wants = || {
            range
                .pattern
                .as_ref()
                .is_none_or(|p| p.is_match(&String::from_utf8_lossy(&raw.start)))
        };
        if in_range && pattern_wants() {
            shown.add(at.line, line_start, &raw, line_chars, call);
        }
        if at.line >= wanted_end && at.byte > READ_COUNT_BYTES_MAX {
            break;
        }
    }
    let all_counted = at.byte >= size || at.byte <= READ_COUNT_BYTES_MAX;
    Ok(View {
        footer: footer(range, &shown, &at, all_counted),
        source: shown.finish(),
    })
}

struct Position {
    line: u64,
    byte: u64,
}

/// The lines to show: kept up to `KEEP_CHARS`, counted beyond.
#[derive(Default)]
struct Shown {
    text: String,
    chars: usize,
    lines: u64,
    first: u64,
    last: u64,
    gap: Gap,
}

impl Shown {
    fn add(
        &mut self,
        number: u64,
        at_byte: u64,
        raw: &RawLine,
        line_chars: usize,
        call: &Call<'_>,
    ) {
        if self.lines == 0 {
            self.first = number;
        }
        self.lines += 1;
        self.last = number;
        if self.gap.newlines > 0 || self.chars > KEEP_CHARS {
            // Shown in no tier, but counted as it would have been.
            let plain = raw.bytes <= line_chars as u64
                && raw.start.iter().all(|b| (b' '..=b'~').contains(b));
            self.gap.newlines += 1;
            self.gap.chars += if plain {
                number_width(number) + 1 + raw.start.len()
            } else {
                numbered(number, at_byte, raw, line_chars, call)
                    .chars()
                    .count()
            };
            return;
        }
        let line = numbered(number, at_byte, raw, line_chars, call);
        self.chars += line.chars().count() + 1;
        self.text.push_str(&line);
        self.text.push('\n');
    }

    fn finish(self) -> Source {
        Source {
            head: self.text,
            tail: String::new(),
            gap: self.gap,
        }
    }
}

fn number_width(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |n| n as usize + 1).max(5)
}

/// `   12→text`, cleaned; of a long line its start and the way to its rest.
fn numbered(
    number: u64,
    at_byte: u64,
    raw: &RawLine,
    line_chars: usize,
    call: &Call<'_>,
) -> String {
    let body = match raw.start.strip_suffix(b"\r") {
        Some(body) if raw.bytes == raw.start.len() as u64 => body,
        _ => &raw.start,
    };
    let body = if at_byte == 0 {
        body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
    } else {
        body
    };
    let text = for_model(body, LoneReturn::Shown);
    let whole = raw.bytes == raw.start.len() as u64;
    if whole && text.chars().count() <= line_chars {
        return format!("{number:>5}\t{text}");
    }
    // Cut on a character of the raw bytes, so that the byte to read on from is exact.
    let mut end = body.len().min(line_chars);
    while end > 0 && body.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
        end -= 1;
    }
    let next = at_byte + end as u64;
    format!(
        "{number:>5}\t{} [... {} bytes more in this line; read on: {}]",
        for_model(&body[..end], LoneReturn::Shown),
        grouped((raw.bytes - end as u64) as usize),
        call.with("byte", next)
    )
}

fn footer(range: &Range, shown: &Shown, at: &Position, all_counted: bool) -> String {
    let total = if all_counted {
        grouped(at.line as usize)
    } else {
        format!("at least {}", grouped(at.line as usize))
    };
    let lines = if at.line == 1 { "line" } else { "lines" };
    if let Some(pattern) = &range.pattern {
        return format!(
            "[{} of {total} {lines} match {pattern}]",
            grouped(shown.lines as usize)
        );
    }
    if at.line == 0 {
        return "[the file is empty]".into();
    }
    if shown.lines == 0 {
        return format!("[nothing there: the file has {total} {lines}]");
    }
    if shown.first == 1 && shown.last == at.line && all_counted {
        return String::new();
    }
    format!(
        "[lines {} to {} of {total}]",
        grouped(shown.first as usize),
        grouped(shown.last as usize)
    )
}

fn bytes(mut file: File, byte: u64, most: usize, call: &Call<'_>) -> io::Result<View> {
    let size = file.metadata()?.len();
    if byte >= size {
        let footer = format!(
            "[nothing there: the file has {}]",
            counted(size as usize, "byte")
        );
        return Ok(View {
            source: Source::default(),
            footer,
        });
    }
    file.seek(SeekFrom::Start(byte))?;
    let mut part = Vec::new();
    file.take(most as u64 + 3).read_to_end(&mut part)?;
    // Neither begin nor end inside a character, where the text is UTF-8.
    let skip = part
        .iter()
        .take(3)
        .take_while(|b| **b & 0xc0 == 0x80)
        .count();
    let mut end = part.len().min(most);
    while end > skip && part.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
        end -= 1;
    }
    let next = byte + end as u64;
    let rest = if next < size {
        format!(
            "; {} more; read on: {}",
            grouped((size - next) as usize),
            call.with("byte", next)
        )
    } else {
        "; the end of the file".into()
    };
    let (from, to) = (
        grouped((byte + skip as u64) as usize),
        grouped(next as usize),
    );
    let footer = format!("[bytes {from} to {to} of {}{rest}]", grouped(size as usize));
    let text = for_model(&part[skip..end], LoneReturn::Shown);
    Ok(View {
        source: Source::whole(text),
        footer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const MOST: Most = Most {
        line_chars: 40,
        bytes: 2_000,
    };

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    }

    fn shown(bytes: &[u8], range: Range) -> (String, String) {
        let call = Call {
            tool: "read",
            key: "path",
            value: "f",
        };
        let view = view(file(bytes), &range, MOST, &call).unwrap();
        (view.source.head, view.footer)
    }

    fn from(start: u64, lines: Option<u64>) -> Range {
        Range {
            start,
            lines,
            byte: None,
            pattern: None,
        }
    }

    #[test]
    fn ranges_and_what_is_said_about_them() {
        let text = b"\xef\xbb\xbfone\r\ntwo\nthree";
        let cases = [
            (from(1, None), "    1\tone\n    2\ttwo\n    3\tthree\n", ""),
            (from(2, Some(1)), "    2\ttwo\n", "[lines 2 to 2 of 3]"),
            (from(3, Some(9)), "    3\tthree\n", "[lines 3 to 3 of 3]"),
            (from(4, None), "", "[nothing there: the file has 3 lines]"),
        ];
        for (range, right, footer) in cases {
            assert_eq!(shown(text, range), (right.to_owned(), footer.to_owned()));
        }
        assert_eq!(shown(b"", from(1, None)).1, "[the file is empty]");
        let pattern = Some(Regex::new("^t").unwrap());
        let (text, footer) = shown(
            text,
            Range {
                pattern,
                ..from(1, None)
            },
        );
        assert_eq!(
            (text.as_str(), footer.as_str()),
            ("    2\ttwo\n    3\tthree\n", "[2 of 3 lines match ^t]")
        );
    }

    /// A one-line file of 1.7 MB came back empty or blew the window. It is read in parts now.
    #[test]
    fn a_long_line_is_read_on_by_byte() {
        let line: String = (0..50_000).map(|i| format!("{i},é")).collect();
        let text = format!("short\n{line}\nend\n");
        let (first, _) = shown(text.as_bytes(), from(1, None));
        let second_line = first.lines().nth(1).unwrap();
        assert!(second_line.starts_with("    2\t0,é1,é2,é"), "{second_line}");
        assert!(first.ends_with("    3\tend\n"));
        // Follow the calls to the end: nothing is missing and nothing comes twice.
        let mut collected = String::new();
        let mut next = 6u64;
        loop {
            let (part, footer) = shown(
                text.as_bytes(),
                Range {
                    byte: Some(next),
                    ..from(1, None)
                },
            );
            collected.push_str(&part);
            match footer.split("\"byte\": ").nth(1) {
                Some(rest) => next = rest.trim_end_matches("}]").parse().unwrap(),
                None => break,
            }
        }
        assert_eq!(collected, text[6..]);
        let at: usize = second_line
            .split("\"byte\": ")
            .nth(1)
            .unwrap()
            .trim_end_matches("}]")
            .parse()
            .unwrap();
        let shown_part = &text[6..at];
        assert!(second_line.contains(&format!(
            "\t{shown_part} [... {} bytes more",
            grouped(line.len() - shown_part.len())
        )));
    }

    #[test]
    fn many_lines_are_counted_but_not_kept() {
        let text: String = (1..=200_000).map(|i| format!("{i}\n")).collect();
        let call = Call {
            tool: "read",
            key: "path",
            value: "f",
        };
        let most = Most::for_caps(Caps::for_window(131_072));
        let view = view(file(text.as_bytes()), &from(1, None), most, &call).unwrap();
        assert!(view.source.head.len() < 2 * KEEP_CHARS);
        assert_eq!(view.footer, "");
        let kept = view.source.head.matches('\n').count();
        assert_eq!(kept + view.source.gap.newlines, 200_000);
    }
}
