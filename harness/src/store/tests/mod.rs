//! The store against a hub, a pip and a disk that misbehave in every way we have heard of.

mod small_hub;

mod hub;
mod package;

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::disk::PartFile;
use super::*;

/// A store in `folder` that talks to `endpoint`.
fn store(folder: &Path, endpoint: &str) -> Store {
    let env = Env {
        home: Some(folder.join("home")),
        ostler_home: Some(folder.join("ostler")),
        hf_home: Some(folder.join("hf")),
        hf_endpoint: Some(endpoint.to_owned()),
        ..Env::default()
    };
    open(&env, Arc::new(RealDisk))
}

fn open(env: &Env, disk: Arc<dyn Disk>) -> Store {
    let mut store = Store::open(env, Arc::new(Silent)).unwrap();
    let options = HubOptions {
        home: env.hub_dir().unwrap(),
        endpoint: env.hf_endpoint.clone(),
        token: env.hf_token.clone(),
        offline: env.hf_hub_offline,
        retry_wait: Duration::ZERO,
    };
    store.hub = Hub::new(options, Arc::clone(&disk), Arc::new(Silent)).unwrap();
    store.disk = disk;
    store
}

/// Bytes that look like nothing else.
fn some_bytes(count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// A disk with so many bytes left.
struct TinyDisk {
    left: Arc<AtomicU64>,
}

struct TinyFile {
    inner: Box<dyn PartFile>,
    left: Arc<AtomicU64>,
}

impl Disk for TinyDisk {
    fn open_part(&self, path: &Path, keep_bytes: u64) -> io::Result<Box<dyn PartFile>> {
        Ok(Box::new(TinyFile {
            inner: RealDisk.open_part(path, keep_bytes)?,
            left: Arc::clone(&self.left),
        }))
    }
}

impl Write for TinyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::SeqCst) as usize;
        if left == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.inner.write(&bytes[..bytes.len().min(left)])?;
        self.left.fetch_sub(written as u64, Ordering::SeqCst);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl PartFile for TinyFile {
    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn a_local_file_is_used_where_it_lies_and_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), "http://127.0.0.1:1");
    let file = folder.path().join("mine-Q4_0.gguf");
    fs::write(&file, b"mine").unwrap();
    for found in [
        store.resolve(file.to_str().unwrap()).unwrap(),
        store.pull(file.to_str().unwrap()).unwrap(),
    ] {
        assert_eq!(
            (found.path, found.origin, found.name.as_str()),
            (file.clone(), Origin::Local, "mine-Q4_0")
        );
    }
    let error = store.remove(file.to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains("your own file"), "{error}");
    assert!(file.exists());
    assert_eq!(store.list(), []);
    let copies = fs::read_dir(folder.path().join("ostler"))
        .into_iter()
        .flatten()
        .count();
    assert_eq!(copies, 0, "nothing was copied into the store");
}

#[test]
fn looking_for_a_model_fetches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), "http://127.0.0.1:1");
    for name in ["smollm2", "org/repo"] {
        let error = store.find(name).unwrap_err();
        assert!(
            error.to_string().contains(&format!("ostler pull {name}")),
            "{error}"
        );
    }
    assert!(!folder.path().join("ostler").exists());
}
