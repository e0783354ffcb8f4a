//! What several root tests share.

use std::path::PathBuf;
use std::sync::Arc;

use harness::env::{Env, Terminals};
use harness::store::{StderrProgress, ensure_default_model};

/// The real SmolLM2-135M-Instruct (Q4_1): `OSTLER_TEST_MODEL` if set, else the store's, fetched on first use.
/// Tests run in several processes; the store lets one fetch and the others wait.
pub fn smollm2() -> PathBuf {
    if let Some(path) = std::env::var_os("OSTLER_TEST_MODEL") {
        return PathBuf::from(path);
    }
    let env = Env::collect(|name| std::env::var_os(name), Terminals::default())
        .expect("a sound environment");
    ensure_default_model(&env, Arc::new(StderrProgress::new(false)))
        .unwrap_or_else(|error| panic!("the default model is needed for this test: {error}"))
}
