//! Attention of every query to a few keys of its document that an indexer chose (DeepSeek sparse attention, DeepSeek-AI
//! 2025), and how they are chosen from its scores.
//!
//! The choice is a mask of the fused operator, not a gather: a gather pays for the latents' width (576 + 512 products
//! for a head and a key, of 2048 keys) and is behind the masked rows up to documents of about 14 000 tokens. Queries
//! that see no more keys than may be chosen need neither scores nor mask. Queries go in chunks, so that no key after
//! a chunk's last query is looked at and the scores of all heads never lie in memory whole.
//!
//! Shapes: T tokens, B documents of a batch, L their length, Q queries of a chunk, S keys up to the chunk's last query,
//! I heads of the indexer, C their width.

use tch::{Device, Kind, Tensor};

use super::PackedAttention;
use super::attend::attend;

/// Queries of one call of the fused operator.
const CHUNK: i64 = 512;

/// Elements of a chunk's scores over all heads.
pub(super) const MAX_SCORES: i64 = 1 << 24;

/// Queries and keys of an indexer, turned by their positions, and the weights of its heads.
pub struct IndexRows {
    /// `[T, I, C]`
    pub q_TIC: Tensor,
    /// `[T, C]`
    pub k_TC: Tensor,
    /// `[T, I]`, float32, the scale of scores included.
    pub w_TI: Tensor,
}

/// The keys of some queries of a batch of documents.
pub struct ChosenKeys {
    /// The first of these queries.
    pub first: i64,
    /// `[B, Q, S]`, bool, S = first + Q.
    pub mask_BQS: Tensor,
}

/// Scores `[B, Q, S]`, float32, of keys `k_BSC` for queries `q_BQIC`, of which the first sees `first + 1` keys: the sum
/// over heads of `w · ReLU(q · k)`; minus infinity for later keys. `w_BQI` has the scale in it.
pub(super) fn index_scores(q_BQIC: &Tensor, k_BSC: &Tensor, w_BQI: &Tensor, first: i64) -> Tensor {
    let scores = head_scores(q_BQIC, k_BSC, w_BQI);
    scores.masked_fill(&later(q_BQIC.size()[1], first, q_BQIC.device()), f64::NEG_INFINITY)
}

/// Scores `[B, Q, S]`, float32, of all keys `k_BSC` for queries `q_BQIC`: the sum over heads of `w · ReLU(q · k)`.
pub(super) fn head_scores(q_BQIC: &Tensor, k_BSC: &Tensor, w_BQI: &Tensor) -> Tensor {
    let heads = [q_BQIC.size()[1], q_BQIC.size()[2]];
    // Heads and queries are rows of one product: the keys would be copied for every query otherwise.
    let rows = q_BQIC.to_kind(Kind::Float).flatten(1, 2);
    let products = rows.matmul(&k_BSC.to_kind(Kind::Float).transpose(1, 2)).unflatten(1, heads);
    w_BQI.unsqueeze(2).matmul(&products.relu()).squeeze_dim(2)
}

/// Returns which of `first + queries` keys come after each of the queries, `[Q, S]`.
pub(super) fn later(queries: i64, first: i64, device: Device) -> Tensor {
    Tensor::ones([queries, first + queries], (Kind::Bool, device)).triu(first + 1)
}

/// Returns the rows `first..end` of queries, so many that their scores stay within the bound.
pub(super) fn chunks(mut first: i64, end: i64, docs: i64, heads: i64) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    while first < end {
        let len = (MAX_SCORES / (docs * heads * end)).clamp(1, CHUNK).min(end - first);
        found.push((first, len));
        first += len;
    }
    found
}

/// Returns, for each batch of documents, the `topk` best keys of the queries that see more.
pub fn choose(documents: &PackedAttention, rows: &IndexRows, topk: i64) -> Vec<Vec<ChosenKeys>> {
    let _no_grad = tch::no_grad_guard();
    if documents.batches().iter().all(|batch| batch.longest <= topk) {
        return documents.batches().iter().map(|_| Vec::new()).collect();
    }
    let (q, k, w) = (documents.split(&rows.q_TIC), documents.split(&rows.k_TC), documents.split(&rows.w_TI));
    let batches = q.iter().zip(&k).zip(&w).map(|((q, k), w)| {
        let (docs, len, heads) = (q.size()[0], q.size()[1], q.size()[2]);
        let chunk = |(first, queries): (i64, i64)| {
            let (q, w) = (q.narrow(1, first, queries), w.narrow(1, first, queries));
            let scores = index_scores(&q, &k.narrow(1, 0, first + queries), &w, first);
            ChosenKeys { first, mask_BQS: best(&scores, topk) }
        };
        chunks(topk, len, docs, heads).into_iter().map(chunk).collect()
    });
    batches.collect()
}

/// Returns a mask that is true at the `topk` largest of the last dimension.
pub(super) fn best(scores: &Tensor, topk: i64) -> Tensor {
    let (_, keys) = scores.topk(topk, -1, true, false);
    Tensor::zeros(scores.size(), (Kind::Bool, scores.device())).scatter_value(-1, &keys, 1)
}

