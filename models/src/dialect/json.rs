//! JSON calls: where a value ends in a stream, small repairs, and what makes a value a call.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::ToolSpec;

pub(super) const CUT_OFF: &str = "the call was cut off before its end";

/// Finds the end of a JSON value that begins with a bracket. Keeps its place between pushes.
#[derive(Debug, Default, Clone)]
pub(super) struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// How far a scan came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The text ends inside the value.
    More,
    /// The value ends before this byte.
    End(usize),
    /// A marker stands at this byte, outside any string.
    Marker(usize),
}

impl Scan {
    /// Continues over `text`, which begins with the value and has only grown since the last call. `marker` ends
    /// the scan outside strings; with `last` no more text will come.
    pub(super) fn advance(&mut self, text: &str, markers: &[&str], last: bool) -> Reach {
        let bytes = text.as_bytes();
        while self.at < bytes.len() {
            let byte = bytes[self.at];
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Reach::End(self.at + 1);
                        }
                    }
                    b'<' | b'`' => {
                        let rest = &text[self.at..];
                        if markers.iter().any(|marker| rest.starts_with(marker)) {
                            return Reach::Marker(self.at);
                        }
                        if !last && markers.iter().any(|marker| marker.starts_with(rest)) {
                            return Reach::More;
                        }
                    }
                    _ => {}
                }
            }
            self.at += 1;
        }
        Reach::More
    }
}

impl Scan {
    /// The bytes scanned so far, which the caller takes away from the front of the text.
    pub(super) fn give(&mut self) -> usize {
        std::mem::take(&mut self.at)
    }
}

/// What the beginning of a bare JSON value tells.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Opening {
    /// Too short to tell.
    Unknown,
    /// No JSON object, nor a list of them.
    NotJson,
    /// An object whose first key no call begins with.
    OtherObject,
    MaybeCall,
}

const FIRST_KEYS: [&str; 8] = [
    "name",
    "arguments",
    "parameters",
    "type",
    "id",
    "function",
    "tool",
    "tool_name",
];

/// `text` begins with `{` or `[`.
pub(super) fn opening(text: &str) -> Opening {
    let inner = text.trim_start_matches(|c: char| c == '[' || c.is_whitespace());
    let Some(inner) = inner.strip_prefix('{') else {
        return if inner.is_empty() {
            Opening::Unknown
        } else {
            Opening::NotJson
        };
    };
    let inner = inner.trim_start();
    let Some(key) = inner.strip_prefix('"') else {
        return match inner.chars().next() {
            None => Opening::Unknown,
            Some('}') => Opening::OtherObject,
            Some(_) => Opening::NotJson,
        };
    };
    match key.split_once('"') {
        Some((key, _)) if FIRST_KEYS.contains(&key) => Opening::MaybeCall,
        Some(_) => Opening::OtherObject,
        None if FIRST_KEYS.iter().any(|known| known.starts_with(key)) => Opening::Unknown,
        None => Opening::OtherObject,
    }
}

/// How strictly a value must look like a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It stands between markers: whatever it is, it was meant as a call.
    Marked,
    /// It is a call only if it could be nothing else.
    Bare,
}

/// A value that was read as calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Calls(VecDeque<(String, String)>),
    /// Meant as a call and unusable, for this reason.
    Broken(String),
    /// No call.
    Other,
}

/// Reads `text`, one JSON value, as one call or a list of calls.
pub(super) fn read(text: &str, tools: &[ToolSpec], trust: Trust) -> Read {
    let parsed = serde_json::from_str::<Value>(text)
        .or_else(|_| serde_json::from_str::<Value>(&repair(text)));
    let value = match parsed {
        Ok(value) => value,
        Err(error) if trust == Trust::Marked || names_a_tool(text, tools) => {
            return Read::Broken(format!("the call is not valid JSON: {error}"));
        }
        Err(_) => return Read::Other,
    };
    let values = match value {
        Value::Array(values) if !values.is_empty() => values,
        value => vec![value],
    };
    let mut calls = VecDeque::new();
    for value in values {
        match read_one(value, tools, trust) {
            Ok(call) => calls.push_back(call),
            Err(why) if trust == Trust::Marked => return Read::Broken(why),
            Err(_) => return Read::Other,
        }
    }
    Read::Calls(calls)
}

/// Reads `text` as the arguments alone.
pub(super) fn read_object(text: &str) -> Result<String, String> {
    let parsed = serde_json::from_str::<Value>(text)
        .or_else(|_| serde_json::from_str::<Value>(&repair(text)));
    parsed
        .map_err(|error| format!("the arguments are not valid JSON: {error}"))
        .and_then(|value| arguments_text(Some(value)))
}

/// A value that was cut off: `Broken` if it was plainly meant as a call.
pub(super) fn read_cut_off(text: &str, tools: &[ToolSpec], trust: Trust) -> Read {
    if trust == Trust::Marked || names_a_tool(text, tools) {
        Read::Broken(CUT_OFF.to_owned())
    } else {
        Read::Other
    }
}

