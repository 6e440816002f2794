//! The properties of a run that planning needs to know.

use super::{CostModel, FlowShape, HIGH_NOISE, LOW_NOISE, LearningRate, PackLimits, SigmaSpec};
use crate::config::{EncoderPool, FoundationPool, Placement, RunConfig};
use crate::message::{ActorId, PoolName, Replica, Role, SampleMeta, Tower, TowerSet, Unit};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Cost of a batch in addition to its items if lanes are fixed, in rows of items ([`Tower::rows`]): packs with fewer rows are
/// hardly split.
const BATCH_ROWS: u64 = 256;

/// Everything that a step plan depends on, except the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSpec {
    pub pack: PackLimits,
    pub learning_rate: LearningRate,
    /// The foundation pools, at least one.
    pub foundations: Vec<FoundationPlanSpec>,
    /// The encoder pools, in the order of their names. Empty only if the model has no tower.
    pub encoders: Vec<EncoderPlanSpec>,
    /// True if encoder `i` runs in the actor `foundation/i`; there is then only one foundation pool.
    pub colocated: bool,
    pub shape: ModelShape,
    /// Noise levels of training; `None` for a model that predicts tokens.
    pub sigma: Option<SigmaSpec>,
    pub credits: EdgeCredits,
}

/// The properties of a foundation pool that planning needs to know. Each pool has its own model; a step trains all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundationPlanSpec {
    pub pool: PoolName,
    /// Values of [`SampleMeta::route`] of the samples that it computes; together the pools cover all values.
    pub routes: Range<u32>,
    pub replicas: u32,
    /// Number of actors per replica.
    pub replica_ranks: u32,
    /// Cost of samples on a replica.
    pub cost: CostModel,
}

impl FoundationPlanSpec {
    /// Returns the only pool, which computes all samples on replicas of one actor.
    pub fn only(replicas: u32, cost: CostModel) -> Self {
        Self { pool: PoolName::FOUNDATION, routes: 0..u32::MAX, replicas, replica_ranks: 1, cost }
    }
}

/// The properties of an encoder pool that planning needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EncoderPlanSpec {
    pub pool: PoolName,
    /// The towers that it holds.
    pub towers: TowerSet,
    /// Number of replicas; it affects only `Unit::encoder`.
    pub replicas: u32,
    /// Number of actors per replica.
    pub replica_ranks: u32,
    /// Number of lanes of the pool's gradient sum.
    pub num_lanes: u32,
    /// Cost of media items on an encoder.
    pub cost: CostModel,
}

impl EncoderPlanSpec {
    /// Returns a pool of replicas of one actor, with item costs by their rows alone.
    pub fn new(pool: PoolName, towers: TowerSet, replicas: u32, num_lanes: u32) -> Self {
        Self { pool, towers, replicas, replica_ranks: 1, num_lanes, cost: CostModel::rows() }
    }
}

/// Sizes of a model that planning needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Width of the foundation's residual stream.
    pub hidden_size: u64,
    /// Sample length in tokens at which the foundation's attention costs as much as its matrix products.
    pub even_length: u64,
    pub towers: TowerSet,
    /// Bytes of one row ([`Tower::rows`]) of a tower's items.
    pub bytes_per_patch: ByTower,
    /// Bytes of one row of a tower's features, including all DeepStack levels.
    pub bytes_per_feature: ByTower,
    /// `None` for a model that predicts tokens.
    pub flow: Option<FlowShape>,
}

/// A number of bytes per tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByTower([u64; Tower::ALL.len()]);

impl ByTower {
    /// Returns the same number for all towers.
    pub const fn all(bytes: u64) -> Self {
        Self([bytes; Tower::ALL.len()])
    }

    /// Returns the number of bytes for a tower.
    pub fn of(&self, tower: Tower) -> u64 {
        self.0[tower as usize]
    }

    /// Raises a tower's number to `bytes` if it is smaller.
    pub fn raise(&mut self, tower: Tower, bytes: u64) {
        let own = &mut self.0[tower as usize];
        *own = bytes.max(*own);
    }
}

impl ModelShape {
    /// Returns the cost model of samples on the foundation.
    fn cost(&self) -> CostModel {
        CostModel::transformer(self.even_length)
    }
}

/// Returns the specs by which a run's foundation pools are planned.
fn foundations(config: &RunConfig, shape: ModelShape) -> Vec<FoundationPlanSpec> {
    let spec = |(pool, settings): (PoolName, FoundationPool)| {
        let layout = settings.layout();
        FoundationPlanSpec {
            pool,
            routes: routes_of(pool),
            replica_ranks: layout.replica_ranks() as u32,
            ..FoundationPlanSpec::only(layout.dp as u32, shape.cost())
        }
    };
    config.foundations().into_iter().map(spec).collect()
}

