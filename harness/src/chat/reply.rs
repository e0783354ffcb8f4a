//! A model that chats: prompt in, a stream of text, thinking and calls out. Shared by the agent and
//! the server, so a call is parsed and constrained in one way only.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::grammar::{CallStyle, GrammarSpec, Tool as GrammarTool, ToolCallGrammar, ToolChoice};
use engine::{
    Canceller, Engine, Event, Finish, Generation, Logprob, Plan, Priority, Report, Request,
    SamplingParams, Timeline,
};
use models::dialect::{self, CallSyntax, Parser, ToolDialect};
use models::tokenizer::Utf8Stream;
use serde_json::Value;

use super::format::{ChatFormat, Composed};
use super::message::{CallText, Conversation, Message};
use crate::error::Error;

/// What a caller may ask of one reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    pub sampling: SamplingParams,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub choice: Choice,
    /// Tools that stand in the prompt and cannot be called now.
    pub masked: Vec<String>,
    /// Whether one reply may hold several calls.
    pub parallel: bool,
    /// The whole reply must be JSON that this schema accepts.
    pub schema: Option<Value>,
    pub logprobs: Option<usize>,
    pub priority: Priority,
}

/// Whether the reply may, must or must not call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The tools stay in the prompt, and a call is no call: a mask, not a change of the prefix.
    Barred,
    #[default]
    Auto,
    Required,
    Named(String),
}

/// What happens while a reply is made.
#[derive(Debug)]
pub enum ReplyEvent {
    Plan(Plan),
    Text(String),
    Thinking(String),
    Call {
        index: usize,
        name: String,
        arguments: String,
    },
    /// A call that could not be read.
    Broken {
        raw: String,
        why: String,
    },
    Token {
        id: u32,
        bytes: Vec<u8>,
        logprob: Logprob,
    },
    /// Last, and always.
    Done {
        finish: Finish,
        report: Report,
        ids: Vec<u32>,
    },
}

/// A loaded model with its engine, its format and its way of writing calls.
pub struct ChatModel {
    pub name: String,
    pub engine: Engine,
    pub format: ChatFormat,
    pub dialect: ToolDialect,
}

impl ChatModel {
    /// Starts a reply to `conversation`.
    pub fn reply(
        self: &Arc<Self>,
        conversation: Conversation,
        options: ReplyOptions,
    ) -> Result<Reply, Error> {
        self.start(conversation, options, |request| {
            self.engine.generate(request)
        })
    }

    /// As [`Self::reply`], in the namespace of `timeline`, which holds the conversation and the reply
    /// afterwards.
    pub fn reply_in(
        self: &Arc<Self>,
        timeline: &Timeline,
        conversation: Conversation,
        options: ReplyOptions,
    ) -> Result<Reply, Error> {
        self.start(conversation, options, |request| timeline.generate(request))
    }

    fn start(
        self: &Arc<Self>,
        conversation: Conversation,
        options: ReplyOptions,
        generate: impl FnOnce(Request) -> engine::Result<Generation>,
    ) -> Result<Reply, Error> {
        let composed = self.format.compose(&conversation)?;
        let request = Request {
            prompt: composed.prompt.clone(),
            salt: conversation.salt.clone(),
            sampling: options.sampling.clone(),
            max_tokens: options.max_tokens,
            stop: options
                .stop
                .iter()
                .map(|s| s.clone().into_bytes())
                .collect(),
            grammar: self.grammar(&conversation, &options)?,
            logprobs: options.logprobs,
            priority: options.priority,
            ..Request::default()
        };
        let generation = generate(request)?;
        let calls_count = options.choice != Choice::Barred && options.schema.is_none();
        let tools = if calls_count {
            conversation.tools.iter().map(tool_of).collect()
        } else {
            Vec::new()
        };
        Ok(Reply {
            parser: Parser::new(self.dialect, tools, &composed.opening),
            utf8: self.format.tokenizer().text_stream(),
            gathered: Gathered::default(),
            ready: VecDeque::new(),
            model: self.clone(),
            composed,
            generation,
        })
    }

    fn grammar(
        &self,
        conversation: &Conversation,
        options: &ReplyOptions,
    ) -> Result<Option<GrammarSpec>, Error> {
        if let Some(schema) = &options.schema {
            return Ok(Some(GrammarSpec::json_schema(schema.clone())));
        }
        let choice = match &options.choice {
            Choice::Barred => ToolChoice::None,
            Choice::Auto => ToolChoice::Auto,
            Choice::Required => ToolChoice::Required,
            Choice::Named(name) => ToolChoice::Named(name.clone()),
        };
        let Some(style) = self.call_style(&choice) else {
            return Ok(None);
        };
        let masked = |t: &&super::message::Tool| options.masked.contains(&t.name);
        let tools = conversation.tools.iter().filter(|t| !masked(t));
        let grammar = ToolCallGrammar {
            tools: tools
                .map(|t| GrammarTool {
                    name: t.name.clone(),
                    parameters: t.accepted().clone(),
                })
                .collect(),
            style,
            choice,
            parallel: options.parallel,
        };
        grammar.spec().map_err(|error| Error::Said {
            blame: error.blame(),
            text: error.to_string(),
        })
    }

