//! Qwen3-Coder's calls: `<function=name>`, then `<parameter=key>` with the value as plain text, whose type the
//! schema tells. Exactly one line end on each side of a value belongs to the layout.

use serde_json::{Map, Number, Value};

use super::ToolSpec;
use super::json::unknown_tool;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const CALL_END: &str = "</tool_call>";

/// Reads one function from a growing text that begins with `<function=`.
#[derive(Debug, Default)]
pub(super) struct Function {
    name: Option<String>,
    values: Vec<(String, String)>,
    /// The parameter being read, and where its value begins.
    parameter: Option<(String, usize)>,
    at: usize,
}

/// How far the reading came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// The function ends before this byte.
    Done(usize),
    /// What stands here is no part of a call.
    Malformed(&'static str),
    CutOff,
}

impl Function {
    pub(super) fn advance(&mut self, text: &str, last: bool) -> Step {
        loop {
            let rest = &text[self.at..];
            if self.parameter.is_some() {
                match value_end(text, self.at, last) {
                    ValueEnd::Found { end, next } => {
                        if let Some((key, start)) = self.parameter.take() {
                            self.values
                                .push((key, strip_line_ends(&text[start..end]).to_owned()));
                        }
                        self.at = next;
                    }
                    ValueEnd::Missing => return Step::CutOff,
                    ValueEnd::Later { resume } => {
                        self.at = resume;
                        return Step::More;
                    }
                }
                continue;
            }
            let space = rest.len() - rest.trim_start().len();
            let rest = rest.trim_start();
            let tag = if self.name.is_none() {
                FUNCTION
            } else {
                PARAMETER
            };
            if let Some(inner) = rest.strip_prefix(tag) {
                let end = match inner.find(['>', '\n']) {
                    Some(end) if inner[end..].starts_with('>') => end,
                    None if !last => return Step::More,
                    Some(_) | None => return Step::Malformed("a tag is not closed"),
                };
                let word = inner[..end].trim().trim_matches(['"', '\'']).to_owned();
                self.at += space + tag.len() + end + 1;
                if self.name.is_none() {
                    self.name = Some(word);
                } else {
                    self.parameter = Some((word, self.at));
                }
            } else if rest.starts_with(FUNCTION_END) {
                return Step::Done(self.at + space + FUNCTION_END.len());
            } else if rest.starts_with(CALL_END) {
                return Step::Done(self.at + space);
            } else if !last
                && [tag, FUNCTION_END, CALL_END]
                    .iter()
                    .any(|tag| tag.starts_with(rest))
            {
                return Step::More;
            } else if last && rest.is_empty() {
                return Step::CutOff;
            } else {
                return Step::Malformed("text stands between the parameters");
            }
        }
    }

    /// The call's name and the text of its arguments object.
    pub(super) fn finish(self, tools: &[ToolSpec]) -> Result<(String, String), String> {
        let name = self.name.unwrap_or_default();
        let tool = tools
            .iter()
            .find(|tool| tool.name == name)
            .ok_or_else(|| unknown_tool(&name, tools))?;
        let mut map = Map::new();
        for (key, text) in self.values {
            let schema = tool
                .parameters
                .get("properties")
                .and_then(|all| all.get(&key));
            map.insert(key, typed(&text, schema));
        }
        Ok((name, Value::Object(map).to_string()))
    }
}

enum ValueEnd {
    /// The value ends before `end`; the call goes on at `next`.
    Found {
        end: usize,
        next: usize,
    },
    /// Not yet to be seen: look again from `resume` when there is more text.
    Later {
        resume: usize,
    },
    Missing,
}

/// A value ends at a closing tag behind which the call goes on or ends; the same text inside a value is data.
fn value_end(text: &str, from: usize, last: bool) -> ValueEnd {
    let goes_on = [PARAMETER, FUNCTION_END, CALL_END];
    for (at, tag) in text[from..].match_indices(PARAMETER_END) {
        let (end, next) = (from + at, from + at + tag.len());
        let behind = text[next..].trim_start();
        if goes_on.iter().any(|tag| behind.starts_with(tag)) || (last && behind.is_empty()) {
            return ValueEnd::Found { end, next };
        }
        if !last && goes_on.iter().any(|tag| tag.starts_with(behind)) {
            return ValueEnd::Later { resume: end };
        }
    }
    if last {
        // A model may forget the closing tag of the last parameter.
        return match text[from..].find(FUNCTION_END) {
            Some(at) => ValueEnd::Found {
                end: from + at,
                next: from + at,
            },
            None => ValueEnd::Missing,
        };
    }
    let mut resume = text.len().saturating_sub(PARAMETER_END.len() - 1).max(from);
    while !text.is_char_boundary(resume) {
        resume -= 1;
    }
    ValueEnd::Later { resume }
}

fn strip_line_ends(text: &str) -> &str {
    let text = text
        .strip_prefix("\r\n")
        .or_else(|| text.strip_prefix('\n'))
        .unwrap_or(text);
    text.strip_suffix("\r\n")
        .or_else(|| text.strip_suffix('\n'))
        .unwrap_or(text)
}

/// The value that `text` stands for, by the types its schema allows; text where none fits.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    let allows = |name: &str| types.is_empty() || types.contains(&name);
    let word = text.trim();
    if types == ["string"] {
        return Value::String(text.to_owned());
    }
    if allows("null") && matches!(word, "null" | "None") {
        return Value::Null;
    }
    if allows("boolean") && matches!(word, "true" | "True") {
        return Value::Bool(true);
    }
    if allows("boolean") && matches!(word, "false" | "False") {
        return Value::Bool(false);
    }
    if (allows("integer") || allows("number"))
        && let Ok(number) = serde_json::from_str::<Number>(word)
        && (allows("number") || number.is_i64() || number.is_u64())
    {
        return Value::Number(number);
    }
    if let Ok(value) = serde_json::from_str::<Value>(word)
        && ((value.is_object() && allows("object")) || (value.is_array() && allows("array")))
    {
        return value;
    }
    Value::String(text.to_owned())
}

fn collect_types<'a>(schema: Option<&'a Value>, types: &mut Vec<&'a str>) {
    let Some(schema) = schema else { return };
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(names)) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        for option in schema
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            collect_types(Some(option), types);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_come_from_the_schema() {
        for (text, schema, expected) in [
            ("7", json!({"type": "integer"}), json!(7)),
            ("1.50", json!({"type": "number"}), json!(1.5)),
            ("1.5", json!({"type": "integer"}), json!("1.5")),
            ("True", json!({"type": "boolean"}), json!(true)),
            ("123", json!({"type": "string"}), json!("123")),
            ("null", json!({"type": ["string", "null"]}), json!(null)),
            (
                "nullable",
                json!({"type": ["string", "null"]}),
                json!("nullable"),
            ),
            (
                "5",
                json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
                json!(5),
            ),
            ("[{\"k\": 1}]", json!({"type": "array"}), json!([{"k": 1}])),
            ("{\"a\": 1}", json!({}), json!({"a": 1})),
            ("plain words", json!({}), json!("plain words")),
        ] {
            assert_eq!(typed(text, Some(&schema)), expected, "{text} as {schema}");
        }
    }
}
