//! A decoder's shape: what planning and estimates ask of any foundation.

use super::config::{DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
use crate::model::foundation::FoundationShape;

impl DecoderConfig {
    /// Returns the numbers that its cost follows from.
    pub(super) fn shape(&self) -> FoundationShape {
        let table = (!self.tie_word_embeddings).then(|| self.embedding_weight());
        FoundationShape {
            width: self.hidden_size,
            is_causal: true,
            attention: self.attention(),
            // Of a layer: 24 · width² operations a token in its matrices, 2 · width · length in causal attention.
            even_length: 12 * self.hidden_size,
            expert_share: self.layers.iter().find_map(expert_share).unwrap_or(1.0),
            aside: table.into_iter().collect(),
        }
    }

    /// Returns the sum over layers of heads times the widths of queries and values.
    pub(in crate::model) fn attention(&self) -> f64 {
        self.layers.iter().map(attention).sum()
    }
}

/// Returns the number of heads times the widths of queries and values; 0 where a token's work does not grow with the sequence.
fn attention(layer: &LayerConfig) -> f64 {
    match &layer.mixer {
        MixerConfig::Attention(of) => (of.num_heads * 2 * of.head_dim) as f64,
        MixerConfig::Mla(of) => (of.num_heads * (of.qk_nope_head_dim + of.qk_rope_head_dim + of.v_head_dim)) as f64,
        MixerConfig::GatedDelta(_) => 0.0,
        // A window does not grow; of entries there is one for each so many tokens.
        MixerConfig::Compressed(of) => of.compression.as_ref().map_or(0.0, |compression| {
            let index = compression.indexer.as_ref().map_or(0, |it| it.num_heads * it.head_dim);
            (of.num_heads * 2 * of.head_dim + index) as f64 / compression.rate as f64
        }),
    }
}

fn expert_share(layer: &LayerConfig) -> Option<f64> {
    match &layer.feed_forward {
        FeedForwardConfig::Moe(moe) => Some(moe.router.top_k as f64 / moe.router.num_experts as f64),
        FeedForwardConfig::Dense { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::{FoundationShape, ModelConfig};

    fn shape(config: &str, changes: Value) -> FoundationShape {
        let mut config: Value = serde_json::from_str(config).unwrap();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::from_hf(&config).unwrap().foundation.shape()
    }

    #[test]
    fn of_a_hybrid_only_softmax_layers_grow_with_the_sequence() {
        let kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention"];
        let changes = json!({"num_hidden_layers": 4, "layer_types": kinds, "num_attention_heads": 2, "head_dim": 6,
            "num_key_value_heads": 1, "num_experts": 8, "num_experts_per_tok": 2});
        let hybrid = shape(include_str!("../../tests/fixtures/qwen3_next-seed1/config.json"), changes);
        assert_eq!((hybrid.attention, hybrid.expert_share), (2.0 * 2.0 * 12.0, 0.25));
        let changes = json!({"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3});
        let latent = shape(include_str!("../../tests/fixtures/deepseek_v2-seed1/config.json"), changes);
        assert_eq!(latent.attention, 2.0 * 2.0 * 9.0);
        assert!(latent.is_causal && latent.aside == ["model.embed_tokens.weight"]);
        assert_eq!(latent.flops_per_token(100.0, 10), 6.0 * 100.0 + 3.0 * 10.0 * latent.attention);
        let full = FoundationShape { is_causal: false, ..latent };
        assert_eq!(full.flops_per_token(100.0, 10), 6.0 * 100.0 + 6.0 * 10.0 * full.attention);
    }
}
