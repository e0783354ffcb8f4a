//! What a block is worth while memory is short: (cost to compute it again × chance that it is asked for) / bytes.
//!
//! All blocks of a model have the same bytes (their parts in layers with a window are weighed by the leaf they
//! are the end of). The cost is told by the block's depth, and by whether it is on
//! disk as well. The chance is told by the layer of its piece, and by the rhythm in which its prompt has come so
//! far: what comes back every so often is expected when it is due, what is overdue the less the longer it is.
//! Against prompts that take turns, and together do not fit, that keeps some of them whole where the order of
//! last use would lose every one just before it is needed. After LIRS (Jiang and Zhang, SIGMETRICS 2002), which
//! weighs the last two uses; the layers are ours.
//!
//! Time here is work: one tick for each chunk of prompt and each block of reply.

use crate::limits::{WORTH_DEPTH_TOKENS, WORTH_ON_DISK};
use crate::piece::Layer;
use kernels::BLOCK_TOKENS;

/// How likely a block is to be asked for, by what it holds; the likelier the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// What a fork has added to what it was forked from.
    Fork,
    /// History, turns and replies.
    Conversation,
    Memory,
    /// Instructions and tools: what other conversations begin with too.
    Fixed,
}

impl Class {
    pub const ALL: [Class; 4] = [
        Class::Fork,
        Class::Conversation,
        Class::Memory,
        Class::Fixed,
    ];

    /// `layer` is `None` for what was sampled.
    pub fn of(layer: Option<Layer>, fork: bool) -> Class {
        match layer {
            Some(Layer::Instructions | Layer::Tools) => Class::Fixed,
            Some(Layer::Memory) => Class::Memory,
            Some(Layer::History | Layer::Turn) | None if fork => Class::Fork,
            Some(Layer::History | Layer::Turn) | None => Class::Conversation,
        }
    }

    /// A block of one class is worth as much as a block of another that was used so many times as recently.
    fn weight(self) -> f64 {
        match self {
            Class::Fork => 0.25,
            Class::Conversation => 1.0,
            Class::Memory => 8.0,
            Class::Fixed => 16.0,
        }
    }
}

/// When something was used, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rhythm {
    /// 0 before the first use.
    last: u64,
    /// Between the last two uses and the two before; 0 where there were none.
    gaps: [u64; 2],
}

impl Rhythm {
    /// As it is after a use at `tick`.
    pub fn used(self, tick: u64) -> Rhythm {
        let gap = match self.last {
            0 => 0,
            last => tick.saturating_sub(last).max(1),
        };
        Rhythm {
            last: tick,
            gaps: [gap, self.gaps[0]],
        }
    }

    /// The same use goes on at `tick`.
    pub fn still_used(self, tick: u64) -> Rhythm {
        Rhythm { last: tick, ..self }
    }

    /// When it is used next, if it comes as often as it did lately: the shorter of two gaps, since a pause
    /// says nothing of what comes after it.
    pub fn due(&self) -> u64 {
        let known = self.gaps.into_iter().filter(|gap| *gap > 0);
        self.last + known.min().unwrap_or(0)
    }

    /// Ticks until it is used, as far as one can tell: what is overdue stays away for as long again.
    fn distance(&self, now: u64) -> u64 {
        self.due().abs_diff(now)
    }
}

/// A use of the tree by one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Visit {
    /// The call.
    pub id: u64,
    /// Of what the call's prompt goes on from, the call included: for blocks that are new or come again.
    pub rhythm: Rhythm,
    /// It goes on from what a fork was forked from.
    pub fork: bool,
}

/// What a block is worth at `now`. `start` is its first position.
pub fn worth(class: Class, rhythm: Rhythm, start: usize, on_disk: bool, now: u64) -> f64 {
    let rows = BLOCK_TOKENS as f64 * (1.0 + start as f64 / WORTH_DEPTH_TOKENS as f64);
    let cost = match on_disk {
        true => rows * WORTH_ON_DISK,
        false => rows,
    };
    class.weight() * cost / (rhythm.distance(now) + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rhythm(uses: &[u64]) -> Rhythm {
        let mut rhythm = Rhythm::default();
        uses.iter().for_each(|tick| rhythm = rhythm.used(*tick));
        rhythm
    }

    #[test]
    fn what_is_due_soon_is_worth_more_and_what_is_overdue_less() {
        let at = |uses: &[u64], now| worth(Class::Conversation, rhythm(uses), 0, false, now);
        // Used once: the longer ago the less.
        assert!(at(&[90], 100) > at(&[10], 100));
        // Every 40 ticks: at 79 it is due, right after a use it is not.
        assert!(at(&[1, 41], 79) > at(&[1, 41], 45));
        assert!(at(&[1, 41], 79) > at(&[1, 41], 500));
        // One pause does not make a quick conversation slow.
        assert_eq!(rhythm(&[1, 2, 1000]).due(), 1001);
        assert_eq!(rhythm(&[1, 500, 1000]).due(), 1499);
    }

    #[test]
    fn layers_depth_and_disk_count() {
        let fresh = rhythm(&[99]);
        let at = |class, start, on_disk| worth(class, fresh, start, on_disk, 100);
        let classes = Class::ALL.map(|class| at(class, 0, false));
        assert!(classes.is_sorted());
        assert!(at(Class::Conversation, 8192, false) > at(Class::Conversation, 0, false));
        assert!(at(Class::Conversation, 0, true) < at(Class::Conversation, 0, false));
        assert_eq!(Class::of(None, true), Class::Fork);
        assert_eq!(Class::of(Some(Layer::Tools), true), Class::Fixed);
    }
}
