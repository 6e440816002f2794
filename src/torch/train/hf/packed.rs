//! Quantized tensors as their publishers store them, back to numbers. They are only read: the files that we write are plain.
//!
//! * FP8 blocks (DeepSeek): `NAME` F8_E4M3 `[.., M, N]` times `NAME_scale_inv` `[.., ceil(M/b0), ceil(N/b1)]`.
//!   DeepSeek-V4 calls the scales `MODULE.scale`, E8M0, beside `MODULE.weight`; its experts are MXFP4 there, `MODULE.weight` I8
//!   `[M, N/2]` and `MODULE.scale` E8M0 `[M, N/32]`.
//! * FP8 as ComfyUI has it: `NAME.weight` F8_E4M3 alone, or times `NAME.scale_weight` (later `NAME.weight_scale`), one number
//!   or one for each row.
//! * INT4 (compressed-tensors, `pack-quantized`, as Kimi-K2): `NAME_packed` I32 `[M, ceil(N/8)]`, eight values a word from
//!   the lowest bits on, stored plus 8; `NAME_scale` `[M, N/group]`; `NAME_shape` `[2]`; with an asymmetric scheme
//!   `NAME_zero_point` I32 `[ceil(M/8), N/group]`, packed along its rows.
//! * MXFP4 (OCP Microscaling): `NAME_blocks` U8 `[.., M, G, 16]`, two E2M1 values a byte, the low half first, times two to
//!   the power of `NAME_scales` U8 `[.., M, G]` minus 127.

/// E2M1: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Values of an INT4 word, and of an MXFP4 block.
pub(super) const INT4_A_WORD: usize = 8;
pub(super) const MXFP4_BLOCK: usize = 32;

/// F8_E4M3 without infinities (`float8_e4m3fn`): exponent bias 7, all ones are NaN.
pub(super) fn from_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// E8M0: a power of two; 255 is NaN.
pub(super) fn from_e8m0(bits: u8) -> f32 {
    if bits == 255 { f32::NAN } else { 2f64.powi(i32::from(bits) - 127) as f32 }
}

/// A matrix's place in a stack of them, and the sizes of what its scales cover.
pub(super) struct Fp8 {
    /// Rows and columns of each matrix.
    pub matrix: [usize; 2],
    pub block: [usize; 2],
}

impl Fp8 {
    /// Returns the rows and columns of each matrix's scales.
    pub fn scales(&self) -> [usize; 2] {
        [self.matrix[0].div_ceil(self.block[0]), self.matrix[1].div_ceil(self.block[1])]
    }

    /// `weight` holds the rows from `first` on, counted through the whole stack; `scale` all scales.
    pub fn unpack(&self, weight: &[u8], scale: &[f32], first: usize, out: &mut [f32]) {
        let table: [f32; 256] = std::array::from_fn(|bits| from_e4m3(bits as u8));
        let ([num_rows, num_cols], [scale_rows, scale_cols]) = (self.matrix, self.scales());
        let rows = weight.chunks_exact(num_cols).zip(out.chunks_exact_mut(num_cols));
        for (row, (weight, out)) in (first..).zip(rows) {
            let (stack, row) = (row / num_rows, row % num_rows);
            let scale = &scale[(stack * scale_rows + row / self.block[0]) * scale_cols..][..scale_cols];
            let blocks = weight.chunks(self.block[1]).zip(out.chunks_mut(self.block[1]));
            for ((weight, out), scale) in blocks.zip(scale) {
                weight.iter().zip(out).for_each(|(bits, out)| *out = table[usize::from(*bits)] * scale);
            }
        }
    }
}

/// Rows of an INT4 matrix.
pub(super) struct Int4 {
    pub num_cols: usize,
    pub group: usize,
}

impl Int4 {
    /// Returns the number of groups in a row, each with its own scale.
    pub fn num_groups(&self) -> usize {
        self.num_cols / self.group
    }

    /// Returns the number of bytes of a packed row.
    pub fn row_bytes(&self) -> usize {
        self.num_cols.div_ceil(INT4_A_WORD) * 4
    }

    /// `packed` holds the rows from `first` on; `scale` and `zero_point` are whole.
    pub fn unpack(&self, packed: &[u8], scale: &[f32], zero_point: Option<&[u8]>, first: usize, out: &mut [f32]) {
        let groups = self.num_groups();
        let rows = packed.chunks_exact(self.row_bytes()).zip(out.chunks_exact_mut(self.num_cols));
        for (row, (packed, out)) in (first..).zip(rows) {
            for (group, out) in out.chunks_exact_mut(self.group).enumerate() {
                let scale = scale[row * groups + group];
                let zero = match zero_point {
                    Some(words) => nibble(&words[row / INT4_A_WORD * groups * 4..], group, row % INT4_A_WORD),
                    None => 8,
                };
                for (col, out) in (group * self.group..).zip(out) {
                    let value = nibble(packed, col / INT4_A_WORD, col % INT4_A_WORD);
                    *out = (i32::from(value) - i32::from(zero)) as f32 * scale;
                }
            }
        }
    }
}

