//! The tool `search`: lines that match a regular expression, in the files that git would see.
//!
//! The order is that of sorted paths, so the same tree gives the same text. Limits are on matches,
//! on time (by the cancel flag) and on what is shown of one line; what they leave out is counted.

use std::path::Path;

use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};
use regex::{Regex, RegexBuilder};

use super::artifacts::{ArtifactId, Artifacts};
use super::bound::{Keep, ReadOn, Source, counted};
use super::call::SearchArgs;
use super::clean::{LoneReturn, for_model, for_terminal_line};
use super::files::{self, FileError};
use super::output::{Meta, Output};
use super::paths::{Access, Reach, Resolver};
use super::process::Cancel;
use super::sniff::{Kind, sniff};
use crate::limits::{
    ROOM_CHARS_MIN, SEARCH_FILE_BYTES_MAX, SEARCH_LINE_CHARS, SEARCH_MATCHES_MAX,
    SEARCH_PATTERN_BYTES_MAX,
};

/// A pattern as a tool takes it; the error is written for the model.
pub fn compile(pattern: &str, literal: bool, ignore_case: bool) -> Result<Regex, String> {
    let source = if literal {
        regex::escape(pattern)
    } else {
        pattern.to_owned()
    };
    RegexBuilder::new(&source)
        .case_insensitive(ignore_case)
        .size_limit(SEARCH_PATTERN_BYTES_MAX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                "the pattern is too large; make its repetitions smaller".into()
            }
            error => format!(
                "the pattern is no regular expression: {error}\nFor plain text, set literal to true"
            ),
        })
}

pub fn search(
    args: &SearchArgs,
    (resolver, reach): (&Resolver, Reach),
    artifacts: &Artifacts,
    cancel: &Cancel,
) -> Output {
    match find(args, resolver, reach, cancel) {
        Ok(found) => found.output(args, artifacts),
        Err(why) => Output::failed("search", why),
    }
}

#[derive(Default)]
struct Found {
    text: String,
    matches: usize,
    files: usize,
    searched: usize,
    binary: usize,
    too_large: usize,
    unreadable: usize,
    stopped: Option<&'static str>,
}

fn find(
    args: &SearchArgs,
    resolver: &Resolver,
    reach: Reach,
    cancel: &Cancel,
) -> Result<Found, String> {
    let literal = args.literal.unwrap_or(false);
    let pattern = compile(&args.pattern, literal, args.ignore_case.unwrap_or(false))?;
    let root = resolver
        .resolve_within(args.path.as_deref().unwrap_or("."), Access::Read, reach)
        .map_err(|e| e.to_string())?;
    if !root.path.exists() {
        return Err(FileError::Missing(root.shown, String::new()).to_string());
    }
    let globs = globs(args.glob.as_deref(), &root.path)?;
    let context = args.context.unwrap_or(0) as usize;
    let mut found = Found::default();
    for entry in walk(&root.path, globs) {
        if cancel.is_cancelled() {
            found.stopped = Some("cancelled");
            break;
        }
        let Ok(entry) = entry else {
            found.unreadable += 1;
            continue;
        };
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            found.file(&entry, &pattern, context, resolver);
        }
        if found.matches >= SEARCH_MATCHES_MAX {
            found.stopped = Some("stopped here; narrow the pattern or the path");
            break;
        }
    }
    Ok(found)
}

fn globs(glob: Option<&str>, root: &Path) -> Result<Override, String> {
    let Some(glob) = glob else {
        return Ok(Override::empty());
    };
    let mut builder = OverrideBuilder::new(root);
    let bad = |error: ignore::Error| {
        format!(
            "the glob `{}` is not valid: {error}",
            for_terminal_line(glob)
        )
    };
    builder.add(glob).map_err(bad)?;
    builder.build().map_err(bad)
}

/// Ignored files are left out, as git leaves them; hidden files are not, but for `.git` itself.
/// Links are not followed, so nothing outside is searched.
fn walk(root: &Path, globs: Override) -> ignore::Walk {
    WalkBuilder::new(root)
        .hidden(false)
        .require_git(false)
        .git_global(false)
        .follow_links(false)
        .overrides(globs)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_name(|a, b| a.cmp(b))
        .build()
}

