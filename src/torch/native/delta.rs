//! The sequential part of the gated delta rule as one operation with its own backward, on any device.

use tch::Tensor;

use super::error::last_error;
use super::ffi::{self, raw};

/// Computes for every chunk in turn `v_new = u - w S`, then `S' = decay S + keysᵀ v_new`. Returns `v_new` `[N, V, I, E]` and the states
/// before every chunk `[N, V, C, E]`, both with gradients.
///
/// `u` `[N, V, I, E]`, `w` and `keys` `[N, V, I, C]`, `decay` `[N, V]` belong to N chunks, in steps: `counts` tells how
/// many documents have a first chunk, a second, and so on. It falls, since a document that ends is the last of
/// its step. `last` `[counts[0], V, C, E]` holds the states at the start and is overwritten by those at the end; it has
/// no gradient. Panics where shapes or counts do not fit.
pub fn delta_scan(
    u: &Tensor,
    w: &Tensor,
    keys: &Tensor,
    decay: &Tensor,
    last: &mut Tensor,
    counts: &[i64],
) -> (Tensor, Tensor) {
    let (size, width) = (u.size(), keys.size().last().copied().unwrap_or(0));
    assert!(size.len() == 4 && w.size() == keys.size(), "delta_scan of {u:?}, {w:?} and {keys:?}");
    assert!(keys.size()[..3] == size[..3] && decay.size() == size[..2], "delta_scan of {u:?}, {keys:?}, {decay:?}");
    assert!(counts.is_sorted_by(|a, b| a >= b) && counts.iter().sum::<i64>() == size[0], "steps {counts:?} of {u:?}");
    let fits = last.is_contiguous() && !last.requires_grad() && last.kind() == u.kind();
    assert!(!counts.is_empty() && fits && last.size() == [counts[0], size[1], width, size[3]], "states {last:?}");
    let mut outputs = [std::ptr::null_mut(); 2];
    // SAFETY: the tensors are alive and their shapes were checked; `counts` outlives the call; there is room for two.
    let status = unsafe {
        let (counts, num_steps) = (counts.as_ptr(), counts.len() as i32);
        ffi::lf_delta_scan(raw(u), raw(w), raw(keys), raw(decay), raw(last), counts, num_steps, outputs.as_mut_ptr())
    };
    assert!(status == 0, "delta_scan: {}", last_error());
    // SAFETY: both are new tensors that nobody else owns.
    let [v_new, states] = outputs.map(|t| unsafe { Tensor::from_ptr(t) });
    (v_new, states)
}
