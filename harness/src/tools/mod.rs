//! The tools: what the model may call, and what comes back, bounded.
//!
//! A call goes one way: `parse` (typed arguments), `gate` (permission as a value), `run` (a result
//! within the window's caps, the whole of it kept as an artifact). Every failure of a tool is a
//! result that the model sees; nothing here needs the engine or the model.
//!
//! ```text
//! ToolCall ──parse──> Parsed ──gate──> Approved<Parsed> ──run──> ToolResult { text: Bounded, .. }
//! ```

pub mod approve;
pub mod artifacts;
mod bash;
pub mod bound;
pub mod call;
mod capture;
pub mod clean;
mod edit;
mod files;
mod known;
mod lines;
mod os;
pub mod output;
pub mod paths;
pub mod process;
mod read;
pub mod sandbox;
mod search;
pub mod shell;
mod sniff;
pub mod spec;
mod surround;
mod text;
mod tree;
mod view;
mod write;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub use approve::{Answer, Approved, Asker, Basis, Decision, Denied, Mode, Policy, Question};
pub use artifacts::{ArtifactId, Artifacts};
pub use bound::{Bounded, Caps, Counter, NoRoom};
pub use call::{BadCall, Invocation, Parsed, ToolCall};
pub use output::{Meta, ToolResult};
pub use process::{Cancel, Exit};
pub use sandbox::{Active, Layer, Network, Sandbox, SandboxConfig};
pub use spec::{Profile, ToolSpec};

use approve::Surroundings;
use bound::{ReadOn, Source};
use output::Output;
use paths::{Resolver, Temporary};

use crate::error::{Error, Result};
use crate::limits;

/// What the tools work with.
pub struct ToolContext {
    pub workspace: PathBuf,
    /// Where this session keeps its artifacts: outside the workspace.
    pub session_dir: PathBuf,
    /// The effective context, in tokens.
    pub window_tokens: usize,
    pub sandbox: Sandbox,
    /// The environment as the program was given it.
    pub environment: Vec<(OsString, OsString)>,
    /// Counts tokens as the model does.
    pub counter: Arc<Counter>,
}

/// The built-in tools, bound to a workspace, a session and a sandbox.
pub struct ToolBox {
    resolver: Resolver,
    artifacts: Artifacts,
    caps: Caps,
    profile: Profile,
    sandbox: Sandbox,
    environment: Vec<(OsString, OsString)>,
    path_is_trusted: bool,
    counter: Arc<Counter>,
}

impl ToolBox {
    pub fn new(context: ToolContext) -> Result<ToolBox> {
        let home = context.environment.iter().find(|(name, _)| name == "HOME");
        let home = home.map(|(_, value)| PathBuf::from(value));
        let sandbox = &context.sandbox;
        let temporary = sandbox.temporary().map(|path| Temporary {
            path: path.to_owned(),
            is_tmp: sandbox.tmp_is_temporary(),
        });
        let resolver = Resolver::new(
            &context.workspace,
            home.as_deref(),
            sandbox.readable(),
            temporary,
        )
        .map_err(|e| Error::caller(format!("workspace {}: {e}", context.workspace.display())))?;
        let dir = context.session_dir.join("artifacts");
        let artifacts = Artifacts::open(&dir).map_err(|e| {
            Error::device(format!("cannot keep artifacts in {}: {e}", dir.display()))
        })?;
        Ok(ToolBox {
            path_is_trusted: surround::path_is_trusted(&context.environment, resolver.workspace()),
            resolver,
            artifacts,
            caps: Caps::for_window(context.window_tokens),
            profile: Profile::for_window(context.window_tokens),
            sandbox: context.sandbox,
            environment: context.environment,
            counter: context.counter,
        })
    }

    /// The tools in the profile of this window, sorted by name. The same bytes every time.
    pub fn specs(&self) -> Vec<ToolSpec> {
        spec::specs(self.profile)
    }

    /// What one result may take in this window.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Shows results whole, as far as they are kept: for measuring what bounding is worth.
    pub fn stop_bounding(&mut self) {
        self.caps = Caps {
            chars: limits::KEEP_CHARS,
            tokens: limits::KEEP_CHARS,
        };
    }

