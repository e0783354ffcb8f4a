//! A model file, loaded: what runs it, and what turns text into its tokens.

use std::path::{Path, PathBuf};

use kernels::KvType;

use crate::Result;
use crate::config::Config;
use crate::decoder::{self, LoadParts};
use crate::device::Device;
use crate::forward::Forward;
use crate::gguf::Gguf;
use crate::tokenizer::Tokenizer;

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub device: Device,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// A file that remembers the digests of weights, so that they are hashed once. Without it they
    /// are hashed at each load.
    pub digest_cache: Option<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: Device::cpu(),
            kv_type: KvType::F16,
            digest_cache: None,
        }
    }
}

/// How far loading is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The header was read and makes sense.
    Opened { name: String, parameters: u64 },
    /// Weights are being brought in.
    Weights { done_bytes: u64, total_bytes: u64 },
    /// The model can be run.
    Ready,
}

/// A model without its text side.
pub struct LoadedForward {
    pub forward: Box<dyn Forward>,
    pub config: Config,
    pub warnings: Vec<String>,
}

/// A model that can be run and talked to.
pub struct LoadedModel {
    pub forward: Box<dyn Forward>,
    pub tokenizer: Tokenizer,
    /// The chat template of the file, as it stands there.
    pub template: Option<String>,
    pub config: Config,
    pub warnings: Vec<String>,
}

/// Loads a GGUF model whole: what runs it, its tokenizer, its template. `progress` is called from
/// any thread.
///
/// # Errors
/// As [`load_forward`]; and blames the input for a tokenizer that makes no sense. The text side is
/// read first: it is small, and a fault there is told before the weights are brought in.
pub fn load(
    path: &Path,
    options: &LoadOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<LoadedModel> {
    let gguf = Gguf::open(path)?;
    let config = Config::from_gguf(&gguf)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let template: Option<&str> = gguf.metadata().optional("tokenizer.chat_template")?;
    let template = template.map(str::to_owned);
    let forward = forward_of(&gguf, &config, options, progress)?;
    Ok(LoadedModel {
        forward,
        tokenizer,
        template,
        warnings: [gguf.warnings(), &config.warnings].concat(),
        config,
    })
}

/// Loads the weights of a GGUF model. `progress` is called from any thread.
///
/// # Errors
/// Blames the caller for a path that is no file, the input for a file that cannot be run, the
/// device for memory or a GPU that is not there.
pub fn load_forward(
    path: &Path,
    options: &LoadOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<LoadedForward> {
    let gguf = Gguf::open(path)?;
    let config = Config::from_gguf(&gguf)?;
    let forward = forward_of(&gguf, &config, options, progress)?;
    let warnings = [gguf.warnings(), &config.warnings].concat();
    Ok(LoadedForward {
        forward,
        config,
        warnings,
    })
}

fn forward_of(
    gguf: &Gguf,
    config: &Config,
    options: &LoadOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Box<dyn Forward>> {
    progress(Progress::Opened {
        name: config.name.clone(),
        parameters: config.parameters,
    });
    let forward = decoder::load(&LoadParts {
        gguf,
        config,
        device: options.device,
        force_tensor: false,
        kv_type: options.kv_type,
        digest_cache: options.digest_cache.as_deref(),
        progress: &|done_bytes, total_bytes| {
            progress(Progress::Weights {
                done_bytes,
                total_bytes,
            });
        },
    });
    let forward = forward.map_err(|error| error.in_file(gguf.path()))?;
    progress(Progress::Ready);
    Ok(forward)
}
