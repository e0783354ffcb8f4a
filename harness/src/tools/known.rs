//! The commands that only look: they read what lies in the workspace, and print it.
//!
//! A command is here with the options that are known to be harmless, never without those that are
//! known to be dangerous: an option that a later version adds asks. Patterns that the shell expands
//! are taken only where a file name that looks like an option does no harm.

use super::paths::{Place, Resolver};
use super::shell::{Simple, Word};

/// Why a command is not known to be harmless; fits after "because it".
pub type Why = String;

/// `Ok` when `command` only reads, and only in the workspace.
pub fn only_reads(command: &Simple, resolver: &Resolver) -> Result<(), Why> {
    let name = command.words[0].text.as_str();
    let args = &command.words[1..];
    let Some(known) = KNOWN.iter().find(|k| k.name == name) else {
        return Err(format!("runs `{name}`"));
    };
    if let Some(pattern) = args.iter().find(|w| w.pattern)
        && !known.patterns
    {
        return Err(format!(
            "gives `{name}` the file-name pattern `{}`",
            pattern.text
        ));
    }
    match known.options {
        Options::Any => {}
        Options::Short { letters, long } => short_and_long(name, args, letters, long)?,
        Options::Find => find(args)?,
        Options::GitLog => git_log(args)?,
    }
    if known.paths {
        args.iter().try_for_each(|word| inside(word, resolver))?;
    }
    Ok(())
}

struct Known {
    name: &'static str,
    options: Options,
    /// Arguments may be patterns: no option of it can harm.
    patterns: bool,
    /// Arguments name files.
    paths: bool,
}

enum Options {
    Any,
    /// These letters, also combined and with numbers, and these long options (with any value).
    Short {
        letters: &'static str,
        long: &'static [&'static str],
    },
    Find,
    GitLog,
}

const fn known(name: &'static str, options: Options, patterns: bool, paths: bool) -> Known {
    Known {
        name,
        options,
        patterns,
        paths,
    }
}

const GREP: Options = Options::Short {
    letters: "EFGPiIvwxceablLnHhorsqzZABCTm",
    long: &[
        "after-context",
        "basic-regexp",
        "before-context",
        "color",
        "colour",
        "context",
        "count",
        "exclude",
        "exclude-dir",
        "extended-regexp",
        "files-with-matches",
        "files-without-match",
        "fixed-strings",
        "ignore-case",
        "include",
        "invert-match",
        "line-number",
        "max-count",
        "no-filename",
        "no-messages",
        "only-matching",
        "perl-regexp",
        "quiet",
        "recursive",
        "with-filename",
        "word-regexp",
        "line-regexp",
    ],
};

/// Sorted by name. Left out on purpose: `sort -o`, `uniq IN OUT`, `sed`, `awk`, `tar`, `xargs`,
/// `env`, `rg --pre`, `git status` and `git diff` (they run filters a repository configures).
const KNOWN: &[Known] = &[
    known("basename", Options::Any, false, false),
    known(
        "cat",
        Options::Short {
            letters: "AbeEnstTuv",
            long: &["number", "show-all"],
        },
        true,
        true,
    ),
    known(
        "cut",
        Options::Short {
            letters: "bcdfsz",
            long: &["delimiter", "fields"],
        },
        true,
        true,
    ),
    known("dirname", Options::Any, false, false),
    known("echo", Options::Any, true, false),
    known("egrep", GREP, false, true),
    known("false", Options::Any, true, false),
    known("fgrep", GREP, false, true),
    known(
        "file",
        Options::Short {
            letters: "bi",
            long: &["brief", "mime"],
        },
        false,
        true,
    ),
    known("find", Options::Find, false, true),
    known("git", Options::GitLog, false, true),
    known("grep", GREP, false, true),
    known(
        "head",
        Options::Short {
            letters: "cnqvz",
            long: &["bytes", "lines"],
        },
        true,
        true,
    ),
    known(
        "ls",
        Options::Short {
            letters: "aAbBcCdfFgGhHiklmnNopqQrRsStTuUvwxXZ1",
            long: &[
                "all",
                "almost-all",
                "color",
                "directory",
                "human-readable",
                "recursive",
                "size",
                "sort",
                "time-style",
            ],
        },
        true,
        true,
    ),
    known(
        "nl",
        Options::Short {
            letters: "bw",
            long: &["body-numbering"],
        },
        true,
        true,
    ),
    known(
        "pwd",
        Options::Short {
            letters: "LP",
            long: &[],
        },
        false,
        false,
    ),
    known(
        "stat",
        Options::Short {
            letters: "ct",
            long: &["format", "terse"],
        },
        false,
        true,
    ),
    known(
        "tail",
        Options::Short {
            letters: "cnqvz",
            long: &["bytes", "lines"],
        },
        true,
        true,
    ),
    known("true", Options::Any, true, false),
    known("uname", Options::Any, false, false),
    known(
        "wc",
        Options::Short {
            letters: "clLmw",
            long: &["bytes", "chars", "lines", "words"],
        },
        true,
        true,
    ),
    known("whoami", Options::Any, false, false),
];

