//! Attention of batches of queries to batches of keys, by libtorch's fused operator, or by its definition where scores have a
//! soft cap.
//!
//! Shapes: B documents, L queries of each, S keys, H query heads, K key and value heads, C width of a head's queries and
//! keys, V of its values.

use tch::{Device, Kind, Tensor};

/// Says what becomes of the products of queries and keys before their softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Multiplies them; `None`: 1 / √C.
    pub scale: Option<f64>,
    /// Scores s become `cap · tanh(s / cap)` before anything is masked (Gemma 2); `None`: they stay as they are.
    pub soft_cap: Option<f64>,
}

impl Scores {
    /// Returns the factor of the products of queries and keys `width` wide.
    pub fn scale_of(&self, width: i64) -> f64 {
        self.scale.unwrap_or_else(|| (width as f64).powf(-0.5))
    }
}

impl From<f64> for Scores {
    fn from(scale: f64) -> Scores {
        Scores { scale: Some(scale), soft_cap: None }
    }
}

/// Returns attention of `q_BLHC` to `k_BSKC` and `v_BSKV`, `[B, L, H·V]`. `mask` `[B, 1, L, S]` or of shapes that stretch to it, bool:
/// true where a query sees a key; without a soft cap also float32, added to the scores.
pub(super) fn attend(
    q_BLHC: &Tensor,
    k_BSKC: &Tensor,
    v_BSKV: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scores: Scores,
) -> Tensor {
    if let Some(soft_cap) = scores.soft_cap {
        return attend_capped([q_BLHC, k_BSKC, v_BSKV], mask, causal, scores.scale_of(q_BLHC.size()[3]), soft_cap);
    }
    let (width, values) = (q_BLHC.size()[3], v_BSKV.size()[3]);
    let (query_heads, kv_heads) = (q_BLHC.size()[2], k_BSKC.size()[2]);
    let on_cpu = q_BLHC.device() == Device::Cpu;
    if !on_cpu && !causal && query_heads != kv_heads && takes_one_query(q_BLHC, mask) {
        return attend_by_groups([q_BLHC, k_BSKC, v_BSKV], mask, scores);
    }
    let fit = if on_cpu {
        Fit::of_cpu(width != values)
    } else {
        Fit::of_gpu(query_heads != kv_heads, [width, values], mask.is_some(), q_BLHC.kind())
    };
    let heads = |x: &Tensor| {
        let missing = if fit.pads { width.max(values) - x.size()[3] } else { 0 };
        let x = x.transpose(1, 2);
        if missing > 0 { x.constant_pad_nd([0, missing]) } else { x }
    };
    let shared = |x: &Tensor| {
        let x = heads(x);
        if fit.repeats { repeat_heads(&x, query_heads / kv_heads) } else { x }
    };
    let scale = scores.scale.or_else(|| (fit.pads && width < values).then(|| (width as f64).powf(-0.5)));
    let (q, k, v) = (heads(q_BLHC), shared(k_BSKC), shared(v_BSKV));
    let grouped = query_heads != kv_heads && !fit.repeats;
    let mask = mask.map(|mask| taken_mask(mask, q.kind(), q.device()));
    let y = Tensor::scaled_dot_product_attention(&q, &k, &v, mask.as_ref(), 0.0, causal, scale, grouped);
    let y = if fit.pads { y.narrow(3, 0, values) } else { y };
    y.transpose(1, 2).flatten(2, 3)
}

/// Returns whether each document has one query, and its heads share a mask.
fn takes_one_query(q_BLHC: &Tensor, mask: Option<&Tensor>) -> bool {
    q_BLHC.size()[1] == 1 && mask.is_none_or(|mask| matches!(mask.size()[..], [_, 1, 1, _]))
}

/// Works like [`attend`] of one query to each document, whose heads that share keys become queries of one head: keys and values are
/// read where they are. A copy for each query head would be many times the cache of a generation.
fn attend_by_groups([q_B1HC, k_BSKC, v_BSKV]: [&Tensor; 3], mask: Option<&Tensor>, scores: Scores) -> Tensor {
    let kv_heads = k_BSKC.size()[2];
    let q_BGKC = q_B1HC.squeeze_dim(1).unflatten(1, [kv_heads, -1]).transpose(1, 2);
    let y_BGW = attend(&q_BGKC, k_BSKC, v_BSKV, mask, false, scores);
    y_BGW.unflatten(2, [kv_heads, -1]).transpose(1, 2).flatten(1, 3).unsqueeze(1)
}

/// The widest heads of flash attention.
const MAX_FLASH: i64 = 256;

