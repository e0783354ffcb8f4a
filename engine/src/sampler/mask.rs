//! A set of tokens, one bit each: what a grammar allows next.

/// Bit `id % 32` of word `id / 32`. Ids beyond the words are not in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    pub fn from_ids(ids: &[u32]) -> Self {
        let words = ids.iter().max().map_or(0, |&id| id as usize / 32 + 1);
        let mut mask = Self {
            words: vec![0; words],
        };
        for &id in ids {
            mask.words[id as usize / 32] |= 1 << (id % 32);
        }
        mask
    }

    pub fn allows(&self, id: u32) -> bool {
        self.words
            .get(id as usize / 32)
            .is_some_and(|w| w & (1 << (id % 32)) != 0)
    }

    /// How many of the first `vocab` tokens are in the set.
    pub fn count(&self, vocab: usize) -> usize {
        let whole = vocab / 32;
        let full: u32 = self.words.iter().take(whole).map(|w| w.count_ones()).sum();
        let rest = self
            .words
            .get(whole)
            .map_or(0, |w| (w & !(u32::MAX << (vocab % 32))).count_ones());
        (full + rest) as usize
    }

    /// Minus infinity for every token outside the set.
    pub(super) fn apply(&self, row: &mut [f32]) {
        let mut words = self.words.iter().copied().chain(std::iter::repeat(0));
        for chunk in row.chunks_mut(32) {
            match words.next().unwrap_or(0) {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in chunk.iter_mut().enumerate() {
                        if word & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_is_never_allowed() {
        let mask = TokenMask::from_ids(&[0, 31, 32, 70]);
        let mut row = vec![1.0; 100];
        mask.apply(&mut row);
        let left: Vec<usize> = (0..100).filter(|&i| row[i] == 1.0).collect();
        assert_eq!(left, [0, 31, 32, 70]);
        assert_eq!(
            (
                mask.count(100),
                mask.count(32),
                mask.count(33),
                mask.count(70)
            ),
            (4, 2, 3, 3)
        );
        assert!(mask.allows(70) && !mask.allows(71) && !mask.allows(u32::MAX));
        assert_eq!(TokenMask::from_ids(&[]).count(5), 0);
    }
}
