//! Chat templates against Jinja2: `tests/golden/make_templates.py` rendered every template over every
//! conversation with CPython, set up as transformers does. Ours must be byte-equal, or fail where Jinja2 fails.
//! Then the rules by which conversations are made to fit, and templates that mean harm.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use models::template::{
    ArgumentsForm, ChatTemplate, Date, FrozenClock, RenderInput, TemplateError, Time,
};
use serde_json::{Map, Value, json};

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn template(name: &str) -> ChatTemplate {
    compile(&golden(&format!("templates/{name}.jinja")))
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").expect("the template compiles")
}

fn pi_day() -> FrozenClock {
    let (date, time) = (
        Date {
            year: 2026,
            month: 3,
            day: 14,
        },
        Time {
            hour: 15,
            minute: 9,
            second: 26,
        },
    );
    FrozenClock::new(date, time).expect("a valid moment")
}

fn render_with(
    template: &ChatTemplate,
    case: &Value,
    messages: &[Value],
) -> Result<String, TemplateError> {
    let tools = case.get("tools").and_then(Value::as_array).cloned();
    let extra = case
        .get("extra")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    template.render(&RenderInput {
        messages,
        tools: tools.as_deref(),
        add_generation_prompt: case
            .get("add_generation_prompt")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        now: &pi_day(),
        extra: &extra,
    })
}

fn messages_of(case: &Value) -> Vec<Value> {
    case["messages"].as_array().cloned().unwrap_or_default()
}

/// Adapted, then rendered without a generation prompt.
fn adapted(template: &ChatTemplate, messages: Value) -> Result<String, TemplateError> {
    let case = json!({"messages": messages, "add_generation_prompt": false});
    render_with(template, &case, &template.adapt(&messages_of(&case)))
}

#[test]
fn renders_are_those_of_jinja2() {
    let document: Value =
        serde_json::from_str(&golden("templates.json")).expect("templates.json is JSON");
    let conversations = document["conversations"].as_array().expect("conversations");
    let mut equal = 0;
    for (name, rows) in document["templates"].as_object().expect("templates") {
        let template = template(name);
        for (case, row) in conversations.iter().zip(rows.as_array().expect("rows")) {
            let ours = render_with(&template, case, &messages_of(case));
            match (&ours, row["render"].as_str(), row["error"].as_str()) {
                (Ok(ours), Some(right), _) => {
                    assert_eq!(ours, right, "{name} over {case}");
                    equal += 1;
                }
                (Err(error), Some(_), _) => panic!("{name} over {case}: {error}"),
                // What the template itself refuses, we refuse with its words.
                (Err(error), None, Some(right)) if right.starts_with("TemplateError: ") => {
                    assert_eq!(
                        *error,
                        TemplateError::Refused(right["TemplateError: ".len()..].to_owned())
                    );
                }
                (Ok(ours), None, Some(right)) => {
                    assert!(
                        !right.starts_with("TemplateError"),
                        "{name} should refuse ({right}): {ours}"
                    );
                }
                _ => {}
            }
        }
    }
    assert!(equal > 200, "only {equal} renders were compared");
}

/// After adaptation every conversation renders on every template, except where the template can hold only one call.
#[test]
fn adapted_conversations_render_everywhere() {
    let document: Value =
        serde_json::from_str(&golden("templates.json")).expect("templates.json is JSON");
    let mut rendered = 0;
    for name in document["templates"]
        .as_object()
        .expect("templates")
        .keys()
        .filter(|name| *name != "values")
    {
        let template = template(name);
        for case in document["conversations"].as_array().expect("conversations") {
            let messages = template.adapt(&messages_of(case));
            match render_with(&template, case, &messages) {
                Ok(text) => {
                    assert!(!text.contains("None"), "{name} over {case}: {text}");
                    rendered += 1;
                }
                Err(TemplateError::Refused(text)) => {
                    assert!(text.contains("single tool-calls"), "{name}: {text}")
                }
                Err(error) => panic!("{name} over {case}: {error}"),
            }
        }
    }
    assert!(rendered > 250, "only {rendered}");
}

