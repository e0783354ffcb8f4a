//! What is wrong with a JSON schema, found before it is compiled, by path and keyword.
//!
//! Invariant: a keyword that restricts values is enforced or refused, never passed over. Keywords
//! that JSON Schema does not know are annotations by its rules: they are named in the warnings.
//! Walks with a stack of its own: depth is the caller's to choose, so it must not be ours to bear.

use serde_json::{Map, Value};

use super::GrammarError;
use crate::limits::{SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX, SCHEMA_TEXT_BYTES_MAX};

/// Keywords that restrict and that llguidance 1.9 enforces.
const ENFORCED: &[&str] = &[
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords that restrict and that nothing here can enforce.
const REFUSED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Keywords that say something to people or to tools.
const SILENT: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "strict",
];

const TYPES: &[&str] = &[
    "null", "boolean", "number", "integer", "string", "array", "object",
];

/// Where schemas are inside a schema.
const ONE: &[&str] = &["items", "additionalItems", "additionalProperties"];
const LIST: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const NAMED: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];

/// Checks `schema` and makes it ready for the compiler. The warnings name what is not a keyword.
pub(super) fn check(schema: &mut Value) -> Result<Vec<String>, GrammarError> {
    check_size(schema)?;
    let mut warnings = Vec::new();
    let root = &*schema;
    let mut stack = vec![(String::new(), root)];
    while let Some((path, node)) = stack.pop() {
        let Value::Object(map) = node else {
            if node.is_boolean() {
                continue;
            }
            return Err(fault(&path, "schema", "need an object or a boolean"));
        };
        check_node(&path, map, root, &mut warnings)?;
        for child in children(map) {
            stack.push((join(&path, &child.0), child.1));
        }
    }
    drop_false_unique_items(schema);
    if let Value::Object(map) = schema {
        // The compiler's own options are ours to choose, not the caller's.
        map.remove("x-guidance");
    }
    Ok(warnings)
}

pub(super) fn fault(path: &str, keyword: &str, why: impl Into<String>) -> GrammarError {
    // The end of a path says more than its start.
    let chars = path.chars().count();
    let path = match chars > PATH_CHARS_MAX {
        true => format!(
            "...{}",
            path.chars()
                .skip(chars - PATH_CHARS_MAX)
                .collect::<String>()
        ),
        false => format!("#{path}"),
    };
    GrammarError::Schema {
        path,
        keyword: keyword.to_owned(),
        why: why.into(),
    }
}

const PATH_CHARS_MAX: usize = 120;

fn join(path: &str, segment: &str) -> String {
    format!("{path}/{segment}")
}

fn escape(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

/// The schemas inside a schema, with the end of their path.
pub(super) fn children(map: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (key, value) in map {
        let key = key.as_str();
        match value {
            Value::Array(list) if LIST.contains(&key) => {
                found.extend(
                    list.iter()
                        .enumerate()
                        .map(|(i, v)| (format!("{key}/{i}"), v)),
                );
            }
            Value::Object(named) if NAMED.contains(&key) => {
                found.extend(
                    named
                        .iter()
                        .map(|(k, v)| (format!("{key}/{}", escape(k)), v)),
                );
            }
            value if ONE.contains(&key) => found.push((key.to_owned(), value)),
            _ => {}
        }
    }
    found
}

/// Depth, number of values and length of texts, of everything in the schema.
fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let mut nodes = 0usize;
    let mut stack: Vec<(usize, &str, &Value)> = vec![(0, "schema", schema)];
    while let Some((depth, key, node)) = stack.pop() {
        nodes += 1;
        if depth > SCHEMA_DEPTH_MAX {
            let why = format!("nested more than {SCHEMA_DEPTH_MAX} deep; use $defs and $ref");
            return Err(fault(&path_to(schema, depth), key, why));
        }
        if nodes > SCHEMA_NODES_MAX {
            return Err(fault(
                "",
                "schema",
                format!("more than {SCHEMA_NODES_MAX} values; use a smaller schema"),
            ));
        }
        match node {
            Value::String(text) if text.len() > SCHEMA_TEXT_BYTES_MAX && key != "description" => {
                let have = text.len();
                return Err(fault(
                    "",
                    key,
                    format!("a text of {have} bytes; need at most {SCHEMA_TEXT_BYTES_MAX}"),
                ));
            }
            Value::Array(list) => stack.extend(list.iter().map(|v| (depth + 1, key, v))),
            Value::Object(map) => stack.extend(map.iter().map(|(k, v)| (depth + 1, k.as_str(), v))),
            _ => {}
        }
    }
    Ok(())
}

