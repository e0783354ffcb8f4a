//! From a rule to a matcher. Compiling recurses over what a caller sent, so it runs on a thread with
//! a stack of known size, behind limits on depth and work; a panic there is an error here.

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::error::brief;
use super::{GrammarError, GrammarVocabulary, Rule, schema, tools};
use crate::limits::{
    COMPILE_STACK_BYTES, LOCATE_ATTEMPTS_MAX, RULE_TEXT_BYTES_MAX, WHITE_SPACE_MAX,
};

/// A compiled rule, and what its schema said that has no effect.
pub(super) struct Compiled {
    matcher: Matcher,
    pub warnings: Vec<String>,
}

impl Compiled {
    /// A matcher at the rule's beginning. Nothing is shared with other uses of the rule: what one answer
    /// adds to its lexer's states neither slows another nor counts towards its limits.
    pub fn start(&self) -> Matcher {
        self.matcher.deep_clone()
    }
}

pub(super) fn rule(vocabulary: &GrammarVocabulary, rule: &Rule) -> Result<Compiled, GrammarError> {
    let factory = vocabulary.factory()?;
    on_a_deep_stack(|| match rule {
        Rule::JsonSchema(value) => {
            let mut value = value.clone();
            let warnings = schema::check(&mut value)?;
            let matcher =
                schema_matcher(factory, &value).map_err(|why| locate(factory, &value, why))?;
            Ok(Compiled { matcher, warnings })
        }
        Rule::Call(call) => {
            let mut warnings = Vec::new();
            let text = tools::lark(vocabulary, call, &mut warnings)?;
            let matcher = matcher(factory, TopLevelGrammar::from_lark(text))
                .map_err(|why| GrammarError::Rule { what: "tools", why })?;
            Ok(Compiled { matcher, warnings })
        }
        Rule::Lark(text) => text_matcher(
            factory,
            "Lark grammar",
            text,
            TopLevelGrammar::from_lark(text.clone()),
        ),
        Rule::Regex(text) => text_matcher(
            factory,
            "regular expression",
            text,
            TopLevelGrammar::from_regex(text),
        ),
    })
}

/// Checks a schema that becomes a part of a larger grammar, and makes it ready. Runs on the thread of
/// its caller, which has a deep stack.
pub(super) fn check_schema(
    vocabulary: &GrammarVocabulary,
    value: &mut Value,
) -> Result<Vec<String>, GrammarError> {
    let factory = vocabulary.factory()?;
    let warnings = schema::check(value)?;
    schema_matcher(factory, value).map_err(|why| locate(factory, value, why))?;
    Ok(warnings)
}

fn on_a_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|e| GrammarError::TooComplex {
                why: format!("no thread to compile on: {e}"),
            })?
            .join()
            .unwrap_or_else(|_| {
                Err(GrammarError::TooComplex {
                    why: "the compiler gave up".into(),
                })
            })
    })
}

fn text_matcher(
    factory: &ParserFactory,
    what: &'static str,
    text: &str,
    grammar: TopLevelGrammar,
) -> Result<Compiled, GrammarError> {
    if text.len() > RULE_TEXT_BYTES_MAX {
        let why = format!("{} bytes; need at most {RULE_TEXT_BYTES_MAX}", text.len());
        return Err(GrammarError::Rule { what, why });
    }
    let matcher = matcher(factory, grammar).map_err(|why| GrammarError::Rule { what, why })?;
    Ok(Compiled {
        matcher,
        warnings: Vec::new(),
    })
}

fn matcher(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let parser = factory
        .create_parser(grammar)
        .map_err(|e| brief(&e.to_string()))?;
    let mut matcher = Matcher::new(Ok(parser));
    // The first mask builds the lexer's first states; what is too complex shows here.
    matcher.compute_mask().map_err(|e| brief(&e.to_string()))?;
    Ok(matcher)
}

/// The compiler's options: white space as people write JSON, but never without end.
pub(super) fn json_options() -> Value {
    json!({ "whitespace_pattern": format!("[ \\n\\r\\t]{{1,{WHITE_SPACE_MAX}}}") })
}

pub(super) fn with_options(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let mut map = map.clone();
            map.insert("x-guidance".into(), json_options());
            Value::Object(map)
        }
        Value::Bool(true) => json!({ "x-guidance": json_options() }),
        other => other.clone(),
    }
}

fn schema_matcher(factory: &ParserFactory, value: &Value) -> Result<Matcher, String> {
    matcher(
        factory,
        TopLevelGrammar::from_json_schema(with_options(value)),
    )
}

/// The place and the keyword that the compiler refuses. Its message names neither, so the schemas
/// inside are tried alone, innermost failure first, and then without one keyword after the other.
fn locate(factory: &ParserFactory, root: &Value, why: String) -> GrammarError {
    let mut attempts = 0;
    let mut failing = (String::new(), root.clone(), why);
    let defs: Vec<(&str, &Value)> = ["$defs", "definitions"]
        .iter()
        .filter_map(|k| Some((*k, root.get(*k)?)))
        .collect();
    'down: while let Value::Object(map) = &failing.1 {
        for (segment, child) in schema::children(map) {
            attempts += 1;
            if attempts > LOCATE_ATTEMPTS_MAX {
                break 'down;
            }
            let mut alone = child.clone();
            if let Value::Object(alone) = &mut alone {
                for (key, value) in &defs {
                    alone.entry(*key).or_insert_with(|| (*value).clone());
                }
            }
            if let Err(why) = schema_matcher(factory, &alone) {
                failing = (format!("{}/{segment}", failing.0), child.clone(), why);
                continue 'down;
            }
        }
        break;
    }
    let (path, node, why) = failing;
    schema::fault(&path, &culprit(factory, &node, &mut attempts), why)
}

/// The keyword without which `node` compiles.
fn culprit(factory: &ParserFactory, node: &Value, attempts: &mut usize) -> String {
    let Value::Object(map) = node else {
        return "schema".into();
    };
    let skip = |key: &str| {
        matches!(
            key,
            "type" | "$defs" | "definitions" | "title" | "description"
        )
    };
    for key in map.keys().filter(|key| !skip(key)) {
        *attempts += 1;
        if *attempts > LOCATE_ATTEMPTS_MAX {
            break;
        }
        let mut without = map.clone();
        without.shift_remove(key);
        if schema_matcher(factory, &Value::Object(without)).is_ok() {
            return key.clone();
        }
    }
    "schema".into()
}
