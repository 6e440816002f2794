//! The cost of work, in seconds: the coefficients that a simulation turns packs and units into time with.

use crate::message::{Pack, Tower, TowerSet, Unit};
use crate::schedule::{CostModel, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Seconds of every kind of work. A calibration file is this as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    pub data: DataCosts,
    /// The costs of every tower that `towers` does not have.
    pub encoder: RoleCosts,
    /// The costs of single towers: frames of sound cost otherwise than patches of pictures.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub towers: BTreeMap<Tower, RoleCosts>,
    pub foundation: RoleCosts,
    /// A message from an engine to the scheduler or to another engine, or back.
    pub latency: f64,
}

impl Costs {
    /// Returns the costs of a tower's units.
    pub fn tower(&self, tower: Tower) -> &RoleCosts {
        self.towers.get(&tower).unwrap_or(&self.encoder)
    }

    /// Returns the seconds of a unit.
    pub(super) fn unit(&self, unit: &Unit) -> f64 {
        let (squares, patches) = unit_size(unit);
        self.tower(unit.tower()).batch(squares, patches)
    }

    /// Returns the seconds that an encoder of these towers needs once a step besides units, and the bytes that it reduces.
    pub(super) fn held(&self, towers: TowerSet) -> (f64, f64) {
        let own: Vec<&RoleCosts> = towers.iter().filter_map(|tower| self.towers.get(&tower)).collect();
        let is_covered = !towers.is_empty() && own.len() == towers.iter().count();
        let others = Some(&self.encoder).filter(|_| !is_covered);
        own.into_iter()
            .chain(others)
            .fold((0.0, 0.0), |(seconds, bytes), costs| (seconds + costs.per_step, bytes + costs.gradient_bytes))
    }
}

/// The costs of one data actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataCosts {
    /// Reading and tokenizing one sample.
    pub per_sample: f64,
    /// Decoding and cutting one patch of pixels.
    pub per_patch: f64,
    /// Handing one byte to an edge.
    pub per_byte: f64,
}

/// The costs of one rank of a pool: `per_square · Σl² + per_token · Σl + per_batch` for a batch, forward and backward
/// together. A batch is a pack of the foundation, whose `l` are documents' tokens, or a unit of an encoder, whose `l`
/// are frames' patches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleCosts {
    pub per_square: f64,
    pub per_token: f64,
    pub per_batch: f64,
    /// Optimizer, and whatever else comes once a step.
    pub per_step: f64,
    /// The forward's share of a batch, 0 to 1.
    pub forward: f64,
    /// Bytes that a rank gives to the reduction of gradients.
    pub gradient_bytes: f64,
}

impl Default for RoleCosts {
    fn default() -> Self {
        // A backward multiplies twice where a forward does once.
        let forward = 1.0 / 3.0;
        Self { per_square: 0.0, per_token: 0.0, per_batch: 0.0, per_step: 0.0, forward, gradient_bytes: 0.0 }
    }
}

impl RoleCosts {
    /// Returns the seconds of a batch with these `Σl²` and `Σl`.
    pub fn batch(&self, squares: f64, tokens: f64) -> f64 {
        self.per_square * squares + self.per_token * tokens + self.per_batch
    }

    /// Returns the seconds of a pack, forward and backward.
    pub(super) fn pack(&self, pack: &Pack) -> f64 {
        let (squares, tokens) = pack_size(pack);
        self.batch(squares, tokens)
    }
}

/// Returns `Σl²` and `Σl` over the documents of a pack.
pub(super) fn pack_size(pack: &Pack) -> (f64, f64) {
    let lens = pack.samples.iter().flat_map(|sample| sample.document_lens());
    lens.fold((0.0, 0.0), |(squares, tokens), &len| {
        let len = f64::from(len);
        (squares + len * len, tokens + len)
    })
}

/// Returns `Σl²` and `Σl` over the frames of a unit, as the scheduler counts them: patches attend within their frame, and the values of
/// pictures within a text are no tokens of it.
pub(super) fn unit_size(unit: &Unit) -> (f64, f64) {
    let work: Work = unit.items.iter().map(|item| CostModel::rows().item_work(&item.meta)).sum();
    (work.pairs as f64, work.tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemId, ItemMeta, Lane, PackId, Replica, SampleId, StepId, UnitId, UnitItem};

    #[test]
    fn a_text_with_pictures_is_as_long_as_its_tokens() {
        let size = |tower: Tower, [t, h, w]: [u32; 3]| {
            let meta = ItemMeta { tower, grid: Grid { t, h, w }, num_features: 1 };
            let id = ItemId { sample: SampleId(0), index: 0 };
            unit_size(&Unit {
                id: UnitId { step: StepId(0), index: 0 },
                lane: Lane(0),
                encoder: Replica::encoder(0),
                pack: PackId { step: StepId(0), index: 0 },
                replica: Replica::foundation(0),
                items: vec![UnitItem { id, owner: 0, meta }; 2],
            })
        };
        assert_eq!(size(Tower::Vision, [3, 20, 10]), (2.0 * 3.0 * 200.0 * 200.0, 2.0 * 600.0));
        assert_eq!(size(Tower::Text, [2414, 500, 1]), (2.0 * 500.0 * 500.0, 2.0 * (500.0 + 1178.0)));
    }
}
