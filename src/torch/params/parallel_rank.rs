//! Says which part of each parameter a rank holds, from its place among the ranks that share layers or experts.

use std::ops::Range;

use loongforge_core::config::Layout;
use tch::Tensor;

use super::shard::{Cut, PiecePart, Region, Shard, region};
use super::spec::ParamSpec;
use super::stored_tensor::StoredTensor;
use crate::comm::Mesh;

/// A rank's place among those that share the layers of a replica, and the experts of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelRank {
    /// Ranks among which layers are split, and which of them this is.
    pub tp: usize,
    pub tp_rank: usize,
    /// True if what lies between layers is split among them along the sequence.
    pub sequence: bool,
    /// Ranks over which experts are spread, and which of them this is.
    pub ep: usize,
    pub ep_rank: usize,
}

impl Default for ParallelRank {
    fn default() -> Self {
        ParallelRank { tp: 1, tp_rank: 0, sequence: false, ep: 1, ep_rank: 0 }
    }
}

impl ParallelRank {
    /// Makes the parallel of a rank of `mesh`.
    pub fn of(mesh: &Mesh, sequence: bool) -> ParallelRank {
        let (tp, ep) = (&mesh.tp, &mesh.ep);
        ParallelRank { tp: tp.world(), tp_rank: tp.rank(), sequence, ep: ep.world(), ep_rank: ep.rank() }
    }

    /// Makes the parallel of the first rank of a pool in this layout.
    pub fn first(layout: Layout, sequence: bool) -> ParallelRank {
        ParallelRank { tp: layout.tp, tp_rank: 0, sequence, ep: layout.ep, ep_rank: 0 }
    }

    /// Returns whether tensor and expert parallelism split nothing.
    pub fn is_whole(&self) -> bool {
        self.tp == 1 && self.ep == 1
    }

    /// This rank's part of `size` things that are split among the tensor-parallel ranks, as evenly as it goes.
    pub fn part(&self, size: i64) -> Range<i64> {
        share(size, self.tp, self.tp_rank)
    }

    /// This rank's experts.
    pub fn experts(&self, num_experts: i64) -> Range<i64> {
        share(num_experts, self.ep, self.ep_rank)
    }
}

/// Returns part `rank` of `size` things that are dealt to `ranks`: the sizes differ by one at most.
///
/// ```
/// use loongforge_torch::params::share;
///
/// assert_eq!([share(7, 2, 0), share(7, 2, 1)], [0..3, 3..7]);
/// ```
pub fn share(size: i64, ranks: usize, rank: usize) -> Range<i64> {
    let end = |rank: usize| (size as i128 * rank as i128 / ranks as i128) as i64;
    end(rank)..end(rank + 1)
}

impl ParamSpec {
    /// Returns the shape of the whole parameter; `shape` is that of the part which is held here.
    pub fn whole_shape(&self) -> &[i64] {
        self.shard.as_ref().map_or(&self.shape, |shard| &shard.shape)
    }

    /// Returns the parts of a piece that are held here. None where others hold all of it.
    pub fn piece_parts(&self, piece: &StoredTensor) -> Vec<PiecePart> {
        let shape = self.whole_shape();
        let mut of_whole: Region = shape.iter().map(|size| (0, *size)).collect();
        let first = usize::from(piece.index.is_some());
        if let Some(index) = piece.index {
            of_whole[0] = (index, 1);
        }
        if let Some(rows) = piece.rows {
            of_whole[first] = rows;
        }
        let overlaps = match &self.shard {
            Some(shard) => shard.overlaps(&of_whole),
            None => vec![(of_whole.clone(), of_whole.clone())],
        };
        let stored = |found: Region| {
            let inside = found.iter().zip(&of_whole).map(|((start, len), (first, _))| (start - first, *len));
            let mut inside: Region = inside.skip(first).collect();
            if piece.transposed {
                let last = inside.len() - 1;
                inside.swap(last - 1, last);
            }
            inside
        };
        overlaps.into_iter().map(|(local, whole)| PiecePart { local, stored: stored(whole) }).collect()
    }

    /// Returns the part of a piece in `tensor`, of the shape held here: a view, in the shape `[…]` of the stored region, transposed where
    /// the piece is.
    pub fn part_view(&self, piece: &StoredTensor, part: &PiecePart, tensor: &Tensor) -> Tensor {
        let mut view = region(tensor, &part.local);
        if piece.index.is_some() {
            view = view.squeeze_dim(0);
        }
        if piece.transposed { view.transpose(-1, -2) } else { view }
    }
}