/// Returns the specs by which a run's encoder pools are planned.
fn encoders(config: &RunConfig, towers: TowerSet, colocated: bool) -> Vec<EncoderPlanSpec> {
    let foundation_ranks = config.pools.foundation.layout().ranks();
    let spec = |(name, pool, towers): (PoolName, &EncoderPool, TowerSet)| {
        let (replicas, replica_ranks) = match colocated {
            true => (foundation_ranks, 1),
            false => (pool.replicas.max(1), pool.layout().replica_ranks()),
        };
        // Lanes that are fixed may be more than encoders: what is cut for all of them costs an encoder a batch for each chunk.
        let (num_lanes, batch_rows) = match config.run.deterministic {
            true => (config.run.lanes, BATCH_ROWS),
            false => (replicas, 0),
        };
        EncoderPlanSpec {
            replica_ranks: replica_ranks as u32,
            cost: CostModel::rows().with_batch(batch_rows),
            ..EncoderPlanSpec::new(name, towers, replicas as u32, num_lanes as u32)
        }
    };
    config.pools.encoders(towers).into_iter().map(spec).collect()
}

/// Returns the routes of the samples that a foundation pool computes.
fn routes_of(pool: PoolName) -> Range<u32> {
    match pool {
        PoolName::FOUNDATION_HIGH => HIGH_NOISE..HIGH_NOISE + 1,
        PoolName::FOUNDATION_LOW => LOW_NOISE..LOW_NOISE + 1,
        _ => 0..u32::MAX,
    }
}

/// Credits of the edges in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeCredits {
    pub pixels: u64,
    pub tokens: u64,
    pub features: u64,
}

impl PlanSpec {
    /// Returns the plan spec for a checked config and a model of this shape.
    pub fn new(config: &RunConfig, shape: ModelShape) -> Self {
        let colocated = config.pools.placement == Placement::Colocated;
        let flow = |flow| SigmaSpec::new(config.run.seed, config.train.sigma, config.model.experts, flow);
        Self {
            pack: PackLimits::of_run(config),
            learning_rate: LearningRate::new(&config.train),
            foundations: foundations(config, shape),
            encoders: encoders(config, shape.towers, colocated),
            colocated,
            shape,
            sigma: shape.flow.map(flow),
            credits: EdgeCredits {
                pixels: config.edges.pixels.credit.bytes(),
                tokens: config.edges.tokens.credit.bytes(),
                features: config.edges.features.credit.bytes(),
            },
        }
    }

    /// Returns the foundation pool that computes a sample, as an index into `foundations`.
    pub fn foundation_of(&self, sample: &SampleMeta) -> Option<usize> {
        self.foundations.iter().position(|pool| pool.routes.contains(&sample.route))
    }

    /// Returns the cost of a sample on a replica of the pool that computes it; 0 if none does.
    pub fn sample_cost(&self, sample: &SampleMeta) -> u64 {
        self.foundation_of(sample).map_or(0, |pool| self.foundations[pool].cost.sample(sample))
    }

    /// Returns the replica that an actor leads, whose measurements count for the replica. `None`: it is another rank of a replica.
    pub fn led_by(&self, actor: ActorId) -> Option<Replica> {
        let encoders = self.encoders.iter().map(|pool| (pool.pool, pool.replica_ranks));
        let foundations = self.foundations.iter().map(|pool| (pool.pool, pool.replica_ranks));
        let (pool, ranks) = encoders.chain(foundations).find(|(pool, _)| *pool == actor.pool)?;
        actor.index.is_multiple_of(ranks).then(|| Replica::new(pool, actor.index / ranks))
    }

    /// Returns the actor that receives the tokens and features of a foundation replica.
    pub fn leader(&self, replica: Replica) -> ActorId {
        let pool = self.foundation_pool(replica.pool);
        replica.leader(Role::Foundation, pool.map_or(1, |pool| pool.replica_ranks))
    }

    /// Returns the pool that holds a tower.
    ///
    /// # Panics
    /// No pool does: a sample has an item that the model does not take.
    pub fn pool_of(&self, tower: Tower) -> &EncoderPlanSpec {
        let pool = self.encoders.iter().find(|pool| pool.towers.contains(tower));
        pool.unwrap_or_else(|| panic!("no pool holds the {tower} tower"))
    }

    /// Returns the encoder pool of this name.
    pub fn encoder_pool(&mut self, name: PoolName) -> Option<&mut EncoderPlanSpec> {
        self.encoders.iter_mut().find(|pool| pool.pool == name)
    }

    /// Returns the foundation pool of this name.
    pub fn foundation_pool(&self, name: PoolName) -> Option<&FoundationPlanSpec> {
        self.foundations.iter().find(|pool| pool.pool == name)
    }

    /// Returns the costs of a pool of either kind.
    pub fn cost_mut(&mut self, name: PoolName) -> Option<&mut CostModel> {
        let encoders = self.encoders.iter_mut().map(|pool| (pool.pool, &mut pool.cost));
        let foundations = self.foundations.iter_mut().map(|pool| (pool.pool, &mut pool.cost));
        encoders.chain(foundations).find(|(pool, _)| *pool == name).map(|(_, cost)| cost)
    }

    /// Returns the cost of a unit on its encoder.
    pub fn unit_cost(&self, unit: &Unit) -> u64 {
        let cost = self.pool_of(unit.tower()).cost;
        unit.items.iter().map(|item| cost.item(&item.meta)).sum()
    }

    /// Returns the first actor of an encoder replica.
    pub fn encoder(&self, replica: Replica) -> ActorId {
        let role = if self.colocated { Role::Foundation } else { Role::Encoder };
        let pool = if self.colocated { PoolName::FOUNDATION } else { replica.pool };
        Replica { pool, ..replica }.leader(role, 1)
    }
}
