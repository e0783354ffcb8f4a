//! What can be typed, and what each option means. clap suggests the nearest command or option on a typing error.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const AFTER_HELP: &str = "\
Models: a name from `ostler list --all`, a path to a .gguf file, or a hub model:
  org/repo, org/repo:Q4_K_M, org/repo/file.gguf (hf.co/ may stand before it).

Files: fetched models lie in $OSTLER_HOME/models, else $XDG_CACHE_HOME/ostler/models,
  else ~/.cache/ostler/models; hub models in the hub's own cache, $HF_HOME/hub.
  Keys and values that outlive the program lie beside the models, in kv.
  HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured. Sessions of the agent and the history of the
  chat lie in $OSTLER_HOME, else $XDG_DATA_HOME/ostler, else ~/.local/share/ostler.

Exit codes:
  0    done; also when the reader of a pipe went away
  2    cannot be done as asked: an unknown option or model, a prompt over the window
  3    a file or a model is damaged or not understood
  4    the machine lacks something: memory, disk, network
  5    the agent stopped before the goal was reached; the reason has been printed
  70   a fault of ostler's own
  130  stopped by Ctrl-C; what there was of an answer has been printed. `serve` ends with 0:
       Ctrl-C is how it is stopped";

/// A million tokens: more than any model's context, and sums of them stay far from an overflow.
const PROMPT_TOKENS_MAX: i64 = 1 << 20;
const THREADS_MAX: i64 = models::device::THREADS_MAX as i64;

/// Run open models on your own machine. Without a command: a chat in the terminal.
#[derive(Debug, Parser)]
#[command(name = "ostler", version, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub chat: ChatArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt. The answer goes to stdout, one line of figures to stderr.
    Run(RunArgs),
    /// Chat in the terminal; the same as `ostler` without a command.
    Chat(ChatArgs),
    /// Fetch a model, or look whether the hub has a newer version of it; prints its path.
    Pull(PullArgs),
    /// The models on this machine.
    List(ListArgs),
    /// What a model is: architecture, size, context, template, checksum.
    Show(ShowArgs),
    /// Remove a model that ostler fetched. Your own files are never removed.
    Rm(RmArgs),
    /// Work on a goal in a folder, with tools, in a sandbox.
    Agent(AgentArgs),
    /// What the agent has remembered: list, show, search, change, forget.
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Play tasks that check themselves: what a model and the harness can do. Exit code 5 if any fails.
    Eval(EvalArgs),
    /// Serve an OpenAI-compatible API on loopback, until Ctrl-C.
    Serve(ServeArgs),
    /// Keys and values that are kept on disk, or in the memory of a server: what is there, and how to be rid of it.
    Cache(CacheArgs),
    /// What each call of an agent's session reused, computed and lost, piece by piece.
    Inspect(InspectArgs),
    /// Measure.
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// What the prefix cache saves: a prompt repeated, appended to and edited, forks, an agent's run, a restart.
    ///
    /// Every call also checks itself: the plan must agree with the report, and both with what the prompts
    /// have in common. One that does not ends the command with exit code 70. With --against the same calls are
    /// made on another server, in turns. total_ms is from sending to the end of the answers; the ratio is ours
    /// over theirs.
    Cache(BenchCacheArgs),
    /// Tokens a second at several depths of context, and the share of this machine's limit.
    ///
    /// For an answer the limit is the time to read the weights and the keys and values once from memory;
    /// for a prompt it is the time of the weights' multiply-adds in registers. Both marks are measured
    /// first. Figures are medians.
    Speed(BenchSpeedArgs),
}

/// Which model, and what it may take of the machine.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// A name of the catalogue, a path to a .gguf file, or org/repo of a hub; fetched if need be.
    #[arg(short, long, value_name = "MODEL", default_value = crate::store::DEFAULT_MODEL)]
    pub model: String,
    /// Where it runs: cpu, cuda:0, metal:0.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Threads of the CPU. Without it: one for each physical core.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX))]
    pub threads: Option<u16>,
    /// Tokens of context. Without it: what the model was trained for, as far as memory allows.
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Memory for keys and values, e.g. 512MiB or 2GiB. Without it: a share of what is free.
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    pub kv_memory: Option<u64>,
    /// How keys and values are stored.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvTypeArg::F16)]
    pub kv_type: KvTypeArg,
    /// Room on disk for keys and values that outlive the program, for all models together, e.g. 4GiB; `off`
    /// for none. Without it: 16 GiB, at most a quarter of what is free. See `ostler cache`.
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse_or_off)]
    pub kv_disk: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    F16,
    F32,
    /// Half of f16's memory; CPU only
    #[value(name = "q8_0")]
    Q8_0,
}

