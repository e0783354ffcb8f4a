//! Tells text from binary by the start of the bytes, as `file` does for the kinds one meets.

use crate::limits::{BINARY_BYTES_MIN, BINARY_PERCENT, SNIFF_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Two bytes a character, with a byte order mark.
    Utf16,
    /// What it is called.
    Binary(&'static str),
}

const MAGIC: &[(&[u8], &str)] = &[
    (b"\x7fELF", "ELF program or library"),
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
    (b"\0asm", "WebAssembly module"),
    (b"GGUF", "GGUF model"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"MZ", "Windows program"),
    (b"OggS", "Ogg media"),
    (b"RIFF", "RIFF media"),
    (b"!<arch>\n", "static library"),
];

/// What `start`, the first bytes of something, is. `SNIFF_BYTES` of it are looked at.
pub fn sniff(start: &[u8]) -> Kind {
    let start = &start[..start.len().min(SNIFF_BYTES)];
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        // Odd bytes after a mark are no UTF-16: `printf '\xff\xfe'` is just two bad bytes.
        if start.len() >= 4 && start[2..].contains(&0) {
            return Kind::Utf16;
        }
    }
    let bad = Bad::of(start);
    if bad.controls + bad.invalid > 0
        && let Some((_, name)) = MAGIC.iter().find(|(magic, _)| start.starts_with(magic))
    {
        return Kind::Binary(name);
    }
    let percent = |n: usize| n * 100 / start.len().max(1);
    // Latin-1 or GBK has bytes that are not UTF-8, but no controls; names that end in NUL
    // (`find -print0`) have controls, but few. Noise has both.
    let noise = percent(bad.controls) >= BINARY_PERCENT
        || (percent(bad.controls) >= 1 && percent(bad.invalid) >= BINARY_PERCENT);
    if start.len() >= BINARY_BYTES_MIN && noise {
        return Kind::Binary("unknown type");
    }
    Kind::Text
}

/// What texts do not have.
struct Bad {
    /// NULs and control characters.
    controls: usize,
    /// Bytes that are not UTF-8.
    invalid: usize,
}

impl Bad {
    fn of(bytes: &[u8]) -> Bad {
        let control = |c: char| c.is_ascii_control() && !matches!(c, '\t'..='\r' | '\x08' | '\x1b');
        let mut bad = Bad {
            controls: 0,
            invalid: 0,
        };
        for chunk in bytes.utf8_chunks() {
            bad.controls += chunk.valid().chars().filter(|c| control(*c)).count();
            bad.invalid += chunk.invalid().len();
        }
        bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let noise: Vec<u8> = (0..3000u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        let latin1: Vec<u8> = "le caf\u{e9} est ferm\u{e9}\n"
            .repeat(20)
            .chars()
            .map(|c| c as u8)
            .collect();
        let colours = "\x1b[31mred\x1b[0m ".repeat(50);
        let chinese = "中文".repeat(100);
        let cases: &[(&str, &[u8], Kind)] = &[
            ("text", b"fn main() {}\n", Kind::Text),
            ("empty", b"", Kind::Text),
            ("colours", colours.as_bytes(), Kind::Text),
            ("latin-1", &latin1, Kind::Text),
            ("gbk", &b"\xbc\xdb\xb8\xf1 5\n".repeat(40), Kind::Text),
            (
                "names that end in NUL",
                &b"./src/main.rs\0./Cargo.toml\0".repeat(40),
                Kind::Text,
            ),
            ("a few bad bytes", b"a\0b\xff\xfe\xc3", Kind::Text),
            ("chinese", chinese.as_bytes(), Kind::Text),
            (
                "png",
                b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
                Kind::Binary("PNG image"),
            ),
            (
                "elf",
                b"\x7fELF\x02\x01\x01\0\0\0",
                Kind::Binary("ELF program or library"),
            ),
            ("noise", &noise, Kind::Binary("unknown type")),
            ("zeros", &[0; 500], Kind::Binary("unknown type")),
            ("utf-16", b"\xff\xfea\0\n\0", Kind::Utf16),
            (
                "prose that begins like a program",
                b"MZ is a magic number",
                Kind::Text,
            ),
        ];
        for (name, bytes, kind) in cases {
            assert_eq!(sniff(bytes), *kind, "{name}");
        }
    }
}