/// Returns causal attention of `q_THC` to the chosen of `k_THC` and `v_THV`, `[T, H·V]`; `scale` multiplies scores.
pub fn attend_chosen(
    documents: &PackedAttention,
    [q_THC, k_THC, v_THV]: [&Tensor; 3],
    chosen: &[Vec<ChosenKeys>],
    scale: f64,
) -> Tensor {
    if chosen.iter().all(Vec::is_empty) {
        return documents.forward_with(q_THC, k_THC, v_THV, scale.into());
    }
    let (q, k, v) = (documents.split(q_THC), documents.split(k_THC), documents.split(v_THV));
    let batch = |number: usize, chosen: &Vec<ChosenKeys>| {
        let part = |first: i64, queries: i64, mask: Option<&Tensor>| {
            let keys = |x: &Tensor| x.narrow(1, 0, first + queries);
            let q = q[number].narrow(1, first, queries);
            attend(&q, &keys(&k[number]), &keys(&v[number]), mask, mask.is_none(), scale.into())
        };
        let unchosen = chosen.first().map_or(q[number].size()[1], |chosen| chosen.first);
        let mut outputs = vec![part(0, unchosen, None)];
        outputs.extend(chosen.iter().map(|keys| {
            let queries = keys.mask_BQS.size()[1];
            part(keys.first, queries, Some(&keys.mask_BQS.unsqueeze(1)))
        }));
        Tensor::cat(&outputs, 1)
    };
    documents.join(chosen.iter().enumerate().map(|(number, chosen)| batch(number, chosen)).collect())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{IndexRows, attend_chosen, choose, chunks};
    use crate::native::grad;
    use crate::nn::{Mask, PackedAttention};

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// One document, all scores at once.
    fn reference(q: &Tensor, k: &Tensor, v: &Tensor, rows: [&Tensor; 3], topk: i64, scale: f64) -> Tensor {
        let len = q.size()[0];
        let later = Tensor::ones([len, len], (Kind::Bool, Device::Cpu)).triu(1);
        let products = Tensor::einsum("qic,sc->qis", &[rows[0], rows[1]], None::<&[i64]>).relu();
        let scores = Tensor::einsum("qi,qis->qs", &[rows[2], &products], None::<&[i64]>);
        let scores = scores.masked_fill(&later, f64::NEG_INFINITY);
        let (values, _) = scores.topk(topk.min(len), -1, true, true);
        let hidden = scores.lt_tensor(&values.narrow(-1, -1, 1)).logical_or(&later);
        let attention = Tensor::einsum("qhc,shc->hqs", &[q, k], None::<&[i64]>) * scale;
        let attention = attention.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        Tensor::einsum("hqs,shv->qhv", &[&attention, v], None::<&[i64]>).flatten(1, 2)
    }

    /// A document of several chunks, and one with fewer keys than may be chosen.
    #[test]
    fn chosen_keys_equal_the_definition() {
        tch::manual_seed(6);
        let ends = [0usize, 4, 1104, 1113, 1122];
        let random = |shape: &[i64]| Tensor::randn(shape, CPU).set_requires_grad(true);
        let (q, k, v) = (random(&[1122, 2, 6]), random(&[1122, 2, 6]), random(&[1122, 2, 5]));
        let rows =
            IndexRows { q_TIC: random(&[1122, 16, 4]), k_TC: random(&[1122, 4]), w_TI: Tensor::randn([1122, 16], CPU) };
        let documents = PackedAttention::new(&ends, Mask::Causal, Device::Cpu);
        let chosen = choose(&documents, &rows, 6);
        let found = attend_chosen(&documents, [&q, &k, &v], &chosen, 0.4);
        let parts = ends.windows(2).map(|ends| {
            let part = |x: &Tensor| x.narrow(0, ends[0] as i64, (ends[1] - ends[0]) as i64);
            let rows = [&rows.q_TIC, &rows.k_TC, &rows.w_TI].map(part);
            reference(&part(&q), &part(&k), &part(&v), rows.each_ref(), 6, 0.4)
        });
        let expected = Tensor::cat(&parts.collect::<Vec<_>>(), 0);
        assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        let seed = Tensor::randn(found.size(), CPU);
        let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
        for (found, expected) in gradients(&found).zip(gradients(&expected)) {
            assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        }
    }

    #[test]
    fn chunks_cover_the_queries_and_bound_the_scores() {
        for (first, end, docs, heads) in [(0, 0, 1, 1), (8, 20, 3, 4), (2048, 40_000, 1, 64), (0, 3, 9000, 9000)] {
            let found = chunks(first, end, docs, heads);
            let mut next = first;
            for (start, len) in found {
                assert_eq!(start, next);
                assert!(len == 1 || len * docs * heads * end <= super::MAX_SCORES);
                next += len;
            }
            assert_eq!(next, end);
        }
    }
}
