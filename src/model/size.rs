//! Describes what a model costs, from its configuration alone: parameters, FLOPs a token, memory. Nothing is allocated.
//!
//! FLOPs of a token, forward and backward, are `6 x m + 3 x s x a`. `m` are the parameters that the token is multiplied
//! with: no norms, no lookup in the embeddings, of the experts the chosen ones. `a` is the sum over layers of softmax
//! attention of `heads x (query width + value width)`, and `s` the sequence length: a causal token sees half of it on
//! average, and a product counts twice. Recomputation is not counted, nor are linear attention's states and what a
//! sparse attention saves.

use loongforge_core::data::ModelCard;
use loongforge_torch::engine::Families;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::{ParamSpec, Role};
use serde_json::Value;

/// Rank of the adapters in [`Training::Lora`].
const LORA_RANK: i64 = 16;

/// Says how a model is trained, for its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Training {
    /// Weights, gradients and both moments in float32: 16 bytes a parameter.
    Float32,
    /// Weights in bf16; masters, gradients and both moments in float32: 18 bytes a parameter.
    Bf16,
    /// Weights in bf16, adapters of rank 16 beside the language model's linear maps as in [`Training::Bf16`].
    Lora,
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelSize {
    /// All parameters, buffers such as routers' biases included.
    pub parameters: u64,
    /// Those a token meets: of the experts the chosen ones.
    pub active: u64,
    /// Those of encoder and projector.
    pub encoder: u64,
    /// Those of the language model that a token is multiplied with.
    multiplied: f64,
    /// Heads times widths of queries and values, over the layers of softmax attention.
    attention: f64,
    /// Parameters of adapters of rank 16.
    adapters: u64,
}

impl ModelSize {
    /// Computes the size of a model and the `config.json` that it was read from.
    pub fn of(config: &ModelConfig, json: &Value) -> Self {
        let families = Families::of(config);
        let encoder: u64 = families.towers.specs().into_iter().map(|spec| count(&spec)).sum();
        let text = ModelCard::of(json).text();
        let share = expert_share(text);
        let embedding = format!("{}.weight", config.decoder.names.embed);
        let mut size = Self { encoder, attention: attention(text), ..Self::default() };
        let mut active = 0.0;
        for spec in families.foundation.specs() {
            let parameters = count(&spec);
            let met = if is_expert(&spec) { parameters as f64 * share } else { parameters as f64 };
            size.parameters += parameters;
            active += met;
            let is_lookup = spec.name == embedding && !config.decoder.tie_word_embeddings;
            if spec.shape.len() >= 2 && spec.role != Role::Buffer && !is_lookup {
                size.multiplied += met;
            }
            if spec.is_linear && spec.shape.len() == 2 && !spec.name.contains(&config.decoder.names.head) {
                size.adapters += (LORA_RANK * spec.shape.iter().sum::<i64>()) as u64;
            }
        }
        size.parameters += encoder;
        size.active = active.round() as u64 + encoder;
        size
    }

    /// Makes the size of a vision tower alone.
    pub fn tower(parameters: u64) -> Self {
        Self { parameters, active: parameters, encoder: parameters, ..Self::default() }
    }

    /// FLOPs of one token of the language model, forward and backward, in sequences of `seq_len`.
    pub fn flops_per_token(&self, seq_len: usize) -> f64 {
        6.0 * self.multiplied + 3.0 * seq_len as f64 * self.attention
    }

    /// Bytes of weights, gradients and the optimizer's state; activations come on top.
    pub fn memory(&self, training: Training) -> u64 {
        match training {
            Training::Float32 => 16 * self.parameters,
            Training::Bf16 => 18 * self.parameters,
            Training::Lora => 2 * self.parameters + 18 * self.adapters,
        }
    }
}

fn count(spec: &ParamSpec) -> u64 {
    spec.shape.iter().product::<i64>() as u64
}

/// Experts are stacked: `[experts, out, in]`.
fn is_expert(spec: &ParamSpec) -> bool {
    spec.shape.len() == 3 && spec.name.contains("experts")
}

