//! Plans that were made and not yet called: what each counts on is held until the call or its expiry.
//!
//! Invariant: bounded; an expired plan holds no block, but is remembered, so that the report can
//! name what was evicted since.

use crate::cache::Cache;
use crate::keys::ChainKey;
use crate::limits::PLAN_PINS_MAX;
use crate::pool::Lease;
use crate::report::Plan;
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Debug)]
pub struct Pin {
    /// The end of the planned prompt.
    pub key: ChainKey,
    pub plan: Plan,
    /// The cache's eviction counter when the plan was made.
    pub evicted_at_plan: u64,
    /// The request that this plan was made for, once it was submitted.
    pub request: Option<u64>,
    pub lease: Lease,
    pub expires: Duration,
}

/// Oldest first.
#[derive(Debug, Default)]
pub struct Pins(VecDeque<Pin>);

impl Pins {
    pub fn add(&mut self, cache: &mut Cache, pin: Pin) {
        if pin.request.is_none() {
            let same = |p: &Pin| p.request.is_none() && p.key == pin.key;
            if let Some(old) = self.take(same) {
                cache.release(old.lease);
            }
        }
        if self.0.len() >= PLAN_PINS_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            cache.release(oldest.lease);
        }
        self.0.push_back(pin);
    }

    /// The plan that was made for this prompt and not called yet; it belongs to `request` now.
    pub fn claim(&mut self, key: ChainKey, request: u64) -> Option<&Pin> {
        let mut open = self.0.iter_mut();
        let pin = open.find(|p| p.request.is_none() && p.key == key)?;
        pin.request = Some(request);
        Some(pin)
    }

    /// Gives back what was held for `request`.
    pub fn release(&mut self, cache: &mut Cache, request: u64) {
        if let Some(pin) = self.take(|p| p.request == Some(request)) {
            cache.release(pin.lease);
        }
    }

    pub fn expire(&mut self, cache: &mut Cache, now: Duration) {
        for pin in self.0.iter_mut().filter(|p| p.expires <= now) {
            cache.release(std::mem::replace(&mut pin.lease, Lease::empty()));
        }
    }

    /// Under pressure the oldest plan that holds blocks gives them up. False when none does.
    pub fn give_up_oldest(&mut self, cache: &mut Cache) -> bool {
        let Some(pin) = self.0.iter_mut().find(|p| !p.lease.is_empty()) else {
            return false;
        };
        cache.release(std::mem::replace(&mut pin.lease, Lease::empty()));
        true
    }

    /// When the next plan that holds blocks expires.
    pub fn next_expiry(&self) -> Option<Duration> {
        let holding = self.0.iter().filter(|p| !p.lease.is_empty());
        holding.map(|p| p.expires).min()
    }

    /// Plans that hold blocks.
    pub fn holding(&self) -> usize {
        self.0.iter().filter(|p| !p.lease.is_empty()).count()
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.0.iter().map(|p| &p.lease)
    }

    pub fn clear(&mut self, cache: &mut Cache) {
        self.0.drain(..).for_each(|pin| cache.release(pin.lease));
    }

    fn take(&mut self, which: impl Fn(&Pin) -> bool) -> Option<Pin> {
        let index = self.0.iter().position(which)?;
        self.0.remove(index)
    }
}
