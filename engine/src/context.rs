//! The effective context: how many tokens one sequence may hold, and how much KV the pool gets.
//!
//! Invariant (law 8): the context is what is really allocated, never the figure in the file alone.
//! The choice says why it is what it is.

use crate::error::{Error, Result};
use crate::limits::{
    BLOCKS_MAX, CONTEXT_TOKENS_MIN, KV_BLOCKS_A_WINDOW_PART, KV_BYTES_DEFAULT_MAX,
    KV_SHARE_PERCENT, KV_TOKENS_DEFAULT_MIN, KV_WINDOWS_DEFAULT,
};
use crate::pool::BlockCount;
use kernels::BLOCK_TOKENS;
use models::forward::Forward;

/// What the choice is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextOptions {
    /// Memory that is free now; `None` where the machine does not say.
    pub free_bytes: Option<u64>,
    /// KV memory asked for by name. Taken whole.
    pub kv_bytes: Option<u64>,
    /// The window asked for by name, in tokens. Given or refused, never made smaller.
    pub context_tokens: Option<usize>,
    /// Conversations whose ends the layers with a window have room for, whatever their usual share is.
    pub window_ends: usize,
}

/// The sizes of a model that the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextModel {
    pub trained_tokens: usize,
    /// Of the layers that see every position.
    pub block_bytes: u64,
    /// Where the model has layers with a window.
    pub window: Option<ContextWindow>,
}

/// Layers with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextWindow {
    /// Positions that a row sees.
    pub tokens: usize,
    /// Bytes of the part of a block in these layers.
    pub part_bytes: u64,
    /// Rows of one sequence in one step, at most.
    pub chunk_tokens: usize,
    /// Conversations whose ends there is room for beside a sequence that runs, at least.
    pub ends: usize,
}

impl ContextModel {
    /// `chunk_tokens`: rows of one sequence in one step, at most.
    pub fn new(forward: &dyn Forward, chunk_tokens: usize) -> Self {
        let window = forward.window().map(|window| ContextWindow {
            tokens: window.tokens.get(),
            part_bytes: window.kv.block_bytes() as u64,
            chunk_tokens,
            ends: 0,
        });
        ContextModel {
            trained_tokens: forward.config().context_train,
            block_bytes: forward.kv_shape().block_bytes() as u64,
            window,
        }
    }

    /// The same with room for the ends of so many conversations, where there are layers with a window.
    pub fn with_ends(mut self, ends: usize) -> Self {
        if let Some(window) = &mut self.window {
            window.ends = ends;
        }
        self
    }

    /// How many of `blocks` blocks can have their part in the layers with a window at once: a share of them,
    /// and all that one sequence and the ends beside it need.
    pub fn window_parts(&self, blocks: usize) -> usize {
        let Some(window) = self.window else { return 0 };
        // The first and the last block are seen in part, and the source of a partial copy is held.
        let one = BlockCount::for_tokens(window.tokens + window.chunk_tokens).0 + 3;
        let end = BlockCount::for_tokens(window.tokens).0 + 1;
        (blocks / KV_BLOCKS_A_WINDOW_PART)
            .max(one + window.ends * end)
            .min(blocks)
    }

    /// Bytes of `blocks` blocks.
    pub fn bytes(&self, blocks: usize) -> u64 {
        let parts = self.window_parts(blocks) as u64 * self.window.map_or(0, |w| w.part_bytes);
        (blocks as u64)
            .saturating_mul(self.block_bytes)
            .saturating_add(parts)
    }

    /// Bytes in which `tokens` tokens are found again at any depth: where there are layers with a window, those too
    /// have room for all of them.
    pub fn bytes_to_find(&self, tokens: usize) -> u64 {
        match self.window {
            None => self.bytes_of_tokens(tokens),
            Some(_) => self.bytes(blocks_beside(tokens) * KV_BLOCKS_A_WINDOW_PART),
        }
    }

    /// Bytes that `tokens` tokens take while they are computed with.
    pub fn bytes_of_tokens(&self, tokens: usize) -> u64 {
        self.bytes(blocks_beside(tokens))
    }

