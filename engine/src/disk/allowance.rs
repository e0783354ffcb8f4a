//! The write budget: how many bytes may still be written to the disk.

use crate::limits::{DISK_WRITE_BURST_BYTES, DISK_WRITE_BYTES_A_SECOND};
use std::time::Duration;

/// Bytes that may be written: a store that fills again with time.
pub struct Allowance {
    bytes: u64,
    filled: Duration,
}

impl Default for Allowance {
    fn default() -> Self {
        Allowance {
            bytes: DISK_WRITE_BURST_BYTES,
            filled: Duration::ZERO,
        }
    }
}

impl Allowance {
    pub fn take(&mut self, bytes: u64, now: Duration) -> bool {
        let seconds = now.saturating_sub(self.filled).as_secs();
        if seconds > 0 {
            let more = seconds.saturating_mul(DISK_WRITE_BYTES_A_SECOND);
            self.bytes = self.bytes.saturating_add(more).min(DISK_WRITE_BURST_BYTES);
            self.filled = now;
        }
        let enough = self.bytes >= bytes;
        if enough {
            self.bytes -= bytes;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_allowance_is_spent_and_comes_back() {
        let mut allowance = Allowance::default();
        assert!(allowance.take(DISK_WRITE_BURST_BYTES, Duration::ZERO));
        assert!(!allowance.take(1, Duration::from_millis(500)));
        assert!(allowance.take(DISK_WRITE_BYTES_A_SECOND, Duration::from_secs(1)));
        assert!(!allowance.take(1, Duration::from_secs(1)));
        assert!(!allowance.take(DISK_WRITE_BURST_BYTES + 1, Duration::from_secs(1 << 40)));
    }
}
