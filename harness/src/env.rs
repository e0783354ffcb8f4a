//! What `main.rs` read from the environment, as one plain value that is passed down.
//!
//! Nothing else in the workspace reads an environment variable of ours; a test builds its own `Env`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// The environment variables that ostler honours, and which of its streams are terminals.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `OSTLER_HOME`: everything ostler keeps, in one folder.
    pub ostler_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub xdg_cache_home: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub xdg_data_home: Option<PathBuf>,
    /// `HF_HOME`: the hub's folder, `~/.cache/huggingface` without it.
    pub hf_home: Option<PathBuf>,
    /// `HF_ENDPOINT`: another hub than the public one.
    pub hf_endpoint: Option<String>,
    /// `HF_TOKEN`.
    pub hf_token: Option<String>,
    /// `HF_HUB_OFFLINE`.
    pub hf_hub_offline: bool,
    /// `NO_COLOR` is set and not empty.
    pub no_color: bool,
    /// `TERM` is `dumb`.
    pub dumb_terminal: bool,
    pub terminals: Terminals,
    /// `OSTLER_API_KEY`: what requests to `ostler serve` must carry.
    pub api_key: Option<String>,
    /// All variables, for the commands that the agent runs.
    pub variables: Vec<(OsString, OsString)>,
}

/// Which standard streams are terminals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terminals {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

impl Env {
    /// Collects the variables through `lookup`, so that a test needs no process environment.
    /// A value that cannot be understood is an error, never a silent default.
    pub fn collect(lookup: impl Fn(&str) -> Option<OsString>, terminals: Terminals) -> Result<Env> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| match set(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(Error::caller(format!("{name} is not valid UTF-8"))),
        };
        Ok(Env {
            home: path("HOME"),
            ostler_home: path("OSTLER_HOME"),
            xdg_cache_home: path("XDG_CACHE_HOME"),
            xdg_data_home: path("XDG_DATA_HOME"),
            hf_home: path("HF_HOME"),
            hf_endpoint: text("HF_ENDPOINT")?,
            hf_token: text("HF_TOKEN")?.map(|token| token.trim().to_owned()),
            hf_hub_offline: switch("HF_HUB_OFFLINE", text("HF_HUB_OFFLINE")?.as_deref())?,
            no_color: set("NO_COLOR").is_some(),
            dumb_terminal: set("TERM").is_some_and(|term| term == "dumb"),
            terminals,
            api_key: text("OSTLER_API_KEY")?,
            variables: Vec::new(),
        })
    }

    /// Where what can be fetched again lives: `$OSTLER_HOME`, else `$XDG_CACHE_HOME/ostler`, else `~/.cache/ostler`.
    pub fn cache_dir(&self) -> Result<PathBuf> {
        self.place(&self.xdg_cache_home, ".cache")
    }

    /// Where what cannot be fetched again lives (history, sessions): `$OSTLER_HOME`, else
    /// `$XDG_DATA_HOME/ostler`, else `~/.local/share/ostler`.
    pub fn data_dir(&self) -> Result<PathBuf> {
        self.place(&self.xdg_data_home, ".local/share")
    }

    /// The hub's folder: `$HF_HOME`, else `$XDG_CACHE_HOME/huggingface`, else `~/.cache/huggingface`.
    pub fn hub_dir(&self) -> Result<PathBuf> {
        if let Some(home) = &self.hf_home {
            return Ok(home.clone());
        }
        match (&self.xdg_cache_home, &self.home) {
            (Some(cache), _) if cache.is_absolute() => Ok(cache.join("huggingface")),
            (_, Some(home)) => Ok(home.join(".cache/huggingface")),
            (_, None) => Err(nowhere()),
        }
    }

    fn place(&self, xdg: &Option<PathBuf>, below_home: &str) -> Result<PathBuf> {
        match (&self.ostler_home, xdg, &self.home) {
            (Some(own), _, _) => Ok(own.clone()),
            // The XDG specification has relative paths ignored.
            (None, Some(xdg), _) if xdg.is_absolute() => Ok(xdg.join("ostler")),
            (None, _, Some(home)) => Ok(home.join(below_home).join("ostler")),
            (None, _, None) => Err(nowhere()),
        }
    }
}

fn nowhere() -> Error {
    Error::caller("no place to keep files: HOME is not set; set OSTLER_HOME to a folder")
}

/// The hub's own words for yes and no. Python's library takes every other word as no; that hides a typing error.
fn switch(name: &str, value: Option<&str>) -> Result<bool> {
    let Some(value) = value else { return Ok(false) };
    match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => Err(Error::caller(format!("{name}={value} is neither 1 nor 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Result<Env> {
        let lookup = |name: &str| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Env::collect(lookup, Terminals::default())
    }

    #[test]
    fn places() {
        /// Variables; the cache's, the data's and the hub's place.
        type Case = (
            &'static [(&'static str, &'static str)],
            &'static str,
            &'static str,
            &'static str,
        );
        let cases: &[Case] = &[
            (
                &[("HOME", "/h")],
                "/h/.cache/ostler",
                "/h/.local/share/ostler",
                "/h/.cache/huggingface",
            ),
            (
                &[("HOME", "/h"), ("OSTLER_HOME", "/o")],
                "/o",
                "/o",
                "/h/.cache/huggingface",
            ),
            (
                &[("HOME", "/h"), ("OSTLER_HOME", "")],
                "/h/.cache/ostler",
                "/h/.local/share/ostler",
                "/h/.cache/huggingface",
            ),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")],
                "/c/ostler",
                "/h/.local/share/ostler",
                "/c/huggingface",
            ),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "relative")],
                "/h/.cache/ostler",
                "/h/.local/share/ostler",
                "/h/.cache/huggingface",
            ),
            (
                &[("HOME", "/h"), ("HF_HOME", "/hf")],
                "/h/.cache/ostler",
                "/h/.local/share/ostler",
                "/hf",
            ),
        ];
        for (pairs, cache, data, hub) in cases {
            let env = env(pairs).unwrap();
            assert_eq!(env.cache_dir().unwrap(), PathBuf::from(cache), "{pairs:?}");
            assert_eq!(env.data_dir().unwrap(), PathBuf::from(data), "{pairs:?}");
            assert_eq!(env.hub_dir().unwrap(), PathBuf::from(hub), "{pairs:?}");
        }
        assert!(
            env(&[])
                .unwrap()
                .cache_dir()
                .unwrap_err()
                .to_string()
                .contains("OSTLER_HOME")
        );
    }

    #[test]
    fn a_switch_that_is_neither_yes_nor_no_is_an_error() {
        for (value, expect) in [
            ("1", Some(true)),
            ("YES", Some(true)),
            ("0", Some(false)),
            ("", Some(false)),
            ("ture", None),
        ] {
            let got = env(&[("HF_HUB_OFFLINE", value)])
                .ok()
                .map(|env| env.hf_hub_offline);
            assert_eq!(got, expect, "{value}");
        }
    }
}
