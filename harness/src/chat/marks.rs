//! Marks around and inside what did not come from the template, so that a render can be mapped back.
//!
//! A content is wrapped inside its own white space (templates trim), and each control token's literal
//! inside any text is broken by a mark, so that it can be told from one the template wrote. Taking the
//! marks out must give the plain render; whoever renders checks that.
//! The marks are private-use characters of plane 16; one that stands in a text is escaped by another.

use std::ops::Range;

use regex::Regex;
use serde_json::{Map, Value};

const OPEN: char = '\u{10FF00}';
const CLOSE: char = '\u{10FF01}';
const BREAK: char = '\u{10FF02}';
/// The next character is a text's own.
const ESCAPE: char = '\u{10FF03}';
/// Sixteen digits follow from here.
const DIGIT: u32 = 0x10FF10;
const DIGITS: u32 = 5;

fn is_mark(c: char) -> bool {
    ('\u{10FF00}'..='\u{10FF1F}').contains(&c)
}

/// How much of a conversation is marked. A template that a mark disturbs is asked again with less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// Contents, names of calls, descriptions of tools; control literals everywhere.
    All,
    /// Contents; control literals everywhere.
    Contents,
    /// Control literals only.
    Breaks,
    /// Nothing: the plain render.
    Nothing,
}

/// Puts marks into texts.
#[derive(Clone, Copy)]
pub struct Marker<'a> {
    pub marking: Marking,
    /// Matches the literal of any control token.
    pub literals: Option<&'a Regex>,
}

impl Marker<'_> {
    /// A content, number `index`.
    pub fn content(&self, index: usize, text: &str) -> String {
        match self.marking {
            Marking::All | Marking::Contents => self.wrap(index, text),
            Marking::Breaks | Marking::Nothing => self.inner(text),
        }
    }

    /// A text beside the contents that tells where content number `index` is: a call's name, a description.
    pub fn beacon(&self, index: usize, text: &str) -> String {
        match self.marking {
            Marking::All => self.wrap(index, text),
            Marking::Contents | Marking::Breaks | Marking::Nothing => self.inner(text),
        }
    }

    /// Any other text.
    pub fn inner(&self, text: &str) -> String {
        match (self.marking, self.literals) {
            (Marking::Nothing, _) => text.to_owned(),
            (_, None) => escaped(text),
            (_, Some(literals)) => break_literals(&escaped(text), literals),
        }
    }

    /// Every text in a JSON value, keys included.
    pub fn inner_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.inner(text)),
            Value::Array(items) => items.iter().map(|item| self.inner_value(item)).collect(),
            Value::Object(map) => {
                let pairs = map
                    .iter()
                    .map(|(key, value)| (self.inner(key), self.inner_value(value)));
                Value::Object(pairs.collect::<Map<String, Value>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn wrap(&self, index: usize, text: &str) -> String {
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let start = text.len() - text.trim_start().len();
        let (lead, trail) = (&text[..start], &text[start + core.len()..]);
        let mut out = String::with_capacity(text.len() + 64);
        out.push_str(lead);
        out.push(OPEN);
        for place in (0..DIGITS).rev() {
            let digit = (index as u32 >> (4 * place)) & 15;
            out.extend(char::from_u32(DIGIT + digit));
        }
        out.push_str(&self.inner(core));
        out.push(CLOSE);
        out.push_str(trail);
        out
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_mark(c) {
            out.push(ESCAPE);
        }
        out.push(c);
    }
    out
}

/// `text` with a mark inside each control literal.
fn break_literals(text: &str, literals: &Regex) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut at = 0;
    for hit in literals.find_iter(text) {
        let first = hit.as_str().chars().next().map_or(0, char::len_utf8);
        out.push_str(&text[at..hit.start() + first]);
        out.push(BREAK);
        at = hit.start() + first;
    }
    out.push_str(&text[at..]);
    out
}

/// A render without its marks, and what they said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    pub text: String,
    /// (content number, its bytes in `text`), in order of their starts.
    pub spans: Vec<(usize, Range<usize>)>,
    /// Places inside control literals that content wrote.
    pub breaks: Vec<usize>,
}

