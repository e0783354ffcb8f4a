//! The binary as a person meets it, with the real default model: what goes where, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

use harness::env::{Env, Terminals};
use harness::store::{Silent, ensure_default_model};
use serde_json::Value;

fn model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        if let Some(path) = std::env::var_os("OSTLER_TEST_MODEL") {
            return PathBuf::from(path);
        }
        let env = Env::collect(|name| std::env::var_os(name), Terminals::default())
            .expect("a sound environment");
        ensure_default_model(&env, Arc::new(Silent)).expect("the default model can be fetched")
    })
}

/// `ostler ARGS --model MODEL`.
fn with_model(args: &[&str]) -> Command {
    let mut command = ostler(args);
    // What an earlier test left on disk would count as cached.
    command.args(["--kv-disk", "off", "--model"]).arg(model());
    command
}

fn ostler(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn output(mut command: Command, stdin: &str) -> (String, String, i32) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    told(child.wait_with_output().unwrap())
}

fn told(output: Output) -> (String, String, i32) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        text(output.stderr),
        output.status.code().expect("not killed"),
    )
}

/// The n-th number behind `label` in the figures line.
fn figure(line: &str, label: &str) -> usize {
    let rest = line
        .split(label)
        .nth(1)
        .unwrap_or_else(|| panic!("no '{label}' in: {line}"));
    rest.trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap()
}

#[test]
fn run_answers_on_stdout_and_closes_with_one_line_of_figures() {
    let args = [
        "run",
        "--max-tokens",
        "24",
        "--temperature",
        "0",
        "Name three uses of a prefix cache.",
    ];
    let (stdout, stderr, code) = told(with_model(&args).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.trim().len() > 20, "{stdout}");
    let line = stderr.lines().last().unwrap();
    for part in [
        "prompt ",
        "cached",
        "first token",
        "prefill",
        "decode",
        "context",
    ] {
        assert!(line.contains(part), "no '{part}' in: {line}");
    }
    assert!(figure(line, "prompt") > 10, "{line}");
    assert!(
        stderr.contains("context 8192 tokens"),
        "the effective context is told: {stderr}"
    );
}

#[test]
fn run_reads_a_pipe_and_gives_json() {
    let (stdout, stderr, code) = output(
        with_model(&[
            "run",
            "--json",
            "--max-tokens",
            "8",
            "--seed",
            "7",
            "Repeat:",
            "-",
        ]),
        "a horse\n",
    );
    assert_eq!(code, 0, "{stderr}");
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(answer["generated_tokens"], 8);
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["cached_tokens"], 0);
    assert_eq!(answer["computed_tokens"], answer["prompt_tokens"]);
    let pieces = answer["pieces"].as_array().unwrap();
    let sum: u64 = pieces
        .iter()
        .map(|piece| piece["tokens"].as_u64().unwrap())
        .sum();
    assert_eq!(Some(sum), answer["prompt_tokens"].as_u64());

    let (again, ..) = output(
        with_model(&[
            "run",
            "--json",
            "--max-tokens",
            "8",
            "--seed",
            "7",
            "Repeat:",
            "-",
        ]),
        "a horse",
    );
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(
        again["text"], answer["text"],
        "the same seed gives the same answer"
    );
}

#[test]
fn verbose_shows_the_pieces() {
    let (_, stderr, code) = told(
        with_model(&[
            "run",
            "-v",
            "--max-tokens",
            "4",
            "--system",
            "Be brief.",
            "Hi",
        ])
        .output()
        .unwrap(),
    );
    assert_eq!(code, 0, "{stderr}");
    let row = stderr
        .lines()
        .find(|line| line.starts_with("system "))
        .unwrap_or_else(|| panic!("{stderr}"));
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[1], "instructions", "{row}");
    assert!(
        columns[3].len() == 8 && columns[3].bytes().all(|b| b.is_ascii_hexdigit()),
        "{row}"
    );
    assert!(stderr.contains("first call"), "{stderr}");
}

#[test]
fn a_raw_prompt_goes_without_the_template() {
    let args = [
        "run",
        "--raw",
        "--json",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "The capital of France is",
    ];
    let (stdout, stderr, code) = told(with_model(&args).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        answer["prompt_tokens"], 5,
        "no template around it: {answer}"
    );
    assert!(
        answer["text"].as_str().unwrap().contains("Paris"),
        "{answer}"
    );
}

