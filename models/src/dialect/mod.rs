//! How a model family writes tool calls, and the parser that reads them from a stream of text.
//!
//! Invariants: the same text gives the same events however it is cut into pushes (neighbouring `Text` and
//! neighbouring `Thinking` taken together); nothing inside a thinking block is a call; a call names a declared
//! tool and its arguments are one JSON object, or it is `Broken`; what is no call stays text, to the byte, except
//! for white space that stood beside a call or a thinking block.
//!
//! Source: the chat templates of the families, and the cases in tests/golden/toolcalls.json.

mod calls;
mod emit;
mod gemma;
mod json;
mod parser;
mod xml;

pub use parser::Parser;

use serde_json::Value;

/// A family's way of writing calls. Every dialect also reads bare and fenced JSON calls, since small models
/// write those whatever they were taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolDialect {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Qwen 2.5 and 3, Hermes. What is written into prompts
    /// of templates that know no tools.
    #[default]
    Hermes,
    /// Bare `{"name": …, "parameters": …}`, also behind `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS] [{…}, {…}]` or `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder.
    XmlParameters,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
}

/// A tool as far as calls of it are concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    /// JSON schema of the arguments object.
    pub parameters: Value,
}

/// What a stretch of a reply turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Text(String),
    Thinking(String),
    /// `arguments` is the text of one JSON object; `index` counts the calls of this reply from 0.
    Call {
        index: usize,
        name: String,
        arguments: String,
    },
    /// A call that was begun and cannot be used. `raw` is what the model wrote.
    Broken {
        raw: String,
        why: String,
    },
}

/// What a grammar must know to hold a model to well-formed calls: marker, JSON object, marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSyntax {
    pub open: &'static str,
    pub close: &'static str,
    pub name_key: &'static str,
    pub arguments_key: &'static str,
    /// Bare and fenced JSON begins a call too.
    pub bare: bool,
}

impl CallSyntax {
    /// No marker, which every dialect reads: for a call that is demanded of a model whose own way is not JSON.
    pub const BARE: CallSyntax = CallSyntax {
        open: "",
        close: "",
        name_key: "name",
        arguments_key: "arguments",
        bare: true,
    };
}

impl ToolDialect {
    /// The dialect that a chat template teaches. A template without tools is taught [`ToolDialect::Hermes`] by
    /// `ChatTemplate::tools_prompt`.
    pub fn detect(template_source: &str) -> ToolDialect {
        let has = |marker: &str| template_source.contains(marker);
        if has("<|tool_call>") && has("<tool_call|>") {
            ToolDialect::Gemma4
        } else if has("[TOOL_CALLS]") {
            ToolDialect::Mistral
        } else if has("<function=") && has("<parameter=") {
            ToolDialect::XmlParameters
        } else if has("<tool_call>") {
            ToolDialect::Hermes
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("ipython")) {
            ToolDialect::Llama3
        } else {
            ToolDialect::Hermes
        }
    }

    /// The shape for a grammar; `None` where calls are not JSON objects between markers, so that they are only
    /// checked as they are read.
    pub fn call_syntax(self) -> Option<CallSyntax> {
        match self {
            ToolDialect::Hermes => Some(CallSyntax {
                open: "<tool_call>",
                close: "</tool_call>",
                ..CallSyntax::BARE
            }),
            ToolDialect::Llama3 => Some(CallSyntax {
                arguments_key: "parameters",
                ..CallSyntax::BARE
            }),
            ToolDialect::Mistral | ToolDialect::XmlParameters | ToolDialect::Gemma4 => None,
        }
    }

    /// The text that begins a call, as the family was taught.
    pub fn opener(self) -> &'static str {
        self.openers()[0]
    }

    /// Texts that begin a call wherever they stand.
    fn openers(self) -> &'static [&'static str] {
        match self {
            ToolDialect::Hermes => &["<tool_call>"],
            ToolDialect::Llama3 => &["<|python_tag|>", "<tool_call>"],
            ToolDialect::Mistral => &["[TOOL_CALLS]"],
            ToolDialect::XmlParameters => &["<tool_call>", "<function="],
            ToolDialect::Gemma4 => &["<|tool_call>"],
        }
    }

    /// Pairs that hold thinking: at the start of a reply, or behind a call.
    fn thinking(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ToolDialect::Mistral => &[("[THINK]", "[/THINK]"), ("<think>", "</think>")],
            ToolDialect::Gemma4 => &[
                ("<|channel>thought\n", "<channel|>"),
                ("<think>", "</think>"),
            ],
            ToolDialect::Hermes | ToolDialect::Llama3 | ToolDialect::XmlParameters => {
                &[("<think>", "</think>")]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ToolDialect;

    #[test]
    fn templates_tell_their_dialect() {
        for (source, dialect) in [
            (
                "<tools></tools> in <tool_call></tool_call>",
                ToolDialect::Hermes,
            ),
            ("{{ '<|im_start|>' }}", ToolDialect::Hermes),
            (
                "<|start_header_id|>ipython<|end_header_id|>",
                ToolDialect::Llama3,
            ),
            ("[TOOL_CALLS] [AVAILABLE_TOOLS]", ToolDialect::Mistral),
            (
                "<tool_call>\n<function=' + name + '>\n<parameter=",
                ToolDialect::XmlParameters,
            ),
            ("<|tool_call>call:x{}<tool_call|>", ToolDialect::Gemma4),
        ] {
            assert_eq!(ToolDialect::detect(source), dialect, "{source}");
        }
    }
}
