//! How one model's conversations become prompts. The agent and the server share it.
//!
//! Invariant (law 3): until a template rewrites what was sent, the ids of a conversation begin with
//! the ids of the same conversation one turn earlier, plus the ids that were sampled then.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use engine::{Layer, Prompt, Salt};
use models::template::ChatTemplate;
use models::tokenizer::Tokenizer;
use serde_json::Value;

use super::marks::Marked;
use super::message::{Conversation, Digests, Message, Role, SystemPart, Tool};
use super::render::{OPENER, Renderer, Slice, message_name};
use super::runs::{Runs, Start, Stretch};
use super::thread::{Clocks, Thread, Threads};
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
    digests: Digests,
}

/// A model's tokenizer and template, and the threads of the conversations it has seen.
pub struct ChatFormat {
    template: ChatTemplate,
    runs: Runs,
    /// What the template writes behind an assistant's words.
    closing: String,
    threads: Threads,
    clocks: Clocks,
}

impl ChatFormat {
    pub fn new(tokenizer: Arc<Tokenizer>, template: ChatTemplate) -> ChatFormat {
        let mut format = ChatFormat {
            template,
            runs: Runs::new(tokenizer),
            closing: String::new(),
            threads: Threads::default(),
            clocks: Clocks::default(),
        };
        format.closing = format.find_closing().unwrap_or_default();
        format
    }

    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
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
        let prepared = self.prepared(conversation);
        let digests = prepared.digests();
        let call = Call {
            format: self,
            conversation: &prepared,
        };
        let (drawn, rewritten) = match call.follow(&digests.upto)? {
            Some(drawn) => (drawn, false),
            None => (call.afresh()?, true),
        };
        let pieces = drawn.thread.pieces().to_vec();
        let prompt =
            Prompt::new(pieces.clone()).unwrap_or_else(|_| Prompt::in_template_order(pieces));
        Ok(Composed {
            prompt,
            opening: drawn.opening,
            rewritten,
            thread: drawn.thread,
            digests,
        })
    }

    /// Remembers that `reply` followed `composed` and was sampled as `ids`, so that the same words
    /// sent back are these ids again.
    pub fn remember(&self, composed: &Composed, reply: &Message, ids: &[u32]) {
        let mut thread = composed.thread.clone();
        let number = composed.digests.upto.len() - 1;
        self.splice(&mut thread, number, ids);
        // It comes back from a client as words, from our own transcript with its ids.
        for sampled in [None, Some(Arc::from(ids))] {
            let said = Message {
                sampled,
                ..reply.clone()
            };
            self.threads
                .put(composed.digests.with(&said), thread.clone());
        }
    }

    /// For a caller that keeps no session (the HTTP server): the clock of the day's first call with this
    /// beginning, so that a template that tells the time tells a conversation one time only.
    pub fn settle_clock(&self, conversation: &mut Conversation) {
        let digests = conversation.digests().upto;
        let beginning = digests[digests.len().min(2) - 1];
        conversation.clock = self.clocks.settle(beginning, &conversation.clock);
    }

    /// The tools sorted by name; where the template has no place for them, they are a part of the
    /// system message. The parts stand in the order of their layers.
    fn prepared<'a>(&self, conversation: &'a Conversation) -> Cow<'a, Conversation> {
        let tools_stay = conversation.tools.is_empty() || self.template.supports_tools();
        let in_order = conversation.tools.is_sorted_by(|a, b| a.name <= b.name)
            && conversation.system.is_sorted_by_key(|part| part.layer);
        if tools_stay && in_order {
            return Cow::Borrowed(conversation);
        }
        let mut conversation = conversation.clone();
        conversation.tools.sort_by(|a, b| a.name.cmp(&b.name));
        if !conversation.tools.is_empty() && !self.template.supports_tools() {
            let tools: Vec<Value> = conversation.tools.iter().map(Tool::to_value).collect();
            let text = ChatTemplate::tools_prompt(&tools);
            conversation.system.push(SystemPart {
                name: "tools".into(),
                layer: Layer::Tools,
                text,
            });
            conversation.tools.clear();
        }
        conversation.system.sort_by_key(|part| part.layer);
        Cow::Owned(conversation)
    }

    /// Puts what was sampled as message `number` behind the opening of the reply.
    fn splice(&self, thread: &mut Thread, number: usize, ids: &[u32]) {
        let text = self.tokenizer().decode(ids);
        thread.reply(REPLY, &format!("{number}.assistant"), ids, &text);
        thread.ended = ids.last().is_some_and(|id| self.tokenizer().is_end(*id));
        thread.settle();
    }

    /// What the template writes behind an assistant's words when the conversation goes on. Some write
    /// something else at a conversation's very end, so two of them are compared.
    fn find_closing(&self) -> Option<String> {
        let messages = vec![
            Message::user("u"),
            Message::assistant("a", Vec::new()),
            Message::user("v"),
        ];
        let conversation = Conversation {
            system: Vec::new(),
            tools: Vec::new(),
            messages,
            clock: models::template::FrozenClock::default(),
            extra: serde_json::Map::new(),
            salt: Salt::default(),
        };
        let renderer = self.renderer(&conversation);
        let behind_reply = |messages: usize| {
            let messages = conversation.messages[..messages]
                .iter()
                .enumerate()
                .collect();
            let slice = Slice {
                system: &[],
                tools: &[],
                messages,
                generation: false,
            };
            let marked = renderer.render(&slice).ok()?;
            let end = renderer.end_of(&marked, 1)?;
            Some(marked.text[end..].to_owned())
        };
        let (last, next) = (behind_reply(2)?, behind_reply(3)?);
        let (last_control, next_control) =
            (self.leading_control(&last), self.leading_control(&next));
        if last_control == 0 || next_control == 0 {
            return Some(next[..self.runs.common_prefix(&next, &last)].to_owned());
        }
        // Two tokens that end a turn: white space behind them is common text only if they are one.
        let rest = &next[next_control..];
        let same = last[..last_control] == next[..next_control];
        let common = if same {
            self.runs.common_prefix(rest, &last[last_control..])
        } else {
            0
        };
        let space = common.min(rest.len() - rest.trim_start().len());
        Some(next[..next_control + space].to_owned())
    }

    /// Bytes of the control token that `text` begins with.
    fn leading_control(&self, text: &str) -> usize {
        let hit = self
            .runs
            .literals()
            .and_then(|literals| literals.find(text));
        hit.filter(|hit| hit.start() == 0)
            .map_or(0, |hit| hit.end())
    }

    fn renderer<'a>(&'a self, conversation: &'a Conversation) -> Renderer<'a> {
        Renderer {
            template: &self.template,
            literals: self.runs.literals(),
            conversation,
        }
    }
}

