//! How a context window is spent. Every share is a number of tokens with an owner; the sum is the
//! window the engine allocated. At 4,096: fixed pieces 900, reply 512, instruction 150, summary 400,
//! verbatim 250, and the rest is for results.

use crate::error::Error;
use crate::limits;

/// The shares of one window, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub window: usize,
    /// Instructions, tools and memory together.
    pub fixed_max: usize,
    /// Kept free for the model's reply.
    pub reply: usize,
    /// The message that asks for a summary.
    pub instruction: usize,
    /// The summary itself.
    pub summary: usize,
    /// The newest messages that stay word for word through a compaction.
    pub verbatim: usize,
}

/// A part of the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub name: String,
    pub tokens: usize,
    /// Nothing stands there yet: it is set aside, or free.
    pub is_kept: bool,
}

impl Share {
    pub fn taken(name: impl Into<String>, tokens: usize) -> Share {
        Share {
            name: name.into(),
            tokens,
            is_kept: false,
        }
    }

    pub fn kept(name: &str, tokens: usize) -> Share {
        Share {
            is_kept: true,
            ..Share::taken(name, tokens)
        }
    }
}

impl Budget {
    /// Shares for a window of `window` tokens, or why it is too small to work in.
    pub fn for_window(window: usize) -> Result<Budget, Error> {
        if window < limits::AGENT_WINDOW_MIN {
            return Err(Error::caller(format!(
                "the agent needs a context of {} tokens, have {window}; raise --context or --kv-memory",
                limits::AGENT_WINDOW_MIN
            )));
        }
        let share = |of_4096: usize, max: usize| {
            (window * of_4096 / 4096).clamp(of_4096.min(window / 8), max)
        };
        Ok(Budget {
            window,
            fixed_max: (window * 900 / 4096).clamp(900, 16_384),
            reply: share(512, 8_192),
            instruction: limits::COMPACTION_INSTRUCTION_TOKENS,
            summary: share(400, 2_000),
            verbatim: share(250, 4_000),
        })
    }

    /// A prompt longer than this is compacted before the model is asked: behind it the reply, the
    /// instruction and the summary must still fit.
    pub fn threshold(&self) -> usize {
        self.window - self.reply - self.instruction - self.summary
    }

    /// Room for one tool result behind a context of `tokens`, the marker's reserve taken off.
    /// `None`: not even a marker's worth is left.
    pub fn result_room(&self, tokens: usize) -> Option<usize> {
        let room = self.threshold().checked_sub(tokens)?;
        (room >= limits::RESULT_TOKENS_MIN).then_some(room)
    }

    /// Refuses an instruction to sum up for which there is no room once it is needed.
    pub fn check_instruction(&self, tokens: usize) -> Result<(), Error> {
        match tokens <= self.instruction {
            true => Ok(()),
            false => Err(Error::caller(format!(
                "the instruction for summaries has {tokens} tokens, and {} are set aside for it; shorten it",
                self.instruction
            ))),
        }
    }

    /// Refuses fixed pieces that exceed their share, naming them.
    pub fn check_fixed(&self, pieces: &[(String, usize)]) -> Result<(), Error> {
        let total: usize = pieces.iter().map(|(_, tokens)| tokens).sum();
        if total <= self.fixed_max {
            return Ok(());
        }
        let table: String = pieces
            .iter()
            .map(|(name, tokens)| format!("\n  {tokens:>7}  {name}"))
            .collect();
        Err(Error::caller(format!(
            "the fixed pieces need {total} tokens, have {} of a {}-token window; shorten the largest or raise --context{table}",
            self.fixed_max, self.window
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_4k_window_is_spent_as_designed() {
        let budget = Budget::for_window(4096).expect("4k works");
        assert_eq!(
            budget,
            Budget {
                window: 4096,
                fixed_max: 900,
                reply: 512,
                instruction: 150,
                summary: 400,
                verbatim: 250
            }
        );
        assert_eq!(budget.threshold(), 3034);
        // After a compaction: fixed, summary and verbatim, and there is room for a result.
        let after = budget.fixed_max + budget.summary + budget.verbatim;
        assert!(budget.result_room(after).is_some_and(|room| room > 1_000));
    }

    #[test]
    fn shares_fit_any_window() {
        for window in (limits::AGENT_WINDOW_MIN..200_000).step_by(613) {
            let b = Budget::for_window(window).expect("large enough");
            let after_compaction = b.fixed_max + b.summary + b.verbatim;
            assert!(after_compaction < b.threshold(), "window {window}: {b:?}");
            assert!(
                b.threshold() + b.reply + b.instruction + b.summary <= b.window,
                "window {window}: {b:?}"
            );
        }
    }

    #[test]
    fn too_small_and_too_full_say_need_have_fix() {
        let error = Budget::for_window(512).expect_err("too small").to_string();
        assert!(
            error.contains("512") && error.contains("--context"),
            "{error}"
        );
        let budget = Budget::for_window(4096).expect("4k works");
        let error = budget
            .check_fixed(&[("instructions".into(), 700), ("tools".into(), 300)])
            .expect_err("over")
            .to_string();
        assert!(
            error.contains("1000") && error.contains("900") && error.contains("tools"),
            "{error}"
        );
    }
}
