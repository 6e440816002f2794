//! Describes what planning needs to know of a run.

use super::{CostModel, LearningRate, PackLimits};
use crate::config::{Placement, RunConfig};
use crate::message::TowerSet;
use serde::{Deserialize, Serialize};

/// Patches that an encoder's batch takes beside its own where lanes are fixed: packs with fewer are hardly cut.
const BATCH_PATCHES: u64 = 256;

/// Everything that a step plan depends on, but for the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSpec {
    pub pack: PackLimits,
    /// The cost of samples on a foundation replica.
    pub cost: CostModel,
    /// The encoder cost of media items on an encoder.
    pub encoder_cost: CostModel,
    pub learning_rate: LearningRate,
    pub foundation_replicas: u32,
    /// Actors of one foundation replica.
    pub replica_ranks: u32,
    /// Decides `Unit::encoder` and nothing else.
    pub encoder_replicas: u32,
    /// Shares of the encoder pool's gradient sum.
    pub num_lanes: u32,
    /// Encoder `i` lives in the actor `foundation/i`.
    pub colocated: bool,
    pub shape: ModelShape,
    pub credits: EdgeCredits,
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
        let encoder = if colocated { layout.ranks() as u32 } else { config.pools.encoder.replicas as u32 };
        // Lanes that are fixed may be more than encoders: what is cut for all of them costs an encoder a batch a piece.
        let (num_lanes, batch) = match config.run.deterministic {
            true => (config.num_lanes() as u32, BATCH_PATCHES),
            false => (encoder, 0),
        };
        Self {
            pack: PackLimits {
                max_samples: config.train.micro_batch_size.unwrap_or(usize::MAX),
                max_tokens: config.data.pack.max_tokens,
                max_images: config.data.pack.max_images.unwrap_or(usize::MAX),
                max_visual_tokens: config.data.pack.max_visual_tokens.unwrap_or(usize::MAX),
            },
            cost: CostModel::decoder(shape.hidden_size),
            encoder_cost: CostModel::patches().with_batch(batch),
            learning_rate: LearningRate::new(&config.train),
            foundation_replicas: layout.dp as u32,
            replica_ranks: layout.replica_ranks() as u32,
            encoder_replicas: encoder,
            num_lanes,
            colocated,
            shape,
            credits: EdgeCredits {
                pixels: config.edges.pixels.credit.bytes(),
                tokens: config.edges.tokens.credit.bytes(),
                features: config.edges.features.credit.bytes(),
            },
        }
    }
}
