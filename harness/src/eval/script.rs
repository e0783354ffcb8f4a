//! A runtime that plays answers from a script: whole runs without a model, the requests kept.

use std::collections::VecDeque;

use crate::agent::machine::Answer;
use crate::agent::runtime::{Ask, Calls, Reply, Runtime, StepError, Streamed};
use crate::agent::transcript::Call;
use crate::agent::view::{Turn, View};
use crate::error::Error;
use crate::tools::{Cancel, ToolSpec};

/// One answer, and what its request must have held.
#[derive(Clone, Debug)]
pub struct Line {
    pub answer: Answer,
    /// Texts that the request holds somewhere.
    pub seen: Vec<String>,
    /// Texts that it does not hold.
    pub unseen: Vec<String>,
}

impl Line {
    pub fn says(text: &str) -> Line {
        Line::of(Answer {
            text: text.into(),
            ..Answer::default()
        })
    }

    pub fn calls(name: &str, arguments: serde_json::Value) -> Line {
        let call = Call {
            id: "from the model".into(),
            name: name.into(),
            arguments: arguments.to_string(),
        };
        Line::of(Answer {
            calls: vec![call],
            ..Answer::default()
        })
    }

    pub fn bash(command: &str) -> Line {
        Line::calls("bash", serde_json::json!({ "command": command }))
    }

    fn of(answer: Answer) -> Line {
        Line {
            answer,
            seen: Vec::new(),
            unseen: Vec::new(),
        }
    }

    /// Its request holds `text`.
    pub fn seeing(mut self, text: &str) -> Line {
        self.seen.push(text.to_owned());
        self
    }

    /// Its request does not hold `text`.
    pub fn not_seeing(mut self, text: &str) -> Line {
        self.unseen.push(text.to_owned());
        self
    }
}

/// Plays its lines in order and keeps every request.
pub struct Script {
    pub window: usize,
    pub lines: VecDeque<Line>,
    /// What is answered where a summary is asked for.
    pub summaries: VecDeque<String>,
    pub asked: Vec<View>,
    pub summaries_asked: Vec<View>,
    /// The first request that was not as its line says.
    pub wrong: Option<String>,
    pub cancel: Cancel,
    /// Ctrl-C is pressed while this answer comes.
    pub cancelled_at: Option<usize>,
}

impl Script {
    pub fn new(window: usize, lines: Vec<Line>) -> Script {
        Script {
            window,
            lines: lines.into(),
            summaries: VecDeque::new(),
            asked: Vec::new(),
            summaries_asked: Vec::new(),
            wrong: None,
            cancel: Cancel::new(),
            cancelled_at: None,
        }
    }

    fn check(&mut self, line: &Line, view: &View) {
        let request = format!("{:?}\n{:?}", view.sections, view.turns);
        // As it stands in the debug form.
        let holds = |text: &String| {
            let shown = format!("{text:?}");
            request.contains(&shown[1..shown.len() - 1])
        };
        let missing = line.seen.iter().find(|text| !holds(text));
        let extra = line.unseen.iter().find(|text| holds(text));
        let step = self.asked.len();
        let wrong = match (missing, extra) {
            (Some(text), _) => format!("request {step} does not hold {text:?}"),
            (None, Some(text)) => format!("request {step} holds {text:?}"),
            (None, None) => return,
        };
        self.wrong.get_or_insert(wrong);
    }
}

/// Four characters a token: close enough for budgets.
pub fn count(text: &str) -> usize {
    text.chars().count().div_ceil(4)
}

impl Runtime for Script {
    fn model(&self) -> &str {
        "script"
    }

    fn window(&self) -> usize {
        self.window
    }

    fn count(&self, text: &str) -> usize {
        count(text)
    }

    fn measure(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize, Error> {
        let turns = view.turns.iter().map(|turn| match turn {
            Turn::User { text } | Turn::Result { text, .. } => count(text) + 4,
            Turn::Assistant { text, calls, .. } => {
                count(text) + 4 + calls.iter().map(|c| count(&c.arguments) + 4).sum::<usize>()
            }
        });
        let sections: usize = view.sections.iter().map(|s| count(&s.text)).sum();
        let tools: usize = tools
            .iter()
            .map(|t| count(&t.to_function().to_string()))
            .sum();
        Ok(turns.sum::<usize>() + sections + tools)
    }

    fn ask(&mut self, ask: &Ask<'_>, _: &mut dyn FnMut(Streamed)) -> Result<Reply, StepError> {
        let refuse = |error| StepError {
            error,
            worth_retrying: false,
        };
        let prompt = self.measure(ask.view, ask.tools).map_err(refuse)?;
        if prompt + ask.reply_max > self.window {
            return Err(refuse(Error::caller(format!(
                "a request of {prompt} tokens and {} of reply does not fit {}",
                ask.reply_max, self.window
            ))));
        }
        let answer = if ask.calls == Calls::Barred {
            self.summaries_asked.push(ask.view.clone());
            Answer {
                text: self.summaries.pop_front().unwrap_or_default(),
                ..Answer::default()
            }
        } else {
            self.asked.push(ask.view.clone());
            let line = self
                .lines
                .pop_front()
                .ok_or_else(|| refuse(Error::caller("the script has no answer left")))?;
            self.check(&line, ask.view);
            line.answer
        };
        if self.cancelled_at == Some(self.asked.len()) {
            self.cancel.cancel();
        }
        let tokens = prompt + count(&answer.text);
        Ok(Reply {
            answer,
            tokens,
            plan: None,
            report: None,
            interrupted: false,
        })
    }
}
