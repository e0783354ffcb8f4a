//! Text from a model or a file, safe to show on a terminal.
//!
//! Escape sequences can retitle a window, answer for the user or rewrite what was shown before; overriding
//! the text direction can make code read as what it is not. Both become visible signs instead.

use std::borrow::Cow;

/// Line feeds and tabs stay; every other control character becomes its sign. Works on any chunk of a stream.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if !acts(c) => shown.push(c),
            '\0'..='\x1f' => shown.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}')),
            '\x7f' => shown.push('\u{2421}'),
            _ => shown.push_str(&format!("<U+{:04X}>", c as u32)),
        }
    }
    Cow::Owned(shown)
}

fn acts(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_act_is_shown() {
        let cases = [
            ("plain\ttext\nand é 日本 🙂", "plain\ttext\nand é 日本 🙂"),
            ("\x1b]0;title\x07", "␛]0;title␇"),
            ("\x1b[2J", "␛[2J"),
            ("over\rwritten", "over␍written"),
            ("\u{9b}31m", "<U+009B>31m"),
            ("abc\u{202e}cba", "abc<U+202E>cba"),
            ("\x7f\0", "␡␀"),
        ];
        for (text, expect) in cases {
            assert_eq!(visible(text), expect, "{text:?}");
        }
    }
}
