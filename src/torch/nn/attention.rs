//! Attention over packed sequences: each document attends to itself only, and nothing is padded in the packed row.
//!
//! Documents of like length are computed together, as one batch of the fused operator: one call for each document
//! costs more than its arithmetic where documents are short. A causal batch may be padded at its end, since no real
//! token attends to what comes after it. In bfloat16 on CPUs that have products of it, an operator of ours takes the row as
//! it is: its backward is several times as fast.
//!
//! Shapes: T tokens, H query heads, K key and value heads, C width of a head's queries and keys, V of
//! its values, B documents of a batch, L the longest's length, S keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tch::{Device, Tensor};

use super::attend::{Scores, attend_sinking, take_rows};
use super::block_attention::BlockAttention;
use super::mask::Mask;
use super::shared_rows::{SharedIndex, SharedRows};
use crate::device::{has_flash_attention, upload};
use crate::native::{FlashDocuments, can_attend, can_flash, flash_attention, packed_attention, reorder_rows};

/// A causal batch's longest document is at most this much longer than its shortest: `shortest * 5 / 4 + 4`.
fn longest_beside(shortest: usize) -> usize {
    shortest * 5 / 4 + 4
}

/// Documents of like length, padded at the end to that of the longest.
pub struct DocumentBatch {
    /// The lens of each document.
    pub lens: Vec<i64>,
    /// The numbers of these documents in the row.
    pub documents: Vec<usize>,
    pub longest: i64,
}

/// Describes how the documents of one packed row are batched; made once a micro-batch, for all layers.
pub struct PackedAttention {
    mask: Mask,
    cu_seqlens: Vec<i64>,
    /// The ends of documents, int32, on a GPU with flash attention.
    ends: Option<Tensor>,
    batches: Vec<DocumentBatch>,
    /// `None` where the batches are the row itself, one after the other.
    order: Option<Order>,
    /// The attention that computes a mask of blocks, where the mask is one.
    blocks: Option<Box<BlockAttention>>,
    /// The attentions of windows, by their lengths: each is made when a layer asks, for all layers that have the same.
    windowed: RefCell<BTreeMap<i64, Rc<BlockAttention>>>,
    /// The index of rows that several documents share, where documents have beginnings in common, whose rows come once.
    shared: Option<Box<SharedIndex>>,
    device: Device,
}

struct Order {
    /// The token of each row of the batches.
    tokens: Tensor,
    /// The row of each token in the batches.
    rows: Tensor,
    /// On a GPU, a 1 for each row of the batches and a 0 for padding, `[rows, 1]`, float32; `None` where nothing is padded.
    counts: Option<Tensor>,
}

impl Order {
    fn new(tokens: &[i64], rows: &[i64], device: Device) -> Order {
        let index = |values: &[i64]| upload(&Tensor::from_slice(values), device);
        let is_padded = tokens.len() > rows.len();
        let counts = (device.is_cuda() && is_padded).then(|| upload(&counts(tokens, rows), device));
        Order { tokens: index(tokens), rows: index(rows), counts }
    }

    /// Maps tokens `[T, W]` to the rows of the batches `[rows, W]`. `is_unseen`: no gradient comes from padding, since nothing that
    /// counts is computed of it.
    fn split(&self, x_TW: &Tensor, is_unseen: bool) -> Tensor {
        match x_TW.device() {
            Device::Cuda(_) if is_unseen => reorder_rows(x_TW, &self.tokens, &self.rows, None),
            _ => take_rows(x_TW, &self.tokens),
        }
    }

    /// Returns the rows of the batches, `[rows, W]` or with more dimensions, to tokens, `[T, W]` or with as many.
    fn join(&self, y: &Tensor) -> Tensor {
        match y.device() {
            Device::Cuda(_) if y.dim() == 2 => reorder_rows(y, &self.rows, &self.tokens, self.counts.as_ref()),
            _ => take_rows(y, &self.rows),
        }
    }
}

/// Returns a 1 for each row of the batches and a 0 for padding, `[rows, 1]`, float32; `tokens` and `rows` are as in [`Order`].
fn counts(tokens: &[i64], rows: &[i64]) -> Tensor {
    let is_own = |(row, token): (i64, &i64)| f32::from(u8::from(rows[*token as usize] == row));
    Tensor::from_slice(&(0..).zip(tokens).map(is_own).collect::<Vec<f32>>()).unsqueeze(1)
}

impl PackedAttention {
    fn is_causal(&self) -> bool {
        self.mask == Mask::Causal
    }

