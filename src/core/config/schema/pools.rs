//! Pools of actors, and the limits on the data in flight between them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Device, Layout, Size, Threads, TimeSpan};
use crate::message::{PoolName, Tower, TowerSet};

/// Number of actors of each kind. Additional encoder pools have keys of their own: `audio: { replicas: 2 }` gives the audio tower
/// its own pool, `media: { towers: [vision, audio] }` puts both towers in one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pools {
    /// Encoders and foundation in `separate` actors, or `colocated` in the same actors.
    pub placement: Placement,
    /// Actors that read, tokenize and measure samples.
    pub data: DataPool,
    /// Actors that run the towers without a pool of their own.
    pub encoder: EncoderPool,
    /// Actors that run the language model.
    pub foundation: FoundationPool,
    /// Diffusion models with two transformers: actors of the high-noise transformer; `null`: as `foundation`.
    pub foundation_high: Option<FoundationPool>,
    /// Actors of the low-noise transformer; `null`: as `foundation`.
    pub foundation_low: Option<FoundationPool>,
    /// Encoder pools with names of their own.
    #[serde(flatten)]
    pub named: BTreeMap<PoolName, EncoderPool>,
}

/// Actors that read, tokenize and measure samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataPool {
    /// Number of actors.
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: usize,
    /// Prefetch buffer of a data actor; samples that do not fit are read again when their step comes.
    pub memory: Size,
}

/// Actors that run towers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderPool {
    /// Towers in the pool: `vision`, `audio`, `text`, `vae`. `null`: the tower with the pool's name; for `encoder` all towers that
    /// are in no other pool. A pool for the `text` of a GR00T takes its whole vision-language model out of the foundation.
    pub towers: Option<Vec<Tower>>,
    /// Number of replicas, of `tensor_parallel` actors each. 0: no tower is loaded, and one actor reads all features from
    /// `cache_dir`, which `loongforge data encode` has filled.
    #[schemars(range(min = 0, max = 1024))]
    pub replicas: usize,
    /// Intra-op threads per actor; `auto`: an equal share of the cores, 1 under `run.deterministic`.
    pub threads: Threads,
    /// Tensor-parallel size: number of actors that each layer is split over.
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: usize,
    /// Device of these actors; `null`: that of the run (`device`).
    pub device: Option<Device>,
    /// Peak learning rate of the pool's trained parameters, on the run's schedule; `null`: `train.lr`.
    #[schemars(range(min = 0.0))]
    pub lr: Option<f64>,
    /// ZeRO stage: what replicas shard. 0: nothing, 1: optimizer state, 2: also gradients, 3: also parameters.
    #[schemars(range(max = 3))]
    pub zero: usize,
    /// Bytes of features that each actor caches if the whole pool is frozen, so that a repeated picture is not encoded again. 0:
    /// none.
    pub cache: Size,
    /// Bytes of features to keep in a file in `run.dir` when they no longer fit in `cache` (if that is above 0); the file is
    /// removed with the process. 0: none.
    pub spill: Size,
    /// Folder of features of frozen towers, kept after the run and shared between runs; `null`: none. It may be much larger than
    /// `cache`, and works without it.
    pub cache_dir: Option<PathBuf>,
    /// Also copy the features in `cache_dir` to this folder of an object store, `s3://BUCKET/FOLDER`, and fetch what other machines
    /// have copied there when an encoder starts. `null`: none.
    pub cache_store: Option<String>,
    /// Encoders may die, join and be removed during the run; not if they are tensor-parallel or use ZeRO.
    pub elastic: bool,
    /// How long to wait for a replacement when the last encoder has died; frozen encoders only, as what trained encoders have
    /// learned is in the last checkpoint.
    pub grace: TimeSpan,
}

