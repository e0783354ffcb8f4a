//! Stop strings, found in the bytes of an answer however tokens cut them.
//!
//! Invariants: what is let through, joined, is the answer up to the first stop string that is
//! completed (of two completed by the same byte, the longer), without it; what is held back is the
//! longest end of the answer that may still become a stop string; any chunking gives the same.

use std::sync::Arc;

use crate::limits::{STOP_BYTES_MAX, STOP_STRINGS_MAX};

/// Looks for several stop strings at once. One automaton state per string (Knuth, Morris & Pratt
/// 1977): how many of its first bytes the answer ends with.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Arc<[Pattern]>,
    states: Vec<usize>,
    held: Vec<u8>,
    matched: Option<usize>,
}

/// A byte string to look for.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix, the length of its longest proper end that is a prefix too.
    borders: Vec<usize>,
}

/// Why stop strings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    #[error("stop string {index} is empty: it would end every answer at once; leave it out")]
    Empty { index: usize },
    #[error("stop string {index} has {have} bytes; need at most {STOP_BYTES_MAX}")]
    TooLong { index: usize, have: usize },
    #[error("{have} stop strings; need at most {STOP_STRINGS_MAX}")]
    TooMany { have: usize },
}

impl StopMatcher {
    /// No strings at all is fine: everything is let through.
    pub fn new(strings: &[Vec<u8>]) -> Result<Self, StopError> {
        if strings.len() > STOP_STRINGS_MAX {
            return Err(StopError::TooMany {
                have: strings.len(),
            });
        }
        for (index, string) in strings.iter().enumerate() {
            match string.len() {
                0 => return Err(StopError::Empty { index }),
                have if have > STOP_BYTES_MAX => return Err(StopError::TooLong { index, have }),
                _ => {}
            }
        }
        let patterns: Arc<[Pattern]> = strings.iter().map(|s| Pattern::new(s)).collect();
        let states = vec![0; patterns.len()];
        Ok(Self {
            patterns,
            states,
            held: Vec::new(),
            matched: None,
        })
    }

    /// Takes the bytes of one token and gives the bytes that may be shown. After a match nothing
    /// more is let through.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        for &byte in bytes {
            if self.matched.is_some() {
                break;
            }
            self.step(byte, &mut shown);
        }
        shown
    }

    fn step(&mut self, byte: u8, shown: &mut Vec<u8>) {
        self.held.push(byte);
        let mut held = 0;
        let mut found: Option<(usize, usize)> = None;
        for (index, (pattern, state)) in self.patterns.iter().zip(&mut self.states).enumerate() {
            *state = pattern.step(*state, byte);
            held = held.max(*state);
            let length = pattern.bytes.len();
            if *state == length && found.is_none_or(|(_, longest)| length > longest) {
                found = Some((index, length));
            }
        }
        let keep = found.map_or(held, |(_, length)| length);
        shown.extend(self.held.drain(..self.held.len() - keep));
        if let Some((index, _)) = found {
            self.matched = Some(index);
            self.held.clear();
        }
    }

    /// The index of the stop string that ended the answer.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// How many bytes wait to be shown.
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// The answer ended for another reason: what was held back.
    pub fn finish(&mut self) -> Vec<u8> {
        self.states.fill(0);
        std::mem::take(&mut self.held)
    }
}