    /// What holds commands in; to be shown.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Checks a call. The error is its result.
    pub fn parse(&self, call: &ToolCall) -> std::result::Result<Parsed, Box<ToolResult>> {
        call::parse(call).map_err(|bad| Box::new(self.said("none", &bad.0)))
    }

    /// The file that a call is to change, where it is one.
    pub fn changes(&self, call: &Parsed) -> Option<PathBuf> {
        let path = match &call.invocation {
            Invocation::Edit(args) => &args.path,
            Invocation::Write(args) => &args.path,
            Invocation::Artifact(_)
            | Invocation::Bash(_)
            | Invocation::Read(_)
            | Invocation::Search(_) => return None,
        };
        Some(self.resolver.resolve(path).ok()?.path)
    }

    /// What the rules say of a call, before anyone is asked.
    pub fn decide(&self, call: &Parsed) -> Decision {
        approve::decide(&call.invocation, self.surroundings())
    }

    /// Lets a call through, asking where the rules say so, and a person where there is a `doubt`. The error is its
    /// result.
    pub fn gate(
        &self,
        call: Parsed,
        doubt: Option<String>,
        policy: &mut Policy,
        asker: &mut dyn Asker,
    ) -> std::result::Result<Approved<Parsed>, Box<ToolResult>> {
        let tool = call.invocation.tool();
        let gated = match doubt {
            Some(why) => approve::gate_doubted(call, &why, policy, asker),
            None => approve::gate(call, policy, asker, self.surroundings()),
        };
        gated.map_err(|denied| {
            let mut result = self.said(tool, &denied.0);
            result.meta.denied = true;
            Box::new(result)
        })
    }

    /// Runs a call to its end, or until it is cancelled. Blocks: call it on a thread of its own.
    pub fn run(&self, call: &Approved<Parsed>, cancel: &Cancel) -> ToolResult {
        let begun = Instant::now();
        let (resolver, reach) = (&self.resolver, call.reach());
        let output = match &call.call().invocation {
            Invocation::Artifact(args) => read::artifact(args, &self.artifacts, self.caps),
            Invocation::Bash(args) => bash::bash(args, &self.place(), cancel),
            Invocation::Edit(args) => write::edit(args, resolver, reach),
            Invocation::Read(args) => read::read(args, resolver, reach, self.caps),
            Invocation::Search(args) => {
                search::search(args, (resolver, reach), &self.artifacts, cancel)
            }
            Invocation::Write(args) => write::write(args, resolver, reach),
        };
        let mut result = self.bounded(output);
        result.meta.wall = begun.elapsed();
        result
    }

    /// A text of the harness's own, as a failed result.
    fn said(&self, tool: &'static str, why: &str) -> ToolResult {
        self.bounded(Output::failed(tool, why))
    }

    fn bounded(&self, output: Output) -> ToolResult {
        let Output {
            ok,
            source,
            keep,
            read_on,
            footer,
            artifact,
            meta,
        } = output;
        // A model that sees nothing asks again.
        let source = match source == Source::default() && footer.is_empty() {
            true => Source::whole("[empty]"),
            false => source,
        };
        let read_on = if source == Source::default() {
            ReadOn::Nothing
        } else {
            read_on
        };
        let text = bound::bound(&source, self.caps, keep, read_on, &footer, &*self.counter);
        ToolResult {
            ok,
            text,
            artifact,
            meta,
        }
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            sandbox_verified: self.sandbox.is_verified(),
            path_is_trusted: self.path_is_trusted,
            resolver: &self.resolver,
        }
    }

    fn place(&self) -> bash::Place<'_> {
        // One count for the process: two tool boxes must not end each other's commands.
        static COMMANDS: AtomicU64 = AtomicU64::new(0);
        let n = COMMANDS.fetch_add(1, Ordering::Relaxed) + 1;
        bash::Place {
            workspace: self.resolver.workspace(),
            environment: &self.environment,
            sandbox: &self.sandbox,
            artifacts: &self.artifacts,
            mark: format!("{}-{n}", std::process::id()),
        }
    }
}
