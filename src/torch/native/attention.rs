//! Attention over packed documents on the CPU, with its own backward.

use tch::{Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};
use super::fused::can_fuse;

/// Returns whether [`packed_attention`] takes these: bfloat16 of even widths on a CPU with products of it, or float32
/// where this thread's products are tiled.
pub fn can_attend(q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
    let is_bf16 = q.kind() == Kind::BFloat16;
    let even = |x: &Tensor| x.size().last().is_some_and(|width| width % 2 == 0);
    let takes = |x: &Tensor| x.kind() == q.kind() && can_fuse(x) && (even(x) || !is_bf16);
    // SAFETY: it asks the processor and this thread's setting.
    takes(q) && takes(k) && takes(v) && unsafe { ffi::lf_can_attend(is_bf16) }
}

/// Every document, from one of `cu_seqlens` `[0, …, T]` to the next, attends to itself: `q` `[T, H, C]`, `k` `[T, K, C]`
/// and `v` `[T, K, V]`, H a multiple of K, to `[T, H, V]`. Scores are multiplied by `scale`. Probabilities and the
/// gradients of scores are rounded to the kind of the heads, sums are float32. Panics where the shapes do not fit or `can_attend` is
/// false.
pub fn packed_attention(q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &[i64], causal: bool, scale: f64) -> Tensor {
    let [q_size, k_size, v_size] = [q, k, v].map(|x| <[i64; 3]>::try_from(x.size()).unwrap_or_default());
    let fits = q_size[0] == k_size[0] && k_size[..2] == v_size[..2] && q_size[2] == k_size[2] && k_size[1] > 0;
    assert!(fits && q_size[1] % k_size[1] == 0 && can_attend(q, k, v), "attention of {q:?}, {k:?}, {v:?}");
    let ends = cu_seqlens.first() == Some(&0) && cu_seqlens.last() == Some(&q_size[0]) && cu_seqlens.is_sorted();
    assert!(ends, "documents of {} tokens at {cu_seqlens:?}", q_size[0]);
    // SAFETY: the tensors are alive, kinds, devices, shapes and ends were checked; the result is new and nobody else's.
    let y = unsafe {
        ffi::lf_attention(raw(q), raw(k), raw(v), cu_seqlens.as_ptr(), cu_seqlens.len() as i64, causal, scale)
    };
    assert!(!y.is_null(), "packed_attention: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}
