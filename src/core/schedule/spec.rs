//! Describes what planning needs to know of a run.

use super::{CostModel, FlowShape, HIGH_NOISE, LOW_NOISE, LearningRate, PackLimits, SigmaSpec};
use crate::config::{FoundationPool, Placement, RunConfig};
use crate::message::{ActorId, PoolName, Replica, Role, SampleMeta, Tower, TowerSet, Unit};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Patches that an encoder's batch takes beside its own where lanes are fixed: packs with fewer are hardly cut.
const BATCH_PATCHES: u64 = 256;

/// Everything that a step plan depends on, but for the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSpec {
    pub pack: PackLimits,
    pub learning_rate: LearningRate,
    /// The foundation pools, at least one.
    pub foundations: Vec<FoundationPlanSpec>,
    /// The encoder pools, in the order of their names. Empty only where the model has no tower.
    pub encoders: Vec<EncoderPlanSpec>,
    /// Encoder `i` lives in the actor `foundation/i`; the only foundation pool then.
    pub colocated: bool,
    pub shape: ModelShape,
    /// The noise levels of training; `None` of a model that predicts tokens.
    pub sigma: Option<SigmaSpec>,
    pub credits: EdgeCredits,
}

/// Holds what planning needs to know of a foundation pool. Each has a model of its own; a step trains them all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundationPlanSpec {
    pub pool: PoolName,
    /// It computes the samples with these values of [`SampleMeta::route`]: those of all pools cover what samples have.
    pub routes: Range<u32>,
    pub replicas: u32,
    /// Actors of one replica.
    pub replica_ranks: u32,
    /// The cost of samples on a replica.
    pub cost: CostModel,
}

impl FoundationPlanSpec {
    /// The only pool, which computes all samples on replicas of one actor.
    pub fn only(replicas: u32, cost: CostModel) -> Self {
        Self { pool: PoolName::FOUNDATION, routes: 0..u32::MAX, replicas, replica_ranks: 1, cost }
    }
}

/// Holds what planning needs to know of an encoder pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EncoderPlanSpec {
    pub pool: PoolName,
    /// The towers that it holds.
    pub towers: TowerSet,
    /// Decides the number in `Unit::encoder` and nothing else.
    pub replicas: u32,
    /// Actors of one replica.
    pub replica_ranks: u32,
    /// Shares of the pool's gradient sum.
    pub num_lanes: u32,
    /// The cost of media items on an encoder.
    pub cost: CostModel,
}

impl EncoderPlanSpec {
    /// A pool of replicas of one actor, whose items cost by their patches alone.
    pub fn new(pool: PoolName, towers: TowerSet, replicas: u32, num_lanes: u32) -> Self {
        Self { pool, towers, replicas, replica_ranks: 1, num_lanes, cost: CostModel::patches() }
    }
}

/// The sizes of a model that planning needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Width of the foundation's residual stream.
    pub hidden_size: u64,
    /// The tokens of a sample at which the foundation's attention costs as much as its matrices.
    pub even_length: u64,
    pub towers: TowerSet,
    /// The bytes of one patch, frame, token or pixel of a tower's items.
    pub bytes_per_patch: ByTower,
    /// The bytes of one row of a tower's features, all DeepStack levels together.
    pub bytes_per_feature: ByTower,
    /// `None` of a model that predicts tokens.
    pub flow: Option<FlowShape>,
}

/// A number of bytes for each tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByTower([u64; Tower::ALL.len()]);

impl ByTower {
    /// The same number for all towers.
    pub const fn all(bytes: u64) -> Self {
        Self([bytes; Tower::ALL.len()])
    }

    pub fn of(&self, tower: Tower) -> u64 {
        self.0[tower as usize]
    }

    /// Raises a tower's number to `bytes`, if it is smaller.
    pub fn raise(&mut self, tower: Tower, bytes: u64) {
        let own = &mut self.0[tower as usize];
        *own = bytes.max(*own);
    }
}

impl ModelShape {
    /// The cost of a sample on the foundation.
    fn cost(&self) -> CostModel {
        CostModel::transformer(self.even_length)
    }
}