/// `"name": "<a declared tool>"` stands in the text.
fn names_a_tool(text: &str, tools: &[ToolSpec]) -> bool {
    text.match_indices("\"name\"").any(|(at, key)| {
        let value = text[at + key.len()..]
            .trim_start()
            .strip_prefix(':')
            .unwrap_or_default()
            .trim_start();
        tools.iter().any(|tool| {
            value
                .strip_prefix('"')
                .and_then(|v| v.strip_prefix(&tool.name))
                .is_some_and(|v| v.starts_with('"'))
        })
    })
}

fn read_one(value: Value, tools: &[ToolSpec], trust: Trust) -> Result<(String, String), String> {
    let Value::Object(mut map) = value else {
        return Err("a call must be a JSON object".to_owned());
    };
    // {"type": "function", "function": {…}}
    if let Some(Value::Object(_)) = map.get("function")
        && let Some(function) = map.remove("function")
    {
        return read_one(function, tools, trust);
    }
    let name = ["name", "function", "tool", "tool_name"]
        .iter()
        .find_map(|key| take_string(&mut map, key));
    let name = name.ok_or_else(|| "the call names no tool: a \"name\" is missing".to_owned())?;
    if !tools.iter().any(|tool| tool.name == name) {
        return Err(unknown_tool(&name, tools));
    }
    let arguments = ["arguments", "parameters", "args", "input"]
        .iter()
        .find_map(|key| map.remove(*key));
    let surplus = map
        .keys()
        .any(|key| !matches!(key.as_str(), "type" | "id" | "call_id"));
    if trust == Trust::Bare && (arguments.is_none() || surplus) {
        return Err("no call".to_owned());
    }
    Ok((name, arguments_text(arguments)?))
}

fn take_string(map: &mut Map<String, Value>, key: &str) -> Option<String> {
    match map.get(key) {
        Some(Value::String(_)) => map
            .remove(key)
            .and_then(|value| value.as_str().map(str::to_owned)),
        _ => None,
    }
}

/// The arguments as the text of a JSON object; a string that holds one is taken for it.
pub(super) fn arguments_text(arguments: Option<Value>) -> Result<String, String> {
    match arguments {
        None | Some(Value::Null) => Ok("{}".to_owned()),
        Some(Value::Object(map)) => Ok(Value::Object(map).to_string()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok("{}".to_owned()),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(map)) => Ok(Value::Object(map).to_string()),
            _ => Err("the arguments are not a JSON object".to_owned()),
        },
        Some(_) => Err("the arguments are not a JSON object".to_owned()),
    }
}

pub(super) fn unknown_tool(name: &str, tools: &[ToolSpec]) -> String {
    let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    format!(
        "there is no tool {name:?}; the tools are {}",
        known.join(", ")
    )
}

/// Mends what small models get wrong: control characters and unknown escapes inside strings, Python's names for
/// literals, commas before a closing bracket, brackets left open at the end.
fn repair(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut open = Vec::new();
    let mut chars = text.char_indices().peekable();
    let mut in_string = false;
    while let Some((at, c)) = chars.next() {
        if in_string {
            match c {
                '"' => in_string = false,
                '\\' => {
                    let known = chars.peek().is_some_and(|(_, next)| {
                        matches!(next, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u')
                    });
                    out.push('\\');
                    if known {
                        out.extend(chars.next().map(|(_, next)| next));
                    } else {
                        out.push('\\');
                    }
                    continue;
                }
                c if (c as u32) < 0x20 => {
                    out.push_str(&format!("\\u{:04x}", c as u32));
                    continue;
                }
                _ => {}
            }
            out.push(c);
            continue;
        }
        match c {
            '"' => in_string = true,
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => {
                open.pop();
                while out.trim_end().ends_with(',') {
                    out.truncate(out.trim_end().len() - 1);
                }
            }
            'T' | 'F' | 'N' => {
                let python = [("True", "true"), ("False", "false"), ("None", "null")];
                if let Some((theirs, ours)) = python
                    .iter()
                    .find(|(theirs, _)| text[at..].starts_with(theirs))
                {
                    out.push_str(ours);
                    for _ in 1..theirs.len() {
                        chars.next();
                    }
                    continue;
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out.extend(open.iter().rev());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repairs_are_small() {
        for (text, expected) in [
            ("{\"a\": \"x\ny\"}", json!({"a": "x\ny"})),
            (r#"{"a": "\d+\'"}"#, json!({"a": "\\d+\\'"})),
            (
                r#"{"a": True, "b": [None, False,],}"#,
                json!({"a": true, "b": [null, false]}),
            ),
            (r#"{"a": {"b": [1"#, json!({"a": {"b": [1]}})),
            (r#"{"a": "True"}"#, json!({"a": "True"})),
        ] {
            assert_eq!(
                serde_json::from_str::<Value>(&repair(text)).ok(),
                Some(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn a_scan_ends_where_the_value_ends() {
        let text = r#"{"a": "}\"{", "b": [{}]} rest"#;
        for cut in 0..text.len() {
            let mut scan = Scan::default();
            if let Reach::End(end) = scan.advance(&text[..cut], &[], false) {
                assert!(cut >= end && end == 24);
            } else {
                assert_eq!(scan.advance(text, &[], false), Reach::End(24));
            }
        }
        assert_eq!(
            Scan::default().advance("{\"a\": 1\n</x>", &["</x>"], false),
            Reach::Marker(8)
        );
    }
}
