//! How one model's conversations become prompts. The agent and the server share it.
//!
//! Invariant (law 3): until a template rewrites what was sent, the ids of a conversation begin with
//! the ids of the same conversation one turn earlier, plus the ids that were sampled then.

use std::sync::Arc;

use engine::{Layer, Prompt};
use models::template::ChatTemplate;
use models::tokenizer::Tokenizer;
use serde_json::Value;

use super::marks::Marked;
use super::message::{Conversation, Message, Role, SystemPart};
use super::render::{Renderer, Slice, message_name};
use super::runs::{Runs, Start};
use super::thread::{Thread, Threads};
use crate::error::Error;

/// The piece that opens the reply; once the reply is in, it is named after its place.
const REPLY: &str = "reply";

/// A prompt, and what is needed to go on from it.
#[derive(Clone, Debug)]
pub struct Composed {
    pub prompt: Prompt,
    /// What the template wrote to open the reply, such as `<think>`: a parser starts behind it.
    pub opening: String,
    /// The template rewrites earlier turns, so this prompt does not begin with the one before.
    pub rewritten: bool,
    thread: Thread,
}

/// A model's tokenizer and template, and the threads of the conversations it has seen.
pub struct ChatFormat {
    template: ChatTemplate,
    runs: Runs,
    /// What the template writes behind an assistant's words.
    closing: String,
    threads: Threads,
}

impl ChatFormat {
    pub fn new(tokenizer: Arc<Tokenizer>, template: ChatTemplate) -> ChatFormat {
        let mut format = ChatFormat {
            template,
            runs: Runs::new(tokenizer),
            closing: String::new(),
            threads: Threads::default(),
        };
        format.closing = format.find_closing().unwrap_or_default();
        format
    }

    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        self.runs.tokenizer()
    }

    /// Tokens of a text that stands inside a message.
    pub fn count(&self, text: &str) -> usize {
        self.tokenizer()
            .encode(text, models::tokenizer::Specials::Plain)
            .len()
    }

    /// The prompt that asks for the next assistant message.
    pub fn compose(&self, conversation: &Conversation) -> Result<Composed, Error> {
        let sorted = self.prepared(conversation);
        let call = Call {
            format: self,
            conversation: &sorted.0,
            tools: sorted.1,
        };
        match call.follow()? {
            Some(composed) => Ok(composed),
            None => call.afresh(),
        }
    }

    /// Remembers that `reply` followed `composed` and was sampled as `ids`, so that the same words
    /// sent back are these ids again.
    pub fn remember(
        &self,
        conversation: &Conversation,
        composed: &Composed,
        reply: &Message,
        ids: &[u32],
    ) {
        let (mut prepared, _) = self.prepared(conversation);
        let mut thread = composed.thread.clone();
        self.splice(&mut thread, prepared.messages.len(), ids);
        prepared.messages.push(Message {
            sampled: None,
            ..reply.clone()
        });
        if let Some(digest) = prepared.digests().last() {
            self.threads.put(*digest, thread);
        }
    }

    /// The tools sorted; where the template has no place for them, they are a part of the system message.
    fn prepared(&self, conversation: &Conversation) -> (Conversation, Vec<Value>) {
        let mut conversation = conversation.clone();
        conversation.tools.sort_by(|a, b| a.name.cmp(&b.name));
        let mut tools: Vec<Value> = conversation
            .tools
            .iter()
            .map(super::message::Tool::to_value)
            .collect();
        if !tools.is_empty() && !self.template.supports_tools() {
            let text = ChatTemplate::tools_prompt(&tools);
            conversation.system.push(SystemPart {
                name: "tools".into(),
                layer: Layer::Tools,
                text,
            });
            tools.clear();
        }
        (conversation, tools)
    }

    fn splice(&self, thread: &mut Thread, number: usize, ids: &[u32]) {
        let text = self.tokenizer().decode(ids);
        thread.append_to_last(ids, &text);
        thread.rename_last(&format!("{number}.assistant"));
        thread.ended = ids.last().is_some_and(|id| self.tokenizer().is_end(*id));
        thread.settle();
    }

    fn find_closing(&self) -> Option<String> {
        let conversation = Conversation {
            system: Vec::new(),
            tools: Vec::new(),
            messages: vec![Message::user("u"), Message::assistant("a", Vec::new())],
            clock: models::template::FrozenClock::default(),
            extra: serde_json::Map::new(),
        };
        let renderer = self.renderer(&conversation);
        let messages = conversation.messages.iter().enumerate().collect();
        let slice = Slice {
            system: &[],
            tools: &[],
            messages,
            generation: false,
        };
        let marked = renderer.render(&slice).ok()?;
        let (_, last) = marked.spans.iter().max_by_key(|(_, range)| range.end)?;
        Some(marked.text[last.end..].to_owned())
    }

    fn renderer<'a>(&'a self, conversation: &'a Conversation) -> Renderer<'a> {
        Renderer {
            template: &self.template,
            literals: self.runs.literals(),
            conversation,
        }
    }
}

