//! Describes how an indexer learns which keys matter: the divergence of its softmax from what the attention, summed
//! over heads, gave to the same keys (DeepSeek-V3.2's report, §2.1.1). The attention is the target and gets no
//! gradient.
//!
//! Queries go in chunks, each differentiated at once: what remains for the backward is a gradient of the indexer's
//! rows, not the scores of all its heads.
//!
//! Shapes: T tokens, B documents of a batch, Q queries of a chunk, S keys up to the chunk's last query, H heads of the
//! attention, I of the indexer, C and E their widths.

use tch::{Kind, Tensor};

use super::PackedAttention;
use super::sparse_attention::{ChosenKeys, IndexRows, chunks, index_scores, later};
use crate::device::upload;
use crate::native::grad;

/// Returns the sum over tokens of KL(attention ‖ softmax of the indexer's scores), float32. `q_THC` and `k_THC` are the attention's, and
/// `scale` multiplies its scores. Over the keys that the attention sees: the chosen, or all earlier ones where nothing was chosen.
/// `q_THC` and `k_THC` are `[T, H, C]`; returns a scalar.
pub fn indexer_loss(
    documents: &PackedAttention,
    rows: &IndexRows,
    [q_THC, k_THC]: [&Tensor; 2],
    chosen: &[Vec<ChosenKeys>],
    scale: f64,
) -> Tensor {
    let (q, k) = (documents.split(&q_THC.detach()), documents.split(&k_THC.detach()));
    let index = [&rows.q_TIC, &rows.k_TC, &rows.w_TI].map(|x| documents.split(x));
    let mut total = Tensor::zeros([], (Kind::Float, q_THC.device()));
    for (number, batch) in documents.batches().iter().enumerate() {
        let index = [&index[0][number], &index[1][number], &index[2][number]];
        total += batch_loss(&batch.lens, index, [&q[number], &k[number]], &chosen[number], scale);
    }
    total
}

fn batch_loss(
    lens: &[i64],
    index: [&Tensor; 3],
    [q_BLHC, k_BLHC]: [&Tensor; 2],
    chosen: &[ChosenKeys],
    scale: f64,
) -> Tensor {
    let (docs, len, device) = (q_BLHC.size()[0], q_BLHC.size()[1], q_BLHC.device());
    let heads = q_BLHC.size()[2].max(index[0].size()[2]);
    let lens_B1 = upload(&Tensor::from_slice(lens), device).unsqueeze(1);
    // Parts with a mask of chosen keys, and before them those without.
    let unchosen = chosen.first().map_or(len, |chosen| chosen.first);
    let parts = chunks(0, unchosen, docs, heads).into_iter().map(|(first, queries)| (first, queries, None));
    let chosen = chosen.iter().map(|keys| (keys.first, keys.mask_BQS.size()[1], Some(&keys.mask_BQS)));
    let train = index[0].requires_grad();
    let mut value = Tensor::zeros([], (Kind::Float, device));
    let mut grads = index.map(|x| x.detach().zeros_like());
    for (first, queries, mask) in parts.chain(chosen) {
        let spans = [(first, queries), (0, first + queries), (first, queries)];
        let [q, k, w] = [0, 1, 2].map(|i| index[i].narrow(1, spans[i].0, spans[i].1).detach());
        let hidden = match mask {
            Some(mask) => mask.logical_not(),
            None => later(queries, first, device).unsqueeze(0),
        };
        let target = attention(q_BLHC, k_BLHC, first, queries, &hidden, scale);
        let positions = Tensor::arange_start(first, first + queries, (Kind::Int64, device)).unsqueeze(0);
        let counted = positions.lt_tensor(&lens_B1).to_kind(Kind::Float);
        let divergence = || {
            let scores = index_scores(&q, &k, &w, first).masked_fill(&hidden, f64::NEG_INFINITY);
            let log = scores.log_softmax(-1, Kind::Float).masked_fill(&hidden, 0.0);
            ((target.xlogy(&target) - &target * log).sum_dim_intlist([-1i64].as_slice(), false, Kind::Float) * &counted)
                .sum(Kind::Float)
        };
        if !train {
            value += divergence();
            continue;
        }
        let leaves = [&q, &k, &w].map(|x| x.set_requires_grad(true));
        let loss = tch::with_grad(divergence);
        value += loss.detach();
        let one = Tensor::ones([], (Kind::Float, device));
        let found = grad(&[&loss], &[&one], &leaves.each_ref()).expect("the divergence has a gradient");
        for ((sum, found), (start, len)) in grads.iter_mut().zip(found).zip(spans) {
            let mut part = sum.narrow(1, start, len);
            part += found.expect("the divergence depends on all");
        }
    }
    if !train {
        return value;
    }
    // Linear in the rows with the divergence's gradient, and with its value.
    let linear = index.iter().zip(&grads).map(|(x, grad)| (*x * grad).sum(Kind::Float)).reduce(|a, b| a + b);
    let linear = linear.expect("three of them");
    &linear - linear.detach() + value
}

