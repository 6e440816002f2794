//! Values of tensors as a GGUF file has them.

use super::container::{Q8_0_VALUES, TensorType};
use loongforge_torch::native::bytes;
use loongforge_torch::train::hf::{Beyond, Dtype, narrowed};
use tch::Tensor;

/// Returns the bytes of float32 values of any shape, in row-major order; for `Q8_0` their number must be a multiple of 32.
///
/// # Errors
/// Finite values, or scales of blocks, would be infinite.
pub fn encoded(values: &Tensor, kind: TensorType) -> Result<Vec<u8>, Beyond> {
    let values = values.contiguous();
    Ok(match kind {
        TensorType::F32 => bytes(&values).to_vec(),
        TensorType::F16 => bytes(&narrowed(&values, Dtype::F16)?).to_vec(),
        TensorType::Bf16 => bytes(&narrowed(&values, Dtype::BF16)?).to_vec(),
        TensorType::Q8_0 => q8_0(&values)?,
    })
}

/// Returns blocks of 32 values: the scale is the largest absolute value over 127, each value is rounded to a multiple of it, halves away
/// from zero, as ggml's reference does.
fn q8_0(values: &Tensor) -> Result<Vec<u8>, Beyond> {
    let floats: Vec<f32> = bytes(values).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let blocks = floats.chunks_exact(Q8_0_VALUES as usize);
    let scales: Vec<f32> = blocks
        .clone()
        .map(|block| block.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 127.0)
        .collect();
    let halves = narrowed(&Tensor::from_slice(&scales), Dtype::F16)?;
    let mut out = Vec::with_capacity(scales.len() * 34);
    for ((block, scale), half) in blocks.zip(&scales).zip(bytes(&halves).as_chunks::<2>().0) {
        let inverse = if *scale == 0.0 { 0.0 } else { 1.0 / scale };
        out.extend_from_slice(half);
        out.extend(block.iter().map(|value| ((value * inverse).round() as i8) as u8));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_multiples_of_their_scale() {
        let mut values = vec![0f32; 96];
        values[..4].copy_from_slice(&[127.0, -63.5, 0.5, 1.49]);
        values[64] = -2.54;
        let out = encoded(&Tensor::from_slice(&values), TensorType::Q8_0).unwrap();
        assert_eq!(out.len(), 3 * 34);
        // A scale of 1 in float16; halves are rounded away from zero.
        assert_eq!((&out[..2], &out[2..6]), (&[0x00, 0x3c][..], &[127, (-64i8) as u8, 1, 1][..]));
        assert!(out[34..68].iter().all(|&byte| byte == 0), "a block of zeros");
        assert_eq!(out[70], (-127i8) as u8);
    }

    #[test]
    fn floats_are_rounded_to_even() {
        let values = Tensor::from_slice(&[1.0f32 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
        let encoded = |kind| encoded(&values, kind).unwrap();
        assert_eq!(encoded(TensorType::Bf16), [0x80, 0x3f, 0x82, 0x3f]);
        assert_eq!(encoded(TensorType::F32).len(), 8);
        assert_eq!(encoded(TensorType::F16), [0x04, 0x3c, 0x0c, 0x3c]);
    }

    #[test]
    fn finite_values_do_not_become_infinite() {
        let values = Tensor::from_slice(&[7e4f32; 32]);
        assert_eq!(encoded(&values, TensorType::F16).unwrap_err().count, 32);
        assert!([TensorType::Bf16, TensorType::Q8_0].map(|kind| encoded(&values, kind).is_ok()) == [true; 2]);
        let scale = encoded(&(values * 1e4), TensorType::Q8_0).unwrap_err();
        assert_eq!((scale.count, scale.to), (1, Dtype::F16));
    }
}
