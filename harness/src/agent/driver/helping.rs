//! Sub-agents, as the driver carries them out: a run of its own, on a session of its own, with the same hands.

use super::{Agent, Hands, Setup};
use crate::agent::machine::Outcome;
use crate::agent::session::Session;
use crate::agent::task_tool;
use crate::agent::transcript::{Call, ToolOutput};
use crate::error::Error;
use crate::limits;

impl Agent<'_> {
    /// Runs a call of `task` to its end. The helper's prompt begins as this one's does: only its brief is new.
    pub(super) fn run_task(&mut self, call: &Call) -> Result<ToolOutput, Error> {
        let failed = |text: String| ToolOutput {
            text,
            ok: false,
            artifact: None,
        };
        if self.setup.is_helper {
            return Ok(failed(
                "a helper has no helpers; do it yourself, or answer with what is known".into(),
            ));
        }
        let brief = match task_tool::brief(&call.arguments) {
            Ok(brief) => brief,
            Err(why) => return Ok(failed(why)),
        };
        let sessions = self.session.folder();
        let session = Session::create(&sessions, &call.id, self.session.clock())?;
        self.runtime.branch();
        let outcome = self.helper_run(session, &brief);
        self.runtime.join();
        Ok(match outcome {
            Ok(Outcome::Answered { text, cut }) => {
                let note = if cut {
                    "\n[The answer was cut at the reply's limit.]"
                } else {
                    ""
                };
                ToolOutput {
                    text: format!("{text}{note}"),
                    ok: true,
                    artifact: None,
                }
            }
            Ok(other) => failed(format!("the helper did not finish: {}", other.describe())),
            // What it was asked for does not fit, say; the run itself is sound.
            Err(error) => failed(format!("the helper could not work: {error}")),
        })
    }

    fn helper_run(&mut self, session: Session, brief: &str) -> Result<Outcome, Error> {
        let hands = Hands {
            runtime: &mut *self.runtime,
            tools: &mut *self.tools,
            policy: self.policy.clone(),
            asker: &mut *self.asker,
            watch: &mut *self.watch,
            cancel: self.cancel.clone(),
            counter: self.counter.clone(),
        };
        let setup = Setup {
            rounds_max: Some(limits::TASK_ROUNDS_MAX),
            is_helper: true,
            frozen: Some(self.frozen.sent().to_vec()),
            ..self.setup.clone()
        };
        Agent::new(hands, session, setup)?.run(brief)
    }
}
