//! Penalties on tokens that were there before.

use std::collections::{HashMap, VecDeque};

use super::SamplingParams;

#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// The last tokens of prompt and answer, and how often each is among them.
    window: VecDeque<u32>,
    window_len: usize,
    in_window: HashMap<u32, u32>,
    in_answer: HashMap<u32, u32>,
}

impl Penalties {
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let window_len = if params.repetition_penalty == 1.0 {
            0
        } else {
            params.repetition_window
        };
        let mut penalties = Self {
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            window: VecDeque::new(),
            window_len,
            in_window: HashMap::new(),
            in_answer: HashMap::new(),
        };
        for &id in &prompt[prompt.len().saturating_sub(window_len)..] {
            penalties.remember(id);
        }
        penalties
    }

    fn remember(&mut self, id: u32) {
        if self.window_len == 0 {
            return;
        }
        if self.window.len() == self.window_len
            && let Some(oldest) = self.window.pop_front()
            && let Some(count) = self.in_window.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.in_window.remove(&oldest);
            }
        }
        self.window.push_back(id);
        *self.in_window.entry(id).or_default() += 1;
    }

    pub fn accept(&mut self, id: u32) {
        self.remember(id);
        if self.frequency != 0.0 || self.presence != 0.0 {
            *self.in_answer.entry(id).or_default() += 1;
        }
    }

    /// Each token is changed on its own, so the order of the maps does not matter.
    pub fn apply(&self, row: &mut [f32]) {
        for id in self.in_window.keys() {
            if let Some(logit) = row.get_mut(*id as usize) {
                *logit = if *logit > 0.0 {
                    *logit / self.repetition
                } else {
                    *logit * self.repetition
                };
            }
        }
        for (id, &count) in &self.in_answer {
            if let Some(logit) = row.get_mut(*id as usize) {
                *logit -= self.frequency * count as f32 + self.presence;
            }
        }
    }
}
