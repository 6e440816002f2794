//! Units: each pack's media items as consecutive pieces of encoder work, on lanes.

use super::PlanSpec;
use super::balance::{Chunk, by_deadline};
use crate::message::{Lane, Pack, StepId, Unit, UnitId, UnitItem};

/// Most units of one pack: all of them may wait at one foundation replica, and an edge carries 256 parcels.
const MAX_UNITS_PER_PACK: usize = 128;

/// Units in the order of `packs`, which is that of their deadlines. Each pack's items are cut so that its last unit ends
/// as early as it can after what the lanes do before; the units of one pack are on different lanes.
pub(super) fn cut_units(spec: &PlanSpec, step: StepId, packs: &[Pack]) -> Vec<Unit> {
    let items: Vec<Vec<UnitItem>> = packs.iter().map(|pack| pack.items().collect()).collect();
    let cost = |item: &UnitItem| spec.encoder_cost.item(&item.meta);
    let costs: Vec<Vec<u64>> = items.iter().map(|items| items.iter().map(cost).collect()).collect();
    let overhead = spec.encoder_cost.batch();
    let chunks = by_deadline(&costs, spec.num_lanes.max(1) as usize, overhead, MAX_UNITS_PER_PACK);
    let unit = |(index, chunk): (usize, Chunk)| {
        let (pack, lane) = (&packs[chunk.group], chunk.lane as u32);
        Unit {
            id: UnitId { step, index: index as u32 },
            lane: Lane(lane),
            encoder: lane % spec.encoder_replicas.max(1),
            pack: pack.id,
            replica: pack.replica,
            items: items[chunk.group][chunk.items].to_vec(),
        }
    };
    chunks.into_iter().enumerate().map(unit).collect()
}
