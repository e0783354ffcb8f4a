//! Grammars on a vocabulary of bytes and a few longer tokens.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::TokenBytes;

/// 256 bytes, some words that cross the borders of triggers and rules, two control tokens.
struct Words(Vec<Vec<u8>>);

const END: u32 = 256;
const CONTROL: u32 = 257;

impl TokenBytes for Words {
    fn vocab_size(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, id: u32) -> &[u8] {
        self.0.get(id as usize).map_or(&[], Vec::as_slice)
    }
    fn is_control(&self, id: u32) -> bool {
        id == END || id == CONTROL
    }
    fn is_end(&self, id: u32) -> bool {
        id == END
    }
    fn eos(&self) -> Option<u32> {
        Some(END)
    }
}

fn vocabulary() -> Arc<GrammarVocabulary> {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    for word in [
        "<|end|>",
        "<|start|>",
        "{\"",
        "\": ",
        "\", \"",
        "\"}",
        "name",
        "<tool_call>",
        "</tool_call>",
        "call>x",
        "call>{",
        "}\n",
        "```",
        "true",
        "12",
        "e\": \"",
        "}}",
        "}\n</",
        "hello",
    ] {
        words.push(word.into());
    }
    Arc::new(GrammarVocabulary::new(Arc::new(Words(words))))
}