/// Returns the parameters that the rank at `place` holds: `whole` are those of the whole model, `local` those of a model with the sizes
/// that the rank computes with, which are the same parameters in the same order.
pub fn divide(whole: Vec<ParamSpec>, local: Vec<ParamSpec>, place: &ParallelRank) -> Vec<ParamSpec> {
    assert_eq!(whole.len(), local.len(), "a model and its part have the same parameters");
    let mut specs: Vec<ParamSpec> =
        whole.into_iter().zip(local).map(|(whole, local)| part(whole, local, place)).collect();
    for index in 0..specs.len() {
        let spec = &specs[index];
        // Of a stack of maps the weight has the name alone.
        let weight = match (spec.name.strip_suffix(".bias"), spec.name.strip_suffix("_bias")) {
            (Some(module), _) => format!("{module}.weight"),
            (None, Some(stack)) if spec.is_stacked_bias => stack.to_owned(),
            _ => continue,
        };
        let splits_inputs = |spec: &ParamSpec| {
            let inputs = spec.shape.len() - 1;
            spec.name == weight && spec.shard.iter().flat_map(|shard| &shard.cuts).any(|cut| cut.dim == inputs)
        };
        let after_sum = specs.iter().any(splits_inputs);
        specs[index].shard.iter_mut().for_each(|shard| shard.after_sum = after_sum);
    }
    specs
}

fn part(whole: ParamSpec, local: ParamSpec, place: &ParallelRank) -> ParamSpec {
    assert_eq!(whole.name, local.name, "a model and its part have the same parameters");
    let mut shard = Shard {
        shape: whole.shape.clone(),
        cuts: Vec::new(),
        tp_parts: 1,
        tp: place.tp,
        tp_rank: place.tp_rank,
        of_experts: false,
        after_sum: false,
    };
    let mut shape = local.shape;
    // Experts are stacked along the first dimension.
    let is_stacked = whole.is_linear && whole.shape.len() == 3 || whole.is_stacked_bias;
    if is_stacked && place.ep > 1 {
        let held = place.experts(whole.shape[0]);
        shape[0] = held.end - held.start;
        shard.cuts.push(Cut { dim: 0, ranges: vec![(held.start, shape[0])] });
        shard.of_experts = true;
    }
    let is_cut = |dim: usize| shape[dim] != whole.shape[dim] && !(dim == 0 && shard.of_experts);
    for dim in (0..shape.len()).filter(|dim| is_cut(*dim)) {
        let of = |spec: &Option<(usize, Vec<i64>)>, size: i64| match spec {
            Some((at, sizes)) if *at == dim => sizes.clone(),
            _ => vec![size],
        };
        let (sizes, held) = (of(&whole.sections, whole.shape[dim]), of(&local.sections, shape[dim]));
        let (mut ranges, mut start) = (Vec::new(), 0);
        for (size, held) in sizes.into_iter().zip(held) {
            let (parts, first) = range(size, held, place);
            shard.tp_parts = shard.tp_parts.max(parts);
            ranges.push((start + first, held));
            start += size;
        }
        shard.cuts.push(Cut { dim, ranges });
    }
    ParamSpec { shape, shard: Some(shard), ..whole }
}