/// The ids of a whole prompt, and the text that opens the reply at its end.
struct Drawn {
    thread: Thread,
    opening: String,
}

/// One composition.
struct Call<'a> {
    format: &'a ChatFormat,
    conversation: &'a Conversation,
}

/// The text of some messages, in place.
struct Addition<'a> {
    /// Begins with the closing of the assistant message before, unless it begins the conversation.
    marked: Marked,
    slice: Slice<'a>,
    /// What the template wrote at the end to open the reply.
    opening: String,
}

impl Call<'_> {
    /// Goes on from the longest thread known, splicing in what was sampled. `None`: the template
    /// rewrites earlier turns.
    fn follow(&self, digests: &[[u8; 32]]) -> Result<Option<Drawn>, Error> {
        let messages = &self.conversation.messages;
        let known = (1..=messages.len())
            .rev()
            .filter(|k| messages[k - 1].role == Role::Assistant)
            .find_map(|k| Some((k, self.format.threads.get(&digests[k])?)));
        let (mut done, mut thread) = known.unwrap_or((0, Thread::default()));
        while let Some(at) = (done..messages.len()).find(|i| messages[*i].sampled.is_some()) {
            if self.extend(&mut thread, done..at)?.is_none() {
                return Ok(None);
            }
            let ids = messages[at].sampled.as_deref().unwrap_or_default();
            self.format.splice(&mut thread, at, ids);
            done = at + 1;
            self.format.threads.put(digests[done], thread.clone());
        }
        let Some(opening) = self.extend(&mut thread, done..messages.len())? else {
            return Ok(None);
        };
        Ok(Some(Drawn { thread, opening }))
    }

    /// The whole conversation in one render, as a stranger to it would send it.
    fn afresh(&self) -> Result<Drawn, Error> {
        let mut thread = Thread::default();
        let all = 0..self.conversation.messages.len();
        let opening = self.extend(&mut thread, all)?.unwrap_or_default();
        Ok(Drawn { thread, opening })
    }

    /// Adds the messages of `range` and the opening of the reply behind them.
    fn extend(&self, thread: &mut Thread, range: Range<usize>) -> Result<Option<String>, Error> {
        let fresh = thread.is_empty();
        let addition = if fresh {
            Some(self.beginning(range.clone())?)
        } else {
            self.delta(range.clone())?
        };
        let Some(Addition {
            marked,
            slice,
            opening,
        }) = addition
        else {
            return Ok(None);
        };
        thread.settle();
        let closing = if fresh {
            ""
        } else {
            self.format.closing.as_str()
        };
        // What follows the closing, with its pieces.
        let body = marked.suffix(closing.len());
        let mut starts = self.starts(&body, &slice, &opening, fresh, range.end);
        // An end token that was sampled is not written twice.
        let skipped = if thread.ended {
            self.format.leading_control(closing)
        } else {
            0
        };
        let left = closing.len() - skipped;
        if left > 0 {
            starts.iter_mut().for_each(|start| start.at += left);
            starts.insert(
                0,
                Start {
                    at: 0,
                    name: String::new(),
                    layer: Layer::History,
                },
            );
        }
        if fresh {
            self.put_bos(&marked, thread);
        }
        let mut stretches = self.format.runs.encode(&marked.suffix(skipped), &starts);
        if left > 0 {
            let close = stretches.remove(0);
            thread.append_to_last(&close.ids, &close.text);
        }
        thread.extend(stretches);
        Ok(Some(opening))
    }

    fn starts(
        &self,
        body: &Marked,
        slice: &Slice<'_>,
        opening: &str,
        fresh: bool,
        number: usize,
    ) -> Vec<Start> {
        let first = match (slice.system.first(), slice.messages.first()) {
            (Some(part), _) if fresh => Start {
                at: 0,
                name: part.name.clone(),
                layer: part.layer,
            },
            (_, Some((n, message))) => Start {
                at: 0,
                name: message_name(*n, Some(message)),
                layer: Layer::Turn,
            },
            (_, None) => Start {
                at: 0,
                name: message_name(number, None),
                layer: Layer::Turn,
            },
        };
        let renderer = self.format.renderer(self.conversation);
        let mut starts = renderer.starts(body, slice, &self.format.closing, first);
        let reply_at = body.text.len() - opening.len();
        starts.retain(|start| start.at < reply_at || start.at == 0);
        if !opening.is_empty() {
            starts.push(Start {
                at: reply_at,
                name: REPLY.into(),
                layer: Layer::Turn,
            });
        }
        starts.dedup_by(|later, earlier| {
            let same = later.at == earlier.at;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        starts
    }

    fn slice(&self, range: Range<usize>, generation: bool) -> Slice<'_> {
        Slice {
            system: &self.conversation.system,
            tools: &self.conversation.tools,
            messages: range.map(|i| (i, &self.conversation.messages[i])).collect(),
            generation,
        }
    }

    /// The conversation's beginning. A template that writes the system text and the tools into the
    /// newest user message is held to the first: what follows is rendered without them.
    fn beginning(&self, range: Range<usize>) -> Result<Addition<'_>, Error> {
        let renderer = self.format.renderer(self.conversation);
        let slice = self.slice(range.clone(), true);
        let first_reply = range
            .clone()
            .find(|i| self.conversation.messages[*i].role == Role::Assistant);
        if self.format.template.features().moving_head
            && let Some(reply) = first_reply
        {
            let without = |generation: bool, end: usize| Slice {
                system: &[],
                tools: &[],
                ..self.slice(range.start..end, generation)
            };
            let mut marked = renderer.render(&self.slice(range.start..reply, false))?;
            let start = renderer.plain(&without(false, reply))?;
            let whole = renderer.render(&without(true, range.end))?;
            if whole.text.starts_with(&start) {
                let opening = self.opening(&whole, &without(true, range.end))?;
                marked.append(whole.suffix(start.len()));
                return Ok(Addition {
                    marked,
                    slice,
                    opening,
                });
            }
        }
        let marked = renderer.render(&slice)?;
        let opening = self.opening(&marked, &slice)?;
        Ok(Addition {
            marked,
            slice,
            opening,
        })
    }

    /// What the template writes after the last message to open the reply.
    fn opening(&self, marked: &Marked, slice: &Slice<'_>) -> Result<String, Error> {
        let without = Slice {
            generation: false,
            ..slice.clone()
        };
        let closed = self.format.renderer(self.conversation).plain(&without)?;
        let same = self.format.runs.common_prefix(&marked.text, &closed);
        Ok(marked.text[same..].to_owned())
    }

    /// The messages of `range` as they stand behind the assistant message before them. A short
    /// conversation shows it: a user's word, that message (or a plain one in its place), the new
    /// messages. What the template makes of turns long past does not matter: those were sent.
    fn delta(&self, range: Range<usize>) -> Result<Option<Addition<'_>>, Error> {
        let opener = Message::user("u");
        let bare = Message::assistant("a", Vec::new());
        let before = &self.conversation.messages[range.start - 1];
        // What moves with the newest turn was sent with the first, and is not sent again.
        let moving = self.format.template.features().moving_head;
        let heads: &[bool] = if moving { &[false] } else { &[true, false] };
        for with_head in heads {
            for last in [before, &bare] {
                let mut slice = self.slice(range.clone(), true);
                slice
                    .messages
                    .splice(0..0, [(OPENER, &opener), (range.start - 1, last)]);
                if !with_head {
                    (slice.system, slice.tools) = (&[], &[]);
                }
                // A template asks here whether there are tools, not which; to write them all again each
                // turn is most of a render.
                slice.tools = &slice.tools[..slice.tools.len().min(1)];
                if let Some((marked, opening)) = self.behind(&slice, range.start - 1, last) {
                    let slice = self.slice(range, true);
                    return Ok(Some(Addition {
                        marked,
                        slice,
                        opening,
                    }));
                }
            }
        }
        self.difference(range)
    }

    /// The render of `slice` from the closing of message `number` on, and the opening at its end.
    fn behind(
        &self,
        slice: &Slice<'_>,
        number: usize,
        message: &Message,
    ) -> Option<(Marked, String)> {
        let renderer = self.format.renderer(self.conversation);
        let closing = self.format.closing.as_str();
        // Behind a call's name stand its arguments: only a control token can be told from those.
        if !message.calls.is_empty() && self.format.leading_control(closing) == 0 {
            return None;
        }
        let marked = renderer.render(slice).ok()?;
        let end = renderer.end_of(&marked, number)?;
        let from = renderer.find_closing(&marked, end, closing)?;
        let opening = self.opening(&marked, slice).ok()?;
        Some((marked.suffix(from), opening))
    }

    /// The messages of `range` as the difference between renders of the whole conversation with and
    /// without them; `None` where the longer one does not begin with the shorter.
    fn difference(&self, range: Range<usize>) -> Result<Option<Addition<'_>>, Error> {
        let renderer = self.format.renderer(self.conversation);
        let closing = self.format.closing.as_str();
        let whole = self.slice(0..range.end, true);
        let shorter = self.slice(0..range.start, false);
        let (Ok(short), Ok(marked)) = (renderer.plain(&shorter), renderer.render(&whole)) else {
            return Ok(None);
        };
        if !marked.text.starts_with(&short) || !short.ends_with(closing) {
            return Ok(None);
        }
        let opening = self.opening(&marked, &whole)?;
        let marked = marked.suffix(short.len() - closing.len());
        Ok(Some(Addition {
            marked,
            slice: self.slice(range, true),
            opening,
        }))
    }

    /// One token that begins the text, whoever writes it: the template, or else the tokenizer.
    fn put_bos(&self, marked: &Marked, thread: &mut Thread) {
        let tokenizer = self.format.tokenizer();
        let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) else {
            return;
        };
        let literal = tokenizer.token_bytes(bos);
        if literal.is_empty() || !marked.text.as_bytes().starts_with(literal) {
            let name = "bos".to_owned();
            thread.extend(vec![Stretch {
                name,
                layer: Layer::Instructions,
                ids: vec![bos],
                text: String::new(),
            }]);
        }
    }
}
