//! What a template can do, found out by rendering small conversations with words that cannot occur by chance.
//! Nobody declares these things: a template either shows a message, drops it, or raises.

use serde_json::{Map, Value, json};

use super::clock::FrozenClock;
use super::{ChatTemplate, RenderInput};

/// How the arguments of earlier tool calls reach the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgumentsForm {
    /// As a mapping: the template writes it with `tojson` or walks it with `items`.
    #[default]
    Mapping,
    /// As JSON text: the template pastes it into a string.
    Text,
}

/// The result of the trials. The default is what a full template does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// A leading system message is accepted.
    pub system: bool,
    /// A second system message directly after the first is shown behind it, before the user's words.
    pub second_system: bool,
    /// A system message in the middle of a conversation is shown.
    pub later_system: bool,
    /// Two messages of one role in a row are shown; otherwise they are merged.
    pub same_role_twice: bool,
    /// A user message directly after a tool result is shown.
    pub user_after_tool: bool,
    /// Message content must be a list of parts.
    pub typed_content: bool,
    /// Tool definitions are shown.
    pub tools: bool,
    /// Calls in earlier assistant messages are shown.
    pub tool_calls: bool,
    /// Messages of role `tool` are shown.
    pub tool_role: bool,
    pub arguments: ArgumentsForm,
    /// A call is shown only when the message's content is null rather than empty.
    pub null_content: bool,
    /// Call ids must be nine letters or digits.
    pub short_call_ids: bool,
    /// The system text or the tools are written into the newest user message, so they move with every turn.
    pub moving_head: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            system: true,
            second_system: true,
            later_system: true,
            same_role_twice: true,
            user_after_tool: true,
            typed_content: false,
            tools: true,
            tool_calls: true,
            tool_role: true,
            arguments: ArgumentsForm::Mapping,
            null_content: false,
            short_call_ids: false,
            moving_head: false,
        }
    }
}

const SYSTEM: &str = "zqsystem";
const SYSTEM_2: &str = "zqmemory";
const USER: &str = "zqask";
const USER_2: &str = "zqagain";
const REPLY: &str = "zqreply";
const REPLY_2: &str = "zqmore";
const TOOL: &str = "zqtool";
const KEY: &str = "zqkey";
const VALUE: &str = "zqvalue";
const RESULT: &str = "zqresult";

/// A conversation is shown when all its words come out, in order.
fn shows(render: &Option<String>, words: &[&str]) -> bool {
    let Some(text) = render else { return false };
    let mut from = 0;
    words.iter().all(|word| {
        let found = text[from..].find(word);
        from += found.unwrap_or(0);
        found.is_some()
    })
}

impl Features {
    pub(super) fn probe(template: &ChatTemplate) -> Features {
        let mut trial = Trial {
            template,
            features: Features::default(),
        };
        trial.probe_content();
        trial.probe_roles();
        trial.probe_calls();
        trial.probe_head();
        trial.features
    }
}

struct Trial<'a> {
    template: &'a ChatTemplate,
    features: Features,
}

