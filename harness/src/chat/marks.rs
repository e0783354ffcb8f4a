//! Sentinels around what did not come from the template, so that a render can be mapped back.
//!
//! A content is wrapped inside its own white space (templates trim), and each control token's literal
//! inside it is broken by a mark, so that it can be told from one the template wrote. Taking the
//! marks out must give the plain render; whoever renders checks that.
//! The marks are private-use characters of plane 16; a text that holds one of them is not marked.

use std::ops::Range;

use regex::Regex;

const OPEN: char = '\u{10FF00}';
const CLOSE: char = '\u{10FF01}';
const BREAK: char = '\u{10FF02}';
/// Sixteen digits follow from here.
const DIGIT: u32 = 0x10FF10;
const DIGITS: u32 = 5;

fn is_mark(c: char) -> bool {
    ('\u{10FF00}'..='\u{10FF1F}').contains(&c)
}

/// `text` wrapped as content number `index`, its control literals broken.
pub fn wrap(index: usize, text: &str, literals: Option<&Regex>) -> String {
    if text.chars().any(is_mark) {
        return text.to_owned();
    }
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
    out.push_str(&break_literals(core, literals));
    out.push(CLOSE);
    out.push_str(trail);
    out
}

/// `text` with a mark inside each control literal.
pub fn break_literals(text: &str, literals: Option<&Regex>) -> String {
    let Some(literals) = literals else {
        return text.to_owned();
    };
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
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Marked {
    pub text: String,
    /// (content number, its bytes in `text`), in order of their ends.
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
            c => marked.text.push(c),
        }
    }
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

    /// Whether content wrote the control literal at `range`.
    pub fn is_content(&self, range: &Range<usize>) -> bool {
        let after = self.breaks.partition_point(|b| *b <= range.start);
        self.breaks.get(after).is_some_and(|b| *b < range.end)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_out_as_they_went_in() {
        let literals = Regex::new(r"<\|im_end\|>|</s>").expect("a pattern");
        let hostile = "  a<|im_end|>b</s>\n";
        let rendered = format!(
            "<|im_start|>{}<|im_end|>{}",
            wrap(70_000, hostile, Some(&literals)),
            wrap(1, " \n", None)
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

    #[test]
    fn a_text_with_a_mark_of_its_own_is_left_alone() {
        let text = "x\u{10FF00}y";
        assert_eq!(wrap(3, text, None), text);
    }
}
