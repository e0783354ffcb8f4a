//! What a tool gives back: before it is bounded, and after.

use std::path::PathBuf;
use std::time::Duration;

use super::artifacts::ArtifactId;
use super::bound::{Bounded, Keep, ReadOn, Source};
use super::process::Exit;

/// A tool's result as it is, of any length.
pub struct Output {
    pub ok: bool,
    pub source: Source,
    pub keep: Keep,
    pub read_on: ReadOn,
    /// Never cut.
    pub footer: String,
    pub artifact: Option<ArtifactId>,
    pub meta: Meta,
}

impl Output {
    /// A short text.
    pub fn said(tool: &'static str, ok: bool, text: impl Into<String>) -> Output {
        Output {
            ok,
            source: Source::whole(text),
            keep: Keep::Head,
            read_on: ReadOn::Nothing,
            footer: String::new(),
            artifact: None,
            meta: Meta::of(tool),
        }
    }

    pub fn failed(tool: &'static str, why: impl Into<String>) -> Output {
        Output::said(tool, false, why)
    }
}

/// What the loop, the session and the screen want to know of a call; the model does not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub tool: &'static str,
    pub exit: Option<Exit>,
    pub wall: Duration,
    /// Files that were read or changed, resolved.
    pub read: Vec<PathBuf>,
    pub changed: Vec<PathBuf>,
    /// The gate said no, and nothing was run.
    pub denied: bool,
}

impl Meta {
    pub fn of(tool: &'static str) -> Meta {
        Meta {
            tool,
            exit: None,
            wall: Duration::ZERO,
            read: Vec::new(),
            changed: Vec::new(),
            denied: false,
        }
    }
}

/// What the model sees of a call, within its caps.
#[derive(Clone, Debug)]
pub struct ToolResult {
    pub ok: bool,
    pub text: Bounded,
    /// Where the whole is.
    pub artifact: Option<ArtifactId>,
    pub meta: Meta,
}