/// How the answer is drawn.
#[derive(Clone, Debug, Args)]
pub struct SamplingArgs {
    /// Tokens of the answer at most; the rest of the context without it.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token always; higher is more varied.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.7,
        allow_negative_numbers = true
    )]
    pub temperature: f32,
    /// Draw from the K likeliest tokens only; 0 for all.
    #[arg(
        long,
        value_name = "K",
        default_value_t = 40,
        allow_negative_numbers = true
    )]
    pub top_k: usize,
    /// Draw from the fewest tokens that together have this probability.
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.95,
        allow_negative_numbers = true
    )]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the likeliest.
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.05,
        allow_negative_numbers = true
    )]
    pub min_p: f32,
    /// Make tokens of the last 64 less likely; 1 for not at all.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub repetition_penalty: f32,
    /// The same seed, prompt and model give the same answer. Random without it (-v shows it).
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The prompt. `-` stands for what comes on standard input, which is also read when there is no
    /// prompt at all: `ostler run "Sum this up:" - < notes.txt`.
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What the model is told before the prompt. The template's own default without it.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Send the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub raw: bool,
    /// One JSON object at the end instead of text as it comes.
    #[arg(long)]
    pub json: bool,
    /// Show the pieces of the prompt: tokens, fingerprint, reused or computed, and where reuse ended.
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What the model is told before the first turn. The template's own default without it.
    #[arg(short, long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Show the pieces of each prompt: tokens, fingerprint, reused or computed, and where reuse ended.
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CacheArgs {
    #[command(subcommand)]
    pub command: Option<CacheCommand>,
    #[command(flatten)]
    pub show: CacheShowArgs,
}

#[derive(Debug, Args)]
pub struct CacheShowArgs {
    #[command(flatten)]
    pub filter: CacheFilter,
    /// What a running `ostler serve` has in memory instead, e.g. http://127.0.0.1:8080. A key is taken from
    /// $OSTLER_API_KEY.
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "older_than"])]
    pub server: Option<String>,
    /// One JSON array of files, or one JSON object of a server.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Remove what is kept: all of it, or what the options name. What a running program has in memory stays.
    Clear(CacheFilter),
}

/// Which files.
#[derive(Debug, Args)]
pub struct CacheFilter {
    /// Only of this model, as `ostler cache` names it.
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Only what was not used for so long: 90s, 30m, 12h, 7d.
    #[arg(long, value_name = "TIME", value_parser = super::size::parse_time)]
    pub older_than: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Which model; see `ostler --help`. It is not fetched.
    #[arg(default_value = crate::store::DEFAULT_MODEL)]
    pub model: String,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Its name, as `ostler agent` printed it. Without it: the newest.
    pub session: Option<String>,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchCacheArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Length of the prompt that is repeated, appended to and edited; the other scenarios are in proportion.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..=PROMPT_TOKENS_MAX))]
    pub prompt_tokens: u32,
    /// Only these, e.g. repeat,restart [all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub scenario: Vec<String>,
    /// Times each is measured, with new text; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub rounds: u16,
    /// An OpenAI-compatible server to make the same calls on, e.g. http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// Write a chart to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// One JSON array of objects.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

#[derive(Debug, Args)]
pub struct BenchSpeedArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Measure prompts only, of N new tokens [both without it: 512].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub prefill: Option<usize>,
    /// Measure answers only, of N tokens [both without it: 64].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub decode: Option<usize>,
    /// Tokens of context before the work.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "0,512,2048,7680", value_parser = depth
    )]
    pub depth: Vec<usize>,
    /// Answers at once, on one shared context.
    #[arg(long, value_name = "N", default_value = "1", value_parser = sequences)]
    pub sequences: usize,
    /// Times each is measured.
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive)]
    pub rounds: usize,
    /// An OpenAI-compatible server that does the same work in turns with us, e.g. http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// One JSON array of objects.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=1 << 20).contains(&n) => Ok(n),
        _ => Err("need a whole number from 1 to 1048576".to_owned()),
    }
}

fn depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= 1 << 20 => Ok(n),
        _ => Err("need a whole number from 0 to 1048576".to_owned()),
    }
}

