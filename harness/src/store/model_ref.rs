//! What a person may write for a model, parsed once into what it means.
//!
//! A short name of the catalogue, a local file, or a hub model:
//! `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`, each also with `hf.co/` before it.

use std::path::{Path, PathBuf};

use super::catalogue::{Catalogue, Entry, Source};
use super::error::{StoreError, nearest};

#[derive(Clone, Debug)]
pub enum ModelRef<'c> {
    /// The user's own file: used where it lies, never copied, never removed.
    Local(PathBuf),
    Catalogue(&'c Entry),
    Hub(HubRef),
}

/// A hub repository and which of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRef {
    pub repo: String,
    pub pick: Pick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The usual quantisation, in a fixed order of preference.
    Any,
    Quantisation(String),
    File(String),
}

impl std::fmt::Display for HubRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.pick {
            Pick::Any => write!(f, "{}", self.repo),
            Pick::Quantisation(quantisation) => write!(f, "{}:{quantisation}", self.repo),
            Pick::File(file) => write!(f, "{}/{file}", self.repo),
        }
    }
}

impl<'c> ModelRef<'c> {
    /// `home` is what `~/` stands for.
    pub fn parse(
        text: &str,
        catalogue: &'c Catalogue,
        home: Option<&Path>,
    ) -> Result<ModelRef<'c>, StoreError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(StoreError::BadName {
                name: text.to_owned(),
                why: "a model needs a name, a path, or org/repo of the hub".to_owned(),
            });
        }
        if let Some(entry) = catalogue.find(text) {
            return Ok(match &entry.source {
                Source::Package(_) => ModelRef::Catalogue(entry),
                Source::Hub(hub) => ModelRef::Hub(HubRef {
                    repo: hub.repo.clone(),
                    pick: hub
                        .quantisation
                        .clone()
                        .map_or(Pick::Any, Pick::Quantisation),
                }),
            });
        }
        let path = expand_home(text, home);
        if path.is_file() {
            return Ok(ModelRef::Local(path));
        }
        if path.is_dir() {
            return Err(StoreError::IsFolder {
                path,
                files: Vec::new(),
            }
            .with_files_of_folder());
        }
        if looks_local(text) {
            return Err(StoreError::NoSuchFile {
                near: near_files(&path),
                path,
            });
        }
        if text.contains('/') {
            return parse_hub(text).map(ModelRef::Hub);
        }
        Err(StoreError::UnknownModel {
            near: nearest(text, catalogue.names()),
            name: text.to_owned(),
        })
    }
}

fn expand_home(text: &str, home: Option<&Path>) -> PathBuf {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

/// What can only be meant as a path. `a/b/c.gguf` may still be a file of the hub's.
fn looks_local(text: &str) -> bool {
    let hub_prefix = text.starts_with("hf.co/");
    text.starts_with('/')
        || text.starts_with("./")
        || text.starts_with("../")
        || text.starts_with("~/")
        || (!hub_prefix
            && text.to_ascii_lowercase().ends_with(".gguf")
            && text.matches('/').count() < 2)
}

fn near_files(path: &Path) -> Vec<String> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    let wanted = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    // The name itself is there where a link leads nowhere, or to what is no file.
    let others = names.iter().filter(|name| *name != wanted);
    nearest(wanted, others.map(String::as_str))
}