/// Returns the weights of each key in the attention of these queries, averaged over heads: `[B, Q, S]`, float32.
fn attention(q_BLHC: &Tensor, k_BLHC: &Tensor, first: i64, queries: i64, hidden: &Tensor, scale: f64) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    let q_BHQC = q_BLHC.narrow(1, first, queries).transpose(1, 2);
    let k_BHCS = k_BLHC.narrow(1, 0, first + queries).permute([0, 2, 3, 1]);
    let scores = (q_BHQC.matmul(&k_BHCS) * scale).masked_fill(&hidden.unsqueeze(1), f64::NEG_INFINITY);
    scores.softmax(-1, Kind::Float).mean_dim([1i64].as_slice(), false, Kind::Float)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::indexer_loss;
    use crate::native::grad;
    use crate::nn::{IndexRows, Mask, PackedAttention, choose};

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// One document: the sum of p · (ln p − ln softmax) over the `topk` best keys of each query, all at once.
    fn reference([q, k]: [&Tensor; 2], rows: [&Tensor; 3], topk: i64, scale: f64) -> Tensor {
        let len = q.size()[0];
        let later = Tensor::ones([len, len], (Kind::Bool, Device::Cpu)).triu(1);
        let products = Tensor::einsum("qic,sc->qis", &[rows[0], rows[1]], None::<&[i64]>).relu();
        let scores = Tensor::einsum("qi,qis->qs", &[rows[2], &products], None::<&[i64]>);
        let seen = scores.masked_fill(&later, f64::NEG_INFINITY);
        let (values, _) = seen.topk(topk.min(len), -1, true, true);
        let hidden = seen.lt_tensor(&values.narrow(-1, -1, 1)).logical_or(&later);
        let attention = Tensor::einsum("qhc,shc->hqs", &[q, k], None::<&[i64]>) * scale;
        let attention = attention.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        let summed = attention.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
        let target = &summed / summed.sum_dim_intlist([-1i64].as_slice(), true, Kind::Float);
        let log = scores.masked_fill(&hidden, -1e30).log_softmax(-1, Kind::Float);
        (&target * (target.clamp_min(1e-30).log() - log)).masked_fill(&hidden, 0.0).sum(Kind::Float)
    }

    #[test]
    fn the_divergence_and_its_gradients_equal_the_definition() {
        tch::manual_seed(8);
        let ends = [0usize, 3, 25, 37, 39];
        let random = |shape: &[i64]| Tensor::randn(shape, CPU).set_requires_grad(true);
        let (q, k) = (random(&[39, 2, 6]), random(&[39, 2, 6]));
        let (iq, ik, iw) = (random(&[39, 16, 4]), random(&[39, 4]), random(&[39, 16]));
        let documents = PackedAttention::new(&ends, Mask::Causal, Device::Cpu);
        for topk in [5, i64::MAX] {
            let rows = IndexRows { q_TIC: &iq * 1.0, k_TC: &ik * 1.0, w_TI: &iw * 1.0 };
            let chosen = choose(&documents, &rows, topk);
            let found = indexer_loss(&documents, &rows, [&q, &k], &chosen, 0.4);
            let parts = ends.windows(2).map(|ends| {
                let part = |x: &Tensor| x.narrow(0, ends[0] as i64, (ends[1] - ends[0]) as i64);
                let rows = [&iq, &ik, &iw].map(part);
                reference([&part(&q.detach()), &part(&k.detach())], rows.each_ref(), topk, 0.4)
            });
            let expected = parts.reduce(|a, b| a + b).unwrap();
            let value = expected.double_value(&[]);
            assert!((found.double_value(&[]) - value).abs() < 1e-4, "{found:?} {value}");
            let seed = Tensor::from(0.7f32);
            let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&iq, &ik, &iw, &q]).unwrap();
            let (found, expected) = (gradients(&found), gradients(&expected));
            for (found, expected) in found[..3].iter().zip(&expected[..3]) {
                assert!(found.as_ref().unwrap().allclose(expected.as_ref().unwrap(), 1e-3, 1e-5, false));
            }
            assert!(found[3].is_none(), "the attention is a target only");
            let _no_grad = tch::no_grad_guard();
            let rows = IndexRows { q_TIC: iq.detach(), k_TC: ik.detach(), w_TI: iw.detach() };
            let again = indexer_loss(&documents, &rows, [&q, &k], &chosen, 0.4).double_value(&[]);
            assert!((again - value).abs() < 1e-4, "without gradients {again}, with {value}");
        }
    }
}
