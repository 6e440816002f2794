//! Units: each pack's items of a tower as consecutive pieces of encoder work, on lanes.

use super::PlanSpec;
use super::balance::{Chunk, by_deadline};
use crate::message::{Lane, Pack, StepId, Tower, Unit, UnitId, UnitItem};

/// Most units of one pack: all of them may wait at one foundation replica, and an edge carries 256 parcels.
const MAX_UNITS_PER_PACK: usize = 128;

/// Units in the order of `packs`, which is that of their deadlines, and of towers within a pack. Each pack's items of a
/// tower are cut so that its last unit ends as early as it can after what the lanes do before; such units of one pack and
/// tower are on different lanes.
pub(super) fn cut_units(spec: &PlanSpec, step: StepId, packs: &[Pack]) -> Vec<Unit> {
    let of_tower = |pack: &Pack, tower: Tower| pack.items().filter(|item| item.meta.tower == tower).collect::<Vec<_>>();
    let groups = packs.iter().flat_map(|pack| Tower::ALL.map(|tower| (pack, of_tower(pack, tower))));
    let groups: Vec<(&Pack, Vec<UnitItem>)> = groups.filter(|(_, items)| !items.is_empty()).collect();
    let cost = |item: &UnitItem| spec.encoder_cost.item(&item.meta);
    let costs: Vec<Vec<u64>> = groups.iter().map(|(_, items)| items.iter().map(cost).collect()).collect();
    let overhead = spec.encoder_cost.batch();
    let has = |tower: &&Tower| groups.iter().any(|(_, items)| items[0].meta.tower == **tower);
    let num_towers = Tower::ALL.iter().filter(has).count().max(1);
    let chunks = by_deadline(&costs, spec.num_lanes.max(1) as usize, overhead, MAX_UNITS_PER_PACK / num_towers);
    let unit = |(index, chunk): (usize, Chunk)| {
        let ((pack, items), lane) = (&groups[chunk.group], chunk.lane as u32);
        Unit {
            id: UnitId { step, index: index as u32 },
            lane: Lane(lane),
            encoder: lane % spec.encoder_replicas.max(1),
            pack: pack.id,
            replica: pack.replica,
            items: items[chunk.items].to_vec(),
        }
    };
    chunks.into_iter().enumerate().map(unit).collect()
}
