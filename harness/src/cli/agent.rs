//! `ostler agent`: works on a goal in a folder, with tools.

mod screen;
mod typed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::template::FrozenClock;

use super::Exit;
use super::args::AgentArgs;
use super::interrupt::on_ctrl_c;
use super::models::columns;
use super::output::{Out, note};
use super::{loading, prompt_input, sampling};
use crate::agent::compact::Domain;
use crate::agent::driver::{Ablation, Agent, Hands, Setup};
use crate::agent::local::Local;
use crate::agent::machine::Outcome;
use crate::agent::remote::{Remote, RemoteOptions};
use crate::agent::runtime::Runtime;
use crate::agent::session::{self, Session};
use crate::agent::skills::{PROJECT_FOLDER, Skills};
use crate::agent::undo;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::limits::WINDOW_TOKENS_TINY;
use crate::memory::Memories;
use crate::tools::{
    Cancel, Counter, Mode, Network, Policy, Sandbox, SandboxConfig, ToolBox, ToolContext,
};
use screen::{Events, Screen, Shows};
use typed::Typed;

pub fn run(env: &Env, args: &AgentArgs, out: &mut Out) -> Result<Exit> {
    if args.undo {
        return take_back(&env.data_dir()?.join("sessions"), args, out);
    }
    let cancel = Cancel::new();
    // Without a goal a person at the terminal is asked for one, and for the next when it is done.
    let converses = args.goal.is_empty() && env.terminals.stdin;
    let given = match converses {
        true => None,
        false => Some(prompt_input::prompt_text(
            env,
            &args.goal,
            &mut std::io::stdin().lock(),
        )?),
    };
    let typed = Typed::new(env.terminals.stdin, cancel.clone());
    let mut asker = typed.asker();
    let domain = domain(&args.summaries)?;
    let workspace = workspace(args.directory.as_deref())?;
    let sessions = env.data_dir()?.join("sessions");
    let resumed = resume(&sessions, args)?;
    let begun = resumed
        .as_ref()
        .and_then(|session| session.records().first())
        .map(|first| first.time_ms);
    let clock = begun.map_or_else(clock::freeze, clock::freeze_at);
    let (mut runtime, counter) = runtime(env, args, clock)?;
    let session = match resumed {
        Some(session) => session,
        None => {
            let id = format!("{}-{:04x}", clock::stamp(), std::process::id() & 0xffff);
            Session::create(&sessions, &id, clock::now_ms)?
        }
    };
    let own_skills = env.data_dir()?.join("skills");
    let place = sessions.join(&session.id);
    let sandbox = sandbox(env, args, &workspace, &place, &own_skills);
    note(&format!(
        "session {}, folder {}",
        session.id,
        workspace.display()
    ));
    match (args.no_sandbox, args.yes) {
        (true, true) => note("sandbox: off (--no-sandbox), and --yes: commands run unasked"),
        _ => note(&format!("sandbox: {}", sandbox.active())),
    }
    let mut tools = ToolBox::new(ToolContext {
        workspace: workspace.clone(),
        session_dir: sessions.join(&session.id),
        window_tokens: runtime.window(),
        sandbox,
        environment: env.variables.clone(),
        counter: Arc::clone(&counter),
    })?;
    cancel_on_interrupt(cancel.clone())?;
    let mode = match (args.yes, env.terminals.stdin) {
        (true, _) => Mode::Yes,
        (false, true) => Mode::Ask,
        (false, false) => Mode::Deny,
    };
    // Two more tools and what they hold would take too much of the smallest windows.
    let has_memory = !args.no_memory && runtime.window() > WINDOW_TOKENS_TINY;
    let memories = match has_memory {
        true => Some(Memories::at(env.data_dir()?.join("memory"))),
        false => None,
    };
    let mut watch: Box<dyn Shows + '_> = match args.json {
        true => Box::new(Events::new(out, &session.id, &workspace, &*runtime)),
        false => Box::new(Screen::new(args.verbose, out)),
    };
    let window = runtime.window();
    let hands = Hands {
        runtime: &mut *runtime,
        tools: &mut tools,
        policy: Policy::new(mode),
        asker: &mut asker,
        watch: &mut *watch,
        cancel,
        counter,
    };
    let project_skills = workspace.join(PROJECT_FOLDER);
    let setup = Setup {
        workspace,
        instructions: args.system.clone(),
        rounds_max: Some(args.max_rounds),
        before: undo::folder(&sessions, &session.id),
        domain,
        memories,
        skills: Skills::in_folders(vec![own_skills, project_skills]),
        ablation: Ablation::default(),
        is_helper: false,
        frozen: None,
    };
    let mut agent = Agent::new(hands, session, setup)?;
    args.skill
        .iter()
        .try_for_each(|name| agent.give_skill(name))?;
    let session = agent.session().id.clone();
    let mut exit = Ok(Exit::Done);
    let mut next = given.or_else(|| typed.goal());
    if args.verbose {
        tell_context(&mut agent, window)?;
    }
    while let Some(goal) = next.take() {
        if converses && goal == "/context" {
            tell_context(&mut agent, window)?;
            next = typed.goal();
            continue;
        }
        let outcome = agent.run(&goal)?;
        exit = close(&outcome, &session);
        if converses && matches!(exit, Ok(Exit::Done | Exit::Unfinished)) {
            next = typed.goal();
        }
    }
    drop(agent);
    watch.close()?;
    exit
}