    /// The most blocks that fit into `bytes`.
    fn blocks_in(&self, bytes: u64) -> usize {
        let (mut fit, mut over) = (0, BLOCKS_MAX + 1);
        while fit + 1 < over {
            let middle = fit + (over - fit) / 2;
            match self.bytes(middle) <= bytes {
                true => fit = middle,
                false => over = middle,
            }
        }
        fit
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EffectiveContext {
    /// Tokens of prompt and reply together that one sequence may hold.
    pub tokens: usize,
    /// Blocks in the pool, for all sequences and the cache.
    pub blocks: usize,
    /// How many of them can have their part in the layers with a window; 0 where there are no such layers.
    pub window_parts: usize,
    /// Bytes of all these.
    pub bytes: u64,
    /// For people.
    pub why: String,
    pub bound: Bound,
}

/// What keeps the context from being longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The model was trained for no more.
    Trained,
    Asked,
    Memory,
}

impl Bound {
    /// What a person can do who needs a longer context.
    pub fn fix(self) -> &'static str {
        match self {
            Bound::Trained => "shorten the prompt: the model was trained for no more",
            Bound::Asked => "shorten the prompt or raise --context",
            Bound::Memory => "shorten the prompt or raise --kv-memory",
        }
    }
}

impl EffectiveContext {
    /// Errors when the window asked for is longer than the model was trained for, or does not fit.
    pub fn choose(model: ContextModel, options: ContextOptions) -> Result<Self> {
        let model = model.with_ends(options.window_ends);
        let trained = model.trained_tokens;
        if let Some(need) = options.context_tokens.filter(|need| *need > trained) {
            return Err(Error::ContextTooLong {
                need,
                have: trained,
            });
        }
        if let Some(need) = options.context_tokens.filter(|n| *n < CONTEXT_TOKENS_MIN) {
            return Err(Error::ContextTooShort {
                need,
                least: CONTEXT_TOKENS_MIN,
            });
        }
        let wanted = options.context_tokens.unwrap_or(trained);
        let (budget_bytes, budget_why) = budget(model, options, wanted);
        let fit = model.blocks_in(budget_bytes);
        let window = window_blocks(wanted);
        let least = options
            .context_tokens
            .unwrap_or(CONTEXT_TOKENS_MIN.min(trained));
        if fit < window_blocks(least) {
            return Err(Error::NoMemory {
                need_bytes: model.bytes(window_blocks(least)),
                have_bytes: budget_bytes,
                tokens: least,
            });
        }
        let tokens = wanted.min((fit - 1) * BLOCK_TOKENS);
        let bound = match options.context_tokens {
            _ if tokens == trained => Bound::Trained,
            Some(_) => Bound::Asked,
            None => Bound::Memory,
        };
        let why = match (options.context_tokens, bound) {
            (Some(_), _) => "as asked for".to_string(),
            (None, Bound::Memory) => {
                format!("{budget_why} holds {tokens} tokens; the model was trained for {trained}")
            }
            (None, _) => format!("the model was trained for {trained} tokens"),
        };
        let blocks = match options.kv_bytes {
            Some(_) => fit,
            None => fit.min(window.saturating_mul(KV_WINDOWS_DEFAULT).max(
                // A short window asked for by name does not make the cache forget sooner.
                window_blocks(KV_TOKENS_DEFAULT_MIN),
            )),
        };
        Ok(EffectiveContext {
            tokens,
            blocks,
            window_parts: model.window_parts(blocks),
            bytes: model.bytes(blocks),
            why,
            bound,
        })
    }
}

/// Blocks of some tokens, and two beside them: for a copy and its source.
fn blocks_beside(tokens: usize) -> usize {
    BlockCount::for_tokens(tokens).0 + 2
}

/// One window, and one block beside it: the source of a partial copy is held while it is copied.
fn window_blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS) + 1
}

