//! Permission is a value. `Approved<T>` has one constructor, in the gate of this file; what runs a
//! call takes nothing else. What a person is asked is shown with every control character visible.
//!
//! The rules: in a verified sandbox, commands and changes in the workspace need no
//! question. Without one, each asks, but for commands that are known to only read. Without a
//! terminal to ask on, what would ask is denied. `--yes` answers yes, though never to what leads
//! out of a verified sandbox: that takes a person. Nothing that a tool, a file or a memory says
//! changes any of this (law 10).

use std::collections::BTreeSet;

use super::bound::counted;
use super::call::{Invocation, Parsed};
use super::clean::for_terminal;
use super::known;
use super::paths::{Access, Place, Reach, Resolver};
use super::shell;
use crate::limits::{QUESTION_CHARS_MAX, REASON_CHARS_MAX};

/// A value that was let through the gate.
#[derive(Debug)]
pub struct Approved<T> {
    call: T,
    basis: Basis,
}

impl<T> Approved<T> {
    pub fn call(&self) -> &T {
        &self.call
    }

    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// How far the call may reach.
    pub fn reach(&self) -> Reach {
        match self.basis {
            Basis::OnlyReads | Basis::Sandboxed | Basis::Granted => Reach::Workspace,
            Basis::StandingYes | Basis::Person => Reach::Anywhere,
        }
    }
}

/// On what grounds a call runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Basis {
    /// It reads what may be read, and changes nothing.
    OnlyReads,
    /// It runs inside the verified sandbox, or changes only what that would let it change.
    Sandboxed,
    /// `--yes`.
    StandingYes,
    /// A person said yes to this call.
    Person,
    /// A person said earlier that this command may always run.
    Granted,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A person at a terminal.
    Ask,
    /// `--yes`.
    Yes,
    /// Nobody: no terminal.
    Deny,
}

/// How calls are judged. Only the person's answers widen it.
#[derive(Clone, Debug)]
pub struct Policy {
    pub mode: Mode,
    exact: BTreeSet<String>,
    prefixes: BTreeSet<Vec<String>>,
}

impl Policy {
    pub fn new(mode: Mode) -> Policy {
        Policy {
            mode,
            exact: BTreeSet::new(),
            prefixes: BTreeSet::new(),
        }
    }

    /// Lets commands that begin with these words run: `["cargo", "test"]` covers `cargo test -p x`
    /// but no `cargo testify`, and nothing that is not one plain command.
    pub fn grant_prefix(&mut self, words: Vec<String>) {
        if !words.is_empty() {
            self.prefixes.insert(words);
        }
    }

    fn granted(&self, line: &str) -> bool {
        if self.exact.contains(line) {
            return true;
        }
        let Ok(commands) = shell::parse(line) else {
            return false;
        };
        commands.iter().all(|command| {
            let literal = command.words.iter().all(|w| !w.pattern);
            let words: Vec<&str> = command.words.iter().map(|w| w.text.as_str()).collect();
            let starts = |prefix: &Vec<String>| {
                words.len() >= prefix.len() && prefix.iter().zip(&words).all(|(p, w)| p == w)
            };
            literal && self.prefixes.iter().any(starts)
        })
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// `run this command`, `write src/main.rs`.
    pub what: String,
    /// Why it is asked; fits after "because it".
    pub why: String,
    /// The command or the change, whole, control characters visible.
    pub shown: String,
    /// Whether "always this one" may be offered: it is a command. The next change is another change.
    pub repeatable: bool,
    /// The words of a prefix that may be offered as "always"; none for what runs other programs.
    pub prefix: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Once,
    /// This command, to the letter, from now on.
    AlwaysThis,
    /// Commands that begin with the words of `Question::prefix`.
    AlwaysPrefix,
    /// No, and what to do instead.
    No(Option<String>),
}

/// The person at the terminal.
pub trait Asker {
    fn ask(&mut self, question: &Question) -> Answer;

