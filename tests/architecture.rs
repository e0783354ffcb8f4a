//! The rules of ARCHITECTURE.md that a machine can check: who may use whom, where `unsafe` and the
//! environment may be touched, how long a file may be.
//!
//! A rule is a function from sources to complaints. Each is run twice: over the repository, where it
//! must have something to look at and nothing to complain of, and over a made-up source that breaks
//! it, since a check that cannot fail is worth nothing.

use std::path::Path;

/// The rooms, and which other rooms each may use.
const ARROWS: [(&str, &[&str]); 4] = [
    ("kernels", &[]),
    ("models", &["kernels"]),
    ("engine", &["models", "kernels"]),
    ("harness", &["engine", "models"]),
];

/// Where `unsafe` may be: arithmetic, the place that maps weights, what runs between fork and exec.
const UNSAFE_IN: [&str; 3] = [
    "kernels/src/",
    "models/src/gguf/map.rs",
    "harness/src/tools/os/",
];

/// The only reader of the process's surroundings; everything else is given them.
const ENVIRONMENT_IN: [&str; 1] = ["harness/src/main.rs"];

/// What reads or changes the surroundings of the process. `env!` is of the compiler, and
/// `env::split_paths` and `env::consts` read nothing.
const ENVIRONMENT: [&str; 13] = [
    "args",
    "args_os",
    "current_dir",
    "current_exe",
    "home_dir",
    "remove_var",
    "set_current_dir",
    "set_var",
    "temp_dir",
    "var",
    "var_os",
    "vars",
    "vars_os",
];

/// Lines of a file before its tests, and the files that may have more, with the reason.
const LINES_MAX: usize = 600;
const LONGER: [(&str, &str); 0] = [];

/// A source file of the repository.
struct Source {
    /// From the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The crate whose `src` the file is in.
    fn room(&self) -> Option<&str> {
        let (room, rest) = self.path.split_once('/')?;
        rest.starts_with("src/").then_some(room)
    }

    /// Test code as a whole: `tests.rs`, a folder `tests`, or a file that only tests include.
    fn is_test(&self) -> bool {
        self.path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
            || self.path.ends_with("tests.rs")
    }

    /// The lines before the tests at the end of a file.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self
            .text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"));
        lines.enumerate().map(|(i, line)| (i + 1, line))
    }

    /// As [`Source::product`], without comments and the content of strings.
    fn code(&self) -> impl Iterator<Item = (usize, String)> {
        self.product().map(|(number, line)| (number, code_of(line)))
    }

    fn complain(&self, line: usize, why: &str) -> String {
        format!("{}:{line}: {why}", self.path)
    }
}

/// A line without its comment and its strings. Strings over several lines are not followed: what is
/// in them reads as code, which can only make a rule too strict.
fn code_of(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => {
                chars.next();
            }
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            c if !in_string => out.push(c),
            _ => {}
        }
    }
    out
}

/// Whether `word` stands in `code`: a whole word, or the first of a path.
fn mentions(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(|c| part_of_word(c) || c == ':' || c == '.')
            && (word.ends_with(':') || !after.is_some_and(part_of_word))
    })
}

/// Every path that `use` statements name, groups opened: `use a::{b, c::d};` gives a::b and a::c::d.
fn used_paths(source: &Source) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in source.code() {
        let line = line.trim();
        let starts = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        if open.is_none() {
            let rest = starts.iter().find_map(|start| line.strip_prefix(start));
            open = rest.map(|rest| (number, rest.to_owned()));
        } else if let Some((_, text)) = &mut open {
            text.push_str(line);
        }
        if let Some((first, text)) = open.take_if(|(_, text)| text.contains(';')) {
            let tree = text.split(';').next().unwrap_or_default().to_owned();
            paths.extend(open_groups(&tree).into_iter().map(|path| (first, path)));
        }
    }
    paths
}

