//! The byte alphabet of GPT-2: every byte is written as one printable character, so that a
//! vocabulary of text can hold any bytes.
//!
//! Printable Latin-1 stands for itself; the other 68 bytes are U+0100 onward, in order. After
//! `bytes_to_unicode` of GPT-2's `encoder.py`.

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as char,
        0x00..=0x20 => shifted(byte as u32),
        0x7f..=0xa0 => shifted(byte as u32 - 0x7f + 33),
        0xad => shifted(67),
    }
}

fn shifted(index: u32) -> char {
    char::from_u32(256 + index).expect("below the surrogates")
}

/// The byte that `c` stands for, or `None` for a character outside the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        256..=288 => Some((code - 256) as u8),
        289..=322 => Some((code - 289 + 0x7f) as u8),
        323 => Some(0xad),
        _ => None,
    }
}

/// The bytes that a token of a byte-level vocabulary adds to text. A character outside the alphabet
/// (converters leave some in added tokens) stands for its own UTF-8.
pub(super) fn bytes_of(token: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(token.len());
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_have_one_character_each() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte), "byte {byte:#x}");
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xad), 'Ń');
    }

    #[test]
    fn characters_outside_the_alphabet_are_kept_as_they_are() {
        assert_eq!(bytes_of("Ġa"), b" a");
        assert_eq!(bytes_of("<｜x｜>"), "<｜x｜>".as_bytes());
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }
}