impl Found {
    fn file(&mut self, entry: &DirEntry, pattern: &Regex, context: usize, resolver: &Resolver) {
        let shown = resolver.shown(entry.path());
        let bytes = match files::read_all(entry.path(), &shown, SEARCH_FILE_BYTES_MAX) {
            Ok((bytes, _)) => bytes,
            Err(FileError::TooLarge(..)) => {
                self.too_large += 1;
                return;
            }
            Err(_) => {
                self.unreadable += 1;
                return;
            }
        };
        if sniff(&bytes) != Kind::Text {
            self.binary += 1;
            return;
        }
        self.searched += 1;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let hits: Vec<usize> = (0..lines.len())
            .filter(|i| pattern.is_match(lines[*i]))
            .collect();
        if hits.is_empty() {
            return;
        }
        self.files += 1;
        let room = SEARCH_MATCHES_MAX - self.matches;
        let taken = &hits[..hits.len().min(room)];
        self.matches += taken.len();
        self.show(&shown, &lines, taken, pattern, context);
    }

    fn show(
        &mut self,
        path: &str,
        lines: &[&str],
        hits: &[usize],
        pattern: &Regex,
        context: usize,
    ) {
        let mut next = 0;
        for (n, hit) in hits.iter().enumerate() {
            let from = hit.saturating_sub(context).max(next);
            let to = (hit + context + 1).min(lines.len());
            // The next match shows its own context.
            let to = hits.get(n + 1).map_or(to, |next| to.min(*next));
            if context > 0 && !self.text.is_empty() && (from > next || next == 0) {
                self.text.push_str("--\n");
            }
            let end = to.max(hit + 1);
            for (i, line) in lines.iter().enumerate().take(end).skip(from) {
                let sign = if i == *hit { ':' } else { '-' };
                let found = if i == *hit { pattern.find(line) } else { None };
                self.text.push_str(&format!(
                    "{path}{sign}{}{sign} {}\n",
                    i + 1,
                    around(line, found)
                ));
            }
            next = end;
        }
    }

    fn output(mut self, args: &SearchArgs, artifacts: &Artifacts) -> Output {
        let mut notes = Vec::new();
        notes.push(match self.matches {
            0 => format!("no match in {}", counted(self.searched, "file")),
            n => {
                let matches = if n == 1 {
                    "1 match".to_owned()
                } else {
                    format!("{n} matches")
                };
                format!("{matches} in {}", counted(self.files, "file"))
            }
        });
        let skipped = [
            (self.binary, "binary"),
            (self.too_large, "larger than 16 MiB"),
            (self.unreadable, "unreadable"),
        ];
        let skipped: Vec<String> = skipped
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        if !skipped.is_empty() {
            notes.push(format!("skipped: {}", skipped.join(", ")));
        }
        notes.extend(self.stopped.map(str::to_owned));
        let mut footer = format!("[{}]", notes.join("; "));
        let artifact = match self.keep(args, artifacts) {
            Ok(id) => id,
            Err(error) => {
                footer.push_str(&format!("\n[the full list could not be stored: {error}]"));
                None
            }
        };
        if self.text.ends_with('\n') {
            self.text.pop();
        }
        Output {
            ok: self.stopped != Some("cancelled"),
            source: Source::whole(self.text),
            keep: Keep::Head,
            read_on: artifact.map_or(ReadOn::Nothing, ReadOn::Artifact),
            footer,
            artifact,
            meta: Meta::of("search"),
        }
    }

    fn keep(
        &self,
        args: &SearchArgs,
        artifacts: &Artifacts,
    ) -> std::io::Result<Option<ArtifactId>> {
        if self.text.chars().count() <= ROOM_CHARS_MIN {
            return Ok(None);
        }
        let mut writer = artifacts.create()?;
        writer.write(self.text.as_bytes())?;
        writer
            .finish(&format!("search: {}", for_terminal_line(&args.pattern)))
            .map(Some)
    }
}

