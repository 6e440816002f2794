//! A packed row of which this rank has a share, as all of its layers need it; and attention over it on the tape.

use loongforge_core::config::ContextAttention;
use tch::{Device, Tensor};

use super::blocks::{Batch, batches};
use super::split::RowSplit;
use crate::comm::{Mesh, ProcessGroup};
use crate::device::upload;
use crate::native::NativeError;
use crate::nn::{Mask, PackedAttention};
use crate::tape::record::{Exchange, Needs};

/// The share of a packed row that one of several ranks has; made once a micro-batch. The mesh that executes the tape has as many ranks
/// along cp.
pub struct ContextShard {
    split: RowSplit,
    rank: usize,
    pub(super) method: ContextMethod,
    device: Device,
}

pub(super) enum ContextMethod {
    /// The parts of each rank's keys that this rank's queries see.
    Ring(Vec<Vec<Batch>>),
    Heads {
        /// The documents of the whole row.
        documents: PackedAttention,
        /// The place of each token among the ranks' tokens, one rank's after the other's, and the inverse.
        places: Tensor,
        tokens: Tensor,
    },
}

impl ContextShard {
    /// Returns the share of `rank` in a row whose documents end at `cu_seqlens` `[0, …, T]`.
    pub fn new(
        cu_seqlens: &[usize],
        num_ranks: usize,
        rank: usize,
        method: ContextAttention,
        device: Device,
    ) -> ContextShard {
        let split = RowSplit::new(cu_seqlens, num_ranks);
        let method = match method {
            ContextAttention::Ring => {
                ContextMethod::Ring((0..num_ranks).map(|keys| batches(&split.blocks(rank, keys), device)).collect())
            }
            ContextAttention::Ulysses => {
                return ContextShard::of_heads(cu_seqlens, num_ranks, rank, Mask::Causal, device);
            }
        };
        ContextShard { split, rank, method, device }
    }

    /// Works like [`ContextShard::new`] where heads are exchanged, with any mask within documents.
    pub fn of_heads(cu_seqlens: &[usize], num_ranks: usize, rank: usize, mask: Mask, device: Device) -> ContextShard {
        let split = RowSplit::new(cu_seqlens, num_ranks);
        let tokens: Vec<i64> = (0..num_ranks).flat_map(|rank| split.rows(rank)).collect();
        let method = ContextMethod::Heads {
            documents: PackedAttention::new(cu_seqlens, mask, device),
            places: upload(&Tensor::from_slice(&split.places()), device),
            tokens: upload(&Tensor::from_slice(&tokens), device),
        };
        ContextShard { split, rank, method, device }
    }

    /// Returns how rows are split among the ranks.
    pub fn split(&self) -> &RowSplit {
        &self.split
    }

    /// Returns this rank's number among those that share a row.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// This rank's tokens as an index of the row's. `[tokens of this rank]`, int64.
    pub fn rows(&self) -> Tensor {
        upload(&Tensor::from_slice(&self.split.rows(self.rank)), self.device)
    }

    /// Returns, of the row's `feature_rows`, those that this rank holds: which features they are, in the
    /// order of this rank's tokens.
    pub fn features(&self, feature_rows: &[i64]) -> Vec<i64> {
        let number: std::collections::BTreeMap<i64, i64> = feature_rows.iter().copied().zip(0..).collect();
        self.split.rows(self.rank).iter().filter_map(|row| number.get(row).copied()).collect()
    }

    /// Returns the gradients of all features `[N, D]` on every rank, from those `[n, D]` of `features`, which this rank holds.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn gather_features(
        &self,
        group: &ProcessGroup,
        grad: &Tensor,
        features: &[i64],
        num_features: i64,
    ) -> Result<Tensor, NativeError> {
        let mut all = Tensor::zeros([num_features, grad.size()[1]], (grad.kind(), grad.device()));
        let index = upload(&Tensor::from_slice(features), grad.device());
        let _ = all.index_copy_(0, &index, grad);
        group.all_reduce_sum(&all)?;
        Ok(all)
    }

    /// Returns the number of tokens of a rank.
    pub(super) fn num_rows(&self, rank: usize) -> i64 {
        self.split.cu_seqlens(rank).last().copied().unwrap_or(0) as i64
    }

    /// Returns the batches of a ring.
    pub(super) fn batches(&self, keys: usize) -> &[Batch] {
        match &self.method {
            ContextMethod::Ring(batches) => &batches[keys],
            ContextMethod::Heads { .. } => unreachable!("heads are exchanged"),
        }
    }

    /// Returns, for exchanged heads, the place of each token, and the token at each place.
    pub(super) fn order(&self) -> [&Tensor; 2] {
        match &self.method {
            ContextMethod::Heads { places, tokens, .. } => [places, tokens],
            ContextMethod::Ring(_) => unreachable!("keys go round"),
        }
    }
}

/// The sum over the ranks that share a row; so is the gradient, of what every rank then counts in its own share.
pub struct SumOverContext;

impl Exchange for SumOverContext {
    fn forward(
        &self,
        mesh: &Mesh,
        reads: &[Tensor],
        _: Option<&Needs>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), NativeError> {
        let sums = reads.iter().map(Tensor::copy).collect::<Vec<_>>();
        sums.iter().try_for_each(|sum| mesh.cp.all_reduce_sum(sum))?;
        Ok((sums, Vec::new()))
    }

    fn backward(
        &self,
        mesh: &Mesh,
        _: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
    ) -> Result<Vec<Option<Tensor>>, NativeError> {
        let sum = |grad: &Option<Tensor>| {
            let sum = grad.as_ref().map(|grad| grad.contiguous().copy());
            sum.map(|sum| mesh.cp.all_reduce_sum(&sum).map(|()| sum)).transpose()
        };
        grads.iter().map(sum).collect()
    }
}
