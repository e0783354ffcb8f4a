//! What the benchmarks send to the engine, and how they wait for it.

use engine::{
    Event, Finish, Generation, Layer, Piece, Plan, Prompt, Report, Request, Salt, SamplingParams,
};

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
pub fn finish(mut generation: Generation) -> Result<(Plan, Report)> {
    let mut plan = None;
    while let Some(event) = generation.recv() {
        match event {
            Event::Plan(planned) => plan = Some(planned),
            Event::Token { .. } => {}
            Event::Done {
                reason: Finish::Error(error),
                ..
            } => return Err(error.into()),
            Event::Done { report, .. } => {
                let plan = plan.ok_or_else(|| Error::bug("the engine sent no plan"))?;
                return Ok((plan, report));
            }
        }
    }
    Err(Error::bug("the engine's events ended without their end"))
}

/// Draws from a fixed sequence: every run sends the same.
pub struct Draws(u64);

impl Draws {
    pub fn new() -> Draws {
        Draws(0x0571_e55e)
    }

    /// One of `from`, which is not empty.
    pub fn one_of(&mut self, from: &[u32]) -> u32 {
        // Knuth's MMIX generator; its high bits are good enough to tell prompts apart.
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        from[(self.0 >> 33) as usize % from.len()]
    }
}
