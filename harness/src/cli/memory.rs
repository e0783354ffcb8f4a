//! `ostler memory`: what the agent has remembered, for the person it remembers it about.

use super::Exit;
use super::args::MemoryCommand;
use super::output::{Out, note};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::memory::{Memories, Memory};

pub fn run(env: &Env, command: &MemoryCommand, out: &mut Out) -> Result<Exit> {
    let memories = Memories::at(env.data_dir()?.join("memory"));
    match command {
        MemoryCommand::List { json } => list(&memories, *json, out)?,
        MemoryCommand::Show { id } => {
            memories.get(id)?;
            let path = memories.path(id);
            let text = std::fs::read_to_string(&path)
                .map_err(|e| Error::io("read a memory", &path, &e))?;
            out.model_text(&text)?;
        }
        MemoryCommand::Edit { id } => edit(env, &memories, id)?,
        MemoryCommand::Forget { ids } => {
            for id in ids {
                memories.forget(id)?;
                out.line(&format!("forgot {id}"))?;
            }
        }
        MemoryCommand::Search { words } => {
            let found = memories.search(&words.join(" "))?;
            if found.is_empty() {
                note("nothing is remembered that fits");
            }
            found.iter().try_for_each(|memory| show(memory, out))?;
        }
    }
    Ok(Exit::Done)
}

fn list(memories: &Memories, json: bool, out: &mut Out) -> Result<()> {
    let listed = memories.list()?;
    if json {
        out.line(&serde_json::to_string_pretty(&listed.memories).expect("plain JSON"))?;
    } else {
        listed
            .memories
            .iter()
            .try_for_each(|memory| show(memory, out))?;
    }
    for (path, why) in &listed.broken {
        note(&format!(
            "{} is left out: {why}; mend or remove it",
            path.display()
        ));
    }
    if listed.memories.is_empty() {
        note("nothing is remembered");
    }
    note(&format!("in {}", memories.dir().display()));
    Ok(())
}

fn show(memory: &Memory, out: &mut Out) -> Result<()> {
    let gone = match &memory.replaced_by {
        Some(new) => format!(" [no longer holds: see {new}]"),
        None => String::new(),
    };
    out.model_text(&format!("{}{gone}\n", memory.line()))
}

/// The file is changed where it lies; what the editor leaves must still be a memory.
fn edit(env: &Env, memories: &Memories, id: &str) -> Result<()> {
    memories.get(id)?;
    let variable = |name: &str| {
        let found = env.variables.iter().find(|(key, _)| key == name);
        found
            .and_then(|(_, value)| value.to_str())
            .filter(|v| !v.is_empty())
    };
    let Some(editor) = variable("VISUAL").or(variable("EDITOR")) else {
        return Err(Error::caller(format!(
            "no editor is named; set EDITOR, or change {} yourself",
            memories.path(id).display()
        )));
    };
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let ended = std::process::Command::new(program)
        .args(words)
        .arg(memories.path(id))
        .status()
        .map_err(|e| Error::caller(format!("cannot start {editor}: {e}; set EDITOR")))?;
    if !ended.success() {
        return Err(Error::caller(format!("{editor} ended with {ended}")));
    }
    // Says what is wrong, if anything is.
    let listed = memories.list()?;
    match listed
        .broken
        .iter()
        .find(|(path, _)| *path == memories.path(id))
    {
        Some((path, why)) => Err(Error::caller(format!(
            "{} is no memory any more: {why}; edit it again",
            path.display()
        ))),
        None => Ok(()),
    }
}
