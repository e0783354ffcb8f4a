//! Grammars: an answer, or a part of it, is held to a JSON schema, a Lark grammar or a regular
//! expression, by masking the tokens that would leave it.
//!
//! 1. A [`GrammarVocabulary`] is made once a model from the bytes of its tokens.
//! 2. A [`GrammarSpec`] says what holds, and from where: at once, or after a trigger.
//! 3. A [`Constraint`] is that spec at work on one answer: ask `mask`, sample, `accept`.
//!
//! Masks come from llguidance (an Earley parser over a lexer of derivatives, walked along a trie of
//! the vocabulary). Control tokens are never allowed inside a rule; an end token is allowed where
//! the rule is complete.

mod compile;
mod constraint;
mod error;
mod schema;
mod spec;
mod tools;
mod vocabulary;

pub use constraint::{Constraint, Verdict};
pub use error::GrammarError;
pub use spec::{After, GrammarSpec, Place, Rule, Start, Then, Trigger};
pub use tools::{CallRule, CallStyle, Tool, ToolCallGrammar, ToolChoice};
pub use vocabulary::GrammarVocabulary;

#[cfg(test)]
mod tests;
