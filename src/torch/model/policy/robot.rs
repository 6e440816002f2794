//! What a policy is for those who train it or let it act, however its streams are built.

use tch::{Device, Tensor};

use super::config::{PolicyConfig, PolicyOptions};
use crate::model::columns::Columns;
use crate::model::decoding::Decoding;
use crate::params::ParamStore;

/// A foundation that predicts actions.
pub trait RobotPolicy {
    /// Returns what it predicts, and of what.
    fn chunk(&self) -> Chunk;

    /// The settings of its training.
    fn options(&self) -> PolicyOptions;

    /// Returns whether the prefix is computed with this parameter, and actions are not.
    fn is_of_prefix(&self, name: &str) -> bool;

    /// Returns whether it can go on with a chunk that has begun ([`Acting::act_after`]).
    fn continues_chunks(&self) -> bool {
        false
    }

    /// Returns whether its `config.json` has the tower of pictures frozen, beside keys that all policies have.
    fn freezes_tower(&self) -> bool {
        false
    }

    /// What of [`RobotPolicy::options`] it cannot do, by the key that asks for it; `None`: nothing.
    fn cannot(&self) -> Option<String> {
        None
    }

    /// The policy on parameters made from [`FoundationFamily::specs`](crate::model::FoundationFamily::specs), without gradients.
    /// Panics where the store lacks one of them.
    fn acting(&self, params: &ParamStore) -> Box<dyn Acting>;

    /// The policy of two streams that it is; `None`: one of another build.
    fn as_two_streams(&self) -> Option<&PolicyConfig> {
        None
    }
}

/// What a policy predicts of an observation, and what it reads of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
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

/// A policy that acts.
pub trait Acting {
    /// Actions `[N·H, A]`, float32, that `noise` `[N·H, A]`, float32, becomes in `num_steps` steps. Samples' tokens end at
    /// `cu_seqlens` `[0, …, T]`; `columns` are theirs, those of [`Chunk::columns`]; `features`, each `[F, D]` of a tensor of a tower,
    /// one tower after the other, replace its tokens in their order, and are none where no sample has an item for it.
    fn act(
        &self,
        columns: &Columns,
        cu_seqlens: &[usize],
        features: &[Tensor],
        noise: &Tensor,
        num_steps: usize,
    ) -> Tensor;

    /// The tokens that follow each sample, up to the first of `decoding`'s that end them, of a policy that writes actions; `None`:
    /// another kind of policy. Arguments are those of [`Acting::act`].
    fn write(
        &self,
        _columns: Columns,
        _cu_seqlens: &[usize],
        _features: &[Tensor],
        _decoding: &Decoding,
    ) -> Option<Vec<Vec<i64>>> {
        None
    }

    /// Works like [`Acting::act`] where the first `d` actions of each sample are `given`, `[N, d, A]`, float32, with `d` below H: they
    /// are returned as they are, and those behind them go on from there. `None`: this policy cannot.
    fn act_after(
        &self,
        _columns: &Columns,
        _cu_seqlens: &[usize],
        _features: &[Tensor],
        _noise: &Tensor,
        _num_steps: usize,
        _given: &Tensor,
    ) -> Option<Tensor> {
        None
    }

    fn device(&self) -> Device;
}
