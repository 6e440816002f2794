//! Units: each pack's media items as consecutive pieces of encoder work, on lanes.

use super::PlanSpec;
use super::balance::consecutive;
use crate::message::{Lane, Pack, StepId, Unit, UnitId, UnitItem};

/// Most units of one pack: all of them may wait at one foundation replica, and an edge carries 256 parcels.
const MAX_UNITS_PER_PACK: usize = 128;

/// Units in deadline order, that is in the order of `packs`. Each pack's items are cut into chunks of like patches;
/// each chunk goes to the lane with the fewest patches so far, the chunks of one pack to different lanes.
pub(super) fn cut_units(spec: &PlanSpec, step: StepId, packs: &[Pack]) -> Vec<Unit> {
    let num_lanes = spec.num_lanes.max(1) as usize;
    let mut lanes = Lanes { patches: vec![0; num_lanes], next: 0 };
    let mut units = Vec::new();
    for pack in packs {
        let items: Vec<UnitItem> = pack.items().collect();
        let patches: Vec<u64> = items.iter().map(|item| item.meta.grid.num_patches() as u64).collect();
        let mut taken = vec![false; num_lanes];
        for chunk in consecutive(&patches, num_lanes.min(MAX_UNITS_PER_PACK)) {
            let lane = lanes.take(patches[chunk.clone()].iter().sum(), &mut taken);
            units.push(Unit {
                id: UnitId { step, index: units.len() as u32 },
                lane: Lane(lane),
                encoder: lane % spec.encoder_replicas.max(1),
                pack: pack.id,
                replica: pack.replica,
                items: items[chunk].to_vec(),
            });
        }
    }
    units
}

/// Load of the lanes over the step.
struct Lanes {
    patches: Vec<u64>,
    /// Where ties begin: rotates, so that equal units go round.
    next: usize,
}

impl Lanes {
    fn take(&mut self, patches: u64, taken: &mut [bool]) -> u32 {
        let num_lanes = self.patches.len();
        let round = (0..num_lanes).map(|offset| (self.next + offset) % num_lanes);
        let lane = round
            .filter(|&lane| !taken[lane])
            .min_by_key(|&lane| self.patches[lane])
            .expect("a pack has at most as many units as there are lanes");
        self.patches[lane] += patches;
        taken[lane] = true;
        self.next = (lane + 1) % num_lanes;
        lane as u32
    }
}
