//! `ostler bench cache`: what the prefix cache saves, scenario by scenario, each checking itself; and what the same
//! calls cost on another server.

mod chart;
mod row;
mod scenarios;
mod side;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::Exit;
use super::args::BenchCacheArgs;
use super::bench_against::Server;
use super::bench_call::Words;
use super::loading;
use super::output::{Out, note};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::limits::BENCH_DISK_BYTES;
use crate::load::{self, KvDisk, KvRoom, ModelOptions};
use crate::store::StderrProgress;
use row::{Pair, Row};
use scenarios::{GROUPS, Group, Room};
use side::{Here, There};

pub fn run(env: &Env, args: &BenchCacheArgs, out: &mut Out) -> Result<Exit> {
    let groups = chosen(&args.scenario)?;
    if let Some(path) = &args.svg {
        // Told now, not after minutes of measuring.
        let open = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        open.map_err(|e| unwritten(path, &e))?;
    }
    let options = loading::options(&args.model)?;
    let server = args.against.as_deref().map(Server::new).transpose()?;
    let server_name = server.as_ref().map(Server::name);
    let mut bench = Bench {
        env,
        args,
        options,
        server,
        model: String::new(),
        words: None,
        here: None,
    };
    let mut pairs = Vec::new();
    for group in groups {
        for pair in bench.measure(group)? {
            if !args.scenario.is_empty() && !args.scenario.iter().any(|s| s == pair.ours.scenario) {
                continue;
            }
            if !args.json && !args.csv {
                if pairs.is_empty() {
                    out.line(&Pair::heading(server_name.is_some()))?;
                }
                out.line(&pair.line())?;
            }
            pairs.push(pair);
        }
    }
    if pairs.is_empty() {
        return Err(Error::caller(
            "nothing was measured: the context is too short for every scenario",
        ));
    }
    let against = server_name.as_deref();
    if args.json {
        let rows: Vec<Value> = pairs.iter().map(|pair| pair.json(against)).collect();
        out.line(&serde_json::to_string_pretty(&rows).expect("plain JSON"))?;
    }
    if args.csv {
        out.line(Pair::CSV_HEADING)?;
        for line in pairs.iter().flat_map(|pair| pair.csv(against)) {
            out.line(&line)?;
        }
    }
    if let Some(path) = &args.svg {
        let chart = chart::draw(&pairs, &bench.model, against);
        std::fs::write(path, chart).map_err(|e| unwritten(path, &e))?;
    }
    let wrong = |pair: &Pair| Some((pair.ours.scenario, pair.ours.wrong.clone()?));
    match pairs.iter().find_map(wrong) {
        Some((scenario, why)) => Err(Error::bug(format!("scenario {scenario}: {why}"))),
        None => Ok(Exit::Done),
    }
}

fn unwritten(path: &Path, why: &std::io::Error) -> Error {
    Error::caller(format!("--svg {}: {why}", path.display()))
}

/// The groups that hold the scenarios asked for; all, if none was.
fn chosen(names: &[String]) -> Result<Vec<&'static Group>> {
    let known: Vec<&str> = GROUPS.iter().flat_map(|g| g.names).copied().collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Error::caller(format!(
            "--scenario {name}: there are {}",
            known.join(", ")
        )));
    }
    let asked = |group: &&Group| {
        names.is_empty() || group.names.iter().any(|n| names.iter().any(|m| m == n))
    };
    Ok(GROUPS.iter().filter(asked).collect())
}

struct Bench<'a> {
    env: &'a Env,
    args: &'a BenchCacheArgs,
    options: ModelOptions,
    server: Option<Server>,
    /// Its name, once it was loaded.
    model: String,
    words: Option<Words>,
    /// The engine that has room for all, kept from group to group.
    here: Option<Here>,
}

