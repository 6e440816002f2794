//! Ulysses (Jacobs et al. 2023): every rank gives up its tokens of the other ranks' heads and gets all tokens of its own,
//! so that attention is as on one rank, and the other way back.
//!
//! Shapes: T tokens of this rank, A of all, N ranks, H heads of queries, K of keys, C width of queries and keys, V of
//! values.

use std::rc::Rc;

use tch::Tensor;

use super::row::ContextShard;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::tape::record::{Exchange, Needs};

/// `q_THC`, `k_TKC`, `v_TKV` → the rank's heads of all tokens: `[A, H/N, C]`, `[A, K/N, C]`, `[A, K/N, V]`. Where K is no
/// multiple of N, heads of keys are repeated.
pub(super) struct ToHeads {
    pub row: Rc<ContextShard>,
}

/// `[A, H/N · V]` → `[T, H·V]`.
pub(super) struct ToTokens {
    pub row: Rc<ContextShard>,
}

impl ContextShard {
    fn counts(&self) -> Vec<i64> {
        (0..self.split().num_ranks()).map(|rank| self.num_rows(rank)).collect()
    }

    /// Exchanges `parts` `[T, heads, width]`, all with N times as many heads as the results `[A, heads/N · width]`,
    /// joined along the last dimension.
    fn to_heads(&self, mesh: &Mesh, parts: &[Tensor]) -> Result<Tensor, NativeError> {
        let (counts, ranks) = (self.counts(), mesh.cp.world() as i64);
        let of_rank = |rank: i64| {
            let heads = parts.iter().map(|part| {
                let heads = part.size()[1] / ranks;
                part.narrow(1, rank * heads, heads).flatten(1, 2)
            });
            Tensor::cat(&heads.collect::<Vec<_>>(), 1)
        };
        let sent = Tensor::cat(&(0..ranks).map(of_rank).collect::<Vec<_>>(), 0);
        let mine = counts[self.rank()];
        let found = mesh.cp.all_to_all(&sent, &vec![mine; ranks as usize], &counts)?;
        Ok(found.index_select(0, self.order()[0]))
    }

    /// Undoes the exchange of heads: returns this rank's rows of all heads, `[T, N, width]`, of `[A, width]` with all rows of its heads.
    fn to_tokens(&self, mesh: &Mesh, x: &Tensor) -> Result<Tensor, NativeError> {
        let (counts, ranks) = (self.counts(), mesh.cp.world());
        let mine = counts[self.rank()];
        let sent = x.index_select(0, self.order()[1]);
        let found = mesh.cp.all_to_all(&sent, &counts, &vec![mine; ranks])?;
        Ok(found.view([ranks as i64, mine, x.size()[1]]).transpose(0, 1))
    }
}

/// Returns how often heads of keys are repeated so that every rank has as many.
fn repeats(heads: i64, ranks: i64) -> i64 {
    let (mut a, mut b) = (heads, ranks);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    ranks / a
}

impl Exchange for ToHeads {
    fn forward(
        &self,
        mesh: &Mesh,
        reads: &[Tensor],
        needs: Option<&Needs>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), NativeError> {
        let [q, k, v] = reads else { unreachable!("queries, keys and values") };
        let ranks = mesh.cp.world() as i64;
        let times = repeats(k.size()[1], ranks);
        let repeated =
            |x: &Tensor| if times == 1 { x.shallow_clone() } else { x.repeat_interleave_self_int(times, 1, None) };
        let parts = [q.shallow_clone(), repeated(k), repeated(v)];
        let joined = self.row.to_heads(mesh, &parts)?;
        let sizes: Vec<i64> = parts.iter().map(|part| part.size()[1] / ranks * part.size()[2]).collect();
        let cut = joined.split_with_sizes(&sizes, 1);
        let outputs = cut.iter().zip(&parts).map(|(x, part)| x.unflatten(1, [-1, part.size()[2]]).contiguous());
        // The shapes alone.
        let shape = |x: &Tensor| Tensor::from_slice(&x.size());
        let saved = needs.map_or(Vec::new(), |_| reads.iter().map(shape).collect());
        Ok((outputs.collect(), saved))
    }

    fn backward(
        &self,
        mesh: &Mesh,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
    ) -> Result<Vec<Option<Tensor>>, NativeError> {
        let ranks = mesh.cp.world() as i64;
        let shapes: Vec<Vec<i64>> = saved.iter().map(|shape| Vec::try_from(shape).expect("a shape")).collect();
        let grads: Vec<&Tensor> = grads.iter().map(|grad| grad.as_ref().expect("attention reads all three")).collect();
        let flat: Vec<Tensor> = grads.iter().map(|grad| grad.flatten(1, 2)).collect();
        let widths: Vec<i64> = flat.iter().map(|grad| grad.size()[1]).collect();
        let found = self.row.to_tokens(mesh, &Tensor::cat(&flat, 1))?;
        let parts = found.split_with_sizes(&widths, 2);
        let of_read = |(part, shape): (&Tensor, &Vec<i64>)| {
            // [T, N, heads/N · width] → [T, heads, width], repeated heads added.
            let heads = part.reshape([shape[0], ranks * part.size()[2] / shape[2], shape[2]]);
            let times = heads.size()[1] / shape[1];
            let summed = match times {
                1 => heads,
                _ => heads.unflatten(1, [shape[1], times]).sum_dim_intlist([2i64].as_slice(), false, heads.kind()),
            };
            Some(summed)
        };
        Ok(parts.iter().zip(&shapes).map(of_read).collect())
    }
}

impl Exchange for ToTokens {
    fn forward(
        &self,
        mesh: &Mesh,
        reads: &[Tensor],
        _: Option<&Needs>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), NativeError> {
        Ok((vec![self.row.to_tokens(mesh, &reads[0])?.flatten(1, 2).contiguous()], Vec::new()))
    }

    fn backward(
        &self,
        mesh: &Mesh,
        _: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
    ) -> Result<Vec<Option<Tensor>>, NativeError> {
        let Some(grad) = &grads[0] else { return Ok(vec![None]) };
        let heads = grad.unflatten(1, [mesh.cp.world() as i64, -1]);
        Ok(vec![Some(self.row.to_heads(mesh, &[heads])?)])
    }
}
