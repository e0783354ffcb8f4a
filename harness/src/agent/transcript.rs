//! What a session is made of: entries, appended and never rewritten. Each names its parent, so a
//! session is a path through a tree. What the model sees is derived from them, never the other way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::pieces::Section;
use super::trace::Trace;

/// A tool call as the model made it. `arguments` is the text of one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// What a tool gave back, bounded already where it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutput {
    pub text: String,
    pub ok: bool,
    /// The handle under which the full output can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The frozen sections as they were sent first (or again, after a compaction).
    Opened {
        version: u32,
        model: String,
        workspace: String,
        sections: Vec<Section>,
    },
    /// The session goes on with another model: ids that were sampled before mean nothing to it.
    OtherModel {
        model: String,
    },
    User {
        text: String,
    },
    Assistant {
        text: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        thinking: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
        /// The ids as sampled: sent again as they are.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sampled: Vec<u32>,
        #[serde(default)]
        cut: bool,
    },
    ToolResult {
        call: String,
        name: String,
        #[serde(flatten)]
        output: ToolOutput,
    },
    /// Words to the model about a call that could not be read.
    Correction {
        text: String,
    },
    /// A frozen section's source changed: a call of a declared tool and its result say so (law 5).
    Change {
        section: String,
        call: Call,
        result: String,
    },
    /// A call that the model did not make, and its result: a skill that the user named.
    Given {
        call: Call,
        result: String,
    },
    /// Entries before `keep_from` are replaced by `summary` in what the model sees.
    Compaction {
        summary: String,
        keep_from: u64,
        tokens_before: usize,
        tokens_after: usize,
        sections: Vec<Section>,
    },
    /// What a model step reused and computed; for `ostler inspect`.
    Step {
        prompt_tokens: usize,
        reused: usize,
        computed: usize,
        generated: usize,
        ttft_ms: f64,
        /// Piece by piece; sessions of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<Box<Trace>>,
    },
    End {
        outcome: String,
    },
    /// A tool changed a file of the person's: what it was is kept under the name `before`, if it was there; `after`
    /// is the sha256 of what the tool left.
    FileChanged {
        path: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        after: String,
    },
    /// The run that stood here was taken back: so many entries are on another branch.
    Undone {
        entries: usize,
    },
}

impl Entry {
    /// The result of a call that ran.
    pub fn result(call: &Call, output: ToolOutput) -> Entry {
        Entry::ToolResult {
            call: call.id.clone(),
            name: call.name.clone(),
            output,
        }
    }

    /// The result of a call that did not run to its end: every call has exactly one result.
    pub fn not_run(call: &Call, why: &str) -> Entry {
        let output = ToolOutput {
            text: format!("[not run: {why}]"),
            ok: false,
            artifact: None,
        };
        Entry::result(call, output)
    }
}

/// An entry in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub id: u64,
    pub parent: Option<u64>,
    pub time_ms: u64,
    #[serde(flatten)]
    pub entry: Entry,
}

/// The calls of the newest assistant turn that have no result yet.
pub fn dangling_calls(records: &[Record]) -> Vec<Call> {
    let mut open: Vec<Call> = Vec::new();
    for record in records {
        match &record.entry {
            Entry::Assistant { calls, .. } => open = calls.clone(),
            Entry::ToolResult { call, .. } => open.retain(|c| &c.id != call),
            Entry::Opened { .. }
            | Entry::OtherModel { .. }
            | Entry::User { .. }
            | Entry::Correction { .. }
            | Entry::Change { .. }
            | Entry::Compaction { .. }
            | Entry::Step { .. }
            | Entry::End { .. }
            | Entry::FileChanged { .. }
            | Entry::Given { .. }
            | Entry::Undone { .. } => {}
        }
    }
    open
}
