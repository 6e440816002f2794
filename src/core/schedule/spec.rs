//! Describes what planning needs to know of a run.

use super::{CostModel, LearningRate, PackLimits};
use crate::config::{Placement, RunConfig};
use crate::message::{ActorId, PoolName, Replica, Role, Tower, TowerSet, Unit};
use serde::{Deserialize, Serialize};

/// Patches that an encoder's batch takes beside its own where lanes are fixed: packs with fewer are hardly cut.
const BATCH_PATCHES: u64 = 256;

/// Everything that a step plan depends on, but for the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSpec {
    pub pack: PackLimits,
    /// The cost of samples on a foundation replica.
    pub cost: CostModel,
    pub learning_rate: LearningRate,
    pub foundation_replicas: u32,
    /// Actors of one foundation replica.
    pub replica_ranks: u32,
    /// The encoder pools, in the order of their names. Empty only where the model has no tower.
    pub encoders: Vec<EncoderPlanSpec>,
    /// Encoder `i` lives in the actor `foundation/i`.
    pub colocated: bool,
    pub shape: ModelShape,
    pub credits: EdgeCredits,
}

/// What planning needs to know of an encoder pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EncoderPlanSpec {
    pub pool: PoolName,
    /// The towers that it holds.
    pub towers: TowerSet,
    /// Decides the number in `Unit::encoder` and nothing else.
    pub replicas: u32,
    /// Shares of the pool's gradient sum.
    pub num_lanes: u32,
    /// The cost of media items on an encoder.
    pub cost: CostModel,
}

impl EncoderPlanSpec {
    /// A pool whose items cost by their patches alone.
    pub fn new(pool: PoolName, towers: TowerSet, replicas: u32, num_lanes: u32) -> Self {
        Self { pool, towers, replicas, num_lanes, cost: CostModel::patches() }
    }
}

/// The sizes of a model that planning needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Width of the foundation's residual stream: weighs attention against matrices in the cost of a sample.
    pub hidden_size: u64,
    pub towers: TowerSet,
    /// The bytes of one patch or frame of an item, of the tower that has the widest.
    pub bytes_per_patch: u64,
    /// The bytes of one row of features, all DeepStack levels together, of the tower that has the widest.
    pub bytes_per_feature: u64,
}

/// Credits of the edges, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeCredits {
    pub pixels: u64,
    pub tokens: u64,
    pub features: u64,
}

impl PlanSpec {
    pub fn new(config: &RunConfig, shape: ModelShape) -> Self {
        let layout = config.pools.foundation.layout();
        let colocated = config.pools.placement == Placement::Colocated;
        let encoders = config.pools.encoders(shape.towers).into_iter().map(|(name, pool, towers)| {
            let replicas = if colocated { layout.ranks() } else { pool.replicas };
            // Lanes that are fixed may be more than encoders: what is cut for all of them costs an encoder a batch a piece.
            let (num_lanes, batch) = match config.run.deterministic {
                true => (config.run.lanes, BATCH_PATCHES),
                false => (replicas, 0),
            };
            let cost = CostModel::patches().with_batch(batch);
            EncoderPlanSpec { pool: name, towers, replicas: replicas as u32, num_lanes: num_lanes as u32, cost }
        });
        Self {
            pack: PackLimits {
                max_samples: config.train.micro_batch_size.unwrap_or(usize::MAX),
                max_tokens: config.data.pack.max_tokens,
                max_images: config.data.pack.max_images.unwrap_or(usize::MAX),
                max_visual_tokens: config.data.pack.max_visual_tokens.unwrap_or(usize::MAX),
            },
            cost: CostModel::decoder(shape.hidden_size),
            learning_rate: LearningRate::new(&config.train),
            foundation_replicas: layout.dp as u32,
            replica_ranks: layout.replica_ranks() as u32,
            encoders: encoders.collect(),
            colocated,
            shape,
            credits: EdgeCredits {
                pixels: config.edges.pixels.credit.bytes(),
                tokens: config.edges.tokens.credit.bytes(),
                features: config.edges.features.credit.bytes(),
            },
        }
    }

    /// The pool that holds a tower.
    ///
    /// # Panics
    /// No pool does: a sample has an item that the model does not take.
    pub fn pool_of(&self, tower: Tower) -> &EncoderPlanSpec {
        let pool = self.encoders.iter().find(|pool| pool.towers.contains(tower));
        pool.unwrap_or_else(|| panic!("no pool holds the {tower} tower"))
    }

    /// The encoder pool of this name.
    pub fn encoder_pool(&mut self, name: PoolName) -> Option<&mut EncoderPlanSpec> {
        self.encoders.iter_mut().find(|pool| pool.pool == name)
    }

    /// The cost of a unit on its encoder.
    pub fn unit_cost(&self, unit: &Unit) -> u64 {
        let cost = self.pool_of(unit.tower()).cost;
        unit.items.iter().map(|item| cost.item(&item.meta)).sum()
    }

    /// The first actor of a replica that encodes.
    pub fn encoder(&self, replica: Replica) -> ActorId {
        let role = if self.colocated { Role::Foundation } else { Role::Encoder };
        let pool = if self.colocated { PoolName::FOUNDATION } else { replica.pool };
        Replica { pool, ..replica }.leader(role, 1)
    }
}
