//! `ostler cache`: the keys and values that are kept on disk or in a server's memory, by model and by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::Layer;
use engine::disk::{self, KeptFile};
use indicatif::HumanDuration;

use super::Exit;
use super::args::{CacheArgs, CacheCommand, CacheFilter, CacheShowArgs};
use super::models::columns;
use super::output::{Out, note};
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::limits::CACHE_PIECES_SHOWN;
use crate::load::disk_folder;
use crate::peer;
use crate::server::cache::Held;
use crate::store::{bytes, nearest};

pub fn run(env: &Env, args: &CacheArgs, out: &mut Out) -> Result<Exit> {
    match &args.command {
        None => show(env, &args.show, out),
        Some(CacheCommand::Clear(filter)) => clear(env, filter, out),
    }
}

fn show(env: &Env, args: &CacheShowArgs, out: &mut Out) -> Result<Exit> {
    if let Some(url) = &args.server {
        return show_server(env, url, args.json, out);
    }
    let files = kept(env, &args.filter)?;
    if args.json {
        out.line(&serde_json::to_string_pretty(&files).expect("plain JSON"))?;
        return Ok(Exit::Done);
    }
    if files.is_empty() {
        let folder = disk_folder(env)?;
        note(&format!("nothing is kept in {}", folder.display()));
        return Ok(Exit::Done);
    }
    let mut rows = vec![heading("FILES")];
    for (model, files) in by_model(&files) {
        let model = model.unwrap_or(UNFIT);
        rows.extend(model_rows(model, Sum::of(&files), by_piece(&files)));
    }
    columns(&rows).iter().try_for_each(|line| out.line(line))?;
    let folder = disk_folder(env)?;
    note(&format!("in {}", folder.display()));
    Ok(Exit::Done)
}

/// What a server has in memory.
fn show_server(env: &Env, url: &str, json: bool, out: &mut Out) -> Result<Exit> {
    let url = format!("{}/cache", peer::root("--server", url)?);
    let failed = |why: &dyn std::fmt::Display| {
        Error::device(format!("{url}: {why}; is `ostler serve` running there?"))
    };
    let mut request = peer::agent().get(&url);
    if let Some(key) = &env.api_key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let mut answer = request.call().map_err(|e| failed(&e))?;
    peer::check_status(&url, &mut answer)?;
    let held: Held = answer.body_mut().read_json().map_err(|e| failed(&e))?;
    if json {
        out.line(&serde_json::to_string_pretty(&held).expect("plain JSON"))?;
        return Ok(Exit::Done);
    }
    let now = clock::now_s();
    let mut pieces: BTreeMap<_, Sum> = BTreeMap::new();
    for piece in &held.pieces {
        let part = Sum {
            parts: 1,
            tokens: piece.tokens,
            bytes: piece.bytes,
            used: now.saturating_sub(piece.unused_seconds as u64),
            hits: piece.hits,
        };
        add(&mut pieces, piece.layer, &piece.name, part);
    }
    let mut rows = vec![heading("PIECES")];
    let all = Sum::total(pieces.values().copied());
    rows.extend(model_rows(&held.model, all, pieces));
    columns(&rows).iter().try_for_each(|line| out.line(line))?;
    note(&format!(
        "in memory, replies included: {} of {}",
        bytes(held.bytes_used),
        bytes(held.bytes_total)
    ));
    Ok(Exit::Done)
}

fn heading(parts: &str) -> [String; 6] {
    ["MODEL", parts, "TOKENS", "SIZE", "USED", "HITS"].map(str::to_owned)
}

/// A model and its pieces, the largest first; of the small ones there may be hundreds.
fn model_rows(model: &str, all: Sum, pieces: BTreeMap<(Layer, &str), Sum>) -> Vec<[String; 6]> {
    let now = clock::now_s();
    let mut rows = vec![all.row(model, now)];
    let mut pieces: Vec<_> = pieces.into_iter().collect();
    pieces.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let rest = pieces.split_off(pieces.len().min(CACHE_PIECES_SHOWN));
    for ((layer, name), sum) in pieces {
        rows.push(sum.row(&format!("  {}: {name}", layer.name()), now));
    }
    if !rest.is_empty() {
        let rest_sum = Sum::total(rest.iter().map(|(_, sum)| *sum));
        rows.push(rest_sum.row(&format!("  {} smaller pieces", rest.len()), now));
    }
    rows
}

fn clear(env: &Env, filter: &CacheFilter, out: &mut Out) -> Result<Exit> {
    let files = kept(env, filter)?;
    let folder = disk_folder(env)?;
    let names = files.iter().map(|file| file.name.as_str());
    disk::remove(&folder, names).map_err(|error| {
        Error::device(format!(
            "cannot remove what is kept in {}: {error}",
            folder.display()
        ))
    })?;
    let size: u64 = files.iter().map(|file| file.bytes).sum();
    out.line(&format!("removed {} files ({})", files.len(), bytes(size)))?;
    Ok(Exit::Done)
}