fn short_and_long(name: &str, args: &[Word], letters: &str, long: &[&str]) -> Result<(), Why> {
    for word in args {
        let text = word.text.as_str();
        if text == "--" {
            break;
        }
        let ok = if let Some(option) = text.strip_prefix("--") {
            long.contains(&option.split('=').next().unwrap_or(option))
        } else if let Some(option) = text.strip_prefix('-') {
            option
                .chars()
                .all(|c| letters.contains(c) || c.is_ascii_digit() || "+,-:".contains(c))
        } else {
            true
        };
        if !ok {
            return Err(format!("gives `{name}` the option `{text}`"));
        }
    }
    Ok(())
}

/// Tests and prints; no action that runs, writes or deletes, and no following of links.
fn find(args: &[Word]) -> Result<(), Why> {
    const TESTS: &[&str] = &[
        "-a",
        "-amin",
        "-and",
        "-atime",
        "-cmin",
        "-ctime",
        "-depth",
        "-empty",
        "-executable",
        "-false",
        "-group",
        "-iname",
        "-ipath",
        "-iregex",
        "-links",
        "-ls",
        "-maxdepth",
        "-mindepth",
        "-mmin",
        "-mount",
        "-mtime",
        "-name",
        "-newer",
        "-not",
        "-o",
        "-or",
        "-path",
        "-perm",
        "-print",
        "-print0",
        "-printf",
        "-prune",
        "-quit",
        "-readable",
        "-regex",
        "-regextype",
        "-size",
        "-true",
        "-type",
        "-user",
        "-writable",
        "-xdev",
    ];
    for word in args {
        let text = word.text.as_str();
        let option = text.starts_with('-') && !text[1..].starts_with(|c: char| c.is_ascii_digit());
        if option && text != "-" && !TESTS.contains(&text) {
            return Err(format!("gives `find` the option `{text}`"));
        }
    }
    Ok(())
}

/// `git log` with options that neither write nor run anything. Signatures are not shown, since
/// checking them runs a program that the repository names; commands run with that setting off.
fn git_log(args: &[Word]) -> Result<(), Why> {
    const PLAIN: &[&str] = &[
        "--abbrev-commit",
        "--all",
        "--decorate",
        "--first-parent",
        "--follow",
        "--graph",
        "--merges",
        "--name-only",
        "--name-status",
        "--no-decorate",
        "--no-merges",
        "--oneline",
        "--reverse",
        "--shortstat",
        "--stat",
        "-i",
        "-n",
    ];
    const VALUED: &[&str] = &[
        "--abbrev",
        "--after",
        "--author",
        "--before",
        "--color",
        "--committer",
        "--date",
        "--decorate",
        "--format",
        "--grep",
        "--max-count",
        "--pretty",
        "--since",
        "--skip",
        "--until",
    ];
    if args.first().is_none_or(|w| w.text != "log" || w.quoted) {
        let what = args.first().map_or("git", |w| w.text.as_str());
        return Err(format!("runs `git {what}`"));
    }
    for word in &args[1..] {
        let text = word.text.as_str();
        let (option, value) = text
            .split_once('=')
            .map_or((text, None), |(o, v)| (o, Some(v)));
        let number = text
            .strip_prefix('-')
            .is_some_and(|n| n.trim_start_matches('n').parse::<u32>().is_ok());
        let ok = match value {
            _ if text == "--" || number || !text.starts_with('-') => true,
            None => PLAIN.contains(&option),
            Some(value) => VALUED.contains(&option) && !value.contains("%G"),
        };
        if !ok {
            return Err(format!("gives `git log` the option `{text}`"));
        }
    }
    Ok(())
}

