//! Engines without models: they keep the contract of `core::engine` and check that everybody else does.
//!
//! The "loss" is a function of samples, pixels and parameter versions alone, so two runs that report the same losses
//! computed the same things, whatever the order and the number of encoders.
#![allow(dead_code, unused_imports, reason = "each test takes what it needs")]

mod data;
mod encoder;
mod foundation;

pub use data::{FakeData, is_bad, sample, sample_of};
pub use encoder::FakeEncoder;
pub use foundation::FakeFoundation;

use loongforge_actors::{RunSpec, StopOn};
use loongforge_core::config::{BadSamples, SavePoints, Schedule};
use loongforge_core::engine::Engine;
use loongforge_core::message::{ActorId, ItemId, PoolName, Role, StepId, Tower};
use loongforge_core::rng;
use loongforge_core::schedule::{
    ByTower, CoordinatorSpec, CostModel, EdgeCredits, EncoderPlanSpec, EncoderPoolSpec, FoundationPlanSpec,
    LearningRate, ModelShape, PackLimits, PlanSpec, PoolSize, PoolSizes, SchedulerState,
};
use loongforge_core::transport::{Buffer, HostTensor, Parcel};
use std::path::Path;
use std::time::Duration;

/// Describes how the engines of a run behave, and what goes wrong.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// No encoder is trained.
    pub frozen: bool,
    /// Encoder pools that are not trained where the others are.
    pub frozen_pools: Vec<PoolName>,
    /// Samples have so many routes in turn; 0: one.
    pub routes: u32,
    /// Samples have targets, whose noise levels are planned.
    pub noised: bool,
    /// Every sample has a column that the pool `reference` computes of its tokens.
    pub scored: bool,
    /// Steps that were computed before the run was resumed.
    pub first_step: u64,
    /// Steps whose loss is not a number.
    pub nan_loss: Vec<u64>,
    /// Samples that make the loss of their step not a number.
    pub nan_samples: Vec<u64>,
    /// Steps whose gradient is infinite.
    pub infinite_gradient: Vec<u64>,
    /// The engine that fails, and after how many calls of `work`.
    pub failure: Option<(ActorId, usize)>,
    /// The failure is a panic.
    pub panics: bool,
    /// An item that kills every encoder that begins with it.
    pub deadly: Option<ItemId>,
    /// An item for which an encoder needs more memory than there is.
    pub hungry: Option<ItemId>,
    /// Samples have recordings beside pictures.
    pub hears: bool,
    /// The time by which a foundation takes longer for a pack.
    pub pause: Duration,
    /// A foundation begins with a step when all of its features are there.
    pub whole_steps: bool,
    /// The time that an encoder, by its index, takes for a patch; all others take no time.
    pub paces: Vec<Duration>,
    /// The part of it by which that time varies, at random, from unit to unit.
    pub jitter: f64,
}

pub const BYTES_PER_PATCH: u64 = 4;
pub const BYTES_PER_FEATURE: u64 = 8;

/// Returns a run of small batches with credits that just suffice.
pub fn spec(pools: &PoolSizes, steps: u64) -> CoordinatorSpec {
    CoordinatorSpec {
        pools: pools.clone(),
        plan: PlanSpec {
            pack: PackLimits::tokens(32),
            learning_rate: LearningRate {
                peak: 0.1,
                min: 0.0,
                schedule: Schedule::Linear,
                warmup_steps: 2,
                decay_steps: 1,
                steps,
            },
            foundations: foundations(pools),
            encoders: encoders(pools),
            colocated: pools.encoders.is_empty(),
            shape: ModelShape {
                towers: encoders(pools).iter().flat_map(|pool| pool.towers.iter()).collect(),
                hidden_size: 8,
                even_length: 12 * 8,
                bytes_per_patch: ByTower::all(BYTES_PER_PATCH),
                bytes_per_feature: ByTower::all(BYTES_PER_FEATURE),
                flow: None,
            },
            sigma: None,
            credits: EdgeCredits { pixels: 600, tokens: 1400, features: 400 },
        },
        first_step: StepId(0),
        state: SchedulerState::default(),
        is_kept: true,
        look_ahead: None,
        fitted: false,
        steps,
        global_batch_size: 5,
        prefetch_steps: 2,
        clip_grad: 1.0,
        max_nonfinite: 3,
        bad_samples: BadSamples { max_fraction: 0.5, max_consecutive: 20 },
        too_long: Default::default(),
        checkpoint_dir: "checkpoints".into(),
        save_points: SavePoints { every_steps: 3, at_end: true },
        max_save_failures: 5,
        snapshots: None,
        encoders: rules(pools, false, true),
        fixed_lanes: true,
        evaluation: None,
    }
}

/// Returns a run in `dir` that nobody stops, and that waits a minute for encoders of a pool that has none left.
pub fn run_spec(dir: &Path, coordinator: CoordinatorSpec) -> RunSpec {
    let minute = Duration::from_secs(60);
    RunSpec {
        resume: None,
        queue: 1,
        stop: StopOn::Nothing,
        stop_grace: minute,
        grace: coordinator.pools.encoders.iter().map(|pool| (pool.name, minute)).collect(),
        // A slow machine must not look like a silent encoder, which an elastic pool lets go.
        lease: Duration::from_secs(20),
        coordinator: CoordinatorSpec { checkpoint_dir: dir.join("checkpoints"), ..coordinator },
    }
}

