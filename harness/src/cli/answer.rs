//! One answer as it comes: events in, text out, until its end or Ctrl-C.

use engine::{Canceller, Event, Finish, Generation, Plan, Report};
use models::tokenizer::{Tokenizer, Utf8Stream};

use super::interrupt::Interrupts;
use crate::chat::{Reply, ReplyEvent};
use crate::error::{Error, Result};

/// A finished answer, whole or not.
pub struct Answer {
    pub text: String,
    /// What the model thought before it spoke, where its dialect marks that.
    pub thinking: String,
    /// As sampled: what the next prompt carries in place of the text.
    pub ids: Vec<u32>,
    /// What was foretold.
    pub plan: Option<Plan>,
    pub report: Report,
    pub finish: Finish,
    /// Ctrl-C ended it.
    pub interrupted: bool,
}

/// What makes the answer.
pub enum Source<'a> {
    /// A conversation's reply.
    Chat(Box<Reply>),
    /// The tokens behind a prompt that no template touched.
    Raw(Generation, &'a Tokenizer),
}

/// Reads the answer to its end and hands every piece of text to `show`.
/// Where `show` fails (nobody reads any more) the generation is cancelled.
pub fn receive(
    mut source: Source<'_>,
    interrupts: &Interrupts,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| Error::device(format!("cannot wait for the engine: {error}")))?;
    let canceller = source.canceller();
    let mut characters = Utf8Stream::new();
    let (mut text, mut thinking) = (String::new(), String::new());
    let answering = interrupts.answering();
    let mut interrupted = false;
    let mut plan = None;
    loop {
        let event = runtime.block_on(async {
            tokio::select! {
                biased;
                () = answering.stopped(), if !interrupted => None,
                event = source.next(&mut characters) => Some(event),
            }
        });
        match event {
            None => {
                interrupted = true;
                canceller.cancel();
            }
            Some(Some(ReplyEvent::Text(part))) => {
                show(&part)?;
                text.push_str(&part);
            }
            Some(Some(ReplyEvent::Thinking(part))) => thinking.push_str(&part),
            // Without tools there is nothing to call: what looks like a call is something the model says.
            Some(Some(ReplyEvent::Broken { raw, .. })) => {
                show(&raw)?;
                text.push_str(&raw);
            }
            Some(Some(ReplyEvent::Plan(made))) => plan = Some(made),
            Some(Some(ReplyEvent::Call { .. } | ReplyEvent::Token { .. })) => {}
            Some(Some(ReplyEvent::Done {
                finish: Finish::Error(error),
                ..
            })) => return Err(error.into()),
            Some(Some(ReplyEvent::Done {
                finish,
                report,
                ids,
            })) => {
                let rest = characters.finish();
                show(&rest)?;
                text.push_str(&rest);
                return Ok(Answer {
                    text,
                    thinking,
                    ids,
                    plan,
                    report,
                    finish,
                    interrupted,
                });
            }
            Some(None) => return Err(Error::bug("the engine's events ended without their end")),
        }
    }
}

impl Source<'_> {
    fn canceller(&self) -> Canceller {
        match self {
            Source::Chat(reply) => reply.canceller(),
            Source::Raw(generation, _) => generation.canceller(),
        }
    }

    async fn next(&mut self, characters: &mut Utf8Stream) -> Option<ReplyEvent> {
        match self {
            Source::Chat(reply) => reply.recv_async().await,
            Source::Raw(generation, tokenizer) => Some(match generation.recv_async().await? {
                Event::Plan(plan) => ReplyEvent::Plan(plan),
                Event::Token { id, .. } if tokenizer.is_end(id) => ReplyEvent::Text(String::new()),
                Event::Token { bytes, .. } => ReplyEvent::Text(characters.push(&bytes)),
                Event::Done {
                    reason,
                    report,
                    ids,
                } => ReplyEvent::Done {
                    finish: reason,
                    report,
                    ids,
                },
            }),
        }
    }
}
