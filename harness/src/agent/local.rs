//! The in-process engine as the agent's runtime.

use std::sync::Arc;

use engine::{Finish, Plan, Report, Salt, SamplingParams, Timeline};
use models::template::FrozenClock;
use serde_json::Map;

use super::finish_tool;
use super::machine::Answer;
use super::runtime::{Ask, Calls, Reply, Runtime, StepError, Streamed};
use super::transcript::Call;
use super::view::{Turn, View};
use crate::chat::{
    CallText, ChatModel, Choice, Conversation, Message, ReplyEvent, ReplyOptions, SystemPart, Tool,
};
use crate::error::Error;
use crate::tools::ToolSpec;

/// A model in this process.
pub struct Local {
    model: Arc<ChatModel>,
    sampling: SamplingParams,
    clock: FrozenClock,
    /// Keeps the conversation in memory between the steps.
    timeline: Timeline,
    /// Those that wait while a branch is asked.
    waiting: Vec<Timeline>,
}

impl Local {
    /// `clock` is taken once, when the session began: a clock that moves would change the prefix.
    pub fn new(model: Arc<ChatModel>, sampling: SamplingParams, clock: FrozenClock) -> Local {
        let timeline = model.engine.timeline(Salt::default());
        Local {
            model,
            sampling,
            clock,
            timeline,
            waiting: Vec::new(),
        }
    }

    fn conversation(&self, view: &View, tools: &[ToolSpec]) -> Conversation {
        let system = view.sections.iter().map(|section| SystemPart {
            name: section.name.clone(),
            layer: section.layer,
            text: section.text.clone(),
        });
        let tools = tools.iter().map(|spec| Tool {
            name: spec.name.to_owned(),
            description: spec.description.clone(),
            parameters: spec.parameters.clone(),
            accepted: Some(spec.accepted()),
        });
        Conversation {
            system: system.collect(),
            tools: tools.collect(),
            messages: view.turns.iter().map(message).collect(),
            clock: self.clock.clone(),
            extra: Map::new(),
            salt: Salt::default(),
        }
    }
}

fn message(turn: &Turn) -> Message {
    match turn {
        Turn::User { text } => Message::user(text.clone()),
        Turn::Assistant {
            text,
            calls,
            sampled,
        } => {
            let calls = calls.iter().map(|c| CallText {
                id: c.id.clone(),
                name: c.name.clone(),
                arguments: c.arguments.clone(),
            });
            let sampled = (!sampled.is_empty()).then(|| sampled.clone().into());
            Message {
                sampled,
                ..Message::assistant(text.clone(), calls.collect())
            }
        }
        Turn::Result { call, name, text } => {
            Message::tool(call.clone(), name.clone(), text.clone())
        }
    }
}

impl Runtime for Local {
    fn model(&self) -> &str {
        &self.model.name
    }

    fn window(&self) -> usize {
        self.model.engine.context().tokens
    }

    fn count(&self, text: &str) -> usize {
        self.model.format.count(text)
    }

    fn measure(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize, Error> {
        if view.turns.is_empty() {
            let fixed: usize = view.sections.iter().map(|s| self.count(&s.text)).sum();
            let tools: usize = tools
                .iter()
                .map(|t| self.count(&t.to_function().to_string()))
                .sum();
            return Ok(fixed + tools);
        }
        Ok(self
            .model
            .format
            .compose(&self.conversation(view, tools))?
            .prompt
            .len())
    }

    fn branch(&mut self) {
        let branch = self.timeline.fork();
        self.waiting
            .push(std::mem::replace(&mut self.timeline, branch));
    }

    fn join(&mut self) {
        if let Some(timeline) = self.waiting.pop() {
            self.timeline = timeline;
        }
    }

    fn ask(&mut self, ask: &Ask<'_>, watch: &mut dyn FnMut(Streamed)) -> Result<Reply, StepError> {
        let options = ReplyOptions {
            sampling: self.sampling.clone(),
            max_tokens: Some(ask.reply_max),
            masked: match ask.calls {
                Calls::AnyBut(masked) => masked.iter().map(|n| (*n).to_owned()).collect(),
                Calls::Finish | Calls::Barred => Vec::new(),
            },
            choice: match ask.calls {
                Calls::AnyBut(_) => Choice::Auto,
                Calls::Finish => Choice::Named(finish_tool::NAME.to_owned()),
                Calls::Barred => Choice::Barred,
            },
            ..ReplyOptions::default()
        };
        let mut conversation = self.conversation(ask.view, ask.tools);
        if !ask.thinking {
            // The name that templates of thinking models ask for; others do not look at it.
            let off = ("enable_thinking".to_owned(), false.into());
            conversation.extra.extend([off]);
        }
        if ask.calls == Calls::Finish
            && let Some(finish) = conversation
                .tools
                .iter_mut()
                .find(|t| t.name == finish_tool::NAME)
        {
            finish.accepted = Some(finish_tool::bounded());
        }
        // A summary is a branch: the conversation itself goes on elsewhere.
        let branch = (ask.calls == Calls::Barred).then(|| self.timeline.fork());
        let timeline = branch.as_ref().unwrap_or(&self.timeline);
        let mut reply = self
            .model
            .reply_in(timeline, conversation, options)
            .map_err(|error| StepError {
                worth_retrying: false,
                error,
            })?;
        let canceller = reply.canceller();
        let _stops = ask.cancel.on_cancel(move || canceller.cancel());
        let mut answer = Answer::default();
        let mut plan = None;
        while let Some(event) = reply.recv() {
            match event {
                ReplyEvent::Plan(made) => {
                    plan = Some(made.clone());
                    watch(Streamed::Plan(made));
                }
                ReplyEvent::Text(text) => {
                    answer.text.push_str(&text);
                    watch(Streamed::Text(text));
                }
                ReplyEvent::Thinking(text) => {
                    answer.thinking.push_str(&text);
                    watch(Streamed::Thinking(text));
                }
                ReplyEvent::Call {
                    name, arguments, ..
                } => {
                    answer.calls.push(Call {
                        id: String::new(),
                        name,
                        arguments,
                    });
                }
                ReplyEvent::Broken { raw, why } => answer.broken = Some((raw, why)),
                ReplyEvent::Token { .. } => {}
                ReplyEvent::Done {
                    finish,
                    report,
                    ids,
                } => {
                    // Its tools run now, or a person is asked whether they may.
                    self.timeline.set_held(!answer.calls.is_empty());
                    return finished(answer, finish, plan, report, ids);
                }
            }
        }
        Err(StepError {
            error: Error::bug("the engine's events ended without a last one"),
            worth_retrying: true,
        })
    }
}

fn finished(
    mut answer: Answer,
    finish: Finish,
    plan: Option<Plan>,
    report: Report,
    ids: Vec<u32>,
) -> Result<Reply, StepError> {
    let tokens = report.tokens + ids.len();
    answer.sampled = ids;
    let interrupted = match finish {
        Finish::Error(error) => {
            return Err(StepError {
                error: error.into(),
                worth_retrying: true,
            });
        }
        Finish::Cancelled => true,
        Finish::Length => {
            answer.cut = true;
            false
        }
        Finish::Stop | Finish::EndToken | Finish::StopString(_) => false,
    };
    Ok(Reply {
        answer,
        tokens,
        plan,
        report: Some(report),
        interrupted,
    })
}
