//! A call's arguments, parsed once. What comes in is a name and a JSON text; what goes on is a
//! typed struct. A mistake is told so that the model can mend it: the missing key, the nearest
//! known key, the type that was wanted.

use serde::Deserialize;
use serde_json::Value;

use super::clean::for_terminal_line;
use crate::limits::{COMMAND_CHARS_MAX, COMMAND_TIMEOUT_S_MAX, EDITS_MAX, SEARCH_CONTEXT_MAX};

/// A call as the model made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

/// A call whose arguments are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub id: String,
    pub invocation: Invocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    Artifact(ArtifactArgs),
    Bash(BashArgs),
    Edit(EditArgs),
    Read(ReadArgs),
    Search(SearchArgs),
    Write(WriteArgs),
}

impl Invocation {
    pub fn tool(&self) -> &'static str {
        match self {
            Invocation::Artifact(_) => "artifact",
            Invocation::Bash(_) => "bash",
            Invocation::Edit(_) => "edit",
            Invocation::Read(_) => "read",
            Invocation::Search(_) => "search",
            Invocation::Write(_) => "write",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashArgs {
    pub command: String,
    pub timeout_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadArgs {
    pub path: String,
    pub start: Option<u64>,
    pub lines: Option<u64>,
    pub byte: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactArgs {
    pub id: String,
    pub start: Option<u64>,
    pub lines: Option<u64>,
    pub byte: Option<u64>,
    pub pattern: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteArgs {
    pub path: String,
    pub content: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchArgs {
    pub pattern: String,
    pub path: Option<String>,
    pub glob: Option<String>,
    pub literal: Option<bool>,
    pub ignore_case: Option<bool>,
    pub context: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditArgs {
    pub path: String,
    pub edits: Vec<Replacement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    pub old: String,
    pub new: String,
}

/// `edit` on the wire: several replacements, or one without the list around it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditWire {
    path: String,
    edits: Option<Vec<Replacement>>,
    old: Option<String>,
    new: Option<String>,
}

/// Why a call cannot run; written for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCall(pub String);

/// Each tool's keys, and which of them it needs.
const KEYS: &[(&str, &[&str], &[&str])] = &[
    (
        "artifact",
        &["id", "start", "lines", "byte", "pattern"],
        &["id"],
    ),
    ("bash", &["command", "timeout_s"], &["command"]),
    ("edit", &["path", "edits", "old", "new"], &["path"]),
    ("read", &["path", "start", "lines", "byte"], &["path"]),
    (
        "search",
        &[
            "pattern",
            "path",
            "glob",
            "literal",
            "ignore_case",
            "context",
        ],
        &["pattern"],
    ),
    ("write", &["path", "content"], &["path", "content"]),
];

pub fn parse(call: &ToolCall) -> Result<Parsed, BadCall> {
    let names: Vec<&str> = KEYS.iter().map(|(name, ..)| *name).collect();
    let Some((name, keys, required)) = KEYS.iter().find(|(name, ..)| *name == call.name) else {
        return Err(BadCall(format!(
            "there is no tool `{}`{} Tools: {}",
            clip(&call.name),
            meant(&call.name, &names),
            names.join(", ")
        )));
    };
    let value = object(name, &call.arguments)?;
    check_keys(name, &value, keys, required)?;
    check_types(name, &value)?;
    let invocation = match *name {
        "artifact" => Invocation::Artifact(typed(name, value)?),
        "bash" => Invocation::Bash(check_bash(typed(name, value)?)?),
        "edit" => Invocation::Edit(check_edit(typed(name, value)?)?),
        "read" => Invocation::Read(check_read(typed(name, value)?)?),
        "search" => Invocation::Search(check_search(typed(name, value)?)?),
        _ => Invocation::Write(typed(name, value)?),
    };
    Ok(Parsed {
        id: call.id.clone(),
        invocation,
    })
}

fn object(name: &str, arguments: &str) -> Result<Value, BadCall> {
    // Some models send nothing where there is nothing to say.
    let arguments = if arguments.trim().is_empty() {
        "{}"
    } else {
        arguments
    };
    match serde_json::from_str(arguments) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(BadCall(format!(
            "{name}: the arguments must be a JSON object"
        ))),
        Err(error) => Err(BadCall(format!(
            "{name}: the arguments are not valid JSON: {error}"
        ))),
    }
}

fn check_keys(name: &str, value: &Value, keys: &[&str], required: &[&str]) -> Result<(), BadCall> {
    let given = value.as_object().into_iter().flatten();
    for (key, _) in given {
        if !keys.contains(&key.as_str()) {
            return Err(BadCall(format!(
                "{name}: there is no argument `{}`{} Arguments: {}",
                clip(key),
                meant(key, keys),
                keys.join(", ")
            )));
        }
    }
    match required
        .iter()
        .find(|key| value.get(**key).is_none_or(Value::is_null))
    {
        Some(missing) => Err(BadCall(format!(
            "{name}: the argument `{missing}` is missing"
        ))),
        None => Ok(()),
    }
}

fn check_types(name: &str, value: &Value) -> Result<(), BadCall> {
    for (key, value) in value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, v)| !v.is_null())
    {
        let (wanted, right) = match key.as_str() {
            "start" | "lines" | "byte" | "timeout_s" | "context" => {
                ("a whole number", value.is_u64())
            }
            "literal" | "ignore_case" => ("true or false", value.is_boolean()),
            "edits" => ("a list", value.is_array()),
            _ => ("a string", value.is_string()),
        };
        if !right {
            let shown: String = value.to_string().chars().take(80).collect();
            return Err(BadCall(format!(
                "{name}: `{key}` must be {wanted}, not {shown}"
            )));
        }
    }
    Ok(())
}

fn typed<T: serde::de::DeserializeOwned>(name: &str, value: Value) -> Result<T, BadCall> {
    // With keys and types checked, what is left is inside a list.
    serde_json::from_value(value)
        .map_err(|error| BadCall(format!("{name}: {}", for_terminal_line(&error.to_string()))))
}

fn check_bash(args: BashArgs) -> Result<BashArgs, BadCall> {
    if args.command.contains('\0') {
        return Err(BadCall("bash: the command holds a NUL character".into()));
    }
    if args.command.trim().is_empty() {
        return Err(BadCall("bash: the command is empty".into()));
    }
    let chars = args.command.chars().count();
    if chars > COMMAND_CHARS_MAX {
        return Err(BadCall(format!(
            "bash: the command has {chars} characters, at most {COMMAND_CHARS_MAX} are taken; write a script file and run that"
        )));
    }
    match args.timeout_s {
        Some(s) if s == 0 || s > COMMAND_TIMEOUT_S_MAX => Err(BadCall(format!(
            "bash: timeout_s is {s}, it must be from 1 to {COMMAND_TIMEOUT_S_MAX}"
        ))),
        _ => Ok(args),
    }
}

fn check_edit(wire: EditWire) -> Result<EditArgs, BadCall> {
    let edits = match (wire.edits, wire.old, wire.new) {
        (Some(edits), None, None) => edits,
        (None, Some(old), Some(new)) => vec![Replacement { old, new }],
        (None, None, None) => return Err(BadCall("edit: the argument `edits` is missing".into())),
        (None, None, Some(_)) => return Err(BadCall("edit: the argument `old` is missing".into())),
        (None, Some(_), None) => return Err(BadCall("edit: the argument `new` is missing".into())),
        (Some(_), ..) => {
            return Err(BadCall(
                "edit: give either `edits` or one `old` and `new`, not both".into(),
            ));
        }
    };
    if edits.is_empty() || edits.len() > EDITS_MAX {
        return Err(BadCall(format!(
            "edit: {} replacements, give 1 to {EDITS_MAX}",
            edits.len()
        )));
    }
    Ok(EditArgs {
        path: wire.path,
        edits,
    })
}

/// Small models fill in every key: `byte` 0 beside a line says nothing.
fn check_read(mut args: ReadArgs) -> Result<ReadArgs, BadCall> {
    if args.byte == Some(0) && (args.start.is_some() || args.lines.is_some()) {
        args.byte = None;
    }
    if args.byte.is_some() && (args.start.is_some() || args.lines.is_some()) {
        return Err(BadCall(
            "read: give either `byte`, or `start` and `lines`, not both".into(),
        ));
    }
    Ok(args)
}

fn check_search(args: SearchArgs) -> Result<SearchArgs, BadCall> {
    if args.pattern.is_empty() {
        return Err(BadCall("search: the pattern is empty".into()));
    }
    match args.context {
        Some(n) if n > SEARCH_CONTEXT_MAX as u64 => Err(BadCall(format!(
            "search: context is {n}, at most {SEARCH_CONTEXT_MAX} lines are shown; read the file instead"
        ))),
        _ => Ok(args),
    }
}

/// Names are shown whole up to this many characters.
const NAME_CHARS_SHOWN: usize = 80;

fn clip(name: &str) -> String {
    for_terminal_line(name)
        .chars()
        .take(NAME_CHARS_SHOWN)
        .collect()
}

/// `; did you mean ...?` where a known word is near, else a full stop.
fn meant(given: &str, known: &[&str]) -> String {
    /// What models call these things when they do not look.
    const OTHER_NAMES: &[(&str, &str)] = &[
        ("cmd", "command"),
        ("script", "command"),
        ("code", "command"),
        ("timeout", "timeout_s"),
        ("file", "path"),
        ("file_path", "path"),
        ("filename", "path"),
        ("filepath", "path"),
        ("dir", "path"),
        ("directory", "path"),
        ("text", "content"),
        ("contents", "content"),
        ("old_string", "old"),
        ("old_str", "old"),
        ("new_string", "new"),
        ("new_str", "new"),
        ("offset", "start"),
        ("start_line", "start"),
        ("limit", "lines"),
        ("query", "pattern"),
        ("regex", "pattern"),
        ("case_insensitive", "ignore_case"),
        ("shell", "bash"),
        ("sh", "bash"),
        ("run", "bash"),
        ("grep", "search"),
        ("cat", "read"),
        ("read_file", "read"),
        ("write_file", "write"),
        ("replace", "edit"),
        ("str_replace", "edit"),
    ];
    let other = OTHER_NAMES
        .iter()
        .find(|(name, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, known)| *known);
    let near = || {
        crate::store::nearest(given, known.iter().copied())
            .into_iter()
            .next()
    };
    let other = other.filter(|word| known.contains(word)).map(str::to_owned);
    other
        .or_else(near)
        .map_or(".".to_owned(), |word| format!("; did you mean `{word}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::spec::{Profile, specs};

    fn call(name: &str, arguments: &str) -> Result<Invocation, String> {
        let call = ToolCall {
            id: "c".into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        parse(&call).map(|p| p.invocation).map_err(|e| e.0)
    }

    #[test]
    fn good_calls() {
        assert_eq!(
            call("bash", r#"{"command":"ls","timeout_s":5}"#),
            Ok(Invocation::Bash(BashArgs {
                command: "ls".into(),
                timeout_s: Some(5)
            }))
        );
        assert_eq!(
            call("bash", r#"{"command":"ls","timeout_s":null}"#),
            Ok(Invocation::Bash(BashArgs {
                command: "ls".into(),
                timeout_s: None
            }))
        );
        let one = Replacement {
            old: "a".into(),
            new: "b".into(),
        };
        let edit = Ok(Invocation::Edit(EditArgs {
            path: "f".into(),
            edits: vec![one],
        }));
        assert_eq!(call("edit", r#"{"path":"f","old":"a","new":"b"}"#), edit);
        assert_eq!(
            call("edit", r#"{"path":"f","edits":[{"old":"a","new":"b"}]}"#),
            edit
        );
    }

    #[test]
    fn mistakes_are_told_so_that_they_can_be_mended() {
        let cases = [
            (
                "bsh",
                "{}",
                "there is no tool `bsh`; did you mean `bash`? Tools: artifact, bash, edit, read, search, write",
            ),
            (
                "launch_rocket",
                "{}",
                "there is no tool `launch_rocket`. Tools: artifact, bash, edit, read, search, write",
            ),
            (
                "bash",
                r#"{"comand":"ls"}"#,
                "bash: there is no argument `comand`; did you mean `command`? Arguments: command, timeout_s",
            ),
            (
                "bash",
                r#"{"cmd":"ls"}"#,
                "bash: there is no argument `cmd`; did you mean `command`? Arguments: command, timeout_s",
            ),
            (
                "read",
                r#"{"file_path":"a"}"#,
                "read: there is no argument `file_path`; did you mean `path`? Arguments: path, start, lines, byte",
            ),
            ("bash", "", "bash: the argument `command` is missing"),
            (
                "bash",
                r#"{"command":null}"#,
                "bash: the argument `command` is missing",
            ),
            ("bash", "[1]", "bash: the arguments must be a JSON object"),
            (
                "bash",
                r#"{"command":"ls""#,
                "bash: the arguments are not valid JSON: EOF while parsing an object at line 1 column 15",
            ),
            ("bash", r#"{"command":"  "}"#, "bash: the command is empty"),
            (
                "bash",
                r#"{"command":"a\u0000"}"#,
                "bash: the command holds a NUL character",
            ),
            (
                "bash",
                r#"{"command":"ls","timeout_s":99999}"#,
                "bash: timeout_s is 99999, it must be from 1 to 1800",
            ),
            (
                "read",
                r#"{"path":"a","start":"ten"}"#,
                "read: `start` must be a whole number, not \"ten\"",
            ),
            (
                "bash",
                r#"{"command":["ls"]}"#,
                "bash: `command` must be a string, not [\"ls\"]",
            ),
            (
                "edit",
                r#"{"path":"f","edits":[{"old":"a","nw":"b"}]}"#,
                "edit: unknown field `nw`, expected `old` or `new`",
            ),
            (
                "edit",
                r#"{"path":"f","old":"a"}"#,
                "edit: the argument `new` is missing",
            ),
            (
                "edit",
                r#"{"path":"f"}"#,
                "edit: the argument `edits` is missing",
            ),
            (
                "edit",
                r#"{"path":"f","edits":[]}"#,
                "edit: 0 replacements, give 1 to 50",
            ),
            (
                "search",
                r#"{"pattern":""}"#,
                "search: the pattern is empty",
            ),
        ];
        assert_eq!(
            call("read", r#"{"path":"a","start":1,"byte":1}"#).unwrap_err(),
            "read: give either `byte`, or `start` and `lines`, not both"
        );
        for (name, arguments, right) in cases {
            assert_eq!(
                call(name, arguments).unwrap_err(),
                right,
                "{name} {arguments}"
            );
        }
    }

    /// What a spec offers and what the parser takes are the same keys.
    #[test]
    fn specs_and_keys_agree() {
        for profile in [Profile::Full, Profile::Small] {
            for spec in specs(profile) {
                let (_, keys, required) =
                    KEYS.iter().find(|(name, ..)| *name == spec.name).unwrap();
                for key in spec.accepted()["properties"].as_object().unwrap().keys() {
                    assert!(keys.contains(&key.as_str()), "{}: {key}", spec.name);
                }
                for key in *required {
                    let wanted = spec.parameters["required"].as_array().unwrap();
                    assert!(wanted.iter().any(|k| k == key), "{}: {key}", spec.name);
                }
            }
        }
    }
}