#[test]
fn a_rule_is_compiled_once() {
    let vocabulary = vocabulary();
    let schema = |keys: &str| Rule::JsonSchema(serde_json::from_str(keys).unwrap());
    let forth = schema(r#"{"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}"#);
    let back = schema(r#"{"properties": {"b": {"type": "null"}, "a": {"type": "null"}}}"#);
    let compiled = |rule: &Rule| vocabulary.compiled(rule).unwrap();
    let first = compiled(&forth);
    assert!(Arc::ptr_eq(&first, &compiled(&forth)));
    assert_eq!(forth, back, "to JSON these are equal");
    assert!(
        !Arc::ptr_eq(&first, &compiled(&back)),
        "to a grammar they are not"
    );
    for n in 0..crate::limits::COMPILED_RULES_MAX {
        compiled(&Rule::Regex(format!("x{{{}}}", n + 1)));
    }
    assert!(!Arc::ptr_eq(&first, &compiled(&forth)), "the oldest went");
}

/// Feeds `text` by the longest tokens that the mask allows; the end token last. True if all of it,
/// and the end, was allowed.
fn accepts(vocabulary: &Arc<GrammarVocabulary>, spec: &GrammarSpec, text: &str) -> bool {
    let mut constraint = Constraint::new(vocabulary, spec).unwrap();
    let tokens = vocabulary.tokens();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let mask = constraint.mask().unwrap().cloned();
        let allowed = |id: &u32| mask.as_ref().is_none_or(|m| m.allows(*id));
        let mut fitting: Vec<u32> = (0..tokens.vocab_size() as u32)
            .filter(|&id| !tokens.is_control(id) && rest.starts_with(tokens.bytes(id)))
            .filter(allowed)
            .collect();
        fitting.sort_by_key(|&id| std::cmp::Reverse(tokens.bytes(id).len()));
        let mut taken = None;
        for id in fitting {
            match constraint.accept(id).unwrap() {
                Verdict::Refused => continue,
                verdict => {
                    taken = Some((id, verdict));
                    break;
                }
            }
        }
        let Some((id, verdict)) = taken else {
            return false;
        };
        rest = &rest[tokens.bytes(id).len()..];
        if verdict == Verdict::Complete {
            return rest.is_empty();
        }
    }
    constraint.mask().unwrap().is_none_or(|m| m.allows(END))
}

fn schema_accepts(schema: &Value, text: &str) -> bool {
    accepts(
        &vocabulary(),
        &GrammarSpec::json_schema(schema.clone()),
        text,
    )
}

/// Keys came out in alphabetical order; `anyOf` with null, constants and patterns were passed over.
#[test]
fn schemas_are_enforced() {
    let order = json!({"type": "object", "properties": {"reason": {"type": "string", "maxLength": 5},
        "answer": {"type": "integer"}, "aaa": {"type": "boolean"}},
        "required": ["reason", "answer", "aaa"], "additionalProperties": false});
    let mixed = json!({"type": "object", "properties": {
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 120}, {"type": "null"}]},
        "tag": {"const": "ø\"\\\n"},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.org$"}},
        "required": ["age", "tag", "mail"], "additionalProperties": false});
    let tag = r#""tag": "ø\"\\\n""#;
    let rows: &[(&Value, &str, bool)] = &[
        (
            &order,
            r#"{"reason": "r", "answer": 12, "aaa": true}"#,
            true,
        ),
        (&order, r#"{"reason":"r","answer":-1,"aaa":false}"#, true),
        (
            &order,
            "{\n  \"reason\": \"r\",\n  \"answer\": 1,\n  \"aaa\": true\n}",
            true,
        ),
        (
            &order,
            r#"{"aaa": true, "answer": 1, "reason": "r"}"#,
            false,
        ),
        (
            &order,
            r#"{"reason": "too long", "answer": 1, "aaa": true}"#,
            false,
        ),
        (&order, r#"{"answer": 1}"#, false),
        (
            &order,
            r#"{"reason": "r", "answer": 1, "aaa": true, "b": 1}"#,
            false,
        ),
        (
            &mixed,
            &format!(r#"{{"age": null, {tag}, "mail": "a@b.org"}}"#),
            true,
        ),
        (
            &mixed,
            &format!(r#"{{"age": 120, {tag}, "mail": "a@b.org"}}"#),
            true,
        ),
        (
            &mixed,
            &format!(r#"{{"age": 121, {tag}, "mail": "a@b.org"}}"#),
            false,
        ),
        (
            &mixed,
            r#"{"age": 1, "tag": "o", "mail": "a@b.org"}"#,
            false,
        ),
        (
            &mixed,
            &format!(r#"{{"age": 1, {tag}, "mail": "a@b.com"}}"#),
            false,
        ),
    ];
    for (schema, text, want) in rows {
        assert_eq!(schema_accepts(schema, text), *want, "{text}");
        if *want {
            serde_json::from_str::<Value>(text).unwrap();
        }
    }
    let endless = format!("{{\"reason\":{}\"r\"", " ".repeat(100));
    assert!(!schema_accepts(&order, &endless), "white space has an end");
}

#[test]
fn schemas_that_work() {
    let rows: &[(Value, &str, &str)] = &[
        (
            json!({"type": "object", "properties": {"k": {"type": "string", "pattern": "\\S"}}, "required": ["k"]}),
            r#"{"k": " x "}"#,
            r#"{"k": "  "}"#,
        ),
        (
            json!({"type": "object", "properties": {"o": {"type": "object", "properties":
            {"s": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["s"]}}, "required": ["o"]}),
            r#"{"o": {"s": "ab"}}"#,
            r#"{"o": {"s": "A"}}"#,
        ),
        (
            json!({"type": "object", "properties": {"o": {"type": "object", "properties":
            {"s": {"type": "string", "maxLength": 2000}}}}}),
            r#"{"o": {"s": "ab"}}"#,
            r#"{"o": {"s": 1}}"#,
        ),
        (
            json!({"type": "string", "pattern": "^(b+)+$"}),
            r#""bbb""#,
            r#""bab""#,
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false}),
            r#"[1, "a"]"#,
            r#"[1, "a", 2]"#,
        ),
        (json!({"type": "integer", "multipleOf": 7}), "14", "15"),
        (
            json!({"type": "string", "format": "date"}),
            r#""2024-02-29""#,
            r#""2024-13-01""#,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            r#"{"x": 1}"#,
            r#"{"x": "1"}"#,
        ),
        (
            json!({"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}}, "$ref": "#/$defs/n"}),
            r#"{"next": {"next": null}}"#,
            r#"{"next": {}}"#,
        ),
        (
            json!({"type": "array", "items": {"enum": ["a", 1, null]}, "uniqueItems": false}),
            r#"["a", 1, null]"#,
            "[2]",
        ),
        (json!(true), r#"{"any": [1, "x"]}"#, "nope"),
    ];
    for (schema, good, bad) in rows {
        assert!(schema_accepts(schema, good), "{schema} should take {good}");
        assert!(
            !schema_accepts(schema, bad),
            "{schema} should not take {bad}"
        );
    }
}

/// Each of these crashed, hung or silenced some server: a deep or odd pattern, a reference to
/// nowhere, to itself or to a file, and keywords that nothing enforces.
#[test]
fn hostile_schemas_are_refused_by_path_and_keyword() {
    let vocabulary = vocabulary();
    vocabulary.factory().unwrap();
    let within =
        |s: Value| json!({"type": "object", "properties": {"a/b": {"type": "array", "items": s}}});
    let mut deep = json!({"type": "string"});
    // JSON text nests 128 deep at most; a schema built in memory may be deeper.
    for _ in 0..400 {
        deep = json!({"type": "object", "properties": {"q": deep}});
    }
    let brackets = "(".repeat(20_000) + &")".repeat(20_000);
    let rows: Vec<(Value, &str, &str)> = vec![
        (
            json!({"type": "string", "pattern": brackets}),
            "#",
            "pattern",
        ),
        (
            json!({"type": "string", "pattern": "(?<=y)*"}),
            "#",
            "pattern",
        ),
        (
            within(json!({"type": "string", "pattern": "^(a{1000}){1000}$"})),
            "#/properties/a~1b/items",
            "pattern",
        ),
        (json!({"$ref": "#/$defs/gone"}), "#", "$ref"),
        (
            json!({"$defs": {"p": {"$ref": "#/$defs/q"}, "q": {"$ref": "#/$defs/p"}}, "$ref": "#/$defs/p"}),
            "#",
            "$ref",
        ),
        (
            within(json!({"$ref": "http://127.0.0.1:9/y.json"})),
            "#/properties/a~1b/items",
            "$ref",
        ),
        (json!({"$ref": "file:///etc/hostname"}), "#", "$ref"),
        (json!(false), "#", "schema"),
        (json!({"enum": []}), "#", "enum"),
        (json!({"type": "cough"}), "#", "type"),
        (json!({"type": 7}), "#", "type"),
        (
            json!({"if": {"type": "integer"}, "then": {"minimum": 3}}),
            "#",
            "if",
        ),
        (within(json!({"not": {}})), "#/properties/a~1b/items", "not"),
        (
            within(json!({"type": "array", "uniqueItems": true})),
            "#/properties/a~1b/items",
            "uniqueItems",
        ),
        (
            within(json!({"type": "string", "format": "shoe-size"})),
            "#/properties/a~1b/items",
            "format",
        ),
        (within(json!(7)), "#/properties/a~1b/items", "schema"),
        (json!({"properties": []}), "#", "properties"),
        (json!({"anyOf": {}}), "#", "anyOf"),
        (
            json!({"type": "integer", "minimum": 5, "maximum": 2}),
            "#",
            "m",
        ),
        (json!({"type": "object", "required": "k"}), "#", "required"),
        (deep.clone(), "...", "properties"),
    ];
    for (schema, want_path, want_keyword) in rows {
        let started = Instant::now();
        let shown: String = schema.to_string().chars().take(200).collect();
        let spec = GrammarSpec::json_schema(schema);
        let Err(error) = Constraint::new(&vocabulary, &spec) else {
            // An odd pattern may also work.
            assert_eq!(want_keyword, "pattern", "accepted: {shown}");
            assert!(started.elapsed().as_millis() < 1_000, "{shown}");
            continue;
        };
        let elapsed = started.elapsed();
        let GrammarError::Schema { path, keyword, why } = &error else {
            panic!("{error}")
        };
        assert!(
            path.starts_with(want_path) && keyword.starts_with(want_keyword),
            "{error}"
        );
        assert!(why.len() < 500 && error.to_string().len() < 800, "{error}");
        assert_eq!(error.blame(), kernels::Blame::Caller);
        assert!(elapsed.as_millis() < 1_000, "{elapsed:?} for {error}");
    }
}

#[test]
fn words_that_are_no_keywords_are_named() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "nullable": true, "x-ui": 1, "title": "t"}},
        "x-guidance": {"lenient": true}});
    let constraint = Constraint::new(&vocabulary(), &GrammarSpec::json_schema(schema)).unwrap();
    let warnings: Vec<&str> = constraint.warnings().collect();
    assert_eq!(
        warnings,
        [
            "schema at #/properties/a: \"nullable\" is not a keyword of JSON Schema and has no effect"
        ]
    );
}

#[test]
fn lark_and_regular_expressions() {
    let v = vocabulary();
    let regex = GrammarSpec::at_once(Rule::Regex("(hello|bye) [0-9]{2}".into()));
    assert!(accepts(&v, &regex, "hello 12"));
    assert!(!accepts(&v, &regex, "hello 1"));
    assert!(!accepts(&v, &regex, "hello 123"));
    let lark = GrammarSpec::at_once(Rule::Lark("start: \"a\" (\",\" \"a\")*".into()));
    assert!(accepts(&v, &lark, "a,a,a"));
    assert!(!accepts(&v, &lark, "a,"));
    for rule in [
        Rule::Lark("start: nowhere".into()),
        Rule::Lark(String::new()),
        Rule::Lark("(".repeat(100_000)),
        Rule::Regex("(".into()),
        Rule::Regex("(".repeat(100_000) + &")".repeat(100_000)),
        Rule::Regex("x".repeat(300_000)),
    ] {
        let error = Constraint::new(&v, &GrammarSpec::at_once(rule)).unwrap_err();
        assert!(matches!(error, GrammarError::Rule { .. }), "{error}");
        assert!(error.to_string().len() < 800);
    }
}

#[test]
fn control_tokens_are_never_inside_and_the_end_only_at_the_end() {
    let v = vocabulary();
    let spec = GrammarSpec::at_once(Rule::Regex("(?s:.{2,3})".into()));
    let mut constraint = Constraint::new(&v, &spec).unwrap();
    for (id, may_end) in [(b'a', false), (b'b', false), (b'c', true)] {
        let mask = constraint.mask().unwrap().unwrap();
        assert_eq!((mask.allows(END), mask.allows(CONTROL)), (may_end, false));
        let verdict = constraint.accept(u32::from(id)).unwrap();
        assert_eq!(verdict == Verdict::Complete, id == b'c');
    }
    assert!(matches!(constraint.mask(), Err(GrammarError::Bug(_))));
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool {
        name: name.into(),
        parameters,
    }
}

fn tools() -> ToolCallGrammar {
    let run = json!({"type": "object", "properties": {"command": {"type": "string"}},
        "required": ["command"], "additionalProperties": false});
    ToolCallGrammar {
        tools: vec![tool("run", run), tool("say \"hi\"", Value::Null)],
        style: CallStyle::tagged(),
        choice: ToolChoice::Auto,
        parallel: true,
    }
}

/// Small models answer with bare or fenced JSON as often as with the markers of their template.
#[test]
fn a_call_that_starts_is_well_formed() {
    let v = vocabulary();
    let spec = tools().spec().unwrap().unwrap();
    let call = r#"{"name": "run", "arguments": {"command": "ls"}}"#;
    let rows = [
        ("hello", true),
        (&format!("<tool_call>\n{call}\n</tool_call>"), true),
        (
            &format!("hello <tool_call>{call}</tool_call> and <tool_call>{call}</tool_call>"),
            true,
        ),
        (
            &format!("<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>"),
            true,
        ),
        (call, true),
        (&format!(" \n{call}\n{call}"), true),
        (&format!("```json\n{call}\n```"), true),
        (&format!("```\n{call}\n```\nhello"), true),
        (&format!("<tools>\n{call}\n</tools>"), true),
        (
            "{\n  \"name\": \"run\",\n  \"arguments\": {\n    \"command\": \"ls\"\n  }\n}",
            true,
        ),
        (&format!("hello\n```json\n{call}\n```"), true),
        (r#"{"name": "say \"hi\"", "arguments": {"any": [1]}}"#, true),
        // Data, not calls.
        (r#"{"names": 1}"#, true),
        (r#"hello {"name": "Ada", "age": 36}"#, true),
        ("hello\n```json\n{\"name\": \"Ada\"}\n```", true),
        // Calls that break.
        ("<tool_call>x", false),
        ("<tool_call>\n{\"name\": \"walk\"", false),
        (r#"{"name": "walk", "arguments": {}}"#, false),
        (r#"{"name": "run", "arguments": {}}"#, false),
        (r#"{"name": "run", "arguments": {"command": 1}}"#, false),
        (
            "hello\n```json\n{\"name\": \"run\", \"arguments\": 1}\n```",
            false,
        ),
        (&format!("<tool_call>{call}"), false),
    ];
    for (text, want) in rows {
        assert_eq!(accepts(&v, &spec, text), want, "{text}");
    }
}

#[test]
fn a_token_that_breaks_a_call_at_once_is_refused() {
    let v = vocabulary();
    let spec = tools().spec().unwrap().unwrap();
    let mut constraint = Constraint::new(&v, &spec).unwrap();
    let id = |text: &str| {
        (0..v.tokens().vocab_size() as u32)
            .find(|&i| v.tokens().bytes(i) == text.as_bytes())
            .unwrap()
    };
    for part in ["<", "t", "o", "o", "l", "_"] {
        assert_eq!(constraint.accept(id(part)).unwrap(), Verdict::Taken);
    }
    assert_eq!(constraint.accept(id("call>x")).unwrap(), Verdict::Refused);
    assert!(!constraint.is_held());
    assert_eq!(constraint.accept(id("call>{")).unwrap(), Verdict::Taken);
    assert!(constraint.is_held());
    assert!(constraint.mask().unwrap().unwrap().allows(id("\"")));
    // An answer without a trigger is never masked.
    let mut free = Constraint::new(&v, &spec).unwrap();
    for _ in 0..50 {
        assert!(free.mask().unwrap().is_none());
        free.accept(id("hello")).unwrap();
    }
}

/// `none`, `required` and a named tool were ignored.
#[test]
fn the_choice_of_tool_is_kept() {
    let v = vocabulary();
    let with = |choice, parallel| ToolCallGrammar {
        choice,
        parallel,
        ..tools()
    };
    let run = r#"<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>"#;
    let say = r#"<tool_call>{"name": "say \"hi\"", "arguments": {}}</tool_call>"#;
    let required = with(ToolChoice::Required, true).spec().unwrap().unwrap();
    let one = with(ToolChoice::Required, false).spec().unwrap().unwrap();
    let named = with(ToolChoice::Named("run".into()), true)
        .spec()
        .unwrap()
        .unwrap();
    let two = format!("{run}\n{say}");
    for (spec, text, want) in [
        (&required, run, true),
        (&required, two.as_str(), true),
        (&required, "hello", false),
        (&required, "", false),
        (&one, say, true),
        (&one, two.as_str(), false),
        (&named, run, true),
        (&named, say, false),
    ] {
        assert_eq!(accepts(&v, spec, text), want, "{text}");
    }
    let error = with(ToolChoice::Named("nope".into()), true)
        .spec()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no tool is named \"nope\"; have run, say \"hi\""
    );
    let empty = ToolCallGrammar {
        tools: vec![],
        ..tools()
    };
    assert_eq!(empty.spec().unwrap(), None);
    assert!(
        ToolCallGrammar {
            choice: ToolChoice::Required,
            ..empty
        }
        .spec()
        .is_err()
    );
}

/// A model that was asked for a summary without a call wrote the call as text.
#[test]
fn a_barred_call_cannot_be_written() {
    let v = vocabulary();
    let barred = ToolCallGrammar {
        choice: ToolChoice::None,
        ..tools()
    };
    let spec = barred.spec().unwrap().unwrap();
    let call = r#"{"name": "run", "arguments": {"command": "ls"}}"#;
    for (text, want) in [
        ("hello", true),
        ("", true),
        ("as {\"x\": 1} shows", true),
        ("```rust\nfn main() {}\n```", true),
        ("hello\n```json\n{\"name\": \"Ada\"}\n```", true),
        (call, false),
        (&format!("\n\n{call}"), false),
        (&format!("```json\n{call}\n```"), false),
        (&format!("```\n{call}\n```"), false),
        (&format!("<tool_call>\n{call}\n</tool_call>"), false),
        (&format!("hello <tool_call>{call}</tool_call>"), false),
        (&format!("hello\n```json\n{call}\n```"), false),
    ] {
        assert_eq!(accepts(&v, &spec, text), want, "{text}");
    }
    let without_tools = ToolCallGrammar {
        tools: vec![],
        ..barred
    };
    assert_eq!(without_tools.spec().unwrap(), None);
}

#[test]
fn one_odd_tool_does_not_spoil_the_others() {
    let v = vocabulary();
    let mut grammar = tools();
    grammar.tools.push(tool(
        "odd",
        json!({"type": "object", "properties": {"u": {"format": "shoe-size"}}}),
    ));
    let spec = grammar.spec().unwrap().unwrap();
    let constraint = Constraint::new(&v, &spec).unwrap();
    assert!(
        constraint
            .warnings()
            .any(|w| w.contains("tool \"odd\"") && w.contains("#/properties/u: format"))
    );
    assert!(accepts(
        &v,
        &spec,
        r#"<tool_call>{"name": "odd", "arguments": {"u": "44"}}</tool_call>"#
    ));
    assert!(!accepts(
        &v,
        &spec,
        r#"<tool_call>{"name": "run", "arguments": {}}</tool_call>"#
    ));
}

#[test]
fn a_marker_that_is_a_control_token_is_matched_as_one() {
    let v = vocabulary();
    let style = CallStyle {
        open: "<|start|>".into(),
        close: "<|start|>".into(),
        ..CallStyle::tagged()
    };
    let grammar = ToolCallGrammar {
        style,
        choice: ToolChoice::Named("run".into()),
        ..tools()
    };
    let mut constraint = Constraint::new(&v, &grammar.spec().unwrap().unwrap()).unwrap();
    let mask = constraint.mask().unwrap().unwrap();
    assert!(mask.allows(CONTROL) && mask.count(1000) == 1);
    constraint.accept(CONTROL).unwrap();
    for byte in br#"{"name": "run", "arguments": {"command": "ls"}}"# {
        assert!(constraint.mask().unwrap().unwrap().allows(u32::from(*byte)));
        constraint.accept(u32::from(*byte)).unwrap();
    }
    assert!(constraint.mask().unwrap().unwrap().allows(CONTROL));
    assert_eq!(constraint.accept(CONTROL).unwrap(), Verdict::Complete);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whatever is drawn under the mask, the answer parses and is what the schema asks for.
    #[test]
    fn every_masked_answer_parses(draws in proptest::collection::vec(any::<u32>(), 400)) {
        thread_local! {
            static V: Arc<GrammarVocabulary> = vocabulary();
        }
        let v = V.with(Clone::clone);
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string", "maxLength": 6}, "n": {"type": "integer", "minimum": -5, "maximum": 500},
            "l": {"type": "array", "items": {"enum": ["a", true, null]}, "maxItems": 3}},
            "required": ["s", "n", "l"], "additionalProperties": false});
        let mut constraint = Constraint::new(&v, &GrammarSpec::json_schema(schema)).unwrap();
        let mut text = Vec::new();
        let mut draws = draws.into_iter();
        loop {
            let mask = constraint.mask().unwrap().unwrap().clone();
            let allowed: Vec<u32> = (0..v.tokens().vocab_size() as u32).filter(|&id| mask.allows(id)).collect();
            prop_assert!(!allowed.is_empty());
            // When the draws are used up, white space and escapes are left out, so that it ends.
            let solid = |id: &&u32| !v.tokens().bytes(**id).iter().all(|b| b.is_ascii_whitespace() || *b == b'\\');
            let id = match draws.next() {
                Some(draw) => allowed[draw as usize % allowed.len()],
                None => *allowed.iter().find(solid).unwrap_or(&allowed[0]),
            };
            if id != END {
                text.extend_from_slice(v.tokens().bytes(id));
            }
            prop_assert!(text.len() < 4_000, "{}", String::from_utf8_lossy(&text));
            // White space may still follow the object: there the end token ends it.
            if constraint.accept(id).unwrap() == Verdict::Complete || id == END {
                break;
            }
        }
        let value: Value = serde_json::from_slice(&text).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        prop_assert_eq!(keys, ["s", "n", "l"]);
        prop_assert!(value["s"].as_str().unwrap().chars().count() <= 6);
        // `-0` is an integer in JSON, and no i64.
        prop_assert!((-5.0..=500.0).contains(&value["n"].as_f64().unwrap()));
        prop_assert!(value["l"].as_array().unwrap().len() <= 3);
    }
}
