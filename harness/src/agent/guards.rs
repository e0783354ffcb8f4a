//! What keeps a run from going on for ever: rounds, repeats, corrections, retries, compactions.
//! Each guard is a count with a limit; reaching it ends the run with the numbers.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::transcript::Call;
use crate::limits;

/// The limits of one run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A context longer than this is compacted before the model is asked.
    pub threshold_tokens: usize,
    pub rounds_max: usize,
    pub corrections_max: usize,
    pub retries_max: usize,
}

impl Limits {
    /// The defaults, for a context that is compacted above `threshold_tokens`.
    pub fn with_threshold(threshold_tokens: usize) -> Self {
        Limits {
            threshold_tokens,
            rounds_max: limits::TOOL_ROUNDS_MAX,
            corrections_max: limits::CORRECTIONS_MAX,
            retries_max: limits::RETRIES_MAX,
        }
    }
}

/// What the repeat detector says of a call that just finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    No,
    Warn {
        times: usize,
    },
    /// The next answer is to be made without a tool.
    Bar {
        times: usize,
    },
}

/// The counts.
#[derive(Clone, Debug)]
pub struct Guards {
    pub limits: Limits,
    rounds: usize,
    corrections: usize,
    retries: usize,
    /// How often each (name, arguments, result) came, by its hash. A model that goes in circles
    /// repeats a pair or a chain of calls, so not only neighbours count.
    seen: HashMap<u64, usize>,
    /// The next answer is to be made without a tool.
    barred: bool,
    /// Compactions in a row that freed too little.
    strikes: usize,
}

impl Guards {
    pub fn new(limits: Limits) -> Self {
        Guards {
            limits,
            rounds: 0,
            corrections: 0,
            retries: 0,
            seen: HashMap::new(),
            barred: false,
            strikes: 0,
        }
    }

    /// A new goal: counts start again, the repeat detector and the strikes too.
    pub fn begin_run(&mut self) {
        *self = Guards::new(self.limits.clone());
    }

    /// One more round of tools, or the reason why not.
    pub fn begin_round(&mut self) -> Result<(), String> {
        if self.rounds == self.limits.rounds_max {
            return Err(format!(
                "{} rounds of tools without an answer; raise --max-rounds or ask for a smaller step",
                self.rounds
            ));
        }
        self.rounds += 1;
        Ok(())
    }

    pub fn may_retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= self.limits.retries_max
    }

    pub fn may_correct(&mut self) -> bool {
        self.corrections += 1;
        self.corrections <= self.limits.corrections_max
    }

    /// Whether the next answer may call tools.
    pub fn may_call(&self) -> bool {
        !self.barred
    }

    /// A turn that could be read, and did what it might, clears the corrections and retries.
    pub fn answer_was_sound(&mut self) {
        self.barred = false;
        self.corrections = 0;
        self.retries = 0;
    }

    /// Counts identical (call, result) pairs since the run began or the context shrank.
    pub fn saw(&mut self, call: &Call, result: &str) -> Repeat {
        let mut hasher = DefaultHasher::new();
        (&call.name, &call.arguments, result).hash(&mut hasher);
        let times = self.seen.entry(hasher.finish()).or_default();
        *times += 1;
        let times = *times;
        if times >= limits::REPEATS_BAR {
            self.barred = true;
            Repeat::Bar { times }
        } else if times >= limits::REPEATS_WARN {
            Repeat::Warn { times }
        } else {
            Repeat::No
        }
    }

    /// A compaction happened. The second in a row that frees too little ends the run (law 11).
    pub fn compacted(&mut self, before: usize, after: usize) -> Result<(), String> {
        self.seen.clear();
        self.barred = false;
        if after * 100 <= before * limits::COMPACTION_SHRINK_PERCENT
            && after <= self.limits.threshold_tokens
        {
            self.strikes = 0;
            return Ok(());
        }
        self.strikes += 1;
        if self.strikes >= limits::COMPACTION_STRIKES || after > self.limits.threshold_tokens {
            return Err(format!(
                "compaction freed too little: {before} tokens before, {after} after, {} wanted at the most; raise --context or shorten the instructions",
                self.limits.threshold_tokens
            ));
        }
        Ok(())
    }
}
