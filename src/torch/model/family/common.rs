//! What families' configs have in common.

use serde_json::json;

use crate::model::decoder::{
    Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig, MtpNames, MtpPlace, Names,
};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::{AttentionConfig, Division, NormConfig, RopeConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Where a decoder's tensors stand in a checkpoint: alone, or inside of a multimodal model.
#[derive(Clone, Debug)]
pub(in crate::model) struct Place {
    /// Before the names of the base model: `model.`
    pub base: String,
    /// Before the name of the head: empty, or `language_model.`
    pub head: String,
}

impl Place {
    /// A language model's own checkpoint.
    pub fn alone() -> Place {
        Place::new("model.", "")
    }

    pub fn new(base: &str, head: &str) -> Place {
        Place { base: base.to_owned(), head: head.to_owned() }
    }

    pub fn names(&self) -> Names {
        Names::llama(&self.base, &format!("{}lm_head", self.head))
    }
}

/// Heads and their width, checked.
pub(super) fn attention(keys: &Keys<'_>) -> Result<AttentionConfig> {
    keys.only("attention_dropout", &[json!(0.0), json!(0)])?;
    let (hidden_size, num_heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    let num_kv_heads = keys.size_or("num_key_value_heads")?.unwrap_or(num_heads);
    if num_heads % num_kv_heads != 0 {
        let must = format!("must divide num_attention_heads ({num_heads})");
        return Err(keys.inconsistent("num_key_value_heads", num_kv_heads, must));
    }
    let head_dim = match keys.size_or("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden_size % num_heads == 0 => hidden_size / num_heads,
        None => {
            let must = format!("must divide hidden_size ({hidden_size}) where there is no head_dim");
            return Err(keys.inconsistent("num_attention_heads", num_heads, must));
        }
    };
    if head_dim % 2 != 0 {
        return Err(keys.inconsistent("head_dim", head_dim, "rotary embeddings need an even one"));
    }
    Ok(AttentionConfig::new(num_heads, num_kv_heads, head_dim))
}

/// A dense SwiGLU.
pub(super) fn dense(keys: &Keys<'_>) -> Result<FeedForwardConfig> {
    Ok(FeedForwardConfig::Dense { intermediate_size: keys.size("intermediate_size")?, bias: false })
}

/// Refuses windows and other kinds of layers than full attention.
pub(super) fn only_full_attention(keys: &Keys<'_>) -> Result<()> {
    keys.only("use_sliding_window", &[json!(false)])?;
    let Some(types) = keys.value("layer_types") else { return Ok(()) };
    let full = types.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"));
    if full { Ok(()) } else { Err(keys.unsupported("layer_types", types, &[json!("full_attention")])) }
}

/// A decoder whose layers are all alike.
pub(super) fn uniform(
    keys: &Keys<'_>,
    place: &Place,
    mixer: MixerConfig,
    feed_forward: FeedForwardConfig,
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    let num_layers = keys.size("num_hidden_layers")? as usize;
    layered(keys, place, vec![LayerConfig { mixer, feed_forward }; num_layers], rope)
}

/// A decoder of these layers. `tie_word_embeddings` is false where the config does not say.
pub(super) fn layered(
    keys: &Keys<'_>,
    place: &Place,
    layers: Vec<LayerConfig>,
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    keys.only("hidden_act", &[json!("silu")])?;
    let vocab_size = keys.size("vocab_size")?;
    let pad_token_id = keys.index_or("pad_token_id")?;
    if let Some(pad) = pad_token_id.filter(|pad| *pad >= vocab_size) {
        return Err(keys.inconsistent("pad_token_id", pad, format!("must be below vocab_size ({vocab_size})")));
    }
    Ok(DecoderConfig {
        vocab_size,
        first_token: 0,
        hidden_size: keys.size("hidden_size")?,
        norm: NormConfig { eps: keys.number_or("rms_norm_eps")?.unwrap_or(1e-6), zero_centred: false },
        rope,
        layers,
        tie_word_embeddings: keys.flag_or("tie_word_embeddings")?.unwrap_or(false),
        pad_token_id,
        initializer_range: keys.number_or("initializer_range")?.unwrap_or(0.02),
        balance: Balance::default(),
        indexer_loss_coef: 0.0,
        names: place.names(),
        mtp_names: None,
        mtp: None,
        division: Division::default(),
    })
}

/// DeepSeek-V3's prediction heads: layers after the last one, with norms and a projection beside them. What the
/// checkpoint repeats there, embedding and head, is shared, and written as often.
pub(super) fn deepseek_mtp(num_layers: usize, layers: &str) -> MtpNames {
    MtpNames {
        heads: MtpPlace::Numbered(layers.to_owned(), num_layers),
        embedding_norm: "enorm",
        hidden_norm: "hnorm",
        project: "eh_proj",
        last_norm: "shared_head.norm",
        hidden_first: false,
        repeats: Some(["embed_tokens", "shared_head.head"]),
    }
}
