//! Describes which part of each parameter a rank holds, where layers are split among ranks.
//!
//! A model is declared twice with the same code: whole, and with the sizes that one rank computes with. Where the shapes
//! differ a parameter is cut; [`super::divide`] says where, for the rank's place. Names, and the tensors of a checkpoint, stay
//! those of the whole.

use tch::Tensor;

/// The part of a parameter that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shape of the whole parameter.
    pub shape: Vec<i64>,
    pub cuts: Vec<Cut>,
    /// Different parts among the tensor-parallel ranks. Where there are fewer than ranks, several have the same one, and
    /// its gradient is the sum of theirs.
    pub tp_parts: usize,
    /// The tensor-parallel ranks, and which of them this is.
    pub tp: usize,
    pub tp_rank: usize,
    /// True if it is spread over the expert-parallel ranks.
    pub of_experts: bool,
    /// True if it is a bias that is added to a sum over ranks: the first of them adds it.
    pub after_sum: bool,
}

/// The ranges of a dimension that a rank holds, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub dim: usize,
    /// Start and length.
    pub ranges: Vec<(i64, i64)>,
}

/// A box of a tensor: start and length along each of its dimensions.
pub type Region = Vec<(i64, i64)>;

/// The part of a checkpoint's tensor that a rank holds, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiecePart {
    /// The region of the rank's parameter.
    pub local: Region,
    /// The region of the checkpoint's tensor.
    pub stored: Region,
}

impl Shard {
    /// Returns all of a parameter, on one rank.
    #[cfg(test)]
    pub fn whole(shape: &[i64]) -> Shard {
        let (tp_parts, tp, tp_rank) = (1, 1, 0);
        Shard { shape: shape.to_vec(), cuts: Vec::new(), tp_parts, tp, tp_rank, of_experts: false, after_sum: false }
    }

    /// Returns whether this is the first of the tensor-parallel ranks that have the same part.
    pub fn is_first(&self) -> bool {
        self.tp_rank.is_multiple_of(self.tp / self.tp_parts)
    }

    /// Returns the shard of a parameter of another `shape` beside this one, such as an adapter's: dimension `dim` is
    /// cut as this one's `from`, if that is cut.
    pub fn beside(&self, shape: &[i64], dim: usize, from: usize) -> Shard {
        let cuts: Vec<Cut> =
            self.cuts.iter().filter(|cut| cut.dim == from).map(|cut| Cut { dim, ..cut.clone() }).collect();
        let tp_parts = if cuts.is_empty() { 1 } else { self.tp_parts };
        Shard { shape: shape.to_vec(), cuts, tp_parts, after_sum: false, ..self.clone() }
    }

    /// Returns the rank's part of a tensor of the whole parameter's shape `[…]`; its sizes are smaller along the dimensions that are cut.
    pub fn take(&self, whole: &Tensor) -> Tensor {
        let cut = |tensor: Tensor, cut: &Cut| {
            let dim = cut.dim as i64;
            let parts: Vec<Tensor> = cut.ranges.iter().map(|&(start, len)| tensor.narrow(dim, start, len)).collect();
            if parts.len() == 1 { parts[0].shallow_clone() } else { Tensor::cat(&parts, dim) }
        };
        self.cuts.iter().fold(whole.shallow_clone(), cut)
    }

    /// Puts the rank's `part`, of the shape that [`Shard::take`] gives, into `whole`, a tensor of the whole parameter's shape `[…]`.
    pub fn put(&self, whole: &Tensor, part: &Tensor) {
        let shape: Region = self.shape.iter().map(|size| (0, *size)).collect();
        for (local, stored) in self.overlaps(&shape) {
            region(whole, &stored).copy_(&region(part, &local));
        }
    }

    /// Returns where the part meets a region of the whole: pairs of a region of the part and one of the whole.
    pub(super) fn overlaps(&self, of_whole: &Region) -> Vec<(Region, Region)> {
        let mut found: Vec<(Region, Region)> = vec![(Vec::new(), Vec::new())];
        for (dim, &(first, len)) in of_whole.iter().enumerate() {
            let whole = [(0, self.shape[dim])];
            let ranges = self.cuts.iter().find(|cut| cut.dim == dim).map_or(&whole[..], |cut| &cut.ranges);
            let mut at = 0;
            let mut pieces = Vec::new();
            for &(start, held) in ranges {
                let (low, high) = (start.max(first), (start + held).min(first + len));
                if low < high {
                    pieces.push(((at + low - start, high - low), (low, high - low)));
                }
                at += held;
            }
            let extended = |(local, whole): &(Region, Region)| {
                let with = |region: &Region, next| [region.as_slice(), &[next]].concat();
                pieces.iter().map(|(here, there)| (with(local, *here), with(whole, *there))).collect::<Vec<_>>()
            };
            found = found.iter().flat_map(extended).collect();
        }
        found
    }
}

/// Returns a view `[len, …]` of a region, which has a start and a length for each of the first dimensions; the other dimensions stay
/// whole.
pub fn region(tensor: &Tensor, region: &Region) -> Tensor {
    (0..).zip(region).fold(tensor.shallow_clone(), |view, (dim, &(start, len))| view.narrow(dim, start, len))
}
