//! Makes text that a program, a file or a model wrote safe to show.
//!
//! Two readers, two rules. The model gets plain text: escape sequences are removed, a progress bar
//! leaves its last state, bytes that are not UTF-8 become `\xNN`. The person's terminal gets every
//! control character as a visible sign, so nothing is executed and nothing is hidden.
//! Invariant: neither output holds ESC, another C0 or C1 control (but newline and tab), NUL, or a
//! character that reorders or hides text. After ECMA-48 and xterm's control sequences.

use crate::limits::{ESCAPE_CHARS_MAX, HELD_LINE_CHARS_MAX};

/// What becomes of a carriage return that is not part of a line ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoneReturn {
    /// The line starts again, as on a terminal: output of commands.
    Restarts,
    /// It is shown as `␍`: contents of files.
    Shown,
}

/// Cleans a byte stream for the model. Any chunking gives the same text, and a newline in is a
/// newline out, so line numbers of the raw bytes and of the clean text agree.
pub struct Cleaner {
    lone_return: LoneReturn,
    state: State,
    /// The current line, held back until nothing can change it any more.
    line: String,
    line_chars: usize,
    /// Bytes of a character whose rest has not come yet.
    partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Ground,
    Return,
    Escape,
    Intermediate,
    Sequence { held: String },
    Text { held: String },
    TextEscape { held: String },
}

impl Cleaner {
    pub fn new(lone_return: LoneReturn) -> Cleaner {
        Cleaner {
            lone_return,
            state: State::Ground,
            line: String::new(),
            line_chars: 0,
            partial: Vec::new(),
        }
    }

