//! Actors, and the bounds of everything between them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Device, Layout, Size, Threads, TimeSpan};
use crate::message::{PoolName, Tower, TowerSet};

/// Number of actors of each kind. Further encoder pools are keys of their own: `audio: { replicas: 2 }` gives the audio
/// tower a pool, `media: { towers: [vision, audio] }` gives one to both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pools {
    /// `separate` encoder and foundation actors, or `colocated` in one actor.
    pub placement: Placement,
    /// Actors that read, tokenize and measure samples.
    pub data: DataPool,
    /// Actors that run the towers that have no pool of their own.
    pub encoder: EncoderPool,
    /// Actors that run the language model.
    pub foundation: FoundationPool,
    /// Diffusion models with two transformers: actors of the one of high noise; `null`: as `foundation`.
    pub foundation_high: Option<FoundationPool>,
    /// Actors of the transformer of low noise; `null`: as `foundation`.
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
    /// Prefetch buffer of one data actor; samples beyond it are read again when their step comes.
    pub memory: Size,
}

/// Actors that run towers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderPool {
    /// Towers that the pool holds: `vision`, `audio`, `text`, `vae`. `null`: the tower that is called as the pool; for `encoder` all
    /// that no other pool holds.
    pub towers: Option<Vec<Tower>>,
    /// Number of replicas; each is `tensor_parallel` actors. 0: no tower is loaded, and one actor reads all features from
    /// `cache_dir`, which `loongforge data encode` has filled.
    #[schemars(range(min = 0, max = 1024))]
    pub replicas: usize,
    /// Intra-operation threads of each actor; `auto`: an even share of the cores, 1 under `run.deterministic`.
    pub threads: Threads,
    /// Actors among which every layer is split.
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: usize,
    /// Where these actors compute; `null`: where the run does (`device`).
    pub device: Option<Device>,
    /// Peak learning rate of what the pool trains, on the run's schedule; `null`: `train.lr`.
    #[schemars(range(min = 0.0))]
    pub lr: Option<f64>,
    /// ZeRO stage, what replicas shard: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.
    #[schemars(range(max = 3))]
    pub zero: usize,
    /// Bytes of features that each actor keeps where the whole pool is frozen: a picture that comes again is not
    /// encoded again. 0: none.
    pub cache: Size,
    /// Bytes of features that have no room in `cache`, where that is above 0: they are kept in a file in `run.dir` that
    /// goes with the process. 0: none.
    pub spill: Size,
    /// Folder of features that frozen towers make, which outlives the run and which runs share; `null`: none. It may be far
    /// larger than `cache`, and needs none.
    pub cache_dir: Option<PathBuf>,
    /// Encoders may die, join and be removed during the run; not where they are sharded or shard their state.
    pub elastic: bool,
    /// Timeout for a replacement when the last encoder has died; frozen encoders only: what trained ones have
    /// learned is in the last checkpoint.
    pub grace: TimeSpan,
}

/// Actors that run the language model. A replica is pipeline x context x tensor actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FoundationPool {
    /// Number of replicas, each of which computes its own packs (data parallel).
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: usize,
    /// Intra-operation threads of each actor; `auto`: an even share of the cores, 1 under `run.deterministic`.
    pub threads: Threads,
    /// Actors among which every layer is split.
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: usize,
    /// Among the tensor-parallel actors, what lies between layers is split along the sequence.
    pub sequence_parallel: bool,
    /// Stages of consecutive layers.
    #[schemars(range(min = 1, max = 64))]
    pub pipeline_parallel: usize,
    /// Ranges of layers that one stage holds; more than 1 is the interleaved schedule.
    #[schemars(range(min = 1, max = 64))]
    pub virtual_stages: usize,
    /// Tokens of a pipeline's micro-batches: longer packs go through in chunks (ChunkPipe). 0: whole packs.
    pub chunk_tokens: usize,
    /// Actors among which the tokens of a pack are split.
    #[schemars(range(min = 1, max = 64))]
    pub context_parallel: usize,
    /// Attention among the tokens of several actors.
    pub context_attention: ContextAttention,
    /// Actors, among those along replicas and context, over which the experts of a layer are spread.
    #[schemars(range(min = 1, max = 1024))]
    pub expert_parallel: usize,
    /// Where experts are spread, two packs go in turns: one computes while rows of the other travel. Both are held.
    pub expert_overlap: bool,
    /// ZeRO stage, what replicas shard: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.
    #[schemars(range(max = 3))]
    pub zero: usize,
}

