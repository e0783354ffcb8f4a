//! Makes a result fit, and says what it left out.
//!
//! The start and the end of a text are kept on whole lines, long lines are cut inside, and one
//! marker says what is missing (lines, characters, tokens) and how to read on. Every number in it
//! is computed from what was cut: shown + omitted = total, whatever was fitted how often.
//! Invariant: a bounded text is never longer than its caps, marker and footer included.
//! Characters are counted without line ends.

use super::artifacts::ArtifactId;
use super::lines::{Lines, Middle};
use crate::limits::{
    CHARS_PER_TOKEN_LEAST, RESULT_CHARS, RESULT_CHARS_SMALL, RESULT_CHARS_TINY, ROOM_CHARS_MIN,
    WINDOW_SHARE_OF_RESULT, WINDOW_TOKENS_SMALL, WINDOW_TOKENS_TINY,
};

/// Counts the tokens of a text with the model's own tokenizer.
pub type Counter = dyn Fn(&str) -> usize + Send + Sync;

/// The most one result may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    pub chars: usize,
    pub tokens: usize,
}

impl Caps {
    /// The tier of a context window.
    pub fn for_window(window_tokens: usize) -> Caps {
        let chars = match window_tokens {
            n if n <= WINDOW_TOKENS_TINY => RESULT_CHARS_TINY,
            n if n <= WINDOW_TOKENS_SMALL => RESULT_CHARS_SMALL,
            _ => RESULT_CHARS,
        };
        let tokens = (chars / CHARS_PER_TOKEN_LEAST).min(window_tokens / WINDOW_SHARE_OF_RESULT);
        Caps { chars, tokens }
    }

    /// No more than `room_tokens`, whatever the tier.
    pub fn within(self, room_tokens: usize) -> Caps {
        Caps {
            tokens: self.tokens.min(room_tokens),
            ..self
        }
    }
}

/// Which part of a text matters when not all of it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Output of a command: how it began, and how it ended.
    HeadAndTail,
    /// A file read from a line on, a list of matches: the rest can be asked for.
    Head,
}

/// How the reader of a marker gets at what was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOn {
    Nothing,
    /// The text is all of this artifact.
    Artifact(ArtifactId),
    /// The text began at this line of this artifact.
    ArtifactFrom {
        id: ArtifactId,
        first_line: usize,
    },
    /// The text began at this line of this file.
    File {
        path: String,
        first_line: usize,
    },
}

/// A text that may have been too long to hold: its start, its end, and how much lies between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub head: String,
    pub tail: String,
    pub gap: Gap,
}

/// What lies between the head and the tail of a `Source`. All zero: nothing, and the tail is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Line ends in the gap.
    pub newlines: usize,
    /// Characters in the gap.
    pub chars: usize,
    /// Characters in the gap that belong to the head's last line.
    pub head_line_rest: usize,
    /// Characters in the gap that belong to the tail's first line.
    pub tail_line_before: usize,
}

impl Source {
    pub fn whole(text: impl Into<String>) -> Source {
        Source {
            head: text.into(),
            ..Source::default()
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.gap == Gap::default() && self.tail.is_empty()
    }
}

/// A text within its caps, and what it is the rest of.
#[derive(Clone, Debug)]
pub struct Bounded {
    text: String,
    lines_total: usize,
    chars_total: usize,
    cut: Option<Cut>,
    lines: Lines,
    shape: Shape,
    /// Tokens of the whole; `exact` when all of it was counted.
    tokens_total: Tokens,
}

/// What a bounded text leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Whole lines left out, and the number of the first and last of them.
    pub lines: usize,
    pub first_line: usize,
    pub last_line: usize,
    /// Lines that are shown in part.
    pub lines_shortened: usize,
    /// Characters left out, of both kinds.
    pub chars: usize,
    pub tokens: Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub count: usize,
    pub exact: bool,
}

/// Not even the marker and a few lines fit: the caller must make room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for the result: need about {need_tokens} tokens, have {have_tokens}; compact first"
)]
pub struct NoRoom {
    pub need_tokens: usize,
    pub have_tokens: usize,
}

#[derive(Clone, Debug)]
struct Shape {
    keep: Keep,
    read_on: ReadOn,
    footer: String,
}

