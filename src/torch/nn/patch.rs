//! The places of patches in vision transformers of native resolution: their order, and their positions in a table.
//!
//! Patches of a picture come in blocks of `merge` × `merge`, block by block, because a block becomes one feature:
//! a row of features is `merge²` consecutive rows of patches. With a `merge` of 1 they come row by row.
//!
//! Shapes: P patches, N entries of a table around a patch, E entries of the table, D their width.

use loongforge_core::message::Grid;
use tch::{Device, Kind, Tensor};

use crate::device::upload;

/// Returns the row and column of every patch of one frame, in the patches' order.
pub fn coordinates(grid: Grid, merge: u32) -> impl Iterator<Item = (u32, u32)> {
    let blocks = (0..grid.h / merge).flat_map(move |row| (0..grid.w / merge).map(move |column| (row, column)));
    blocks.flat_map(move |(row, column)| {
        (0..merge).flat_map(move |y| (0..merge).map(move |x| (row * merge + y, column * merge + x)))
    })
}

/// Says how a table of positions is fitted to a picture. It is computed as in transformers'
/// `get_vision_interpolation_indices_and_weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resampling {
    /// Between two entries on each axis, corners on corners (Qwen3-VL).
    Bilinear,
    /// Among four on each axis, by Keys' kernel with `a = -0.75`, centers half an entry in (`F.interpolate`).
    Bicubic,
    /// One on each axis: that in whose part of the axis a patch begins (SmolVLM, Idefics 3).
    Bucketed,
    /// The same, where a patch's begin is a quotient and not a product with the reciprocal (MiniCPM-V 4.6): other rounding.
    BucketedQuotient,
    /// The entries around a patch by Keys' kernel with `a = -0.5`, which is as much wider as a picture is smaller than the table, centers
    /// half an entry in (`F.interpolate` with `antialias`).
    Antialiased,
    /// The same with a triangle for a kernel (SigLIP 2 of native resolution).
    AntialiasedBilinear,
}

/// A learned table of `side` × `side` positions, fitted to the pictures of a batch: for every patch the entries around
/// it and their weights. The same for every frame.
pub struct Resampled {
    /// `[P·N]`, int64.
    entries: Tensor,
    /// `[P·N]`, float32.
    weights: Tensor,
    /// The place where each patch's entries begin, `[P]`, int64.
    starts: Tensor,
}

impl Resampled {
    /// Looks up, for each patch of pictures of these `grids`, the entries of a learned `side` × `side` table around its place,
    /// and their weights. Patches come in blocks of `merge` × `merge`; the indices are put on `device`.
    pub fn new(grids: &[Grid], merge: u32, side: u32, resampling: Resampling, device: Device) -> Resampled {
        let (mut entries, mut weights, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for grid in grids {
            let axis = |size: u32| match resampling {
                Resampling::Bucketed | Resampling::BucketedQuotient => {
                    buckets(size, side, resampling).into_iter().map(|entry| vec![(entry, 1.0)]).collect()
                }
                _ => (0..size).map(|at| resampling.neighbors(at, size, side)).collect::<Vec<_>>(),
            };
            let (rows, columns) = (axis(grid.h), axis(grid.w));
            for (row, column) in (0..grid.t).flat_map(|_| coordinates(*grid, merge)) {
                starts.push(entries.len() as i64);
                for &(y, of_y) in &rows[row as usize] {
                    for &(x, of_x) in &columns[column as usize] {
                        entries.push(y * i64::from(side) + x);
                        weights.push(of_y * of_x);
                    }
                }
            }
        }
        let starts = upload(&Tensor::from_slice(&starts), device);
        let (entries, weights) = (Tensor::from_slice(&entries), Tensor::from_slice(&weights));
        Resampled { entries: upload(&entries, device), weights: upload(&weights, device), starts }
    }

    /// Maps `[E, D]` to `[P, D]`, float32.
    pub fn forward(&self, table_ED: &Tensor) -> Tensor {
        let (table, sum) = (table_ED.to_kind(Kind::Float), 0);
        Tensor::embedding_bag(&table, &self.entries, &self.starts, false, sum, false, Some(&self.weights), false).0
    }
}

impl Resampling {
    /// Returns the entries of an axis of `side` around position `at` of `size`, with their weights.
    fn neighbors(self, at: u32, size: u32, side: u32) -> Vec<(i64, f32)> {
        let reach = match self {
            Resampling::Antialiased => Some(2.0),
            Resampling::AntialiasedBilinear => Some(1.0),
            _ => None,
        };
        if let Some(reach) = reach {
            return self.antialiased(reach, at, size, side);
        }
        let (source, offsets) = match self {
            Resampling::Bilinear => (at as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32, 0..2),
            _ => ((at as f32 + 0.5) * side as f32 / size as f32 - 0.5, -1..3),
        };
        let floor = source.floor();
        let entry = |offset: i32| (floor as i64 + i64::from(offset)).clamp(0, i64::from(side) - 1);
        offsets.map(|offset| (entry(offset), self.weight((source - floor - offset as f32).abs()))).collect()
    }

    /// Returns the weight of an entry at this distance.
    fn weight(self, distance: f32) -> f32 {
        let a = match self {
            Resampling::Bilinear | Resampling::AntialiasedBilinear => return (1.0 - distance).max(0.0),
            Resampling::Bicubic => -0.75,
            Resampling::Antialiased => -0.5,
            Resampling::Bucketed | Resampling::BucketedQuotient => unreachable!("an axis is looked up as a whole"),
        };
        match distance {
            ..=1.0 => ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0,
            ..=2.0 => ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a,
            _ => 0.0,
        }
    }

