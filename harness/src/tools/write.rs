//! The tools that change files: `write` and `edit`.

use std::fs;
use std::path::Path;

use super::bound::{counted, grouped};
use super::call::{EditArgs, WriteArgs};
use super::edit::apply;
use super::files::{self, FileError};
use super::output::{Meta, Output};
use super::paths::{Access, Reach, Resolved, Resolver};
use super::text::decode;
use crate::limits::EDIT_BYTES_MAX;

pub fn write(args: &WriteArgs, resolver: &Resolver, reach: Reach) -> Output {
    let done = resolver
        .resolve_within(&args.path, Access::Change, reach)
        .map_err(|error| error.to_string())
        .and_then(|resolved| Ok((write_file(args, &resolved)?, resolved)));
    match done {
        Ok((text, resolved)) => changed("write", text, &resolved),
        Err(why) => Output::failed("write", why),
    }
}

fn write_file(args: &WriteArgs, resolved: &Resolved) -> Result<String, String> {
    let shown = &resolved.shown;
    let bytes = args.content.as_bytes();
    if bytes.len() as u64 > EDIT_BYTES_MAX {
        let error = FileError::TooLarge(shown.clone(), bytes.len() as u64, "", EDIT_BYTES_MAX);
        return Err(error.to_string());
    }
    let before = match files::open(&resolved.path, shown) {
        Ok((_, meta)) => Some(meta),
        Err(FileError::Missing(..)) => None,
        // A file that may be written but not read is replaced all the same.
        Err(FileError::Io(_, error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            fs::metadata(&resolved.path).ok()
        }
        Err(error) => return Err(error.to_string()),
    };
    let io = |error: std::io::Error| FileError::Io(shown.clone(), error).to_string();
    if let Some(parent) = resolved.path.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    files::replace(&resolved.path, bytes, before.as_ref()).map_err(io)?;
    let size = format!(
        "{}, {}",
        counted(args.content.lines().count(), "line"),
        counted(bytes.len(), "byte")
    );
    Ok(match before {
        Some(before) => format!(
            "wrote {shown}: {size} (it had {} bytes)",
            grouped(before.len() as usize)
        ),
        None => format!("wrote {shown}: {size} (new)"),
    })
}

pub fn edit(args: &EditArgs, resolver: &Resolver, reach: Reach) -> Output {
    let done = resolver
        .resolve_within(&args.path, Access::Change, reach)
        .map_err(|error| error.to_string())
        .and_then(|resolved| Ok((edit_file(args, &resolved)?, resolved)));
    match done {
        Ok((text, resolved)) => changed("edit", text, &resolved),
        Err(why) => Output::failed("edit", why),
    }
}

fn edit_file(args: &EditArgs, resolved: &Resolved) -> Result<String, String> {
    let shown = &resolved.shown;
    let (bytes, before) =
        files::read_all(&resolved.path, shown, EDIT_BYTES_MAX).map_err(|e| e.to_string())?;
    let (text, mark) = decode(&bytes).map_err(|not| {
        format!("`{shown}` is {not}. edit changes UTF-8 only, as anything else could break it; use bash (iconv, sed). Nothing was changed")
    })?;
    let edited = apply(text, &args.edits).map_err(|why| format!("{shown}: {why}"))?;
    let mut out = Vec::with_capacity(edited.len() + 3);
    if mark {
        out.extend_from_slice(b"\xef\xbb\xbf");
    }
    out.extend_from_slice(edited.as_bytes());
    let io = |error: std::io::Error| FileError::Io(shown.clone(), error).to_string();
    if changed_since(&resolved.path, &before) {
        return Err(format!(
            "{shown}: another program changed it just now; read it again. Nothing was changed"
        ));
    }
    files::replace(&resolved.path, &out, Some(&before)).map_err(io)?;
    let (old, new) = (text.lines().count(), edited.lines().count());
    let lines = match old.cmp(&new) {
        std::cmp::Ordering::Equal => counted(new, "line"),
        _ => format!("{} lines, now {}", grouped(old), grouped(new)),
    };
    Ok(format!(
        "edited {shown}: {} ({lines})",
        counted(args.edits.len(), "replacement")
    ))
}

fn changed_since(path: &Path, before: &fs::Metadata) -> bool {
    let Ok(now) = fs::metadata(path) else {
        return true;
    };
    now.len() != before.len() || now.modified().ok() != before.modified().ok()
}

fn changed(tool: &'static str, text: String, resolved: &Resolved) -> Output {
    let meta = Meta {
        changed: vec![resolved.path.clone()],
        ..Meta::of(tool)
    };
    Output {
        meta,
        ..Output::said(tool, true, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::call::Replacement;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    }

    /// Edits turned CRLF into LF, ate byte order marks, and wrote U+FFFD over names in GBK.
    #[test]
    fn every_byte_outside_an_edit_stays_or_the_edit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let resolver = Resolver::new(dir.path(), None, &[], None).unwrap();
        // File, its bytes, old, new, the bytes after (none: refused and unchanged), what is said.
        type Case = (
            &'static str,
            &'static str,
            &'static str,
            &'static str,
            Option<&'static str>,
            &'static str,
        );
        let cases: &[Case] = &[
            (
                "crlf.txt",
                "610d0a620d0a630d0a",
                "a\nb",
                "a\nB",
                Some("610d0a420d0a630d0a"),
                "edited crlf.txt: 1 replacement (3 lines)",
            ),
            (
                "mixed.txt",
                "610d0a620a630d0a620d0a",
                "c",
                "C",
                Some("610d0a620a430d0a620d0a"),
                "",
            ),
            (
                "mixed.txt",
                "610d0a620a630d0a620d0a",
                "b\nc",
                "b\nD",
                Some("610d0a620a440d0a620d0a"),
                "",
            ),
            (
                "mixed.txt",
                "610d0a620a630d0a620d0a",
                "b",
                "X",
                None,
                "occurs 2 times",
            ),
            (
                "bom.txt",
                "efbbbf610d0a620d0a",
                "a\nb",
                "A\nb",
                Some("efbbbf410d0a620d0a"),
                "",
            ),
            (
                "gbk.txt",
                "bcdbb8f120350ab5dab6fed0d00a",
                "5",
                "6",
                None,
                "GBK",
            ),
            (
                "latin1.txt",
                "636166e90a780a",
                "x",
                "y",
                None,
                "looks like Latin-1",
            ),
            (
                "utf16.txt",
                "fffe61000a0062000a00",
                "a",
                "A",
                None,
                "UTF-16",
            ),
            (
                "nonl.txt",
                "6c617374206c696e65",
                "last",
                "Last",
                Some("4c617374206c696e65"),
                "",
            ),
            (
                "tabs.mk",
                "616c6c3a0a096563686f2068690a",
                "all:\n    echo hi",
                "all:\n    echo ho",
                None,
                "only spaces and tabs differ",
            ),
        ];
        for (file, hex, old, new, right, says) in cases {
            let path = dir.path().join(file);
            fs::write(&path, bytes(hex)).unwrap();
            let edits = vec![Replacement {
                old: (*old).into(),
                new: (*new).into(),
            }];
            let output = edit(
                &EditArgs {
                    path: (*file).into(),
                    edits,
                },
                &resolver,
                Reach::Workspace,
            );
            assert_eq!(
                output.ok,
                right.is_some(),
                "{file} {old:?}: {}",
                output.source.head
            );
            assert_eq!(
                fs::read(&path).unwrap(),
                bytes(right.unwrap_or(hex)),
                "{file} {old:?}"
            );
            assert!(
                output.source.head.contains(says),
                "{file}: {}",
                output.source.head
            );
            assert_eq!(output.meta.changed.len(), usize::from(right.is_some()));
        }
    }

    #[test]
    fn write_makes_directories_and_says_what_it_did() {
        let dir = tempfile::tempdir().unwrap();
        let resolver = Resolver::new(dir.path(), None, &[], None).unwrap();
        let write = |path: &str, content: &str| {
            let output = write(
                &WriteArgs {
                    path: path.into(),
                    content: content.into(),
                },
                &resolver,
                Reach::Workspace,
            );
            (output.ok, output.source.head)
        };
        assert_eq!(
            write("a/b/c.txt", "x\ny\n"),
            (true, "wrote a/b/c.txt: 2 lines, 4 bytes (new)".into())
        );
        assert_eq!(
            write("a/b/c.txt", ""),
            (
                true,
                "wrote a/b/c.txt: 0 lines, 0 bytes (it had 4 bytes)".into()
            )
        );
        assert_eq!(write("a/b", "x"), (false, "`a/b` is a directory".into()));
        assert!(write("a/b/c.txt/d", "x").1.contains("a/b/c.txt/d"));
        assert_eq!(fs::read(dir.path().join("a/b/c.txt")).unwrap(), b"");
    }
}
