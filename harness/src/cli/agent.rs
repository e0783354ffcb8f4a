//! `ostler agent`: works on a goal in a folder, with tools.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::Exit;
use super::args::AgentArgs;
use super::interrupt::on_ctrl_c;
use super::output::{Out, note};
use super::{loading, pieces, prompt_input, sampling};
use crate::agent::driver::{Agent, Hands, Setup, Watch};
use crate::agent::local::Local;
use crate::agent::machine::Outcome;
use crate::agent::runtime::{Reply, Streamed};
use crate::agent::session::{self, Session};
use crate::agent::transcript::{Call, ToolOutput};
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::tools::clean::for_terminal;
use crate::tools::{
    Answer, Asker, Cancel, Counter, Mode, Network, Policy, Question, Sandbox, SandboxConfig,
    ToolBox, ToolContext,
};

/// How often a wait for a person looks for Ctrl-C.
const CANCEL_POLL: Duration = Duration::from_millis(50);

pub fn run(env: &Env, args: &AgentArgs, out: &mut Out) -> Result<Exit> {
    let goal = prompt_input::prompt_text(env, &args.goal, &mut std::io::stdin().lock())?;
    let workspace = workspace(args.directory.as_deref())?;
    let sessions = env.data_dir()?.join("sessions");
    let resumed = resume(&sessions, args)?;
    let begun = resumed
        .as_ref()
        .and_then(|session| session.records().first())
        .map(|first| first.time_ms);
    let loaded = loading::load(env, &loading::options(&args.model)?, args.verbose)?;
    let session = match resumed {
        Some(session) => session,
        None => {
            let id = format!("{}-{:04x}", clock::stamp(), std::process::id() & 0xffff);
            Session::create(&sessions, &id, clock::now_ms)?
        }
    };
    let model = loaded.model;
    let sandbox = sandbox(env, args, &workspace, &sessions.join(&session.id))?;
    note(&format!(
        "session {}, folder {}",
        session.id,
        workspace.display()
    ));
    match (args.no_sandbox, args.yes) {
        (true, true) => note("sandbox: off (--no-sandbox), and --yes: commands run unasked"),
        _ => note(&format!("sandbox: {}", sandbox.active())),
    }
    let counting = Arc::clone(&model);
    let counter: Arc<Counter> = Arc::new(move |text: &str| counting.format.count(text));
    let mut tools = ToolBox::new(ToolContext {
        workspace: workspace.clone(),
        session_dir: sessions.join(&session.id),
        window_tokens: model.engine.context().tokens,
        sandbox,
        environment: env.variables.clone(),
        counter: Arc::clone(&counter),
    })?;
    let sampling = sampling::greedy_or(args.temperature, args.seed);
    let clock = begun.map_or_else(clock::freeze, clock::freeze_at);
    let mut local = Local::new(model, sampling, clock);
    let cancel = Cancel::new();
    cancel_on_interrupt(cancel.clone())?;
    let mut screen = Screen {
        verbose: args.verbose,
        out,
        broken: None,
        at_line_start: true,
    };
    let mut asker = Terminal {
        cancel: cancel.clone(),
    };
    let mode = match (args.yes, env.terminals.stdin) {
        (true, _) => Mode::Yes,
        (false, true) => Mode::Ask,
        (false, false) => Mode::Deny,
    };
    let hands = Hands {
        runtime: &mut local,
        tools: &mut tools,
        policy: Policy::new(mode),
        asker: &mut asker,
        watch: &mut screen,
        cancel,
        counter,
    };
    let setup = Setup {
        workspace,
        instructions: args.system.clone(),
        rounds_max: Some(args.max_rounds),
    };
    let mut agent = Agent::new(hands, session, setup)?;
    let outcome = agent.run(&goal)?;
    let session = agent.session().id.clone();
    drop(agent);
    screen.end()?;
    close(&outcome, &session)
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
    let id = match wanted.as_str() {
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
    Ok(Some(session))
}

fn sandbox(env: &Env, args: &AgentArgs, workspace: &Path, session_dir: &Path) -> Result<Sandbox> {
    if args.no_sandbox {
        return Ok(Sandbox::off("--no-sandbox"));
    }
    Ok(Sandbox::probe(&SandboxConfig {
        workspace: workspace.to_owned(),
        temporary: session_dir.join("tmp"),
        network: if args.allow_network {
            Network::Allowed
        } else {
            Network::Blocked
        },
        also_readable: Vec::new(),
        environment: env.variables.clone(),
    }))
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

/// Shows a run: the model's words on stdout, everything else on stderr.
struct Screen<'a> {
    verbose: bool,
    out: &'a mut Out,
    /// The first failure to write; it is told at the end, the run goes on.
    broken: Option<Error>,
    at_line_start: bool,
}

impl Screen<'_> {
    fn end(&mut self) -> Result<()> {
        if !self.at_line_start {
            self.out.line("")?;
        }
        self.broken.take().map_or(Ok(()), Err)
    }

    fn end_line(&mut self) {
        if !self.at_line_start {
            self.say("\n");
        }
    }

    fn say(&mut self, text: &str) {
        if let Err(error) = self.out.model_text(text) {
            self.broken.get_or_insert(error);
        }
        self.at_line_start = text.ends_with('\n');
    }
}

