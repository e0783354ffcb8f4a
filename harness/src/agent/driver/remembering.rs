//! Memory, as the driver carries it out: the section that every prompt has, the two tools, and who is asked when a
//! call follows a note.

use std::path::Component;

use engine::Layer;

use super::{Agent, Setup};
use crate::agent::memory_tools;
use crate::agent::pieces::Section;
use crate::agent::runtime::Runtime;
use crate::agent::transcript::{Call, ToolOutput};
use crate::error::Error;
use crate::limits;
use crate::memory;

impl Agent<'_> {
    /// A call of a memory tool. What is remembered now is known: nothing has to tell of it again.
    pub(super) fn run_with_memory(&mut self, call: &Call) -> Result<Option<ToolOutput>, Error> {
        let Some(memories) = &self.setup.memories else {
            return Ok(None);
        };
        let now = self.session.now_ms() / 1_000;
        let records = self.session.records();
        let output = memory_tools::run(memories, records, &call.name, &call.arguments, now);
        if call.name == memory_tools::REMEMBER
            && let Some(output) = &output
            && output.ok
        {
            self.watch.told(&output.text);
            if let Some(section) = memory_section(&self.setup, &*self.runtime)? {
                self.frozen.is_told(section);
            }
        }
        Ok(output)
    }

    /// Why a person has to be asked though the rules would let the call through: what it names stands in a memory
    /// that is not the user's word.
    pub(super) fn doubt(&self, call: &Call) -> Result<Option<String>, Error> {
        const CONSEQUENTIAL: [&str; 3] = ["bash", "edit", "write"];
        let Some(memories) = &self.setup.memories else {
            return Ok(None);
        };
        if !CONSEQUENTIAL.contains(&call.name.as_str()) {
            return Ok(None);
        }
        let memories = memories.list()?.memories;
        // What lies in the folder is what the agent is here for.
        let is_here = |name: &str| {
            let path = std::path::Path::new(name);
            let inside = path
                .components()
                .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            inside && self.setup.workspace.join(path).exists()
        };
        let harmless =
            |name: &str| is_here(name) || memory_tools::user_said(self.session.records(), name);
        let found = memory::planted(&memories, &call.arguments, harmless);
        Ok(found.map(|(memory, name)| {
            format!(
                "names {name}, which the user has not said: it stands in memory {}, a note",
                memory.id
            )
        }))
    }
}

/// What was remembered, as far as its share of the window goes.
pub(super) fn memory_section(
    setup: &Setup,
    runtime: &dyn Runtime,
) -> Result<Option<Section>, Error> {
    let Some(memories) = &setup.memories else {
        return Ok(None);
    };
    let share = runtime.window() / limits::MEMORY_SHARE_OF_WINDOW;
    let most = share.min(limits::MEMORY_TOKENS_MAX);
    let text = memory::slice(&memories.list()?.memories, |text| {
        runtime.count(text) <= most
    });
    Ok(text.map(|text| Section {
        name: "memory".into(),
        layer: Layer::Memory,
        text,
        file: None,
    }))
}
