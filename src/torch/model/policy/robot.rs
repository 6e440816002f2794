//! The interface of a policy for training and acting, however its streams are built.

use tch::{Device, Tensor};

use super::config::{PolicyConfig, PolicyOptions};
use crate::model::columns::Columns;
use crate::model::decoding::Decoding;
use crate::params::ParamStore;

/// A foundation that predicts actions.
pub trait RobotPolicy {
    /// Returns the sizes of the actions that it predicts, and of what it reads.
    fn chunk(&self) -> ActionChunk;

    /// Returns the settings of its training.
    fn options(&self) -> PolicyOptions;

    /// Returns whether the prefix is computed with this parameter, and actions are not.
    fn is_of_prefix(&self, name: &str) -> bool;

    /// Returns the last parts of the names of modules that tell a robot's states and actions from those of others.
    fn maps_of_robot(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns whether it can go on with a chunk that has begun ([`Denoising::given`]).
    fn continues_chunks(&self) -> bool {
        false
    }

    /// Returns whether its `config.json` has its tower frozen, beside keys that all policies have: that of pictures, or of a policy in two
    /// parts the whole vision-language model.
    fn freezes_tower(&self) -> bool {
        false
    }

    /// Returns which of [`RobotPolicy::options`] it cannot follow, by the config's key that asks for it; `None`: it can follow all.
    fn cannot(&self) -> Option<String> {
        None
    }

    /// Returns the policy on parameters made from [`FoundationFamily::specs`](crate::model::FoundationFamily::specs), without gradients.
    /// Panics where the store lacks one of them.
    fn acting(&self, params: &ParamStore) -> Box<dyn Acting>;

    /// Returns the policy of two streams that it is; `None`: one of another build.
    fn as_two_streams(&self) -> Option<&PolicyConfig> {
        None
    }
}

/// The sizes of the actions that a policy predicts from an observation, and of what it reads of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionChunk {
    /// Actions that it predicts at once.
    pub horizon: i64,
    /// Numbers of an action, padding included.
    pub action_dim: i64,
    /// Steps from noise to actions.
    pub num_steps: i64,
    /// Ids of tokens are below it; that of pictures need not be.
    pub vocab_size: i64,
    /// The token that features of pictures replace.
    pub image_token: i64,
    /// The columns that it reads when it acts; others, such as recorded actions, may be empty.
    pub columns: Vec<&'static str>,
    /// True if it writes actions as tokens ([`Acting::write`]), and makes none of noise.
    pub writes: bool,
}

/// Samples that a policy acts on.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The columns of [`ActionChunk::columns`].
    pub columns: &'a Columns,
    /// The ends of the samples' tokens, `[0, …, T]`.
    pub cu_seqlens: &'a [usize],
    /// `[F, D]` of each tensor of a tower, one tower after the other: they replace its tokens in their order. None of a tower without
    /// items.
    pub features: &'a [Tensor],
}

/// The way from noise to actions.
#[derive(Clone, Copy)]
pub struct Denoising<'a> {
    /// `[N·H, A]`, float32.
    pub noise: &'a Tensor,
    pub num_steps: usize,
    /// The first `d` actions of each sample, `[N, d, A]`, float32, with `d` below H, where a chunk has begun: they are returned as they
    /// are, and those behind them go on from there.
    pub given: Option<&'a Tensor>,
}

/// A policy that acts.
pub trait Acting {
    /// Returns the actions `[N·H, A]`, float32. `None`: this policy makes none of noise, or cannot go on with a chunk that has begun.
    fn act(&self, observed: Observed<'_>, from: Denoising<'_>) -> Option<Tensor>;

    /// Returns the tokens that follow each sample, up to the first of `decoding`'s that end them, of a policy that writes actions;
    /// `None`: another kind of policy.
    fn write(&self, _observed: Observed<'_>, _decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        None
    }

    fn device(&self) -> Device;
}
