//! From a checked file to a decoder that runs: memory compared, weights brought in.
//!
//! Invariant: nothing is allocated before there is known to be room for all of it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kernels::{KvType, MatrixShape, ThreadPool, Weight};

use super::cpu::{CpuDecoder, CpuParts};
use super::embedding::Embedding;
use super::kernel_error;
use super::kv::KvShapes;
use super::manifest::{self, Entry, Manifest};
use super::rope::Rotations;
use super::tensor::{TensorDecoder, TensorWeights};
use super::weights::{self, MakeWeights};
use crate::device::Device;
use crate::forward::Forward;
use crate::gguf::{Gguf, WeightsDigest};
use crate::identity::{Executor, IdentityParts, ModelIdentity};
use crate::limits::MEMORY_RESERVE_BYTES;
use crate::{Config, Error, Result};

/// What a decoder is loaded from, and where to.
pub(crate) struct LoadParts<'a> {
    pub gguf: &'a Gguf,
    pub config: &'a Config,
    pub device: Device,
    /// Run on candle's tensors even where our own kernels could: how the tensor executor is tested
    /// on a machine without a GPU.
    pub force_tensor: bool,
    pub kv_type: KvType,
    pub digest_cache: Option<&'a Path>,
    /// Called with (bytes done, bytes in all), from any thread.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// Loads a decoder.
pub(crate) fn load(parts: &LoadParts<'_>) -> Result<Box<dyn Forward>> {
    let manifest = Manifest::new(parts.config, parts.gguf)?;
    check_memory(&manifest, parts.device)?;
    match parts.device {
        Device::Cpu { threads } if !parts.force_tensor => load_cpu(parts, &manifest, threads),
        _ => load_tensor(parts, &manifest),
    }
}

fn check_memory(manifest: &Manifest<'_>, device: Device) -> Result<()> {
    let Some(have) = device.available_bytes() else {
        return Ok(());
    };
    let need = manifest.weight_bytes() as u64 + MEMORY_RESERVE_BYTES;
    if need <= have {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Error::device(format!(
        "not enough memory on {device}: the weights need {} MiB, free are {} MiB; close other \
         programs, or use a smaller model or one with fewer bits",
        mib(need),
        mib(have)
    )))
}

fn identity(parts: &LoadParts<'_>, digest: WeightsDigest, executor: Executor) -> ModelIdentity {
    ModelIdentity::new(&IdentityParts {
        weights: digest,
        config: parts.config,
        kv_type: parts.kv_type,
        executor,
    })
}

fn load_cpu(
    parts: &LoadParts<'_>,
    manifest: &Manifest<'_>,
    threads: usize,
) -> Result<Box<dyn Forward>> {
    let pool = ThreadPool::new(threads).map_err(kernel_error)?;
    let Bulk { digest, matrices } = Bulk::read(parts, manifest, &pool)?;
    let mut made = CpuWeights {
        gguf: parts.gguf,
        matrices,
    };
    let weights = weights::read(parts.config, &mut made)?;
    // The kernels keep a copy in their own order, so the file's pages have served.
    parts.gguf.release_pages();
    let embedding = if parts.config.tied_output {
        Embedding::Output(weights.output.clone())
    } else {
        mapped_embedding(parts)?
    };
    Ok(Box::new(CpuDecoder::new(CpuParts {
        config: parts.config.clone(),
        identity: identity(parts, digest, Executor::Kernels(kernels::kernel_path())),
        kv: KvShapes::new(parts.config, parts.kv_type),
        weights,
        embedding,
        pool,
    })?))
}

