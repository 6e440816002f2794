//! A policy as data.

use crate::model::dit::WanConfig;
use crate::model::policy::PolicyOptions;
use crate::nn::{Chunks, SegmentRule, SegmentRules};

/// The column that says which frames count.
pub(super) const FRAME_WEIGHTS: &str = "frame_weights";

/// The ids of a sample's rows beside 0, which is an action's: a place of a latent, a row of text.
pub(super) const LATENT_ID: i64 = 1;
pub(super) const TEXT_ID: i64 = 2;
pub(super) const NUM_IDS: i64 = 3;

/// Kinds of rows that attend to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Of {
    /// The first frame, which is given.
    First,
    /// Frames behind it.
    Frames,
    Actions,
}

/// FastWAM's: frames see the first one and each other, the first one itself; actions see the first frame and those of their draw, which
/// is their chunk.
pub(in crate::model) const RULES: SegmentRules<Of> = SegmentRules(&[
    rule(Of::First, Of::First),
    rule(Of::Frames, Of::First),
    rule(Of::Frames, Of::Frames),
    rule(Of::Actions, Of::First),
    SegmentRule { queries: Of::Actions, keys: Of::Actions, chunks: Chunks::Same },
]);

pub(super) const fn rule(queries: Of, keys: Of) -> SegmentRule<Of> {
    SegmentRule { queries, keys, chunks: Chunks::All }
}

/// A world-action model.
#[derive(Clone, Debug, PartialEq)]
pub struct WamConfig {
    /// The prefix of the names of all parameters.
    pub prefix: String,
    /// The stream of frames, and that of actions: as many layers, heads and channels of a head, and widths of their own.
    pub video: WanConfig,
    pub action: WanConfig,
    /// The rules by which tokens of a segment attend to those of others.
    pub(in crate::model) rules: SegmentRules<Of>,
    /// Numbers of the state, which is a row of text; 0: there is none.
    pub state_dim: i64,
    pub action_dim: i64,
    /// Actions of a sample.
    pub horizon: i64,
    /// Rows and columns of places of a frame.
    pub frame: [i64; 2],
    /// Frames of a latent, the first included, that a sample learns.
    pub num_frames: i64,
    pub video_flow: Flow,
    pub action_flow: Flow,
    /// Steps from noise to actions.
    pub num_steps: i64,
    /// True if the stream of frames is not trained.
    pub freezes_video: bool,
    pub options: PolicyOptions,
}

/// Times of a stream's noise, 0 data and 1 noise, and what its loss counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Moves times toward noise, in training and when it acts.
    pub train_shift: f64,
    pub infer_shift: f64,
    /// The number that time 1 is told to the network as.
    pub num_times: i64,
    pub weight: f64,
}

impl WamConfig {
    pub(super) fn block_prefix(&self, number: usize, name: &str) -> String {
        format!("{}mot.layers.{number}.blocks.{name}.", self.prefix)
    }

    pub(super) fn num_layers(&self) -> usize {
        self.video.num_layers
    }

    /// Returns the number of places of a frame.
    pub(super) fn frame_rows(&self) -> i64 {
        self.frame[0] * self.frame[1]
    }

    /// Returns whether a parameter is of the stream of frames.
    pub(super) fn is_of_video(&self, name: &str) -> bool {
        let name = name.strip_prefix(&self.prefix).unwrap_or(name);
        name.starts_with("mot.mixtures.video.") || (name.starts_with("mot.layers.") && name.contains(".blocks.video."))
    }
}