impl Bench<'_> {
    /// The rows of a group on both sides; none, with a note, where the context is too short for it.
    fn measure(&mut self, group: &Group) -> Result<Vec<Pair>> {
        let prompt = self.args.prompt_tokens as usize;
        let mut folder = None;
        let room = (group.room)(prompt);
        let mut here = match room {
            Room::All => match self.here.take() {
                Some(here) => here,
                None => self.start(room, KvDisk::Off)?,
            },
            Room::Conversations { .. } => self.start(room, KvDisk::Off)?,
            Room::Disk => {
                let path = folder.insert(self.folder()?).path().to_owned();
                let bytes_max = BENCH_DISK_BYTES;
                self.start(room, KvDisk::Folder { path, bytes_max })?
            }
        };
        let (need, have) = (
            (group.context)(prompt),
            here.model()?.engine.context().tokens,
        );
        let pairs = match need <= have {
            true => self.rounds(group, &mut here)?,
            false => {
                let names = group.names.join(", ");
                note(&format!(
                    "note: {names} left out: needs a context of {need} tokens, have {have}; lower \
                     --prompt-tokens (256 at least) or raise --context"
                ));
                Vec::new()
            }
        };
        if room == Room::All {
            self.here = Some(here);
        }
        Ok(pairs)
    }

    /// Keys and values are told to outlive the engine here. It is removed when dropped.
    fn folder(&self) -> Result<TempDir> {
        let parent = self.env.cache_dir()?;
        let made = std::fs::create_dir_all(&parent).and_then(|()| {
            tempfile::Builder::new()
                .prefix("bench-")
                .tempdir_in(&parent)
        });
        made.map_err(|e| {
            Error::device(format!(
                "a folder for the scenario restart in {}: {e}",
                parent.display()
            ))
        })
    }

    fn start(&mut self, room: Room, kv_disk: KvDisk) -> Result<Here> {
        // Two engines at once would share the machine.
        self.here = None;
        let prompt = self.args.prompt_tokens as usize;
        let mut options = ModelOptions {
            kv_disk,
            ..self.options.clone()
        };
        // Where a person said how much there is, not everything need be there.
        let keeps_all = !matches!(room, Room::Conversations { .. }) && options.kv_room.is_none();
        match room {
            Room::All | Room::Disk => {
                let all = KvRoom::Tokens(scenarios::resident_tokens(prompt));
                options.kv_room.get_or_insert(all);
            }
            Room::Conversations { number, tokens } => {
                options.kv_room = Some(KvRoom::Conversations { number, tokens });
                options.context_tokens = None;
            }
        }
        let first = self.words.is_none();
        let env = self.env.clone();
        let load = move || {
            let loaded = match first {
                true => loading::load(&env, &options, false)?,
                false => {
                    let progress = StderrProgress::new(env.terminals.stderr);
                    load::load(&env, &options, Arc::new(progress))?
                }
            };
            Ok(loaded.model)
        };
        let here = Here::start(Box::new(load), keeps_all)?;
        if first {
            let model = here.model()?;
            self.words = Some(Words::of(model.format.tokenizer().clone())?);
            self.model = model.name.clone();
        }
        Ok(here)
    }

    /// The sides take turns, so that a slow moment hits both, and are sent the same.
    fn rounds(&mut self, group: &Group, here: &mut Here) -> Result<Vec<Pair>> {
        let prompt = self.args.prompt_tokens as usize;
        let no_words = || Error::bug("no words to measure with");
        let words = self.words.as_mut().ok_or_else(no_words)?;
        let (mut ours, mut theirs) = (Rounds::default(), Rounds::default());
        for _ in 0..self.args.rounds {
            let mut for_server = words.clone();
            ours.add((group.run)(here, words, prompt)?);
            if let Some(server) = &self.server {
                let mut there = There { server };
                theirs.add((group.run)(&mut there, &mut for_server, prompt)?);
            }
        }
        let mut pairs = Vec::new();
        for name in group.names {
            if let Some(ours) = ours.median(name) {
                let theirs = theirs.median(name);
                pairs.push(Pair { ours, theirs });
            }
        }
        Ok(pairs)
    }
}

/// Rows by scenario.
#[derive(Default)]
struct Rounds(HashMap<&'static str, Vec<Row>>);

impl Rounds {
    fn add(&mut self, rows: Vec<Row>) {
        for row in rows {
            self.0.entry(row.scenario).or_default().push(row);
        }
    }

    fn median(&mut self, scenario: &str) -> Option<Row> {
        Row::median(self.0.remove(scenario)?)
    }
}
