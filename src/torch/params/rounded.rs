//! A weight that was rounded, and the way back.

use tch::{Device, Kind, Tensor};

use super::float8::{fill_from_float8, to_float8};
use super::nf4::{fill_from_nf4, maxima_from, round_maxima};
use super::rounding::{AT_ONCE, Rounding, RowRange, num_blocks, pieces, rows_of};
use crate::native::{from_int8, to_int8, to_nf4};

/// A matrix `[rows, in]`: of float8 and int8 a number an element, of NF4 two numbers a byte.
pub(super) struct Rounded {
    pub values: Tensor,
    /// Scales of rows, maxima of rows or blocks, or what [`round_maxima`] makes of these.
    pub scales: Tensor,
    /// Under double quantization.
    pub codes: Option<Tensor>,
}

/// Rounds a weight `[.., out, in]` of these `matrices`. `given`: of float8 the scales of its rows where they are above 0, of int8
/// the largest magnitudes of the whole rows of which these are parts.
pub(super) fn round(rounding: Rounding, weight: &Tensor, given: Option<&Tensor>, matrices: &[RowRange]) -> Rounded {
    let (rows, width) = rows_of(&weight.size());
    let floats = || weight.to_device(Device::Cpu).to_kind(Kind::Float).reshape([rows, width]).contiguous();
    match rounding {
        Rounding::None => unreachable!("what is not rounded"),
        Rounding::Float8 => {
            let (values, scales) = to_float8(weight, given);
            Rounded { values, scales, codes: None }
        }
        Rounding::Int8 => {
            let own = floats();
            let most = || own.abs().amax([1i64].as_slice(), false);
            let given =
                given.map(|given| given.to_device(Device::Cpu).to_kind(Kind::Float).reshape([rows]).contiguous());
            let maxima = given.unwrap_or_else(most);
            Rounded { values: to_int8(&own, &maxima), scales: maxima, codes: None }
        }
        Rounding::Nf4 => {
            let (values, maxima) = to_nf4(&floats());
            Rounded { values, scales: maxima.view([-1]), codes: None }
        }
        Rounding::Nf4Double => {
            let (values, maxima) = to_nf4(&floats());
            let (codes, scales) = round_maxima(&maxima.view([-1]), width, matrices);
            Rounded { values, scales, codes: Some(codes) }
        }
    }
}

/// Fills a contiguous weight `[.., out, in]` with what was rounded; all of it on one device.
pub(super) fn fill(rounding: Rounding, into: &Tensor, rounded: &Rounded, matrices: &[RowRange]) {
    let (rows, width) = rows_of(&into.size());
    let matrix = into.view([rows, width]);
    match rounding {
        Rounding::None => unreachable!("what is not rounded"),
        Rounding::Float8 => fill_from_float8(into, &rounded.values, &rounded.scales),
        Rounding::Int8 if into.device() == Device::Cpu => from_int8(&rounded.values, &rounded.scales, &matrix),
        Rounding::Int8 => fill_from_int8(&matrix, &rounded.values, &rounded.scales, AT_ONCE),
        Rounding::Nf4 => fill_from_nf4(&matrix, &rounded.values, &rounded.scales.view([rows, num_blocks(width)])),
        Rounding::Nf4Double => {
            let codes = rounded.codes.as_ref().expect("rounded maxima");
            let maxima = maxima_from(codes, &rounded.scales, width, matrices);
            fill_from_nf4(&matrix, &rounded.values, &maxima.view([rows, num_blocks(width)]));
        }
    }
}

/// Works like [`from_int8`] on any device, for about `at_once` elements at a time.
pub(super) fn fill_from_int8(into: &Tensor, values: &Tensor, maxima: &Tensor, at_once: i64) {
    let (rows, width) = into.size2().expect("a matrix");
    for (first, len) in pieces(rows, width, at_once) {
        let [mut into, values, maxima] = [into, values, maxima].map(|x| x.narrow(0, first, len));
        into.copy_(&(values.to_kind(Kind::Float) * maxima.unsqueeze(1) * f64::from(1.0f32 / 127.0)));
    }
}
