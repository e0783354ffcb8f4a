//! What can be typed, and what each option means. clap suggests the nearest command or option on a typing error.

use clap::{Args, Parser, Subcommand};

const AFTER_HELP: &str = "\
Models: a name from `ostler list --all`, a path to a .gguf file, or a hub model:
  org/repo, org/repo:Q4_K_M, org/repo/file.gguf (hf.co/ may stand before it).

Files: fetched models lie in $OSTLER_HOME/models, else $XDG_CACHE_HOME/ostler/models,
  else ~/.cache/ostler/models; hub models in the hub's own cache, $HF_HOME/hub.
  HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured.

Exit codes:
  0    done; also when the reader of a pipe went away
  2    cannot be done as asked: an unknown option or model, a prompt over the window
  3    a file or a model is damaged or not understood
  4    the machine lacks something: memory, disk, network
  70   a fault of ostler's own
  130  stopped by Ctrl-C; what there was of an answer has been printed";

/// Run open models on your own machine. Without a command: a chat in the terminal.
#[derive(Debug, Parser)]
#[command(name = "ostler", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fetch a model, or look whether the hub has a newer version of it; prints its path.
    Pull(PullArgs),
    /// The models on this machine.
    List(ListArgs),
    /// Remove a model that ostler fetched. Your own files are never removed.
    Rm(RmArgs),
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// Which model; see `ostler --help`.
    #[arg(default_value = crate::store::DEFAULT_MODEL)]
    pub model: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Also the names of the catalogue that have not been fetched.
    #[arg(long)]
    pub all: bool,
    /// One JSON array.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// Which models, by the names that `ostler list` shows.
    #[arg(required = true)]
    pub models: Vec<String>,
}
