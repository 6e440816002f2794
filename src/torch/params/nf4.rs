//! Weights as NF4 (Dettmers et al. 2023, QLoRA): for each number the nearest of 16, times the largest magnitude of its block.
//!
//! Definition and bits are those of bitsandbytes, but for one thing: a block is of 64 numbers of a row, and begins anew with each
//! row. In matrices whose rows are multiples of 64 long there is no difference; and ranks that have other rows of a matrix, or other
//! blocks of its columns, have together what one would have.
//!
//! Under double quantization the largest magnitudes of a matrix, less their mean, are rounded in their turn: in groups of 256, to 8
//! bits of the dynamic map.

use tch::{Device, Kind, Tensor};

use super::rounding::{AT_ONCE, GROUP, RowRange, num_blocks, num_groups, pieces};
use crate::native::{dynamic_map, from_nf4, resident};

/// The 16 numbers, from -1 to 1.
const NUMBERS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Fills a matrix `[rows, width]` with NF4 of these bytes, `[rows, (width + 1) / 2]`, and maxima `[rows, blocks]`, on its device.
pub(super) fn fill_from_nf4(into: &Tensor, packed: &Tensor, maxima: &Tensor) {
    match into.device() {
        Device::Cpu => from_nf4(packed, maxima, into),
        _ => fill_by_operators(into, packed, maxima, AT_ONCE),
    }
}

/// Works like [`fill_from_nf4`] on any device, for about `at_once` elements at a time.
pub(super) fn fill_by_operators(into: &Tensor, packed: &Tensor, maxima: &Tensor, at_once: i64) {
    let (rows, width) = into.size2().expect("a matrix");
    let pairs = resident("pairs of NF4", into.device(), || {
        let pairs: Vec<f32> = (0..256).flat_map(|byte| [NUMBERS[byte >> 4], NUMBERS[byte & 15]]).collect();
        Tensor::from_slice(&pairs).view([256, 2])
    });
    for (first, len) in pieces(rows, width, at_once) {
        let [mut into, packed, maxima] = [into, packed, maxima].map(|x| x.narrow(0, first, len));
        let values = pairs.index_select(0, &packed.reshape([-1]).to_kind(Kind::Int)).view([len, -1]);
        let scales = maxima.unsqueeze(2).expand([len, num_blocks(width), crate::native::NF4_BLOCK], false);
        into.copy_(&(values.narrow(1, 0, width) * scales.reshape([len, -1]).narrow(1, 0, width)));
    }
}

/// Returns the maxima `[blocks]` of matrices, each of which has `width` columns, rounded: bytes `[blocks]`; the largest magnitudes of
/// groups of all matrices, and behind them the means of all, in one tensor of float32.
pub(super) fn round_maxima(maxima: &Tensor, width: i64, matrices: &[RowRange]) -> (Tensor, Tensor) {
    let blocks = num_blocks(width);
    let map = dynamic_map(true);
    let bounds: Vec<f32> = map.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    let bounds = Tensor::from_slice(&bounds);
    let (mut codes, mut groups, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for matrix in matrices {
        let own = maxima.narrow(0, matrix.first * blocks, matrix.len * blocks);
        let mean = own.mean(Kind::Float);
        let len = own.size()[0];
        // Zeros behind the end change no largest magnitude.
        let padded = (own - &mean).constant_pad_nd([0, num_groups(len) * GROUP - len]).view([-1, GROUP]);
        let most = padded.abs().amax([1i64].as_slice(), false);
        let scaled = (&padded * most.clamp_min(1e-38).reciprocal().unsqueeze(1)).clamp(-1.0, 1.0);
        codes.push(scaled.bucketize(&bounds, false, false).to_kind(Kind::Uint8).view([-1]).narrow(0, 0, len));
        groups.push(most);
        means.push(mean.view([1]));
    }
    groups.extend(means);
    (Tensor::cat(&codes, 0), Tensor::cat(&groups, 0))
}

/// Returns the maxima `[blocks]` that [`round_maxima`] rounded.
pub(super) fn maxima_from(codes: &Tensor, scales: &Tensor, width: i64, matrices: &[RowRange]) -> Tensor {
    let blocks = num_blocks(width);
    let map = resident("dynamic map", codes.device(), || Tensor::from_slice(&dynamic_map(true)));
    let (mut group, mut found) = (0, Vec::new());
    for (index, matrix) in matrices.iter().enumerate() {
        let (first, len) = (matrix.first * blocks, matrix.len * blocks);
        let values = map.index_select(0, &codes.narrow(0, first, len).to_kind(Kind::Int));
        let of_groups = scales.narrow(0, group, num_groups(len)).unsqueeze(1).expand([-1, GROUP], false);
        let mean = scales.narrow(0, scales.size()[0] - matrices.len() as i64 + index as i64, 1);
        found.push(values * of_groups.reshape([-1]).narrow(0, 0, len) + mean);
        group += num_groups(len);
    }
    Tensor::cat(&found, 0)
}
