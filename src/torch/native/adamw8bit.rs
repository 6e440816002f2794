//! AdamW whose moments are bytes in blocks, one pass, on the CPU.

use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};

use super::dynamic_map::dynamic_map;
use super::error::last_error;
use super::ffi::{self, AdamWStep, raw};

/// Numbers of a moment that share a largest magnitude.
pub const MOMENT_BLOCK: i64 = 256;

/// The numbers of the codes of the mean of the gradient, and of its square.
pub static MOMENT_MAPS: LazyLock<[[f32; 256]; 2]> = LazyLock::new(|| [dynamic_map(true), dynamic_map(false)]);

/// A moment of a parameter, in blocks of [`MOMENT_BLOCK`] of its elements.
#[derive(Debug)]
pub struct QuantizedMoment {
    /// A byte for each element, flat.
    pub codes: Tensor,
    /// The largest magnitudes of blocks, float32.
    pub maxima: Tensor,
}

/// Takes one step of `params` `[len]`, float32, which is copied to `rounded` `[len]`, bfloat16, where there is one; `grad` is `[len]`,
/// float32. Panics unless all are contiguous, on the CPU and have as many elements as `params`, and moments a maximum for each block.
pub fn adamw_8bit(
    params: &Tensor,
    rounded: Option<&Tensor>,
    grad: &Tensor,
    moments: &[QuantizedMoment; 2],
    step: &AdamWStep,
) {
    let len = params.numel();
    let fits = |x: &Tensor, kind: Kind, len: usize| {
        x.device() == Device::Cpu && x.is_contiguous() && x.kind() == kind && x.numel() == len
    };
    assert!(fits(params, Kind::Float, len) && fits(grad, Kind::Float, len), "buffers of AdamW");
    assert!(rounded.is_none_or(|rounded| fits(rounded, Kind::BFloat16, len)), "rounded parameters of AdamW");
    let num_blocks = len.div_ceil(MOMENT_BLOCK as usize);
    for QuantizedMoment { codes, maxima } in moments {
        assert!(fits(codes, Kind::Uint8, len) && fits(maxima, Kind::Float, num_blocks), "moments of AdamW");
    }
    let codes = moments.each_ref().map(|moment| raw(&moment.codes));
    let maxima = moments.each_ref().map(|moment| raw(&moment.maxima));
    let maps = MOMENT_MAPS.each_ref().map(|map| map.as_ptr());
    // SAFETY: the tensors are alive, kinds, lengths, layout and device were checked, and the maps are there for good.
    let status = unsafe {
        ffi::lf_adamw_8bit(
            raw(params),
            rounded.map_or(std::ptr::null_mut(), raw),
            raw(grad),
            codes.as_ptr(),
            maxima.as_ptr(),
            maps.as_ptr(),
            step,
        )
    };
    assert!(status == 0, "adamw_8bit: {}", last_error());
}