impl Watch for Screen<'_> {
    fn streamed(&mut self, what: &Streamed) {
        match what {
            Streamed::Text(text) => self.say(text),
            Streamed::Plan(_) | Streamed::Thinking(_) => {}
        }
    }

    fn call_begins(&mut self, call: &Call) {
        self.end_line();
        note(&format!(
            "→ {} {}",
            call.name,
            shortened(&call.arguments, 160)
        ));
    }

    fn call_ended(&mut self, _call: &Call, output: &ToolOutput) {
        let lines = output.text.lines().count();
        let first = output.text.lines().next().unwrap_or_default();
        let more = if lines > 1 {
            format!(" … {lines} lines")
        } else {
            String::new()
        };
        let sign = if output.ok { "←" } else { "✗" };
        note(&format!("{sign} {}{more}", shortened(first, 160)));
    }

    fn step_ended(&mut self, reply: &Reply) {
        let Some(report) = &reply.report else { return };
        if !self.verbose {
            return;
        }
        self.end_line();
        note(&pieces::table(&report.pieces));
        for line in pieces::between(report) {
            note(&line);
        }
    }

    fn answered(&mut self, text: &str) {
        self.end_line();
        self.say(text);
    }

    fn told(&mut self, text: &str) {
        self.end_line();
        note(&format!("· {text}"));
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    let mut shown: String = for_terminal(text).chars().take(chars_max).collect();
    if text.chars().count() > chars_max {
        shown.push('…');
    }
    shown
}

/// Asks on the terminal, until an answer or Ctrl-C.
struct Terminal {
    cancel: Cancel,
}

impl Asker for Terminal {
    fn ask(&mut self, question: &Question) -> Answer {
        let prefix = question.prefix.as_ref().map(|words| words.join(" "));
        let mut offer = String::new();
        if question.repeatable {
            offer.push_str(", a = always this one");
        }
        if let Some(words) = &prefix {
            offer.push_str(&format!(", p = always `{}`", for_terminal(words)));
        }
        {
            // Held no longer than it takes: whoever has a note to write meanwhile waits for it.
            let mut screen = std::io::stderr().lock();
            let _ = write!(
                screen,
                "\nThe agent wants to {}, because it {}:\n\n{}\n\ny = yes{offer}, n = no, or say what to do instead: ",
                question.what, question.why, question.shown
            );
            let _ = screen.flush();
        }
        let Some(line) = self.line() else {
            return Answer::No(None);
        };
        match line.trim() {
            "y" | "yes" => Answer::Once,
            "a" | "always" if question.repeatable => Answer::AlwaysThis,
            "p" if prefix.is_some() => Answer::AlwaysPrefix,
            "" | "n" | "no" => Answer::No(None),
            instead => Answer::No(Some(instead.to_owned())),
        }
    }
}

impl Terminal {
    /// A line that a person typed; `None` at the end of the input and after Ctrl-C, which does not end a
    /// read: the thread that reads is left to wait, and the run is over.
    fn line(&self) -> Option<String> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let (sender, typed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if matches!(std::io::stdin().lock().read_line(&mut line), Ok(n) if n > 0) {
                let _ = sender.send(line);
            }
        });
        loop {
            match typed.recv_timeout(CANCEL_POLL) {
                Ok(line) => return Some(line),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}