fn budget(model: ContextModel, options: ContextOptions, wanted: usize) -> (u64, String) {
    if let Some(bytes) = options.kv_bytes {
        return (bytes, format!("KV memory of {}", mib(bytes)));
    }
    let one_window = model.bytes(window_blocks(wanted));
    let Some(free) = options.free_bytes else {
        let bytes = one_window.min(KV_BYTES_DEFAULT_MAX);
        return (bytes, format!("{} (free memory is unknown)", mib(bytes)));
    };
    let share = (u128::from(free) * u128::from(KV_SHARE_PERCENT) / 100) as u64;
    // A window asked for by name may use more than the default, if it is there.
    let most = match options.context_tokens {
        Some(_) => KV_BYTES_DEFAULT_MAX.max(one_window),
        None => KV_BYTES_DEFAULT_MAX,
    };
    let bytes = share.min(most);
    let why = format!("{} ({KV_SHARE_PERCENT}% of {} free)", mib(bytes), mib(free));
    (bytes, why)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn choose(
        trained_tokens: usize,
        free_mib: Option<u64>,
        kv_mib: Option<u64>,
        context_tokens: Option<usize>,
    ) -> Result<EffectiveContext> {
        let model = ContextModel {
            trained_tokens,
            block_bytes: MIB,
            window: None,
        };
        EffectiveContext::choose(
            model,
            ContextOptions {
                free_bytes: free_mib.map(|m| m * MIB),
                kv_bytes: kv_mib.map(|m| m * MIB),
                context_tokens,
                window_ends: 0,
            },
        )
    }

    #[test]
    fn what_is_chosen_and_why() {
        // trained, free MiB, KV MiB, --context -> tokens, blocks, words in why
        type Row = (
            usize,
            Option<u64>,
            Option<u64>,
            Option<usize>,
            (usize, usize, &'static str),
        );
        let rows: &[Row] = &[
            (
                8192,
                Some(20_000),
                None,
                None,
                (8192, 1028, "trained for 8192"),
            ),
            (
                8192,
                Some(1000),
                None,
                None,
                (8192, 500, "trained for 8192"),
            ),
            (
                8192,
                Some(200),
                None,
                None,
                (3168, 100, "50% of 200 MiB free"),
            ),
            (8192, None, None, None, (8192, 257, "trained for 8192")),
            (
                32_768,
                Some(20_000),
                None,
                Some(256),
                (256, 513, "as asked"),
            ),
            (
                8192,
                Some(20_000),
                Some(100),
                None,
                (3168, 100, "KV memory of 100 MiB"),
            ),
            (
                8192,
                Some(20_000),
                Some(300),
                Some(4096),
                (4096, 300, "as asked"),
            ),
            (64, Some(20_000), None, None, (64, 513, "trained for 64")),
        ];
        for (trained, free, kv, context, (tokens, blocks, why)) in rows {
            let have = choose(*trained, *free, *kv, *context).expect("fits");
            assert_eq!((have.tokens, have.blocks), (*tokens, *blocks), "{have:?}");
            assert!(have.why.contains(why), "{have:?}");
            let fix = match why {
                _ if tokens == trained => "trained for no more",
                why if why.contains("asked") => "--context",
                _ => "--kv-memory",
            };
            assert!(have.bound.fix().contains(fix), "{have:?}");
            assert_eq!(have.bytes, *blocks as u64 * MIB);
        }
    }

    #[test]
    fn layers_with_a_window_get_a_share_and_no_less_than_one_sequence_needs() {
        let model = ContextModel {
            trained_tokens: 8192,
            block_bytes: MIB,
            window: Some(ContextWindow {
                tokens: 512,
                part_bytes: 5 * MIB,
                chunk_tokens: 256,
                ends: 0,
            }),
        };
        // 768 positions are 24 blocks, and three more.
        let parts = [1, 27, 28, 108, 400].map(|blocks| model.window_parts(blocks));
        assert_eq!(parts, [1, 27, 27, 27, 100]);
        // An end of 512 positions is 17 blocks at most.
        let parts = [27, 200, 1000].map(|blocks| model.with_ends(5).window_parts(blocks));
        assert_eq!(parts, [27, 27 + 5 * 17, 250]);
        for bytes in [0, 6, 7, 161, 162, 163, 1000, 5000].map(|n| n * MIB) {
            let blocks = model.blocks_in(bytes);
            assert!(model.bytes(blocks) <= bytes && model.bytes(blocks + 1) > bytes);
        }
        let options = ContextOptions {
            kv_bytes: Some(900 * MIB),
            ..ContextOptions::default()
        };
        let have = EffectiveContext::choose(model, options).expect("fits");
        assert_eq!(
            (have.blocks, have.window_parts, have.bytes),
            (400, 100, 900 * MIB)
        );
        assert_eq!(have.tokens, 8192);
    }

    #[test]
    fn what_is_refused_says_need_have_and_fix() {
        let rows: &[(Result<EffectiveContext>, &[&str])] = &[
            (choose(8192, None, None, Some(9000)), &["9000", "8192"]),
            (choose(8192, None, None, Some(10)), &["10", "64"]),
            (
                choose(8192, Some(100), None, Some(8192)),
                &["269484032", "52428800", "--context", "--kv-memory"],
            ),
            (choose(8192, Some(4), None, None), &["3145728", "2097152"]),
        ];
        for (refused, words) in rows {
            let error = refused.as_ref().expect_err("refused").to_string();
            assert!(words.iter().all(|w| error.contains(w)), "{error}");
        }
    }
}