    /// How this dialect writes a call, where a grammar can hold it to that. A call that is demanded of
    /// a model whose own way is not JSON is written bare, which every dialect reads; one that is barred
    /// is known by what opens it.
    fn call_style(&self, choice: &ToolChoice) -> Option<CallStyle> {
        let own = self.dialect.call_syntax();
        let syntax = match choice {
            ToolChoice::Auto => own?,
            ToolChoice::Required | ToolChoice::Named(_) => own.unwrap_or(CallSyntax::BARE),
            ToolChoice::None => CallSyntax {
                open: self.dialect.opener(),
                ..own.unwrap_or(CallSyntax::BARE)
            },
        };
        Some(CallStyle {
            open: syntax.open.to_owned(),
            close: syntax.close.to_owned(),
            name_key: syntax.name_key.to_owned(),
            arguments_key: syntax.arguments_key.to_owned(),
            bare: syntax.bare,
        })
    }
}

fn tool_of(tool: &super::message::Tool) -> dialect::ToolSpec {
    dialect::ToolSpec {
        name: tool.name.clone(),
        parameters: tool.accepted().clone(),
    }
}

/// A reply that is being made. Dropping it cancels it.
pub struct Reply {
    model: Arc<ChatModel>,
    composed: Composed,
    generation: Generation,
    parser: Parser,
    utf8: Utf8Stream,
    gathered: Gathered,
    ready: VecDeque<ReplyEvent>,
}

/// The reply so far, as a client would send it back.
#[derive(Debug, Default)]
struct Gathered {
    text: String,
    calls: Vec<CallText>,
}

impl Reply {
    /// The next event, waiting for it; `None` after `Done`.
    pub fn recv(&mut self) -> Option<ReplyEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.generation.recv()?;
            self.take(event);
        }
    }

    /// As [`Reply::recv`], for async code.
    pub async fn recv_async(&mut self) -> Option<ReplyEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.generation.recv_async().await?;
            self.take(event);
        }
    }

    /// Stops the reply from elsewhere.
    pub fn canceller(&self) -> Canceller {
        self.generation.canceller()
    }

    /// What was sent.
    pub fn composed(&self) -> &Composed {
        &self.composed
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Plan(plan) => self.ready.push_back(ReplyEvent::Plan(plan)),
            Event::Token { id, bytes, logprob } => {
                if !self.model.format.tokenizer().is_end(id) {
                    let text = self.utf8.push(&bytes);
                    let parsed = self.parser.push(&text);
                    self.parsed(parsed);
                }
                if let Some(logprob) = logprob {
                    self.ready
                        .push_back(ReplyEvent::Token { id, bytes, logprob });
                }
            }
            Event::Done {
                reason,
                report,
                ids,
            } => {
                let rest = self.utf8.finish();
                let parsed = self.parser.push(&rest);
                self.parsed(parsed);
                let parsed = self.parser.finish();
                self.parsed(parsed);
                // The ids go on behind a stop string's beginning, the words do not: they are two texts.
                if !matches!(reason, Finish::StopString(_)) {
                    let (text, calls) = (self.gathered.text.clone(), self.gathered.calls.clone());
                    let reply = Message::assistant(text, calls);
                    self.model.format.remember(&self.composed, &reply, &ids);
                }
                self.ready.push_back(ReplyEvent::Done {
                    finish: reason,
                    report,
                    ids,
                });
            }
        }
    }

    fn parsed(&mut self, events: Vec<dialect::Event>) {
        for event in events {
            let event = match event {
                dialect::Event::Text(text) if text.is_empty() => continue,
                dialect::Event::Text(text) => {
                    self.gathered.text.push_str(&text);
                    ReplyEvent::Text(text)
                }
                dialect::Event::Thinking(text) => ReplyEvent::Thinking(text),
                dialect::Event::Call {
                    index,
                    name,
                    arguments,
                } => {
                    let call = CallText {
                        id: String::new(),
                        name: name.clone(),
                        arguments: arguments.clone(),
                    };
                    self.gathered.calls.push(call);
                    ReplyEvent::Call {
                        index,
                        name,
                        arguments,
                    }
                }
                dialect::Event::Broken { raw, why } => {
                    // A client is shown it as text, and sends it back as text.
                    self.gathered.text.push_str(&raw);
                    ReplyEvent::Broken { raw, why }
                }
            };
            self.ready.push_back(event);
        }
    }
}
