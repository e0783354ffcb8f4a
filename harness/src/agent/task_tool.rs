//! The `task` tool: a part of the work for a sub-agent, which starts with the same fixed pieces and its brief alone.
//! Those pieces are in the cache, so that the brief is all that it costs; what it read stays with it, and its answer
//! comes back as a result.

use serde::Deserialize;
use serde_json::{Map, json};

use crate::tools::ToolSpec;

pub const NAME: &str = "task";

/// What the model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: NAME,
        description: "Hand a part of the work to a helper with the same tools. It sees only your brief, and you see \
                      only its answer: good for reading much to learn little."
            .into(),
        parameters: json!({
            "type": "object",
            "properties": { "brief": {
                "type": "string",
                "description": "All that it needs to know, and what to answer",
            } },
            "required": ["brief"],
            "additionalProperties": false
        }),
        rare: Map::new(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    brief: String,
}

/// What the helper is to do.
pub fn brief(arguments: &str) -> Result<String, String> {
    let read: Arguments = serde_json::from_str(arguments)
        .map_err(|e| format!("cannot read the arguments: {e}; have brief"))?;
    match read.brief.trim() {
        "" => Err("the brief is empty; say what is to be found out or done".into()),
        brief => Ok(brief.to_owned()),
    }
}
