//! A text file's bytes as one edits them: a byte order mark, line ends, an encoding.
//!
//! Only UTF-8 is edited. Anything else would have to be guessed, decoded and encoded again, and a
//! wrong guess writes a broken file; so it is named and refused.

/// What a file that is no UTF-8 most likely is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUtf8 {
    pub at_byte: usize,
    pub byte: u8,
    pub looks_like: &'static str,
}

impl std::fmt::Display for NotUtf8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotUtf8 {
            at_byte,
            byte,
            looks_like,
        } = self;
        write!(
            f,
            "not UTF-8 (byte 0x{byte:02x} at offset {at_byte}; looks like {looks_like})"
        )
    }
}

/// UTF-8 text of `bytes`, without a byte order mark, and whether there was one.
pub fn decode(bytes: &[u8]) -> Result<(&str, bool), NotUtf8> {
    let (body, mark) = match bytes.strip_prefix(b"\xef\xbb\xbf") {
        Some(body) => (body, true),
        None => (bytes, false),
    };
    match std::str::from_utf8(body) {
        // UTF-16 of plain English is valid UTF-8 with a NUL in every second place.
        Ok(text) if !looks_like_utf16(bytes) => Ok((text, mark)),
        Ok(_) => Err(NotUtf8 {
            at_byte: 0,
            byte: bytes[0],
            looks_like: "UTF-16",
        }),
        Err(error) => {
            let at = error.valid_up_to();
            Err(NotUtf8 {
                at_byte: at + bytes.len() - body.len(),
                byte: body[at],
                looks_like: guess(bytes),
            })
        }
    }
}

fn looks_like_utf16(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512) & !1];
    let zeros = |odd: usize| {
        start
            .iter()
            .skip(odd)
            .step_by(2)
            .filter(|b| **b == 0)
            .count()
    };
    start.len() >= 4 && (zeros(0) * 3 > start.len() || zeros(1) * 3 > start.len())
}

/// The commonest encodings of text that is not UTF-8.
fn guess(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || looks_like_utf16(bytes) {
        return "UTF-16";
    }
    // GBK and its kin put high bytes in pairs; Latin-1 has them alone, between letters.
    let (mut pairs, mut lone, mut i) = (0, 0, 0);
    while i < bytes.len() {
        match (bytes[i], bytes.get(i + 1)) {
            (0x81..=0xfe, Some(0x40..=0x7e | 0x80..=0xfe)) if bytes[i + 1] >= 0x80 => {
                pairs += 1;
                i += 2;
            }
            (0x80..=0xff, _) => {
                lone += 1;
                i += 1;
            }
            _ => i += 1,
        }
    }
    if pairs > lone {
        "GBK or another multi-byte encoding"
    } else {
        "Latin-1 or Windows-1252"
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnds {
    None,
    Lf,
    CrLf,
    Mixed,
}

impl LineEnds {
    pub fn of(text: &str) -> LineEnds {
        let crlf = text.matches("\r\n").count();
        let lf = text.matches('\n').count() - crlf;
        match (lf, crlf) {
            (0, 0) => LineEnds::None,
            (_, 0) => LineEnds::Lf,
            (0, _) => LineEnds::CrLf,
            _ => LineEnds::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_named() {
        type Case = (&'static [u8], Result<(&'static str, bool), &'static str>);
        let cases: &[Case] = &[
            (b"plain\n", Ok(("plain\n", false))),
            (b"\xef\xbb\xbfa\r\n", Ok(("a\r\n", true))),
            (
                b"\xbc\xdb\xb8\xf1 5\n\xb5\xda\xb6\xfe\xd0\xd0\n",
                Err("GBK or another multi-byte encoding"),
            ),
            (b"caf\xe9\nx\n", Err("Latin-1 or Windows-1252")),
            (b"\xff\xfea\0\n\0", Err("UTF-16")),
            (b"a\0b\0c\0\n\0", Err("UTF-16")),
        ];
        for (bytes, right) in cases {
            let got = decode(bytes).map_err(|e| e.looks_like);
            assert_eq!(got, *right, "{bytes:x?}");
        }
        let error = decode(b"caf\xe9\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "not UTF-8 (byte 0xe9 at offset 3; looks like Latin-1 or Windows-1252)"
        );
    }

    #[test]
    fn line_ends() {
        for (text, right) in [
            ("", LineEnds::None),
            ("a", LineEnds::None),
            ("a\n", LineEnds::Lf),
            ("a\r\nb\r\n", LineEnds::CrLf),
            ("a\r\nb\n", LineEnds::Mixed),
        ] {
            assert_eq!(LineEnds::of(text), right, "{text:?}");
        }
    }
}
