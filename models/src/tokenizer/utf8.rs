//! Token bytes to text, while they arrive.
//!
//! A character may be split over tokens: its first bytes are held back until the rest is there or
//! until the next byte shows that it cannot come. Invariant: the pieces joined are what
//! `String::from_utf8_lossy` gives for the bytes joined, however they were cut.

/// Turns a stream of bytes into complete characters. At most three bytes are held back.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    held: Vec<u8>,
    /// A leading space is still to be dropped; see [`Utf8Stream::without_leading_space`].
    drop_space: bool,
}

impl Utf8Stream {
    pub fn new() -> Self {
        Self::default()
    }

    /// A stream that drops one space at the very start: what decoding a SentencePiece text needs,
    /// where the first word is written with the space that encoding put before it.
    pub fn without_leading_space() -> Self {
        Self {
            held: Vec::new(),
            drop_space: true,
        }
    }

    /// The characters that `bytes` complete. Invalid bytes give U+FFFD, one for each maximal
    /// invalid part (Unicode 16, §3.9), as soon as they are known to be invalid.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut bytes = bytes;
        if self.drop_space && !bytes.is_empty() {
            self.drop_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.held.len());
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty()
                || may_be_completed(invalid) && done + invalid.len() == self.held.len()
            {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.held.drain(..done);
        text
    }

    /// The end of the stream: a character that was never completed gives one U+FFFD.
    pub fn finish(&mut self) -> String {
        match std::mem::take(&mut self.held).is_empty() {
            true => String::new(),
            false => char::REPLACEMENT_CHARACTER.to_string(),
        }
    }

    /// Whether a character is waiting for its remaining bytes.
    pub fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Whether more bytes could make a character of `bytes`, which is not empty and not valid UTF-8.
fn may_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(tokens: &[&[u8]]) -> String {
        let mut stream = Utf8Stream::new();
        let mut text: String = tokens.iter().map(|t| stream.push(t)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Characters split over two tokens reached the client as two replacement characters in more
    /// than one server; a stray byte made others wait for ever.
    #[test]
    fn characters_split_over_tokens() {
        let rows: &[(&[&[u8]], &str)] = &[
            (
                &[b"\xf0\x9f", b"\x98\x80", b" ", b"\xe2", b"\x82", b"\xac"],
                "😀 €",
            ),
            (
                &[
                    b"a",
                    b"\xf0",
                    b"\x9f",
                    b"\x91",
                    b"\xa9",
                    b"\xe2\x80\x8d",
                    b"\xf0\x9f\x91\xa7",
                ],
                "a👩\u{200d}👧",
            ),
            (&[b"a", b"\xff", b"b"], "a\u{fffd}b"),
            (&[b"\xf0", b"\x9f", b"A"], "\u{fffd}A"),
            (&[b"A", b"\xf0\x9f\x98"], "A\u{fffd}"),
            (&[b"\xed\xa0\x80"], "\u{fffd}\u{fffd}\u{fffd}"),
            (&[b"\xc0\xaf"], "\u{fffd}\u{fffd}"),
            (&[b"", b"\xe2\x82", b"", b"\xac"], "€"),
            (&[], ""),
        ];
        for (tokens, want) in rows {
            assert_eq!(joined(tokens), *want, "{tokens:x?}");
        }
    }

    #[test]
    fn an_invalid_byte_does_not_wait_for_the_next() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"a\xff"), "a\u{fffd}");
        assert!(!stream.is_waiting());
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert!(stream.is_waiting());
        assert_eq!(stream.push(b"A"), "\u{fffd}A");
    }

    #[test]
    fn only_the_first_space_is_dropped() {
        let mut stream = Utf8Stream::without_leading_space();
        assert_eq!(stream.push(b""), "");
        assert_eq!(stream.push(b"  a"), " a");
        assert_eq!(stream.push(b" b"), " b");
        let mut stream = Utf8Stream::without_leading_space();
        assert_eq!(stream.push(b"a"), "a");
        assert_eq!(stream.push(b" b"), " b");
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_lossy_text(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..40),
                proptest::collection::vec(prop_oneof![Just(0xf0u8), Just(0x9f), Just(0x98), Just(0x80), Just(b'a'), Just(0xe2)], 0..40),
                ".{0,20}".prop_map(String::into_bytes),
            ],
            cuts in proptest::collection::vec(0usize..8, 1..20),
        ) {
            let mut stream = Utf8Stream::new();
            let mut text = String::new();
            let mut rest: &[u8] = &bytes;
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (now, later) = rest.split_at((*cut).max(1).min(rest.len()));
                text.push_str(&stream.push(now));
                prop_assert!(stream.held.len() <= 3);
                rest = later;
            }
            text.push_str(&stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