/// A line, or of a long one the part around the match.
fn around(line: &str, hit: Option<regex::Match<'_>>) -> String {
    if line.chars().count() <= SEARCH_LINE_CHARS {
        return for_model(line.as_bytes(), LoneReturn::Shown);
    }
    let at = hit.map_or(0, |hit| line[..hit.start()].chars().count());
    let start = at.saturating_sub(SEARCH_LINE_CHARS / 3);
    let part: String = line.chars().skip(start).take(SEARCH_LINE_CHARS).collect();
    let after = line.chars().count() - start - part.chars().count();
    let mark = |n: usize| {
        if n == 0 {
            String::new()
        } else {
            format!("[{} cut]", counted(n, "character"))
        }
    };
    format!(
        "{}{}{}",
        mark(start),
        for_model(part.as_bytes(), LoneReturn::Shown),
        mark(after)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Place {
        dir: tempfile::TempDir,
        resolver: Resolver,
        artifacts: Artifacts,
        _session: tempfile::TempDir,
    }

    fn place(files: &[(&str, &[u8])]) -> Place {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let session = tempfile::tempdir().unwrap();
        Place {
            resolver: Resolver::new(dir.path(), None, &[], None).unwrap(),
            artifacts: Artifacts::open(session.path()).unwrap(),
            dir,
            _session: session,
        }
    }

    fn args(pattern: &str) -> SearchArgs {
        SearchArgs {
            pattern: pattern.into(),
            path: None,
            glob: None,
            literal: None,
            ignore_case: None,
            context: None,
        }
    }

    impl Place {
        fn search(&self, args: &SearchArgs) -> (String, String) {
            let output = search(
                args,
                (&self.resolver, Reach::Workspace),
                &self.artifacts,
                &Cancel::new(),
            );
            (output.source.head, output.footer)
        }
    }

    #[test]
    fn matches_are_sorted_and_ignored_files_are_not_searched() {
        let place = place(&[
            ("b.rs", b"fn beta() {}\n"),
            ("a/z.rs", b"// nothing\nfn alpha() {}\r\n"),
            (".github/ci.yml", b"run: fn\n"),
            (".git/config", b"fn\n"),
            ("target/x.rs", b"fn ignored() {}\n"),
            (".gitignore", b"target\n"),
            ("bin", b"\x7fELF\0\0fn\n"),
        ]);
        std::os::unix::fs::symlink("/etc", place.dir.path().join("etc")).unwrap();
        let (text, footer) = place.search(&args("fn"));
        assert_eq!(
            text,
            ".github/ci.yml:1: run: fn\na/z.rs:2: fn alpha() {}\nb.rs:1: fn beta() {}"
        );
        assert_eq!(footer, "[3 matches in 3 files; skipped: 1 binary]");
        let only_rs = SearchArgs {
            glob: Some("*.rs".into()),
            ignore_case: Some(true),
            ..args("FN A")
        };
        assert_eq!(place.search(&only_rs).0, "a/z.rs:2: fn alpha() {}");
        let literal = SearchArgs {
            literal: Some(true),
            path: Some("b.rs".into()),
            ..args("beta()")
        };
        assert_eq!(place.search(&literal).0, "b.rs:1: fn beta() {}");
        assert_eq!(
            place.search(&args("gamma")).1,
            "[no match in 4 files; skipped: 1 binary]"
        );
    }

    #[test]
    fn context_is_shown_once() {
        let place = place(&[("f", b"1\n2\nhit 3\n4\nhit 5\n6\n7\n8\n9\nhit 10\n")]);
        let (text, _) = place.search(&SearchArgs {
            context: Some(1),
            ..args("hit")
        });
        assert_eq!(
            text,
            "f-2- 2\nf:3: hit 3\nf-4- 4\nf:5: hit 5\nf-6- 6\n--\nf-9- 9\nf:10: hit 10"
        );
    }

    #[test]
    fn a_huge_line_shows_its_match_only() {
        let line = format!("{}needle{}", "x".repeat(800_000), "y".repeat(900_000));
        let place = place(&[("min.js", line.as_bytes())]);
        let (text, footer) = place.search(&args("needle"));
        assert!(text.len() < 2 * SEARCH_LINE_CHARS, "{}", text.len());
        assert!(
            text.starts_with("min.js:1: [799,900 characters cut]xxx") && text.contains("xneedley"),
            "{text}"
        );
        assert!(
            text.ends_with("y[899,794 characters cut]") || text.ends_with(" characters cut]"),
            "{text}"
        );
        assert_eq!(footer, "[1 match in 1 file]");
    }

    #[test]
    fn what_cannot_be_searched_says_why() {
        let place = place(&[("f", b"x")]);
        let says = |args: &SearchArgs| place.search(args).0;
        assert!(says(&args("(")).starts_with("the pattern is no regular expression"));
        assert!(says(&args("(a{1000}){1000}")).contains("too large"));
        assert!(
            says(&SearchArgs {
                path: Some("no".into()),
                ..args("x")
            })
            .contains("does not exist")
        );
        assert!(
            says(&SearchArgs {
                glob: Some("[".into()),
                ..args("x")
            })
            .contains("glob")
        );
    }
}
