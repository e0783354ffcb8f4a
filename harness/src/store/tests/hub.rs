//! The hub client: redirects, resuming, damage, refusals, full disks.

use sha2::{Digest, Sha256};

use super::small_hub::{Behaviour, COMMIT, SmallHub};
use super::*;
use crate::store::disk::hex;
use engine::Blame;

const FILE: &str = "m-Q4_K_M.gguf";
const NAME: &str = "org/repo/m-Q4_K_M.gguf";

/// Large enough for several chunks of the copy loop.
fn model() -> Vec<u8> {
    some_bytes(1_000_000)
}

fn part_path(folder: &Path, bytes: &[u8]) -> PathBuf {
    let blobs = folder.join("hf/hub/models--org--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    blobs.join(format!("{}.incomplete", hex(&Sha256::digest(bytes))))
}

#[test]
fn redirects_are_followed_and_the_token_stays_with_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    let behaviour = Behaviour {
        redirect: true,
        renamed: true,
        token: Some("secret"),
        ..Behaviour::default()
    };
    let hub = SmallHub::start(&[(FILE, &model())], behaviour);
    let mut env = Env {
        hf_token: Some("secret".into()),
        hf_endpoint: Some(hub.endpoint.clone()),
        ..Env::default()
    };
    env.home = Some(folder.path().to_owned());
    let found = open(&env, Arc::new(RealDisk))
        .pull("org/old/m-Q4_K_M.gguf")
        .unwrap();
    assert_eq!(fs::read(&found.path).unwrap(), model());
    let requests = hub.state().requests.clone();
    assert!(
        requests.iter().filter(|r| r.file_server).count() >= 2,
        "the other server was asked: {requests:?}"
    );
    for request in requests {
        assert_eq!(request.token.is_some(), !request.file_server, "{request:?}");
    }
}

#[test]
fn the_cache_has_the_hubs_own_layout_and_is_found_without_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(
        &[(FILE, &model()), ("README.md", b"hello")],
        Behaviour::default(),
    );
    let found = store(folder.path(), &hub.endpoint)
        .pull("org/repo")
        .unwrap();
    let repo = folder.path().join("hf/hub/models--org--repo");
    assert_eq!(found.path, repo.join("snapshots").join(COMMIT).join(FILE));
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let blob = repo.join("blobs").join(hex(&Sha256::digest(model())));
    assert_eq!(
        fs::canonicalize(&found.path).unwrap(),
        fs::canonicalize(blob).unwrap()
    );
    assert_eq!(found.name, NAME);
    assert_eq!(
        found.sha256.as_deref(),
        Some(hex(&Sha256::digest(model())).as_str())
    );

    let asked = hub.state().requests.len();
    for spelling in ["org/repo", "org/repo:q4_k_m", NAME, "hf.co/org/repo"] {
        let again = store(folder.path(), &hub.endpoint)
            .resolve(spelling)
            .unwrap();
        assert_eq!(
            (again.path, again.was_there),
            (found.path.clone(), true),
            "{spelling}"
        );
    }
    assert_eq!(
        hub.state().requests.len(),
        asked,
        "what is there needs no network"
    );

    let mut env = Env {
        hf_home: Some(folder.path().join("hf")),
        home: Some(folder.path().into()),
        ..Env::default()
    };
    env.hf_hub_offline = true;
    let offline = open(&env, Arc::new(RealDisk));
    assert_eq!(offline.pull("org/repo").unwrap().path, found.path);
    let error = offline.pull("org/other").unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn a_half_finished_file_is_resumed_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            redirect: true,
            ..Behaviour::default()
        },
    );
    fs::write(part_path(folder.path(), &model()), &model()[..600_000]).unwrap();
    let found = store(folder.path(), &hub.endpoint).pull(NAME).unwrap();
    assert_eq!(fs::read(found.path).unwrap(), model());
    let ranges: Vec<_> = hub.downloads().into_iter().map(|r| r.range).collect();
    assert_eq!(ranges, [Some("bytes=600000-".to_owned())]);
    assert!(!part_path(folder.path(), &model()).exists());
}