    /// Documents end at `cu_seqlens` `[0, …, T]`; no token attends to another document.
    pub fn new(cu_seqlens: &[usize], mask: Mask, device: Device) -> PackedAttention {
        let document = |(number, ends): (usize, &[usize])| (ends[1] - ends[0], ends[0], number);
        let mut docs: Vec<(usize, usize, usize)> = cu_seqlens.windows(2).enumerate().map(document).collect();
        docs.retain(|(len, ..)| *len > 0);
        docs.sort_unstable();
        let (mut batches, mut tokens) = (Vec::new(), Vec::new());
        let mut rows = vec![0i64; cu_seqlens.last().copied().unwrap_or(0)];
        let mut rest = docs.as_slice();
        while let Some(&(shortest, ..)) = rest.first() {
            let limit = if mask == Mask::Causal { longest_beside(shortest) } else { shortest };
            let (batch, others) = rest.split_at(rest.partition_point(|(len, ..)| *len <= limit));
            let len = batch[batch.len() - 1].0;
            for &(doc_len, start, _) in batch {
                // Padding repeats the last token; what it gives is never read and its gradient is zero.
                for at in 0..len {
                    let token = start + at.min(doc_len - 1);
                    if at < doc_len {
                        rows[token] = tokens.len() as i64;
                    }
                    tokens.push(token as i64);
                }
            }
            let lens = batch.iter().map(|(len, ..)| *len as i64).collect();
            let documents = batch.iter().map(|(.., number)| *number).collect();
            batches.push(DocumentBatch { lens, documents, longest: len as i64 });
            rest = others;
        }
        let in_order = tokens.iter().enumerate().all(|(row, token)| row as i64 == *token);
        let order = (!in_order).then(|| Order::new(&tokens, &rows, device));
        let blocks = mask.begins().map(|begins| Box::new(BlockAttention::new(cu_seqlens, begins, None, device)));
        let cu_seqlens: Vec<i64> = cu_seqlens.iter().map(|end| *end as i64).collect();
        let ends = has_flash_attention(device).then(|| {
            // An empty document adds nothing, and some of the operator's ways count documents.
            let mut ends: Vec<i32> = cu_seqlens.iter().map(|end| *end as i32).collect();
            ends.dedup();
            upload(&Tensor::from_slice(&ends), device)
        });
        PackedAttention {
            mask,
            cu_seqlens,
            ends,
            batches,
            order,
            blocks,
            windowed: RefCell::default(),
            shared: None,
            device,
        }
    }

    /// Returns the same attention, of which queries, keys and values have the rows of `shared` alone, and so has what comes back. Windows
    /// and `split` have no part in it.
    #[must_use]
    pub fn with_shared(mut self, shared: &SharedRows) -> PackedAttention {
        assert_eq!(self.mask, Mask::Causal, "beginnings depend on nothing behind them");
        self.shared = Some(Box::new(shared.to_device(self.device)));
        self
    }

    /// Works like `forward_with` where a window of `window` tokens, the last of them the token itself, cuts a mask of blocks;
    /// `None`: the mask is none of blocks.
    pub(super) fn forward_windowed(&self, parts: [&Tensor; 3], window: i64, scores: Scores) -> Option<Tensor> {
        let begins = self.mask.begins()?;
        let make = || {
            let ends: Vec<usize> = self.cu_seqlens.iter().map(|end| *end as usize).collect();
            Rc::new(BlockAttention::new(&ends, begins, Some(self.mask.cut(window)), self.device))
        };
        let blocks = self.windowed.borrow_mut().entry(window).or_insert_with(make).clone();
        Some(blocks.forward(parts, scores))
    }

    /// `q_THC`, `k_TKC`, `v_TKV` with H a multiple of K (grouped queries); returns `[T, H·V]`. Scores are divided by √C.
    pub fn forward(&self, q_THC: &Tensor, k_TKC: &Tensor, v_TKV: &Tensor) -> Tensor {
        self.forward_with(q_THC, k_TKC, v_TKV, Scores::default())
    }

    /// Works like `forward`, with these scores. `q_THC` `[T, H, C]`, `k_TKC` `[T, K, C]` and `v_TKV` `[T, K, V]` to `[T, H·V]`.
    pub fn forward_with(&self, q_THC: &Tensor, k_TKC: &Tensor, v_TKV: &Tensor, scores: Scores) -> Tensor {
        self.forward_sinking([q_THC, k_TKC, v_TKV], scores, None)
    }

