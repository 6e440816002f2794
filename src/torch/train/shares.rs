//! Sums over the ranks of a pool whose layers are split among ranks: what several of them hold alike, and what counts
//! once.

use tch::{Device, Kind, Tensor};

use crate::comm::Mesh;
use crate::device::upload;
use crate::native::{NativeError, sum_of_squares};
use crate::params::{ParamId, ParamSpec, ParamStore, Shard, StoredTensor, region};

/// Elements of copies that are summed at once.
const MAX_COPIED: i64 = 16 << 20;

/// Elements of gradients that are copied in float64 at once: 128 MiB.
const MAX_WIDE: i64 = 16 << 20;

/// Sums the gradients over the replicas, those of experts over the ranks with the same ones, in place.
///
/// # Errors
/// A rank is gone or did not come in time.
pub(super) fn sum_replicas(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<(), NativeError> {
    for (start, len) in ranges(params, |spec| !of_experts(spec)) {
        mesh.data.all_reduce_sum(&grads.narrow(0, start, len))?;
    }
    for (start, len) in ranges(params, of_experts) {
        mesh.expert_data.all_reduce_sum(&grads.narrow(0, start, len))?;
    }
    Ok(())
}

/// Sums the gradients of what tensor-parallel ranks hold in copies over these ranks, in place. Where replicas share sums out, `grads` are
/// this rank's slices.
///
/// # Errors
/// Fails as [`sum_replicas`] does.
pub(super) fn sum_copies(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<(), NativeError> {
    let copied: Vec<(ParamId, &Shard)> = params
        .trained_ids()
        .filter_map(|id| Some((id, params.spec(id).shard.as_ref()?)))
        .filter(|(_, shard)| shard.tp_parts < mesh.tp.world())
        .collect();
    let _no_grad = tch::no_grad_guard();
    let size = |shard: &Shard| shard.shape.iter().product::<i64>();
    let mut rest = &copied[..];
    while let Some((_, first)) = rest.first() {
        let mut elements = size(first);
        let more = rest[1..].iter().take_while(|(_, shard)| {
            elements += size(shard);
            elements <= MAX_COPIED
        });
        let (now, later) = rest.split_at(1 + more.count());
        rest = later;
        let sizes: Vec<i64> = now.iter().map(|(_, shard)| size(shard)).collect();
        let all = Tensor::zeros([sizes.iter().sum::<i64>()], (Kind::Float, grads.device()));
        let wholes = all.split_with_sizes(sizes, 0);
        let each = || now.iter().zip(&wholes).map(|((id, shard), whole)| (*id, shard, whole.view(&shard.shape[..])));
        each().for_each(|(id, shard, whole)| shard.put(&whole, &whole_part(params, id, grads)));
        if !params.sharding().is_none() {
            // Slices are elsewhere on other tensor-parallel ranks: each of them gets all of its part first.
            mesh.data.all_reduce_sum(&all)?;
        }
        mesh.tp.all_reduce_sum(&all)?;
        for (id, shard, whole) in each() {
            let (part, at) = params.owned_range(id);
            let len = part.end - part.start;
            if len > 0 {
                grads.narrow(0, at, len).copy_(&shard.take(&whole).reshape([-1]).narrow(0, part.start, len));
            }
        }
    }
    Ok(())
}

/// Returns, for the gradient of parameter `id`, of which `grads` has this rank's slice, that slice among zeros.
fn whole_part(params: &ParamStore, id: ParamId, grads: &Tensor) -> Tensor {
    let ((part, at), spec) = (params.owned_range(id), params.spec(id));
    let whole = grads.new_zeros([spec.num_elements()], (grads.kind(), grads.device()));
    let len = part.end - part.start;
    if len > 0 {
        whole.narrow(0, part.start, len).copy_(&grads.narrow(0, at, len));
    }
    whole.view(spec.shape.as_slice())
}

/// Returns the sum of squares of the pool's summed gradients, each parameter once; the same on all ranks that hold the parts of one copy
/// of the model. Every rank calls it. Where replicas share sums out, `grads` are this rank's slices.
///
/// # Errors
/// Fails as [`sum_replicas`] does.
pub(super) fn square_sum(params: &ParamStore, grads: &Tensor, mesh: &Mesh) -> Result<f64, NativeError> {
    let squares = |wanted: fn(&ParamSpec) -> bool| -> f64 {
        let counts = |spec: &ParamSpec| {
            wanted(spec) && !spec.is_copy && spec.shard.as_ref().is_none_or(|shard| shard.is_first())
        };
        let ranges = ranges(params, counts).into_iter();
        squares_of_all(&ranges.map(|(start, len)| grads.narrow(0, start, len)).collect::<Vec<_>>())
    };
    let is_shared = !params.sharding().is_none();
    add_squares(squares(of_experts), squares(|spec| !of_experts(spec)), is_shared, grads.device(), mesh)
}

/// Works like [`square_sum`] for what each rank has counted of its experts and of all else: slices where it `is_shared`
/// out.
///
/// # Errors
/// Fails as [`sum_replicas`] does.
pub(super) fn add_squares(
    of_experts: f64,
    others: f64,
    is_shared: bool,
    device: Device,
    mesh: &Mesh,
) -> Result<f64, NativeError> {
    let number = |value: f64| upload(&Tensor::from(value), device);
    let all = match is_shared {
        true => {
            let all = number(of_experts + others);
            mesh.data.all_reduce_sum(&all)?;
            all
        }
        false => {
            let all = number(of_experts);
            mesh.ep.all_reduce_sum(&all)?;
            all + others
        }
    };
    mesh.model.all_reduce_sum(&all)?;
    Ok(all.double_value(&[]))
}

/// Returns the sum of squares of contiguous float32.
pub(super) fn squares_of(tensor: &Tensor) -> f64 {
    squares_of_all(std::slice::from_ref(tensor))
}

/// Works like [`squares_of`] for all of these, which are on one device. Of a GPU the sum is read once.
fn squares_of_all(tensors: &[Tensor]) -> f64 {
    match tensors.first().map(Tensor::device) {
        None => 0.0,
        Some(Device::Cpu) => tensors.iter().map(sum_of_squares).sum(),
        Some(_) => squares_in_pieces(tensors, MAX_WIDE),
    }
}

/// Works like [`squares_of_all`] by libtorch's operators, which make a float64 copy of what they add up: of so many elements at once.
fn squares_in_pieces(tensors: &[Tensor], elements: i64) -> f64 {
    let of_piece = |piece: &Tensor| piece.norm_scalaropt_dtype(2.0, Kind::Double).square();
    let pieces = tensors.iter().flat_map(|tensor| tensor.view([-1]).split(elements, 0));
    let squares: Vec<Tensor> = pieces.map(|piece| of_piece(&piece)).collect();
    Tensor::stack(&squares, 0).sum(Kind::Double).double_value(&[])
}

fn of_experts(spec: &ParamSpec) -> bool {
    spec.shard.as_ref().is_some_and(|shard| shard.of_experts)
}

/// Returns, for the trained parameters that are wanted, the ranges in the store's order, or among this rank's slices;
/// those that follow each other as one.
fn ranges(params: &ParamStore, wanted: impl Fn(&ParamSpec) -> bool) -> Vec<(i64, i64)> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    let mut former = false;
    for id in params.trained_ids() {
        let ((part, start), is_wanted) = (params.owned_range(id), wanted(params.spec(id)));
        let len = part.end - part.start;
        if len == 0 {
            continue;
        }
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

/// Works like [`gather_whole`] for one of the checkpoint's tensors, which is returned in its shape there `[…]`.
///
/// # Errors
/// Fails as [`sum_replicas`] does.
pub fn gather_piece(spec: &ParamSpec, piece: &StoredTensor, part: &Tensor, mesh: &Mesh) -> Result<Tensor, NativeError> {
    let Some(shard) = &spec.shard else { return Ok(piece.view(part)) };
    let _no_grad = tch::no_grad_guard();
    let whole = Tensor::zeros(piece.shape.as_slice(), (part.kind(), part.device()));
    for held in spec.piece_parts(piece).into_iter().filter(|_| shard.is_first()) {
        region(&whole, &held.stored).copy_(&spec.part_view(piece, &held, part));
    }
    sum_bytes(&whole, shard, mesh)?;
    Ok(whole)
}

/// Returns a tensor of the whole parameter's shape `[…]` from the parts, of the spec's shape, that ranks hold. It is the same on all of
/// them, and each of them calls this function.
///
/// # Errors
/// Fails as [`sum_replicas`] does.
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

/// Fills `whole` in place: every element's bytes come from the rank that has it, and are zero elsewhere.
fn sum_bytes(whole: &Tensor, shard: &Shard, mesh: &Mesh) -> Result<(), NativeError> {
    let bytes = whole.view([-1]).view_dtype(Kind::Uint8);
    mesh.tp.all_reduce_sum(&bytes)?;
    if shard.of_experts {
        mesh.ep.all_reduce_sum(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{squares_in_pieces, squares_of, squares_of_all};

    /// The operators that GPUs use compute what the pass of CPUs does.
    #[test]
    fn squares_of_pieces_are_those_of_the_whole() {
        let mut all = Vec::new();
        for len in [0, 1, 999, 1000, 3500] {
            let x = Tensor::arange(len, (Kind::Float, Device::Cpu)).cos();
            let (found, expected) = (squares_in_pieces(std::slice::from_ref(&x), 1000), squares_of(&x));
            assert!((found - expected).abs() <= 1e-6 * expected, "{len}: {found} and {expected}");
            all.push(x);
        }
        let (found, expected) = (squares_in_pieces(&all, 1000), all.iter().map(squares_of).sum::<f64>());
        assert!((found - expected).abs() <= 1e-6 * expected, "{found} and {expected}");
        assert_eq!((squares_of_all(&all), squares_of_all(&[])), (expected, 0.0));
    }
}