#[test]
fn the_second_turn_of_a_chat_reuses_the_first_with_its_answer() {
    let (stdout, stderr, code) = output(
        with_model(&["--max-tokens", "24", "--temperature", "0"]),
        "Name a colour.\nName another one.\n",
    );
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.trim().is_empty());
    let figures: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains("first token"))
        .collect();
    let [first, second] = figures[..] else {
        panic!("{stderr}")
    };
    assert_eq!(
        figure(first, " tokens, "),
        0,
        "nothing is cached at first: {first}"
    );
    let whole_first_turn = figure(first, "context");
    let cached = figure(second, " tokens, ");
    assert!(
        cached + 1 >= whole_first_turn,
        "{cached} of {whole_first_turn} reused: {stderr}"
    );
}

#[test]
fn chat_commands_work_without_a_terminal() {
    let turns =
        "/help\nHi\n/context\n/plan And you?\n/undo\n/contxt\n/new\n/context\n/quit\nnever sent\n";
    let (stdout, stderr, code) = output(with_model(&["chat", "--max-tokens", "4"]), turns);
    assert_eq!(code, 0, "{stderr}");
    for part in [
        "/plan TEXT",
        "fingerprint",
        "taken back",
        "nothing has been said",
    ] {
        assert!(stdout.contains(part), "no '{part}' in {stdout}");
    }
    assert!(stderr.contains("did you mean /context"), "{stderr}");
    assert_eq!(
        stderr
            .lines()
            .filter(|line| line.contains("first token"))
            .count(),
        1,
        "one turn was sent"
    );
}

#[test]
fn a_prompt_over_the_window_is_refused_with_its_pieces() {
    let long = "many words ".repeat(600);
    let (stdout, stderr, code) = output(with_model(&["run", "--context", "512", "-"]), &long);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(
        stderr.contains("need 1") && stderr.contains("have 512") && stderr.contains("tokens\n"),
        "{stderr}"
    );
}

#[test]
fn wrong_input_is_answered_with_what_is_near() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["chatt"], 2, "'chat'"),
        (&["run", "--temprature", "1", "hi"], 2, "--temperature"),
        (
            &["run", "--model", "smolm2", "hi"],
            2,
            "did you mean smollm2",
        ),
        (
            &["run", "--model", "./nothing.gguf", "hi"],
            2,
            "no such file",
        ),
        (&["run", "--kv-memory", "much", "hi"], 2, "512MiB"),
        (&["run", "--device", "gpu", "hi"], 2, "cuda"),
        (&["run", ""], 2, "the prompt is empty"),
        (&["show", "qwen2.5-codr"], 2, "did you mean qwen2.5-coder"),
        (&["pull", "org/../etc"], 2, "hub name"),
    ];
    for (args, code, expect) in cases {
        let (stdout, stderr, got) = told(ostler(args).output().unwrap());
        assert_eq!((got, stdout.as_str()), (*code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(expect), "{args:?}: {stderr}");
    }
    let damaged = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(
        damaged.path(),
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    )
    .unwrap();
    let (_, stderr, code) = told(
        ostler(&["run", "--model", damaged.path().to_str().unwrap(), "hi"])
            .output()
            .unwrap(),
    );
    assert_eq!(code, 3, "{stderr}");
}

#[test]
fn show_tells_what_the_model_is() {
    let (stdout, stderr, code) = told(
        ostler(&["show", model().to_str().unwrap()])
            .output()
            .unwrap(),
    );
    assert_eq!(code, 0, "{stderr}");
    for part in [
        "llama",
        "135 million",
        "Q4_1",
        "8192 tokens",
        "chat template yes",
    ] {
        assert!(stdout.contains(part), "no '{part}' in {stdout}");
    }
    let (stdout, ..) = told(
        ostler(&["show", "--json", model().to_str().unwrap()])
            .output()
            .unwrap(),
    );
    assert_eq!(
        serde_json::from_str::<Value>(&stdout).unwrap()["vocab"],
        49152
    );
}