/// The files that `filter` names.
fn kept(env: &Env, filter: &CacheFilter) -> Result<Vec<KeptFile>> {
    let folder = disk_folder(env)?;
    let mut files = disk::survey(&folder)
        .map_err(|error| Error::device(format!("cannot list {}: {error}", folder.display())))?;
    if let Some(wanted) = &filter.model {
        let known: BTreeSet<&str> = files.iter().filter_map(|f| f.model.as_deref()).collect();
        if !known.contains(wanted.as_str()) {
            return Err(no_such_model(wanted, &Vec::from_iter(known)));
        }
        files.retain(|file| file.model.as_ref() == Some(wanted));
    }
    if let Some(seconds) = filter.older_than {
        let now = clock::now_s();
        files.retain(|file| file.used.saturating_add(seconds) <= now);
    }
    Ok(files)
}

fn no_such_model(wanted: &str, known: &[&str]) -> Error {
    let near = nearest(wanted, known.iter().copied());
    let hint = match (near.first(), known) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => "nothing is kept at all".to_owned(),
        (None, known) => format!("have {}", known.join(", ")),
    };
    Error::caller(format!("nothing is kept of a model {wanted}; {hint}"))
}

/// What files are called whose header cannot be read, and those that were never finished.
const UNFIT: &str = "(of no use)";

fn by_model(files: &[KeptFile]) -> BTreeMap<Option<&str>, Vec<&KeptFile>> {
    let mut models: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for file in files {
        let model = file.model.as_deref().filter(|_| file.unfit.is_none());
        models.entry(model).or_default().push(file);
    }
    models
}

fn by_piece<'a>(files: &[&'a KeptFile]) -> BTreeMap<(Layer, &'a str), Sum> {
    let mut pieces: BTreeMap<_, Sum> = BTreeMap::new();
    for file in files {
        let tokens: usize = file.pieces.iter().map(|piece| piece.tokens).sum();
        for piece in &file.pieces {
            let part = Sum {
                parts: 1,
                tokens: piece.tokens,
                bytes: file.bytes * piece.tokens as u64 / tokens.max(1) as u64,
                used: file.used,
                hits: file.hits,
            };
            add(&mut pieces, piece.layer, &piece.name, part);
        }
    }
    pieces
}

fn add<'a>(pieces: &mut BTreeMap<(Layer, &'a str), Sum>, layer: Layer, name: &'a str, part: Sum) {
    let sum = pieces.entry((layer, name)).or_default();
    *sum = sum.plus(&part);
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    /// Files, or pieces in memory.
    parts: usize,
    tokens: usize,
    bytes: u64,
    /// The last time: seconds since 1970.
    used: u64,
    /// Of the file that has most: a call that uses several files counts in each.
    hits: u64,
}

impl Sum {
    fn of(files: &[&KeptFile]) -> Sum {
        let sums = files.iter().map(|file| Sum {
            parts: 1,
            tokens: file.tokens,
            bytes: file.bytes,
            used: file.used,
            hits: file.hits,
        });
        Sum::total(sums)
    }

    fn total(sums: impl Iterator<Item = Sum>) -> Sum {
        sums.fold(Sum::default(), |all, sum| all.plus(&sum))
    }

    fn plus(self, other: &Sum) -> Sum {
        Sum {
            parts: self.parts + other.parts,
            tokens: self.tokens + other.tokens,
            bytes: self.bytes + other.bytes,
            used: self.used.max(other.used),
            hits: self.hits.max(other.hits),
        }
    }

    fn row(&self, name: &str, now: u64) -> [String; 6] {
        let ago = Duration::from_secs(now.saturating_sub(self.used));
        [
            name.to_owned(),
            self.parts.to_string(),
            self.tokens.to_string(),
            bytes(self.bytes),
            format!("{} ago", HumanDuration(ago)),
            self.hits.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::disk::AboutPiece;

    fn file(model: Option<&str>, pieces: &[(&str, usize)]) -> KeptFile {
        let piece = |(name, tokens): &(&str, usize)| AboutPiece {
            name: (*name).to_owned(),
            layer: Layer::History,
            tokens: *tokens,
        };
        KeptFile {
            name: "m/f.kv".into(),
            model: model.map(str::to_owned),
            bytes: 1000,
            tokens: pieces.iter().map(|p| p.1).sum(),
            pieces: pieces.iter().map(piece).collect(),
            created: 5,
            used: 7,
            hits: 2,
            unfit: None,
        }
    }

    #[test]
    fn a_files_bytes_are_shared_out_among_its_pieces() {
        let files = [
            file(Some("a"), &[("rules", 30), ("note", 10)]),
            file(Some("a"), &[("note", 20)]),
            file(None, &[]),
        ];
        let models = by_model(&files);
        assert_eq!(models.len(), 2);
        let a = &models[&Some("a")];
        let pieces = by_piece(a);
        assert_eq!(pieces[&(Layer::History, "rules")].bytes, 750);
        let note = pieces[&(Layer::History, "note")];
        assert_eq!((note.bytes, note.tokens, note.parts), (1250, 30, 2));
        assert_eq!(Sum::of(a).bytes, 2000);
        assert_eq!(Sum::of(a).row("a", 127)[4], "2 minutes ago");
    }

    #[test]
    fn an_unknown_model_is_named_with_what_is_there() {
        let error = no_such_model("smolm2", &["smollm2", "qwen"]).to_string();
        assert!(error.contains("did you mean smollm2"), "{error}");
        assert!(
            no_such_model("x", &[])
                .to_string()
                .contains("nothing is kept at all")
        );
    }
}
