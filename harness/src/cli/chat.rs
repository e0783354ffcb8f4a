//! The chat in the terminal. Each turn sends the whole conversation; the engine computes only what is new.
//!
//! Invariant: what the model said is carried as the ids it was sampled as, so the next turn's prompt begins
//! with this turn's prompt and answer, token for token.

use std::io::{BufReader, Write};

use engine::Salt;

use super::Exit;
use super::answer::{Answer, Source, receive};
use super::args::ChatArgs;
use super::figures::Figures;
use super::interrupt::Interrupts;
use super::output::{Out, note};
use super::turn_input::{COMMANDS, ChatCommand, Lines, PlainLines, TerminalLines, Typed, read};
use super::{loading, pieces, run as one_shot, sampling};
use crate::chat::{Conversation, Message, ReplyOptions, Role};
use crate::env::Env;
use crate::error::{Blame, Error, Result};
use crate::load::Loaded;

pub fn run(env: &Env, args: &ChatArgs, out: &mut Out) -> Result<Exit> {
    let loaded = loading::load(env, &loading::options(&args.model)?, args.verbose)?;
    // Before the line editor: it puts back the handlers that it finds.
    let interrupts = Interrupts::listen()?;
    let mut lines: Box<dyn Lines> = if env.terminals.stdin && env.terminals.stdout {
        note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat.");
        Box::new(TerminalLines::open(&env.data_dir()?)?)
    } else {
        Box::new(PlainLines {
            reader: BufReader::new(std::io::stdin()),
        })
    };
    let talk = Talk {
        conversation: one_shot::conversation(args.system.as_deref(), Vec::new()),
        loaded,
        args,
        interrupts,
        piped: !env.terminals.stdin,
        failed: None,
    };
    talk.run(&mut *lines, out)
}

struct Talk<'a> {
    loaded: Loaded,
    args: &'a ChatArgs,
    conversation: Conversation,
    interrupts: Interrupts,
    /// Nobody is there to see that a turn could not be done: the exit code tells.
    piped: bool,
    /// The first that could not.
    failed: Option<Blame>,
}