/// A word that might name a file must not lead out of the workspace. It need not exist.
fn inside(word: &Word, resolver: &Resolver) -> Result<(), Why> {
    let text = word.text.as_str();
    let value = match (text.starts_with('-'), text.find('/'), text.find('=')) {
        (false, ..) => text,
        (true, _, Some(equals)) => &text[equals + 1..],
        (true, Some(slash), None) => &text[slash..],
        (true, None, None) => return Ok(()),
    };
    let out = || format!("names `{value}`, which is not in the workspace");
    if value.is_empty() {
        return Ok(());
    }
    if word.pattern {
        // What the pattern will match is not known: no way up, and nothing absolute.
        let climbs = value.starts_with('/') || value.split('/').any(|part| part == "..");
        return if climbs { Err(out()) } else { Ok(()) };
    }
    match resolver.resolve(value) {
        Ok(resolved) if matches!(resolved.place, Place::Workspace | Place::GitInternals) => Ok(()),
        Ok(_) => Err(out()),
        // A search pattern with a line break in it is no file name, and leads nowhere.
        Err(super::paths::PathError::BadCharacter) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::shell::parse;

    #[test]
    fn only_what_reads_the_workspace_is_known() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        let resolver = Resolver::new(dir.path(), None, &[], None).unwrap();
        let verdict = |line: &str| {
            let commands = parse(line).unwrap();
            commands.iter().try_for_each(|c| only_reads(c, &resolver))
        };
        for line in [
            "ls",
            "ls -la",
            "ls src/*.rs",
            "cat a b",
            "cat -n *.txt",
            "grep -rn 'a && b' src",
            "grep -r --include='*.rs' foo .",
            "grep -c5 x a",
            "find . -name '*.rs' -type f",
            "find src -maxdepth 2 -size +5k -mtime -3",
            "find . ! -name x",
            "git log",
            "git log --oneline -5",
            "git log -n 3 --format='%h %s' -- src",
            "head -n 20 a",
            "tail -5 a",
            "wc -l *.rs",
            "echo -n x > /dev/null",
            "pwd",
            "echo /etc/passwd ../x",
        ] {
            assert_eq!(verdict(line), Ok(()), "{line}");
        }
        for line in [
            "lsof",
            "rm d",
            "cat /etc/passwd",
            "cat ../x",
            "cat out/passwd",
            "ls out/",
            "cat ../*",
            "cat /etc/*",
            "find . -delete",
            "find . -exec rm '{}' +",
            "find -L . -name x",
            "find . -fprint x",
            "find / -name x",
            "find *",
            "grep -f/etc/shadow x",
            "grep -R x .",
            "grep x /etc/passwd",
            "grep --file=../x y",
            "tail -f a",
            "git status",
            "git diff",
            "git log -p",
            "git log --output=f",
            "git -c a=b log",
            "git",
            "git log --format=%G?",
            "git log --ext-diff",
            "sort -o a b",
            "sed -i s/a/b/ f",
            "env rm d",
            "command rm d",
            "eval 'rm d'",
            "sh -c 'rm d'",
            "xargs rm",
            "tar xf a",
            "awk 1 f",
            "ls --foo",
            "/bin/ls",
            "./ls",
        ] {
            assert!(verdict(line).is_err(), "{line}");
        }
        assert_eq!(verdict("lsof").unwrap_err(), "runs `lsof`");
    }
}
