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
    /// Returns what multiplies the products of queries and keys `width` wide.
    pub fn scale_of(&self, width: i64) -> f64 {
        self.scale.unwrap_or_else(|| (width as f64).powf(-0.5))
    }
}

impl From<f64> for Scores {
    fn from(scale: f64) -> Scores {
        Scores { scale: Some(scale), soft_cap: None }
    }
}

/// Attention of `q_BLHC` to `k_BSKC` and `v_BSKV`, `[B, L, H·V]`. `mask` `[B, 1, L, S]` or of shapes that
/// stretch to it, bool: true where a query sees a key; without a soft cap also float32, added to the scores.
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
    let grouped = q_BLHC.size()[2] != k_BSKC.size()[2];
    // The CPU's fused operator takes one width only: without it, heads of 192 and values of 128 take three times as
    // long, and the scores lie in memory whole.
    let pad = width != values && q_BLHC.device() == Device::Cpu;
    let heads = |x: &Tensor| {
        let missing = if pad { width.max(values) - x.size()[3] } else { 0 };
        let x = x.transpose(1, 2);
        if missing > 0 { x.constant_pad_nd([0, missing]) } else { x }
    };
    let scale = scores.scale.or_else(|| (pad && width < values).then(|| (width as f64).powf(-0.5)));
    let (q, k, v) = (heads(q_BLHC), heads(k_BSKC), heads(v_BSKV));
    let y = Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, causal, scale, grouped);
    let y = if pad { y.narrow(3, 0, values) } else { y };
    y.transpose(1, 2).flatten(2, 3)
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

/// `x[index]`. An embedding look-up computes the same as `index_select`, and its backward on a CPU is many times
/// faster: it adds rows, where `index_add` sets up an operator for each.
pub fn take_rows(x: &Tensor, index: &Tensor) -> Tensor {
    if x.device() == Device::Cpu { Tensor::embedding(x, index, -1, false, false) } else { x.index_select(0, index) }
}
