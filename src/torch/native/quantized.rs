//! Matrices of 4 and 8 bits a number, on the CPU: NF4 and int8 as bitsandbytes defines them.

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// Numbers of a row that share a largest magnitude in NF4. The last block of a row may be shorter.
pub const NF4_BLOCK: i64 = 64;

/// Returns `values` `[rows, width]`, float32, as NF4: two numbers a byte `[rows, (width + 1) / 2]`, the first in the upper half, and the
/// largest magnitudes of blocks `[rows, blocks]`. Panics unless it is contiguous and on the CPU.
pub fn to_nf4(values: &Tensor) -> (Tensor, Tensor) {
    let (rows, width) = matrix(values, &[Kind::Float]);
    let packed = Tensor::empty([rows, (width + 1) / 2], (Kind::Uint8, Device::Cpu));
    let maxima = Tensor::empty([rows, (width + NF4_BLOCK - 1) / NF4_BLOCK], (Kind::Float, Device::Cpu));
    // SAFETY: the tensors are alive, and kinds, shapes, layout and device are those that are asked for.
    expect(unsafe { ffi::lf_to_nf4(raw(values), raw(&packed), raw(&maxima)) });
    (packed, maxima)
}

/// Fills `[rows, width]`, float32 or bfloat16, with what [`to_nf4`] made. Panics unless shapes fit, and all is contiguous and on the
/// CPU.
pub fn from_nf4(packed: &Tensor, maxima: &Tensor, into: &Tensor) {
    let (rows, width) = matrix(into, &[Kind::Float, Kind::BFloat16]);
    assert_eq!(matrix(packed, &[Kind::Uint8]), (rows, (width + 1) / 2), "bytes of NF4");
    assert_eq!(matrix(maxima, &[Kind::Float]), (rows, (width + NF4_BLOCK - 1) / NF4_BLOCK), "maxima of NF4");
    // SAFETY: the tensors are alive, and kinds, shapes, layout and device were checked.
    expect(unsafe { ffi::lf_from_nf4(raw(packed), raw(maxima), raw(into)) });
}

/// Returns `values` `[rows, width]`, float32, as int8: `round(127 x / maximum)`, for the largest magnitudes of rows `[rows]`. Panics
/// unless shapes fit, and all is contiguous and on the CPU.
pub fn to_int8(values: &Tensor, maxima: &Tensor) -> Tensor {
    let (rows, width) = matrix(values, &[Kind::Float]);
    assert!(is_of_rows(maxima, rows), "maxima of int8");
    let made = Tensor::empty([rows, width], (Kind::Int8, Device::Cpu));
    // SAFETY: the tensors are alive, and kinds, shapes, layout and device were checked.
    expect(unsafe { ffi::lf_to_int8(raw(values), raw(maxima), raw(&made)) });
    made
}

/// Fills `[rows, width]`, float32 or bfloat16, with what [`to_int8`] made. Panics as that.
pub fn from_int8(values: &Tensor, maxima: &Tensor, into: &Tensor) {
    let (rows, width) = matrix(into, &[Kind::Float, Kind::BFloat16]);
    assert_eq!(matrix(values, &[Kind::Int8]), (rows, width), "bytes of int8");
    assert!(is_of_rows(maxima, rows), "maxima of int8");
    // SAFETY: the tensors are alive, and kinds, shapes, layout and device were checked.
    expect(unsafe { ffi::lf_from_int8(raw(values), raw(maxima), raw(into)) });
}

/// Returns the shape of a contiguous matrix on the CPU, of one of these kinds.
fn matrix(tensor: &Tensor, kinds: &[Kind]) -> (i64, i64) {
    assert!(tensor.device() == Device::Cpu && tensor.is_contiguous() && kinds.contains(&tensor.kind()), "{tensor:?}");
    tensor.size2().expect("a matrix")
}

fn is_of_rows(maxima: &Tensor, rows: i64) -> bool {
    let is_flat = maxima.device() == Device::Cpu && maxima.is_contiguous();
    is_flat && maxima.kind() == Kind::Float && maxima.numel() as i64 == rows
}

fn expect(status: i32) {
    assert!(status == 0, "rounding: {}", last_error());
}
