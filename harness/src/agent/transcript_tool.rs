//! The `transcript` tool: reads and searches the session's own entries, so that a summary can point
//! at what it leaves out.

use serde::Deserialize;
use serde_json::{Map, json};

use super::transcript::{Entry, Record, ToolOutput};
use crate::limits;
use crate::tools::ToolSpec;

pub const NAME: &str = "transcript";

/// What the model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: NAME,
        description: "Read or search earlier entries of this session that a summary replaced."
            .into(),
        parameters: json!({
            "type": "object",
            "properties": {
                "from": { "type": "integer", "description": "First entry" },
                "to": { "type": "integer", "description": "Last entry" },
                "find": { "type": "string", "description": "Only entries with this text" }
            },
            "required": [],
            "additionalProperties": false
        }),
        rare: Map::new(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    #[serde(default)]
    from: Option<u64>,
    #[serde(default)]
    to: Option<u64>,
    #[serde(default)]
    find: Option<String>,
}

/// The entries asked for, each under its number; long ones shortened, and it says by how much.
pub fn run(records: &[Record], arguments: &str) -> ToolOutput {
    let wanted: Arguments = match serde_json::from_str(arguments) {
        Ok(wanted) => wanted,
        Err(e) => {
            let text = format!("cannot read the arguments: {e}; have from, to, find");
            return ToolOutput {
                text,
                ok: false,
                artifact: None,
            };
        }
    };
    let (from, to) = (wanted.from.unwrap_or(0), wanted.to.unwrap_or(u64::MAX));
    let needle = wanted.find.as_deref().map(str::to_lowercase);
    let mut shown = Vec::new();
    let mut left_out = 0;
    for record in records.iter().filter(|r| (from..=to).contains(&r.id)) {
        let Some(text) = text_of(&record.entry) else {
            continue;
        };
        if needle
            .as_ref()
            .is_some_and(|n| !text.to_lowercase().contains(n))
        {
            continue;
        }
        if shown.len() == limits::TRANSCRIPT_ENTRIES_MAX {
            left_out += 1;
            continue;
        }
        shown.push(format!(
            "[{}] {}",
            record.id,
            shorten(&text, needle.as_deref())
        ));
    }
    if shown.is_empty() {
        let last = records.last().map_or(0, |r| r.id);
        return ToolOutput {
            text: format!("no such entry; have 0 to {last}"),
            ok: true,
            artifact: None,
        };
    }
    if left_out > 0 {
        shown.push(format!(
            "[{left_out} more entries match; narrow `from` and `to`]"
        ));
    }
    ToolOutput {
        text: shown.join("\n"),
        ok: true,
        artifact: None,
    }
}

fn text_of(entry: &Entry) -> Option<String> {
    match entry {
        Entry::User { text } => Some(format!("user: {text}")),
        Entry::Assistant { text, calls, .. } => {
            let calls: String = calls
                .iter()
                .map(|c| format!(" {}({})", c.name, c.arguments))
                .collect();
            Some(format!("assistant: {text}{calls}"))
        }
        Entry::ToolResult { name, output, .. } => Some(format!("{name} gave: {}", output.text)),
        Entry::Change {
            section, result, ..
        } => Some(format!("{section} changed: {result}")),
        Entry::Given { call, result } => Some(format!("{} gave: {result}", call.name)),
        Entry::Compaction { summary, .. } => Some(format!("summary: {summary}")),
        Entry::Opened { .. }
        | Entry::OtherModel { .. }
        | Entry::Correction { .. }
        | Entry::Step { .. }
        | Entry::End { .. }
        | Entry::FileChanged { .. }
        | Entry::Undone { .. } => None,
    }
}

/// The start of a text, or the part around what was searched for.
fn shorten(text: &str, needle: Option<&str>) -> String {
    let max = limits::TRANSCRIPT_ENTRY_CHARS;
    let total = text.chars().count();
    if total <= max {
        return text.to_owned();
    }
    let found = needle
        .and_then(|n| text.to_lowercase().find(n))
        .unwrap_or(0);
    // The lower-case text may differ in length: the place is a hint, not an index.
    let before = text.char_indices().take_while(|(i, _)| *i < found).count();
    let start = before.saturating_sub(max / 4).min(total - max);
    let part: String = text.chars().skip(start).take(max).collect();
    format!("{part} [characters {start} to {} of {total}]", start + max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let entries = vec![
            Entry::User {
                text: "find the Needle".into(),
            },
            Entry::Assistant {
                text: "x".repeat(5_000) + "needle" + &"y".repeat(5_000),
                thinking: String::new(),
                calls: vec![],
                sampled: vec![],
                cut: false,
            },
            Entry::End {
                outcome: "answered".into(),
            },
        ];
        entries
            .into_iter()
            .enumerate()
            .map(|(i, entry)| Record {
                id: i as u64,
                parent: None,
                time_ms: 0,
                entry,
            })
            .collect()
    }

    #[test]
    fn reads_ranges_and_finds_text() {
        let cases = [
            (r#"{"from": 0, "to": 0}"#, "[0] user: find the Needle", true),
            (r#"{"find": "NEEDLE"}"#, "needle", true),
            (r#"{"from": 7}"#, "no such entry; have 0 to 2", true),
            (r#"{"form": 7}"#, "unknown field", false),
        ];
        for (arguments, expected, ok) in cases {
            let output = run(&records(), arguments);
            assert!(
                output.text.contains(expected),
                "{arguments}: {}",
                output.text
            );
            assert_eq!(output.ok, ok);
        }
        let long = run(&records(), r#"{"from": 1, "to": 1}"#).text;
        assert!(long.contains("of 10017]") && long.len() < 10_000, "{long}");
    }
}