    /// Works like `forward_with`, where every query also sees a key without a value whose score is the head's of `sinks_H`.
    /// Panics where sinks meet a mask of blocks. Shapes as there; `sinks_H` `[H]`.
    pub fn forward_sinking(
        &self,
        [q_THC, k_TKC, v_TKV]: [&Tensor; 3],
        scores: Scores,
        sinks_H: Option<&Tensor>,
    ) -> Tensor {
        let Some(shared) = &self.shared else {
            return self.forward_rows([q_THC, k_TKC, v_TKV], scores, sinks_H);
        };
        let SharedIndex { kept, places } = &**shared;
        let all = [q_THC, k_TKC, v_TKV].map(|x| take_rows(&x.flatten(1, -1), places).unflatten(1, &x.size()[1..]));
        take_rows(&self.forward_rows(all.each_ref(), scores, sinks_H), kept)
    }

    /// Works like `forward_sinking`, where every document has all its rows.
    fn forward_rows(&self, [q_THC, k_TKC, v_TKV]: [&Tensor; 3], scores: Scores, sinks_H: Option<&Tensor>) -> Tensor {
        if let Some(blocks) = &self.blocks {
            assert!(sinks_H.is_none(), "sinks beside a mask of blocks");
            return blocks.forward([q_THC, k_TKC, v_TKV], scores);
        }
        if scores.soft_cap.is_none() && sinks_H.is_none() && can_attend(q_THC, k_TKC, v_TKV) {
            let scale = scores.scale_of(q_THC.size()[2]);
            return packed_attention(q_THC, k_TKC, v_TKV, &self.cu_seqlens, self.is_causal(), scale).flatten(1, 2);
        }
        if let Some(y) = sinks_H.is_none().then(|| self.flash([q_THC, k_TKC, v_TKV], None, scores)).flatten() {
            return y;
        }
        // Padding is at a document's end, where no query of a token sees its key.
        let [q, k, v] = [q_THC, k_TKC, v_TKV].map(|x| self.split_with(x, true));
        if self.batches.is_empty() {
            return v_TKV.new_zeros([0, q_THC.size()[1] * v_TKV.size()[2]], (v_TKV.kind(), v_TKV.device()));
        }
        let outputs = q.iter().zip(&k).zip(&v);
        self.join(outputs.map(|((q, k), v)| attend_sinking(q, k, v, None, self.is_causal(), scores, sinks_H)).collect())
    }

    /// Attends by libtorch's flash attention on a GPU, `[T, H·V]`, with a `window` of so many tokens. `None` where that takes no such
    /// heads or scores.
    pub(super) fn flash(
        &self,
        [q_THC, k_TKC, v_TKV]: [&Tensor; 3],
        window: Option<i64>,
        scores: Scores,
    ) -> Option<Tensor> {
        let is_plain = self.blocks.is_none() && scores.soft_cap.is_none();
        let ends = self.ends.as_ref().filter(|_| is_plain && can_flash(q_THC, k_TKC, v_TKV))?;
        let longest = self.batches.iter().map(|batch| batch.longest).max().unwrap_or(0);
        let scale = scores.scale_of(q_THC.size()[2]);
        let documents = FlashDocuments { ends, longest, window, causal: self.is_causal(), scale };
        Some(flash_attention([q_THC, k_TKC, v_TKV], &documents).flatten(1, 2))
    }

    /// Returns the batches of [`PackedAttention::split`].
    pub fn batches(&self) -> &[DocumentBatch] {
        &self.batches
    }

    /// Returns the rows of `x` `[T, …]` by batches of documents, `[B, L, …]` each. Panics of a mask of blocks, whose batches are not of
    /// documents.
    pub fn split(&self, x: &Tensor) -> Vec<Tensor> {
        self.split_with(x, false)
    }

    /// Works like `split`. `is_unseen`: nothing that counts is computed of padding.
    fn split_with(&self, x: &Tensor, is_unseen: bool) -> Vec<Tensor> {
        assert!(self.blocks.is_none(), "attention to blocks has no batches of documents");
        let size = x.size();
        let shape = |first: &[i64]| [first, &size[1..]].concat();
        let rows = match &self.order {
            Some(order) => order.split(&x.flatten(1, -1), is_unseen).view(shape(&[-1]).as_slice()),
            None => x.contiguous(),
        };
        let mut start = 0;
        let part = |batch: &DocumentBatch| {
            let (num_docs, len) = (batch.lens.len() as i64, batch.longest);
            start += num_docs * len;
            rows.narrow(0, start - num_docs * len, num_docs * len).view(shape(&[num_docs, len]).as_slice())
        };
        self.batches.iter().map(part).collect()
    }

