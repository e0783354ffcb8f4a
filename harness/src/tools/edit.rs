//! Literal replacements in a text. Each `old` must match exactly once; all replacements are made or
//! none. Line ends in `old` match both kinds, and outside the characters that really change every
//! byte stays: a byte order mark, CRLF, a mixture, a missing last newline.

use super::bound::counted;
use super::call::Replacement;
use crate::limits::EDITS_MAX;

/// A text with `\n` for every line end, and where each character was.
struct Flat {
    text: String,
    /// Byte offsets, in `text`, of the line ends that were `\r\n`.
    crlf: Vec<usize>,
}

impl Flat {
    fn of(original: &str) -> Flat {
        let mut text = String::with_capacity(original.len());
        let mut crlf = Vec::new();
        for (i, part) in original.split("\r\n").enumerate() {
            if i > 0 {
                crlf.push(text.len());
                text.push('\n');
            }
            text.push_str(part);
        }
        Flat { text, crlf }
    }

    /// Where an offset into `text` lies in the original: before the `\r` of a line end.
    fn original_offset(&self, at: usize) -> usize {
        at + self.crlf.partition_point(|end| *end < at)
    }

    fn is_crlf(&self, at: usize) -> bool {
        self.crlf.binary_search(&at).is_ok()
    }

    /// The end of the line before `at`, else after it, else `\n`.
    fn line_end_near(&self, at: usize) -> &'static str {
        let before = self.text[..at].rfind('\n');
        let end = before.or_else(|| self.text[at..].find('\n').map(|i| at + i));
        if end.is_some_and(|end| self.is_crlf(end)) {
            "\r\n"
        } else {
            "\n"
        }
    }
}

/// One replacement as byte ranges of the original.
struct Change {
    start: usize,
    end: usize,
    new: String,
}

/// `original` with all `edits` made; an error says which edit failed and what is there instead.
pub fn apply(original: &str, edits: &[Replacement]) -> Result<String, String> {
    debug_assert!(edits.len() <= EDITS_MAX);
    let flat = Flat::of(original);
    let mut changes = Vec::with_capacity(edits.len());
    for (i, edit) in edits.iter().enumerate() {
        let which = if edits.len() == 1 {
            String::new()
        } else {
            format!("edit {} of {}: ", i + 1, edits.len())
        };
        changes
            .push(locate(&flat, edit).map_err(|why| format!("{which}{why}. Nothing was changed"))?);
    }
    changes.sort_by_key(|c| (c.start, c.end));
    if changes
        .windows(2)
        .any(|pair| pair[1].start < pair[0].end || pair[1].start == pair[0].start)
    {
        return Err("two of the edits overlap; make them one. Nothing was changed".into());
    }
    let mut out = String::with_capacity(original.len());
    let mut at = 0;
    for change in changes {
        out.push_str(&original[at..change.start]);
        out.push_str(&change.new);
        at = change.end;
    }
    out.push_str(&original[at..]);
    Ok(out)
}

fn locate(flat: &Flat, edit: &Replacement) -> Result<Change, String> {
    let (old, new) = (
        edit.old.replace("\r\n", "\n"),
        edit.new.replace("\r\n", "\n"),
    );
    if old.is_empty() {
        return Err(
            "`old` is empty; use write for a new file, or name the text to put it next to".into(),
        );
    }
    if old == new {
        return Err("`old` and `new` are the same".into());
    }
    let matches: Vec<usize> = overlapping(&flat.text, &old).take(1_000).collect();
    match matches.as_slice() {
        [] => Err(nearest_lines(&flat.text, &old)),
        [at] => Ok(change(flat, *at, &old, &new)),
        many => {
            let lines: Vec<String> = many
                .iter()
                .take(5)
                .map(|at| (line_of(&flat.text, *at)).to_string())
                .collect();
            let more = if many.len() > 5 { ", ..." } else { "" };
            Err(format!(
                "`old` occurs {} times (lines {}{more}); add lines around it until it is the only one",
                many.len(),
                lines.join(", ")
            ))
        }
    }
}

