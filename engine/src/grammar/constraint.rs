//! A grammar at work on one answer: free until a trigger, then held to its rule.
//!
//! Invariants: a token that `mask` forbids is never accepted; a token that would start a rule and
//! break it at once is refused; while the answer is free nothing is masked, so an answer without a
//! trigger is what it would be without a grammar.

use std::sync::Arc;

use llguidance::Matcher;

use super::compile::Compiled;
use super::error::brief;
use super::spec::{After, GrammarSpec, Place, Start, Then, Trigger};
use super::{GrammarError, GrammarVocabulary};
use crate::sampler::TokenMask;
use crate::stop::Pattern;

/// The grammar of one answer.
pub struct Constraint {
    vocabulary: Arc<GrammarVocabulary>,
    rules: Arc<[Arc<Compiled>]>,
    triggers: Arc<[(Trigger, Pattern)]>,
    after: After,
    state: State,
}

// One a sequence, and moved rarely: its size does not matter.
#[allow(clippy::large_enum_variant)]
enum State {
    Free(Search),
    Held {
        matcher: Matcher,
        mask: Option<TokenMask>,
    },
    Ended,
}

/// How far each trigger has come, and whether anything but white space was said.
#[derive(Clone, Default)]
struct Search {
    states: Vec<usize>,
    bytes: usize,
    first_solid: Option<usize>,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is part of the answer.
    Taken,
    /// It is part of the answer, and the answer is complete.
    Complete,
    /// It would begin a rule and break it, or complete what is barred. Nothing has changed: sample
    /// again without it.
    Refused,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Free(_) => "free",
            State::Held { .. } => "held",
            State::Ended => "ended",
        };
        f.debug_struct("Constraint")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

impl Constraint {
    /// Compiles those rules of `spec` that are not known yet.
    pub fn new(
        vocabulary: &Arc<GrammarVocabulary>,
        spec: &GrammarSpec,
    ) -> Result<Self, GrammarError> {
        let rules: Arc<[Arc<Compiled>]> = spec
            .rules
            .iter()
            .map(|rule| vocabulary.compiled(rule))
            .collect::<Result<_, _>>()?;
        let triggers: Vec<(Trigger, Pattern)> = match &spec.start {
            Start::AtOnce => Vec::new(),
            Start::Triggers(list) => list
                .iter()
                .map(|t| (t.clone(), Pattern::new(&t.text)))
                .collect(),
        };
        let sound = |trigger: &Trigger| match &trigger.then {
            Then::Follow { rule, .. } => *rule < rules.len(),
            Then::Refuse => true,
        };
        if !triggers.iter().all(|(t, _)| !t.text.is_empty() && sound(t))
            || (triggers.is_empty() && rules.is_empty())
        {
            return Err(GrammarError::Bug(
                "a trigger is empty or names no rule".into(),
            ));
        }
        let state = match &spec.start {
            Start::AtOnce => State::Held {
                matcher: rules[0].start(),
                mask: None,
            },
            Start::Triggers(_) => State::Free(Search::new(triggers.len())),
        };
        let (vocabulary, triggers, after) = (vocabulary.clone(), triggers.into(), spec.after);
        Ok(Self {
            vocabulary,
            rules,
            triggers,
            after,
            state,
        })
    }

