//! What a caller asks of a grammar: plain data.

use serde_json::Value;

use super::tools::CallRule;

/// A language of byte strings.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// JSON values that the schema accepts, keys in the schema's order.
    JsonSchema(Value),
    /// A grammar in llguidance's Lark dialect.
    Lark(String),
    /// A regular expression over the whole text.
    Regex(String),
    /// Tool calls; made by [`super::ToolCallGrammar`].
    Call(CallRule),
}

/// When a rule applies.
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarSpec {
    pub rules: Vec<Rule>,
    pub start: Start,
    pub after: After,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// From the first token, by rule 0.
    AtOnce,
    /// The answer is free until one of these byte strings appears in it. Where all of them are
    /// refused there is no rule.
    Triggers(Vec<Trigger>),
}

/// What follows when a rule is complete and can take no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The answer ends.
    End,
    /// The answer is free again, and triggers are looked for again.
    Free,
}

/// A byte string to which something happens when it appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    pub text: Vec<u8>,
    pub place: Place,
    pub then: Then,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// `rule` starts, and has read `read`: the part of the trigger that belongs to it.
    Follow { rule: usize, read: Vec<u8> },
    /// The token that would complete the trigger is refused: it never appears.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    /// Only white space may come before it, since the start of the answer or since the end of the
    /// rule before.
    Opening,
}

impl GrammarSpec {
    /// The whole answer follows the rule.
    pub fn at_once(rule: Rule) -> Self {
        Self {
            rules: vec![rule],
            start: Start::AtOnce,
            after: After::End,
        }
    }

    /// The whole answer is JSON that the schema accepts.
    pub fn json_schema(schema: Value) -> Self {
        Self::at_once(Rule::JsonSchema(schema))
    }

    /// The answer is free until `trigger` appears; then `rule` follows it; then it is free again.
    pub fn triggered(trigger: impl Into<Vec<u8>>, rule: Rule) -> Self {
        let (text, place) = (trigger.into(), Place::Anywhere);
        let then = Then::Follow {
            rule: 0,
            read: Vec::new(),
        };
        let trigger = Trigger { text, place, then };
        Self {
            rules: vec![rule],
            start: Start::Triggers(vec![trigger]),
            after: After::Free,
        }
    }
}
