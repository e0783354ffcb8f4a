//! From a model's name to a model that is ready: found or fetched, loaded, its engine started. Every
//! command, the agent and the server load models here and nowhere else.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use engine::{ContextModel, ContextOptions, DiskOptions, Engine, EngineConfig};
use models::config::Config;
use models::device::Device;
use models::dialect::ToolDialect;
use models::load::{LoadOptions, LoadedModel, Progress as Loading};
use models::template::ChatTemplate;
use models::tokenizer::Tokenizer;

use crate::chat::{ChatFormat, ChatModel};
use crate::env::Env;
use crate::error::Result;
use crate::limits::{KV_DISK_BYTES, KV_DISK_SHARE_PERCENT, LOADING_SHOWN_BYTES};
use crate::store::{Progress, Store};

pub use models::KvType;

/// What a person may choose of a model and of the machine.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// A name, a path, or a hub model; see [`crate::store`].
    pub model: String,
    pub device: Device,
    pub kv_type: KvType,
    /// Tokens of one sequence. `None`: what the model was trained for, as far as memory allows.
    pub context_tokens: Option<usize>,
    /// Memory for keys and values, for all sequences and the cache. `None`: a share of what is free.
    pub kv_room: Option<KvRoom>,
    pub kv_disk: KvDisk,
}

/// Whether keys and values outlive the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvDisk {
    /// In memory only.
    Off,
    /// In the cache's folder, at most so many bytes; `None`: a share of what is free.
    Shared { bytes_max: Option<u64> },
    /// In a folder of its own.
    Folder { path: PathBuf, bytes_max: u64 },
}

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRoom {
    Bytes(u64),
    /// As much as it takes to find so many tokens again.
    Tokens(usize),
    /// As much as it takes to go on with so many conversations of so many tokens each, and no more.
    Conversations {
        number: usize,
        tokens: usize,
    },
}

impl ModelOptions {
    pub fn new(model: impl Into<String>) -> ModelOptions {
        ModelOptions {
            model: model.into(),
            device: Device::cpu(),
            kv_type: KvType::F16,
            context_tokens: None,
            kv_room: None,
            kv_disk: KvDisk::Off,
        }
    }
}

/// Ready to answer.
pub struct Loaded {
    pub model: Arc<ChatModel>,
    pub config: Config,
    /// What is odd about the model and does no harm, for people who ask.
    pub warnings: Vec<String>,
    /// The model has no chat template of its own, so ChatML is used and the answers may show it.
    pub without_template: bool,
}

/// Finds the model (fetching it if need be), loads it and starts its engine. `progress` hears of both.
pub fn load(env: &Env, options: &ModelOptions, progress: Arc<dyn Progress>) -> Result<Loaded> {
    let found = Store::open(env, Arc::clone(&progress))?.resolve(&options.model)?;
    let digests = env.cache_dir()?.join("digests.json");
    let disk = disk_options(env, options, &found.name)?;
    let from = ModelFile {
        path: &found.path,
        name: found.name,
        digest_cache: Some(&digests),
        disk,
    };
    load_file(from, options, &*progress)
}

/// Where keys and values are kept on disk.
pub fn disk_folder(env: &Env) -> Result<PathBuf> {
    Ok(env.cache_dir()?.join("kv"))
}

fn disk_options(env: &Env, options: &ModelOptions, name: &str) -> Result<Option<DiskOptions>> {
    let (folder, bytes_max) = match &options.kv_disk {
        KvDisk::Off => return Ok(None),
        KvDisk::Folder { path, bytes_max } => (path.clone(), *bytes_max),
        KvDisk::Shared { bytes_max } => {
            let folder = disk_folder(env)?;
            let bytes_max = bytes_max.unwrap_or_else(|| disk_share(&folder));
            (folder, bytes_max)
        }
    };
    Ok(Some(DiskOptions {
        folder,
        bytes_max,
        model: name.to_owned(),
    }))
}