    /// Returns the entries of an axis of `side` around position `at` of `size`, with weights that sum up to 1. The kernel reaches so many
    /// entries on each side of a picture of the table's size.
    fn antialiased(self, reach: f32, at: u32, size: u32, side: u32) -> Vec<(i64, f32)> {
        let scale = side as f32 / size as f32;
        let width = scale.max(1.0);
        let (center, reach) = (scale * (at as f32 + 0.5), reach * width);
        let first = ((center - reach + 0.5) as i64).max(0);
        let behind = ((center + reach + 0.5) as i64).min(i64::from(side));
        let weight = |entry: i64| self.weight(((entry as f32 - center + 0.5) / width).abs());
        let sum: f32 = (first..behind).map(weight).sum();
        (first..behind).map(|entry| (entry, weight(entry) / sum)).collect()
    }
}

/// Returns the entry of `side` in whose part of the axis each of `size` patches begins. It is computed as transformers does, by libtorch
/// in float32: where its rounding of a patch's begin is below a boundary that is equal to it, the entry is the one before.
fn buckets(size: u32, side: u32, resampling: Resampling) -> Vec<i64> {
    let options = (Kind::Float, Device::Cpu);
    let part = 1.0 / f64::from(side);
    let boundaries = Tensor::arange_start_step(part, 1.0, part, options);
    let patches = Tensor::arange(i64::from(size), options);
    let begins = match resampling {
        Resampling::BucketedQuotient => patches / f64::from(size),
        _ => (patches * Tensor::from_slice(&[i64::from(size)]).reciprocal()).clamp_max(1.0 - 1e-6),
    };
    Vec::try_from(begins.bucketize(&boundaries, false, true)).expect("a row of integers")
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::Grid;
    use tch::{Device, Kind, Tensor};

    use super::{Resampled, Resampling, coordinates};

    fn grid(h: u32, w: u32) -> Grid {
        Grid { t: 1, h, w }
    }

    #[test]
    fn patches_come_block_by_block() {
        let found: Vec<_> = coordinates(grid(2, 4), 2).collect();
        assert_eq!(found, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
        assert_eq!(coordinates(grid(2, 2), 1).collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_grid_of_the_tables_size_takes_its_entries() {
        let table = Tensor::arange(16, (Kind::Float, Device::Cpu)).view([16, 1]);
        let all = [Resampling::Bilinear, Resampling::Bicubic, Resampling::Antialiased, Resampling::AntialiasedBilinear];
        for resampling in all {
            let taken = Resampled::new(&[grid(4, 4)], 2, 4, resampling, Device::Cpu).forward(&table);
            let expected = [0f32, 1., 4., 5., 2., 3., 6., 7., 8., 9., 12., 13., 10., 11., 14., 15.];
            assert!(taken.allclose(&Tensor::from_slice(&expected).view([16, 1]), 0.0, 1e-6, false), "{resampling:?}");
        }
    }

    /// Buckets are those of `SmolVLMVisionEmbeddings` of transformers; the first case has entries of a table of another size, the last
    /// has parts that no float32 has.
    #[test]
    fn buckets_are_those_of_transformers() {
        assert_eq!(super::buckets(4, 6, Resampling::Bucketed), [0, 1, 3, 4]);
        assert_eq!(super::buckets(3, 8, Resampling::Bucketed), [0, 2, 5]);
        assert_eq!(super::buckets(9, 4, Resampling::Bucketed), [0, 0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(super::buckets(32, 32, Resampling::Bucketed), (0..32).collect::<Vec<i64>>());
        assert_eq!(super::buckets(27, 27, Resampling::Bucketed), (0..27).collect::<Vec<i64>>());
        let table = Tensor::arange(36, (Kind::Float, Device::Cpu)).view([36, 1]);
        let taken = Resampled::new(&[grid(1, 4)], 1, 6, Resampling::Bucketed, Device::Cpu).forward(&table);
        assert_eq!(Vec::<f32>::try_from(taken.flatten(0, -1)).unwrap(), [0.0, 1.0, 3.0, 4.0]);
    }

    #[test]
    fn filters_are_those_of_libtorch_without_and_with_antialiasing() {
        tch::manual_seed(2);
        let table = Tensor::randn([1, 3, 8, 8], (Kind::Float, Device::Cpu));
        for (h, w) in [(4, 6), (16, 8), (12, 20), (1, 3)] {
            let size: &[i64] = &[i64::from(h), i64::from(w)];
            let expected = table.upsample_bicubic2d(size, false, None, None).squeeze_dim(0).flatten(1, 2).tr();
            let found = Resampled::new(&[grid(h, w)], 1, 8, Resampling::Bicubic, Device::Cpu);
            let found = found.forward(&table.view([3, 64]).tr().contiguous());
            assert!(found.allclose(&expected, 1e-4, 1e-5, false), "{h} x {w}");
            for (resampling, expected) in [
                (Resampling::Antialiased, table.internal_upsample_bicubic2d_aa(size, false, None, None)),
                (Resampling::AntialiasedBilinear, table.internal_upsample_bilinear2d_aa(size, false, None, None)),
            ] {
                let expected = expected.squeeze_dim(0).flatten(1, 2).tr();
                let found = Resampled::new(&[grid(h, w)], 1, 8, resampling, Device::Cpu);
                let found = found.forward(&table.view([3, 64]).tr().contiguous());
                assert!(found.allclose(&expected, 1e-4, 1e-5, false), "{resampling:?} {h} x {w}");
            }
        }
    }
}