/// Returns the plans of the foundation pools: one computes all samples, of several each those of its number.
fn foundations(pools: &PoolSizes) -> Vec<FoundationPlanSpec> {
    let plan = |(pool, route): (&PoolSize, u32)| FoundationPlanSpec {
        pool: pool.name,
        routes: if pools.foundations.len() == 1 { 0..u32::MAX } else { route..route + 1 },
        ..FoundationPlanSpec::only(pool.actors, CostModel::decoder(8))
    };
    pools.foundations.iter().zip(0..).map(plan).collect()
}

/// The tower of the pool `reference`, which reads the tokens of a sample.
pub const REFERENCE: Tower = Tower::Text;

/// Returns the plans of the encoder pools: `encoder` has the vision tower, the others the tower that they are called as.
fn encoders(pools: &PoolSizes) -> Vec<EncoderPlanSpec> {
    let tower = |name: PoolName| match name.as_str() {
        "reference" => Some(REFERENCE),
        name => Tower::ALL.into_iter().find(|tower| tower.name() == name),
    };
    let plan = |name: PoolName, replicas| {
        EncoderPlanSpec::new(name, [tower(name).unwrap_or(Tower::Vision)].into_iter().collect(), replicas, 4)
    };
    match pools.encoders.is_empty() {
        true => vec![plan(PoolName::ENCODER, pools.num_foundations())],
        false => pools.encoders.iter().map(|pool| plan(pool.name, pool.actors)).collect(),
    }
}

/// Returns two foundation pools of so many actors, a trained encoder pool, and a frozen one that delivers a column.
pub fn routed(high: u32, low: u32) -> PoolSizes {
    let size = |name: &str, actors| PoolSize { name: name.parse().expect("a pool's name"), actors };
    PoolSizes {
        data: 2,
        encoders: vec![size("reference", 2), size("vision", 2)],
        foundations: vec![size("foundation_high", high), size("foundation_low", low)],
    }
}

/// Returns the rules of the encoder pools of [`routed`].
pub fn routed_rules(pools: &PoolSizes) -> Vec<EncoderPoolSpec> {
    let script = Script::routed();
    let rule = |pool: &PoolSize| EncoderPoolSpec {
        name: pool.name,
        elastic: true,
        trained: !script.is_frozen(pool.name),
        cached: false,
        reads: false,
    };
    pools.encoders.iter().map(rule).collect()
}

impl Script {
    /// Returns the engines of the pools of [`routed`].
    pub fn routed() -> Self {
        let frozen_pools = vec!["reference".parse().expect("a pool's name")];
        Self { routes: 2, scored: true, frozen_pools, ..Self::default() }
    }

    /// Returns whether nobody trains the encoders of this pool.
    pub fn is_frozen(&self, pool: PoolName) -> bool {
        self.frozen || self.frozen_pools.contains(&pool)
    }
}

/// Returns the same rules for all encoder pools.
pub fn rules(pools: &PoolSizes, elastic: bool, trained: bool) -> Vec<EncoderPoolSpec> {
    pools
        .encoders
        .iter()
        .map(|pool| EncoderPoolSpec { name: pool.name, elastic, trained, cached: false, reads: false })
        .collect()
}

/// Returns the engine of `me`.
pub fn engine(me: ActorId, num_data: u32, script: &Script) -> Box<dyn Engine> {
    let script = script.clone();
    match me.role {
        Role::Data => Box::new(FakeData::new(me, num_data, script)),
        Role::Encoder => Box::new(FakeEncoder::new(me, script)),
        Role::Foundation => Box::new(FakeFoundation::new(me, script)),
        Role::Scheduler => unreachable!("the scheduler has no engine"),
    }
}

/// Counts down to an injected failure.
pub struct Fuse(Option<usize>, bool);

impl Fuse {
    pub fn new(me: ActorId, script: &Script) -> Self {
        Self(script.failure.filter(|(actor, _)| *actor == me).map(|(_, after)| after), script.panics)
    }

    pub fn burn(&mut self) -> Result<(), String> {
        match &mut self.0 {
            Some(0) if self.1 => panic!("injected panic"),
            Some(0) => Err("injected failure".into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Seconds that a foundation engine says it computed a sample.
pub fn seconds(num_tokens: f64) -> f64 {
    3e-6 * num_tokens * num_tokens + 2e-5 * num_tokens
}

/// Mixes two numbers.
pub fn mix(a: u64, b: u64) -> u64 {
    rng::mix(a.rotate_left(23) ^ b.wrapping_add(rng::STEP))
}

/// Returns all bytes of a parcel as one number.
pub fn digest(parcel: &Parcel) -> u64 {
    parcel.tensors.iter().fold(7, |sum, tensor| {
        let mut bytes = vec![0; tensor.meta().num_bytes()];
        tensor.copy_to(&mut bytes);
        bytes.iter().fold(sum, |sum, &byte| mix(sum, byte.into()))
    })
}

fn copies(parcel: &Parcel) -> Vec<HostTensor> {
    let copy = |tensor: &dyn Buffer| {
        let mut bytes = vec![0; tensor.meta().num_bytes()];
        tensor.copy_to(&mut bytes);
        HostTensor::new(tensor.meta().dtype, &tensor.meta().shape, &bytes)
    };
    parcel.tensors.iter().map(|tensor| copy(&**tensor)).collect()
}

/// Returns the parcel without the memory and credit of its edge.
fn take_out(parcel: Parcel) -> Parcel {
    let tensors = copies(&parcel).into_iter().map(|tensor| Box::new(tensor) as Box<dyn Buffer>);
    Parcel::new(parcel.header, tensors.collect())
}