impl Pattern {
    /// `bytes` must not be empty.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        debug_assert!(!bytes.is_empty());
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = borders[border];
            }
            border += usize::from(bytes[i] == bytes[border]);
            borders[i + 1] = border;
        }
        Self {
            bytes: bytes.to_vec(),
            borders,
        }
    }

    /// From how many of the first bytes were there to how many are there with `byte`; all of them
    /// is a match.
    pub(crate) fn step(&self, state: usize, byte: u8) -> usize {
        let mut state = if state == self.bytes.len() {
            self.borders[state]
        } else {
            state
        };
        while state > 0 && self.bytes[state] != byte {
            state = self.borders[state];
        }
        state + usize::from(self.bytes[state] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], tokens: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<Vec<u8>> = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut shown: Vec<u8> = tokens
            .iter()
            .flat_map(|t| matcher.push(t.as_bytes()))
            .collect();
        shown.extend(matcher.finish());
        (String::from_utf8(shown).unwrap(), matcher.matched())
    }

    /// A stop string cut over two tokens was shown by half, or missed, in several servers.
    #[test]
    fn strings_cut_by_tokens() {
        /// Stop strings, pushes, what comes out, which stop ended it.
        type Row = (
            &'static [&'static str],
            &'static [&'static str],
            &'static str,
            Option<usize>,
        );
        let rows: &[Row] = &[
            (&["\n\n"], &["a\n", "\nb"], "a", Some(0)),
            (&["STOP"], &["a S", "T", "OP b"], "a ", Some(0)),
            (&["STOP"], &["a ST", "ART"], "a START", None),
            (&["aab"], &["a", "a", "a", "b"], "a", Some(0)),
            (&["abcd", "bc"], &["abc", "d"], "a", Some(1)),
            (&["bc", "abc"], &["xabc"], "x", Some(1)),
            (&["é"], &["caf", "é!"], "caf", Some(0)),
            (&["x"], &["x"], "", Some(0)),
            (&["</s>"], &["a</", "s"], "a</s", None),
            (&[], &["any", "thing"], "anything", None),
        ];
        for (stops, tokens, shown, matched) in rows {
            assert_eq!(
                run(stops, tokens),
                (shown.to_string(), *matched),
                "{stops:?} {tokens:?}"
            );
        }
    }

    #[test]
    fn nothing_is_held_longer_than_it_must_be() {
        let mut matcher = StopMatcher::new(&[b"abab".to_vec()]).unwrap();
        assert_eq!(matcher.push(b"xaba"), b"x");
        assert_eq!(matcher.push(b"c"), b"abac");
        assert_eq!(matcher.held_len(), 0);
        assert_eq!(matcher.push(b"1ababz"), b"1");
        assert_eq!(matcher.push(b"more"), b"");
    }

    #[test]
    fn what_cannot_be_a_stop_string_is_refused() {
        let long = vec![b'x'; STOP_BYTES_MAX + 1];
        for (strings, want) in [
            (
                vec![b"a".to_vec(), Vec::new()],
                StopError::Empty { index: 1 },
            ),
            (
                vec![long],
                StopError::TooLong {
                    index: 0,
                    have: STOP_BYTES_MAX + 1,
                },
            ),
            (
                vec![b"a".to_vec(); STOP_STRINGS_MAX + 1],
                StopError::TooMany {
                    have: STOP_STRINGS_MAX + 1,
                },
            ),
        ] {
            assert_eq!(StopMatcher::new(&strings).unwrap_err(), want);
        }
    }

    /// The slow twin: looks at the whole answer after every byte.
    fn plain(stops: &[Vec<u8>], text: &[u8]) -> (Vec<u8>, Option<usize>) {
        for end in 1..=text.len() {
            let ends = |s: &&(usize, &Vec<u8>)| text[..end].ends_with(s.1);
            let all: Vec<(usize, &Vec<u8>)> = stops.iter().enumerate().collect();
            // The longest; of equal ones the first.
            if let Some((index, stop)) = all
                .iter()
                .filter(ends)
                .min_by_key(|(i, s)| (usize::MAX - s.len(), *i))
            {
                return (text[..end - stop.len()].to_vec(), Some(*index));
            }
        }
        (text.to_vec(), None)
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_as_the_plain_search(
            stops in proptest::collection::vec(proptest::collection::vec(b'a'..b'd', 1..5), 0..4),
            text in proptest::collection::vec(b'a'..b'd', 0..60),
            cuts in proptest::collection::vec(0usize..7, 1..10),
        ) {
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let (mut shown, mut rest) = (Vec::new(), &text[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (now, later) = rest.split_at((*cut).max(1).min(rest.len()));
                shown.extend(matcher.push(now));
                rest = later;
            }
            shown.extend(matcher.finish());
            prop_assert_eq!((shown, matcher.matched()), plain(&stops, &text));
        }
    }
}
