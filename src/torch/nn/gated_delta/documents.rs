//! Describes how the documents of a packed row are cut into chunks and read by the convolution; made once a
//! micro-batch.
//!
//! Chunks come step by step: the first chunk of every document, then the second of those that have one, and so on,
//! long documents first. So a step's chunks lie together, and belong to the first documents of the step before.
//!
//! Shapes: T tokens, B documents, N chunks, I tokens of a chunk, W tokens that the convolution sees.

use tch::{Device, Kind, Tensor};

use super::config::GatedDeltaConfig;
use crate::device::upload;

/// The longest chunk, as in the reference.
const LONGEST_CHUNK: usize = 64;

pub struct DeltaDocuments {
    /// Tokens of a chunk.
    pub(super) chunk: i64,
    /// Chunks of each step.
    pub(super) counts: Vec<i64>,
    /// The row in the heads of the tokens `[T, heads]` of each row of the chunks `[N, heads, I]`.
    pub(super) key_rows: Tensor,
    pub(super) value_rows: Tensor,
    /// The row in the chunks of each row of the tokens' value heads.
    pub(super) token_rows: Tensor,
    /// 1 where a chunk has a token, 0 where it is padded: `[N, 1, I]`, float32.
    pub(super) filled: Tensor,
    /// The documents, longest first, `[B]`.
    pub(super) order: Tensor,
    /// The convolution's input: for each document W - 1 times row T, which is zero, and the document's tokens.
    pub(super) conv_inputs: Tensor,
    /// The row of each token among the convolution's outputs, `[T]`.
    pub(super) conv_outputs: Tensor,
    /// The last W - 1 rows of each document's input, as tokens or row T, `[B·(W - 1)]`.
    pub(super) conv_ends: Tensor,
    pub(super) num_documents: i64,
}

impl DeltaDocuments {
    /// Documents end at `cu_seqlens` `[0, …, T]`; those without a token do not count.
    pub fn new(cu_seqlens: &[usize], config: &GatedDeltaConfig, device: Device) -> DeltaDocuments {
        let mut docs: Vec<(usize, usize)> = cu_seqlens.windows(2).map(|ends| (ends[0], ends[1] - ends[0])).collect();
        docs.retain(|(_, len)| *len > 0);
        let before = (config.conv_kernel_dim - 1) as usize;
        let conv = conv_rows(&docs, before);
        let mut order: Vec<usize> = (0..docs.len()).collect();
        order.sort_by_key(|doc| std::cmp::Reverse(docs[*doc].1));
        let longest = order.first().map_or(1, |doc| docs[*doc].1);
        let chunk = longest.next_power_of_two().min(LONGEST_CHUNK);

        let num_tokens: usize = docs.iter().map(|(_, len)| len).sum();
        let (mut counts, mut tokens, mut filled) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = vec![0i64; num_tokens];
        for first in (0..longest).step_by(chunk) {
            let going = order.iter().map(|doc| docs[*doc]).take_while(|(_, len)| *len > first);
            let before = tokens.len();
            for (start, len) in going {
                for at in first..first + chunk {
                    // Padding repeats the last token; it neither writes to the state nor decays it.
                    let token = start + at.min(len - 1);
                    if at < len {
                        rows[token] = tokens.len() as i64;
                    }
                    tokens.push(token as i64);
                    filled.push(if at < len { 1f32 } else { 0.0 });
                }
            }
            counts.push(((tokens.len() - before) / chunk) as i64);
        }
        let index = |values: &[i64]| upload(&Tensor::from_slice(values), device);
        let chunk = chunk as i64;
        let (tokens, rows) = (index(&tokens).view([-1, 1, chunk]), index(&rows));
        let heads = |num_heads: i64| Tensor::arange(num_heads, (Kind::Int64, device));
        let head_rows = |num_heads: i64| (&tokens * num_heads + heads(num_heads).view([1, -1, 1])).flatten(0, -1);
        let values = config.num_value_heads;
        let (chunks, offsets) = (rows.divide_scalar_mode(chunk, "floor"), rows.remainder(chunk));
        let token_rows = (chunks * (values * chunk) + offsets).unsqueeze(1) + (heads(values) * chunk).unsqueeze(0);
        DeltaDocuments {
            chunk,
            counts,
            key_rows: head_rows(config.num_key_heads),
            value_rows: head_rows(values),
            token_rows: token_rows.flatten(0, -1),
            filled: upload(&Tensor::from_slice(&filled).view([-1, 1, chunk]), device),
            order: index(&order.iter().map(|doc| *doc as i64).collect::<Vec<_>>()),
            conv_inputs: index(&conv.inputs),
            conv_outputs: index(&conv.outputs),
            conv_ends: index(&conv.ends),
            num_documents: docs.len() as i64,
        }
    }
}

struct ConvRows {
    inputs: Vec<i64>,
    outputs: Vec<i64>,
    ends: Vec<i64>,
}

fn conv_rows(docs: &[(usize, usize)], before: usize) -> ConvRows {
    let num_tokens = docs.iter().map(|(_, len)| *len).sum::<usize>();
    let mut rows = ConvRows { inputs: Vec::new(), outputs: Vec::new(), ends: Vec::new() };
    for (start, len) in docs {
        let first = rows.inputs.len();
        rows.outputs.extend((first..first + len).map(|row| row as i64));
        rows.inputs.extend(std::iter::repeat_n(num_tokens as i64, before));
        rows.inputs.extend((*start..start + len).map(|row| row as i64));
        rows.ends.extend(&rows.inputs[rows.inputs.len() - before..]);
    }
    rows
}