/// Every match, also those that overlap: two overlapping matches are two places to change.
fn overlapping<'t>(text: &'t str, old: &'t str) -> impl Iterator<Item = usize> + 't {
    let step = old.chars().next().map_or(1, char::len_utf8);
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + text[from..].find(old)?;
        from = at + step;
        Some(at)
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Only what differs between `old` and `new` is replaced; its line ends follow those it replaces.
fn change(flat: &Flat, at: usize, old: &str, new: &str) -> Change {
    let prefix = common_prefix(old, new);
    let suffix = common_suffix(&old[prefix..], &new[prefix..]);
    let (gone, put) = (
        &old[prefix..old.len() - suffix],
        &new[prefix..new.len() - suffix],
    );
    let start = at + prefix;
    let replaced: Vec<&str> = gone
        .match_indices('\n')
        .map(|(i, _)| {
            if flat.is_crlf(start + i) {
                "\r\n"
            } else {
                "\n"
            }
        })
        .collect();
    let default = replaced
        .last()
        .copied()
        .unwrap_or_else(|| flat.line_end_near(start));
    let mut text = String::with_capacity(put.len());
    for (i, line) in put.split('\n').enumerate() {
        if i > 0 {
            text.push_str(replaced.get(i - 1).copied().unwrap_or(default));
        }
        text.push_str(line);
    }
    Change {
        start: flat.original_offset(start),
        end: flat.original_offset(start + gone.len()),
        new: text,
    }
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.chars()
        .zip(b.chars())
        .take_while(|(x, y)| x == y)
        .map(|(x, _)| x.len_utf8())
        .sum()
}

fn common_suffix(a: &str, b: &str) -> usize {
    a.chars()
        .rev()
        .zip(b.chars().rev())
        .take_while(|(x, y)| x == y)
        .map(|(x, _)| x.len_utf8())
        .sum()
}

/// Why `old` was not found: the lines that are most like it, with spaces and tabs made visible
/// where they are the difference.
fn nearest_lines(text: &str, old: &str) -> String {
    let wanted: Vec<&str> = old.trim_matches('\n').lines().collect();
    let lines: Vec<&str> = text.lines().collect();
    let wanted_pairs: Vec<_> = wanted.iter().take(20).map(|l| Pairs::of(l)).collect();
    let pairs: Vec<_> = lines.iter().take(20_000).map(|l| Pairs::of(l)).collect();
    let mut best: Option<(usize, usize)> = None;
    for start in 0..pairs.len() {
        let window = pairs[start..].iter();
        let score: usize = window
            .zip(&wanted_pairs)
            .map(|(line, want)| line.likeness(want))
            .sum();
        if score > best.map_or(0, |(_, score)| score) {
            best = Some((start, score));
        }
    }
    if !wanted.is_empty() && wanted.iter().all(|line| has_line_number(line)) {
        return "`old` was not found: it begins with line numbers, as read shows them; leave them out"
            .into();
    }
    let enough = |score: usize| score * 2 >= 100 * wanted_pairs.len();
    let Some((start, _)) = best.filter(|(_, score)| enough(*score)) else {
        return format!(
            "`old` was not found, and nothing like it, in {}; read the file again",
            counted(lines.len(), "line")
        );
    };
    let window = &lines[start..(start + wanted.len()).min(lines.len())];
    let only_spaces = window.len() == wanted.len()
        && window
            .iter()
            .zip(&wanted)
            .all(|(a, b)| squeezed(a) == squeezed(b));
    let show = |line: &str| {
        let line: String = line.chars().take(160).collect();
        if only_spaces {
            line.replace('\t', "→").replace(' ', "·")
        } else {
            line
        }
    };
    let shown: Vec<String> = window
        .iter()
        .take(12)
        .enumerate()
        .map(|(i, line)| format!("{}\t{}", start + i + 1, show(line)))
        .collect();
    let hint = if only_spaces {
        "; only spaces and tabs differ (shown as · and →)"
    } else {
        ""
    };
    format!(
        "`old` was not found{hint}. The nearest lines are:\n{}\nCopy them exactly",
        shown.join("\n")
    )
}

/// `   12<tab>text`, as `read` shows a line.
fn has_line_number(line: &str) -> bool {
    let number = line.split('\t').next().unwrap_or("").trim_start();
    line.contains('\t') && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
}

fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line's pairs of neighbouring bytes, sorted; spaces at its ends aside.
struct Pairs<'t> {
    line: &'t str,
    pairs: Vec<[u8; 2]>,
}