fn open_groups(tree: &str) -> Vec<String> {
    let Some((stem, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut depth = 0;
    let items = inner.split(|c| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    items
        .filter(|item| !item.trim().is_empty())
        .flat_map(open_groups)
        .map(|item| format!("{}{item}", stem.trim()))
        .collect()
}

// The rules.

/// Arrows in the code: a crate names only those that it may use.
fn arrows_in_code(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let Some(&(room, allowed)) = ARROWS.iter().find(|(room, _)| source.room() == Some(room))
        else {
            continue;
        };
        let others = ARROWS.iter().map(|(other, _)| *other);
        for other in others.filter(|other| *other != room && !allowed.contains(other)) {
            let why = format!("{room} must not use {other}");
            for (number, code) in source
                .code()
                .filter(|(_, code)| mentions(code, &format!("{other}::")))
            {
                // A module of the crate's own may have the name: `crate::engine::`, `self::engine`.
                if !code.contains(&format!("self::{other}")) {
                    complaints.push(source.complain(number, &why));
                }
            }
        }
    }
    complaints
}

/// Arrows in the manifests, development dependencies included.
fn arrows_in_manifests(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let room = source.path.trim_end_matches("/Cargo.toml");
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
            continue;
        };
        for (number, line) in source.product() {
            let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
            let named = key.strip_prefix("ostler-").unwrap_or(key);
            let is_room = ARROWS.iter().any(|(other, _)| *other == named);
            if is_room && !allowed.contains(&named) {
                complaints.push(source.complain(number, &format!("{room} must not use {named}")));
            }
        }
    }
    complaints
}

/// Server and agent are peers: neither imports the other.
fn peers_apart(sources: &[Source]) -> Vec<String> {
    let peers = [
        ("harness/src/server/", "agent"),
        ("harness/src/agent/", "server"),
    ];
    let mut complaints = Vec::new();
    for source in sources {
        let Some((_, other)) = peers
            .iter()
            .find(|(folder, _)| source.path.starts_with(folder))
        else {
            continue;
        };
        let why = format!("server and agent do not import each other, and this names {other}");
        let full = [
            format!("crate::{other}"),
            format!("super::{other}"),
            format!("harness::{other}"),
        ];
        let ends = |path: &str, full: &str| {
            path.strip_prefix(full)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let used = used_paths(source).into_iter();
        let in_use = used.filter(|(_, path)| full.iter().any(|full| ends(path, full)));
        complaints.extend(in_use.map(|(number, _)| source.complain(number, &why)));
        let inline = source.code().filter(|(_, code)| {
            !code.trim_start().starts_with("use ")
                && full.iter().any(|full| code.contains(&format!("{full}::")))
        });
        complaints.extend(inline.map(|(number, _)| source.complain(number, &why)));
    }
    complaints
}

/// Only `main.rs` reads environment and arguments. Tests may.
fn environment_in_one_place(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let exempt = ENVIRONMENT_IN.contains(&source.path.as_str()) || source.is_test();
        if exempt || source.room().is_none() {
            continue;
        }
        for (number, code) in source.code() {
            let read = ENVIRONMENT.iter().find(|name| {
                let call = format!("env::{name}");
                code.match_indices(&call).any(|(at, _)| {
                    let after = code[at + call.len()..].chars().next();
                    !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
                })
            });
            if let Some(name) = read {
                let why = format!("only main.rs may call env::{name}; pass the value in");
                complaints.push(source.complain(number, &why));
            }
        }
    }
    complaints
}

/// `unsafe` is where it may be, and every crate says so to the compiler.
fn unsafe_in_its_places(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        if UNSAFE_IN.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (i, line) in source.text.lines().enumerate() {
            let code = code_of(line);
            if mentions(&code, "unsafe") || code.contains("allow(unsafe_code)") {
                complaints.push(source.complain(i + 1, "unsafe code is not allowed here"));
            }
        }
        let is_root = source.path.ends_with("src/lib.rs") && source.room().is_some();
        let says = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"];
        if is_root && !says.iter().any(|attribute| source.text.contains(attribute)) {
            complaints.push(source.complain(1, "must forbid or deny unsafe code"));
        }
    }
    complaints
}

/// A file holds one idea, and opens with what it is.
fn files_are_short_and_introduced(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let lines = source.product().count();
        let longer = LONGER.iter().any(|(path, _)| *path == source.path);
        if lines > LINES_MAX && !longer && !source.is_test() {
            let why =
                format!("{lines} lines before its tests, at most {LINES_MAX}: split at the idea");
            complaints.push(source.complain(lines, &why));
        }
        let attribute = |line: &&str| line.starts_with("#![") || line.trim().is_empty();
        let first = source
            .text
            .lines()
            .find(|line| !attribute(line))
            .unwrap_or_default();
        if !first.starts_with("//!") {
            complaints.push(source.complain(1, "must open with //! and what the file is"));
        }
    }
    complaints
}

