//! What the model is told about each tool. Two profiles: the full one, and one with fewer words
//! for small windows. Sorted by name, keys in a fixed order, nothing volatile: these bytes are
//! part of the cached prefix.

use serde_json::{Map, Value, json};

use crate::limits::{
    COMMAND_TIMEOUT_S, COMMAND_TIMEOUT_S_MAX, SEARCH_CONTEXT_MAX, WINDOW_TOKENS_SMALL,
};

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    pub name: &'static str,
    pub description: String,
    /// JSON Schema of the arguments: an object, closed, with its required keys named.
    pub parameters: Value,
    /// Properties that are accepted and not shown: a marker names them where they are of use. Small
    /// models fill in every key they are shown, and go astray with it.
    pub rare: Map<String, Value>,
}

impl ToolSpec {
    /// Everything a call may hold: what a grammar allows.
    pub fn accepted(&self) -> Value {
        let mut accepted = self.parameters.clone();
        if let Some(Value::Object(properties)) = accepted.get_mut("properties") {
            properties.extend(self.rare.clone());
        }
        accepted
    }

    /// The form that chat templates and the HTTP API use.
    pub fn to_function(&self) -> Value {
        json!({
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Full,
    Small,
}

impl Profile {
    pub fn for_window(window_tokens: usize) -> Profile {
        if window_tokens <= WINDOW_TOKENS_SMALL {
            Profile::Small
        } else {
            Profile::Full
        }
    }
}

/// The built-in tools, sorted by name.
pub fn specs(profile: Profile) -> Vec<ToolSpec> {
    let mut specs = match profile {
        Profile::Full => full(),
        Profile::Small => small(),
    };
    specs.sort_by_key(|spec| spec.name);
    specs
}

fn spec(name: &'static str, description: String, required: &[&str], properties: Value) -> ToolSpec {
    let parameters = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    ToolSpec {
        name,
        description,
        parameters,
        rare: rare(name),
    }
}

/// What `name` takes besides what it shows, in both profiles.
fn rare(name: &str) -> Map<String, Value> {
    let from_zero = || json!({ "type": "integer", "minimum": 0 });
    let properties = match name {
        "artifact" | "read" => json!({ "byte": from_zero() }),
        "bash" => json!({
            "timeout_s": { "type": "integer", "minimum": 1, "maximum": COMMAND_TIMEOUT_S_MAX },
        }),
        "search" => json!({
            "literal": { "type": "boolean" },
            "ignore_case": { "type": "boolean" },
            "context": { "type": "integer", "minimum": 0, "maximum": SEARCH_CONTEXT_MAX },
        }),
        _ => json!({}),
    };
    match properties {
        Value::Object(properties) => properties,
        _ => Map::new(),
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn number(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 1, "description": description })
}

fn full() -> Vec<ToolSpec> {
    vec![
        spec(
            "artifact",
            "Read a stored full output (a1, a2, ...) that was cut when it was shown: a range of its \
             lines, or the lines that match a regular expression."
                .into(),
            &["id"],
            json!({
                "id": text("Handle, as in the marker: a1"),
                "start": number("First line (default 1)"),
                "lines": number("How many lines"),
                "pattern": text("Show only lines that match this regular expression"),
            }),
        ),
        spec(
            "bash",
            format!(
                "Run a command with bash in the workspace; each call is a new shell. Standard input is closed and there is no \
                 terminal. What still runs when the shell ends is ended too, so start a server and use \
                 it in one command. Time limit {COMMAND_TIMEOUT_S} s, unless you add timeout_s (up to {COMMAND_TIMEOUT_S_MAX}). \
                 Inside the sandbox only the workspace and $TMPDIR are writable and there is no network."
            ),
            &["command"],
            json!({
                "command": text("The command line"),
            }),
        ),
        spec(
            "edit",
            "Replace text in a file. Each `old` must occur exactly once: copy it from the file with its \
             indentation, and with enough lines around it. All replacements are made, or none. Line \
             endings are kept."
                .into(),
            &["path", "edits"],
            json!({
                "path": text("File, relative to the workspace"),
                "edits": json!({
                    "type": "array", "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "old": text("Text to replace, without line numbers"),
                            "new": text("Text to put there"),
                        },
                        "required": ["old", "new"],
                        "additionalProperties": false,
                    },
                }),
            }),
        ),
        spec(
            "read",
            "Read a text file with line numbers, from line `start` on. A directory gives its entries."
                .into(),
            &["path"],
            json!({
                "path": text("File, relative to the workspace"),
                "start": number("First line (default 1)"),
                "lines": number("How many lines (default: as many as fit)"),
            }),
        ),
        spec(
            "search",
            "Find lines that match a regular expression in the files below a path. Ignored files \
             (.gitignore) and binaries are skipped. Add context for lines around each match, or ignore_case."
                .into(),
            &["pattern"],
            json!({
                "pattern": text("Regular expression (Rust syntax)"),
                "path": text("File or directory (default: the workspace)"),
                "glob": text("Only files whose path matches, e.g. *.rs or src/**"),
            }),
        ),
        spec(
            "write",
            "Write a whole file; directories are made. For changes in an existing file use edit.".into(),
            &["path", "content"],
            json!({
                "path": text("File, relative to the workspace"),
                "content": text("All of the file's text"),
            }),
        ),
    ]
}

fn small() -> Vec<ToolSpec> {
    let string = || json!({ "type": "string" });
    let count = || json!({ "type": "integer", "minimum": 1 });
    vec![
        spec(
            "artifact",
            "Read lines of a stored full output (a1, ...).".into(),
            &["id"],
            json!({ "id": string(), "start": count(), "lines": count(), "pattern": string() }),
        ),
        spec(
            "bash",
            "Run a shell command.".into(),
            &["command"],
            json!({ "command": string() }),
        ),
        spec(
            "edit",
            "Replace `old`, which must occur once in the file, by `new`.".into(),
            &["path", "old", "new"],
            json!({ "path": string(), "old": string(), "new": string() }),
        ),
        spec(
            "read",
            "Read a file with line numbers.".into(),
            &["path"],
            json!({ "path": string(), "start": count(), "lines": count() }),
        ),
        spec(
            "search",
            "Find lines in files by regular expression.".into(),
            &["pattern"],
            json!({ "pattern": string(), "path": string() }),
        ),
        spec(
            "write",
            "Write a whole file.".into(),
            &["path", "content"],
            json!({ "path": string(), "content": string() }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_sorted_closed_and_small_where_they_must_be() {
        for profile in [Profile::Full, Profile::Small] {
            let specs = specs(profile);
            let names: Vec<_> = specs.iter().map(|s| s.name).collect();
            assert_eq!(
                names,
                ["artifact", "bash", "edit", "read", "search", "write"]
            );
            for spec in &specs {
                assert_eq!(
                    spec.parameters["additionalProperties"], false,
                    "{}",
                    spec.name
                );
                let properties = spec.parameters["properties"].as_object().unwrap();
                for required in spec.parameters["required"].as_array().unwrap() {
                    assert!(
                        properties.contains_key(required.as_str().unwrap()),
                        "{}",
                        spec.name
                    );
                }
            }
            assert_eq!(specs, super::specs(profile), "the same bytes every time");
        }
        let size = |profile| -> usize {
            specs(profile)
                .iter()
                .map(|s| s.to_function().to_string().len())
                .sum()
        };
        // A quarter of the 900 tokens that a 4k window has for everything fixed, at
        // about four characters a token, and the same again for JSON's own signs.
        assert!(size(Profile::Small) < 1_800, "{}", size(Profile::Small));
        assert!(size(Profile::Full) < 4_800, "{}", size(Profile::Full));
    }
}