/// Into how many parts something of this `size` is cut, of which the rank holds `held`, and where it begins.
fn range(size: i64, held: i64, place: &ParallelRank) -> (usize, i64) {
    let parts = (size / held) as usize;
    if size % held == 0 && parts <= place.tp && place.tp.is_multiple_of(parts) {
        return (parts, (place.tp_rank * parts / place.tp) as i64 * held);
    }
    let part = place.part(size);
    assert_eq!(part.end - part.start, held, "rank {} of {} holds {held} of {size}", place.tp_rank, place.tp);
    (place.tp, part.start)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{ParallelRank, divide};
    use crate::params::Region;
    use crate::params::{Init, ParamSpec, StoredTensor};

    fn at(tp_rank: usize, tp: usize) -> ParallelRank {
        ParallelRank { tp, tp_rank, ..ParallelRank::default() }
    }

    fn cut(whole: &ParamSpec, shape: &[i64], place: &ParallelRank) -> ParamSpec {
        let local = ParamSpec { shape: shape.to_vec(), ..whole.clone() };
        divide(vec![whole.clone()], vec![local], place).remove(0)
    }

    #[test]
    fn parts_make_up_the_whole() {
        let whole = ParamSpec::new("w", &[7, 6], Init::Zeros);
        let values = Tensor::arange(42, (Kind::Float, Device::Cpu)).view([7, 6]);
        for shapes in [[[2, 6], [2, 6], [3, 6]], [[7, 2], [7, 2], [7, 2]]] {
            let made = values.zeros_like();
            for (rank, shape) in shapes.iter().enumerate() {
                let shard = cut(&whole, shape, &at(rank, 3)).shard.unwrap();
                assert!(shard.is_first() && shard.tp_parts == 3);
                shard.put(&made, &shard.take(&values));
            }
            assert_eq!(made, values);
        }
    }

    #[test]
    fn fewer_parts_than_ranks_are_held_by_several() {
        let whole = ParamSpec::new("k", &[4, 6], Init::Zeros);
        let held: Vec<_> = (0..4).map(|rank| cut(&whole, &[2, 6], &at(rank, 4)).shard.unwrap()).collect();
        let starts: Vec<_> = held.iter().map(|shard| (shard.cuts[0].ranges[0].0, shard.is_first())).collect();
        assert_eq!(starts, [(0, true), (0, false), (2, true), (2, false)]);
        let same = cut(&whole, &[4, 6], &at(1, 4)).shard.unwrap();
        assert_eq!((same.cuts.len(), same.tp_parts, same.is_first()), (0, 1, false));
    }

    #[test]
    fn sections_are_cut_one_by_one_and_may_be_held_in_copies() {
        let whole = ParamSpec::new("qkv", &[12, 5], Init::Zeros).in_sections(0, &[8, 2, 2]);
        let local = ParamSpec::new("qkv", &[4, 5], Init::Zeros).in_sections(0, &[2, 1, 1]);
        let shard = divide(vec![whole], vec![local], &at(3, 4)).remove(0).shard.unwrap();
        assert_eq!(shard.cuts[0].ranges, [(6, 2), (9, 1), (11, 1)]);
    }

    #[test]
    fn stacked_experts_are_cut_twice_and_pieces_know_where_they_are() {
        let piece = |expert: i64, name: &str, rows| {
            let whole = StoredTensor::whole(&format!("{expert}.{name}"), &[6, 5]);
            StoredTensor { index: Some(expert), rows: Some((rows, 6)), ..whole }
        };
        let pieces: Vec<StoredTensor> = (0..4).flat_map(|e| [piece(e, "gate", 0), piece(e, "up", 6)]).collect();
        let whole = ParamSpec::new("experts", &[4, 12, 5], Init::Zeros).in_sections(1, &[6, 6]).stored_as(pieces);
        let whole = ParamSpec { is_linear: true, ..whole };
        let local = ParamSpec { shape: vec![4, 6, 5], ..whole.clone() }.in_sections(1, &[3, 3]);
        let place = ParallelRank { ep: 2, ep_rank: 1, ..at(1, 2) };
        let spec = divide(vec![whole], vec![local], &place).remove(0);
        assert_eq!(spec.shape, [2, 6, 5]);
        let values = Tensor::arange(4 * 12 * 5, (Kind::Float, Device::Cpu)).view([4, 12, 5]);
        let held = spec.shard.as_ref().unwrap().take(&values);
        assert_eq!(held.size(), spec.shape);
        let found: Vec<_> = spec.pieces.iter().map(|piece| spec.piece_parts(piece)).collect();
        assert!(found[..4].iter().all(Vec::is_empty) && found[4..].iter().all(|parts| parts.len() == 1));
        let (piece, part) = (&spec.pieces[7], &found[7][0]);
        let (local, inside): (Region, Region) = (vec![(1, 1), (3, 3), (0, 5)], vec![(3, 3), (0, 5)]);
        assert_eq!((&part.local, &part.stored), (&local, &inside));
        let stored = super::region(&piece.view(&values), &part.stored);
        assert_eq!(spec.part_view(piece, part, &held), stored);
    }

    #[test]
    fn a_bias_after_a_sum_is_known_by_its_weight() {
        let whole = vec![
            ParamSpec::new("o.weight", &[6, 8], Init::Zeros),
            ParamSpec::new("o.bias", &[6], Init::Zeros),
            ParamSpec::new("q.bias", &[8], Init::Zeros),
        ];
        let mut local = whole.clone();
        (local[0].shape, local[2].shape) = (vec![6, 4], vec![4]);
        let after: Vec<_> =
            divide(whole, local, &at(0, 2)).iter().map(|s| s.shard.as_ref().unwrap().after_sum).collect();
        assert_eq!(after, [false, true, false]);
    }

    #[test]
    fn biases_of_stacked_maps_are_dealt_with_their_maps() {
        let map = |name: &str, shape: &[i64]| ParamSpec { is_linear: true, ..ParamSpec::new(name, shape, Init::Zeros) };
        let bias =
            |name: &str, shape: &[i64]| ParamSpec { is_stacked_bias: true, ..ParamSpec::new(name, shape, Init::Zeros) };
        let whole =
            vec![map("up", &[4, 6, 5]), bias("up_bias", &[4, 6]), map("down", &[4, 5, 6]), bias("down_bias", &[4, 5])];
        let mut local = whole.clone();
        for (spec, shape) in local.iter_mut().zip([vec![4, 3, 5], vec![4, 3], vec![4, 5, 3], vec![4, 5]]) {
            spec.shape = shape;
        }
        let specs = divide(whole, local, &ParallelRank { ep: 2, ep_rank: 1, ..at(1, 2) });
        let shapes: Vec<_> = specs.iter().map(|spec| spec.shape.clone()).collect();
        assert_eq!(shapes, [vec![2, 3, 5], vec![2, 3], vec![2, 5, 3], vec![2, 5]]);
        let shards = specs.iter().map(|spec| spec.shard.as_ref().unwrap());
        let dealt: Vec<_> = shards.map(|shard| (shard.of_experts, shard.after_sum)).collect();
        assert_eq!(dealt, [(true, false), (true, false), (true, false), (true, true)]);
    }
}
