//! Tool calls: a call that starts is well formed, names a tool that exists, and has the arguments
//! that its schema asks for.
//!
//! Models write calls between markers of their template, and small ones also as bare or fenced JSON;
//! each of these starts a rule. Text that merely looks like a call (a fenced object whose `name` is
//! no tool, in the middle of an answer) stays text.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::compile::with_options;
use super::spec::{After, GrammarSpec, Place, Rule, Start, Then, Trigger};
use super::{GrammarError, GrammarVocabulary, compile};
use crate::TokenBytes;
use crate::limits::{TOOLS_MAX, WHITE_SPACE_MAX};

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// A JSON schema of the arguments object; null for any object.
    pub parameters: Value,
}

/// How a model family writes a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStyle {
    /// What comes before the JSON, white space aside: `<tool_call>`. Empty where calls are bare.
    pub open: String,
    pub close: String,
    pub name_key: String,
    pub arguments_key: String,
    /// Also take bare and fenced JSON at the start of an answer, and fenced calls of tools anywhere.
    pub bare: bool,
}

impl CallStyle {
    /// `<tool_call> {"name": ..., "arguments": {...}} </tool_call>`, as Qwen and Hermes write it.
    pub fn tagged() -> Self {
        Self {
            open: "<tool_call>".into(),
            close: "</tool_call>".into(),
            name_key: "name".into(),
            arguments_key: "arguments".into(),
            bare: true,
        }
    }
}

/// Whether a call may, must or must not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// No call can be written, though the tools stay in the prompt.
    None,
    Auto,
    /// At least one call, of any tool.
    Required,
    /// Exactly one call, of this tool.
    Named(String),
}

/// Everything that decides the grammar of an answer with tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallGrammar {
    pub tools: Vec<Tool>,
    pub style: CallStyle,
    pub choice: ToolChoice,
    /// Whether more than one call may be made in one answer.
    pub parallel: bool,
}

/// The language of one call, or of several.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRule {
    tools: Arc<[Tool]>,
    name_key: String,
    arguments_key: String,
    before: String,
    after: String,
    repeat: bool,
}

/// Ways to begin an object, as models indent it.
const BRACES: &[&str] = &["{", "{ ", "{\n", "{\n  ", "{\n    ", "{\n\t"];
/// What small models put around a call instead of their template's markers, and the rule of
/// [`ToolCallGrammar::triggered`] that ends with its other half.
const WRAPPERS: &[(&str, usize)] = &[
    ("```json\n", FENCED),
    ("```\n", FENCED),
    ("<tools>", LISTED),
    ("<tools>\n", LISTED),
];
const FENCED: usize = 2;
const LISTED: usize = 3;

impl ToolCallGrammar {
    /// The grammar, or `None` where the answer is free.
    pub fn spec(&self) -> Result<Option<GrammarSpec>, GrammarError> {
        if self.tools.len() > TOOLS_MAX {
            let why = format!("{} of them; need at most {TOOLS_MAX}", self.tools.len());
            return Err(GrammarError::Rule { what: "tools", why });
        }
        match &self.choice {
            ToolChoice::None | ToolChoice::Auto if self.tools.is_empty() => Ok(None),
            ToolChoice::None => Ok(Some(self.barred())),
            ToolChoice::Auto => Ok(Some(self.triggered())),
            ToolChoice::Required if self.tools.is_empty() => Err(GrammarError::Rule {
                what: "tools",
                why: "a call is required, but there are no tools; need at least one".into(),
            }),
            ToolChoice::Required => {
                let tools = self.tools.clone().into();
                Ok(Some(GrammarSpec::at_once(self.rule(
                    tools,
                    true,
                    &self.style.close,
                    self.parallel,
                ))))
            }
            ToolChoice::Named(name) => {
                let tool = self.tools.iter().find(|t| t.name == *name).ok_or_else(|| {
                    let names: Vec<&str> = self.tools.iter().map(|t| t.name.as_str()).collect();
                    let have = if names.is_empty() {
                        "no tools".into()
                    } else {
                        names.join(", ")
                    };
                    GrammarError::UnknownTool {
                        name: name.clone(),
                        have,
                    }
                })?;
                let tools = Arc::new([tool.clone()]);
                Ok(Some(GrammarSpec::at_once(self.rule(
                    tools,
                    true,
                    &self.style.close,
                    false,
                ))))
            }
        }
    }

    fn rule(&self, tools: Arc<[Tool]>, opens: bool, after: &str, repeat: bool) -> Rule {
        Rule::Call(CallRule {
            tools,
            name_key: self.style.name_key.clone(),
            arguments_key: self.style.arguments_key.clone(),
            before: if opens {
                self.style.open.clone()
            } else {
                String::new()
            },
            after: after.to_owned(),
            repeat,
        })
    }

    /// Rule 0 follows the marker, rule 1 is a bare call, then those in wrappers.
    fn triggered(&self) -> GrammarSpec {
        let tools: Arc<[Tool]> = self.tools.clone().into();
        let rule = |after: &str| self.rule(tools.clone(), false, after, false);
        let rules = vec![
            rule(&self.style.close),
            rule(""),
            rule("```"),
            rule("</tools>"),
        ];
        let mut triggers = Vec::new();
        if !self.style.open.is_empty() {
            let text = self.style.open.clone().into_bytes();
            let then = Then::Follow {
                rule: 0,
                read: Vec::new(),
            };
            triggers.push(Trigger {
                text,
                place: Place::Anywhere,
                then,
            });
        }
        if self.style.bare || self.style.open.is_empty() {
            self.bare_triggers(&mut triggers);
        }
        let after = if self.parallel {
            After::Free
        } else {
            After::End
        };
        GrammarSpec {
            rules,
            start: Start::Triggers(triggers),
            after,
        }
    }