#[test]
fn a_reader_that_goes_away_ends_the_answer_quietly() {
    let mut child = with_model(&[
        "run",
        "--max-tokens",
        "400",
        "Count from one to two hundred.",
    ])
    .spawn()
    .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    let (_, stderr, code) = told(child.wait_with_output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    assert!(
        !stderr.contains("ostler:") && !stderr.contains("panicked"),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_partial_answer_and_its_figures() {
    let mut child = with_model(&["run", "--max-tokens", "4000", "Tell a very long story."])
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0; 12];
    stdout.read_exact(&mut text).unwrap();
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    stdout.read_to_end(&mut text).unwrap();
    let (_, stderr, code) = told(child.wait_with_output().unwrap());
    assert_eq!(code, 130, "{stderr}");
    assert!(text.len() >= 12 && text.ends_with(b"\n"));
    let line = stderr.lines().last().unwrap();
    assert!(
        line.contains("decode") && figure(line, "tok/s, ") < 4000,
        "{stderr}"
    );
}

#[test]
fn bench_cache_counts_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart.svg");
    let mut command = with_model(&["bench", "cache", "--json", "--prompt-tokens", "256"]);
    let (stdout, stderr, code) = told(command.arg("--svg").arg(&chart).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<Value> = serde_json::from_str(&stdout).unwrap();
    let row = |scenario: &str| {
        let row = rows
            .iter()
            .find(|row| row["scenario"] == scenario)
            .unwrap_or_else(|| panic!("{stdout}"));
        let number = |key: &str| row[key].as_u64().unwrap();
        assert!(row["ttft_ms"].as_f64().unwrap() > 0.0);
        (
            number("prompt_tokens"),
            number("cached_tokens"),
            number("computed_tokens"),
        )
    };
    assert_eq!(row("cold"), (256, 0, 256));
    assert_eq!(row("repeat"), (256, 255, 1));
    assert_eq!(row("append-32"), (288, 256, 32));
    assert_eq!(row("append-32-deep"), (982, 950, 32));
    assert_eq!(row("edit-50"), (256, 128, 128));
    assert_eq!(row("edit-25"), (256, 64, 192));
    assert_eq!(row("insert-64-at-25"), (320, 64, 256));
    assert_eq!(row("alternate"), (4 * 256, 4 * 255, 4));
    // The prefix once, and each child's brief.
    assert_eq!(row("fork-4"), (4 * 576, 3 * 512, 512 + 4 * 64));
    assert_eq!(row("fork-16"), (16 * 576, 15 * 512, 512 + 16 * 64));
    // The note, and the last token of the reply before, which was sampled and not yet computed.
    assert_eq!(row("memory-note"), (256 + 8 + 48, 256 + 7, 48 + 1));
    assert_eq!(row("restart"), (512, 511, 1));
    let (agent, budget) = (row("agent-30"), row("budget-8"));
    assert!(agent.2 < agent.0 / 10, "{agent:?}");
    assert!(budget.1 > budget.0 / 3, "{budget:?}");
    let chart = std::fs::read_to_string(chart).unwrap();
    assert!(chart.contains("restart") && chart.ends_with("</svg>\n"));
}

#[test]
fn bench_cache_runs_what_was_asked_for() {
    let args = [
        "bench",
        "cache",
        "--csv",
        "--prompt-tokens",
        "256",
        "--scenario",
        "memory-note",
    ];
    let (stdout, stderr, code) = told(with_model(&args).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(
        lines[1].starts_with("ostler,memory-note,1,312,263,49,1,"),
        "{stdout}"
    );

    let args = ["bench", "cache", "--scenario", "warm"];
    let (_, stderr, code) = told(with_model(&args).output().unwrap());
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("there are cold, repeat"), "{stderr}");
}

#[test]
fn what_is_kept_on_disk_is_shown_and_cleared() {
    let home = tempfile::tempdir().unwrap();
    let ostler = |args: &[&str]| {
        let mut command = ostler(args);
        command.env("OSTLER_HOME", home.path());
        command
    };
    let mut run = ostler(&[
        "run",
        "--max-tokens",
        "1",
        "A prefix cache outlives its program.",
        "-m",
    ]);
    run.arg(model());
    let (_, stderr, code) = told(run.output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let list = || {
        let (stdout, ..) = told(ostler(&["cache", "--json"]).output().unwrap());
        serde_json::from_str::<Vec<Value>>(&stdout).unwrap()
    };
    let kept = list();
    assert!(!kept.is_empty());
    let model = kept[0]["model"].as_str().unwrap();
    // As a process leaves it that is killed while it writes.
    let name = kept[0]["name"].as_str().unwrap();
    let (folder, _) = name.split_once('/').unwrap();
    let unfinished = home.path().join(format!("kv/{folder}/77-0.unfinished"));
    std::fs::write(&unfinished, b"what was said").unwrap();
    assert_eq!(list().len(), kept.len() + 1);

    let clear = |args: &[&str]| {
        told(
            ostler(&[&["cache", "clear"], args].concat())
                .output()
                .unwrap(),
        )
    };
    let (_, stderr, code) = clear(&["--model", "another"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains(model), "{stderr}");
    let (stdout, ..) = clear(&["--older-than", "1h"]);
    assert!(stdout.starts_with("removed 0 files"), "{stdout}");
    let (stdout, stderr, code) = clear(&["--model", model]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.starts_with(&format!("removed {} files", kept.len() + 1)),
        "{stdout}"
    );
    assert!(list().is_empty() && !unfinished.exists());
}

#[test]
fn bench_speed_measures_what_was_asked_for() {
    let args = [
        "bench",
        "speed",
        "--depth",
        "0,100",
        "--decode",
        "5",
        "--sequences",
        "2",
        "--rounds",
        "1",
        "--json",
        "-t",
        "2",
    ];
    let (stdout, stderr, code) = told(with_model(&args).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("memory read"), "{stderr}");
    let rows: Vec<Value> = serde_json::from_str(&stdout).unwrap();
    let depths: Vec<_> = rows.iter().map(|row| row["depth"].as_u64()).collect();
    assert_eq!(depths, [Some(0), Some(100)]);
    for row in &rows {
        assert_eq!(
            (
                &row["test"],
                &row["tokens"],
                &row["sequences"],
                &row["threads"]
            ),
            (&"decode".into(), &5.into(), &2.into(), &2.into())
        );
        assert!(row["tok_per_s"].as_f64().unwrap() > 0.0);
        let fraction = row["fraction_of_limit"].as_f64().unwrap();
        assert!(fraction > 0.0 && fraction.is_finite(), "{row}");
    }
    for (args, why) in [
        (["--depth", "x"], "invalid value"),
        (["--prefill", "0"], "need a whole number"),
        (["--sequences", "999"], "need a whole number from 1 to"),
        (["--against", "nowhere"], "need an address"),
    ] {
        let args = [&["bench", "speed", "--rounds", "1"][..], &args].concat();
        let (_, stderr, code) = told(with_model(&args).output().unwrap());
        assert!(code == 2 && stderr.contains(why), "{code}: {stderr}");
    }
}

#[test]
fn bench_speed_takes_turns_with_a_server() {
    let mut server = with_model(&["serve", "--port", "0", "--context", "1024"])
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let address = address.trim().strip_prefix("listening on ").unwrap();
    let args = [
        "bench",
        "speed",
        "--depth",
        "64",
        "--prefill",
        "40",
        "--decode",
        "8",
        "--rounds",
        "1",
        "--csv",
        "--against",
        address,
    ];
    let (stdout, stderr, code) = told(with_model(&args).output().unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let theirs = address.trim_end_matches("/v1");
    assert!(lines[0].starts_with("engine,test,tokens"), "{stdout}");
    for (line, engine, test) in [
        (lines[1], "ostler", "prefill"),
        (lines[2], theirs, "prefill"),
        (lines[3], "ostler", "decode"),
        (lines[4], theirs, "decode"),
    ] {
        assert!(line.starts_with(&format!("{engine},{test},")), "{stdout}");
        let rate: f64 = line.split(',').nth(6).unwrap().parse().unwrap();
        assert!(rate > 0.0 && rate.is_finite(), "{line}");
    }
}

#[test]
fn help_tells_the_exit_codes() {
    let (stdout, _, code) = told(ostler(&["--help"]).output().unwrap());
    assert_eq!(code, 0);
    for part in ["Exit codes", "130", "HF_TOKEN", "bench", "OSTLER_HOME"] {
        assert!(stdout.contains(part), "no '{part}' in {stdout}");
    }
}