/// Actors that run the language model. A replica has pipeline x context x tensor actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FoundationPool {
    /// Number of data-parallel replicas; each computes its own packs.
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: usize,
    /// Intra-op threads per actor; `auto`: an equal share of the cores, 1 under `run.deterministic`.
    pub threads: Threads,
    /// Tensor-parallel size: number of actors that each layer is split over.
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: usize,
    /// Split activations between layers along the sequence, over the tensor-parallel actors.
    pub sequence_parallel: bool,
    /// Number of pipeline stages of consecutive layers.
    #[schemars(range(min = 1, max = 64))]
    pub pipeline_parallel: usize,
    /// Number of layer ranges per pipeline stage; above 1 the schedule is interleaved.
    #[schemars(range(min = 1, max = 64))]
    pub virtual_stages: usize,
    /// Tokens per micro-batch of the pipeline: longer packs are processed in chunks (ChunkPipe). 0: whole packs.
    pub chunk_tokens: usize,
    /// Context-parallel size: number of actors that the tokens of a pack are split over.
    #[schemars(range(min = 1, max = 64))]
    pub context_parallel: usize,
    /// Attention algorithm for context parallelism.
    pub context_attention: ContextAttention,
    /// Expert-parallel size: number of actors, among the replicas and context-parallel actors, that the experts of a layer are
    /// split over.
    #[schemars(range(min = 1, max = 1024))]
    pub expert_parallel: usize,
    /// With expert parallelism, alternate between two packs: one computes while the other's tokens are exchanged. Both are held in
    /// memory.
    pub expert_overlap: bool,
    /// ZeRO stage: what replicas shard. 0: nothing, 1: optimizer state, 2: also gradients, 3: also parameters.
    #[schemars(range(max = 3))]
    pub zero: usize,
}

/// Attention algorithm for context parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ContextAttention {
    // Keys and values are passed around a ring.
    #[default]
    Ring,
    // Heads and tokens are exchanged (all-to-all) before and after attention.
    Ulysses,
}

impl Pools {
    /// Returns the encoder pools that hold any of `towers`, the model's, in order of their names, each with the towers that it
    /// holds. Colocated encoders are one pool.
    pub fn encoders(&self, towers: TowerSet) -> Vec<(PoolName, &EncoderPool, TowerSet)> {
        let named = match self.placement {
            Placement::Separate => self.named.iter().map(|(&name, pool)| (name, pool, pool.held(name))).collect(),
            Placement::Colocated => Vec::new(),
        };
        let elsewhere: TowerSet = named.iter().flat_map(|(.., held)| held.iter()).collect();
        let rest = towers.iter().filter(|&tower| !elsewhere.contains(tower)).collect();
        let mut pools: Vec<_> = named.into_iter().chain([(PoolName::ENCODER, &self.encoder, rest)]).collect();
        pools.iter_mut().for_each(|(.., held)| *held = held.iter().filter(|&tower| towers.contains(tower)).collect());
        pools.retain(|(.., held)| !held.is_empty());
        pools.sort_by_key(|(name, ..)| *name);
        pools
    }

    /// Returns whether a pool with a name of its own holds this tower.
    pub fn names(&self, tower: Tower) -> bool {
        self.named.iter().any(|(name, pool)| pool.held(*name).contains(tower))
    }

    /// Returns the number of actors per encoder, of every encoder pool.
    pub fn encoder_ranks(&self) -> BTreeMap<PoolName, u32> {
        let pools = self.named.iter().map(|(&name, pool)| (name, pool)).chain([(PoolName::ENCODER, &self.encoder)]);
        pools.map(|(name, pool)| (name, pool.tensor_parallel as u32)).collect()
    }

    /// Returns the foundation pools that the config sets, each with its key, and always `foundation`.
    pub fn written_foundations(&self) -> impl Iterator<Item = (&'static str, FoundationPool)> {
        let own = [("pools.foundation_high", self.foundation_high), ("pools.foundation_low", self.foundation_low)];
        let own = own.into_iter().filter_map(|(key, pool)| Some((key, pool?)));
        [("pools.foundation", self.foundation)].into_iter().chain(own)
    }

    /// Returns the encoder pool of this name.
    pub fn encoder_pool(&self, name: PoolName) -> Option<&EncoderPool> {
        if name == PoolName::ENCODER { Some(&self.encoder) } else { self.named.get(&name) }
    }
}