/// The path to the first value at `depth`.
fn path_to(schema: &Value, depth: usize) -> String {
    let mut stack = vec![(0, String::new(), schema)];
    let mut seen = 0;
    while let Some((at, path, node)) = stack.pop() {
        seen += 1;
        if at == depth || seen > SCHEMA_NODES_MAX {
            return path;
        }
        match node {
            Value::Array(list) => {
                stack.extend(
                    list.iter()
                        .enumerate()
                        .map(|(i, v)| (at + 1, join(&path, &i.to_string()), v)),
                );
            }
            Value::Object(map) => {
                stack.extend(
                    map.iter()
                        .map(|(k, v)| (at + 1, join(&path, &escape(k)), v)),
                );
            }
            _ => {}
        }
    }
    String::new()
}

fn check_node(
    path: &str,
    map: &Map<String, Value>,
    root: &Value,
    warnings: &mut Vec<String>,
) -> Result<(), GrammarError> {
    for (key, value) in map {
        match key.as_str() {
            "uniqueItems" if value == false => {}
            key if REFUSED.contains(&key) => {
                return Err(fault(
                    path,
                    key,
                    "this keyword cannot be enforced; leave it out",
                ));
            }
            "type" => check_type(path, value)?,
            "enum" if value.as_array().is_none_or(|list| list.is_empty()) => {
                return Err(fault(path, "enum", "need a list with at least one value"));
            }
            "$ref" => check_ref(path, value, root)?,
            key if NAMED.contains(&key) && !value.is_object() => {
                return Err(fault(path, key, "need an object"));
            }
            key if LIST.contains(&key) && key != "items" && !value.is_array() => {
                return Err(fault(path, key, "need a list"));
            }
            "pattern" | "format" if !value.is_string() => {
                return Err(fault(path, key, "need a string"));
            }
            "required" if !is_list_of_strings(value) => {
                return Err(fault(path, key, "need a list of strings"));
            }
            key if ENFORCED.contains(&key) || SILENT.contains(&key) || key.starts_with("x-") => {}
            key => warnings.push(format!(
                "schema at #{path}: {key:?} is not a keyword of JSON Schema and has no effect"
            )),
        }
    }
    Ok(())
}

fn is_list_of_strings(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| list.iter().all(Value::is_string))
}

fn check_type(path: &str, value: &Value) -> Result<(), GrammarError> {
    let one = std::slice::from_ref(value);
    let types = value.as_array().map_or(one, Vec::as_slice);
    let known = |t: &Value| t.as_str().is_some_and(|t| TYPES.contains(&t));
    if types.is_empty() || !types.iter().all(known) {
        return Err(fault(
            path,
            "type",
            format!("need one or some of {}, have {value}", TYPES.join(", ")),
        ));
    }
    Ok(())
}

/// A reference must be inside this document, must lead somewhere, and not only to itself.
fn check_ref(path: &str, value: &Value, root: &Value) -> Result<(), GrammarError> {
    let Some(first) = value.as_str() else {
        return Err(fault(path, "$ref", "need a string"));
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut reference = first;
    loop {
        let Some(pointer) = reference
            .strip_prefix('#')
            .filter(|p| p.is_empty() || p.starts_with('/'))
        else {
            let why = format!(
                "need a place in this schema (#/$defs/...), have {reference:?}; nothing is fetched"
            );
            return Err(fault(path, "$ref", why));
        };
        if pointer.contains(['~', '%']) {
            return Err(fault(
                path,
                "$ref",
                format!("escapes in {reference:?} are not supported; rename the definition"),
            ));
        }
        let Some(target) = root.pointer(pointer) else {
            return Err(fault(path, "$ref", format!("{reference:?} leads nowhere")));
        };
        if seen.contains(&reference) {
            return Err(fault(
                path,
                "$ref",
                format!("{reference:?} leads only to itself"),
            ));
        }
        seen.push(reference);
        // Only a chain of bare references can go round without saying anything.
        let only_ref = |m: &&Map<String, Value>| {
            m.keys()
                .all(|k| k == "$ref" || SILENT.contains(&k.as_str()))
        };
        match target
            .as_object()
            .filter(only_ref)
            .and_then(|m| m.get("$ref")?.as_str())
        {
            Some(next) => reference = next,
            None => return Ok(()),
        }
    }
}

/// `uniqueItems: false` restricts nothing, but the compiler refuses the word. Depth was checked.
fn drop_false_unique_items(node: &mut Value) {
    match node {
        Value::Object(map) => {
            if map.get("uniqueItems") == Some(&Value::Bool(false)) {
                map.shift_remove("uniqueItems");
            }
            map.values_mut().for_each(drop_false_unique_items);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_false_unique_items),
        _ => {}
    }
}