/// Bounds `source` to `caps`. `footer` is never cut (an exit code, a count).
pub fn bound(
    source: &Source,
    caps: Caps,
    keep: Keep,
    read_on: ReadOn,
    footer: &str,
    counter: &Counter,
) -> Bounded {
    let joined;
    let source = if source.gap == Gap::default() && !source.tail.is_empty() {
        joined = Source::whole(format!("{}{}", source.head, source.tail));
        &joined
    } else {
        source
    };
    let shape = Shape {
        keep,
        read_on,
        footer: footer.to_owned(),
    };
    let lines = Lines::of(source);
    let mut whole = Bounded {
        text: String::new(),
        lines_total: lines.count(),
        chars_total: lines.chars(),
        cut: None,
        tokens_total: Tokens {
            count: 0,
            exact: false,
        },
        lines,
        shape,
    };
    if source.is_whole() {
        whole.text = with_footer(&source.head, &whole.shape.footer);
        if fits(&whole.text, caps, counter) {
            return whole;
        }
    }
    match whole.cut_to(caps, counter) {
        Some(bounded) => bounded,
        None => whole.marker_only(),
    }
}

impl Bounded {
    /// The text to send.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Lines of the whole, shown or not.
    pub fn lines_total(&self) -> usize {
        self.lines_total
    }

    /// Characters of the whole, shown or not, without line ends.
    pub fn chars_total(&self) -> usize {
        self.chars_total
    }

    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// The same result in a smaller room. Fit the original again for a larger one: what an earlier
    /// fitting cut is not brought back.
    pub fn fit(&self, caps: Caps, counter: &Counter) -> Result<Bounded, NoRoom> {
        if fits(&self.text, caps, counter) {
            return Ok(self.clone());
        }
        self.cut_to(caps, counter).ok_or(NoRoom {
            need_tokens: ROOM_CHARS_MIN / CHARS_PER_TOKEN_LEAST,
            have_tokens: caps.tokens,
        })
    }

    fn cut_to(&self, caps: Caps, counter: &Counter) -> Option<Bounded> {
        let reserve = self.longest_marker().chars().count() + self.shape.footer.chars().count() + 3;
        // No text has more than a few characters a token: a start nearer the end saves counting.
        let mut budget = caps
            .chars
            .checked_sub(reserve)?
            .min(caps.tokens.saturating_mul(8));
        loop {
            if budget < ROOM_CHARS_MIN / 4 {
                return None;
            }
            let (lines, dropped) = self.lines.cut_to(budget, self.shape.keep);
            let bounded = self.rebuilt(lines, &dropped, counter);
            if bounded.text.len() <= caps.tokens {
                return Some(bounded);
            }
            let tokens = counter(&bounded.text);
            if tokens <= caps.tokens {
                return Some(bounded);
            }
            budget = (budget * caps.tokens / tokens * 19 / 20).min(budget - 1);
        }
    }

    fn rebuilt(&self, lines: Lines, dropped: &str, counter: &Counter) -> Bounded {
        let shown = lines.shown_chars();
        let omitted = self.chars_total - shown;
        let kept_tokens = counter(&lines.plain_text());
        let tokens_total = if self.cut.is_some() {
            self.tokens_total
        } else {
            let more = count_omitted(
                dropped,
                omitted,
                Shown {
                    chars: shown,
                    tokens: kept_tokens,
                },
                counter,
            );
            Tokens {
                count: kept_tokens + more.count,
                exact: more.exact,
            }
        };
        let tokens = Tokens {
            count: tokens_total.count.saturating_sub(kept_tokens),
            exact: tokens_total.exact,
        };
        let cut = Cut {
            lines: lines.middle.lines,
            first_line: lines.head.len() + 1,
            last_line: lines.head.len() + lines.middle.lines,
            lines_shortened: lines.shortened(),
            chars: omitted,
            tokens,
        };
        let marker = self.marker(&cut);
        let text = with_footer(&lines.render(&marker), &self.shape.footer);
        Bounded {
            text,
            cut: Some(cut),
            lines,
            tokens_total,
            ..self.clone_shape()
        }
    }

    fn clone_shape(&self) -> Bounded {
        Bounded {
            text: String::new(),
            lines_total: self.lines_total,
            chars_total: self.chars_total,
            cut: None,
            lines: Lines::default(),
            shape: self.shape.clone(),
            tokens_total: self.tokens_total,
        }
    }

