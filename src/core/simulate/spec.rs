//! The inputs of a simulation.

use super::Costs;
use crate::config::Placement;
use crate::message::PoolName;
use crate::schedule::{CoordinatorSpec, EncoderPlanSpec, EncoderPoolSpec, Failure, FoundationPlanSpec, PoolSize};
use std::collections::BTreeMap;

/// A run and where it runs.
#[derive(Clone, Debug)]
pub struct SimSpec {
    /// The run; `steps` of it are simulated. Checkpoints take no time.
    pub coordinator: CoordinatorSpec,
    pub costs: Costs,
    pub cluster: Cluster,
    /// Cores that an encoder uses when it computes, by pool; others use [`Cluster::encoder_threads`].
    pub threads: BTreeMap<PoolName, f64>,
    /// True if the weights of colocated encoders are trained. For pools the coordinator's spec says it.
    pub colocated_trained: bool,
    /// First steps that the report leaves out: the pipeline fills.
    pub warm_up: u64,
    /// Steps that the report draws, counted from the first that is not left out.
    pub drawn_steps: u64,
}

/// The machines under a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Cores that all actors share; `None`: every rank has its own device.
    pub cores: Option<f64>,
    /// Share of the speed that is lost for each job that a core has beyond one.
    pub sharing_loss: f64,
    /// Cores that one actor of each pool uses when it computes.
    pub encoder_threads: f64,
    pub foundation_threads: f64,
    /// Seconds of a message between the scheduler and an engine, one way, besides `Costs::latency`.
    pub control_latency: f64,
    /// Seconds from an engine to another besides `Costs::latency`, and bytes a second that one rank sends.
    pub latency: f64,
    pub bandwidth: f64,
    /// Bytes a second of a rank in a reduction; its time is `2 (n - 1) / n · bytes / bandwidth` and a latency a round.
    pub reduce_bandwidth: f64,
    /// Pipeline stages of a foundation replica, each one rank; packs go through them in 1F1B order.
    pub stages: u32,
    /// Bytes of one token's hidden state, from stage to stage.
    pub bytes_per_hidden: f64,
    /// Standard deviation of the logarithm of every duration.
    pub jitter: f64,
    pub seed: u64,
}

impl Default for Cluster {
    /// Puts every rank on its own device, with links without delay.
    fn default() -> Self {
        Self {
            cores: None,
            sharing_loss: 0.0,
            encoder_threads: 1.0,
            foundation_threads: 1.0,
            control_latency: 0.0,
            latency: 0.0,
            bandwidth: f64::INFINITY,
            reduce_bandwidth: f64::INFINITY,
            stages: 1,
            bytes_per_hidden: 0.0,
            jitter: 0.0,
            seed: 1,
        }
    }
}

impl Cluster {
    /// Seconds of a reduction of `bytes` over `ranks`.
    pub(super) fn reduction(&self, bytes: f64, ranks: usize) -> f64 {
        if ranks < 2 || bytes == 0.0 {
            return 0.0;
        }
        let ranks = ranks as f64;
        2.0 * (ranks - 1.0) / ranks * bytes / self.reduce_bandwidth + self.latency * ranks.log2().ceil()
    }
}

impl SimSpec {
    /// Returns the same run on other pools. Lanes follow the encoders unless `fixed_lanes` says how many there are.
    pub fn with_pools(&self, placement: Placement, encoders: u32, foundations: u32, fixed_lanes: Option<u32>) -> Self {
        let mut spec = self.clone();
        let colocated = placement == Placement::Colocated;
        let encoders = if colocated { foundations } else { encoders };
        let CoordinatorSpec { pools, plan, encoders: rules, .. } = &mut spec.coordinator;
        plan.foundations = vec![FoundationPlanSpec::only(foundations, plan.foundations[0].cost)];
        pools.foundations = vec![PoolSize { name: PoolName::FOUNDATION, actors: foundations }];
        plan.colocated = colocated;
        let all: u32 = plan.encoders.iter().map(|pool| pool.replicas).sum();
        let mut left = encoders;
        for (pool, after) in plan.encoders.iter_mut().zip((0..self.coordinator.plan.encoders.len() as u32).rev()) {
            // Every pool has at least one, and the last one what is left.
            let share = (f64::from(encoders * pool.replicas) / f64::from(all.max(1))).round() as u32;
            let share = if after == 0 { left } else { share.clamp(1, left.saturating_sub(after).max(1)) };
            pool.replicas = if colocated { encoders } else { share };
            left = left.saturating_sub(share);
            pool.num_lanes = fixed_lanes.unwrap_or(pool.replicas);
        }
        let size = |pool: &EncoderPlanSpec| PoolSize { name: pool.pool, actors: pool.replicas };
        pools.encoders = plan.encoders.iter().filter(|_| !colocated).map(size).collect();
        let rule = |pool: &PoolSize| {
            let fresh = EncoderPoolSpec {
                name: pool.name,
                elastic: false,
                trained: self.is_trained(pool.name),
                cached: false,
                reads: false,
            };
            rules.iter().find(|rule| rule.name == pool.name).copied().unwrap_or(fresh)
        };
        *rules = pools.encoders.iter().map(rule).collect();
        spec
    }

    /// Returns the same run with trained, or with frozen encoders.
    pub fn with_training(mut self, is_trained: bool) -> Self {
        self.colocated_trained = is_trained;
        self.coordinator.encoders.iter_mut().for_each(|pool| pool.trained = is_trained);
        self
    }

    /// Returns whether the weights of a pool are trained; otherwise its encoders work ahead of the step.
    pub(super) fn is_trained(&self, pool: PoolName) -> bool {
        self.coordinator.encoder_pool(pool).map_or(self.colocated_trained, |pool| pool.trained)
    }

    /// Returns the cores that an encoder of a pool uses when it computes.
    pub(super) fn threads(&self, pool: PoolName) -> f64 {
        self.threads.get(&pool).copied().unwrap_or(self.cluster.encoder_threads)
    }

    /// Returns the seconds that an encoder of a pool needs once a step besides units, and the bytes that it reduces.
    pub(super) fn held(&self, pool: PoolName) -> (f64, f64) {
        let pools = &self.coordinator.plan.encoders;
        let towers = pools.iter().find(|known| known.pool == pool).map(|pool| pool.towers).unwrap_or_default();
        self.costs.held(towers)
    }

    /// Returns the pools of encoders, colocated ones included, with the number of their encoders.
    pub(super) fn encoders(&self) -> impl Iterator<Item = (PoolName, u32)> + use<'_> {
        self.coordinator.plan.encoders.iter().map(|pool| (pool.pool, pool.replicas))
    }
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The run ended as a real one would have.
    #[error("the simulated run failed: {0}")]
    Run(Failure),
    #[error("the simulated run stalled in step {step}, with nothing in flight")]
    Stuck { step: u64 },
    #[error("a simulation of {steps} steps has nothing to report after {warm_up} warm-up steps")]
    NoSteps { steps: u64, warm_up: u64 },
}