    /// Maps batches `[B, L, C]` back to `[T, C]`. Panics where there are none.
    pub fn join(&self, batches: Vec<Tensor>) -> Tensor {
        let flat: Vec<Tensor> = batches.iter().map(|batch| batch.flatten(0, 1)).collect();
        let y = if flat.len() == 1 { flat[0].shallow_clone() } else { Tensor::cat(&flat, 0) };
        match &self.order {
            Some(order) => order.join(&y),
            None => y,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{PackedAttention, counts};
    use crate::native::{grad, reorder_rows};
    use crate::nn::attend::attend;
    use crate::nn::{Mask, Scores};

    /// Computes one document at a time, from the definition.
    fn reference([q, k, v]: [&Tensor; 3], cu_seqlens: &[usize], mask: &Mask, soft_cap: Option<f64>) -> Tensor {
        let heads = |x: &Tensor, start: i64, len: i64| x.narrow(0, start, len).transpose(0, 1);
        let docs = cu_seqlens.windows(2).map(|ends| {
            let (start, len) = (ends[0] as i64, (ends[1] - ends[0]) as i64);
            let (q, groups) = (heads(q, start, len), q.size()[1] / k.size()[1]);
            let wide = |x: &Tensor| heads(x, start, len).repeat_interleave_self_int(groups, 0, None);
            let mut scores = q.matmul(&wide(k).transpose(1, 2)) / (q.size()[2] as f64).sqrt();
            if let Some(cap) = soft_cap {
                scores = (scores / cap).tanh() * cap;
            }
            if *mask == Mask::Causal {
                let later = Tensor::ones([len, len], (Kind::Bool, Device::Cpu)).triu(1);
                scores = scores.masked_fill(&later, f64::NEG_INFINITY);
            }
            scores.softmax(-1, Kind::Float).matmul(&wide(v)).transpose(0, 1).flatten(1, 2)
        });
        Tensor::cat(&docs.collect::<Vec<_>>(), 0)
    }

    /// Attention in bfloat16 against the definition in float32, on the same rounded inputs.
    #[test]
    fn packed_bfloat16_equals_the_definition() {
        let cases: [(&[usize], Mask, i64, i64); 5] = [
            (&[0, 900], Mask::Causal, 2, 64),
            (&[0, 1, 32, 33, 33, 190, 600], Mask::Causal, 1, 16),
            (&[0, 129, 258, 700], Mask::Full, 4, 20),
            (&[0, 64, 128], Mask::Full, 2, 16),
            (&[0, 20, 40], Mask::Causal, 4, 8),
        ];
        for (cu_seqlens, mask, kv_heads, values) in cases {
            tch::manual_seed(5);
            let tokens = *cu_seqlens.last().unwrap() as i64;
            let random = |heads: i64, width: i64| {
                let x = Tensor::randn([tokens, heads, width], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
                x.set_requires_grad(true)
            };
            let (q, k, v) = (random(4, 16), random(kv_heads, 16), random(kv_heads, values));
            let wide = [&q, &k, &v].map(|x| x.detach().to_kind(Kind::Float).set_requires_grad(true));
            let [q32, k32, v32] = &wide;
            let expected = reference([q32, k32, v32], cu_seqlens, &mask, None);
            let seed = Tensor::randn([tokens, 4 * values], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
            let causal = mask == Mask::Causal;
            let documents = PackedAttention::new(cu_seqlens, mask, Device::Cpu);
            let [q_parts, k_parts, v_parts] = [&q, &k, &v].map(|x| documents.split(x));
            let parts = q_parts.iter().zip(&k_parts).zip(&v_parts);
            let libtorch =
                documents.join(parts.map(|((q, k), v)| attend(q, k, v, None, causal, Scores::default())).collect());
            let with_grads = |y: Tensor, seed: &Tensor, of: [&Tensor; 3]| {
                let grads = grad(&[&y], &[seed], &of).unwrap().into_iter().map(Option::unwrap);
                std::iter::once(y.detach()).chain(grads).collect::<Vec<_>>()
            };
            let found = with_grads(documents.forward(&q, &k, &v), &seed, [&q, &k, &v]);
            let libtorch = with_grads(libtorch, &seed, [&q, &k, &v]);
            let expected = with_grads(expected, &seed.to_kind(Kind::Float), [q32, k32, v32]);
            for ((found, libtorch), expected) in found.iter().zip(&libtorch).zip(&expected) {
                let error = |x: &Tensor| (x.to_kind(Kind::Float) - expected).abs().max().double_value(&[]);
                // Eight bits of probabilities, outputs and gradients. libtorch's own operator, which is taken where the
                // processor has no products of bfloat16, adds the gradients of grouped heads in eight bits too.
                let most = (1e-2 * expected.abs().max().double_value(&[])).max(error(libtorch));
                assert!(error(found) <= most, "{cu_seqlens:?}: {} of {most}", error(found));
            }
        }
    }

    /// A GPU computes documents of 6, 5 and 7 tokens in one batch where flash attention does not take the heads.
    #[test]
    fn padding_gives_no_gradient_to_the_rows_that_it_repeats() {
        tch::manual_seed(9);
        let random = |heads: i64| Tensor::randn([18, heads, 8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (q, k, v) = (random(4), random(2), random(2));
        let documents = PackedAttention::new(&[0, 6, 11, 18], Mask::Causal, Device::Cpu);
        let order = documents.order.as_ref().unwrap();
        let [tokens, rows] = [&order.tokens, &order.rows].map(|index| Vec::<i64>::try_from(index).unwrap());
        let counts = counts(&tokens, &rows);
        assert_eq!((counts.size(), counts.sum(Kind::Float).double_value(&[])), (vec![21, 1], 18.0));
        let split =
            |x: &Tensor| reorder_rows(&x.flatten(1, -1), &order.tokens, &order.rows, None).unflatten(1, &x.size()[1..]);
        let padded = PackedAttention::new(&[0, 7, 14, 21], Mask::Causal, Device::Cpu);
        let y = padded.forward(&split(&q), &split(&k), &split(&v));
        let found = reorder_rows(&y, &order.rows, &order.tokens, Some(&counts));
        let expected = documents.forward(&q, &k, &v);
        let seed = Tensor::randn([18, 32], (Kind::Float, Device::Cpu));
        let with_grads = |y: &Tensor| {
            let grads = grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().map(Option::unwrap);
            std::iter::once(y.detach()).chain(grads).collect::<Vec<_>>()
        };
        for (found, expected) in with_grads(&found).iter().zip(&with_grads(&expected)) {
            assert!(found.allclose(expected, 1e-5, 1e-6, false));
        }
    }

    fn check(cu_seqlens: &[usize], mask: Mask, kv_heads: i64, values: i64, soft_cap: Option<f64>) {
        tch::manual_seed(5);
        let tokens = *cu_seqlens.last().unwrap() as i64;
        let random = |heads: i64, width: i64| {
            Tensor::randn([tokens, heads, width], (Kind::Float, Device::Cpu)).set_requires_grad(true)
        };
        let (q, k, v) = (random(4, 8), random(kv_heads, 8), random(kv_heads, values));
        let expected = reference([&q, &k, &v], cu_seqlens, &mask, soft_cap);
        let documents = PackedAttention::new(cu_seqlens, mask, Device::Cpu);
        let found = documents.forward_with(&q, &k, &v, Scores { soft_cap, ..Scores::default() });
        let seed = Tensor::randn([tokens, 4 * values], (Kind::Float, Device::Cpu));
        let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
        assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        for (found, expected) in gradients(&found).zip(gradients(&expected)) {
            assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        }
        let scores = Scores { scale: Some(0.5 / 8f64.sqrt()), soft_cap };
        let scaled = documents.forward_with(&(&q * 2.0), &k, &v, scores);
        assert!(scaled.allclose(&expected, 1e-4, 1e-5, false));
    }

    #[test]
    fn documents_of_any_length_equal_the_definition() {
        for mask in [Mask::Causal, Mask::Full] {
            check(&[0, 7], mask.clone(), 4, 8, None);
            check(&[0, 5, 10, 15], mask.clone(), 2, 5, None);
            check(&[0, 1, 31, 33, 62, 90, 93], mask.clone(), 1, 8, None);
            check(&[0, 12, 12, 40], mask, 4, 11, None);
        }
    }

    /// Several chunks of queries, and a cap that most scores come near.
    #[test]
    fn soft_caps_bend_scores_before_the_mask() {
        for mask in [Mask::Causal, Mask::Full] {
            check(&[0, 600], mask.clone(), 2, 8, Some(0.5));
            check(&[0, 1, 31, 33, 62, 90, 93], mask, 1, 5, Some(0.5));
        }
    }
}