/// The share of the experts that a token meets.
fn expert_share(text: &Value) -> f64 {
    let first = |keys: &[&str]| keys.iter().find_map(|key| text.get(key)?.as_f64());
    let chosen = first(&["num_experts_per_tok", "moe_k"]);
    let all = first(&["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"]);
    chosen.zip(all).map_or(1.0, |(chosen, all)| chosen / all)
}

fn attention(text: &Value) -> f64 {
    let number = |key: &str| text.get(key).and_then(Value::as_f64);
    let heads = number("num_attention_heads").unwrap_or(0.0);
    let widths = match number("kv_lora_rank") {
        Some(_) => ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"].iter().filter_map(|key| number(key)).sum(),
        None => {
            let even = number("hidden_size").unwrap_or(0.0) / heads.max(1.0);
            2.0 * number("head_dim").or(number("kv_channels")).unwrap_or(even)
        }
    };
    let layers = number("num_hidden_layers").unwrap_or(0.0);
    let softmax_layers = match (text.get("layer_types").and_then(Value::as_array), number("full_attention_interval")) {
        (Some(types), _) => types.iter().filter(|kind| *kind != "linear_attention").count() as f64,
        (None, Some(interval)) => (layers / interval).floor(),
        (None, None) => layers,
    };
    softmax_layers * heads * widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::model_files;

    fn size(name: &str) -> ModelSize {
        let file = model_files().find(|file| file.name == name).unwrap_or_else(|| panic!("no {name}"));
        let json = Value::Object(file.config);
        ModelSize::of(&ModelConfig::from_hf(&json).unwrap(), &json)
    }

    #[test]
    fn parameters_are_the_published_ones() {
        let published = [
            ("llama2_7b", 6_738_415_616),
            ("llama3_8b", 8_030_261_248),
            ("llama3_1_405b", 405_853_388_800),
            ("qwen_7b", 7_721_324_544),
            ("qwen2_5_7b", 7_615_616_512),
            ("qwen2_5_0_5b", 494_032_768),
            ("qwen3_0_6b", 596_049_920),
            ("qwen3_32b", 32_762_123_264),
            ("internlm2_5_7b", 7_737_708_544),
            ("qwen3_vl_2b", 2_127_532_032),
            // With the routers' biases, without the layer of multi-token prediction.
            ("deepseek_v3", 671_026_419_200),
        ];
        for (name, parameters) in published {
            assert_eq!(size(name).parameters, parameters, "{name}");
        }
    }

    #[test]
    fn flops_and_memory_follow_from_the_sizes() {
        let llama = size("llama3_8b");
        // Without the lookup in the embeddings and the 65 norms of 4096.
        let multiplied = 8_030_261_248.0 - 128_256.0 * 4096.0 - 65.0 * 4096.0;
        let attention = 32.0 * 32.0 * 256.0;
        assert_eq!(llama.flops_per_token(4096), 6.0 * multiplied + 3.0 * 4096.0 * attention);
        assert_eq!(llama.memory(Training::Float32), 16 * 8_030_261_248);
        // q, k, v, o: 4096 + 4096 twice, 4096 + 1024 twice; gate, up, down: 4096 + 14336 three times.
        let adapters = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432);
        assert_eq!(llama.memory(Training::Lora), 2 * 8_030_261_248 + 18 * adapters);
    }

    #[test]
    fn of_a_hybrid_only_softmax_layers_grow_with_the_sequence() {
        let json = serde_json::json!({"num_attention_heads": 2, "head_dim": 3, "num_hidden_layers": 8,
            "full_attention_interval": 4, "num_experts": 8, "num_experts_per_tok": 2});
        assert_eq!((attention(&json), expert_share(&json)), (2.0 * 2.0 * 6.0, 0.25));
        let mla = serde_json::json!({"num_attention_heads": 2, "kv_lora_rank": 9, "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 2, "v_head_dim": 3, "num_hidden_layers": 5});
        assert_eq!(attention(&mla), 5.0 * 2.0 * 9.0);
    }
}
