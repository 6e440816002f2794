//! Values as float8 (E4M3) with a scale for each row.
//!
//! A scale is a power of two, so that the product with it is exact in every type: what was rounded once is found again, bit for
//! bit, by rounding it or its copy in bfloat16. So files that are float8 without scales keep their values, and it does not
//! matter whether a base was rounded before. Files of float8 with scales keep those.

use tch::{Kind, Tensor};

/// Returns matrices `[.., out, in]` of floats as float8 `[rows, in]` and scales `[rows]`, float32, on their device. `given`: scales for
/// all rows, of which those above 0 are taken.
pub(super) fn to_float8(values: &Tensor, given: Option<&Tensor>) -> (Tensor, Tensor) {
    let rows = rows(values).to_kind(Kind::Float);
    let numbers = |tensor: &Tensor| Vec::<f32>::try_from(tensor.flatten(0, -1)).expect("a number for each row");
    let largest = numbers(&rows.abs().amax([1i64].as_slice(), false));
    let given = given.map_or_else(|| vec![0.0; largest.len()], numbers);
    let scale = |(largest, given): (f32, f32)| if given > 0.0 { given } else { scale_of(largest) };
    let scales: Vec<f32> = largest.into_iter().zip(given).map(scale).collect();
    let scales = Tensor::from_slice(&scales).to_device(values.device());
    let scaled = rows / scales.unsqueeze(1);
    (scaled.to_kind(Kind::Float8e4m3fn), scales)
}

/// Fills matrices with float8 `[rows, in]` times their scales `[rows]`.
pub(super) fn fill_from_float8(into: &Tensor, values: &Tensor, scales: &Tensor) {
    let mut into = rows(into);
    into.copy_(values);
    let _ = into.g_mul_(&scales.to_kind(into.kind()).unsqueeze(1));
}

/// Returns `[.., out, in]` as `[rows, in]`: a view.
fn rows(values: &Tensor) -> Tensor {
    values.flatten(0, -2)
}

/// Returns the power of two by which values up to `largest` are divided, so that they come as close to 448 as they can.
fn scale_of(largest: f32) -> f32 {
    if !largest.is_normal() {
        return 1.0;
    }
    // 448 is 1.75 x 2^8.
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    let mantissa = f32::from_bits(largest.to_bits() & 0x7f_ffff | 0x3f80_0000);
    let exponent = exponent - 8 + i32::from(mantissa > 1.75);
    2f32.powi(exponent.max(-126))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{fill_from_float8, scale_of, to_float8};

    fn round(values: &Tensor, kind: Kind) -> Tensor {
        let (float8, scales) = to_float8(values, None);
        let found = Tensor::zeros(values.size(), (kind, Device::Cpu));
        fill_from_float8(&found, &float8, &scales);
        found
    }

    #[test]
    fn scales_are_the_least_powers_of_two_that_fit() {
        for largest in [448.0, 448.1, 449.0, 1.0, 0.99, 1.75, 1.76, 3e-5, 7e8, f32::MIN_POSITIVE * 300.0] {
            let scale = scale_of(largest);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{scale} is a power of two");
            assert!(largest / scale <= 448.0 && largest / scale > 224.0, "{largest} / {scale}");
        }
        assert_eq!([0.0, f32::NAN, f32::INFINITY].map(scale_of), [1.0; 3]);
    }

    #[test]
    fn values_are_rounded_once_and_by_a_sixteenth_at_most() {
        let values = (Tensor::arange(4 * 6 * 50, (Kind::Float, Device::Cpu)) * 0.61).sin().view([4, 6, 50]);
        let sizes = Tensor::from_slice(&[1e-4f32, 1.0, 30.0, 2e6]).view([4, 1, 1]);
        let values = values * sizes;
        for kind in [Kind::Float, Kind::BFloat16] {
            let once = round(&values, kind);
            assert_eq!(round(&once, kind), once);
            let error = (once.to_kind(Kind::Float) - &values).abs();
            let largest = values.abs().amax([2i64].as_slice(), true);
            // Half a step: a sixteenth of the value, or of the smallest normal number.
            let most = values.abs() / 16.0 + largest * 2f64.powi(-17);
            assert!(error.le_tensor(&most).all().int64_value(&[]) == 1);
            assert!(once.ne_tensor(&values.to_kind(kind)).any().int64_value(&[]) == 1, "{kind:?} is rounded");
        }
    }

    #[test]
    fn scales_that_are_given_are_kept() {
        let numbers = Tensor::from_slice(&[448f32, -3.5, 0.25, 30.0, 1.0, 0.0, 5.0, 7.0]).view([2, 4]);
        let given = Tensor::from_slice(&[0.0123f32, 0.0]);
        let values = &numbers * Tensor::from_slice(&[0.0123f32, 0.1]).unsqueeze(1);
        let (float8, scales) = to_float8(&values, Some(&given));
        assert_eq!(scales, Tensor::from_slice(&[0.0123f32, 0.001953125]));
        assert_eq!(float8.get(0).to_kind(Kind::Float), numbers.get(0));
    }

    #[test]
    fn every_number_of_float8_keeps_its_bits() {
        let numbers: Vec<f32> = (0..=126u8)
            .flat_map(|bits| {
                let (exponent, mantissa) = (i32::from(bits >> 3), f32::from(bits & 7));
                let value = if exponent == 0 {
                    mantissa * 2f32.powi(-9)
                } else {
                    (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
                };
                [value, -value]
            })
            .collect();
        let numbers = Tensor::from_slice(&numbers).view([1, -1]);
        assert_eq!(numbers.max().double_value(&[]), 448.0);
        assert_eq!(round(&numbers, Kind::BFloat16).to_kind(Kind::Float), numbers);
    }
}