impl Trial<'_> {
    fn message(&self, role: &str, text: &str) -> Value {
        if self.features.typed_content {
            json!({"role": role, "content": [{"type": "text", "text": text}]})
        } else {
            json!({"role": role, "content": text})
        }
    }

    fn conversation(&self, turns: &[(&str, &str)]) -> Vec<Value> {
        turns
            .iter()
            .map(|(role, text)| self.message(role, text))
            .collect()
    }

    fn render(&self, messages: &[Value], with_tools: bool) -> Option<String> {
        let tools = [tool_definition()];
        let now = FrozenClock::default();
        let input = RenderInput {
            messages,
            tools: with_tools.then_some(&tools[..]),
            add_generation_prompt: false,
            now: &now,
            extra: &Map::new(),
        };
        self.template.render(&input).ok()
    }

    fn chat(&self, turns: &[(&str, &str)]) -> Option<String> {
        self.render(&self.conversation(turns), false)
    }

    fn probe_content(&mut self) {
        let plain = self.chat(&[("user", USER)]);
        if shows(&plain, &[USER]) {
            return;
        }
        self.features.typed_content = true;
        let typed = self.chat(&[("user", USER)]);
        self.features.typed_content = shows(&typed, &[USER]);
    }

    fn probe_roles(&mut self) {
        let system = self.chat(&[("system", SYSTEM), ("user", USER)]);
        // A template that knows the role and shows nothing of it does so on purpose.
        let drops_unawares = !shows(&system, &[SYSTEM]) && !self.template.source.contains("system");
        self.features.system = system.is_some() && !drops_unawares;
        let two = [("system", SYSTEM), ("system", SYSTEM_2), ("user", USER)];
        self.features.second_system = shows(&self.chat(&two), &[SYSTEM, SYSTEM_2, USER])
            && self.tools_leave_in_place(&two, &[SYSTEM_2, USER]);
        let later = [
            ("system", SYSTEM),
            ("user", USER),
            ("assistant", REPLY),
            ("system", SYSTEM_2),
            ("user", USER_2),
        ];
        self.features.later_system = shows(&self.chat(&later), &[USER, REPLY, SYSTEM_2, USER_2]);
        let users = self.chat(&[("user", USER), ("user", USER_2)]);
        let replies = [
            ("user", USER),
            ("assistant", REPLY),
            ("assistant", REPLY_2),
            ("user", USER_2),
        ];
        self.features.same_role_twice = shows(&users, &[USER, USER_2])
            && shows(&self.chat(&replies), &[USER, REPLY, REPLY_2, USER_2]);
    }

    /// Whether tools change what stands directly before these words. Where they do, the template took a message for
    /// another: Llama 3 writes the tools into whatever follows the system message.
    fn tools_leave_in_place(&self, turns: &[(&str, &str)], words: &[&str]) -> bool {
        let messages = self.conversation(turns);
        let (Some(without), Some(with)) =
            (self.render(&messages, false), self.render(&messages, true))
        else {
            return false;
        };
        let before = |text: &str, word: &str| {
            let end = text.find(word)?;
            let from = text[..end]
                .char_indices()
                .rev()
                .nth(7)
                .map_or(0, |(at, _)| at);
            Some(text[from..end].to_owned())
        };
        words
            .iter()
            .all(|word| before(&without, word) == before(&with, word))
    }

    fn probe_calls(&mut self) {
        let base = self.chat(&[("user", USER)]);
        let with_tools = self.render(&self.conversation(&[("user", USER)]), true);
        self.features.tools = shows(&with_tools, &[TOOL]) && base != with_tools;
        self.features.tool_calls = false;
        // The first form that shows the call with its arguments as JSON; else the first that shows its name.
        let mut fallback = None;
        for null_content in [false, true] {
            for arguments in [ArgumentsForm::Mapping, ArgumentsForm::Text] {
                for short_call_ids in [false, true] {
                    let form = CallForm {
                        arguments,
                        null_content,
                        short_call_ids,
                    };
                    let render = self.render(&self.call_conversation(form), self.features.tools);
                    if !shows(&render, &[USER, TOOL]) {
                        continue;
                    }
                    let text = render.unwrap_or_default();
                    let body = text.find(USER).map_or("", |at| &text[at..]);
                    let as_python = body.contains(&format!("'{KEY}'"));
                    let escaped_twice = body.contains(&format!("\\\"{KEY}"));
                    if body.contains(VALUE) && !as_python && !escaped_twice {
                        return self.accept(form);
                    }
                    fallback = fallback.or(Some(form));
                }
            }
        }
        match fallback {
            Some(form) => self.accept(form),
            None => {
                self.features.tool_role = false;
                self.features.user_after_tool = false;
            }
        }
    }

    fn accept(&mut self, form: CallForm) {
        self.features.tool_calls = true;
        self.features.arguments = form.arguments;
        self.features.null_content = form.null_content;
        self.features.short_call_ids = form.short_call_ids;
        let mut messages = self.call_conversation(form);
        let render = self.render(&messages, self.features.tools);
        self.features.tool_role = shows(&render, &[USER, RESULT]);
        messages.push(self.message("user", USER_2));
        let render = self.render(&messages, self.features.tools);
        self.features.user_after_tool = shows(&render, &[USER, RESULT, USER_2]);
    }

    fn call_conversation(&self, form: CallForm) -> Vec<Value> {
        let id = if form.short_call_ids {
            "abcdefgh1"
        } else {
            "call_1"
        };
        let arguments = match form.arguments {
            ArgumentsForm::Mapping => json!({KEY: VALUE}),
            ArgumentsForm::Text => json!(format!("{{\"{KEY}\": \"{VALUE}\"}}")),
        };
        let mut call = self.message("assistant", "");
        if form.null_content {
            call["content"] = Value::Null;
        }
        call["tool_calls"] = json!([{"id": id, "type": "function", "function": {"name": TOOL, "arguments": arguments}}]);
        let mut result = self.message("tool", RESULT);
        result["tool_call_id"] = json!(id);
        result["name"] = json!(TOOL);
        vec![self.message("user", USER), call, result]
    }

    /// Does the text up to the end of the first user message stay when a second turn follows?
    fn probe_head(&mut self) {
        let mut turns = vec![("user", USER)];
        if self.features.system {
            turns.insert(0, ("system", SYSTEM));
        }
        let head = self.conversation(&turns);
        turns.extend([("assistant", REPLY), ("user", USER_2)]);
        let both = self.conversation(&turns);
        let moves = |with_tools: bool| {
            let (Some(short), Some(long)) = (
                self.render(&head, with_tools),
                self.render(&both, with_tools),
            ) else {
                return false;
            };
            let Some(end) = short.find(USER).map(|at| at + USER.len()) else {
                return false;
            };
            !long.starts_with(&short[..end])
        };
        self.features.moving_head = moves(false) || (self.features.tools && moves(true));
    }
}

#[derive(Clone, Copy)]
struct CallForm {
    arguments: ArgumentsForm,
    null_content: bool,
    short_call_ids: bool,
}

fn tool_definition() -> Value {
    json!({"type": "function", "function": {
        "name": TOOL,
        "description": "d",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "k"}}, "required": [KEY]},
    }})
}
