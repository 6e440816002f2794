//! What a vision transformer of native resolution needs to know of its patches.
//!
//! Patches of a picture come in blocks of `merge` × `merge`, block by block, because a block becomes one feature:
//! a row of features is `merge²` consecutive rows of patches.

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

/// Row and column of every patch of one frame, in the patches' order.
fn coordinates(grid: Grid, merge: u32) -> impl Iterator<Item = (u32, u32)> {
    let blocks = (0..grid.h / merge).flat_map(move |row| (0..grid.w / merge).map(move |column| (row, column)));
    blocks.flat_map(move |(row, column)| {
        (0..merge).flat_map(move |y| (0..merge).map(move |x| (row * merge + y, column * merge + x)))
    })
}

fn all_coordinates(grids: &[Grid], merge: u32) -> impl Iterator<Item = (Grid, u32, u32)> {
    grids.iter().flat_map(move |&grid| {
        (0..grid.t).flat_map(move |_| coordinates(grid, merge).map(move |(row, column)| (grid, row, column)))
    })
}

/// Row and column of every patch, `[P, 2]`, int64.
pub fn patch_positions(grids: &[Grid], merge: u32, device: Device) -> Tensor {
    let values: Vec<i64> =
        all_coordinates(grids, merge).flat_map(|(_, row, column)| [i64::from(row), i64::from(column)]).collect();
    Tensor::from_slice(&values).view([-1, 2]).to_device(device)
}

/// Where documents of attention end: every frame attends to itself.
pub fn frame_cu_seqlens(grids: &[Grid]) -> Vec<usize> {
    let frames = grids.iter().flat_map(|grid| (0..grid.t).map(|_| grid.h as usize * grid.w as usize));
    std::iter::once(0)
        .chain(frames.scan(0, |end, len| {
            *end += len;
            Some(*end)
        }))
        .collect()
}

/// Bilinear interpolation of a learned table of `side` × `side` positions to each picture's grid, corners on corners:
/// for every patch the four entries `[P, 4]` (int64) and their weights `[P, 4]` (float32). As transformers'
/// `get_vision_interpolation_indices_and_weights`.
pub fn interpolation(grids: &[Grid], merge: u32, side: u32, device: Device) -> (Tensor, Tensor) {
    let (mut entries, mut weights) = (Vec::new(), Vec::new());
    for (grid, row, column) in all_coordinates(grids, merge) {
        let (rows, columns) = (neighbours(row, grid.h, side), neighbours(column, grid.w, side));
        for (y, of_y) in rows {
            for (x, of_x) in columns {
                entries.push(y * i64::from(side) + x);
                weights.push(of_y * of_x);
            }
        }
    }
    let table = |tensor: Tensor| tensor.view([-1, 4]).to_device(device);
    (table(Tensor::from_slice(&entries)), table(Tensor::from_slice(&weights)))
}

/// The two entries of an axis of `side` around position `at` of `size`, with their weights.
fn neighbours(at: u32, size: u32, side: u32) -> [(i64, f32); 2] {
    let source = at as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32;
    let floor = source.floor();
    [0.0, 1.0].map(|offset| {
        let entry = (floor + offset).clamp(0.0, (side - 1) as f32) as i64;
        (entry, (1.0 - (source - floor - offset).abs()).max(0.0))
    })
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::Grid;
    use tch::{Device, Tensor};

    use super::{frame_cu_seqlens, interpolation, patch_positions};

    #[test]
    fn patches_come_block_by_block() {
        let positions = patch_positions(&[Grid { t: 1, h: 2, w: 4 }], 2, Device::Cpu);
        let expected: [i64; 16] = [0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1, 2, 1, 3];
        assert_eq!(positions, Tensor::from_slice(&expected).view([8, 2]));
    }

    #[test]
    fn frames_are_documents() {
        assert_eq!(frame_cu_seqlens(&[Grid { t: 2, h: 2, w: 4 }, Grid { t: 1, h: 2, w: 2 }]), [0, 8, 16, 20]);
    }

    #[test]
    fn a_grid_of_the_tables_size_takes_its_entries() {
        let (entries, weights) = interpolation(&[Grid { t: 1, h: 4, w: 4 }], 2, 4, Device::Cpu);
        let taken = (entries * weights.to_kind(tch::Kind::Int64)).sum_dim_intlist(1i64, false, None);
        assert_eq!(Vec::<i64>::try_from(taken).unwrap(), [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
    }
}
