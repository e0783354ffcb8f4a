//! What stands above the history, what it takes of the window, and whether that is too much.

use super::remembering::memory_section;
use super::{Agent, Setup};
use crate::agent::budget::{Budget, Share};
use crate::agent::pieces::{Frozen, Section};
use crate::agent::prompt;
use crate::agent::runtime::Runtime;
use crate::error::Error;
use crate::tools::ToolSpec;

impl Agent<'_> {
    /// What takes how much of the window now, and how much is set aside, in tokens.
    pub fn context(&mut self) -> Result<Vec<Share>, Error> {
        let mut shares: Vec<Share> = fixed_pieces(&self.frozen, &self.specs, &*self.runtime)
            .into_iter()
            .map(|(name, tokens)| Share::taken(name, tokens))
            .collect();
        let fixed: usize = shares.iter().map(|share| share.tokens).sum();
        let whole = self.measure()?;
        shares.push(Share::taken("history", whole.saturating_sub(fixed)));
        let budget = &self.budget;
        shares.extend([
            Share::kept("the reply", budget.reply),
            Share::kept("asking for a summary", budget.instruction),
            Share::kept("the summary", budget.summary),
        ]);
        let used: usize = shares.iter().map(|share| share.tokens).sum();
        shares.push(Share::kept("free", budget.window.saturating_sub(used)));
        Ok(shares)
    }
}

/// The sections as their sources read now; a helper's are those of the agent it helps.
pub(super) fn sections(setup: &Setup, runtime: &dyn Runtime) -> Result<Vec<Section>, Error> {
    if let Some(frozen) = &setup.frozen {
        return Ok(frozen.clone());
    }
    let mut sections = prompt::sections(&setup.workspace, setup.instructions.as_deref())?;
    sections.extend(setup.skills.section());
    sections.extend(memory_section(setup, runtime)?);
    Ok(sections)
}

pub(super) fn check_fixed(
    budget: &Budget,
    frozen: &Frozen,
    specs: &[ToolSpec],
    runtime: &dyn Runtime,
) -> Result<(), Error> {
    budget.check_fixed(&fixed_pieces(frozen, specs, runtime))
}

/// The pieces above History, with their tokens.
pub(super) fn fixed_pieces(
    frozen: &Frozen,
    specs: &[ToolSpec],
    runtime: &dyn Runtime,
) -> Vec<(String, usize)> {
    let mut pieces: Vec<(String, usize)> = frozen
        .sent()
        .iter()
        .map(|s| (s.name.clone(), runtime.count(&s.text)))
        .collect();
    let tools = specs
        .iter()
        .map(|spec| runtime.count(&spec.to_function().to_string()))
        .sum();
    pieces.push(("tools".into(), tools));
    pieces
}