impl<'t> Pairs<'t> {
    fn of(line: &'t str) -> Pairs<'t> {
        let line = line.trim();
        let mut pairs: Vec<[u8; 2]> = line
            .as_bytes()
            .windows(2)
            .take(400)
            .map(|w| [w[0], w[1]])
            .collect();
        pairs.sort_unstable();
        Pairs { line, pairs }
    }

    /// 0 to 100: the share of pairs that two lines have in common (Dice's coefficient).
    fn likeness(&self, other: &Pairs<'_>) -> usize {
        if self.line == other.line {
            return 100;
        }
        let (mine, theirs) = (&self.pairs, &other.pairs);
        let (mut i, mut j, mut shared) = (0, 0, 0);
        while i < mine.len() && j < theirs.len() {
            match mine[i].cmp(&theirs[j]) {
                std::cmp::Ordering::Less => i += 1,
                std::cmp::Ordering::Greater => j += 1,
                std::cmp::Ordering::Equal => {
                    shared += 1;
                    i += 1;
                    j += 1;
                }
            }
        }
        200 * shared / (mine.len() + theirs.len()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit(text: &str, old: &str, new: &str) -> Result<String, String> {
        apply(
            text,
            &[Replacement {
                old: old.into(),
                new: new.into(),
            }],
        )
    }

    /// Files with CRLF were "not found", or came back with every line end changed.
    #[test]
    fn line_ends_outside_the_change_stay() {
        let cases = [
            ("a\r\nb\r\nc\r\n", "a\nb", "a\nB", "a\r\nB\r\nc\r\n"),
            ("a\r\nb\nc\r\nb\r\n", "c", "C", "a\r\nb\nC\r\nb\r\n"),
            ("a\r\nb\nc\r\nb\r\n", "b\nc", "b\nD", "a\r\nb\nD\r\nb\r\n"),
            ("a\r\nb\r\n", "a\nb", "A\nb", "A\r\nb\r\n"),
            ("last line", "last", "Last", "Last line"),
            ("a\r\nb\r\n", "a", "a\nx\ny", "a\r\nx\r\ny\r\nb\r\n"),
            ("a\nb\n", "a\nb\n", "", ""),
            ("a\r\nb\nc", "a\nb\nc", "x\ny\nz", "x\r\ny\nz"),
            ("a\r\nb\r\nc\r\n", "a\r\nb\r\nc", "c", "c\r\n"),
            ("x", "x", "x\ny", "x\ny"),
            ("é\r\nß\r\n", "é\nß", "è\nß", "è\r\nß\r\n"),
            ("lone\rreturn\r\n", "lone\rreturn", "b", "b\r\n"),
            ("a\r\nb", "\n", "-", "a-b"),
        ];
        for (text, old, new, right) in cases {
            assert_eq!(
                edit(text, old, new).as_deref(),
                Ok(right),
                "{text:?} {old:?}"
            );
        }
    }

    #[test]
    fn refusals_say_what_is_there() {
        assert_eq!(
            edit("a\r\nb\nc\r\nb\r\n", "b", "X").unwrap_err(),
            "`old` occurs 2 times (lines 2, 4); add lines around it until it is the only one. Nothing was changed"
        );
        assert_eq!(
            edit(
                "all:\n\techo hi\n",
                "all:\n    echo hi",
                "all:\n    echo ho"
            )
            .unwrap_err(),
            "`old` was not found; only spaces and tabs differ (shown as · and →). The nearest lines are:\n\
             1\tall:\n2\t→echo·hi\nCopy them exactly. Nothing was changed"
        );
        assert_eq!(
            edit("fn one() {}\nfn two() {}\n", "fn tow() {}", "x").unwrap_err(),
            "`old` was not found. The nearest lines are:\n2\tfn two() {}\nCopy them exactly. Nothing was changed"
        );
        assert_eq!(
            edit("aaa\n", "completely different", "x").unwrap_err(),
            "`old` was not found, and nothing like it, in 1 line; read the file again. Nothing was changed"
        );
        assert!(
            edit("aaa", "aa", "b")
                .unwrap_err()
                .contains("occurs 2 times")
        );
        assert!(
            edit("a", "", "b")
                .unwrap_err()
                .starts_with("`old` is empty")
        );
        assert!(
            edit("a", "a", "a")
                .unwrap_err()
                .starts_with("`old` and `new` are the same")
        );
    }

    #[test]
    fn line_numbers_in_old_are_named() {
        let error = edit("a\nb\n", "    1\ta\n    2\tb", "x").unwrap_err();
        assert!(error.contains("begins with line numbers"), "{error}");
    }

    #[test]
    fn several_edits_are_all_made_or_none() {
        let of = |pairs: &[(&str, &str)]| -> Vec<Replacement> {
            pairs
                .iter()
                .map(|(old, new)| Replacement {
                    old: (*old).into(),
                    new: (*new).into(),
                })
                .collect()
        };
        let text = "one\r\ntwo\r\nthree\r\n";
        assert_eq!(
            apply(text, &of(&[("three", "3"), ("one", "1\n1")])).unwrap(),
            "1\r\n1\r\ntwo\r\n3\r\n"
        );
        // Each is looked for in the file as it was, so their order does not matter.
        assert_eq!(apply("a b", &of(&[("a", "b"), ("b", "a")])).unwrap(), "b a");
        let error = apply(text, &of(&[("one", "1"), ("four", "4")])).unwrap_err();
        assert!(
            error.starts_with("edit 2 of 2: `old` was not found"),
            "{error}"
        );
        let error = apply("abcdef", &of(&[("abcd", "x"), ("cdef", "y")])).unwrap_err();
        assert!(error.contains("overlap"), "{error}");
    }

    proptest! {
        /// Against a plain way: find, cut, paste, in the text with `\n` only.
        #[test]
        fn agrees_with_plain_replacement(
            lines in prop::collection::vec(("[abé]{0,3}", any::<bool>()), 1..12),
            from in 0usize..40, length in 1usize..12,
            new in "[abx\n]{0,8}",
        ) {
            let text: String = lines.iter().map(|(l, crlf)| format!("{l}{}", if *crlf { "\r\n" } else { "\n" })).collect();
            let flat = text.replace("\r\n", "\n");
            let chars: Vec<char> = flat.chars().collect();
            let from = from.min(chars.len() - 1);
            let old: String = chars[from..(from + length).min(chars.len())].iter().collect();
            match edit(&text, &old, &new) {
                Ok(edited) => {
                    prop_assert_eq!(overlapping(&flat, &old).count(), 1);
                    prop_assert_eq!(edited.replace("\r\n", "\n"), flat.replacen(&old, &new, 1));
                    // Outside the match the bytes are the same.
                    let at = flat.find(&old).unwrap();
                    let before = Flat::of(&text).original_offset(at);
                    prop_assert!(edited.starts_with(&text[..before]));
                    let after = Flat::of(&text).original_offset(at + old.len());
                    prop_assert!(edited.ends_with(&text[after..]));
                }
                Err(_) => prop_assert!(overlapping(&flat, &old).count() != 1 || old == new),
            }
        }
    }
}