fn sequences(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=engine::limits::SEQUENCES_MAX).contains(&n) => Ok(n),
        _ => Err(format!(
            "need a whole number from 1 to {}",
            engine::limits::SEQUENCES_MAX
        )),
    }
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

#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// All of them, oldest first.
    List {
        /// One JSON array.
        #[arg(long)]
        json: bool,
    },
    /// One of them, as its file stands.
    Show { id: String },
    /// Change one in $VISUAL or $EDITOR.
    Edit { id: String },
    /// Remove one, or several.
    Forget {
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Those that fit some words best.
    Search {
        #[arg(required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Play the tasks from their scripts, without a model, in a window of 4,096 tokens.
    #[arg(long)]
    pub scripted: bool,
    /// Only these tasks.
    #[arg(long, value_name = "NAME")]
    pub task: Vec<String>,
    /// Leave a part of the harness out, to see what it is worth.
    #[arg(long, value_name = "PART", value_parser = ["bounding", "compaction"])]
    pub without: Vec<String>,
    /// One JSON array of objects: task, passed, why, steps, tokens_sent, tokens_computed, compactions, seconds.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// What is to be done. `-` stands for what comes on standard input. Without it a person at a terminal is asked.
    /// What is typed there meanwhile, the model sees at its next step.
    #[arg(value_name = "GOAL")]
    pub goal: Vec<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Approve what would be asked about. Where there is a sandbox, what leaves the folder still needs a person.
    ///
    /// Inside a verified sandbox commands need no question. Without one each asks, and where there is no
    /// terminal to ask on it is denied.
    #[arg(short, long)]
    pub yes: bool,
    /// The folder to work in; the current one without it.
    #[arg(short = 'C', long, value_name = "FOLDER")]
    pub directory: Option<PathBuf>,
    /// Go on with an earlier session; the newest without a name.
    #[arg(long, value_name = "SESSION", num_args = 0..=1, default_missing_value = "last")]
    pub resume: Option<String>,
    /// Go on from entry N of the session, not from its end; what followed it stays in the file.
    #[arg(long, value_name = "N", requires = "resume")]
    pub fork_at: Option<u64>,
    /// Take back the last run of the newest session, or of the one that --resume names: what was said, and what
    /// `write` and `edit` did to files. What commands did stays.
    #[arg(long, conflicts_with_all = ["goal", "fork_at"])]
    pub undo: bool,
    /// Let an OpenAI-compatible server answer instead of a model in this process: llama-server, Ollama, vLLM, a
    /// cloud. A key is taken from $OSTLER_API_KEY. With --resume a session goes on there, or back here.
    #[arg(long, value_name = "URL")]
    pub runtime: Option<String>,
    /// The server's model; the first that it lists without it.
    #[arg(long, value_name = "NAME", requires = "runtime")]
    pub runtime_model: Option<String>,
    /// Words added to the agent's instructions.
    #[arg(short, long, value_name = "TEXT")]
    pub system: Option<String>,
    /// What summaries dwell on when the context is full: `coding`, `personal`, or a file with your own
    /// instruction.
    #[arg(long, value_name = "WHAT", default_value = "coding")]
    pub summaries: String,
    /// Give the model a skill before it begins: a folder with SKILL.md, in `.ostler/skills` of the project or in
    /// `skills` beside the sessions.
    #[arg(long, value_name = "NAME")]
    pub skill: Vec<String>,
    /// Neither read nor write memories. In a window of 4,096 tokens or less that is so anyway.
    #[arg(long)]
    pub no_memory: bool,
    /// Events on standard output, one JSON object a line; the README says which.
    #[arg(long)]
    pub json: bool,
    /// Rounds of tools at most.
    #[arg(long, value_name = "N", default_value_t = crate::limits::TOOL_ROUNDS_MAX, allow_negative_numbers = true)]
    pub max_rounds: usize,
    /// Let commands reach the network.
    #[arg(long)]
    pub allow_network: bool,
    /// Run commands without the sandbox; then each of them asks, unless --yes is given.
    #[arg(long)]
    pub no_sandbox: bool,
    /// 0 takes the likeliest token always.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub temperature: f32,
    /// The same seed, goal, folder and model give the same run.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// What takes how much of the window, and after each step the pieces of its prompt: tokens, fingerprint, reused
    /// or computed.
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The address to listen on. Anything but loopback needs --api-key.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(short, long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Requests must carry this key. Better in OSTLER_API_KEY, where other users do not see it.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}
