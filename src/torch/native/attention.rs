//! Attention over packed documents: our own on the CPU, flash attention (Dao 2023, arXiv:2307.08691) on GPUs.

use std::sync::LazyLock;

use tch::{Kind, Tensor};

use super::error::{NativeError, last_error};
use super::ffi::{self, raw};
use super::fused::can_fuse;
use super::op::{Arg, Op};

/// Returns whether [`packed_attention`] takes heads `[tokens, heads, width]` of these types and widths: bfloat16 of even widths on a CPU
/// with products of it, or float32 where this thread's products are tiled.
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

/// Returns whether [`flash_attention`] takes these heads `[tokens, heads, width]`: on a GPU, of half precision, the widest of a width that
/// is a multiple of 8 and at most 256, without those widths that some GPUs do not take.
pub fn can_flash(q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
    let takes = |x: &Tensor| {
        let is_half = matches!(x.kind(), Kind::BFloat16 | Kind::Half) && x.kind() == q.kind();
        x.device().is_cuda() && is_half && x.numel() > 0
    };
    let fits = width_of(q) == width_of(k) && is_flash_width(width_of(q).max(width_of(v)));
    takes(q) && takes(k) && takes(v) && fits
}

fn width_of(x: &Tensor) -> i64 {
    x.size().last().copied().unwrap_or(0)
}

/// Returns whether flash attention has heads of this width on every GPU: a multiple of 8 up to 256. GPUs of compute capability 8.6, 8.9
/// and 12 refuse the backward of widths above 192 and up to 224.
fn is_flash_width(width: i64) -> bool {
    width % 8 == 0 && width <= 256 && !(193..=224).contains(&width)
}

/// Describes the documents of a row on a GPU, and what their tokens see.
pub struct FlashDocuments<'a> {
    /// `[0, …, T]`, int32, on the GPU; no document is empty.
    pub ends: &'a Tensor,
    /// The tokens of the longest document.
    pub longest: i64,
    /// The number of tokens that a token sees, itself the last of them; `None`: all.
    pub window: Option<i64>,
    pub causal: bool,
    /// Multiplies scores.
    pub scale: f64,
}

/// Works like [`packed_attention`] on a GPU: `q` `[T, H, C]`, `k` `[T, K, C]` and `v` `[T, K, V]` to `[T, H, V]`. The operator takes one
/// width: where there are two, as in latent attention, it computes zeros as well. Panics where `can_flash` is false.
pub fn flash_attention([q, k, v]: [&Tensor; 3], documents: &FlashDocuments<'_>) -> Tensor {
    assert!(can_flash(q, k, v), "flash attention of {q:?}, {k:?}, {v:?}");
    let values = width_of(v);
    // It reads 16 bytes at once, and does not ask whether they begin where they should.
    let aligned = |x: &Tensor| {
        let x = if is_aligned(x) { x.shallow_clone() } else { x.contiguous() };
        if is_aligned(&x) { x } else { x * 1.0 }
    };
    let [q, k, v] = of_one_width([q, k, v]).each_ref().map(aligned);
    let found = flash([&q, &k, &v], documents);
    let found = found.unwrap_or_else(|error| panic!("flash attention of {q:?}, {k:?}, {v:?}: {error}"));
    let y = found.into_iter().next().expect("the first output is what attention gives");
    if width_of(&y) > values { y.narrow(2, 0, values) } else { y }
}

/// Returns the heads `[tokens, heads, width]` in the width of the widest, with zeros behind others.
fn of_one_width(heads: [&Tensor; 3]) -> [Tensor; 3] {
    let [q, k, v] = heads.map(width_of);
    let widest = q.max(k).max(v);
    heads.map(|x| match widest - width_of(x) {
        0 => x.shallow_clone(),
        missing => x.constant_pad_nd([0, missing]),
    })
}

/// Returns whether rows and heads start at multiples of 16 bytes, in half precision.
fn is_aligned(x: &Tensor) -> bool {
    let strides = x.stride();
    let (last, others) = strides.split_last().expect("heads have three dimensions");
    *last == 1 && others.iter().all(|stride| stride % 8 == 0) && (x.data_ptr() as usize).is_multiple_of(16)
}

fn flash([q, k, v]: [&Tensor; 3], documents: &FlashDocuments<'_>) -> Result<Vec<Tensor>, NativeError> {
    static FORWARD: LazyLock<Op> = LazyLock::new(|| {
        Op::find("aten::_flash_attention_forward", "").expect("flash attention is an operator of libtorch 2.11")
    });
    let FlashDocuments { ends, longest, window, causal, scale } = *documents;
    let (ends, longest) = (Arg::Tensor(ends), Arg::Int(longest));
    let args = [
        Arg::Tensor(q),
        Arg::Tensor(k),
        Arg::Tensor(v),
        ends,
        ends,
        longest,
        longest,
        // No dropout, no copy of its mask.
        Arg::Double(0.0),
        Arg::Bool(causal),
        Arg::Bool(false),
        Arg::Double(scale),
        // So many tokens before a token are seen; behind it, as many as the mask says.
        window.map_or(Arg::None, |window| Arg::Int(window - 1)),
    ];
    FORWARD.call(&args)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{FlashDocuments, can_flash, flash, is_aligned, is_flash_width, of_one_width};

    #[test]
    fn flash_attention_takes_these_arguments_on_a_gpu_alone() {
        let x = Tensor::zeros([4, 2, 8], (Kind::BFloat16, Device::Cpu));
        assert!(!can_flash(&x, &x, &x));
        let ends = Tensor::from_slice(&[0i32, 4]);
        let documents = FlashDocuments { ends: &ends, longest: 4, window: Some(2), causal: true, scale: 0.5 };
        let error = flash([&x, &x, &x], &documents).unwrap_err().to_string();
        assert!(error.contains("'CPU' backend"), "{error}");
    }

    #[test]
    fn widths_that_some_gpus_refuse_are_left_to_other_operators() {
        let widths: Vec<i64> =
            [64, 100, 128, 192, 200, 224, 232, 256, 264].into_iter().filter(|width| is_flash_width(*width)).collect();
        assert_eq!(widths, [64, 128, 192, 232, 256]);
    }

    #[test]
    fn zeros_make_values_as_wide_as_keys_and_keys_as_wide_as_values() {
        let x = |width: i64| Tensor::ones([4, 2, width], (Kind::BFloat16, Device::Cpu));
        for [keys, values] in [[24, 16], [16, 24], [16, 16]] {
            let found = of_one_width([&x(keys), &x(keys), &x(values)]);
            let widest = keys.max(values);
            for (found, width) in found.iter().zip([keys, keys, values]) {
                assert_eq!((found.size(), found.kind()), (vec![4, 2, widest], Kind::BFloat16));
                assert_eq!(found.narrow(2, 0, width), x(width));
                assert_eq!(found.narrow(2, width, widest - width), x(widest - width).zeros_like());
                assert!(is_aligned(found));
            }
        }
    }

    #[test]
    fn heads_that_begin_within_sixteen_bytes_are_found() {
        let x = Tensor::zeros([4, 2, 28], (Kind::BFloat16, Device::Cpu));
        assert!(!is_aligned(&x) && is_aligned(&x.narrow(2, 0, 24).copy()));
        let wide = Tensor::zeros([4, 2, 32], (Kind::BFloat16, Device::Cpu));
        assert!(is_aligned(&wide.narrow(2, 16, 16)) && !is_aligned(&wide.narrow(2, 12, 16)));
        assert!(!is_aligned(&wide.transpose(1, 2)));
    }
}
