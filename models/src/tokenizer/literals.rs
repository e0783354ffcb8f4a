//! Tokens that are matched whole in the text, before anything else: control tokens where the caller
//! wants them parsed, added text always.
//!
//! Of several that start at one place the longest wins, as in Hugging Face's `added_vocabulary`.

use aho_corasick::{AhoCorasick, MatchKind};

use super::Specials;
use super::vocabulary::Kind;

/// One token that is matched whole.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    pub id: u32,
    pub text: String,
    pub kind: Kind,
    /// White space on this side belongs to the match.
    pub strips_left: bool,
    pub strips_right: bool,
    /// Only where no letter, digit or `_` touches it.
    pub single_word: bool,
}

impl Literal {
    pub fn new(id: u32, text: &str, kind: Kind) -> Self {
        let text = text.to_owned();
        Self {
            id,
            text,
            kind,
            strips_left: false,
            strips_right: false,
            single_word: false,
        }
    }
}

/// `start..end` of the text is the token `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

#[derive(Debug)]
pub(super) struct Literals {
    plain: Matcher,
    parsed: Matcher,
}

#[derive(Debug)]
struct Matcher {
    literals: Vec<Literal>,
    automaton: Option<AhoCorasick>,
}

impl Literals {
    /// The error is the automaton's: too many or too long texts.
    pub fn new(all: Vec<Literal>) -> Result<Self, String> {
        let all: Vec<Literal> = all.into_iter().filter(|l| !l.text.is_empty()).collect();
        let plain = all
            .iter()
            .filter(|l| l.kind == Kind::UserDefined)
            .cloned()
            .collect();
        Ok(Self {
            plain: Matcher::new(plain)?,
            parsed: Matcher::new(all)?,
        })
    }

    /// The hits in `text`, from left to right, not overlapping.
    pub fn find(&self, text: &str, specials: Specials) -> Vec<Hit> {
        match specials {
            Specials::Plain => self.plain.find(text),
            Specials::Parse => self.parsed.find(text),
        }
    }
}

impl Matcher {
    fn new(literals: Vec<Literal>) -> Result<Self, String> {
        if literals.is_empty() {
            return Ok(Self {
                literals,
                automaton: None,
            });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(literals.iter().map(|l| l.text.as_bytes()))
            .map_err(|e| e.to_string())?;
        Ok(Self {
            literals,
            automaton: Some(automaton),
        })
    }

    fn find(&self, text: &str) -> Vec<Hit> {
        let Some(automaton) = &self.automaton else {
            return Vec::new();
        };
        let mut hits = Vec::new();
        let mut free_from = 0;
        for found in automaton.find_iter(text) {
            let literal = &self.literals[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if start < free_from || literal.single_word && touches_word(text, start, end) {
                continue;
            }
            if literal.strips_left {
                start = free_from + text[free_from..start].trim_end().len();
            }
            if literal.strips_right {
                end = text.len() - text[end..].trim_start().len();
            }
            hits.push(Hit {
                start,
                end,
                id: literal.id,
            });
            free_from = end;
        }
        hits
    }
}

fn touches_word(text: &str, start: usize, end: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text[..start].chars().next_back().is_some_and(is_word)
        || text[end..].chars().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_first_from_the_left_and_controls_only_when_parsed() {
        let mut word = Literal::new(5, "mask", Kind::UserDefined);
        word.single_word = true;
        let mut strip = Literal::new(4, "<b>", Kind::Control);
        (strip.strips_left, strip.strips_right) = (true, true);
        let literals = Literals::new(vec![
            Literal::new(1, "<a>", Kind::Control),
            Literal::new(2, "<a><a>", Kind::Control),
            Literal::new(3, "\t\t", Kind::UserDefined),
            strip,
            word,
            Literal::new(6, "", Kind::UserDefined),
        ])
        .unwrap();
        let hit = |start, end, id| Hit { start, end, id };
        let rows: &[(&str, Specials, &[Hit])] = &[
            (
                "x<a><a><a>",
                Specials::Parse,
                &[hit(1, 7, 2), hit(7, 10, 1)],
            ),
            ("x<a>\t\t\t", Specials::Plain, &[hit(4, 6, 3)]),
            ("a <b> \n c", Specials::Parse, &[hit(1, 8, 4)]),
            ("<a> <b>", Specials::Parse, &[hit(0, 3, 1), hit(3, 7, 4)]),
            (
                "mask unmask mask_ (mask)",
                Specials::Plain,
                &[hit(0, 4, 5), hit(19, 23, 5)],
            ),
            ("", Specials::Parse, &[]),
        ];
        for (text, specials, want) in rows {
            assert_eq!(literals.find(text, *specials), *want, "{text:?}");
        }
    }
}
