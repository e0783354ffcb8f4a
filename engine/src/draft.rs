//! Speculation without a second model: what followed the last few tokens earlier in the sequence is likely
//! to follow them again. Agents copy much of what they read.
//!
//! A draft is verified in one pass: its tokens go through the model as a small batch, each row of logits is
//! sampled as if it were alone, and the draft ends where the sample differs. On a device that is exact
//! (law 1) the reply is therefore the same with drafts and without. After prompt lookup decoding
//! (Saxena, 2023).

use crate::limits::{
    DRAFT_LOOKBACK_TOKENS, DRAFT_MATCH_TOKENS, DRAFT_PAUSE_STEPS_MAX, DRAFT_ROWS_MAX,
};

/// How one sequence drafts: bold after drafts that were right, silent for a while after one that was wrong.
#[derive(Debug)]
pub struct Drafter {
    length: usize,
    pause: usize,
    pause_next: usize,
}

impl Default for Drafter {
    fn default() -> Self {
        Drafter {
            // A step of four rows costs about a third more than one.
            length: 3,
            pause: 0,
            pause_next: 1,
        }
    }
}

impl Drafter {
    /// At most `max` tokens that may follow `ids`.
    pub fn draft(&mut self, ids: &[u32], max: usize) -> Vec<u32> {
        if self.pause > 0 {
            self.pause -= 1;
            return Vec::new();
        }
        let found = earlier(ids);
        let length = self.length.min(max);
        found[..found.len().min(length)].to_vec()
    }

    /// Of `drafted` tokens the first `taken` were right.
    pub fn verified(&mut self, drafted: usize, taken: usize) {
        if taken == drafted {
            self.length = (2 * self.length).min(DRAFT_ROWS_MAX);
        } else {
            self.length = taken.max(1);
        }
        if taken > 0 {
            self.pause_next = 1;
        } else {
            self.pause = self.pause_next;
            self.pause_next = (2 * self.pause_next).min(DRAFT_PAUSE_STEPS_MAX);
        }
    }
}

/// What followed the latest earlier place where the last tokens stand; empty when there is none.
fn earlier(ids: &[u32]) -> &[u32] {
    let Some(end) = ids.len().checked_sub(DRAFT_MATCH_TOKENS) else {
        return &[];
    };
    let last = &ids[end..];
    let from = end.saturating_sub(DRAFT_LOOKBACK_TOKENS);
    let places = ids[from..ids.len() - 1].windows(DRAFT_MATCH_TOKENS);
    match places.rev().position(|window| window == last) {
        Some(back) => &ids[ids.len() - 1 - back..],
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_drafted() {
        for (ids, follows) in [
            (&[1, 2, 3, 4, 5, 1, 2, 3][..], &[4, 5, 1, 2, 3][..]),
            // The latest place counts.
            (&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], &[5, 1, 2, 3]),
            // A run follows itself.
            (&[7, 7, 7, 7], &[7]),
            (&[1, 2, 3], &[]),
            (&[2, 3], &[]),
            (&[], &[]),
            (&[1, 2, 3, 4, 5, 6], &[]),
        ] {
            assert_eq!(earlier(ids), follows, "{ids:?}");
        }
    }

    #[test]
    fn wrong_drafts_pause_longer_and_longer() {
        let ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];
        let mut drafter = Drafter::default();
        assert_eq!(drafter.draft(&ids, 8), [4, 5, 6]);
        let mut silent = Vec::new();
        for _ in 0..6 {
            drafter.verified(3, 0);
            let mut steps = 0;
            while drafter.draft(&ids, 8).is_empty() {
                steps += 1;
            }
            silent.push(steps);
        }
        assert_eq!(silent, [1, 2, 4, 8, 16, 16]);
        drafter.verified(1, 1);
        assert_eq!(drafter.draft(&ids, 8).len(), 2);
        drafter.verified(2, 2);
        assert_eq!(drafter.draft(&ids, 8).len(), 4);
        assert_eq!(drafter.draft(&ids, 1).len(), 1);
    }
}