/// Reports C05: strict templates got two user messages in a row from real clients and the server answered 500.
#[test]
fn strict_templates_get_alternating_roles() {
    let gemma = template("gemma");
    assert!(!gemma.supports_system());
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Title for:"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"}
    ]);
    assert_eq!(
        adapted(&gemma, messages).as_deref(),
        Ok(
            "<s><start_of_turn>user\nBe brief.\n\nTitle for:\n\nhi<end_of_turn>\n<start_of_turn>model\nb\n\nc<end_of_turn>\n<start_of_turn>user\nd<end_of_turn>\n"
        )
    );
    let reply_first =
        json!([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]);
    let refused = adapted(&gemma, reply_first);
    assert!(
        matches!(&refused, Err(TemplateError::Refused(text)) if text.contains("must alternate")),
        "{refused:?}"
    );
}

/// Reports C06: `developer` raised, or its instruction silently vanished.
#[test]
fn developer_messages_become_one_system_message() {
    let chatml = template("chatml");
    let messages = json!([
        {"role": "developer", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        {"role": "user", "content": "hi"}
    ]);
    assert_eq!(
        adapted(&chatml, messages).as_deref(),
        Ok("<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    );
    let unaware = compile(
        "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }};{% endif %}{% endfor %}",
    );
    let messages =
        json!([{"role": "developer", "content": "A"}, {"role": "user", "content": "hi"}]);
    assert_eq!(adapted(&unaware, messages).as_deref(), Ok("U:A\n\nhi;"));
}

/// Reports C07: arguments come as JSON text, as a mapping, empty, or broken by a weak model.
#[test]
fn call_arguments_reach_the_template_in_its_form() {
    let hermes = template("hermes");
    assert_eq!(hermes.features().arguments, ArgumentsForm::Mapping);
    let text_arguments = template("text_arguments");
    assert_eq!(text_arguments.features().arguments, ArgumentsForm::Text);
    assert!(text_arguments.features().null_content);
    for (arguments, mapping, text) in [
        (
            json!("{\"city\": \"Oslo\"}"),
            r#"{"city": "Oslo"}"#,
            r#"{"city": "Oslo"}"#,
        ),
        (
            json!({"city": "Oslo"}),
            r#"{"city": "Oslo"}"#,
            r#"{"city": "Oslo"}"#,
        ),
        (json!(""), "{}", "{}"),
        (
            json!("not json {"),
            r#"{"arguments": "not json {"}"#,
            r#"{"arguments": "not json {"}"#,
        ),
        (
            json!("[1]"),
            r#"{"arguments": "[1]"}"#,
            r#"{"arguments": "[1]"}"#,
        ),
    ] {
        let messages = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": arguments}}]}
        ]);
        let render = adapted(&hermes, messages.clone()).expect("hermes");
        assert!(
            render.contains(&format!("{{\"name\": \"f\", \"arguments\": {mapping}}}")),
            "{render}"
        );
        let render = adapted(&text_arguments, messages).expect("text");
        assert!(
            render.contains(&format!("call f\n```json\n{text}\n```")),
            "{render}"
        );
    }
}

/// A template that knows no tools still shows what was called and what came back.
#[test]
fn calls_and_results_are_written_out_where_the_template_has_no_place() {
    let gemma = template("gemma");
    assert!(!gemma.supports_tools());
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
        {"role": "user", "content": "and?"}
    ]);
    let render = adapted(&gemma, messages).expect("renders");
    assert!(render.contains("model\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><end_of_turn>"), "{render}");
    assert!(
        render.contains("user\n<tool_response>\nr\n</tool_response>\n\nand?<end_of_turn>"),
        "{render}"
    );
}