fn parse_hub(text: &str) -> Result<HubRef, StoreError> {
    let bad = |why: &str| StoreError::BadName {
        name: text.to_owned(),
        why: why.to_owned(),
    };
    let name = text.strip_prefix("hf.co/").unwrap_or(text);
    if name.contains("://") {
        return Err(bad(
            "addresses are not read; write org/repo, org/repo:Q4_K_M or org/repo/file.gguf",
        ));
    }
    let (name, quantisation) = match name.split_once(':') {
        Some((name, quantisation)) => (name, Some(quantisation)),
        None => (name, None),
    };
    let parts: Vec<&str> = name.split('/').collect();
    if parts.iter().any(|part| !is_plain_component(part)) {
        return Err(bad(
            "a hub name has letters, digits, '.', '_' and '-' between its slashes",
        ));
    }
    let pick = match (&parts[..], quantisation) {
        ([_, _], None) => Pick::Any,
        ([_, _], Some(q)) if is_plain_component(q) => Pick::Quantisation(q.to_owned()),
        ([_, _], Some(_)) => return Err(bad("after ':' comes a quantisation such as Q4_K_M")),
        ([_, _, file @ ..], None) if !file.is_empty() => {
            let file = file.join("/");
            if !file.to_ascii_lowercase().ends_with(".gguf") {
                return Err(bad("a file of the hub must be a .gguf file"));
            }
            Pick::File(file)
        }
        _ => return Err(bad("write org/repo, org/repo:Q4_K_M or org/repo/file.gguf")),
    };
    Ok(HubRef {
        repo: format!("{}/{}", parts[0], parts[1]),
        pick,
    })
}

/// Safe as one component of a path on any system: no separators, no `..`, nothing hidden.
pub(super) fn is_plain_component(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('.')
        && part.len() <= 255
        && part
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(text: &str) -> String {
        match ModelRef::parse(text, Catalogue::builtin(), Some(Path::new("/home/nobody"))) {
            Ok(ModelRef::Local(path)) => format!("local {}", path.display()),
            Ok(ModelRef::Catalogue(entry)) => format!("catalogue {}", entry.name),
            Ok(ModelRef::Hub(HubRef { repo, pick })) => format!("hub {repo} {pick:?}"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn names() {
        let cases = [
            ("smollm2", "catalogue smollm2"),
            ("SmolLM2:135M", "catalogue smollm2"),
            ("qwen2.5-coder", "catalogue qwen2.5-coder:1.5b"),
            (
                "llama3.2:1b",
                "hub bartowski/Llama-3.2-1B-Instruct-GGUF Quantisation(\"Q4_K_M\")",
            ),
            ("org/repo", "hub org/repo Any"),
            ("hf.co/org/repo", "hub org/repo Any"),
            ("org/repo:Q4_K_M", "hub org/repo Quantisation(\"Q4_K_M\")"),
            ("hf.co/org/repo:q8_0", "hub org/repo Quantisation(\"q8_0\")"),
            ("org/repo/file.gguf", "hub org/repo File(\"file.gguf\")"),
            (
                "org/repo/sub/file.gguf",
                "hub org/repo File(\"sub/file.gguf\")",
            ),
        ];
        for (text, expect) in cases {
            assert_eq!(describe(text), expect, "{text}");
        }
    }

    #[test]
    fn wrong_names_say_what_is_wrong() {
        let cases = [
            ("", "needs a name"),
            ("smolm2", "did you mean smollm2"),
            ("qwen2.5-codr:1.5b", "did you mean qwen2.5-coder:1.5b"),
            ("./nothing.gguf", "no such file"),
            ("nothing.gguf", "no such file"),
            ("models/nothing.gguf", "no such file"),
            ("org/../repo", "between its slashes"),
            ("org/repo/../../etc/passwd.gguf", "between its slashes"),
            ("org/repo:Q4/x", "quantisation"),
            ("org/repo:", "quantisation"),
            ("org/repo/model.safetensors", ".gguf"),
            ("https://example.org/org/repo", "addresses"),
            ("/", "folder"),
        ];
        for (text, expect) in cases {
            let got = describe(text);
            assert!(
                got.starts_with("error: ") && got.contains(expect),
                "{text}: {got}"
            );
        }
    }

    #[test]
    fn a_local_file_wins_over_the_hub_and_is_named_when_nearly_right() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny-q4_0.gguf");
        std::fs::write(&file, b"x").unwrap();
        assert_eq!(
            describe(file.to_str().unwrap()),
            format!("local {}", file.display())
        );
        let wrong = folder.path().join("tiny-q4_1.gguf");
        assert!(describe(wrong.to_str().unwrap()).contains("did you mean tiny-q4_0.gguf"));
        assert!(describe(folder.path().to_str().unwrap()).contains("tiny-q4_0.gguf"));
    }
}