#[test]
fn a_finished_part_needs_no_download_and_too_long_a_part_is_dropped() {
    for (left_behind, downloads) in [(model(), 0), ([model(), vec![0]].concat(), 1)] {
        let folder = tempfile::tempdir().unwrap();
        let hub = SmallHub::start(&[(FILE, &model())], Behaviour::default());
        fs::write(part_path(folder.path(), &model()), left_behind).unwrap();
        let found = store(folder.path(), &hub.endpoint).pull(NAME).unwrap();
        assert_eq!(fs::read(found.path).unwrap(), model());
        assert_eq!(hub.downloads().len(), downloads);
    }
}

#[test]
fn a_half_finished_file_that_was_wrong_costs_one_more_download() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(&[(FILE, &model())], Behaviour::default());
    fs::write(part_path(folder.path(), &model()), vec![7; 600_000]).unwrap();
    let found = store(folder.path(), &hub.endpoint).pull(NAME).unwrap();
    assert_eq!(fs::read(found.path).unwrap(), model());
    assert_eq!(hub.downloads().len(), 2);
}

#[test]
fn a_server_without_ranges_sends_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            ignore_range: true,
            ..Behaviour::default()
        },
    );
    fs::write(part_path(folder.path(), &model()), &model()[..600_000]).unwrap();
    let found = store(folder.path(), &hub.endpoint).pull(NAME).unwrap();
    assert_eq!(fs::read(found.path).unwrap(), model());
}

#[test]
fn a_wrong_checksum_is_an_error_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = hex(&Sha256::digest(b"other"));
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            wrong_etag: Some(wrong.clone()),
            ..Behaviour::default()
        },
    );
    let store = store(folder.path(), &hub.endpoint);
    let error = store.pull(NAME).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&wrong) && text.contains(&hex(&Sha256::digest(model()))),
        "{text}"
    );
    assert_eq!(error.blame(), Blame::Input);
    let blobs = folder.path().join("hf/hub/models--org--repo/blobs");
    assert_eq!(
        fs::read_dir(blobs).unwrap().count(),
        0,
        "the damaged file is gone"
    );
    assert_eq!(store.list(), []);
}

#[test]
fn an_etag_or_a_name_that_leads_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let etag = Some("../../../../evil".to_owned());
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            wrong_etag: etag,
            ..Behaviour::default()
        },
    );
    let error = store(folder.path(), &hub.endpoint).pull(NAME).unwrap_err();
    assert!(error.to_string().contains("plain word"), "{error}");

    let hub = SmallHub::start(&[("../../evil-Q4_0.gguf", &model())], Behaviour::default());
    let error = store(folder.path(), &hub.endpoint)
        .pull("org/repo")
        .unwrap_err();
    assert!(error.to_string().contains("no GGUF file"), "{error}");
}

