//! What the benchmarks send to the engine, and how they wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use engine::{
    Event, Finish, Generation, Layer, Piece, Plan, Prompt, Report, Request, Salt, SamplingParams,
};

use models::tokenizer::{Specials, Tokenizer};

use crate::error::{Error, Result};

/// `ids` as a prompt of one piece.
pub fn prompt(ids: &[u32]) -> Result<Prompt> {
    Ok(Prompt::new(vec![Piece::new(
        "prompt",
        Layer::Turn,
        ids,
        b"",
    )])?)
}

/// Exactly `tokens_max` tokens after `ids`. Without guesses: those that happen to be right would measure the
/// text, not the machine.
pub fn request(ids: &[u32], tokens_max: usize, salt: Salt) -> Result<Request> {
    let mut request = Request::new(prompt(ids)?);
    request.salt = salt;
    request.sampling = SamplingParams::greedy();
    request.max_tokens = Some(tokens_max);
    request.ignore_end = true;
    request.no_drafts = true;
    Ok(request)
}

/// Waits for the end of a reply.
pub fn finish(generation: Generation) -> Result<(Plan, Report)> {
    let (plan, report, _) = follow(generation, || {})?;
    Ok((plan, report))
}

/// As [`finish`], with a word at each token. Returns the ids sampled, too.
pub fn follow(
    mut generation: Generation,
    mut on_token: impl FnMut(),
) -> Result<(Plan, Report, Vec<u32>)> {
    let mut plan = None;
    while let Some(event) = generation.recv() {
        match event {
            Event::Plan(planned) => plan = Some(planned),
            Event::Token { .. } => on_token(),
            Event::Done {
                reason: Finish::Error(error),
                ..
            } => return Err(error.into()),
            Event::Done { report, ids, .. } => {
                let plan = plan.ok_or_else(|| Error::bug("the engine sent no plan"))?;
                return Ok((plan, report, ids));
            }
        }
    }
    Err(Error::bug("the engine's events ended without their end"))
}

/// Plain words of the vocabulary below which prompts could hardly be told apart.
const WORDS_MIN: usize = 256;

/// Text to measure with: words of the vocabulary in a fixed order, the same in every run. Each is one token,
/// also when its text is encoded again.
#[derive(Clone)]
pub struct Words {
    tokenizer: Arc<Tokenizer>,
    ids: Vec<u32>,
    spelled: HashMap<u32, String>,
    draws: Draws,
    /// The word that the last new text began with.
    last: usize,
}

impl Words {
    pub fn of(tokenizer: Arc<Tokenizer>) -> Result<Words> {
        let spelled = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            // A word with a space before it (byte-level or SentencePiece) never merges with the next.
            let word = bytes.strip_prefix(b" ").unwrap_or_default();
            let plain = word.len() >= 3 && word.iter().all(u8::is_ascii_lowercase);
            plain.then(|| (id, String::from_utf8_lossy(bytes).into_owned()))
        };
        let spelled = (0..tokenizer.vocab_size() as u32).filter_map(spelled);
        let (ids, spelled): (Vec<u32>, HashMap<u32, String>) =
            spelled.map(|(id, text)| (id, (id, text))).unzip();
        if ids.len() < WORDS_MIN {
            return Err(Error::input(format!(
                "the vocabulary has {} plain words, need {WORDS_MIN} to make prompts of; use another model",
                ids.len()
            )));
        }
        Ok(Words {
            tokenizer,
            ids,
            spelled,
            draws: Draws(0x0571_e55e),
            last: 0,
        })
    }

    /// `count` words. No two such texts begin alike.
    pub fn text(&mut self, count: usize) -> Vec<u32> {
        self.last = (self.last + 1) % self.ids.len();
        let mut text = vec![self.ids[self.last]];
        while text.len() < count {
            text.push(self.draws.one_of(&self.ids));
        }
        text.truncate(count);
        text
    }

    /// A word that is none of `taken`.
    pub fn other_than(&mut self, taken: &[u32]) -> u32 {
        loop {
            let word = self.draws.one_of(&self.ids);
            if !taken.contains(&word) {
                return word;
            }
        }
    }

    /// The first tokens of any text, at most `most`.
    pub fn read(&self, text: &str, most: usize) -> Vec<u32> {
        let mut ids = self.tokenizer.encode(text, Specials::Plain);
        ids.truncate(most);
        ids
    }

    /// The text of any tokens.
    pub fn write(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }

    /// The text of words.
    pub fn spell(&self, ids: &[u32]) -> String {
        let texts = ids.iter().filter_map(|id| self.spelled.get(id));
        texts.map(String::as_str).collect()
    }
}

/// Draws from a fixed sequence.
#[derive(Clone)]
struct Draws(u64);

impl Draws {
    /// One of `from`, which is not empty.
    fn one_of(&mut self, from: &[u32]) -> u32 {
        // Knuth's MMIX generator; its high bits are good enough to tell prompts apart.
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        from[(self.0 >> 33) as usize % from.len()]
    }
}