    /// The last resort of the smallest windows: nothing but what is missing.
    fn marker_only(&self) -> Bounded {
        let tokens = Tokens {
            count: self.chars_total / CHARS_PER_TOKEN_LEAST,
            exact: false,
        };
        let cut = Cut {
            lines: self.lines_total,
            first_line: 1,
            last_line: self.lines_total,
            lines_shortened: 0,
            chars: self.chars_total,
            tokens,
        };
        let text = with_footer(&self.marker(&cut), &self.shape.footer);
        let middle = Middle {
            lines: self.lines_total,
            chars: self.chars_total,
        };
        let lines = Lines {
            middle,
            ..Lines::default()
        };
        Bounded {
            text,
            cut: Some(cut),
            lines,
            tokens_total: tokens,
            ..self.clone_shape()
        }
    }

    fn marker(&self, cut: &Cut) -> String {
        let about = if cut.tokens.exact { "" } else { "about " };
        let size = format!(
            "{} characters, {about}{} tokens",
            grouped(cut.chars),
            grouped(cut.tokens.count)
        );
        let offset = match self.shape.read_on {
            ReadOn::File { first_line, .. } | ReadOn::ArtifactFrom { first_line, .. } => {
                first_line.saturating_sub(1)
            }
            ReadOn::Artifact(_) | ReadOn::Nothing => 0,
        };
        let what = if cut.lines == 0 {
            format!(
                "cut inside {}: {size}",
                counted(cut.lines_shortened, "long line")
            )
        } else {
            let inside = match cut.lines_shortened {
                0 => String::new(),
                n => format!(", and inside {}", counted(n, "long line")),
            };
            format!(
                "{} cut here ({} to {} of {}){inside}: {size}",
                counted(cut.lines, "line"),
                grouped(cut.first_line + offset),
                grouped(cut.last_line + offset),
                grouped(self.lines_total + offset)
            )
        };
        format!("[... {what}.{} ...]", self.how_to_read_on(cut, offset))
    }

    fn how_to_read_on(&self, cut: &Cut, offset: usize) -> String {
        let start = if cut.lines == 0 { 1 } else { cut.first_line } + offset;
        match &self.shape.read_on {
            ReadOn::Nothing => String::new(),
            ReadOn::Artifact(id) => {
                format!(" All of it is kept: artifact {{\"id\": \"{id}\", \"start\": {start}}}")
            }
            ReadOn::File { .. } | ReadOn::ArtifactFrom { .. } if cut.lines == 0 => {
                " Read fewer lines at a time.".to_owned()
            }
            ReadOn::ArtifactFrom { id, .. } => {
                format!(" Read on: artifact {{\"id\": \"{id}\", \"start\": {start}}}")
            }
            ReadOn::File { path, .. } => {
                let path = serde_json::Value::from(path.as_str());
                format!(" Read on: read {{\"path\": {path}, \"start\": {start}}}")
            }
        }
    }

    fn longest_marker(&self) -> String {
        self.marker(&Cut {
            lines: self.lines_total.max(1),
            first_line: self.lines_total,
            last_line: self.lines_total,
            lines_shortened: self.lines_total,
            chars: self.chars_total,
            tokens: Tokens {
                count: self.chars_total.saturating_mul(4),
                exact: false,
            },
        })
    }
}

struct Shown {
    chars: usize,
    tokens: usize,
}

/// Tokens of `omitted` characters: `dropped` is as much of them as is at hand.
fn count_omitted(dropped: &str, omitted: usize, shown: Shown, counter: &Counter) -> Tokens {
    let at_hand = dropped.chars().filter(|c| *c != '\n').count();
    let (chars, tokens) = match at_hand {
        0 => (shown.chars.max(1), shown.tokens),
        n => (n, counter(dropped)),
    };
    if at_hand == omitted {
        return Tokens {
            count: if omitted == 0 { 0 } else { tokens },
            exact: true,
        };
    }
    let scaled = tokens as u128 * omitted as u128 / chars as u128;
    Tokens {
        count: scaled as usize,
        exact: false,
    }
}

fn fits(text: &str, caps: Caps, counter: &Counter) -> bool {
    // A token is at least one byte, so short texts need no counting.
    (text.len() <= caps.chars || text.chars().count() <= caps.chars)
        && (text.len() <= caps.tokens || counter(text) <= caps.tokens)
}