    /// What the schemas said that has no effect.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.rules
            .iter()
            .flat_map(|rule| rule.warnings.iter().map(String::as_str))
    }

    /// Whether the answer is held to a rule now.
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    /// The tokens that may come next, or `None` for all. An end token is among them where the
    /// answer may end. Computed once a position.
    pub fn mask(&mut self) -> Result<Option<&TokenMask>, GrammarError> {
        match &mut self.state {
            State::Free(_) => Ok(None),
            State::Ended => Err(GrammarError::Bug(
                "a mask was asked for after the end".into(),
            )),
            State::Held { matcher, mask } => {
                if mask.is_none() {
                    let bits = matcher.compute_mask_or_eos().map_err(too_complex)?;
                    *mask = Some(TokenMask::from_words(bits.as_slice().to_vec()));
                }
                Ok(mask.as_ref())
            }
        }
    }

    /// Takes the token that was sampled. An end token ends the answer; whether it may was the mask's
    /// to say.
    pub fn accept(&mut self, id: u32) -> Result<Verdict, GrammarError> {
        let tokens = self.vocabulary.tokens();
        match &mut self.state {
            State::Ended => Err(GrammarError::Bug(format!("token {id} came after the end"))),
            _ if tokens.is_end(id) => {
                self.state = State::Ended;
                Ok(Verdict::Complete)
            }
            State::Free(search) => {
                let mut search = search.clone();
                let next = self.search(&mut search, tokens.bytes(id))?;
                Ok(self.enter(next.unwrap_or(Outcome::State(State::Free(search)))))
            }
            State::Held { matcher, mask } => {
                *mask = None;
                matcher.consume_token(id).map_err(too_complex)?;
                let complete = matcher.is_stopped();
                Ok(if complete {
                    self.complete()
                } else {
                    Verdict::Taken
                })
            }
        }
    }

    fn enter(&mut self, outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Refused => Verdict::Refused,
            Outcome::Complete => self.complete(),
            Outcome::State(state) => {
                self.state = state;
                Verdict::Taken
            }
        }
    }

    fn complete(&mut self) -> Verdict {
        match self.after {
            After::End => {
                self.state = State::Ended;
                Verdict::Complete
            }
            After::Free => {
                self.state = State::Free(Search::new(self.triggers.len()));
                Verdict::Taken
            }
        }
    }

    /// Looks for triggers in `bytes`; `None` where none is completed. What follows a trigger in the
    /// same token is read by its rule, and what follows the rule is free again.
    fn search(&self, search: &mut Search, bytes: &[u8]) -> Result<Option<Outcome>, GrammarError> {
        for (at, &byte) in bytes.iter().enumerate() {
            let Some(index) = search.step(byte, &self.triggers) else {
                continue;
            };
            let (trigger, _) = &self.triggers[index];
            let Then::Follow { rule, read } = &trigger.then else {
                return Ok(Some(Outcome::Refused));
            };
            let mut matcher = self.rules[*rule].start();
            let rest = &bytes[at + 1..];
            let text = read.iter().chain(rest).copied().collect::<Vec<u8>>();
            let read = match self.feed(&mut matcher, &text)? {
                Some(read) => read,
                None => return Ok(Some(Outcome::Refused)),
            };
            if !matcher.is_stopped() {
                return Ok(Some(Outcome::State(State::Held {
                    matcher,
                    mask: None,
                })));
            }
            let left = &text[read..];
            return match self.after {
                After::End if left.is_empty() => Ok(Some(Outcome::Complete)),
                After::End => Ok(Some(Outcome::Refused)),
                After::Free => {
                    let mut search = Search::new(self.triggers.len());
                    let next = self.search(&mut search, left)?;
                    Ok(Some(next.unwrap_or(Outcome::State(State::Free(search)))))
                }
            };
        }
        Ok(None)
    }

    /// Feeds text to a rule until it is complete; gives how many bytes it read, or `None` where it
    /// does not accept them.
    fn feed(&self, matcher: &mut Matcher, text: &[u8]) -> Result<Option<usize>, GrammarError> {
        let trie = self.vocabulary.factory()?.tok_env().clone();
        for (at, byte) in text.iter().enumerate() {
            if matcher.is_stopped() {
                return Ok(Some(at));
            }
            // Byte by byte, so that a rule may end inside a token.
            let token = trie.tok_trie().greedy_tokenize(std::slice::from_ref(byte));
            if token.is_empty() || matcher.try_consume_tokens(&token).map_err(too_complex)? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(text.len()))
    }
}

// One a sequence, and moved rarely: its size does not matter.
#[allow(clippy::large_enum_variant)]
enum Outcome {
    State(State),
    Complete,
    Refused,
}

impl Search {
    fn new(triggers: usize) -> Self {
        Self {
            states: vec![0; triggers],
            ..Self::default()
        }
    }

    /// Takes a byte; gives the longest trigger that it completes at a place where it counts.
    fn step(&mut self, byte: u8, triggers: &[(Trigger, Pattern)]) -> Option<usize> {
        if !byte.is_ascii_whitespace() {
            self.first_solid.get_or_insert(self.bytes);
        }
        self.bytes += 1;
        let mut best: Option<usize> = None;
        for (index, ((trigger, pattern), state)) in
            triggers.iter().zip(&mut self.states).enumerate()
        {
            *state = pattern.step(*state, byte);
            let length = trigger.text.len();
            if *state < length {
                continue;
            }
            let start = self.bytes - length;
            let opening = self.first_solid.is_none_or(|solid| solid >= start);
            let counts = trigger.place == Place::Anywhere || opening;
            if counts && best.is_none_or(|b| triggers[b].0.text.len() < length) {
                best = Some(index);
            }
        }
        best
    }
}

fn too_complex(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::TooComplex {
        why: brief(&error.to_string()),
    }
}
