//! The activities that a rank spends its time on.

use serde::{Deserialize, Serialize};

/// One kind of work or waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    Read,
    Send,
    Encode,
    EncoderBackward,
    /// Forward and backward of a pack together, without pipeline stages.
    Pack,
    Forward,
    Backward,
    Reduce,
    Optimizer,
    /// Writing checkpoint files.
    Save,
    /// Waiting for samples: pixels or tokens from data actors, or a plan.
    WaitSamples,
    /// Waiting for features from encoders.
    WaitFeatures,
    /// Waiting for gradients of features from the foundation.
    WaitGradients,
    /// Waiting for a neighboring pipeline stage: the bubble.
    WaitStage,
    /// Waiting for an edge's credit.
    WaitCredit,
    /// Waiting for the other ranks of the pool, which still compute.
    WaitPeers,
    /// Waiting for the other pool and the scheduler's decision.
    WaitCommit,
    /// Waiting for any mail: a sleeping engine knows only that nothing has arrived.
    WaitMail,
}

impl Activity {
    pub const COUNT: usize = 18;

    pub const ALL: [Self; Self::COUNT] = [
        Self::Read,
        Self::Send,
        Self::Encode,
        Self::EncoderBackward,
        Self::Pack,
        Self::Forward,
        Self::Backward,
        Self::Reduce,
        Self::Optimizer,
        Self::Save,
        Self::WaitSamples,
        Self::WaitFeatures,
        Self::WaitGradients,
        Self::WaitStage,
        Self::WaitCredit,
        Self::WaitPeers,
        Self::WaitCommit,
        Self::WaitMail,
    ];

    /// Returns whether the rank computes.
    pub fn is_busy(self) -> bool {
        self < Self::WaitSamples
    }

    /// Returns the name in timelines and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Send => "send",
            Self::Encode => "encode",
            Self::EncoderBackward => "encoder backward",
            Self::Pack => "forward + backward",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Reduce => "reduce gradients",
            Self::Optimizer => "optimizer",
            Self::Save => "save",
            Self::WaitSamples => "samples",
            Self::WaitFeatures => "features",
            Self::WaitGradients => "gradients",
            Self::WaitStage => "pipeline stage",
            Self::WaitCredit => "credit",
            Self::WaitPeers => "peers",
            Self::WaitCommit => "commit",
            Self::WaitMail => "mail",
        }
    }
}