fn with_footer(text: &str, footer: &str) -> String {
    let newline = if text.is_empty() || footer.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("{text}{newline}{footer}")
}

/// `1 line`, `1,234 lines`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// 1234567 as `1,234,567`.
pub fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stand-in tokenizer: three bytes a token.
    fn count(text: &str) -> usize {
        text.len().div_ceil(3)
    }

    fn plain(text: &str, caps: Caps, keep: Keep) -> Bounded {
        bound(
            &Source::whole(text),
            caps,
            keep,
            ReadOn::Artifact(ArtifactId(7)),
            "",
            &count,
        )
    }

    const ROOMY: Caps = Caps {
        chars: 2_000,
        tokens: 10_000,
    };

    #[test]
    fn tiers_follow_the_window() {
        for (window, chars, tokens) in [
            (2_048, 3_200, 512),
            (4_096, 3_200, 1_024),
            (4_097, 6_000, 1_024),
            (8_192, 6_000, 2_000),
            (8_193, 60_000, 2_048),
            (131_072, 60_000, 20_000),
        ] {
            assert_eq!(Caps::for_window(window), Caps { chars, tokens }, "{window}");
        }
        assert_eq!(Caps::for_window(4_096).within(300).tokens, 300);
    }

    #[test]
    fn what_fits_is_left_alone() {
        let text = "a\n\n\nb\n\n";
        let bounded = plain(text, ROOMY, Keep::HeadAndTail);
        assert_eq!((bounded.text(), bounded.cut()), (text, None));
        assert_eq!(bounded.lines_total(), 5);
    }

    #[test]
    fn head_and_tail_are_kept_and_the_marker_adds_up() {
        let text: String = (1..=1000).map(|i| format!("line {i}\n")).collect();
        let bounded = plain(&text, ROOMY, Keep::HeadAndTail);
        let cut = bounded.cut().unwrap();
        assert!(
            bounded.text().starts_with("line 1\nline 2\n"),
            "{}",
            bounded.text()
        );
        assert!(
            bounded.text().ends_with("line 999\nline 1000"),
            "{}",
            bounded.text()
        );
        assert!(bounded.text().chars().count() <= ROOMY.chars);
        let marker = format!(
            "[... {} lines cut here ({} to {} of 1,000): {} characters, {}{} tokens. \
             All of it is kept: artifact {{\"id\": \"a7\", \"start\": {}}} ...]",
            cut.lines,
            cut.first_line,
            cut.last_line,
            grouped(cut.chars),
            if cut.tokens.exact { "" } else { "about " },
            grouped(cut.tokens.count),
            cut.first_line
        );
        assert!(
            bounded.text().contains(&marker),
            "{marker}\n{}",
            bounded.text()
        );
        let omitted: Vec<&str> = text
            .lines()
            .skip(cut.first_line - 1)
            .take(cut.last_line + 1 - cut.first_line)
            .collect();
        assert_eq!(omitted.len(), cut.lines);
        assert_eq!(omitted.iter().map(|l| l.len()).sum::<usize>(), cut.chars);
    }

    #[test]
    fn a_file_is_read_on_from_the_next_line() {
        let text: String = (101..=400).map(|i| format!("{i}\tcontents\n")).collect();
        let read_on = ReadOn::File {
            path: "src/a \"b\".rs".into(),
            first_line: 101,
        };
        let bounded = bound(&Source::whole(text), ROOMY, Keep::Head, read_on, "", &count);
        let next = 100 + bounded.cut().unwrap().first_line;
        assert!(
            bounded.text().ends_with(&format!(
                "Read on: read {{\"path\": \"src/a \\\"b\\\".rs\", \"start\": {next}}} ...]"
            )),
            "{}",
            bounded.text()
        );
        assert!(
            bounded
                .text()
                .contains(&format!("{}\tcontents\n[...", next - 1))
        );
    }

    /// A minified file of one line once gave an empty result, and the model read it again for ever.
    #[test]
    fn one_huge_line_shows_its_start_and_its_end() {
        let text = format!("START{}END", "x".repeat(1_700_000));
        for source in [
            Source::whole(text.clone()),
            Source {
                head: text[..64_000].into(),
                tail: text[text.len() - 64_000..].into(),
                gap: Gap {
                    chars: text.len() - 128_000,
                    ..Gap::default()
                },
            },
        ] {
            let bounded = bound(
                &source,
                ROOMY,
                Keep::HeadAndTail,
                ReadOn::Nothing,
                "[exit 1]",
                &count,
            );
            assert!(bounded.text().starts_with("STARTxxx"));
            assert!(
                bounded
                    .text()
                    .contains("xxEND\n[... cut inside 1 long line: "),
                "{}",
                bounded.text()
            );
            assert!(bounded.text().ends_with(" ...]\n[exit 1]"));
            assert_eq!(bounded.chars_total(), text.len());
            assert_eq!(bounded.lines_total(), 1);
            assert!(
                bounded.text().len() > ROOMY.chars / 2,
                "room left unused: {}",
                bounded.text().len()
            );
        }
    }

    #[test]
    fn tokens_cap_too() {
        let hex: String = (0..200).map(|i| format!("{i:064x}\n")).collect();
        let caps = Caps {
            chars: 6_000,
            tokens: 700,
        };
        let one_a_char = |text: &str| text.chars().count();
        let bounded = bound(
            &Source::whole(hex),
            caps,
            Keep::HeadAndTail,
            ReadOn::Nothing,
            "",
            &one_a_char,
        );
        let tokens = one_a_char(bounded.text());
        assert!((350..=700).contains(&tokens), "{tokens}");
    }

    #[test]
    fn fitting_again_counts_from_the_original() {
        let text: String = (1..=5000).map(|i| format!("line number {i}\n")).collect();
        let first = plain(
            &text,
            Caps {
                chars: 20_000,
                tokens: 10_000,
            },
            Keep::HeadAndTail,
        );
        let second = first
            .fit(
                Caps {
                    chars: 1_500,
                    tokens: 400,
                },
                &count,
            )
            .unwrap();
        let direct = plain(
            &text,
            Caps {
                chars: 1_500,
                tokens: 400,
            },
            Keep::HeadAndTail,
        );
        let cut = second.cut().unwrap();
        assert_eq!(cut.lines, direct.cut().unwrap().lines);
        assert_eq!(cut.chars, direct.cut().unwrap().chars);
        assert!(second.text().contains(" of 5,000)"));
        let no_room = second
            .fit(
                Caps {
                    chars: 300,
                    tokens: 50,
                },
                &count,
            )
            .unwrap_err();
        assert_eq!(no_room.have_tokens, 50);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_numbers_add_up(
            lines in prop::collection::vec(("[a-zé ]{0,40}", 1usize..80), 0..200),
            newline_at_end: bool,
            chars in ROOM_CHARS_MIN..4_000usize,
            tokens in 220usize..2_000,
            head_only: bool,
            footer in prop::sample::select(vec!["", "[exit code 3]"]),
        ) {
            let mut text = lines.iter().map(|(l, n)| l.repeat(*n)).collect::<Vec<_>>().join("\n");
            if newline_at_end { text.push('\n'); }
            let keep = if head_only { Keep::Head } else { Keep::HeadAndTail };
            let caps = Caps { chars, tokens };
            let bounded = bound(&Source::whole(text.clone()), caps, keep, ReadOn::Nothing, footer, &count);
            prop_assert!(bounded.text().chars().count() <= chars);
            prop_assert!(count(bounded.text()) <= tokens);
            prop_assert!(bounded.text().ends_with(footer));
            prop_assert_eq!(bounded.lines_total(), text.lines().count());
            let total: usize = text.lines().map(|l| l.chars().count()).sum();
            prop_assert_eq!(bounded.chars_total(), total);
            if let Some(cut) = bounded.cut() {
                prop_assert_eq!(bounded.lines.shown_chars() + cut.chars, total);
                prop_assert_eq!(bounded.lines.head.len() + cut.lines + bounded.lines.tail.len(), text.lines().count());
            }
            // Bounding what is bounded changes nothing.
            let again = bound(&Source::whole(bounded.text()), caps, keep, ReadOn::Nothing, "", &count);
            prop_assert_eq!(again.text(), bounded.text());
            // A second fitting still adds up.
            if let Ok(fitted) = bounded.fit(Caps { chars: chars / 2, tokens: tokens / 2 }, &count) {
                prop_assert!(fitted.text().chars().count() <= chars / 2);
                if let Some(cut) = fitted.cut() {
                    prop_assert_eq!(fitted.lines.shown_chars() + cut.chars, total);
                }
            }
        }
    }
}