fn load_tensor(parts: &LoadParts<'_>, manifest: &Manifest<'_>) -> Result<Box<dyn Forward>> {
    if parts.kv_type == KvType::Q8_0 {
        return Err(Error::device(format!(
            "keys and values in q8_0 need our own kernels, which run on cpu; the device is {}; use f16 or f32",
            parts.device
        )));
    }
    let device = parts.device.candle()?;
    let count = Count::new(parts, manifest);
    let arrived = |bytes| count.add(bytes);
    let mut make = TensorWeights {
        gguf: parts.gguf,
        device: &device,
        arrived: &arrived,
    };
    let weights = weights::read(parts.config, &mut make)?;
    let digest = WeightsDigest::of(parts.gguf, parts.digest_cache)?;
    parts.gguf.release_pages();
    Ok(Box::new(TensorDecoder {
        config: parts.config.clone(),
        identity: identity(parts, digest, Executor::Tensor(parts.device)),
        kv: KvShapes::new(parts.config, parts.kv_type),
        weights,
        embedding: mapped_embedding(parts)?,
        rotations: Rotations::new(parts.config)?,
        device,
    }))
}

fn mapped_embedding(parts: &LoadParts<'_>) -> Result<Embedding> {
    let shape = weights::embedding_shape(parts.config);
    let (ty, bytes) = manifest::matrix(parts.gguf, weights::EMBEDDING)?;
    Ok(Embedding::Mapped { bytes, ty, shape })
}

/// Bytes brought in so far.
struct Count<'a> {
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl<'a> Count<'a> {
    fn new(parts: &LoadParts<'a>, manifest: &Manifest<'_>) -> Self {
        let total = manifest
            .matrices
            .iter()
            .map(|entry| entry.bytes as u64)
            .sum();
        Self {
            done: AtomicU64::new(0),
            total,
            progress: parts.progress,
        }
    }

    fn add(&self, bytes: usize) {
        let bytes = bytes as u64;
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        (self.progress)(before + bytes, self.total);
    }
}

/// All matrices and the digest of the file, made by all threads at once.
struct Bulk {
    digest: WeightsDigest,
    matrices: HashMap<String, Arc<Weight>>,
}

impl Bulk {
    fn read(parts: &LoadParts<'_>, manifest: &Manifest<'_>, pool: &ThreadPool) -> Result<Self> {
        let count = Count::new(parts, manifest);
        let entries = &manifest.matrices;
        let digest = OnceLock::new();
        let made: Vec<_> = entries.iter().map(|_| OnceLock::new()).collect();
        // The digest is the longest unit by far, so it comes first.
        pool.for_units(
            1 + entries.len(),
            &|unit, _worker| match unit.checked_sub(1) {
                None => drop(digest.set(WeightsDigest::of(parts.gguf, parts.digest_cache))),
                Some(unit) => {
                    drop(made[unit].set(read_matrix(parts.gguf, &entries[unit])));
                    count.add(entries[unit].bytes);
                }
            },
        );
        let missing = || Error::bug("a weight was not read");
        let matrices = entries.iter().zip(made).map(|(entry, made)| {
            let weight = made.into_inner().ok_or_else(missing)??;
            Ok((entry.name.clone(), Arc::new(weight)))
        });
        Ok(Self {
            matrices: matrices.collect::<Result<_>>()?,
            digest: digest.into_inner().ok_or_else(missing)??,
        })
    }
}

fn read_matrix(gguf: &Gguf, entry: &Entry) -> Result<Weight> {
    let (ty, bytes) = manifest::matrix(gguf, &entry.name)?;
    let made = Weight::new(bytes, ty, entry.shape).map_err(kernel_error);
    made.map_err(|e| {
        e.within(&format!("tensor \"{}\"", entry.name))
            .in_file(gguf.path())
    })
}

/// Hands out the matrices that [`Bulk`] made.
struct CpuWeights<'a> {
    gguf: &'a Gguf,
    matrices: HashMap<String, Arc<Weight>>,
}

impl MakeWeights for CpuWeights<'_> {
    type Matrix = Arc<Weight>;
    type Vector = Vec<f32>;

    fn matrix(&mut self, name: &str, _shape: MatrixShape) -> Result<Arc<Weight>> {
        let made = self.matrices.get(name).cloned();
        made.ok_or_else(|| Error::bug(format!("tensor \"{name}\" was not in the manifest")))
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        manifest::vector(self.gguf, name, length)
    }
}