/// The window as a table.
fn tell_context(agent: &mut Agent<'_>, window: usize) -> Result<()> {
    let mut rows = vec![["PART", "TOKENS", "SHARE"].map(str::to_owned)];
    for share in agent.context()? {
        let name = match share.is_kept {
            true => format!("({})", share.name),
            false => share.name,
        };
        let percent = share.tokens as f64 * 100.0 / window as f64;
        rows.push([name, share.tokens.to_string(), format!("{percent:.1}%")]);
    }
    columns(&rows).iter().for_each(|line| note(line));
    note(&format!(
        "of {window} tokens; in brackets: set aside, or free"
    ));
    Ok(())
}

/// What answers: a model in this process, or on a server; and how its tokens are counted.
fn runtime(
    env: &Env,
    args: &AgentArgs,
    clock: FrozenClock,
) -> Result<(Box<dyn Runtime>, Arc<Counter>)> {
    if let Some(url) = &args.runtime {
        let remote = Remote::connect(RemoteOptions {
            url: url.clone(),
            model: args.runtime_model.clone(),
            context_tokens: loading::options(&args.model)?.context_tokens,
            key: env.api_key.clone(),
            temperature: args.temperature,
        })?;
        note(&format!(
            "{} on {url}: context {} tokens",
            remote.model(),
            remote.window()
        ));
        let estimate = remote.estimate();
        let counter = move |text: &str| estimate.tokens(text.len());
        return Ok((Box::new(remote), Arc::new(counter)));
    }
    let model = loading::load(env, &loading::options(&args.model)?, args.verbose)?.model;
    let counting = Arc::clone(&model);
    let counter = move |text: &str| counting.format.count(text);
    let sampling = sampling::greedy_or(args.temperature, args.seed);
    let local = Local::new(model, sampling, clock);
    Ok((Box::new(local), Arc::new(counter)))
}

/// What summaries dwell on.
fn domain(wanted: &str) -> Result<Domain> {
    match wanted {
        "coding" => Ok(Domain::Coding),
        "personal" => Ok(Domain::Personal),
        file => {
            let text = std::fs::read_to_string(file).map_err(|e| {
                Error::caller(format!(
                    "--summaries {file}: {e}; need coding, personal, or a text file"
                ))
            })?;
            match text.trim() {
                "" => Err(Error::caller(format!(
                    "--summaries {file}: the file is empty"
                ))),
                text => Ok(Domain::Own(text.to_owned())),
            }
        }
    }
}