    /// Cleans `bytes` and appends what is settled to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let joined;
        let mut rest = bytes;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            rest = &joined;
        }
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return self.push_str(text, out),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    self.push_str(&String::from_utf8_lossy(good), out);
                    match error.error_len() {
                        None => return self.partial.extend_from_slice(bad),
                        Some(length) => {
                            for byte in &bad[..length] {
                                self.put_escaped(*byte, out);
                            }
                            rest = &bad[length..];
                        }
                    }
                }
            }
        }
    }

    /// Ends the stream: what was held back is text after all.
    pub fn finish(mut self, out: &mut String) {
        for byte in std::mem::take(&mut self.partial) {
            self.put_escaped(byte, out);
        }
        // A progress bar that ends in a return keeps its last state.
        if matches!(self.state, State::Return) && self.lone_return == LoneReturn::Restarts {
            self.state = State::Ground;
        }
        self.abandon(out);
        out.push_str(&self.line);
    }

    fn put_escaped(&mut self, byte: u8, out: &mut String) {
        self.abandon(out);
        for c in format!("\\x{byte:02x}").chars() {
            self.put(c, out);
        }
    }

    fn push_str(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        while !rest.is_empty() {
            if matches!(self.state, State::Ground) {
                let plain = plain_run(rest.as_bytes());
                if plain > 0 {
                    self.put_plain(&rest[..plain], out);
                    rest = &rest[plain..];
                    continue;
                }
            }
            let Some(c) = rest.chars().next() else { return };
            rest = &rest[c.len_utf8()..];
            self.step(c, out);
        }
    }

    /// Printable ASCII, tabs and newlines, many at a time.
    fn put_plain(&mut self, run: &str, out: &mut String) {
        match run.rfind('\n') {
            Some(end) => {
                out.push_str(&self.line);
                self.line.clear();
                out.push_str(&run[..=end]);
                self.line.push_str(&run[end + 1..]);
                self.line_chars = run.len() - end - 1;
            }
            None => {
                self.line.push_str(run);
                self.line_chars += run.len();
            }
        }
        self.release_long_line(out);
    }

    /// A line that has grown too long is given away as it comes, up to its end. `line_chars`
    /// goes on counting, so that where the chunks were cut makes no difference.
    fn release_long_line(&mut self, out: &mut String) {
        if self.line_chars > HELD_LINE_CHARS_MAX {
            out.push_str(&self.line);
            self.line.clear();
        }
    }

    fn put(&mut self, c: char, out: &mut String) {
        self.line.push(c);
        self.line_chars += 1;
        if c == '\n' {
            out.push_str(&self.line);
            self.line.clear();
            self.line_chars = 0;
        } else {
            self.release_long_line(out);
        }
    }

    /// An escape sequence that does not end as one: its printable part is text.
    fn abandon(&mut self, out: &mut String) {
        match std::mem::replace(&mut self.state, State::Ground) {
            State::Ground | State::Escape | State::Intermediate => {}
            State::Return => self.lone_return(out),
            State::Sequence { held } | State::Text { held } | State::TextEscape { held } => {
                for c in held.chars() {
                    self.put(c, out);
                }
            }
        }
    }

    fn lone_return(&mut self, out: &mut String) {
        match self.lone_return {
            LoneReturn::Shown => self.put('␍', out),
            LoneReturn::Restarts if self.line_chars <= HELD_LINE_CHARS_MAX => {
                self.line.clear();
                self.line_chars = 0;
            }
            LoneReturn::Restarts => {}
        }
    }

    fn step(&mut self, c: char, out: &mut String) {
        match std::mem::replace(&mut self.state, State::Ground) {
            State::Ground => self.ground(c, out),
            State::Return if c == '\n' => self.put('\n', out),
            State::Return if c == '\r' => self.state = State::Return,
            State::Return => {
                self.lone_return(out);
                self.ground(c, out);
            }
            State::Escape => match c {
                '[' => {
                    self.state = State::Sequence {
                        held: String::new(),
                    }
                }
                ']' | 'P' | 'X' | '^' | '_' => {
                    self.state = State::Text {
                        held: String::new(),
                    }
                }
                ' '..='/' => self.state = State::Intermediate,
                '0'..='~' => {}
                _ => self.ground(c, out),
            },
            State::Intermediate => match c {
                ' '..='/' => self.state = State::Intermediate,
                '0'..='~' => {}
                _ => self.ground(c, out),
            },
            State::Sequence { mut held } => match c {
                ' '..='?' if held.len() < ESCAPE_CHARS_MAX => {
                    held.push(c);
                    self.state = State::Sequence { held };
                }
                '@'..='~' => {}
                _ => {
                    self.state = State::Sequence { held };
                    self.abandon(out);
                    self.ground(c, out);
                }
            },
            State::Text { held } => self.escape_text(held, c, out),
            State::TextEscape { held } => {
                // ESC \ ends the string. ESC and anything else ends it too, and opens the next.
                drop(held);
                if c != '\\' {
                    self.state = State::Escape;
                    self.step(c, out);
                }
            }
        }
    }

    fn escape_text(&mut self, mut held: String, c: char, out: &mut String) {
        match c {
            '\u{7}' | '\u{9c}' => {}
            '\u{1b}' => self.state = State::TextEscape { held },
            '\n' | '\r' => {
                self.state = State::Text { held };
                self.abandon(out);
                self.ground(c, out);
            }
            _ if held.len() >= ESCAPE_CHARS_MAX => {
                self.state = State::Text { held };
                self.abandon(out);
                self.ground(c, out);
            }
            c => {
                if !c.is_control() && !hides_text(c) {
                    held.push(c);
                }
                self.state = State::Text { held };
            }
        }
    }

    fn ground(&mut self, c: char, out: &mut String) {
        match c {
            '\n' | '\t' => self.put(c, out),
            '\r' => self.state = State::Return,
            '\u{1b}' => self.state = State::Escape,
            '\u{9b}' => {
                self.state = State::Sequence {
                    held: String::new(),
                }
            }
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => {
                self.state = State::Text {
                    held: String::new(),
                };
            }
            '\0' => "\\x00".chars().for_each(|c| self.put(c, out)),
            '\u{8}' => {
                if self.line.pop().is_some() {
                    self.line_chars -= 1;
                }
            }
            c if c.is_control() => {}
            c if hides_text(c) => code_point(c).chars().for_each(|c| self.put(c, out)),
            c => self.put(c, out),
        }
    }
}

/// How many of the first bytes need no thought.
fn plain_run(bytes: &[u8]) -> usize {
    let special = |b: &u8| !matches!(*b, b' '..=b'~' | b'\n' | b'\t');
    bytes.iter().position(special).unwrap_or(bytes.len())
}

/// `bytes`, cleaned for the model in one go.
pub fn for_model(bytes: &[u8], lone_return: LoneReturn) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut cleaner = Cleaner::new(lone_return);
    cleaner.push(bytes, &mut out);
    cleaner.finish(&mut out);
    out
}

/// `text`, with every control and every hiding or reordering character made visible. For the
/// person's terminal: approval prompts, file names, streamed model text. It keeps no state, so a
/// stream may be cut anywhere.
pub fn for_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            '\0'..='\u{1f}' => out.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}')),
            '\u{7f}' => out.push('␡'),
            c if c.is_control() || hides_text(c) => out.push_str(&code_point(c)),
            c => out.push(c),
        }
    }
    out
}

/// As `for_terminal`, on one line: newlines are signs too.
pub fn for_terminal_line(text: &str) -> String {
    for_terminal(text).replace('\n', "␊").replace('\t', "␉")
}

fn code_point(c: char) -> String {
    format!("<U+{:04X}>", c as u32)
}

