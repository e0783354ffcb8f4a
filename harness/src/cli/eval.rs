//! `ostler eval`: tasks with graders, played by a model or by scripts; what the harness is worth.

use std::sync::Arc;

use super::Exit;
use super::args::EvalArgs;
use super::interrupt::on_ctrl_c;
use super::loading;
use super::models::columns;
use super::output::{Out, note};
use super::sampling;
use crate::agent::driver::Ablation;
use crate::agent::local::Local;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::eval::{Played, TASKS, Task, play, play_script};
use crate::limits::EVAL_WINDOW;
use crate::store::nearest;
use crate::tools::{Cancel, Counter};

pub fn run(env: &Env, args: &EvalArgs, out: &mut Out) -> Result<Exit> {
    let tasks = chosen(&args.task)?;
    let ablation = Ablation {
        bounding: args.without.iter().any(|part| part == "bounding"),
        compaction: args.without.iter().any(|part| part == "compaction"),
        tools: &[],
    };
    let played = match args.scripted {
        true => scripted(env, &tasks, ablation)?,
        false => by_model(env, args, &tasks, ablation)?,
    };
    let passed = played.iter().filter(|task| task.passed).count();
    if args.json {
        out.line(&serde_json::to_string_pretty(&played).expect("plain JSON"))?;
    } else {
        for line in table(&played) {
            out.line(&line)?;
        }
    }
    note(&format!("{passed} of {} passed", played.len()));
    Ok(match passed == played.len() {
        true => Exit::Done,
        false => Exit::Unfinished,
    })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Task>> {
    let known = || TASKS.iter().map(|task| task.name);
    for name in names {
        if !known().any(|task| task == name) {
            let near = nearest(name, known());
            let hint = match near.first() {
                Some(near) => format!("did you mean {near}?"),
                None => format!("have {}", known().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::caller(format!(
                "--task {name}: no such task; {hint}"
            )));
        }
    }
    let wanted = |task: &&Task| names.is_empty() || names.iter().any(|n| n == task.name);
    Ok(TASKS.iter().filter(wanted).collect())
}

fn scripted(env: &Env, tasks: &[&Task], ablation: Ablation) -> Result<Vec<Played>> {
    let play = |task: &&Task| play_script(task, EVAL_WINDOW, ablation, &env.variables);
    tasks.iter().map(play).collect()
}

fn by_model(
    env: &Env,
    args: &EvalArgs,
    tasks: &[&Task],
    ablation: Ablation,
) -> Result<Vec<Played>> {
    let model = loading::load(env, &loading::options(&args.model)?, false)?.model;
    let cancel = Cancel::new();
    let stop = cancel.clone();
    on_ctrl_c(move || stop.cancel())?;
    let counting = Arc::clone(&model);
    let counter: Arc<Counter> = Arc::new(move |text: &str| counting.format.count(text));
    let mut played = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let sampling = sampling::greedy_or(0.0, None);
        let mut local = Local::new(Arc::clone(&model), sampling, clock::freeze());
        let counter = Arc::clone(&counter);
        let one = play(task, &mut local, counter, ablation, &env.variables, &cancel)?;
        if cancel.is_cancelled() {
            break;
        }
        let how = match &one.why {
            None => "passed".to_owned(),
            Some(why) => format!("failed: {}", why.chars().take(160).collect::<String>()),
        };
        note(&format!("{}/{} {}: {how}", at + 1, tasks.len(), task.name));
        played.push(one);
    }
    Ok(played)
}

fn table(played: &[Played]) -> Vec<String> {
    let heading = ["TASK", "PASSED", "STEPS", "SENT", "COMPUTED", "COMPACTIONS"];
    let mut rows = vec![heading.map(str::to_owned)];
    for task in played {
        rows.push([
            task.task.to_owned(),
            if task.passed { "yes" } else { "no" }.to_owned(),
            task.steps.to_string(),
            task.tokens_sent.to_string(),
            task.tokens_computed.to_string(),
            task.compactions.to_string(),
        ]);
    }
    let sum = |of: fn(&Played) -> usize| played.iter().map(of).sum::<usize>().to_string();
    rows.push([
        "all".to_owned(),
        sum(|task| usize::from(task.passed)),
        sum(|task| task.steps),
        sum(|task| task.tokens_sent),
        sum(|task| task.tokens_computed),
        sum(|task| task.compactions),
    ]);
    let mut lines = columns(&rows);
    let why = |task: &Played| Some(format!("{}: {}", task.task, task.why.as_ref()?));
    lines.extend(played.iter().filter_map(why));
    lines
}