/// Mistral refuses ids that are not nine characters, and a user message right after a result.
#[test]
fn mistral_gets_short_ids_and_its_alternation() {
    let mistral = template("mistral");
    assert!(mistral.features().short_call_ids && mistral.features().moving_head);
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_0123456789", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "r"},
        {"role": "user", "content": "next"}
    ]);
    let render = adapted(&mistral, messages).expect("renders");
    let ids: Vec<&str> = render
        .split("id\": \"")
        .skip(1)
        .filter_map(|tail| tail.split('"').next())
        .collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] == ids[1] && ids[0].len() == 9, "{ids:?}");
    assert!(
        render.contains("[/TOOL_RESULTS](no reply)</s>[INST]next[/INST]"),
        "{render}"
    );
}

#[test]
fn content_becomes_parts_only_where_a_template_wants_parts() {
    let parts = template("parts_only");
    assert!(parts.features().typed_content);
    assert_eq!(
        adapted(&parts, json!([{"role": "user", "content": "hi"}])).as_deref(),
        Ok("[user]hi")
    );
    let image = json!([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]);
    assert_eq!(adapted(&parts, image).as_deref(), Ok("[user]<image>what?"));
    assert!(!template("chatml").features().typed_content);
}

/// A model without a template is talked to in ChatML.
#[test]
fn the_fallback_is_chatml() {
    let fallback = ChatTemplate::fallback("", "").expect("compiles");
    let case = json!({"messages": [{"role": "user", "content": "hi"}]});
    let render = render_with(&fallback, &case, &messages_of(&case));
    assert_eq!(
        render.as_deref(),
        Ok("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    );
}

/// A template comes inside a file from the internet: whatever it does, it ends soon and within bounds.
#[test]
fn hostile_templates_end_within_a_second() {
    let nested_loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}";
    let doubling = format!(
        "{{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}}{}{{{{ ns.s }}}}",
        "{% set ns.s = ns.s ~ ns.s %}".repeat(60)
    );
    let endless = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned();
    let deep_source = format!(
        "{}{}",
        "{% if true %}".repeat(20_000),
        "{% endif %}".repeat(20_000)
    );
    let deep_expression = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    let deep_value = "{% set ns = namespace(v=[]) %}{% for i in range(5000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}{{ ns.v }}".to_owned();
    let sources = [
        nested_loops.to_owned(),
        doubling,
        endless,
        deep_source,
        deep_expression,
        deep_value,
        "{{ 'x' * 999999999 }}".to_owned(),
        "{{ 'x'.ljust(999999999999) }}".to_owned(),
        "{{ '%999999999d' % 1 }}".to_owned(),
        "{{ '{:999999999}'.format(1) }}".to_owned(),
        "{{ range(999999999) | list }}".to_owned(),
        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}".to_owned(),
        "{% include 'chat' %}".to_owned(),
        "{{ debug() }}".to_owned(),
        "{{ messages.append(1) }}".to_owned(),
        "{% if".to_owned(),
        "x".repeat(2 << 20),
    ];
    for source in sources {
        let shown: String = source.chars().take(60).collect();
        let start = Instant::now();
        let case = json!({"messages": [{"role": "user", "content": "hi"}]});
        let outcome = ChatTemplate::new(&source, "", "")
            .and_then(|template| render_with(&template, &case, &messages_of(&case)));
        let error = outcome.expect_err(&shown);
        assert!(!error.to_string().is_empty());
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{shown}: {:?}",
            start.elapsed()
        );
    }
}

/// The clock of a conversation is part of its input; the same input gives the same bytes.
#[test]
fn the_clock_is_frozen() {
    let template = compile(
        "[{{ strftime_now('%H:%M:%S') }}]{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    let messages = [json!({"role": "user", "content": "hi"})];
    let now = pi_day();
    let input = RenderInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        now: &now,
        extra: &Map::new(),
    };
    let first = template.render(&input);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(first.as_deref(), Ok("[15:09:26]hi"));
    assert_eq!(first, template.render(&input));
}