/// Characters that reorder, hide or smuggle text: bidirectional marks, invisible separators,
/// tag characters, interlinear annotation.
fn hides_text(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clean(bytes: &[u8]) -> String {
        for_model(bytes, LoneReturn::Restarts)
    }

    /// Escapes from a tool's output once reached the terminal of the person: they set the
    /// clipboard (OSC 52), the title, and moved the cursor over what had been printed.
    #[test]
    fn escapes_are_removed_for_the_model_and_visible_on_the_terminal() {
        let cases: &[(&str, &[u8], &str, &str)] = &[
            (
                "clipboard",
                b"\x1b]52;c;ZXZpbA==\x07",
                "",
                "␛]52;c;ZXZpbA==␇",
            ),
            ("title", b"\x1b]0;pw\x07x", "x", "␛]0;pw␇x"),
            (
                "link",
                b"\x1b]8;;https://evil\x1b\\click\x1b]8;;\x1b\\",
                "click",
                "␛]8;;https://evil␛\\click␛]8;;␛\\",
            ),
            ("clear", b"\x1b[2J", "", "␛[2J"),
            ("up and erase", b"\x1b[3A\x1b[K", "", "␛[3A␛[K"),
            ("status request", b"\x1b[6n", "", "␛[6n"),
            ("one-character control", b"\xc2\x9b2Jx", "x", "<U+009B>2Jx"),
            ("unterminated", b"\x1b]", "", "␛]"),
            (
                "unterminated, then text",
                b"\x1b]hello\nworld",
                "hello\nworld",
                "␛]hello\nworld",
            ),
            ("reset", b"\x1bc", "", "␛c"),
            ("charset", b"\x1b(Bok", "ok", "␛(Bok"),
            ("bidi", b"\xe2\x80\xae", "<U+202E>", "<U+202E>"),
            ("nul", b"a\0b", "a\\x00b", "a␀b"),
            ("bell", b"\x07", "", "␇"),
            ("colours", b"\x1b[1;31mred\x1b[0m", "red", "␛[1;31mred␛[0m"),
            (
                "progress",
                b"1%\r50%\r100%\ndone",
                "100%\ndone",
                "1%␍50%␍100%\ndone",
            ),
            ("line endings", b"a\r\nb\r\r\n", "a\nb\n", "a␍\nb␍␍\n"),
            ("overstrike", b"N\x08NA\x08A", "NA", "N␈NA␈A"),
        ];
        for (name, bytes, model, terminal) in cases {
            assert_eq!(clean(bytes), *model, "{name}");
            assert_eq!(
                for_terminal(std::str::from_utf8(bytes).unwrap()),
                *terminal,
                "{name}"
            );
        }
    }

    /// A lone byte of Latin-1 or half an emoji ended a session: the request was no longer UTF-8.
    #[test]
    fn bytes_that_are_not_utf8_are_shown() {
        assert_eq!(clean(b"a\0b\xff\xfe\xc3"), "a\\x00b\\xff\\xfe\\xc3");
        assert_eq!(clean(b"\xf0\x9f\x98"), "\\xf0\\x9f\\x98");
        assert_eq!(clean("naïve 😀".as_bytes()), "naïve 😀");
    }

    #[test]
    fn a_file_keeps_its_lone_returns_visible() {
        assert_eq!(for_model(b"a\rb\r\nc", LoneReturn::Shown), "a␍b\nc");
    }

    fn safe(text: &str) -> bool {
        text.chars()
            .all(|c| c == '\n' || c == '\t' || (!c.is_control() && !hides_text(c)))
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_safe_text(
            bytes in prop::collection::vec(prop_oneof![
                4 => any::<u8>(),
                3 => prop::sample::select(b"\x1b[]\x07\\\r\n\x9b\xc2;m2J\x08 ab".to_vec()),
            ], 0..200),
            cut in 0usize..200,
        ) {
            let whole = clean(&bytes);
            let cut = cut.min(bytes.len());
            let mut out = String::new();
            let mut cleaner = Cleaner::new(LoneReturn::Restarts);
            cleaner.push(&bytes[..cut], &mut out);
            cleaner.push(&bytes[cut..], &mut out);
            cleaner.finish(&mut out);
            prop_assert_eq!(&out, &whole);
            prop_assert!(safe(&whole));
            let newlines = bytes.iter().filter(|b| **b == b'\n').count();
            prop_assert_eq!(whole.matches('\n').count(), newlines);
            prop_assert_eq!(&clean(whole.as_bytes()), &whole);
            let shown = for_terminal(&String::from_utf8_lossy(&bytes));
            prop_assert!(safe(&shown));
            prop_assert_eq!(for_terminal(&shown), shown.clone());
        }
    }
}