impl Talk<'_> {
    fn run(mut self, lines: &mut dyn Lines, out: &mut Out) -> Result<Exit> {
        let mut interrupted = false;
        loop {
            match read(lines)? {
                Typed::End => return Ok(self.exit()),
                // As a shell does: the line is dropped, twice ends.
                Typed::Interrupted if interrupted => return Ok(Exit::Interrupted),
                Typed::Interrupted => {
                    interrupted = true;
                    note("(Ctrl-C again or Ctrl-D ends the chat)");
                    continue;
                }
                Typed::Mistyped(why) => note(&why),
                Typed::Turn(text) if text.trim().is_empty() => {}
                Typed::Turn(text) => self.survive(|talk| talk.turn(text, out))?,
                Typed::Command(ChatCommand::Quit) => return Ok(self.exit()),
                Typed::Command(command) => self.survive(|talk| talk.command(command, out))?,
            }
            interrupted = false;
        }
    }

    fn exit(&self) -> Exit {
        match self.failed {
            Some(blame) if self.piped => Exit::Partly(blame),
            Some(_) | None => Exit::Done,
        }
    }

    /// A turn that cannot be done (too long, say) does not end the chat; a closed output does.
    fn survive(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match act(self) {
            Err(Error::OutputClosed) => Err(Error::OutputClosed),
            Err(error) if error.blame() == Blame::Bug => Err(error),
            Err(error) => {
                self.failed.get_or_insert(error.blame());
                note(&format!("ostler: {error}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn turn(&mut self, text: String, out: &mut Out) -> Result<()> {
        self.conversation.messages.push(Message::user(text));
        match self.answer(out) {
            Ok(answer) if answer.ids.is_empty() => {
                self.conversation.messages.pop();
                note("(nothing was said; the turn is taken back)");
                Ok(())
            }
            Ok(answer) => {
                let said = Message {
                    sampled: Some(answer.ids.into()),
                    ..Message::assistant(answer.text, Vec::new())
                };
                self.conversation.messages.push(said);
                Ok(())
            }
            Err(error) => {
                self.conversation.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&mut self, out: &mut Out) -> Result<Answer> {
        let sampling = sampling::params(&self.args.sampling);
        let seed = sampling.seed;
        let options = ReplyOptions {
            sampling,
            max_tokens: self.args.sampling.max_tokens,
            ..ReplyOptions::default()
        };
        let reply = self
            .loaded
            .model
            .reply(self.conversation.clone(), options)?;
        if reply.composed().rewritten && self.conversation.messages.len() > 1 {
            note("(the model's template rewrites earlier turns, so they are computed again)");
        }
        let answer = receive(
            Source::Chat(Box::new(reply)),
            &self.interrupts,
            &mut |part| out.model_text(part),
        )?;
        if !answer.text.ends_with('\n') {
            out.line("")?;
        }
        let figures = self.figures(&answer);
        one_shot::close(&figures, &answer, self.args.verbose, Some(seed));
        Ok(answer)
    }

    fn figures<'f>(&'f self, answer: &'f Answer) -> Figures<'f> {
        let context_tokens = self.loaded.model.engine.context().tokens;
        Figures {
            model: &self.loaded.model.name,
            report: &answer.report,
            context_tokens,
        }
    }

    fn command(&mut self, command: ChatCommand, out: &mut Out) -> Result<()> {
        match command {
            ChatCommand::Help => {
                for (name, what) in COMMANDS {
                    out.line(&format!("{name:14}{what}"))?;
                }
                out.line(
                    "A line that ends in \\ goes on in the next; between two \"\"\" anything goes.",
                )
            }
            ChatCommand::Context => self.show_plan(None, out),
            ChatCommand::Plan(text) if text.is_empty() => {
                Err(Error::caller("write what to plan for: /plan TEXT"))
            }
            ChatCommand::Plan(text) => self.show_plan(Some(text), out),
            ChatCommand::New => {
                self.conversation.messages.clear();
                out.line("a new conversation")
            }
            ChatCommand::Undo => self.undo(out),
            ChatCommand::System(text) if text.is_empty() => {
                match self.conversation.system.first() {
                    Some(part) => out.line(&part.text.clone()),
                    None => {
                        out.line("no instructions of yours; the model's template may have its own")
                    }
                }
            }
            ChatCommand::System(text) => {
                self.conversation = one_shot::conversation(Some(&text), Vec::new());
                out.line("new instructions, and a new conversation")
            }
            ChatCommand::Save(file) if file.is_empty() => {
                Err(Error::caller("write a file's name: /save FILE"))
            }
            ChatCommand::Save(file) => self.save(&file, out),
            ChatCommand::Quit => Ok(()),
        }
    }

    fn undo(&mut self, out: &mut Out) -> Result<()> {
        let messages = &mut self.conversation.messages;
        match messages
            .iter()
            .rposition(|message| message.role == Role::User)
        {
            None => out.line("there is no turn to take back"),
            Some(at) => {
                messages.truncate(at);
                out.line("the last turn is taken back; what came before is still in the cache")
            }
        }
    }

    /// The table of a call that is not made: with `text` as the next turn, or of what there is.
    fn show_plan(&mut self, text: Option<String>, out: &mut Out) -> Result<()> {
        let mut conversation = self.conversation.clone();
        conversation.messages.extend(text.map(Message::user));
        if conversation.messages.is_empty() {
            return out.line("nothing has been said yet");
        }
        let model = &self.loaded.model;
        let prompt = model.format.compose(&conversation)?.prompt;
        let plan = model.engine.plan(&prompt, &Salt::default())?;
        out.line(&pieces::table(&plan.pieces))?;
        let context = model.engine.context().tokens;
        let share = plan.tokens as f64 * 100.0 / context as f64;
        let estimate = plan.estimate_ms.map_or(String::new(), |ms| {
            format!("; about {ms:.0} ms to the first token")
        });
        out.line(&format!(
            "{} of {context} tokens ({share:.1}%){estimate}",
            plan.tokens
        ))
    }

    fn save(&self, file: &str, out: &mut Out) -> Result<()> {
        let cannot = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::caller(format!(
                "{file} is there already and was left as it is; write another name"
            )),
            _ => Error::device(format!("cannot write {file}: {error}")),
        };
        // An existing file is someone's work.
        let mut target = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(file)
            .map_err(cannot)?;
        for part in &self.conversation.system {
            writeln!(target, "## system\n\n{}\n", part.text).map_err(cannot)?;
        }
        for message in &self.conversation.messages {
            writeln!(
                target,
                "## {}\n\n{}\n",
                message.role.name(),
                message.content
            )
            .map_err(cannot)?;
        }
        out.line(&format!("written to {file}"))
    }
}
