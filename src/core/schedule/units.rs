//! Units: each pack's media items as consecutive pieces of encoder work, on lanes.

use super::PlanSpec;
use super::balance::consecutive;
use crate::message::{Lane, Pack, StepId, Unit, UnitId, UnitItem};
use std::collections::BTreeSet;

/// Most units of one pack: all of them may wait at one foundation replica, and an edge carries 256 parcels.
const MAX_UNITS_PER_PACK: usize = 128;

/// Units in deadline order, that is in the order of `packs`. Each pack's items are cut into chunks of like patches;
/// each chunk goes to the lane with the fewest patches so far, the chunks of one pack to different lanes.
pub(super) fn cut_units(spec: &PlanSpec, step: StepId, packs: &[Pack]) -> Vec<Unit> {
    let num_lanes = spec.num_lanes.max(1) as usize;
    let mut lanes = Lanes::new(num_lanes as u32);
    let mut units = Vec::new();
    for pack in packs {
        let items: Vec<UnitItem> = pack.items().collect();
        let patches: Vec<u64> = items.iter().map(|item| item.meta.grid.num_patches() as u64).collect();
        for chunk in consecutive(&patches, num_lanes.min(MAX_UNITS_PER_PACK)) {
            let lane = lanes.take(patches[chunk.clone()].iter().sum());
            units.push(Unit {
                id: UnitId { step, index: units.len() as u32 },
                lane: Lane(lane),
                encoder: lane % spec.encoder_replicas.max(1),
                pack: pack.id,
                replica: pack.replica,
                items: items[chunk].to_vec(),
            });
        }
        lanes.release();
    }
    units
}

/// Load of the lanes over the step.
struct Lanes {
    /// Patches and number of every lane that the pack at hand does not use.
    free: BTreeSet<(u64, u32)>,
    /// Those that it does.
    taken: Vec<(u64, u32)>,
    /// Where ties begin: rotates, so that equal units go round.
    next: u32,
    num_lanes: u32,
}

impl Lanes {
    fn new(num_lanes: u32) -> Self {
        Self { free: (0..num_lanes).map(|lane| (0, lane)).collect(), taken: Vec::new(), next: 0, num_lanes }
    }

    /// The lane with the fewest patches that the pack does not use.
    fn take(&mut self, patches: u64) -> u32 {
        let &(least, first) = self.free.first().expect("a pack has at most as many units as there are lanes");
        let after = self.free.range((least, self.next)..=(least, u32::MAX)).next();
        let lane = after.map_or(first, |&(_, lane)| lane);
        self.free.remove(&(least, lane));
        self.taken.push((least + patches, lane));
        self.next = (lane + 1) % self.num_lanes;
        lane
    }

    /// Another pack: all lanes are free again.
    fn release(&mut self) {
        self.free.extend(self.taken.drain(..));
    }
}