#[test]
fn an_unauthorised_request_names_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            token: Some("secret"),
            ..Behaviour::default()
        },
    );
    for name in ["org/repo", NAME] {
        let error = store(folder.path(), &hub.endpoint).pull(name).unwrap_err();
        assert!(
            error.to_string().contains("401") && error.to_string().contains("Set HF_TOKEN"),
            "{error}"
        );
        assert_eq!(error.blame(), Blame::Caller);
    }
    let mut env = Env {
        hf_token: Some("old".into()),
        hf_endpoint: Some(hub.endpoint.clone()),
        ..Env::default()
    };
    env.home = Some(folder.path().to_owned());
    let error = open(&env, Arc::new(RealDisk)).pull(NAME).unwrap_err();
    assert!(error.to_string().contains("HF_TOKEN was sent"), "{error}");
    assert!(
        !error.to_string().contains("old"),
        "a token is never shown: {error}"
    );
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(&[(FILE, b"x"), ("m-Q8_0.gguf", b"x")], Behaviour::default());
    let cases = [
        (
            "org/repo/m-Q4_K_S.gguf",
            vec!["did you mean m-Q4_K_M.gguf", "m-Q8_0.gguf"],
        ),
        (
            "org/repo:Q4_K_S",
            vec!["did you mean Q4_K_M", "m-Q8_0.gguf"],
        ),
        (
            "org/nothing",
            vec!["no repository 'org/nothing'", "404", "HF_TOKEN"],
        ),
        ("org/nothing/m.gguf", vec!["no repository 'org/nothing'"]),
    ];
    for (name, expect) in cases {
        let error = store(folder.path(), &hub.endpoint).pull(name).unwrap_err();
        for part in expect {
            assert!(error.to_string().contains(part), "{name}: {error}");
        }
        assert_eq!(error.blame(), Blame::Caller);
    }
}

#[test]
fn a_full_disk_keeps_what_arrived_and_the_next_try_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(&[(FILE, &model())], Behaviour::default());
    let env = Env {
        home: Some(folder.path().to_owned()),
        hf_home: Some(folder.path().join("hf")),
        hf_endpoint: Some(hub.endpoint.clone()),
        ..Env::default()
    };
    let left = Arc::new(AtomicU64::new(300_000));
    let store = open(
        &env,
        Arc::new(TinyDisk {
            left: Arc::clone(&left),
        }),
    );
    let error = store.pull(NAME).unwrap_err();
    assert!(
        error.to_string().contains("no room") && error.to_string().contains("HF_HOME"),
        "{error}"
    );
    assert_eq!(error.blame(), Blame::Device);
    assert_eq!(
        fs::metadata(part_path(folder.path(), &model()))
            .unwrap()
            .len(),
        300_000
    );
    left.store(10_000_000, Ordering::SeqCst);
    assert_eq!(fs::read(store.pull(NAME).unwrap().path).unwrap(), model());
    assert_eq!(
        hub.downloads().last().unwrap().range.as_deref(),
        Some("bytes=300000-")
    );
}

#[test]
fn transfers_that_end_early_are_continued_within_the_same_command() {
    let folder = tempfile::tempdir().unwrap();
    let behaviour = Behaviour {
        redirect: true,
        cut_after_bytes: Some(150_000),
        cuts: 6,
        ..Behaviour::default()
    };
    let hub = SmallHub::start(&[(FILE, &model())], behaviour);
    let found = store(folder.path(), &hub.endpoint).pull(NAME).unwrap();
    assert_eq!(fs::read(found.path).unwrap(), model());
    assert_eq!(
        hub.downloads().len(),
        7,
        "six cuts, each answered by a resumed request"
    );
}

#[test]
fn a_server_that_goes_away_half_way_is_an_error_that_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let gone = Behaviour {
        cut_after_bytes: Some(0),
        cuts: 100,
        ..Behaviour::default()
    };
    let hub = SmallHub::start(&[(FILE, &model())], gone);
    fs::write(part_path(folder.path(), &model()), &model()[..400_000]).unwrap();
    let error = store(folder.path(), &hub.endpoint).pull(NAME).unwrap_err();
    assert!(error.to_string().contains("goes on from there"), "{error}");
    assert_eq!(error.blame(), Blame::Device);
    assert_eq!(
        fs::metadata(part_path(folder.path(), &model()))
            .unwrap()
            .len(),
        400_000
    );

    let back = SmallHub::start(&[(FILE, &model())], Behaviour::default());
    assert_eq!(
        fs::read(
            store(folder.path(), &back.endpoint)
                .pull(NAME)
                .unwrap()
                .path
        )
        .unwrap(),
        model()
    );
    assert_eq!(back.downloads()[0].range.as_deref(), Some("bytes=400000-"));

    let error = store(folder.path(), "http://127.0.0.1:1")
        .pull("org/other/m.gguf")
        .unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    let hub = SmallHub::start(
        &[(FILE, &model())],
        Behaviour {
            status: Some(503),
            ..Behaviour::default()
        },
    );
    let error = store(&folder.path().join("fresh"), &hub.endpoint)
        .pull(NAME)
        .unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
}