impl EncoderPool {
    /// Returns the towers that a pool of this name holds; not for `encoder`.
    pub fn held(&self, name: PoolName) -> TowerSet {
        match &self.towers {
            Some(towers) => towers.iter().copied().collect(),
            None => Tower::ALL.into_iter().filter(|tower| tower.name() == name.as_str()).collect(),
        }
    }

    /// Returns whether encoders may come and go: each has all weights and states.
    pub fn is_elastic(&self) -> bool {
        self.elastic && self.tensor_parallel == 1 && self.zero == 0
    }

    /// Returns whether the pool has no encoders, so that an actor without towers reads features from `cache_dir`.
    pub fn reads(&self) -> bool {
        self.replicas == 0
    }

    /// Returns the number of actors, including the one that reads features.
    pub fn num_actors(&self) -> usize {
        if self.reads() { 1 } else { self.layout().ranks() }
    }

    /// Returns the layout of the pool's ranks: replicas, each of `tensor_parallel` ranks.
    pub fn layout(&self) -> Layout {
        Layout { tp: self.tensor_parallel, ..Layout::replicas(self.replicas) }
    }
}

impl FoundationPool {
    /// Returns the layout of the pool's ranks in all dimensions.
    pub fn layout(&self) -> Layout {
        Layout {
            dp: self.replicas,
            pp: self.pipeline_parallel,
            cp: self.context_parallel,
            tp: self.tensor_parallel,
            ep: self.expert_parallel,
        }
    }
}

/// The choice whether encoders and foundation share actors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Placement {
    #[default]
    Separate,
    Colocated,
}

/// Limits on the bytes in flight between pools: without credit nothing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Edges {
    /// Pixels from data to encoder actors.
    pub pixels: Edge,
    /// Tokens from data to foundation actors.
    pub tokens: Edge,
    /// Features from encoder to foundation actors, and their gradients back; the credit applies to each direction.
    pub features: Edge,
}

/// One edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Maximum number of bytes in flight.
    pub credit: Size,
}

/// The scheduler actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// Number of steps that data actors, and frozen encoders, may work ahead.
    #[schemars(range(min = 1, max = 64))]
    pub prefetch_steps: usize,
    /// Capacity of every mailbox and command queue.
    #[schemars(range(min = 1, max = 65536))]
    pub queue: usize,
    /// Cost model for load balancing: from the model's shape (`static`), or `fitted` to measured times.
    pub balance: Balance,
    /// How long to wait for actors to join before the run ends.
    pub join_timeout: TimeSpan,
    /// Heartbeat timeout: an encoder process that is silent for this long is considered dead; other processes have twelve times as
    /// long.
    pub lease: TimeSpan,
}

/// Cost model for load balancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Balance {
    // From the model's shape.
    #[default]
    Static,
    // From times measured during the run.
    Fitted,
}

impl Default for DataPool {
    fn default() -> Self {
        Self { replicas: 1, memory: Size::from_mib(1024) }
    }
}

impl Default for EncoderPool {
    fn default() -> Self {
        Self {
            towers: None,
            replicas: 1,
            threads: Threads::Auto,
            tensor_parallel: 1,
            device: None,
            lr: None,
            zero: 0,
            cache: Size::from_mib(0),
            spill: Size::from_mib(0),
            cache_dir: None,
            cache_store: None,
            elastic: true,
            grace: TimeSpan::from_secs(300),
        }
    }
}

impl Default for FoundationPool {
    fn default() -> Self {
        Self {
            replicas: 1,
            threads: Threads::Auto,
            tensor_parallel: 1,
            sequence_parallel: false,
            pipeline_parallel: 1,
            virtual_stages: 1,
            chunk_tokens: 0,
            context_parallel: 1,
            context_attention: ContextAttention::Ring,
            expert_parallel: 1,
            expert_overlap: true,
            zero: 0,
        }
    }
}

impl Default for Edges {
    fn default() -> Self {
        let edge = |mib| Edge { credit: Size::from_mib(mib) };
        Self { pixels: edge(64), tokens: edge(16), features: edge(64) }
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self {
            prefetch_steps: 2,
            queue: 64,
            balance: Balance::Static,
            join_timeout: TimeSpan::from_secs(60),
            lease: TimeSpan::from_secs(5),
        }
    }
}