/// The samples that a foundation pool computes, by their routes.
fn routes_of(pool: PoolName) -> Range<u32> {
    match pool {
        PoolName::FOUNDATION_HIGH => HIGH_NOISE..HIGH_NOISE + 1,
        PoolName::FOUNDATION_LOW => LOW_NOISE..LOW_NOISE + 1,
        _ => 0..u32::MAX,
    }
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
            let replicas = if colocated { layout.ranks() } else { pool.replicas.max(1) };
            // Lanes that are fixed may be more than encoders: what is cut for all of them costs an encoder a batch a piece.
            let (num_lanes, batch) = match config.run.deterministic {
                true => (config.run.lanes, BATCH_PATCHES),
                false => (replicas, 0),
            };
            let cost = CostModel::patches().with_batch(batch);
            let replica_ranks = if colocated { 1 } else { pool.layout().replica_ranks() as u32 };
            EncoderPlanSpec {
                replica_ranks,
                cost,
                ..EncoderPlanSpec::new(name, towers, replicas as u32, num_lanes as u32)
            }
        });
        let foundation = |(pool, settings): (PoolName, FoundationPool)| {
            let layout = settings.layout();
            FoundationPlanSpec {
                pool,
                routes: routes_of(pool),
                replica_ranks: layout.replica_ranks() as u32,
                ..FoundationPlanSpec::only(layout.dp as u32, shape.cost())
            }
        };
        Self {
            pack: PackLimits {
                max_samples: config.train.micro_batch_size.unwrap_or(usize::MAX),
                max_tokens: config.data.pack.max_tokens,
                max_images: config.data.pack.max_images.unwrap_or(usize::MAX),
                max_visual_tokens: config.data.pack.max_visual_tokens.unwrap_or(usize::MAX),
            },
            learning_rate: LearningRate::new(&config.train),
            foundations: config.foundations().into_iter().map(foundation).collect(),
            encoders: encoders.collect(),
            colocated,
            shape,
            sigma: shape
                .flow
                .map(|flow| SigmaSpec::new(config.run.seed, config.train.sigma, config.model.experts, flow)),
            credits: EdgeCredits {
                pixels: config.edges.pixels.credit.bytes(),
                tokens: config.edges.tokens.credit.bytes(),
                features: config.edges.features.credit.bytes(),
            },
        }
    }

    /// The foundation pool that computes a sample, by its place in `foundations`.
    pub fn foundation_of(&self, sample: &SampleMeta) -> Option<usize> {
        self.foundations.iter().position(|pool| pool.routes.contains(&sample.route))
    }

    /// The cost of a sample on a replica of the pool that computes it; 0 where none does.
    pub fn sample_cost(&self, sample: &SampleMeta) -> u64 {
        self.foundation_of(sample).map_or(0, |pool| self.foundations[pool].cost.sample(sample))
    }

    /// The replica that an actor leads: what it measures is measured of the replica. `None`: it is another rank of one.
    pub fn led_by(&self, actor: ActorId) -> Option<Replica> {
        let encoders = self.encoders.iter().map(|pool| (pool.pool, pool.replica_ranks));
        let foundations = self.foundations.iter().map(|pool| (pool.pool, pool.replica_ranks));
        let (pool, ranks) = encoders.chain(foundations).find(|(pool, _)| *pool == actor.pool)?;
        actor.index.is_multiple_of(ranks).then(|| Replica::new(pool, actor.index / ranks))
    }

    /// The actor to which the tokens and features of a foundation replica go.
    pub fn leader(&self, replica: Replica) -> ActorId {
        let pool = self.foundation_pool(replica.pool);
        replica.leader(Role::Foundation, pool.map_or(1, |pool| pool.replica_ranks))
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

    /// The foundation pool of this name.
    pub fn foundation_pool(&self, name: PoolName) -> Option<&FoundationPlanSpec> {
        self.foundations.iter().find(|pool| pool.pool == name)
    }

    /// The costs of a pool of either kind.
    pub fn cost_mut(&mut self, name: PoolName) -> Option<&mut CostModel> {
        let encoders = self.encoders.iter_mut().map(|pool| (pool.pool, &mut pool.cost));
        let foundations = self.foundations.iter_mut().map(|pool| (pool.pool, &mut pool.cost));
        encoders.chain(foundations).find(|(pool, _)| *pool == name).map(|(_, cost)| cost)
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
