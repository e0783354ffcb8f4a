//! The vocabulary as llguidance wants it: a trie over the bytes of all text tokens. Built once a
//! model, on first use (about 100 ms for 150,000 tokens).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::compile::{self, Compiled};
use super::error::brief;
use super::{GrammarError, Rule};
use crate::TokenBytes;
use crate::limits::{COMPILED_RULES_MAX, GRAMMAR_TOKEN_BYTES_MAX, LEXER_FUEL, STEP_LEXER_FUEL};

/// What all grammars of one model share.
pub struct GrammarVocabulary {
    tokens: Arc<dyn TokenBytes>,
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// Rules compiled before, the latest used last.
    compiled: Mutex<Vec<(String, Arc<Compiled>)>>,
}

impl std::fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarVocabulary")
            .field("tokens", &self.tokens.vocab_size())
            .finish()
    }
}

impl GrammarVocabulary {
    /// Cheap: the trie is built when the first grammar asks for it.
    pub fn new(tokens: Arc<dyn TokenBytes>) -> Self {
        Self {
            tokens,
            factory: OnceLock::new(),
            compiled: Mutex::default(),
        }
    }

    pub fn tokens(&self) -> &dyn TokenBytes {
        &*self.tokens
    }

    pub(super) fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        self.factory
            .get_or_init(|| build(&*self.tokens))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The rule, compiled once: an agent sends the same tools with every step, and compiling them takes
    /// longer than reusing its prompt. The last [`COMPILED_RULES_MAX`] are kept.
    pub(super) fn compiled(&self, rule: &Rule) -> Result<Arc<Compiled>, GrammarError> {
        // As text: to a schema the order of its keys matters, to the equality of JSON objects it does not.
        let key = format!("{rule:?}");
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        // Not under the lock: another answer need not wait for it.
        let compiled = Arc::new(compile::rule(self, rule)?);
        let mut kept = self.kept();
        kept.retain(|(other, _)| *other != key);
        kept.push((key, compiled.clone()));
        if kept.len() > COMPILED_RULES_MAX {
            kept.remove(0);
        }
        Ok(compiled)
    }

    fn known(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(other, _)| other == key)?;
        let used = kept.remove(at);
        let compiled = used.1.clone();
        kept.push(used);
        Some(compiled)
    }

    /// What a panic left behind is whole: entries are put in and taken out in one piece.
    fn kept(&self) -> MutexGuard<'_, Vec<(String, Arc<Compiled>)>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// The model chooses how to cut what the grammar forces: nothing is forced token by token.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

fn build(tokens: &dyn TokenBytes) -> Result<ParserFactory, GrammarError> {
    let vocab = tokens.vocab_size() as u32;
    let ends: Vec<u32> = (0..vocab).filter(|&id| tokens.is_end(id)).collect();
    let first = tokens
        .eos()
        .filter(|&id| id < vocab)
        .or(ends.first().copied());
    let first = first.ok_or(GrammarError::NoEndToken)?;
    let words: Vec<Vec<u8>> = (0..vocab)
        .map(|id| match tokens.bytes(id) {
            // Empty: reachable by id alone, never as text.
            _ if tokens.is_control(id) || tokens.is_end(id) => Vec::new(),
            bytes if bytes.len() > GRAMMAR_TOKEN_BYTES_MAX => Vec::new(),
            // 0xFF starts the trie's own notation for tokens, and no UTF-8 text contains it.
            bytes if bytes.contains(&0xff) => Vec::new(),
            bytes => bytes.to_vec(),
        })
        .collect();
    let mut ends_first = vec![first];
    ends_first.extend(ends.into_iter().filter(|&id| id != first));
    let trie = TokTrie::from(&TokRxInfo::new(vocab, first), &words).with_eos_tokens(&ends_first);
    let env: TokEnv = Arc::new(Env(trie));
    let slices = SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|e| GrammarError::Bug(brief(&e.to_string())))?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        initial_lexer_fuel: LEXER_FUEL,
        step_lexer_fuel: STEP_LEXER_FUEL,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}
