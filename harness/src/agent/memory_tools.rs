//! The tools `remember` and `memory`: what is kept for later sessions, and how it is found again.

use serde::Deserialize;
use serde_json::{Map, json};

use super::transcript::{Entry, Record, ToolOutput};
use crate::limits;
use crate::memory::{Memories, New, Origin};
use crate::tools::ToolSpec;

pub const REMEMBER: &str = "remember";
pub const SEARCH: &str = "memory";

/// What the model is told of them.
pub fn specs() -> [ToolSpec; 2] {
    let string = || json!({ "type": "string" });
    let spec = |name, description: &str, properties, required: &[&str], rare| ToolSpec {
        name,
        description: description.into(),
        parameters: json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false
        }),
        rare,
    };
    // A small model that is shown them fills them in, with the example if there is one.
    let rare = [
        (
            "importance".to_owned(),
            json!({ "type": "integer", "minimum": 1, "maximum": 5 }),
        ),
        ("replaces".to_owned(), string()),
    ];
    [
        spec(
            REMEMBER,
            "Keep a fact for later sessions. If the user said it, quote their words. Where an older memory no longer \
             holds, add its id as replaces.",
            json!({ "text": string(), "quote": string() }),
            &["text"],
            Map::from_iter(rare),
        ),
        spec(
            SEARCH,
            "Search what was remembered in earlier sessions.",
            json!({ "query": string() }),
            &["query"],
            Map::new(),
        ),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remember {
    text: String,
    #[serde(default)]
    quote: Option<String>,
    #[serde(default)]
    importance: Option<u8>,
    #[serde(default)]
    replaces: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
}

/// Runs a call of either tool; `None` when it is of another.
pub fn run(
    memories: &Memories,
    records: &[Record],
    name: &str,
    arguments: &str,
    now: u64,
) -> Option<ToolOutput> {
    let done = match name {
        REMEMBER => read(arguments).and_then(|wanted| remember(memories, records, wanted, now)),
        SEARCH => read(arguments).and_then(|wanted| search(memories, wanted)),
        _ => return None,
    };
    let ok = done.is_ok();
    let text = done.unwrap_or_else(|why| why);
    Some(ToolOutput {
        text,
        ok,
        artifact: None,
    })
}

fn read<'a, T: Deserialize<'a>>(arguments: &'a str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|e| format!("cannot read the arguments: {e}"))
}

fn remember(
    memories: &Memories,
    records: &[Record],
    wanted: Remember,
    now: u64,
) -> Result<String, String> {
    let filled = |text: Option<String>| text.filter(|t| !t.trim().is_empty());
    let origin = match filled(wanted.quote) {
        Some(quote) if user_said(records, &quote) => Origin::User { quote },
        Some(quote) => {
            return Err(format!(
                "not remembered: the user has not said {quote:?} in this session. Quote their words exactly, or leave \
                 quote out: then it is kept as your own note"
            ));
        }
        None => Origin::Noted {
            after: calls_since_user(records),
        },
    };
    let replaces = filled(wanted.replaces);
    // What is to be remembered is worth more than what it was to replace.
    let (there, lost) = match replaces {
        Some(id) if memories.get(&id).is_ok() => (Some(id), String::new()),
        Some(id) => (None, format!("\n[{id} is not there: nothing was replaced]")),
        None => (None, String::new()),
    };
    let memory = memories.remember(New {
        text: wanted.text,
        origin,
        importance: wanted.importance.unwrap_or(3),
        replaces: there,
        time: now,
    });
    let memory = memory.map_err(|e| e.to_string())?;
    Ok(format!("remembered: {}{lost}", memory.line()))
}

fn search(memories: &Memories, wanted: Search) -> Result<String, String> {
    let found = memories.search(&wanted.query).map_err(|e| e.to_string())?;
    if found.is_empty() {
        return Ok("nothing is remembered that fits".into());
    }
    let line = |memory: &crate::memory::Memory| match &memory.replaced_by {
        Some(new) => format!("{} [no longer holds: see {new}]", memory.line()),
        None => memory.line(),
    };
    Ok(found.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Whether the user's messages hold these words; spaces and case do not count.
pub fn user_said(records: &[Record], words: &str) -> bool {
    let plain = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").to_lowercase()
    };
    let words = plain(words);
    records.iter().any(|record| match &record.entry {
        Entry::User { text } => plain(text).contains(&words),
        _ => false,
    })
}

/// What the model has looked at since the user spoke: a note may come from there.
fn calls_since_user(records: &[Record]) -> Vec<String> {
    let since = records
        .iter()
        .rposition(|r| matches!(r.entry, Entry::User { .. }))
        .unwrap_or(0);
    let calls = records[since..]
        .iter()
        .flat_map(|record| match &record.entry {
            Entry::Assistant { calls, .. } => calls.as_slice(),
            _ => &[],
        });
    let mut named: Vec<String> = calls
        .filter(|call| call.name != REMEMBER && call.name != SEARCH)
        .map(|call| {
            let arguments: serde_json::Value =
                serde_json::from_str(&call.arguments).unwrap_or_default();
            let about = ["path", "command", "pattern", "id"]
                .iter()
                .find_map(|key| arguments[*key].as_str());
            let about: String = about
                .unwrap_or_default()
                .chars()
                .take(limits::MEMORY_SOURCE_CHARS)
                .collect();
            format!("{} {about}", call.name).trim_end().to_owned()
        })
        .collect();
    named.dedup();
    let first = named.len().saturating_sub(limits::MEMORY_SOURCES_MAX);
    named.split_off(first)
}