/// Nothing is left for later, and no merge half-way: a module that is not wired yet compiles with
/// conflict markers in it, and one such file did reach the main branch.
fn nothing_unfinished(sources: &[Source]) -> Vec<String> {
    let stubs = ["todo!", "unimplemented!", "dbg!"];
    let mut complaints = Vec::new();
    for source in sources {
        for (number, code) in source.code() {
            if let Some(stub) = stubs.iter().find(|stub| code.contains(**stub)) {
                complaints.push(source.complain(number, &format!("{stub} must not stay")));
            }
        }
        let marker = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
        if let Some(i) = source.text.lines().position(marker) {
            complaints.push(source.complain(i + 1, "a merge conflict was not resolved"));
        }
    }
    complaints
}

/// Every crate has its limits in one file.
fn limits_are_named(sources: &[Source]) -> Vec<String> {
    let has = |path: String| sources.iter().any(|source| source.path == path);
    let rooms = ARROWS
        .iter()
        .map(|(room, _)| format!("{room}/src/limits.rs"));
    rooms
        .filter(|path| !has(path.clone()))
        .map(|path| format!("{path} is missing"))
        .collect()
}

// What the rules look at.

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Rust sources of all crates and of the root.
fn repository() -> Vec<Source> {
    let folders = ["kernels", "models", "engine", "harness", "tests", "benches"];
    let mut sources = Vec::new();
    for folder in folders {
        collect(&root().join(folder), &mut sources);
    }
    for (room, _) in ARROWS {
        let count = sources
            .iter()
            .filter(|source| source.room() == Some(room))
            .count();
        assert!(count >= 5, "{count} sources of {room}");
    }
    sources
}

fn collect(folder: &Path, sources: &mut Vec<Source>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/");
            sources.push(Source {
                path: name,
                text: std::fs::read_to_string(&path).unwrap(),
            });
        }
    }
}

fn manifests() -> Vec<Source> {
    let read = |(room, _): &(&str, &[&str])| {
        let path = format!("{room}/Cargo.toml");
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        assert!(text.contains("[dependencies]"), "{path}");
        Source { path, text }
    };
    ARROWS.iter().map(read).collect()
}