/// Says how heads are made to fit a fused operator. Where none takes them, the scores lie in memory whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Fit {
    /// Queries, keys and values are padded to one width.
    pads: bool,
    /// Each query head gets a key and a value head of its own.
    repeats: bool,
}

impl Fit {
    /// The CPU's operator takes one width only: without it, heads of 192 and values of 128 take three times as long.
    fn of_cpu(has_two_widths: bool) -> Fit {
        Fit { pads: has_two_widths, repeats: false }
    }

    /// Returns how heads must be changed for the operators of a GPU: flash attention takes grouped heads, but only numbers of 16 bits,
    /// one width of at most 256 and no mask; the memory-efficient operator, which is slower, takes all of these, but no groups. `widths`:
    /// of queries with keys, and of values.
    fn of_gpu(is_grouped: bool, widths: [i64; 2], has_mask: bool, kind: Kind) -> Fit {
        let [width, values] = widths;
        let can_flash = !has_mask && matches!(kind, Kind::Half | Kind::BFloat16) && width.max(values) <= MAX_FLASH;
        Fit { pads: width != values && can_flash, repeats: is_grouped && !can_flash }
    }
}

/// Returns `x_BKSC` with `times` copies of each head behind each other, `[B, K·times, S, C]`.
fn repeat_heads(x_BKSC: &Tensor, times: i64) -> Tensor {
    x_BKSC.unsqueeze(2).expand([-1, -1, times, -1, -1], false).flatten(1, 2)
}

/// Returns the mask as the operators of `device` take it beside queries of `kind`: on a GPU what is added to scores must be of that kind.
/// The memory-efficient one refuses another, and cuDNN's reads its bytes as if they were of that kind.
fn taken_mask(mask: &Tensor, kind: Kind, device: Device) -> Tensor {
    match mask.kind() {
        Kind::Float if device != Device::Cpu => mask.to_kind(kind),
        _ => mask.shallow_clone(),
    }
}

/// Works like [`attend`], where in each head every query also sees a key without a value, whose score is the head's of
/// `sinks_H` whatever the query (gpt-oss); `None`: there is no such key.
///
/// The key comes first, with a channel of its own: queries have the head's score there, other keys have 0. In this way the fused
/// operators compute the softmax, and the gradient of the sinks. A causal mask counts queries and keys from the start: one more query
/// comes first as well. Panics where scores have a soft cap.
pub(super) fn attend_sinking(
    q_BLHC: &Tensor,
    k_BSKC: &Tensor,
    v_BSKV: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scores: Scores,
    sinks_H: Option<&Tensor>,
) -> Tensor {
    let Some(sinks_H) = sinks_H else { return attend(q_BLHC, k_BSKC, v_BSKV, mask, causal, scores) };
    assert!(scores.soft_cap.is_none(), "sinks beside a soft cap of scores");
    let (queries, keys) = (q_BLHC.size(), k_BSKC.size());
    let [batches, num_queries, _, width] = queries[..] else { panic!("queries of four dimensions") };
    let scale = scores.scale_of(width);
    // The fused operators of a GPU take widths that are multiples of 8.
    let more = if q_BLHC.device() == Device::Cpu { 1 } else { 8 - width % 8 };
    let sinks = (sinks_H.to_kind(Kind::Float) / scale).to_kind(q_BLHC.kind()).view([1, 1, -1, 1]);
    let sinks = sinks.expand([batches, num_queries, -1, 1], false);
    let q = Tensor::cat(&[q_BLHC, &sinks], -1).constant_pad_nd([0, more - 1]);
    let options = (k_BSKC.kind(), k_BSKC.device());
    let first = [Tensor::zeros([width], options), Tensor::ones([1], options), Tensor::zeros([more - 1], options)];
    let first = Tensor::cat(&first, 0).expand([batches, 1, keys[2], -1], false);
    let k = Tensor::cat(&[first, k_BSKC.constant_pad_nd([0, more])], 1);
    let first_of_all = |x: &Tensor| x.constant_pad_nd([0, 0, 0, 0, 1, 0]);
    let v = first_of_all(v_BSKV);
    let scores = scale.into();
    if causal {
        assert_eq!(num_queries, keys[1], "a causal mask of queries and their own keys");
        return attend(&first_of_all(&q), &k, &v, None, true, scores).narrow(1, 1, num_queries);
    }
    let mask = mask.map(|mask| Tensor::cat(&[mask.narrow(-1, 0, 1).ones_like(), mask.shallow_clone()], -1));
    attend(&q, &k, &v, mask.as_ref(), false, scores)
}

/// Queries of a chunk where scores have a soft cap.
const CAPPED_CHUNK: i64 = 256;