    /// What the person has said unasked since the last time.
    fn said(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// What the rules say before anyone is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow(Basis),
    Ask {
        why: String,
        /// It leads out of the workspace, where a sandbox would not let a command go.
        leaves: bool,
    },
}

/// What is known of the surroundings.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub sandbox_verified: bool,
    /// No directory on the command path belongs to the workspace, so `ls` is the system's.
    pub path_is_trusted: bool,
    pub resolver: &'a Resolver,
}

/// A denied call: the text is the result that the model sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// The only way to an `Approved` call.
pub fn gate(
    call: Parsed,
    policy: &mut Policy,
    asker: &mut dyn Asker,
    around: Surroundings<'_>,
) -> Result<Approved<Parsed>, Denied> {
    let (why, leaves) = match decide(&call.invocation, around) {
        Decision::Allow(basis) => return Ok(Approved { call, basis }),
        Decision::Ask { why, leaves } => (clip(&why), leaves),
    };
    let command = match &call.invocation {
        Invocation::Bash(args) => Some(args.command.clone()),
        _ => None,
    };
    if command.as_deref().is_some_and(|line| policy.granted(line)) {
        return Ok(Approved {
            call,
            basis: Basis::Granted,
        });
    }
    match policy.mode {
        Mode::Yes if !(leaves && around.sandbox_verified) => {
            return Ok(Approved {
                call,
                basis: Basis::StandingYes,
            });
        }
        Mode::Yes => {
            return Err(Denied(format!(
                "denied: it {why}. --yes covers what stays inside the sandbox; this takes a person's yes."
            )));
        }
        Mode::Deny => {
            return Err(Denied(format!(
                "denied: it {why}, and there is no terminal to ask on. Run with --yes to allow it, or find a way without it."
            )));
        }
        Mode::Ask => {}
    }
    let question = question(&call.invocation, why);
    match asker.ask(&question) {
        Answer::Once => Ok(Approved {
            call,
            basis: Basis::Person,
        }),
        Answer::AlwaysThis => {
            policy.exact.extend(command);
            Ok(Approved {
                call,
                basis: Basis::Person,
            })
        }
        Answer::AlwaysPrefix => {
            if let Some(words) = question.prefix {
                policy.grant_prefix(words);
            }
            Ok(Approved {
                call,
                basis: Basis::Person,
            })
        }
        Answer::No(None) => Err(Denied(
            "denied by the user. Do not try it again in another way; ask what they want.".into(),
        )),
        Answer::No(Some(instead)) => {
            Err(Denied(format!("denied by the user, who says: {instead}")))
        }
    }
}

/// For a call that no rule and no standing yes lets through: a person says yes to this one, or it is denied.
pub fn gate_doubted(
    call: Parsed,
    why: &str,
    policy: &Policy,
    asker: &mut dyn Asker,
) -> Result<Approved<Parsed>, Denied> {
    let why = clip(why);
    if policy.mode != Mode::Ask {
        return Err(Denied(format!(
            "denied: it {why}. This takes a person's yes, at a terminal and without --yes."
        )));
    }
    let mut question = question(&call.invocation, why);
    (question.repeatable, question.prefix) = (false, None);
    match asker.ask(&question) {
        Answer::Once => Ok(Approved {
            call,
            basis: Basis::Person,
        }),
        Answer::No(Some(instead)) => {
            Err(Denied(format!("denied by the user, who says: {instead}")))
        }
        Answer::No(None) | Answer::AlwaysThis | Answer::AlwaysPrefix => Err(Denied(
            "denied by the user. Do not try it again in another way; ask what they want.".into(),
        )),
    }
}

/// A reason holds words of the call, which may be of any length.
fn clip(why: &str) -> String {
    if why.chars().count() <= REASON_CHARS_MAX {
        return why.to_owned();
    }
    why.chars()
        .take(REASON_CHARS_MAX)
        .chain("...".chars())
        .collect()
}

/// The rules alone.
pub fn decide(invocation: &Invocation, around: Surroundings<'_>) -> Decision {
    match invocation {
        Invocation::Bash(args) => decide_command(&args.command, around),
        Invocation::Read(args) => decide_read(&args.path, around),
        Invocation::Search(args) => decide_read(args.path.as_deref().unwrap_or("."), around),
        Invocation::Write(args) => decide_change(&args.path, around),
        Invocation::Edit(args) => decide_change(&args.path, around),
        Invocation::Artifact(_) => Decision::Allow(Basis::OnlyReads),
    }
}

/// A command line: known to only read, sandboxed, or a question with its reason.
pub fn decide_command(line: &str, around: Surroundings<'_>) -> Decision {
    if around.sandbox_verified {
        return Decision::Allow(Basis::Sandboxed);
    }
    let verdict = shell::parse(line).map_err(|e| e.0).and_then(|commands| {
        commands
            .iter()
            .try_for_each(|command| known::only_reads(command, around.resolver))
    });
    match verdict {
        Ok(()) if around.path_is_trusted => Decision::Allow(Basis::OnlyReads),
        Ok(()) => Decision::Ask {
            why: "runs a program found through a PATH that leads into the workspace".into(),
            leaves: false,
        },
        Err(why) => Decision::Ask { why, leaves: false },
    }
}

fn decide_read(path: &str, around: Surroundings<'_>) -> Decision {
    match around.resolver.resolve(path) {
        Ok(resolved) if resolved.place.is_beyond(Access::Read) => Decision::Ask {
            why: format!("reads `{}`, which is outside the workspace", resolved.shown),
            leaves: true,
        },
        // What cannot be resolved cannot be read: the tool says why.
        Ok(_) | Err(_) => Decision::Allow(Basis::OnlyReads),
    }
}

fn decide_change(path: &str, around: Surroundings<'_>) -> Decision {
    let Ok(resolved) = around.resolver.resolve(path) else {
        return Decision::Allow(Basis::OnlyReads);
    };
    let leaves = resolved.place.is_beyond(Access::Change);
    if around.sandbox_verified && !leaves {
        return Decision::Allow(Basis::Sandboxed);
    }
    let why_beyond = match resolved.place {
        Place::GitInternals => ", which git obeys outside any sandbox",
        Place::Readable | Place::Outside => ", which is outside the workspace",
        Place::Workspace | Place::Temporary => "",
    };
    Decision::Ask {
        why: format!("changes `{}`{why_beyond}", resolved.shown),
        leaves,
    }
}

fn question(invocation: &Invocation, why: String) -> Question {
    let (what, shown) = match invocation {
        Invocation::Bash(args) => ("run this command".to_owned(), args.command.clone()),
        Invocation::Read(args) => (format!("read {}", args.path), String::new()),
        Invocation::Search(args) => (
            format!("search {}", args.path.as_deref().unwrap_or(".")),
            args.pattern.clone(),
        ),
        Invocation::Write(args) => (format!("write {}", args.path), start_of(&args.content)),
        Invocation::Edit(args) => {
            let change = |e: &super::call::Replacement| format!("- {}\n+ {}\n", e.old, e.new);
            let changes: String = args.edits.iter().map(change).collect();
            (format!("edit {}", args.path), start_of(&changes))
        }
        Invocation::Artifact(args) => (format!("read artifact {}", args.id), String::new()),
    };
    let prefix = match invocation {
        Invocation::Bash(args) => offered_prefix(&args.command),
        _ => None,
    };
    Question {
        what: super::clean::for_terminal_line(&what),
        why: super::clean::for_terminal_line(&why),
        shown: for_terminal(&shown),
        repeatable: matches!(invocation, Invocation::Bash(_)),
        prefix,
    }
}

/// As much of a file's new text as a prompt can show; a command line is always shown whole.
fn start_of(text: &str) -> String {
    let start: String = text.chars().take(QUESTION_CHARS_MAX).collect();
    match text.chars().count() - start.chars().count() {
        0 => start,
        more => format!("{start}\n[... {} more]", counted(more, "character")),
    }
}

/// Programs that run what they are given: their name alone says nothing about what will happen.
const RUNS_OTHERS: &[&str] = &[
    ".", "awk", "bash", "builtin", "bun", "busybox", "chroot", "command", "dash", "deno", "doas",
    "docker", "env", "eval", "exec", "find", "fish", "gawk", "git", "ionice", "lua", "make",
    "nice", "node", "nohup", "perl", "php", "podman", "python", "python3", "ruby", "script", "sed",
    "setsid", "sh", "ssh", "stdbuf", "su", "sudo", "tar", "time", "timeout", "watch", "xargs",
    "zsh",
];

/// The first two words of one plain command, or its first where the second is an option or a path.
fn offered_prefix(line: &str) -> Option<Vec<String>> {
    let commands = shell::parse(line).ok()?;
    let [command] = commands.as_slice() else {
        return None;
    };
    let first = command.words[0].text.clone();
    let second = command.words.get(1).map(|w| w.text.clone());
    let is_verb = |w: &String| {
        w.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !w.starts_with('-')
    };
    match second.filter(is_verb) {
        _ if RUNS_OTHERS.contains(&first.rsplit('/').next().unwrap_or("")) => None,
        Some(verb) => Some(vec![first, verb]),
        None => Some(vec![first]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::call::{BashArgs, ReadArgs, WriteArgs};

    struct Scripted(Vec<Answer>, Vec<Question>);

    impl Asker for Scripted {
        fn ask(&mut self, question: &Question) -> Answer {
            self.1.push(question.clone());
            self.0.remove(0)
        }
    }

    fn scripted(answers: &[Answer]) -> Scripted {
        Scripted(answers.to_vec(), Vec::new())
    }

    fn bash(command: &str) -> Parsed {
        Parsed {
            id: "c1".into(),
            invocation: Invocation::Bash(BashArgs {
                command: command.into(),
                timeout_s: None,
            }),
        }
    }

    fn write(path: &str) -> Parsed {
        Parsed {
            id: "c1".into(),
            invocation: Invocation::Write(WriteArgs {
                path: path.into(),
                content: "x".into(),
            }),
        }
    }

    fn read(path: &str) -> Parsed {
        let args = ReadArgs {
            path: path.into(),
            start: None,
            lines: None,
            byte: None,
        };
        Parsed {
            id: "c1".into(),
            invocation: Invocation::Read(args),
        }
    }

    struct Place(
        #[expect(dead_code, reason = "it is removed when dropped")] tempfile::TempDir,
        Resolver,
    );

    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let resolver = Resolver::new(dir.path(), None, &[], None).unwrap();
        Place(dir, resolver)
    }

    impl Place {
        fn around(&self, sandbox_verified: bool) -> Surroundings<'_> {
            Surroundings {
                sandbox_verified,
                path_is_trusted: true,
                resolver: &self.1,
            }
        }
    }

    /// An allow-list that looked at the first word let all of these run.
    #[test]
    fn chained_hidden_and_wrapped_commands_ask() {
        let place = place();
        let asks = [
            "ls && rm -r d",
            "ls; rm -r d",
            "ls | sh",
            "ls\nrm -r d",
            "ls & rm -r d",
            "ls $(rm -r d)",
            "ls `rm -r d`",
            "ls > ~/.bashrc",
            "ls >> f",
            "cat <(rm -r d)",
            "echo \"$(rm -r d)\"",
            "find . -exec rm {} +",
            "find . -delete",
            "env rm -r d",
            "xargs rm < list",
            "ls || true && rm d",
            "FOO=1 rm d",
            "\\rm d",
            "\"rm\" d",
            "r''m d",
            "command rm d",
            "eval \"rm d\"",
            "sh -c \"rm d\"",
            "git -c core.pager=\"sh -c rm\" log",
            "git log --output=f",
            "tar xf a.tar --to-command=sh",
            "awk 'BEGIN{system(\"rm d\")}'",
            "sed -i s/a/b/ f",
            "sed \"1e rm d\" f",
            "ls <<< $(rm d)",
            "if true; then rm d; fi",
            "ls #\nrm d",
            "ls \\\n&& rm d",
            "lsof",
            "echo x\u{202e}",
            "ls\u{a0}x; rm d",
        ];
        for line in asks {
            let decision = decide_command(line, place.around(false));
            assert!(
                matches!(decision, Decision::Ask { .. }),
                "{line:?}: {decision:?}"
            );
            assert_eq!(
                decide_command(line, place.around(true)),
                Decision::Allow(Basis::Sandboxed)
            );
        }
        for line in ["ls -la", "grep -r \"a && b\" src", "echo 'x; y'"] {
            assert_eq!(
                decide_command(line, place.around(false)),
                Decision::Allow(Basis::OnlyReads),
                "{line}"
            );
        }
        let untrusted = Surroundings {
            path_is_trusted: false,
            ..place.around(false)
        };
        assert!(matches!(
            decide_command("ls", untrusted),
            Decision::Ask { .. }
        ));
    }

    #[test]
    fn who_answers() {
        let place = place();
        let mut nobody = scripted(&[]);
        let mut deny = Policy::new(Mode::Deny);
        let denied = gate(bash("rm d"), &mut deny, &mut nobody, place.around(false)).unwrap_err();
        assert_eq!(
            denied.0,
            "denied: it runs `rm`, and there is no terminal to ask on. Run with --yes to allow it, or find a way without it."
        );
        let ok = gate(bash("rm d"), &mut deny, &mut nobody, place.around(true)).unwrap();
        assert_eq!(ok.basis(), &Basis::Sandboxed);
        let mut yes = Policy::new(Mode::Yes);
        let ok = gate(bash("rm d"), &mut yes, &mut nobody, place.around(false)).unwrap();
        assert_eq!(ok.basis(), &Basis::StandingYes);

        let mut ask = Policy::new(Mode::Ask);
        let mut person = scripted(&[Answer::No(Some("use git rm".into())), Answer::Once]);
        let denied = gate(bash("rm d"), &mut ask, &mut person, place.around(false)).unwrap_err();
        assert_eq!(denied.0, "denied by the user, who says: use git rm");
        let ok = gate(bash("rm d"), &mut ask, &mut person, place.around(false)).unwrap();
        assert_eq!(ok.basis(), &Basis::Person);
        assert_eq!(person.1[0].why, "runs `rm`");
    }

    #[test]
    fn always_is_exact_or_by_whole_words() {
        let place = place();
        let mut policy = Policy::new(Mode::Ask);
        let mut person = scripted(&[Answer::AlwaysPrefix, Answer::AlwaysThis]);
        gate(
            bash("cargo test -p a"),
            &mut policy,
            &mut person,
            place.around(false),
        )
        .unwrap();
        gate(
            bash("rm 'x y'; ls"),
            &mut policy,
            &mut person,
            place.around(false),
        )
        .unwrap();
        policy.mode = Mode::Deny;
        let mut nobody = scripted(&[]);
        for (line, allowed) in [
            ("cargo test", true),
            ("cargo test -p b && cargo test -p c", true),
            ("rm 'x y'; ls", true),
            ("rm 'x y' ; ls", false),
            ("cargo tester", false),
            ("cargo test; rm d", false),
            ("cargo test > f", false),
            ("cargo test $(rm d)", false),
            ("cargo test *", false),
            ("cargo", false),
        ] {
            let result = gate(bash(line), &mut policy, &mut nobody, place.around(false));
            assert_eq!(result.is_ok(), allowed, "{line}");
        }
        assert_eq!(offered_prefix("python3 x.py"), None);
        assert_eq!(offered_prefix("/usr/bin/env ls"), None);
        assert_eq!(offered_prefix("rm -r d"), Some(vec!["rm".into()]));
    }

    #[test]
    fn what_leaves_the_workspace_takes_a_person() {
        let place = place();
        let mut nobody = scripted(&[]);
        let mut yes = Policy::new(Mode::Yes);
        for call in [
            || read("../secret"),
            || write("../x"),
            || write(".git/hooks/pre-commit"),
        ] {
            let denied = gate(call(), &mut yes, &mut nobody, place.around(true)).unwrap_err();
            assert!(denied.0.contains("takes a person's yes"), "{denied:?}");
            let mut person = scripted(&[Answer::Once]);
            let mut ask = Policy::new(Mode::Ask);
            gate(call(), &mut ask, &mut person, place.around(true)).unwrap();
            // Without a sandbox there is no boundary that a yes would go beyond.
            gate(call(), &mut yes, &mut nobody, place.around(false)).unwrap();
        }
        gate(
            read("src/a"),
            &mut Policy::new(Mode::Deny),
            &mut nobody,
            place.around(false),
        )
        .unwrap();
        gate(
            write("src/a"),
            &mut Policy::new(Mode::Deny),
            &mut nobody,
            place.around(true),
        )
        .unwrap();
        gate(
            write("src/a"),
            &mut Policy::new(Mode::Deny),
            &mut nobody,
            place.around(false),
        )
        .unwrap_err();
    }

    /// An approval prompt showed `rm` as `ls`: the command line carried cursor movements.
    #[test]
    fn the_question_shows_escapes() {
        let place = place();
        let mut person = scripted(&[Answer::No(None), Answer::No(None)]);
        let mut policy = Policy::new(Mode::Ask);
        let _ = gate(
            bash("rm d\u{1b}[2K\rls"),
            &mut policy,
            &mut person,
            place.around(false),
        );
        let _ = gate(
            write("a\u{1b}[2J\u{202e}b"),
            &mut policy,
            &mut person,
            place.around(false),
        );
        assert_eq!(person.1[0].shown, "rm d␛[2K␍ls");
        assert_eq!(person.1[1].what, "write a␛[2J<U+202E>b");
    }
}