/// The rule finds fault with each made-up source, and not with the repository.
fn hold(rule: fn(&[Source]) -> Vec<String>, repository: &[Source], broken: &[(&str, &str)]) {
    for (path, text) in broken {
        let complaints = rule(&[Source::new(path, text)]);
        assert!(!complaints.is_empty(), "no complaint about {path}: {text}");
    }
    let complaints = rule(repository);
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn arrows_point_one_way() {
    let broken = [
        ("kernels/src/a.rs", "use models::Config;"),
        (
            "kernels/src/a.rs",
            "fn f() { let x = engine::Plan::new(); }",
        ),
        ("models/src/deep/a.rs", "pub use harness::Error;"),
        ("models/src/a.rs", "use engine;\nengine::f()"),
        ("engine/src/a.rs", "use harness::tools::Call;"),
        ("harness/src/a.rs", "let kv = kernels::KvType::F16;"),
    ];
    hold(arrows_in_code, &repository(), &broken);
    let fine = Source::new(
        "kernels/src/a.rs",
        "// see models::Config\nlet a = self.models;\n\"engine::x\"",
    );
    assert!(arrows_in_code(&[fine]).is_empty());
}

#[test]
fn manifests_have_the_same_arrows() {
    let broken = [
        (
            "kernels/Cargo.toml",
            "[dependencies]\nmodels.workspace = true",
        ),
        (
            "models/Cargo.toml",
            "[dev-dependencies]\nengine = { path = \"../engine\" }",
        ),
        (
            "engine/Cargo.toml",
            "[dependencies]\nharness.workspace = true",
        ),
        (
            "harness/Cargo.toml",
            "[dependencies]\nkernels = { workspace = true }",
        ),
        (
            "harness/Cargo.toml",
            "[dependencies]\nostler-kernels = \"0.1\"",
        ),
    ];
    hold(arrows_in_manifests, &manifests(), &broken);
    let allowed = Source::new(
        "models/Cargo.toml",
        "[dependencies]\nkernels.workspace = true",
    );
    assert!(arrows_in_manifests(&[allowed]).is_empty());
}

#[test]
fn server_and_agent_do_not_know_each_other() {
    let broken = [
        ("harness/src/server/a.rs", "use crate::agent::Run;"),
        ("harness/src/server/a.rs", "use crate::{chat, agent};"),
        (
            "harness/src/server/openai/a.rs",
            "use crate::{\n    chat::Message,\n    agent::{self, Run},\n};",
        ),
        ("harness/src/agent/a.rs", "fn f(x: crate::server::Wire) {}"),
        ("harness/src/agent/a.rs", "pub(crate) use super::server;"),
    ];
    let sources = repository();
    for folder in ["harness/src/server/", "harness/src/agent/"] {
        assert!(
            sources.iter().any(|source| source.path.starts_with(folder)),
            "{folder}"
        );
    }
    hold(peers_apart, &sources, &broken);
    let fine = Source::new(
        "harness/src/server/a.rs",
        "use crate::agents;\nlet agent = user_agent;",
    );
    assert!(peers_apart(&[fine]).is_empty());
}

#[test]
fn only_main_reads_the_environment() {
    let broken = [
        ("engine/src/a.rs", "let home = std::env::var(\"HOME\");"),
        ("harness/src/cli/a.rs", "for arg in env::args_os() {}"),
        ("harness/src/tools/a.rs", "let dir = std::env::temp_dir();"),
        ("models/src/a.rs", "std::env::set_var(\"A\", \"b\")"),
    ];
    let sources = repository();
    let main = sources
        .iter()
        .find(|source| source.path == ENVIRONMENT_IN[0])
        .expect("main.rs");
    assert!(
        main.text.contains("env::args_os"),
        "main.rs reads the arguments"
    );
    hold(environment_in_one_place, &sources, &broken);
    let fine = "let arch = std::env::consts::ARCH;\n#[cfg(test)]\nlet dir = std::env::temp_dir();";
    assert!(environment_in_one_place(&[Source::new("engine/src/a.rs", fine)]).is_empty());
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let broken = [
        ("engine/src/a.rs", "let x = unsafe { *p };"),
        ("engine/src/a.rs", "unsafe impl Send for X {}"),
        (
            "models/src/gguf/mod.rs",
            "#[cfg(test)]\nmod t { unsafe fn f() {} }",
        ),
        ("harness/src/tools/bash.rs", "#![allow(unsafe_code)]"),
        ("engine/src/lib.rs", "//! Without the attribute."),
    ];
    let sources = repository();
    for place in UNSAFE_IN {
        let used = |source: &Source| {
            source.path.starts_with(place)
                && source
                    .text
                    .lines()
                    .any(|line| mentions(&code_of(line), "unsafe"))
        };
        assert!(
            sources.iter().any(used),
            "{place} is on the list and has no unsafe code"
        );
    }
    hold(unsafe_in_its_places, &sources, &broken);
}

#[test]
fn files_hold_one_idea_and_say_which() {
    let long = format!("//! Long.\n{}", "let x = 1;\n".repeat(LINES_MAX));
    let broken = [
        ("engine/src/a.rs", long.as_str()),
        ("engine/src/b.rs", "use std::fmt;"),
    ];
    let sources = repository();
    hold(files_are_short_and_introduced, &sources, &broken);
    for (path, _) in LONGER {
        let still = |source: &Source| source.path == path && source.product().count() > LINES_MAX;
        assert!(
            sources.iter().any(still),
            "{path} no longer needs its place on the list"
        );
    }
    let tests_apart = format!(
        "//! Short.\n#[cfg(test)]\n{}",
        "let x = 1;\n".repeat(LINES_MAX)
    );
    assert!(
        files_are_short_and_introduced(&[Source::new("engine/src/a.rs", &tests_apart)]).is_empty()
    );
}

#[test]
fn nothing_is_left_for_later() {
    let broken = [
        ("engine/src/a.rs", "fn f() { todo!() }"),
        ("models/src/a.rs", "dbg!(x);"),
    ];
    hold(nothing_unfinished, &repository(), &broken);
}

#[test]
fn each_crate_names_its_limits() {
    hold(
        limits_are_named,
        &repository(),
        &[("kernels/src/limits.rs", "")],
    );
}

#[test]
fn the_root_package_has_no_sources() {
    assert!(!root().join("src").exists());
    assert!(root().join("tests").is_dir());
}
