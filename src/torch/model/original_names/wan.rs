//! The transformer of Wan: what its own releases call the modules of Diffusers' `WanTransformer3DModel`.

use super::table::{Table, pair};

/// Modules and parameters outside the blocks.
const OUTSIDE: [[&str; 2]; 13] = [
    ["patch_embedding", "patch_embedding"],
    ["text_embedding.0", "condition_embedder.text_embedder.linear_1"],
    ["text_embedding.2", "condition_embedder.text_embedder.linear_2"],
    ["time_embedding.0", "condition_embedder.time_embedder.linear_1"],
    ["time_embedding.2", "condition_embedder.time_embedder.linear_2"],
    ["time_projection.1", "condition_embedder.time_proj"],
    ["img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"],
    ["img_emb.proj.0", "condition_embedder.image_embedder.norm1"],
    ["img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"],
    ["img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"],
    ["img_emb.proj.4", "condition_embedder.image_embedder.norm2"],
    ["head.head", "proj_out"],
    ["head.modulation", "scale_shift_table"],
];

/// Modules and parameters of a block. The norms before cross-attention and before the MLP have each other's number.
const IN_BLOCK: [[&str; 2]; 5] = [
    ["modulation", "scale_shift_table"],
    ["norm3", "norm2"],
    ["norm2", "norm3"],
    ["ffn.0", "ffn.net.0.proj"],
    ["ffn.2", "ffn.net.2"],
];

/// Modules of an attention.
const IN_ATTENTION: [[&str; 2]; 9] = [
    ["q", "to_q"],
    ["k", "to_k"],
    ["v", "to_v"],
    ["o", "to_out.0"],
    ["norm_q", "norm_q"],
    ["norm_k", "norm_k"],
    ["k_img", "add_k_proj"],
    ["v_img", "add_v_proj"],
    ["norm_k_img", "norm_added_k"],
];

/// Returns the pairs of patterns, a name of the release and the one that Diffusers has for it; `*` stands for a number.
pub(super) fn table() -> Table {
    let outside = OUTSIDE.iter().map(|[original, diffusers]| pair(original, diffusers));
    let in_block = IN_BLOCK
        .iter()
        .map(|[original, diffusers]| pair(&format!("blocks.*.{original}"), &format!("blocks.*.{diffusers}")));
    let in_attention =
        [["self_attn", "attn1"], ["cross_attn", "attn2"]].into_iter().flat_map(|[original, diffusers]| {
            IN_ATTENTION.iter().map(move |[from, to]| {
                pair(&format!("blocks.*.{original}.{from}"), &format!("blocks.*.{diffusers}.{to}"))
            })
        });
    outside.chain(in_block).chain(in_attention).collect()
}