    fn bare_triggers(&self, triggers: &mut Vec<Trigger>) {
        let key = json!(self.style.name_key).to_string();
        let mut push = |fence: &str, read: String, place: Place, rule: usize| {
            let text = format!("{fence}{read}").into_bytes();
            let read = read.into_bytes();
            let then = Then::Follow { rule, read };
            triggers.push(Trigger { text, place, then });
        };
        for brace in BRACES {
            push("", format!("{brace}{key}"), Place::Opening, 1);
            for (wrapper, rule) in WRAPPERS {
                push(wrapper, format!("{brace}{key}"), Place::Opening, *rule);
                for tool in &self.tools {
                    for colon in [": ", ":"] {
                        let read = format!("{brace}{key}{colon}{}", json!(tool.name));
                        push(wrapper, read, Place::Anywhere, *rule);
                    }
                }
            }
        }
    }

    /// Refused as early as a call can be told from text, so that no half of one is left standing.
    fn barred(&self) -> GrammarSpec {
        let mut triggers = Vec::new();
        let mut refuse = |text: &[u8], place| {
            let (text, then) = (text.to_vec(), Then::Refuse);
            triggers.push(Trigger { text, place, then });
        };
        if !self.style.open.is_empty() {
            refuse(self.style.open.as_bytes(), Place::Anywhere);
        }
        if self.style.bare || self.style.open.is_empty() {
            for opening in ["{", "[{", "```json", "```\n{", "<tools>"] {
                refuse(opening.as_bytes(), Place::Opening);
            }
            let mut calls = Vec::new();
            self.bare_triggers(&mut calls);
            for call in calls.iter().filter(|t| t.place == Place::Anywhere) {
                refuse(&call.text, Place::Anywhere);
            }
        }
        GrammarSpec {
            rules: Vec::new(),
            start: Start::Triggers(triggers),
            after: After::Free,
        }
    }
}

/// The Lark grammar of `rule`. A schema that cannot be enforced becomes "any object", with a
/// warning: one odd tool must not make the others unusable.
pub(super) fn lark(
    vocabulary: &GrammarVocabulary,
    rule: &CallRule,
    warnings: &mut Vec<String>,
) -> Result<String, GrammarError> {
    let tokens = vocabulary.tokens();
    let mut text = String::from(if rule.repeat {
        "start: one (WS? one)*\n"
    } else {
        "start: one\n"
    });
    let names: Vec<String> = (0..rule.tools.len()).map(|i| format!("call_{i}")).collect();
    let _ = writeln!(
        text,
        "one: {} call {}",
        marker(tokens, &rule.before, false),
        marker(tokens, &rule.after, true)
    );
    let _ = writeln!(text, "call: {}", names.join(" | "));
    for (i, tool) in rule.tools.iter().enumerate() {
        let key = |key: &str| quoted(&json!(key).to_string());
        let _ = writeln!(
            text,
            "call_{i}: \"{{\" WS? {} WS? \":\" WS? {} WS? \",\" WS? {} WS? \":\" WS? args_{i} WS? \"}}\"",
            key(&rule.name_key),
            key(&tool.name),
            key(&rule.arguments_key),
        );
        let schema = arguments(vocabulary, tool, warnings)?;
        let _ = writeln!(text, "args_{i}: %json {schema}");
    }
    let _ = writeln!(text, "WS: /[ \\n\\r\\t]{{1,{WHITE_SPACE_MAX}}}/");
    Ok(text)
}

/// A marker with the white space between it and the JSON. A control token is matched by its id: its
/// text must not be spelled with other tokens.
fn marker(tokens: &dyn TokenBytes, marker: &str, closes: bool) -> String {
    if marker.is_empty() {
        // Behind a trigger the marker has been read; the white space behind it has not.
        return if closes { String::new() } else { "WS?".into() };
    }
    let control = (0..tokens.vocab_size() as u32)
        .find(|&id| tokens.is_control(id) && tokens.bytes(id) == marker.as_bytes());
    let marker = match control {
        Some(id) => format!("<[{id}]>"),
        None => quoted(marker),
    };
    if closes {
        format!("WS? {marker}")
    } else {
        format!("{marker} WS?")
    }
}

/// A string of the Lark dialect, which has JSON's escapes.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

fn arguments(
    vocabulary: &GrammarVocabulary,
    tool: &Tool,
    warnings: &mut Vec<String>,
) -> Result<Value, GrammarError> {
    let any = json!({ "type": "object" });
    let mut schema = match &tool.parameters {
        Value::Object(map) if !map.is_empty() => tool.parameters.clone(),
        _ => return Ok(with_options(&any)),
    };
    let says_what = |key: &str| schema.get(key).is_some();
    if !["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"]
        .into_iter()
        .any(says_what)
    {
        schema["type"] = "object".into();
    }
    match compile::check_schema(vocabulary, &mut schema) {
        Ok(notes) => {
            warnings.extend(
                notes
                    .into_iter()
                    .map(|note| format!("tool {:?}: {note}", tool.name)),
            );
            Ok(with_options(&schema))
        }
        Err(error @ GrammarError::Schema { .. }) => {
            warnings.push(format!(
                "tool {:?}: {error}; any object is accepted as its arguments",
                tool.name
            ));
            Ok(with_options(&any))
        }
        Err(error) => Err(error),
    }
}