/// Takes the marks out of a render.
pub fn unmark(rendered: &str) -> Marked {
    let mut marked = Marked {
        text: String::with_capacity(rendered.len()),
        ..Marked::default()
    };
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut chars = rendered.chars();
    while let Some(c) = chars.next() {
        match c {
            OPEN => {
                let mut index = 0;
                for _ in 0..DIGITS {
                    index = index * 16
                        + chars
                            .next()
                            .map_or(0, |d| (d as u32).wrapping_sub(DIGIT) as usize & 15);
                }
                open.push((index, marked.text.len()));
            }
            CLOSE => {
                if let Some((index, start)) = open.pop() {
                    marked.spans.push((index, start..marked.text.len()));
                }
            }
            BREAK => marked.breaks.push(marked.text.len()),
            ESCAPE => marked.text.extend(chars.next()),
            c => marked.text.push(c),
        }
    }
    marked.spans.sort_by_key(|(_, range)| range.start);
    marked
}

impl Marked {
    /// A render that was not marked.
    pub fn plain(text: String) -> Marked {
        Marked {
            text,
            ..Marked::default()
        }
    }

    /// Whether content wrote the control literal at `range`, or a part of it.
    pub fn is_content(&self, range: &Range<usize>) -> bool {
        let after = self.breaks.partition_point(|b| *b <= range.start);
        let broken = self.breaks.get(after).is_some_and(|b| *b < range.end);
        let before = self
            .spans
            .partition_point(|(_, span)| span.start < range.end);
        // Spans do not overlap, so the last one that starts before the end is the only candidate.
        broken
            || before
                .checked_sub(1)
                .is_some_and(|last| self.spans[last].1.end > range.start)
    }

    /// The part from byte `from` on.
    pub fn suffix(&self, from: usize) -> Marked {
        let spans = self.spans.iter().filter(|(_, r)| r.start >= from);
        Marked {
            text: self.text[from..].to_owned(),
            spans: spans
                .map(|(i, r)| (*i, r.start - from..r.end - from))
                .collect(),
            breaks: self
                .breaks
                .iter()
                .filter(|b| **b > from)
                .map(|b| b - from)
                .collect(),
        }
    }

    /// `more` behind this.
    pub fn append(&mut self, more: Marked) {
        let offset = self.text.len();
        self.text.push_str(&more.text);
        self.spans.extend(
            more.spans
                .into_iter()
                .map(|(i, r)| (i, r.start + offset..r.end + offset)),
        );
        self.breaks
            .extend(more.breaks.into_iter().map(|b| b + offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_out_as_they_went_in() {
        let literals = Regex::new(r"<\|im_end\|>|</s>").expect("a pattern");
        let marker = Marker {
            marking: Marking::All,
            literals: Some(&literals),
        };
        let hostile = "  a<|im_end|>b</s>\n";
        let rendered = format!(
            "<|im_start|>{}<|im_end|>{}",
            marker.content(70_000, hostile),
            marker.content(1, " \n")
        );
        let marked = unmark(&rendered);
        assert_eq!(marked.text, format!("<|im_start|>{hostile}<|im_end|> \n"));
        assert_eq!(marked.spans, [(70_000, 14..14 + hostile.trim().len())]);
        let hits: Vec<bool> = literals
            .find_iter(&marked.text)
            .map(|h| marked.is_content(&h.range()))
            .collect();
        assert_eq!(
            hits,
            [true, true, false],
            "the template's own end is the only control token"
        );
    }

    /// A content that ends with the front of a control literal, which the template happens to complete.
    #[test]
    fn a_literal_made_half_by_content_is_content() {
        let literals = Regex::new(r"<\|end\|>").expect("a pattern");
        let marker = Marker {
            marking: Marking::All,
            literals: Some(&literals),
        };
        let marked = unmark(&format!("{}|><|end|>", marker.content(1, "x<|end")));
        let hits: Vec<bool> = literals
            .find_iter(&marked.text)
            .map(|h| marked.is_content(&h.range()))
            .collect();
        assert_eq!(hits, [true, false]);
    }

    #[test]
    fn a_text_with_marks_of_its_own_is_marked_like_any_other() {
        let literals = Regex::new(r"<\|im_end\|>").expect("a pattern");
        let marker = Marker {
            marking: Marking::All,
            literals: Some(&literals),
        };
        let hostile = "x\u{10FF00}\u{10FF01}\u{10FF03}y<|im_end|>\u{10FF02}z";
        let marked = unmark(&format!("{}<|im_end|>", marker.content(3, hostile)));
        assert_eq!(marked.text, format!("{hostile}<|im_end|>"));
        assert_eq!(marked.spans, [(3, 0..hostile.len())]);
        let hits: Vec<bool> = literals
            .find_iter(&marked.text)
            .map(|h| marked.is_content(&h.range()))
            .collect();
        assert_eq!(hits, [true, false]);
    }
}
