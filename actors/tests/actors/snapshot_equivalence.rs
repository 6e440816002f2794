//! A coordinator beside one that was made from its snapshot: whatever they hear from then on, they must say the same.

use loongforge_core::schedule::{Coordinator, CoordinatorSpec, Input, Output};

/// Inputs, on average, after which the second one is replaced by a fresh restoration of the first.
const EVERY: u64 = 24;

pub struct SnapshotEquivalence {
    coordinator: Coordinator,
    restored: Coordinator,
    chance: u64,
}

impl SnapshotEquivalence {
    pub fn new(spec: CoordinatorSpec, seed: u64) -> Self {
        let coordinator = Coordinator::new(spec);
        let restored = restore(&coordinator);
        Self { coordinator, restored, chance: seed }
    }

    pub fn on(&mut self, input: Input) -> Vec<Output> {
        let theirs = self.restored.on(input.clone());
        let ours = self.coordinator.on(input);
        if ours != theirs {
            // What is no number does not equal itself.
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "who was restored says something else");
        }
        self.chance = crate::fake::mix(self.chance, 11);
        if self.chance.is_multiple_of(EVERY) {
            self.restored = restore(&self.coordinator);
        }
        ours
    }
}

fn restore(coordinator: &Coordinator) -> Coordinator {
    let snapshot = coordinator.snapshot();
    let restored = Coordinator::restore(&snapshot, None).expect("it was written just now");
    assert!(restored.snapshot() == snapshot, "it is written as it was read");
    restored
}
