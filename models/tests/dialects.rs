//! Tool calls read from a stream: every row of `tests/golden/toolcalls.json`, cut in every way, and random text
//! made of the marks themselves.

use std::path::PathBuf;

use models::dialect::{Event, Parser, ToolDialect, ToolSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

const DIALECTS: [ToolDialect; 5] = [
    ToolDialect::Hermes,
    ToolDialect::Llama3,
    ToolDialect::Mistral,
    ToolDialect::XmlParameters,
    ToolDialect::Gemma4,
];

fn document() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/toolcalls.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("toolcalls.json is JSON")
}

fn tools(document: &Value) -> Vec<ToolSpec> {
    let tools = document["tools"].as_array().expect("tools");
    let name = |tool: &Value| tool["name"].as_str().expect("a name").to_owned();
    tools
        .iter()
        .map(|tool| ToolSpec {
            name: name(tool),
            parameters: tool["parameters"].clone(),
        })
        .collect()
}

/// What a client sees of a stream: the events, with neighbours of one kind joined.
fn parse(dialect: ToolDialect, tools: &[ToolSpec], opening: &str, pieces: &[&str]) -> Vec<Event> {
    let mut parser = Parser::new(dialect, tools.to_vec(), opening);
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(Event::Text(last)), Event::Text(more)) => last.push_str(&more),
            (Some(Event::Thinking(last)), Event::Thinking(more)) => last.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// Cuts after every byte where a character ends, in threes, and at each single place.
fn cuts(raw: &str) -> Vec<Vec<&str>> {
    let places: Vec<usize> = raw.char_indices().map(|(at, _)| at).collect();
    let pieces = |step: usize| {
        let mut ends: Vec<usize> = places.iter().copied().step_by(step).collect();
        ends.push(raw.len());
        ends.windows(2)
            .map(|pair| &raw[pair[0]..pair[1]])
            .collect::<Vec<_>>()
    };
    let mut all = vec![
        vec![raw],
        pieces(1),
        pieces(3),
        raw.split_inclusive('}').collect(),
    ];
    all.extend(places.iter().map(|at| vec![&raw[..*at], &raw[*at..]]));
    all
}

fn summary(events: &[Event]) -> Value {
    let (mut text, mut thinking, mut calls, mut broken) =
        (String::new(), String::new(), Vec::new(), 0);
    for event in events {
        match event {
            Event::Text(more) => text.push_str(more),
            Event::Thinking(more) => thinking.push_str(more),
            Event::Call {
                index,
                name,
                arguments,
            } => {
                assert_eq!(*index, calls.len(), "calls are numbered from 0");
                let arguments: Value = serde_json::from_str(arguments).expect("arguments are JSON");
                calls.push(json!({"name": name, "arguments": arguments}));
            }
            Event::Broken { raw, why } => {
                assert!(!raw.is_empty() && !why.is_empty());
                broken += 1;
            }
        }
    }
    json!({"text": text, "thinking": thinking, "calls": calls, "broken": broken})
}

#[test]
fn every_row_is_read_right_however_it_is_cut() {
    let document = document();
    let tools = tools(&document);
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.len() > 70);
    for row in rows {
        let dialect = DIALECTS
            .into_iter()
            .find(|dialect| format!("{dialect:?}") == row["dialect"])
            .expect("a dialect");
        let raw = row["raw"].as_str().expect("raw");
        let opening = row["opening"].as_str().unwrap_or_default();
        let expected = json!({"text": row["text"], "thinking": row["thinking"], "calls": row["calls"], "broken": row["broken"]});
        for pieces in cuts(raw) {
            let events = parse(dialect, &tools, opening, &pieces);
            assert_eq!(
                summary(&events),
                expected,
                "{dialect:?} {pieces:?}\n{events:?}"
            );
        }
    }
}

/// Report P09: `tool_choice: none` (and a request without tools) leaves the marks in the text.
#[test]
fn without_tools_everything_is_text() {
    for raw in [
        "<tool_call>\n{\"name\": \"run\", \"arguments\": {}}\n</tool_call>",
        "[TOOL_CALLS] []",
        "{\"name\": \"x\"}",
    ] {
        for dialect in DIALECTS {
            assert_eq!(
                parse(dialect, &[], "", &[raw]),
                [Event::Text(raw.to_owned())]
            );
        }
    }
}

/// A long argument arrives token by token; reading it must not cost the square of its length.
#[test]
fn long_arguments_are_read_in_linear_time() {
    let document = document();
    let tools = tools(&document);
    let content = "x = {'a': [1, 2]}  # \\\"quoted\\\" </par\\n".repeat(20_000);
    let json = format!(
        "<tool_call>\n{{\"name\": \"write\", \"arguments\": {{\"path\": \"p\", \"content\": \"{content}\"}}}}\n</tool_call>"
    );
    let xml = format!(
        "<tool_call>\n<function=write>\n<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>"
    );
    let start = std::time::Instant::now();
    for (dialect, raw) in [
        (ToolDialect::Hermes, json),
        (ToolDialect::XmlParameters, xml),
    ] {
        let pieces: Vec<String> = raw
            .chars()
            .collect::<Vec<_>>()
            .chunks(4)
            .map(|piece| piece.iter().collect())
            .collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let events = parse(dialect, &tools, "", &pieces);
        assert!(
            matches!(&events[..], [Event::Call { .. }]),
            "{:?}",
            &format!("{events:?}")[..200]
        );
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// Parts of which hostile or confused replies are made.
const PARTS: [&str; 38] = [
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<function=run>",
    "<function=",
    "<parameter=command>",
    "</parameter>",
    "</function>",
    "<|tool_call>",
    "<tool_call|>",
    "call:run{",
    "<|\"|>",
    "{\"name\": \"run\", \"arguments\": {\"command\": \"ls\"}}",
    "{\"name\": \"run\"",
    ", \"arguments\": {",
    "{\"a\":",
    "\"",
    "}",
    "]",
    "[",
    "{",
    "```",
    "```json\n",
    "\n",
    " ",
    "run",
    "é",
    "😀",
    "\\",
    ";",
    "text",
    "[THINK]",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same_events(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24),
        cuts in prop::collection::vec(0usize..400, 0..12),
        dialect in prop::sample::select(&DIALECTS[..]),
        opening in prop::sample::select(&["", "<think>\n"][..]),
    ) {
        let raw = parts.concat();
        let tools = tools(&document());
        let whole = parse(dialect, &tools, opening, &[raw.as_str()]);
        let mut places: Vec<usize> = cuts.into_iter().filter(|at| *at < raw.len() && raw.is_char_boundary(*at)).collect();
        places.extend([0, raw.len()]);
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &raw[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&parse(dialect, &tools, opening, &pieces), &whole);
        let single: Vec<String> = raw.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        prop_assert_eq!(&parse(dialect, &tools, opening, &single), &whole);
        for event in whole {
            if let Event::Call { name, arguments, .. } = event {
                prop_assert!(tools.iter().any(|tool| tool.name == name));
                let arguments: Value = serde_json::from_str(&arguments).expect("arguments are JSON");
                prop_assert!(arguments.is_object());
            }
        }
    }
}
