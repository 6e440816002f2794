//! The matrices that a parameter is made of.

use tch::{Kind, Tensor};

use super::lora::ADAPTER_PARTS;
use super::rounding::{RowRange, padded, rows_of};
use super::shard::Cut;
use super::spec::ParamSpec;

/// Returns whether a parameter is one or more matrices of a hidden layer: of a linear map, of a modulation or of an adapter.
/// Embeddings, heads, routers and single rows are none.
pub fn is_hidden_matrix(spec: &ParamSpec) -> bool {
    let is_of_adapter = ADAPTER_PARTS[..2].iter().any(|end| spec.name.ends_with(end));
    let is_map = (spec.is_linear && !spec.is_router) || spec.is_modulation || is_of_adapter;
    let shape = spec.whole_shape();
    let is_head = spec.name.rsplit('.').nth(1).is_some_and(|module| module.ends_with("head"));
    is_map && !is_head && shape.len() >= 2 && shape[shape.len() - 2..].iter().all(|size| *size > 1)
}

/// Returns the bytes of a frozen weight's values in a unit of a store of this `kind`, and of what is beside them on the device in any
/// case.
pub(super) fn bytes_at_rest(spec: &ParamSpec, kind: Kind) -> (u64, u64) {
    let sizes = spec.held.rounding.sizes(&spec.shape, &matrices(spec));
    let values = padded(sizes.values) * spec.held.rounding.kind(kind).elt_size_in_bytes() as i64;
    (values as u64, (sizes.scales * 4 + sizes.codes) as u64)
}

/// Returns the matrices that a weight `[.., out, in]` is made of, as views `[rows, in]` of a tensor of its shape: one for each that the
/// checkpoint has.
pub fn matrices_of(spec: &ParamSpec, tensor: &Tensor) -> Vec<Tensor> {
    let flat = tensor.view(rows_of(&spec.shape));
    matrices(spec).into_iter().map(|matrix| flat.narrow(0, matrix.first, matrix.len)).collect()
}

/// Returns the matrices that a weight is made of: one for each that the checkpoint has, in the order of rows.
pub(super) fn matrices(spec: &ParamSpec) -> Vec<RowRange> {
    let (rows, _) = rows_of(&spec.shape);
    let of_part = spec.shape[spec.shape.len() - 2];
    let inner: i64 = spec.shape[1..spec.shape.len() - 1].iter().product();
    let mut found: Vec<RowRange> = Vec::new();
    let cuts = spec.shard.as_ref().map_or(&[][..], |shard| &shard.cuts);
    if !cuts.is_empty() && !spec.is_cut_within_matrices() {
        return held_of(&matrices(&spec.whole()), cuts, of_part);
    }
    for piece in spec.pieces.iter().filter(|piece| !piece.repeats && cuts.is_empty()) {
        // Rows of one matrix, or of the outermost dimension.
        let (first, each, all) = match piece.index {
            Some(index) => (index * inner, inner / of_part, inner),
            None => (0, inner, rows),
        };
        let (start, len) = piece.rows.map_or((0, all), |(start, len)| (start * each.max(1), len * each.max(1)));
        let (mut first, mut left) = (first + start, len);
        while left > 0 {
            let len = if spec.shape.len() > 2 { of_part.min(left) } else { left };
            found.push(RowRange { first, len });
            (first, left) = (first + len, left - len);
        }
    }
    found.sort_by_key(|matrix| matrix.first);
    let ends = found.iter().scan(0, |end, matrix| {
        let follows = matrix.first == *end;
        *end += matrix.len;
        Some((follows, *end))
    });
    let is_whole = ends.clone().all(|(follows, _)| follows) && ends.last().is_some_and(|(_, end)| end == rows);
    if is_whole {
        return found;
    }
    (0..rows / of_part).map(|index| RowRange { first: index * of_part, len: of_part }).collect()
}

/// Returns the matrices of a `whole` stack that lie in a rank's cuts of maps, each map of `rows` rows, numbered as the rank has them.
fn held_of(whole: &[RowRange], cuts: &[Cut], rows: i64) -> Vec<RowRange> {
    let (mut at, mut found) = (0, Vec::new());
    for (start, len) in cuts.iter().flat_map(|cut| &cut.ranges).map(|&(start, len)| (start * rows, len * rows)) {
        let own = whole.iter().filter(|matrix| (start..start + len).contains(&matrix.first));
        found.extend(own.map(|matrix| RowRange { first: matrix.first - start + at, len: matrix.len }));
        at += len;
    }
    found
}
