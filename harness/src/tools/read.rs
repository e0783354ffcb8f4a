//! The tools that show files: `read` in the workspace, `artifact` in the stored outputs.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::artifacts::{ArtifactId, Artifacts};
use super::bound::{Caps, Keep, ReadOn, Source, grouped};
use super::call::{ArtifactArgs, ReadArgs};
use super::clean::for_terminal_line;
use super::files::{self, FileError};
use super::output::{Meta, Output};
use super::paths::{Access, Reach, Resolved, Resolver};
use super::search::compile;
use super::sniff::{Kind, sniff};
use super::text::{LineEnds, decode};
use super::view::{Call, Most, Range, View, view};
use crate::limits::{READ_ENTRIES_MAX, SNIFF_BYTES};

pub fn read(args: &ReadArgs, resolver: &Resolver, reach: Reach, caps: Caps) -> Output {
    let resolved = match resolver.resolve_within(&args.path, Access::Read, reach) {
        Ok(resolved) => resolved,
        Err(error) => return Output::failed("read", error.to_string()),
    };
    let (file, _) = match files::open(&resolved.path, &resolved.shown) {
        Ok(opened) => opened,
        Err(FileError::Directory(_)) => return directory(&resolved),
        Err(error) => return Output::failed("read", error.to_string()),
    };
    match read_file(file, args, &resolved, caps) {
        Ok(output) => output,
        Err(error) => Output::failed("read", format!("`{}`: {error}", resolved.shown)),
    }
}

fn read_file(
    mut file: File,
    args: &ReadArgs,
    resolved: &Resolved,
    caps: Caps,
) -> io::Result<Output> {
    let start = start_of(&mut file)?;
    let shown = &resolved.shown;
    match sniff(&start) {
        Kind::Binary(name) => {
            let bytes = grouped(file.metadata()?.len() as usize);
            let text = format!(
                "`{shown}` is a binary file: {name}, {bytes} bytes. Use bash to look into it (file, xxd, strings)"
            );
            return Ok(Output::failed("read", text));
        }
        Kind::Utf16 => {
            let text = format!("`{shown}` is UTF-16. Read it with bash: iconv -f UTF-16 -t UTF-8");
            return Ok(Output::failed("read", text));
        }
        Kind::Text => {}
    }
    let range = Range {
        start: args.start.unwrap_or(1).max(1),
        lines: args.lines,
        byte: args.byte,
        pattern: None,
    };
    let call = Call {
        tool: "read",
        key: "path",
        value: &args.path,
    };
    let View { source, mut footer } = view(file, &range, Most::for_caps(caps), &call)?;
    for note in notes(&start) {
        footer.push_str(if footer.is_empty() { "" } else { "\n" });
        footer.push_str(&note);
    }
    let first_line = range.start as usize;
    let read_on = match range.byte {
        None => ReadOn::File {
            path: args.path.clone(),
            first_line,
        },
        Some(_) => ReadOn::Nothing,
    };
    let meta = Meta {
        read: vec![resolved.path.clone()],
        ..Meta::of("read")
    };
    Ok(Output {
        ok: true,
        source,
        keep: Keep::Head,
        read_on,
        footer,
        artifact: None,
        meta,
    })
}

/// What the model should know before it edits: of the start of the file.
fn notes(start: &[u8]) -> Vec<String> {
    let mut notes = Vec::new();
    // The part that was looked at may end inside a character.
    let body = match std::str::from_utf8(start) {
        Err(error) if error.error_len().is_none() => &start[..error.valid_up_to()],
        _ => start,
    };
    match decode(body) {
        Err(not) => notes.push(format!(
            "[the file is {not}: shown with \\xNN, edit refuses it]"
        )),
        Ok((text, mark)) => {
            match LineEnds::of(text) {
                LineEnds::CrLf => notes.push("[line endings: CRLF; edit keeps them]".into()),
                LineEnds::Mixed => notes.push("[line endings: mixed; edit keeps them]".into()),
                LineEnds::Lf | LineEnds::None => {}
            }
            if mark {
                notes.push("[begins with a byte order mark; edit keeps it]".into());
            }
        }
    }
    notes
}

fn start_of(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.by_ref()
        .take(SNIFF_BYTES as u64)
        .read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(start)
}

fn directory(resolved: &Resolved) -> Output {
    let entries = match fs::read_dir(&resolved.path) {
        Ok(entries) => entries,
        Err(error) => return Output::failed("read", format!("`{}`: {error}", resolved.shown)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| {
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                "/"
            } else {
                ""
            };
            format!(
                "{}{slash}",
                for_terminal_line(&entry.file_name().to_string_lossy())
            )
        })
        .collect();
    names.sort();
    let total = names.len();
    let mut footer = format!(
        "[`{}` is a directory with {} entries",
        resolved.shown,
        grouped(total)
    );
    if total > READ_ENTRIES_MAX {
        names.truncate(READ_ENTRIES_MAX);
        footer.push_str(&format!(
            "; the first {READ_ENTRIES_MAX} are shown, use bash for more"
        ));
    }
    footer.push(']');
    Output {
        source: Source::whole(names.join("\n")),
        footer,
        ..Output::said("read", true, "")
    }
}

pub fn artifact(args: &ArtifactArgs, artifacts: &Artifacts, caps: Caps) -> Output {
    let id: ArtifactId = match args.id.parse() {
        Ok(id) => id,
        Err(why) => return Output::failed("artifact", why),
    };
    let pattern = match args
        .pattern
        .as_deref()
        .map(|p| compile(p, false, false))
        .transpose()
    {
        Ok(pattern) => pattern,
        Err(why) => return Output::failed("artifact", why),
    };
    let path = artifacts.path(id);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => return Output::failed("artifact", missing(id, artifacts, &error)),
    };
    let range = Range {
        start: args.start.unwrap_or(1).max(1),
        lines: args.lines,
        byte: args.byte,
        pattern,
    };
    match show_artifact(&mut file, id, &range, &path, caps) {
        Ok(output) => output,
        Err(error) => Output::failed("artifact", format!("{id}: {error}")),
    }
}

fn show_artifact(
    file: &mut File,
    id: ArtifactId,
    range: &Range,
    path: &Path,
    caps: Caps,
) -> io::Result<Output> {
    if let Kind::Binary(name) = sniff(&start_of(file)?) {
        let bytes = grouped(file.metadata()?.len() as usize);
        return Ok(Output::failed(
            "artifact",
            format!("{id} is binary: {name}, {bytes} bytes"),
        ));
    }
    let value = id.to_string();
    let call = Call {
        tool: "artifact",
        key: "id",
        value: &value,
    };
    let View { source, footer } = view(File::open(path)?, range, Most::for_caps(caps), &call)?;
    let read_on = match (&range.pattern, range.byte) {
        (None, None) => ReadOn::ArtifactFrom {
            id,
            first_line: range.start as usize,
        },
        _ => ReadOn::Nothing,
    };
    let meta = Meta::of("artifact");
    Ok(Output {
        ok: true,
        source,
        keep: Keep::Head,
        read_on,
        footer,
        artifact: Some(id),
        meta,
    })
}

fn missing(id: ArtifactId, artifacts: &Artifacts, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return format!("{id}: {error}");
    }
    let there = artifacts.list().unwrap_or_default();
    let last: Vec<String> = there
        .iter()
        .rev()
        .take(10)
        .rev()
        .map(ToString::to_string)
        .collect();
    match last.is_empty() {
        true => format!("there is no artifact {id}, and no other yet"),
        false => format!("there is no artifact {id}; there is: {}", last.join(", ")),
    }
}