#[test]
fn two_at_once_fetch_once() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(&[(FILE, &model())], Behaviour::default());
    std::thread::scope(|scope| {
        // Two stores share nothing but the disk, as two processes would.
        let pulls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| store(folder.path(), &hub.endpoint).pull(NAME).unwrap()))
            .collect();
        for pull in pulls {
            assert_eq!(fs::read(pull.join().unwrap().path).unwrap(), model());
        }
    });
    assert_eq!(hub.downloads().len(), 1);
    let removed = store(folder.path(), &hub.endpoint).remove(NAME).unwrap();
    assert_eq!(
        removed.bytes,
        model().len() as u64,
        "the receipt still knows that the file is ours"
    );
}

#[test]
fn a_split_model_is_fetched_whole_and_opened_by_its_first_part() {
    let folder = tempfile::tempdir().unwrap();
    let parts = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
    let hub = SmallHub::start(
        &[(parts[1], b"two"), (parts[0], b"one")],
        Behaviour::default(),
    );
    let store = store(folder.path(), &hub.endpoint);
    for name in ["org/repo:Q8_0", "org/repo/m-Q8_0-00001-of-00002.gguf"] {
        let found = store.pull(name).unwrap();
        assert_eq!(
            (found.size_bytes, fs::read(&found.path).unwrap()),
            (6, b"one".to_vec())
        );
        assert_eq!(
            fs::read(found.path.with_file_name(parts[1])).unwrap(),
            b"two"
        );
    }
    assert_eq!(store.resolve("org/repo").unwrap().size_bytes, 6);
    let second = store
        .resolve("org/repo")
        .unwrap()
        .path
        .with_file_name(parts[1]);
    fs::remove_file(fs::canonicalize(&second).unwrap()).unwrap();
    assert!(store.list().is_empty(), "half a model is not listed");
    assert!(
        !store.resolve("org/repo").unwrap().was_there,
        "and is completed when it is wanted"
    );
    assert!(second.exists());
}

#[test]
fn rm_takes_what_we_fetched_and_leaves_what_was_there_before() {
    let folder = tempfile::tempdir().unwrap();
    let hub = SmallHub::start(&[(FILE, &model())], Behaviour::default());
    let first = store(folder.path(), &hub.endpoint);
    let found = first.pull("org/repo").unwrap();
    let removed = first.remove("org/repo").unwrap();
    assert_eq!(
        (removed.files, removed.bytes),
        (vec![found.path.clone()], 1_000_000)
    );
    assert!(!found.path.exists() && first.list().is_empty());
    let blobs = folder.path().join("hf/hub/models--org--repo/blobs");
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 0);
    let error = first.remove("org/repo").unwrap_err();
    assert!(error.to_string().contains("nothing to remove"), "{error}");

    // Another store (or Python) fetched it: it is not ours to remove.
    let other = folder.path().join("other");
    let env = |home: &Path| Env {
        home: Some(home.to_owned()),
        hf_home: Some(folder.path().join("hf")),
        hf_endpoint: Some(hub.endpoint.clone()),
        ..Env::default()
    };
    open(&env(&other), Arc::new(RealDisk)).pull(NAME).unwrap();
    let ours = open(&env(folder.path()), Arc::new(RealDisk));
    assert!(ours.pull(NAME).unwrap().was_there);
    let removed = ours.remove(NAME).unwrap();
    assert_eq!((removed.bytes, removed.left), (0, vec![found.path.clone()]));
    assert!(found.path.exists());
}
