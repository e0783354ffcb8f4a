//! What answers a model step. The agent knows only this: the in-process engine is one runtime, a
//! script in a test another, a remote server may be a third.

use engine::{Plan, Report};

use super::machine::Answer;
use super::view::View;
use crate::error::Error;
use crate::tools::{Cancel, ToolSpec};

/// One model step.
pub struct Ask<'a> {
    pub view: &'a View,
    pub tools: &'a [ToolSpec],
    /// Tokens of the reply at most.
    pub reply_max: usize,
    pub calls: Calls,
    /// False: where the model can be told not to think first, it is.
    pub thinking: bool,
    /// Set by Ctrl-C.
    pub cancel: &'a Cancel,
}

/// Which tools a step may call. All of them stay in the prompt: a mask, not a change of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Any but these, which have nothing to give yet.
    AnyBut(&'static [&'static str]),
    /// `finish` has to be called.
    Finish,
    /// A summary is written without tools.
    Barred,
}

/// What a step shows while it runs.
#[derive(Clone, Debug)]
pub enum Streamed {
    Plan(Plan),
    Text(String),
    Thinking(String),
}

/// What a step gave.
#[derive(Clone, Debug)]
pub struct Reply {
    pub answer: Answer,
    /// Tokens of the context now: the prompt and what was generated.
    pub tokens: usize,
    /// What the step was to cost and what it did cost, where the runtime can tell.
    pub plan: Option<Plan>,
    pub report: Option<Report>,
    /// The person stopped it; `answer` is what there was.
    pub interrupted: bool,
}

/// Why a step failed.
#[derive(Debug)]
pub struct StepError {
    pub error: Error,
    pub worth_retrying: bool,
}

/// Answers model steps.
pub trait Runtime {
    /// Name of the model, for the transcript.
    fn model(&self) -> &str;

    /// Effective context in tokens: what was really allocated.
    fn window(&self) -> usize;

    /// Tokens of a text that stands inside a message.
    fn count(&self, text: &str) -> usize;

    /// Tokens of the prompt that `view` makes.
    fn measure(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize, Error>;

    /// What is asked from here to [`Runtime::join`] is another conversation, which begins as this one does.
    fn branch(&mut self) {}

    /// Back to the conversation before.
    fn join(&mut self) {}

    /// Asks the model; `watch` sees the answer as it comes.
    fn ask(&mut self, ask: &Ask<'_>, watch: &mut dyn FnMut(Streamed)) -> Result<Reply, StepError>;
}