/// One composition.
struct Call<'a> {
    format: &'a ChatFormat,
    conversation: &'a Conversation,
    tools: Vec<Value>,
}

impl Call<'_> {
    /// Goes on from the longest thread known, splicing in what was sampled. `None`: the template
    /// rewrites earlier turns.
    fn follow(&self) -> Result<Option<Composed>, Error> {
        let messages = &self.conversation.messages;
        let digests = self.conversation.digests();
        let known = (1..=messages.len())
            .rev()
            .filter(|k| messages[k - 1].role == Role::Assistant)
            .find_map(|k| Some((k, self.format.threads.get(&digests[k])?)));
        let (mut done, mut thread) = known.unwrap_or((0, Thread::default()));
        while let Some(at) = (done..messages.len()).find(|i| messages[*i].sampled.is_some()) {
            if self.extend(&mut thread, done..at)?.is_none() {
                return Ok(None);
            }
            self.format.splice(
                &mut thread,
                at,
                messages[at].sampled.as_deref().unwrap_or_default(),
            );
            done = at + 1;
            self.format.threads.put(digests[done], thread.clone());
        }
        let Some(opening) = self.extend(&mut thread, done..messages.len())? else {
            return Ok(None);
        };
        self.finish(thread, opening, false).map(Some)
    }

    /// The whole conversation in one render, as a stranger to it would send it.
    fn afresh(&self) -> Result<Composed, Error> {
        let mut thread = Thread::default();
        let all = 0..self.conversation.messages.len();
        let opening = self.extend(&mut thread, all)?.unwrap_or_default();
        self.finish(thread, opening, true)
    }

    fn finish(&self, thread: Thread, opening: String, rewritten: bool) -> Result<Composed, Error> {
        let pieces = thread.pieces().to_vec();
        let prompt =
            Prompt::new(pieces.clone()).unwrap_or_else(|_| Prompt::in_template_order(pieces));
        Ok(Composed {
            prompt,
            opening,
            rewritten,
            thread,
        })
    }

    /// Adds the messages of `range` and the opening of the reply behind them.
    fn extend(
        &self,
        thread: &mut Thread,
        range: std::ops::Range<usize>,
    ) -> Result<Option<String>, Error> {
        let number = range.end;
        let (marked, slice, opening) = if thread.is_empty() {
            let slice = self.slice(range, true);
            let marked = self.format.renderer(self.conversation).render(&slice)?;
            let opening = self.opening(&marked, &slice)?;
            (marked, slice, opening)
        } else {
            match self.delta(range)? {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        thread.settle();
        let fresh = thread.is_empty();
        let marked = if fresh {
            self.with_bos(marked, thread)
        } else {
            self.close(marked, thread)
        };
        let reply_at = marked.text.len() - opening.len();
        let first = match slice.messages.first() {
            _ if fresh && !slice.system.is_empty() => {
                let part = &slice.system[0];
                Start {
                    at: 0,
                    name: part.name.clone(),
                    layer: part.layer,
                }
            }
            Some((n, message)) => Start {
                at: 0,
                name: message_name(*n, Some(message)),
                layer: Layer::Turn,
            },
            None => Start {
                at: 0,
                name: message_name(number, None),
                layer: Layer::Turn,
            },
        };
        let renderer = self.format.renderer(self.conversation);
        let mut starts = renderer.starts(&marked, &slice, &self.format.closing, first);
        let reply = Start {
            at: reply_at,
            name: REPLY.into(),
            layer: Layer::Turn,
        };
        starts.retain(|s| s.at < reply_at || s.at == 0);
        starts.push(reply);
        starts.dedup_by_key(|s| s.at);
        thread.extend(self.format.runs.encode(&marked, &starts));
        Ok(Some(opening))
    }

    fn slice(&self, range: std::ops::Range<usize>, generation: bool) -> Slice<'_> {
        let messages = range.map(|i| (i, &self.conversation.messages[i])).collect();
        Slice {
            system: &self.conversation.system,
            tools: &self.tools,
            messages,
            generation,
        }
    }

    /// What the template writes after the last message to open the reply.
    fn opening(&self, marked: &Marked, slice: &Slice<'_>) -> Result<String, Error> {
        let without = Slice {
            system: slice.system,
            tools: slice.tools,
            messages: slice.messages.clone(),
            generation: false,
        };
        let closed = self.format.renderer(self.conversation).render(&without)?;
        Ok(marked
            .text
            .strip_prefix(&closed.text)
            .unwrap_or_default()
            .to_owned())
    }

    /// The messages of `range` as the difference between two renders: of a short conversation that
    /// ends with the assistant message before them, and of the same with them behind it. The text
    /// begins with the closing of that assistant message.
    #[allow(clippy::type_complexity)]
    fn delta(
        &self,
        range: std::ops::Range<usize>,
    ) -> Result<Option<(Marked, Slice<'_>, String)>, Error> {
        let renderer = self.format.renderer(self.conversation);
        let opener = Message::user("u");
        let before = &self.conversation.messages[range.start - 1];
        let bare = Message::assistant("a", Vec::new());
        // A template that writes the system text or the tools into the newest turn is asked without.
        for with_system in [true, false] {
            for last in [before, &bare] {
                let system = if with_system {
                    &self.conversation.system[..]
                } else {
                    &[]
                };
                let tools = if with_system { &self.tools[..] } else { &[] };
                let mut messages = vec![(usize::MAX / 2, &opener), (range.start - 1, last)];
                let base = Slice {
                    system,
                    tools,
                    messages: messages.clone(),
                    generation: false,
                };
                messages.extend(range.clone().map(|i| (i, &self.conversation.messages[i])));
                let whole = Slice {
                    system,
                    tools,
                    messages,
                    generation: true,
                };
                let (Ok(base), Ok(marked)) = (renderer.render(&base), renderer.render(&whole))
                else {
                    continue;
                };
                let closing = self.format.closing.as_str();
                if !marked.text.starts_with(&base.text) || !base.text.ends_with(closing) {
                    continue;
                }
                let opening = self.opening(&marked, &whole)?;
                let added = marked.suffix(base.text.len() - closing.len());
                return Ok(Some((added, self.slice(range, true), opening)));
            }
        }
        Ok(None)
    }

    /// The closing of the assistant message before goes into its piece; an end token that was
    /// sampled is not written twice.
    fn close(&self, marked: Marked, thread: &mut Thread) -> Marked {
        let closing = self.format.closing.as_str();
        let mut from = 0;
        if thread.ended
            && let Some(hit) = self
                .format
                .runs
                .literals()
                .and_then(|l| l.find(closing))
                .filter(|h| h.start() == 0)
        {
            from = hit.end();
        }
        let close = Marked::plain(marked.text[from..closing.len()].to_owned());
        let start = Start {
            at: 0,
            name: String::new(),
            layer: Layer::History,
        };
        for stretch in self.format.runs.encode(&close, &[start]) {
            thread.append_to_last(&stretch.ids, &stretch.text);
        }
        marked.suffix(closing.len())
    }

    /// One token that begins the text, whoever writes it: the template, or else the tokenizer.
    fn with_bos(&self, marked: Marked, thread: &mut Thread) -> Marked {
        let tokenizer = self.format.tokenizer();
        let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) else {
            return marked;
        };
        let literal = tokenizer
            .controls()
            .iter()
            .find(|(id, _)| *id == bos)
            .map(|(_, text)| text.as_str());
        if literal.is_none_or(|literal| !marked.text.starts_with(literal)) {
            let stretch = super::runs::Stretch {
                name: "bos".into(),
                layer: Layer::Instructions,
                ids: vec![bos],
                text: String::new(),
            };
            thread.extend(vec![stretch]);
        }
        marked
    }
}