/// Works like [`attend`] with a soft cap, which no fused operator has: by the definition, in chunks of queries, so that a
/// causal chunk meets the keys up to its end alone.
fn attend_capped(
    [q_BLHC, k_BSKC, v_BSKV]: [&Tensor; 3],
    mask: Option<&Tensor>,
    causal: bool,
    scale: f64,
    soft_cap: f64,
) -> Tensor {
    let (num_queries, num_keys) = (q_BLHC.size()[1], k_BSKC.size()[1]);
    let (kv_heads, device) = (k_BSKC.size()[2], q_BLHC.device());
    // The queries that share a head of keys lie behind each other: `[B, K, G·L, C]`.
    let q_BKGLC = q_BLHC.unflatten(2, [kv_heads, -1]).permute([0, 2, 3, 1, 4]);
    let (k_BKSC, v_BKSV) = (k_BSKC.transpose(1, 2), v_BSKV.transpose(1, 2));
    let chunk = |first: i64| {
        let queries = CAPPED_CHUNK.min(num_queries - first);
        let keys = if causal { first + queries } else { num_keys };
        let q = q_BKGLC.narrow(3, first, queries).flatten(2, 3);
        let scores = q.matmul(&k_BKSC.narrow(2, 0, keys).transpose(2, 3)) * scale;
        let scores = ((scores / soft_cap).tanh() * soft_cap).unflatten(2, [-1, queries]);
        let hidden = match (causal, mask) {
            (true, _) => Some(Tensor::ones([queries, keys], (Kind::Bool, device)).triu(first + 1)),
            (false, Some(mask)) => Some(mask.narrow(2, first, queries).unsqueeze(1).logical_not()),
            (false, None) => None,
        };
        let scores = match hidden {
            Some(hidden) => scores.masked_fill(&hidden, f64::NEG_INFINITY),
            None => scores,
        };
        let sums = if scores.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let weights = scores.softmax(-1, sums).to_kind(v_BSKV.kind()).flatten(2, 3);
        weights.matmul(&v_BKSV.narrow(2, 0, keys)).unflatten(2, [-1, queries])
    };
    let chunks: Vec<Tensor> = (0..num_queries).step_by(CAPPED_CHUNK as usize).map(chunk).collect();
    // `[B, K, G, L, V]` to `[B, L, H·V]`.
    Tensor::cat(&chunks, 3).permute([0, 3, 1, 2, 4]).flatten(2, 4)
}

