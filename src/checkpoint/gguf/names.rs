//! Maps our names of tensors to llama.cpp's, and says which of ours it puts together.

/// The families of llama.cpp that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, Mistral and Mixtral.
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma,
    Gemma2,
    Gemma3,
}

impl Architecture {
    /// Hugging Face's `model_type`, and the architecture.
    pub const TYPES: [(&'static str, Self); 9] = [
        ("llama", Self::Llama),
        ("mistral", Self::Llama),
        ("mixtral", Self::Llama),
        ("qwen2", Self::Qwen2),
        ("qwen3", Self::Qwen3),
        ("qwen3_moe", Self::Qwen3Moe),
        ("gemma", Self::Gemma),
        ("gemma2", Self::Gemma2),
        ("gemma3_text", Self::Gemma3),
    ];

    /// Returns the architecture for a `model_type` of transformers; `None` if llama.cpp's files are not written for it.
    pub fn of(model_type: &str) -> Option<Self> {
        Self::TYPES.iter().find(|(name, _)| *name == model_type).map(|(_, architecture)| *architecture)
    }

    /// Returns its name in llama.cpp: the beginning of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
        }
    }

    /// Returns whether it is one of Gemma 1, 2 and 3.
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }

    /// Returns whether the outputs of both branches are normed, too.
    pub fn norms_outputs(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Returns whether rotary embeddings turn neighboring channels, and not channel i with i + half: rows of queries and keys lie in
    /// another order then.
    pub fn turns_neighbors(self) -> bool {
        self == Self::Llama
    }
}

/// Says where a tensor of a checkpoint goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goes {
    /// The tensor becomes the tensor of this name.
    To(String),
    /// The tensor becomes the part of this expert in the stack of this name.
    Expert(String, usize),
    /// The tensor is made anew from the metadata.
    Nowhere,
}

const OUTSIDE: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Modules of a layer, before `.weight` or `.bias`.
const INSIDE: [(&str, &str); 13] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

/// Norms of layers whose branches are normed at both ends.
const NORMS_OF_OUTPUTS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Maps of an expert.
const EXPERTS: [(&str, &str); 6] = [
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
];

/// Returns where the tensor of this name goes; `None`: llama.cpp has no such tensor.
pub fn destination(architecture: Architecture, name: &str) -> Option<Goes> {
    let find = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
    };
    if name.ends_with(".rotary_emb.inv_freq") {
        return Some(Goes::Nowhere);
    }
    if let Some(ours) = find(&OUTSIDE, name) {
        return Some(Goes::To(ours.to_owned()));
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let (module, part) = rest.rsplit_once('.').filter(|(_, part)| ["weight", "bias"].contains(part))?;
    let of_outputs = find(&NORMS_OF_OUTPUTS, module).filter(|_| architecture.norms_outputs());
    if let Some(ours) = of_outputs.or_else(|| find(&INSIDE, module)) {
        return Some(Goes::To(format!("blk.{layer}.{ours}.{part}")));
    }
    let expert = ["mlp.experts.", "block_sparse_moe.experts."].iter().find_map(|begin| module.strip_prefix(begin))?;
    let (number, map) = expert.split_once('.')?;
    let ours = find(&EXPERTS, map).filter(|_| part == "weight")?;
    Some(Goes::Expert(format!("blk.{layer}.{ours}.weight"), number.parse().ok()?))
}

/// Returns the order of tensors in a file: embeddings, layers by their number, the rest.
pub fn order(name: &str) -> (usize, usize) {
    let layer =
        name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).and_then(|(layer, _)| layer.parse().ok());
    match layer {
        Some(layer) => (1, layer),
        None if name.starts_with("output") => (2, 0),
        None => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_cpps() {
        let to = |name: &str| Some(Goes::To(name.to_owned()));
        assert_eq!(destination(Architecture::Llama, "model.layers.12.self_attn.q_proj.bias"), to("blk.12.attn_q.bias"));
        assert_eq!(destination(Architecture::Llama, "lm_head.weight"), to("output.weight"));
        let norm = "model.layers.1.post_attention_layernorm.weight";
        assert_eq!(destination(Architecture::Gemma, norm), to("blk.1.ffn_norm.weight"));
        assert_eq!(destination(Architecture::Gemma2, norm), to("blk.1.post_attention_norm.weight"));
        let expert = Some(Goes::Expert("blk.3.ffn_down_exps.weight".to_owned(), 7));
        assert_eq!(destination(Architecture::Llama, "model.layers.3.block_sparse_moe.experts.7.w2.weight"), expert);
        assert_eq!(destination(Architecture::Llama, "model.layers.3.mlp.experts.7.down_proj.weight"), expert);
        assert_eq!(
            destination(Architecture::Llama, "model.layers.0.self_attn.rotary_emb.inv_freq"),
            Some(Goes::Nowhere)
        );
        for name in [
            "mtp.fc.weight",
            "model.layers.x.mlp.gate.weight",
            "model.layers.0.mlp.experts.gate_up_proj",
            "visual.x.weight",
        ] {
            assert_eq!(destination(Architecture::Llama, name), None, "{name}");
        }
        assert!(order("token_embd.weight") < order("blk.2.ffn_up.weight") && order("blk.2.x") < order("blk.10.x"));
        assert!(order("blk.99.x") < order("output_norm.weight"));
    }
}
