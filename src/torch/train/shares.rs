//! Sums over the ranks of a pool whose layers are split among ranks: what several of them hold alike, and what counts
//! once.

use tch::{Device, Kind, Tensor};

use crate::comm::{Mesh, ProcessGroup};
use crate::native::{NativeError, sum_of_squares};
use crate::nn::{ParamId, ParamSpec, ParamStore, Piece, Shard, region};

/// In place: the gradients `grads` of the trained parameters, in the store's order, become those of the whole pool's
/// tokens. Every rank calls it once a step.
///
/// # Errors
/// A rank is gone or did not come in time.
pub fn sum_gradients(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<(), NativeError> {
    sum_copies(params, grads, &mesh.tp)?;
    sum_replicas(params, grads, mesh)
}

/// In place: the gradients become the sums over the replicas, those of experts over the ranks with the same ones.
///
/// # Errors
/// As [`sum_gradients`].
pub fn sum_replicas(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<(), NativeError> {
    for (start, len) in ranges(params, |spec| !of_experts(spec)) {
        mesh.data.all_reduce_sum(&grads.narrow(0, start, len))?;
    }
    for (start, len) in ranges(params, of_experts) {
        mesh.expert_data.all_reduce_sum(&grads.narrow(0, start, len))?;
    }
    Ok(())
}

/// In place: the gradients of what tensor-parallel ranks hold in copies become the sums of theirs.
///
/// # Errors
/// As [`sum_gradients`].
pub fn sum_copies(params: &ParamStore, grads: &Tensor, tp: &ProcessGroup) -> Result<(), NativeError> {
    let copied: Vec<(ParamId, &Shard)> = params
        .trained_ids()
        .filter_map(|id| Some((id, params.spec(id).shard.as_ref()?)))
        .filter(|(_, shard)| shard.tp_parts < tp.world())
        .collect();
    if copied.is_empty() {
        return Ok(());
    }
    let _no_grad = tch::no_grad_guard();
    let sizes: Vec<i64> = copied.iter().map(|(_, shard)| shard.shape.iter().product()).collect();
    let all = Tensor::zeros([sizes.iter().sum::<i64>()], (Kind::Float, grads.device()));
    let wholes = all.split_with_sizes(sizes, 0);
    let each = || copied.iter().zip(&wholes).map(|((id, shard), whole)| (part(params, *id, grads), shard, whole));
    each().for_each(|(part, shard, whole)| shard.put(&whole.view(shard.shape.as_slice()), &part));
    tp.all_reduce_sum(&all)?;
    each().for_each(|(mut part, shard, whole)| part.copy_(&shard.take(&whole.view(shard.shape.as_slice()))));
    Ok(())
}

/// The sum of squares of the pool's summed gradients, each parameter once; the same on all ranks that hold the parts of
/// one copy of the model. Every rank calls it.
///
/// # Errors
/// As [`sum_gradients`].
pub fn square_sum(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<f64, NativeError> {
    let squares = |wanted: fn(&ParamSpec) -> bool| -> f64 {
        let counts = |spec: &ParamSpec| {
            wanted(spec) && !spec.is_copy && spec.shard.as_ref().is_none_or(|shard| shard.is_first())
        };
        ranges(params, counts).into_iter().map(|(start, len)| squares_of(&grads.narrow(0, start, len))).sum()
    };
    let of_experts = Tensor::from(squares(of_experts));
    mesh.ep.all_reduce_sum(&of_experts)?;
    let all = of_experts + squares(|spec| !self::of_experts(spec));
    mesh.model.all_reduce_sum(&all)?;
    Ok(all.double_value(&[]))
}

fn squares_of(tensor: &Tensor) -> f64 {
    match tensor.device() {
        Device::Cpu => sum_of_squares(tensor),
        _ => tensor.norm_scalaropt_dtype(2.0, Kind::Double).double_value(&[]).powi(2),
    }
}

fn of_experts(spec: &ParamSpec) -> bool {
    spec.shard.as_ref().is_some_and(|shard| shard.of_experts)
}

/// A parameter's part of what lies in the store's order.
fn part(params: &ParamStore, id: ParamId, flat: &Tensor) -> Tensor {
    let (start, len) = params.range(id);
    flat.narrow(0, start, len).view(params.spec(id).shape.as_slice())
}

/// Of the trained parameters that are wanted the ranges in the store's order; those that follow each other as one.
fn ranges(params: &ParamStore, wanted: impl Fn(&ParamSpec) -> bool) -> Vec<(i64, i64)> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    let mut former = false;
    for id in params.trained_ids() {
        let ((start, len), is_wanted) = (params.range(id), wanted(params.spec(id)));
        match found.last_mut().filter(|_| former && is_wanted) {
            // Up to the next one the gap is zero.
            Some((first, all)) => *all = start + len - *first,
            None if is_wanted => found.push((start, len)),
            None => {}
        }
        former = is_wanted;
    }
    found
}

/// As [`gather_whole`] of one of the checkpoint's tensors.
///
/// # Errors
/// As [`sum_gradients`].
pub fn gather_piece(spec: &ParamSpec, piece: &Piece, part: &Tensor, mesh: &Mesh) -> Result<Tensor, NativeError> {
    let Some(shard) = &spec.shard else { return Ok(piece.view(part)) };
    let _no_grad = tch::no_grad_guard();
    let whole = Tensor::zeros(piece.shape.as_slice(), (part.kind(), part.device()));
    for held in spec.piece_parts(piece).into_iter().filter(|_| shard.is_first()) {
        region(&whole, &held.stored).copy_(&spec.part_view(piece, &held, part));
    }
    sum_bytes(&whole, shard, mesh)?;
    Ok(whole)
}

/// A tensor of the whole parameter from the parts that ranks hold; the same on all of them, of which each calls it.
///
/// # Errors
/// As [`sum_gradients`].
pub fn gather_whole(spec: &ParamSpec, part: &Tensor, mesh: &Mesh) -> Result<Tensor, NativeError> {
    let Some(shard) = &spec.shard else { return Ok(part.shallow_clone()) };
    let _no_grad = tch::no_grad_guard();
    let whole = Tensor::zeros(shard.shape.as_slice(), (part.kind(), part.device()));
    if shard.is_first() {
        shard.put(&whole, &part.detach());
    }
    sum_bytes(&whole, shard, mesh)?;
    Ok(whole)
}

/// In place: every element's bytes come from the rank that has it, and are zero elsewhere.
fn sum_bytes(whole: &Tensor, shard: &Shard, mesh: &Mesh) -> Result<(), NativeError> {
    let bytes = whole.view([-1]).view_dtype(Kind::Uint8);
    mesh.tp.all_reduce_sum(&bytes)?;
    if shard.of_experts {
        mesh.ep.all_reduce_sum(&bytes)?;
    }
    Ok(())
}
