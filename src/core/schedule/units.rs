//! Units: each pack's items of a tower, split into consecutive pieces of encoder work and assigned to lanes.

use super::PlanSpec;
use super::balance::{Chunk, by_deadline};
use crate::message::{Lane, Pack, Replica, StepId, Tower, Unit, UnitId, UnitItem};

/// Maximum number of units per pack: all of them may wait at one foundation replica, and an edge carries 256 parcels.
const MAX_UNITS_PER_PACK: usize = 128;

/// Returns units in the order of `packs`, which is the order of their deadlines, and of towers within a pack. Each pack's items of
/// a tower are split so that the last unit ends as early as possible after the earlier work of that tower's lanes; the units of one
/// pack and tower are on different lanes. Towers are independent: a tower's lanes are the same whether it has its own pool or
/// shares one.
pub(super) fn cut_units(spec: &PlanSpec, step: StepId, packs: &[Pack]) -> Vec<Unit> {
    let has = |tower: &Tower| packs.iter().flat_map(Pack::items).any(|item| item.meta.tower == *tower);
    let towers: Vec<Tower> = Tower::ALL.into_iter().filter(has).collect();
    let max_units = MAX_UNITS_PER_PACK / towers.len().max(1);
    let mut units: Vec<Unit> = towers.into_iter().flat_map(|tower| units_of(spec, tower, packs, max_units)).collect();
    units.sort_by_key(|unit| unit.pack);
    units.iter_mut().zip(0..).for_each(|(unit, index)| unit.id = UnitId { step, index });
    units
}

/// Returns the units of one tower, without ids.
fn units_of(spec: &PlanSpec, tower: Tower, packs: &[Pack], max_units: usize) -> Vec<Unit> {
    let pool = spec.pool_of(tower);
    let of_tower = |pack: &Pack| pack.items().filter(|item| item.meta.tower == tower).collect::<Vec<UnitItem>>();
    let items: Vec<Vec<UnitItem>> = packs.iter().map(of_tower).collect();
    let cost = |item: &UnitItem| pool.cost.item(&item.meta);
    let costs: Vec<Vec<u64>> = items.iter().map(|items| items.iter().map(cost).collect()).collect();
    let chunks = by_deadline(&costs, pool.num_lanes.max(1) as usize, pool.cost.batch(), max_units);
    let unit = |chunk: Chunk| {
        let (pack, lane) = (&packs[chunk.group], chunk.lane as u32);
        Unit {
            id: UnitId::default(),
            lane: Lane(lane),
            encoder: Replica::new(pool.pool, lane % pool.replicas.max(1)),
            pack: pack.id,
            replica: pack.replica,
            items: items[chunk.group][chunk.items].to_vec(),
        }
    };
    chunks.into_iter().map(unit).collect()
}
