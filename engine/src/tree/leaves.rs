//! The leaves of the tree, in the orders in which they may be given up.
//!
//! Within one class the block worth least is either the one longest overdue or the one that is due latest, but
//! for its depth and for what the disk has; so a few from both ends of each class are weighed.

use super::NodeId;
use crate::limits::VICTIMS_WEIGHED;
use crate::worth::{Class, Rhythm};
use std::collections::BTreeSet;

/// Where a leaf stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub class: Class,
    pub rhythm: Rhythm,
}

/// By when they are due, one set a class.
#[derive(Debug, Default)]
pub struct Leaves([BTreeSet<(u64, NodeId)>; Class::ALL.len()]);

impl Leaves {
    pub fn add(&mut self, id: NodeId, place: Place) {
        self.0[place.class as usize].insert((place.rhythm.due(), id));
    }

    /// `place` is where it stands.
    pub fn remove(&mut self, id: NodeId, place: Place) {
        let was = self.0[place.class as usize].remove(&(place.rhythm.due(), id));
        debug_assert!(was, "{id:?} does not stand at {place:?}");
    }

    pub fn contains(&self, id: NodeId, place: Place) -> bool {
        self.0[place.class as usize].contains(&(place.rhythm.due(), id))
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(BTreeSet::len).sum()
    }

    pub fn first(&self) -> Option<NodeId> {
        self.0.iter().find_map(|class| Some(class.first()?.1))
    }

    /// Those worth weighing against each other, of those that `may_go`.
    pub fn candidates(&self, may_go: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut candidates = Vec::with_capacity(2 * VICTIMS_WEIGHED * Class::ALL.len());
        for class in &self.0 {
            let free = class.iter().map(|(_, id)| *id).filter(|id| may_go(*id));
            candidates.extend(free.clone().take(VICTIMS_WEIGHED));
            candidates.extend(free.rev().take(VICTIMS_WEIGHED));
        }
        candidates
    }
}
