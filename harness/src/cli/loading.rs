//! From the options of a command to a model that is ready, told on stderr.

use std::sync::Arc;

use super::args::{KvTypeArg, ModelArgs};
use super::output::note;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::load::{self, KvDisk, KvRoom, KvType, Loaded, ModelOptions};
use crate::store::StderrProgress;

pub fn options(args: &ModelArgs) -> Result<ModelOptions> {
    let device = match (args.device.as_str(), args.threads) {
        (device, None) => device.to_owned(),
        ("cpu", Some(threads)) => format!("cpu:{threads}"),
        (device, Some(_)) => {
            return Err(Error::caller(format!(
                "--threads is for --device cpu; --device is {device}"
            )));
        }
    };
    Ok(ModelOptions {
        model: args.model.clone(),
        device: device.parse()?,
        kv_type: match args.kv_type {
            KvTypeArg::F16 => KvType::F16,
            KvTypeArg::F32 => KvType::F32,
            KvTypeArg::Q8_0 => KvType::Q8_0,
        },
        context_tokens: args.context.map(|tokens| tokens as usize),
        kv_room: args.kv_memory.map(KvRoom::Bytes),
        kv_disk: match args.kv_disk {
            Some(0) => KvDisk::Off,
            bytes_max => KvDisk::Shared { bytes_max },
        },
    })
}

/// Loads, then says what was loaded and what context it really has; `verbose` adds what is odd about the file.
pub fn load(env: &Env, options: &ModelOptions, verbose: bool) -> Result<Loaded> {
    let loaded = load::load(
        env,
        options,
        Arc::new(StderrProgress::new(env.terminals.stderr)),
    )?;
    for warning in loaded.warnings.iter().filter(|_| verbose) {
        note(&format!("note: {warning}"));
    }
    if loaded.without_template {
        note("note: the model has no chat template; ChatML is used, which it may not know");
    }
    let context = loaded.model.engine.context();
    let kept = match loaded.model.engine.disk_bytes_max() {
        Some(bytes) => format!(", {} MiB more on disk", bytes >> 20),
        None => String::new(),
    };
    note(&format!(
        "{} on {}: context {} tokens ({}), {} MiB for keys and values{kept}",
        loaded.model.name,
        options.device,
        context.tokens,
        context.why,
        context.bytes >> 20
    ));
    Ok(loaded)
}
