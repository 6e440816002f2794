//! The names of a decoder's tensors in checkpoints.

use crate::nn::GateUp;

/// Names under which the parts of a decoder are stored; paths are whole, modules are within a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// `model.embed_tokens`
    pub embed: String,
    /// `model.layers`, before the layer's number.
    pub layers: String,
    /// `model.norm`
    pub norm: String,
    /// `lm_head`
    pub head: String,
    pub input_norm: &'static str,
    pub post_norm: &'static str,
    /// The module of the mixer where it is attention.
    pub attention: &'static str,
    pub mlp: &'static str,
    /// Gate and up of a dense feed-forward, and down.
    pub gate_up: GateUp<'static>,
    pub down: &'static str,
    /// The parts of names that files write otherwise than the modules are called, in this order: a part of a name and what stands for it.
    pub renames: &'static [(&'static str, &'static str)],
}

impl Names {
    /// Returns the names of LLaMA and most others: `{prefix}embed_tokens`, …, and the head under `head`.
    pub fn llama(prefix: &str, head: &str) -> Names {
        let named = |name: &str| format!("{prefix}{name}");
        Names {
            embed: named("embed_tokens"),
            layers: named("layers"),
            norm: named("norm"),
            head: head.to_owned(),
            input_norm: "input_layernorm",
            post_norm: "post_attention_layernorm",
            attention: "self_attn",
            mlp: "mlp",
            gate_up: GateUp::Separate(["gate_proj", "up_proj"]),
            down: "down_proj",
            renames: &[],
        }
    }
}

impl Names {
    /// Returns the same names behind `prefix`.
    pub(in crate::model) fn under(self, prefix: &str) -> Names {
        let [embed, layers, norm, head] =
            [&self.embed, &self.layers, &self.norm, &self.head].map(|name| format!("{prefix}{name}"));
        Names { embed, layers, norm, head, ..self }
    }

    /// Returns the name in files of what is called `name` here.
    pub fn in_files(&self, name: &str) -> String {
        self.renames.iter().fold(name.to_owned(), |name, (from, to)| name.replacen(from, to, 1))
    }
}

impl Default for Names {
    fn default() -> Self {
        Names::llama("model.", "lm_head")
    }
}