/// Returns the `index`-th four bits of a little-endian 32-bit word.
fn nibble(words: &[u8], word: usize, index: usize) -> u8 {
    words[word * 4 + index / 2] >> (index % 2 * 4) & 15
}

/// `blocks` and `scales` of the same rows.
pub(super) fn unpack_mxfp4(blocks: &[u8], scales: &[u8], out: &mut [f32]) {
    let parts = blocks.chunks_exact(MXFP4_BLOCK / 2).zip(out.chunks_exact_mut(MXFP4_BLOCK));
    for ((block, out), scale) in parts.zip(scales) {
        let scale = from_e8m0(*scale);
        for (byte, out) in block.iter().zip(out.chunks_exact_mut(2)) {
            out[0] = E2M1[usize::from(byte & 15)] * scale;
            out[1] = E2M1[usize::from(byte >> 4)] * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::bytes_mut;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn e4m3_is_libtorchs() {
        let mut tensor = Tensor::zeros([256], (Kind::Float8e4m3fn, Device::Cpu));
        bytes_mut(&mut tensor).copy_from_slice(&std::array::from_fn::<u8, 256, _>(|bits| bits as u8));
        let want: Vec<f32> = Vec::try_from(tensor.to_kind(Kind::Float)).unwrap();
        for (bits, want) in want.into_iter().enumerate() {
            let found = from_e4m3(bits as u8);
            assert!(found == want || found.is_nan() && want.is_nan(), "{bits:#x}: {found} and {want}");
        }
        assert_eq!((from_e8m0(0), from_e8m0(127), from_e8m0(254)), (2f32.powi(-127), 1.0, 2f32.powi(127)));
    }

    #[test]
    fn fp8_blocks_take_their_scale() {
        // Two matrices of 3x5 in blocks of 2x2; 0x38 is 1.
        let packing = Fp8 { matrix: [3, 5], block: [2, 2] };
        let scale: Vec<f32> = (1..=12).map(|index| index as f32).collect();
        let want = |row: usize, col: usize| scale[row / 3 * 6 + row % 3 / 2 * 3 + col / 2];
        for first in [0, 2, 4] {
            let mut out = vec![0.0; (6 - first) * 5];
            packing.unpack(&vec![0x38; out.len()], &scale, first, &mut out);
            for (index, found) in out.iter().enumerate() {
                assert_eq!(*found, want(first + index / 5, index % 5), "{first} {index}");
            }
        }
    }

    #[test]
    fn int4_words_are_unpacked_from_their_low_end() {
        // Value j of a row of 12 is (j + row) % 16 - 8, groups of 4.
        let packing = Int4 { num_cols: 12, group: 4 };
        let value = |row: usize, col: usize| ((col + row) % 16) as u8;
        let mut packed = Vec::new();
        for row in 0..9 {
            for word in 0..2 {
                let bits = (0..8).map(|index| word * 8 + index).filter(|col| *col < 12);
                let word = bits.fold(0u32, |bits, col| bits | u32::from(value(row, col)) << (col % 8 * 4));
                packed.extend(word.to_le_bytes());
            }
        }
        let scale: Vec<f32> = (0..27).map(|index| 0.5 + index as f32).collect();
        let zero = |row: usize, group: usize| ((row * 3 + group) % 16) as u8;
        let mut zero_point = Vec::new();
        for word in 0..2 {
            for group in 0..3 {
                let rows = (word * 8..(word * 8 + 8).min(9)).map(|row| u32::from(zero(row, group)) << (row % 8 * 4));
                zero_point.extend(rows.fold(0, |bits, row| bits | row).to_le_bytes());
            }
        }
        for first in [0, 5] {
            for asymmetric in [false, true] {
                let mut out = vec![0.0; (9 - first) * 12];
                let zero_point = asymmetric.then_some(zero_point.as_slice());
                packing.unpack(&packed[first * 8..], &scale, zero_point, first, &mut out);
                for (index, found) in out.iter().enumerate() {
                    let (row, col) = (first + index / 12, index % 12);
                    let zero = if asymmetric { zero(row, col / 4) } else { 8 };
                    let want = (f32::from(value(row, col)) - f32::from(zero)) * scale[row * 3 + col / 4];
                    assert_eq!(*found, want, "{row} {col}");
                }
            }
        }
    }

    #[test]
    fn mxfp4_has_the_low_half_first() {
        let mut out = vec![0.0; 64];
        let mut blocks = [0x2b; 32];
        blocks[16] = 0x7f;
        unpack_mxfp4(&blocks, &[128, 120], &mut out);
        assert_eq!(out[..4], [-3.0, 2.0, -3.0, 2.0]);
        assert_eq!(out[32..36], [-6.0 / 128.0, 6.0 / 128.0, -1.5 / 128.0, 1.0 / 128.0]);
    }
}