/// Attention among the tokens of several actors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ContextAttention {
    // Keys and values go round.
    #[default]
    Ring,
    // Heads are exchanged for tokens and back.
    Ulysses,
}

impl Pools {
    /// The encoder pools that hold some of `towers`, the model's, in the order of their names, each with what it holds.
    /// Colocated encoders are one pool.
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

    /// Actors of one encoder, of every encoder pool.
    pub fn encoder_ranks(&self) -> BTreeMap<PoolName, u32> {
        let pools = self.named.iter().map(|(&name, pool)| (name, pool)).chain([(PoolName::ENCODER, &self.encoder)]);
        pools.map(|(name, pool)| (name, pool.tensor_parallel as u32)).collect()
    }

    /// The foundation pools that a config may write, each with its key: `foundation`, and those that are written.
    pub fn written_foundations(&self) -> impl Iterator<Item = (&'static str, FoundationPool)> {
        let own = [("pools.foundation_high", self.foundation_high), ("pools.foundation_low", self.foundation_low)];
        let own = own.into_iter().filter_map(|(key, pool)| Some((key, pool?)));
        [("pools.foundation", self.foundation)].into_iter().chain(own)
    }

    /// The foundation pools of a run with one transformer, or with one for high and one for low noise, each with its key.
    pub fn foundations(&self, two: bool) -> Vec<(PoolName, FoundationPool)> {
        match two {
            false => vec![(PoolName::FOUNDATION, self.foundation)],
            true => {
                [(PoolName::FOUNDATION_HIGH, self.foundation_high), (PoolName::FOUNDATION_LOW, self.foundation_low)]
                    .map(|(name, own)| (name, own.unwrap_or(self.foundation)))
                    .into()
            }
        }
    }

    /// The encoder pool of this name.
    pub fn encoder_pool(&self, name: PoolName) -> Option<&EncoderPool> {
        if name == PoolName::ENCODER { Some(&self.encoder) } else { self.named.get(&name) }
    }
}

impl EncoderPool {
    /// The towers that a pool of this name holds, `encoder` aside.
    pub fn held(&self, name: PoolName) -> TowerSet {
        match &self.towers {
            Some(towers) => towers.iter().copied().collect(),
            None => Tower::ALL.into_iter().filter(|tower| tower.name() == name.as_str()).collect(),
        }
    }

    /// Returns whether encoders come and go: each has all there is to know.
    pub fn is_elastic(&self) -> bool {
        self.elastic && self.tensor_parallel == 1 && self.zero == 0
    }

    /// Returns whether the pool has no encoders: an actor without towers reads features from `cache_dir`.
    pub fn reads(&self) -> bool {
        self.replicas == 0
    }

    /// Number of actors, among them the one that reads.
    pub fn num_actors(&self) -> usize {
        if self.reads() { 1 } else { self.layout().ranks() }
    }

    /// Returns how the pool's ranks are laid out: replicas, each split among `tensor_parallel` ranks.
    pub fn layout(&self) -> Layout {
        Layout { tp: self.tensor_parallel, ..Layout::replicas(self.replicas) }
    }
}

impl FoundationPool {
    /// Returns how the pool's ranks are laid out in all dimensions.
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

/// Says where encoder and foundation run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Placement {
    #[default]
    Separate,
    Colocated,
}

/// Limits of the bytes in flight between pools. No credit, no send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Edges {
    /// Pixels from data to encoder actors.
    pub pixels: Edge,
    /// Tokens from data to foundation actors.
    pub tokens: Edge,
    /// Features from encoder to foundation actors and their gradients back; the credit holds in each direction.
    pub features: Edge,
}

/// One edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Bytes that may be in flight.
    pub credit: Size,
}

/// The scheduler actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// Steps that data actors, and encoders where they are frozen, may work ahead.
    #[schemars(range(min = 1, max = 64))]
    pub prefetch_steps: usize,
    /// Length of every mailbox and command queue.
    #[schemars(range(min = 1, max = 65536))]
    pub queue: usize,
    /// Cost model for load balancing: from the model's shape (`static`), or `fitted` to measured times.
    pub balance: Balance,
    /// Timeout for actors to join; then the run ends.
    pub join_timeout: TimeSpan,
    /// An encoder's process that gives no sign of life for so long is taken for dead; others have twelve times as long.
    pub lease: TimeSpan,
}

/// Cost model for load balancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Balance {
    // By the model's shape.
    #[default]
    Static,
    // As measured while the run goes on.
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