/// Undoes the last run of a session; the newest, if none is named.
fn take_back(sessions: &Path, args: &AgentArgs, out: &mut Out) -> Result<Exit> {
    let mut session = open(sessions, args.resume.as_deref().unwrap_or("last"))?;
    let folder = undo::folder(sessions, &session.id);
    let undone = undo::undo(&mut session, &folder)?;
    out.line(&format!(
        "took back: {}",
        undone.request.lines().next().unwrap_or_default()
    ))?;
    for path in &undone.restored {
        out.line(&format!("as it was: {}", path.display()))?;
    }
    for (path, why) in &undone.left {
        out.line(&format!("left: {}, {why}", path.display()))?;
    }
    note("what commands did is not undone");
    Ok(Exit::Done)
}

fn close(outcome: &Outcome, session: &str) -> Result<Exit> {
    match outcome {
        Outcome::Answered { cut, .. } => {
            if *cut {
                note("(cut off: the reply limit was reached)");
                return Ok(Exit::Unfinished);
            }
            Ok(Exit::Done)
        }
        Outcome::Interrupted => {
            note(&format!(
                "interrupted; go on with: ostler agent --resume {session} \"...\""
            ));
            Ok(Exit::Interrupted)
        }
        Outcome::Stopped { why } => {
            note(&format!("stopped: {why}"));
            note(&format!(
                "go on with: ostler agent --resume {session} \"...\""
            ));
            Ok(Exit::Unfinished)
        }
        Outcome::Failed { error, blame } => Err(Error::Said {
            blame: *blame,
            text: error.clone(),
        }),
    }
}

fn workspace(given: Option<&Path>) -> Result<PathBuf> {
    let path = given.unwrap_or(Path::new("."));
    let found = path.canonicalize().map_err(|e| {
        let path = path.display();
        Error::caller(format!("cannot work in {path}: {e}; name a folder with -C"))
    })?;
    if !found.is_dir() {
        return Err(Error::caller(format!(
            "{} is not a folder; name one with -C",
            found.display()
        )));
    }
    Ok(found)
}

fn resume(sessions: &Path, args: &AgentArgs) -> Result<Option<Session>> {
    let Some(wanted) = &args.resume else {
        return Ok(None);
    };
    let mut session = open(sessions, wanted)?;
    if let Some(entry) = args.fork_at {
        session.rewind(entry)?;
    }
    Ok(Some(session))
}

/// A session by its name, or `last`, mended.
fn open(sessions: &Path, wanted: &str) -> Result<Session> {
    let id = match wanted {
        "last" => session::newest(sessions)?.ok_or_else(|| {
            Error::caller("there is no session to resume yet; leave --resume out")
        })?,
        id => id.to_owned(),
    };
    let (session, mended) = Session::resume(sessions, &id, clock::now_ms)?;
    if mended.torn_bytes > 0 || mended.dangling_calls > 0 {
        note(&format!(
            "mended the session: {} bytes of an unfinished line dropped, {} calls without a result closed",
            mended.torn_bytes, mended.dangling_calls
        ));
    }
    Ok(session)
}

fn sandbox(
    env: &Env,
    args: &AgentArgs,
    workspace: &Path,
    session_dir: &Path,
    skills: &Path,
) -> Sandbox {
    if args.no_sandbox {
        return Sandbox::off("--no-sandbox");
    }
    Sandbox::probe(&SandboxConfig {
        workspace: workspace.to_owned(),
        temporary: session_dir.join("tmp"),
        network: if args.allow_network {
            Network::Allowed
        } else {
            Network::Blocked
        },
        also_readable: skills
            .is_dir()
            .then(|| skills.to_owned())
            .into_iter()
            .collect(),
        environment: env.variables.clone(),
    })
}

/// The first Ctrl-C ends the step that runs and keeps what there is; the second ends the program.
fn cancel_on_interrupt(cancel: Cancel) -> Result<()> {
    on_ctrl_c(move || {
        if cancel.is_cancelled() {
            std::process::exit(i32::from(crate::error::EXIT_INTERRUPTED));
        }
        cancel.cancel();
        note("\nstopping; press Ctrl-C again to stop at once");
    })
}