/// Returns `x[index]`. An embedding look-up computes the same as `index_select`, and its backward on a CPU is many times faster: it adds
/// rows, where `index_add` sets up an operator for each.
pub fn take_rows(x: &Tensor, index: &Tensor) -> Tensor {
    if x.device() == Device::Cpu { Tensor::embedding(x, index, -1, false, false) } else { x.index_select(0, index) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Fit, Scores, attend, attend_by_groups, attend_sinking, repeat_heads, taken_mask, takes_one_query};
    use crate::native::grad;

    #[test]
    fn what_a_gpu_adds_to_scores_is_of_their_kind() {
        let added = Tensor::from_slice(&[0.0f32, f32::NEG_INFINITY, 1.5]);
        let found = taken_mask(&added, Kind::BFloat16, Device::Cuda(0));
        assert_eq!((found.kind(), &found.to_kind(Kind::Float)), (Kind::BFloat16, &added));
        assert_eq!(taken_mask(&added, Kind::BFloat16, Device::Cpu).kind(), Kind::Float);
        let seen = added.gt(0.0);
        assert_eq!(taken_mask(&seen, Kind::BFloat16, Device::Cuda(0)).kind(), Kind::Bool);
    }

    #[test]
    fn heads_fit_an_operator_of_a_gpu_that_holds_no_scores() {
        let fit = |grouped, widths, masked, kind| {
            let Fit { pads, repeats } = Fit::of_gpu(grouped, widths, masked, kind);
            (pads, repeats)
        };
        let (one, two, wide) = ([128, 128], [192, 128], [512, 512]);
        assert_eq!(fit(true, one, false, Kind::BFloat16), (false, false));
        assert_eq!(fit(true, two, false, Kind::BFloat16), (true, false));
        assert_eq!(fit(false, two, false, Kind::BFloat16), (true, false));
        assert_eq!(fit(false, one, false, Kind::BFloat16), (false, false));
        assert_eq!(fit(true, two, true, Kind::BFloat16), (false, true));
        assert_eq!(fit(true, one, false, Kind::Float), (false, true));
        assert_eq!(fit(true, wide, false, Kind::BFloat16), (false, true));
        assert_eq!(fit(false, two, true, Kind::Float), (false, false));
        assert_eq!(Fit::of_cpu(true), Fit { pads: true, repeats: false });
    }

    #[test]
    fn heads_of_one_query_are_queries_of_their_groups() {
        tch::manual_seed(8);
        let random = |rows: i64, heads: i64, width: i64| {
            Tensor::randn([2, rows, heads, width], (Kind::Float, Device::Cpu)).set_requires_grad(true)
        };
        let (q, k, v) = (random(1, 6, 4), random(5, 2, 4), random(5, 2, 3));
        let seen = Tensor::from_slice(&[1i64, 1, 0, 1, 1, 0, 1, 1, 1, 0]).view([2, 1, 1, 5]).to_kind(Kind::Bool);
        for mask in [None, Some(&seen)] {
            assert!(takes_one_query(&q, mask));
            let found = attend_by_groups([&q, &k, &v], mask, Scores::from(0.7));
            let expected = attend(&q, &k, &v, mask, false, Scores::from(0.7));
            assert_eq!(found.size(), [2, 1, 18]);
            let seed = Tensor::randn([2, 1, 18], (Kind::Float, Device::Cpu));
            let with_grads = |y: &Tensor| {
                let grads = grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
                std::iter::once(y.detach()).chain(grads).collect::<Vec<_>>()
            };
            for (found, expected) in with_grads(&found).iter().zip(&with_grads(&expected)) {
                assert!(found.allclose(expected, 1e-5, 1e-6, false), "masked: {}", mask.is_some());
            }
        }
        assert!(!takes_one_query(&random(2, 6, 4), None));
        assert!(!takes_one_query(&q, Some(&seen.expand([2, 6, 1, 5], false))));
    }

    #[test]
    fn repeated_heads_are_those_of_the_groups() {
        tch::manual_seed(7);
        let random = |heads: i64| Tensor::randn([2, heads, 5, 4], (Kind::Float, Device::Cpu));
        let (q, k, v) = (random(6), random(2), random(2));
        let attention = |k: &Tensor, v: &Tensor, grouped| {
            Tensor::scaled_dot_product_attention::<Tensor>(&q, k, v, None, 0.0, true, None, grouped)
        };
        let (found, expected) = (attention(&repeat_heads(&k, 3), &repeat_heads(&v, 3), false), attention(&k, &v, true));
        assert!(found.allclose(&expected, 1e-6, 1e-6, false));
    }

    /// The definition of transformers' `GptOssAttention`: a column of the scores' softmax that is dropped.
    #[test]
    fn a_sink_takes_its_share_of_the_softmax() {
        tch::manual_seed(5);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        for (num_queries, causal, masked) in [(9, true, false), (4, false, true), (4, false, false)] {
            let (q, k, v) = (random(&[2, num_queries, 4, 6]), random(&[2, 9, 2, 6]), random(&[2, 9, 2, 6]));
            let sinks = random(&[4]);
            let scores = Scores::from(0.3);
            let mask = Tensor::rand([2, 1, num_queries, 9], (Kind::Float, Device::Cpu)).lt(0.6);
            let mask = if causal { mask.ones_like().tril(0) } else { mask };
            let wide = |x: &Tensor| x.repeat_interleave_self_int(2, 2, None);
            let products = Tensor::einsum("blhc,bshc->bhls", &[&q, &wide(&k)], None::<&[i64]>) * 0.3;
            let products = match causal || masked {
                true => products.masked_fill(&mask.logical_not(), f64::NEG_INFINITY),
                false => products,
            };
            let column = sinks.view([1, 4, 1, 1]).expand([2, 4, num_queries, 1], false);
            let weights = Tensor::cat(&[products, column], -1).softmax(-1, Kind::Float).narrow(-1, 0, 9);
            let expected = Tensor::einsum("bhls,bshc->blhc", &[&weights, &wide(&v)], None::<&[i64]>).flatten(2, 3);
            let found = attend_sinking(&q, &k, &v, masked.then_some(&mask), causal, scores, Some(&sinks));
            let seed = Tensor::randn(found.size(), (Kind::Float, Device::Cpu));
            let with_grads = |y: &Tensor| {
                let grads = grad(&[y], &[&seed], &[&q, &k, &v, &sinks]).unwrap().into_iter().flatten();
                std::iter::once(y.detach()).chain(grads).collect::<Vec<_>>()
            };
            let (found, expected) = (with_grads(&found), with_grads(&expected));
            assert_eq!(found.len(), 5);
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.allclose(expected, 1e-4, 1e-5, false), "{num_queries} queries, causal: {causal}");
            }
        }
    }
}