/// A share of what the file system has free, what is kept already counted as free.
fn disk_share(folder: &Path) -> u64 {
    let there = folder.ancestors().find(|path| path.exists());
    let free = there.and_then(|path| rustix::fs::statvfs(path).ok());
    let free = free.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let share = |bytes: u64| KV_DISK_BYTES.min(bytes / 100 * KV_DISK_SHARE_PERCENT);
    match share(free) {
        KV_DISK_BYTES => KV_DISK_BYTES,
        _ => share(free.saturating_add(engine::disk::bytes_in(folder))),
    }
}

/// A model's file, and what goes with it.
pub struct ModelFile<'a> {
    pub path: &'a Path,
    /// What figures and APIs call it.
    pub name: String,
    /// Remembers the weights' digests, so that they are computed once.
    pub digest_cache: Option<&'a Path>,
    pub disk: Option<DiskOptions>,
}

/// Loads a file and starts the engine.
pub fn load_file(
    file: ModelFile<'_>,
    options: &ModelOptions,
    progress: &dyn Progress,
) -> Result<Loaded> {
    let ModelFile {
        path,
        name,
        digest_cache,
        disk,
    } = file;
    let loading = LoadOptions {
        device: options.device,
        kv_type: options.kv_type,
        digest_cache: digest_cache.map(Path::to_owned),
    };
    let (label, begun) = (format!("loading {name}"), Once::new());
    let loaded = models::load(path, &loading, &|step| match step {
        Loading::Weights {
            done_bytes,
            total_bytes,
        } if total_bytes >= LOADING_SHOWN_BYTES => {
            begun.call_once(|| progress.begin(&label, Some(total_bytes), 0));
            progress.advance_to(done_bytes);
        }
        Loading::Opened { .. } | Loading::Weights { .. } | Loading::Ready => {}
    });
    progress.end();
    start(loaded?, name, disk, options)
}

/// Starts the engine of a model whose weights are loaded.
pub fn start(
    loaded: LoadedModel,
    name: String,
    disk: Option<DiskOptions>,
    options: &ModelOptions,
) -> Result<Loaded> {
    let mut warnings = loaded.warnings;
    warnings.extend(loaded.tokenizer.warnings().iter().cloned());
    let tokenizer = Arc::new(loaded.tokenizer);
    let template = template(loaded.template.as_deref(), &tokenizer)?;
    let without_template = loaded.template.is_none();
    let dialect = ToolDialect::detect(template.source());
    let config = EngineConfig::default();
    let sizes = ContextModel::new(&*loaded.forward, config.chunk_tokens);
    let window_ends = match options.kv_room {
        Some(KvRoom::Conversations { number, .. }) => number,
        _ => 0,
    };
    let context = ContextOptions {
        free_bytes: options.device.available_bytes(),
        context_tokens: options.context_tokens,
        kv_bytes: options.kv_room.map(|room| match room {
            KvRoom::Bytes(bytes) => bytes,
            KvRoom::Tokens(tokens) => sizes.bytes_to_find(tokens),
            KvRoom::Conversations { number, tokens } => {
                sizes.with_ends(number).bytes_of_tokens(number * tokens)
            }
        }),
        window_ends,
    };
    let engine = EngineConfig {
        context,
        disk,
        ..config
    };
    let engine = Engine::start(loaded.forward, tokenizer.clone(), engine)?;
    let format = ChatFormat::new(tokenizer, template);
    let model = Arc::new(ChatModel {
        name,
        engine,
        format,
        dialect,
    });
    Ok(Loaded {
        model,
        config: loaded.config,
        warnings,
        without_template,
    })
}

/// The model's own template, or ChatML where it has none.
fn template(source: Option<&str>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let text = |id: Option<u32>| {
        let literal = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
        id.map(literal).unwrap_or_default()
    };
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    Ok(match source {
        Some(source) => ChatTemplate::new(source, &bos, &eos)?,
        None => ChatTemplate::fallback(&bos, &eos)?,
    })
}
