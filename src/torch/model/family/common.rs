//! The readers that families' configs have in common.

use loongforge_core::config::LossWeighting;
use serde_json::{Value, json};

use crate::model::decoder::{
    Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig, MtpNames, MtpPlace, MtpProjection, Names, Sees,
};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::{Activation, AttentionConfig, NormConfig, RopeConfig};
use crate::params::ParallelRank;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Describes where a decoder's tensors stand in a checkpoint: alone, or inside of a multimodal model.
#[derive(Clone, Debug)]
pub(in crate::model) struct NamePrefix {
    /// The prefix of the names of the base model: `model.`
    pub base: String,
    /// The prefix of the name of the head: empty, or `language_model.`
    pub head: String,
}

impl NamePrefix {
    /// Returns the prefixes of a language model's own checkpoint.
    pub fn alone() -> NamePrefix {
        NamePrefix::new("model.", "")
    }

    /// Begins the names of a decoder's layers with `base`, and that of its head with `head`.
    pub fn new(base: &str, head: &str) -> NamePrefix {
        NamePrefix { base: base.to_owned(), head: head.to_owned() }
    }

    /// Returns the names of LLaMA's parameters behind these beginnings.
    pub fn names(&self) -> Names {
        Names::llama(&self.base, &format!("{}lm_head", self.head))
    }
}

/// Returns the attention of a config: its heads and their width, which is the hidden size over their number where the config does not
/// say.
pub(super) fn attention(keys: &Keys<'_>) -> Result<AttentionConfig> {
    attention_or(keys, None)
}

/// Works like [`attention`], of a class with a width of heads for configs without.
pub(super) fn attention_or(keys: &Keys<'_>, default_head_dim: Option<i64>) -> Result<AttentionConfig> {
    keys.no_dropout("attention_dropout")?;
    let (hidden_size, num_heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    let num_kv_heads = keys.size_or("num_key_value_heads")?.unwrap_or(num_heads);
    if num_heads % num_kv_heads != 0 {
        let must = format!("must divide num_attention_heads ({num_heads})");
        return Err(keys.inconsistent("num_key_value_heads", num_kv_heads, must));
    }
    let head_dim = match keys.size_or("head_dim")?.or(default_head_dim) {
        Some(head_dim) => head_dim,
        None if hidden_size % num_heads == 0 => hidden_size / num_heads,
        None => {
            let must = format!("must divide hidden_size ({hidden_size}) if there is no head_dim");
            return Err(keys.inconsistent("num_attention_heads", num_heads, must));
        }
    };
    if head_dim % 2 != 0 {
        return Err(keys.inconsistent("head_dim", head_dim, "rotary embeddings need an even width"));
    }
    Ok(AttentionConfig::new(num_heads, num_kv_heads, head_dim))
}

/// `max_window_layers` of `Qwen2Config` and `Qwen3Config`.
pub(super) const MAX_WINDOW_LAYERS: i64 = 28;

/// Returns the window of each layer's attention, by `use_sliding_window`, `sliding_window`, `max_window_layers` and `layer_types`, as
/// Qwen2's and Qwen3's classes take them. `num_full`: the default of `max_window_layers`.
fn windows(keys: &Keys<'_>, num_full: i64) -> Result<Vec<Option<i64>>> {
    let num_full = keys.index_or("max_window_layers")?.unwrap_or(num_full);
    windows_of(keys, window(keys)?, |layer| layer >= num_full)
}

/// Returns the window of each layer: this one in the layers that slide by `layer_types`, or where the config has no such key, in those
/// that `slides` says.
pub(super) fn windows_of(
    keys: &Keys<'_>,
    window: Option<i64>,
    slides: impl Fn(i64) -> bool,
) -> Result<Vec<Option<i64>>> {
    let Some(slides) = sliding_layers(keys)? else {
        return Ok((0..keys.size("num_hidden_layers")?).map(|layer| window.filter(|_| slides(layer))).collect());
    };
    if window.is_none() && slides.contains(&true) {
        let must = "sliding attention needs use_sliding_window=true and a sliding_window";
        return Err(keys.inconsistent("layer_types", keys.value("layer_types").unwrap_or(&Value::Null), must));
    }
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// Returns for each layer whether its attention has a window, by `layer_types`; `None` where the config does not say.
pub(super) fn sliding_layers(keys: &Keys<'_>) -> Result<Option<Vec<bool>>> {
    layers_of(keys, ["full_attention", "sliding_attention"])
}

/// Returns for each layer whether it is of the second of these kinds, by `layer_types`; `None` where the config does not say.
pub(super) fn layers_of(keys: &Keys<'_>, kinds: [&str; 2]) -> Result<Option<Vec<bool>>> {
    let Some(types) = keys.value("layer_types") else { return Ok(None) };
    let num_layers = keys.size("num_hidden_layers")?;
    let known = kinds.map(|kind| json!(kind));
    let listed = types.as_array().filter(|types| types.iter().all(|kind| known.contains(kind)));
    let Some(listed) = listed else { return Err(keys.unsupported("layer_types", types, &known)) };
    if listed.len() as i64 != num_layers {
        let must = format!("num_hidden_layers is {num_layers}");
        return Err(keys.inconsistent("layer_types", format!("a list of {}", listed.len()), must));
    }
    Ok(Some(listed.iter().map(|kind| *kind == known[1]).collect()))
}

/// Returns `sliding_window`, where it is used.
pub(super) fn window(keys: &Keys<'_>) -> Result<Option<i64>> {
    match keys.flag_or("use_sliding_window")?.unwrap_or(false) {
        true => keys.size_or_null("sliding_window", 4096),
        false => Ok(None),
    }
}

/// Returns a dense SwiGLU.
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

/// Returns a decoder whose layers are all alike.
pub(super) fn uniform(
    keys: &Keys<'_>,
    place: &NamePrefix,
    mixer: MixerConfig,
    feed_forward: FeedForwardConfig,
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    let num_layers = keys.size("num_hidden_layers")? as usize;
    layered(keys, place, vec![(mixer, feed_forward); num_layers], rope)
}

/// Returns a decoder whose layers are alike but for the windows of their attention, which the first `num_full` layers do not have where
/// the config does not say.
pub(super) fn with_windows(
    keys: &Keys<'_>,
    place: &NamePrefix,
    attention: &AttentionConfig,
    num_full: i64,
    feed_forward: FeedForwardConfig,
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    let layer =
        |window| (MixerConfig::Attention(AttentionConfig { window, ..attention.clone() }), feed_forward.clone());
    layered(keys, place, windows(keys, num_full)?.into_iter().map(layer).collect(), rope)
}

/// Returns a decoder of layers with these branches, with the same norms, activation and rotary embeddings in all of them.
/// `tie_word_embeddings` is false where the config does not say.
pub(super) fn layered(
    keys: &Keys<'_>,
    place: &NamePrefix,
    layers: Vec<(MixerConfig, FeedForwardConfig)>,
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    let vocab_size = keys.size("vocab_size")?;
    let pad_token_id = keys.integer_or("pad_token_id")?;
    if let Some(pad) = pad_token_id.filter(|pad| !(-vocab_size..vocab_size).contains(pad)) {
        let must = format!("must be below vocab_size ({vocab_size}), and at least -{vocab_size}");
        return Err(keys.inconsistent("pad_token_id", pad, must));
    }
    let act = keys.activation_or("hidden_act")?.unwrap_or(Activation::Silu);
    let norm = NormConfig { eps: keys.number_or("rms_norm_eps")?.unwrap_or(1e-6), zero_centered: false };
    let layer = |(mixer, feed_forward)| LayerConfig {
        mixer,
        feed_forward,
        act,
        norm,
        norms_inputs: true,
        output_norms: None,
        output_scale: None,
        rope: rope.clone(),
    };
    Ok(DecoderConfig {
        vocab_size,
        first_token: 0,
        hidden_size: keys.size("hidden_size")?,
        embedding_scale: None,
        norm,
        layers: layers.into_iter().map(layer).collect(),
        streams: None,
        tie_word_embeddings: keys.flag_or("tie_word_embeddings")?.unwrap_or(false),
        head_bias: false,
        sees: Sees::Back,
        final_soft_cap: None,
        score_divisor: None,
        // A negative one counts from the end, as in torch's embedding.
        pad_token_id: pad_token_id.map(|pad| pad.rem_euclid(vocab_size)),
        initializer_range: keys.number_or("initializer_range")?.unwrap_or(0.02),
        balance: Balance::default(),
        indexer_loss_coef: 0.0,
        smoothing: None,
        weighting: LossWeighting::Token,
        neftune: None,
        names: place.names(),
        mtp_names: None,
        mtp: None,
        parallel: ParallelRank::default(),
    })
}

/// Returns the names of DeepSeek-V3's prediction heads: layers after the last one, with norms and a projection beside them. The embedding
/// and the head, which the checkpoint repeats there, are shared, and written as often.
pub(super) fn deepseek_mtp(num_layers: usize, layers: &str) -> MtpNames {
    MtpNames {
        heads: MtpPlace::Numbered(layers.to_owned(), num_layers),
        embedding_norm: "enorm",
        hidden_norm: "hnorm",
        project: MtpProjection::Joined("eh_proj"),
        last_norm: "shared_head.norm",
        hidden_first: false,
        repeats: Some(["embed_tokens", "shared_head.head"]),
        layer: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::Activation;

    fn read(model_type: &str, changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": model_type, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2
        });
        decoder_of(config, &changes)
    }

    fn windows(changes: Value) -> Vec<Option<i64>> {
        let window = |mixer: &MixerConfig| match mixer {
            MixerConfig::Attention(attention) => attention.window,
            _ => unreachable!("Qwen2 attends"),
        };
        read("qwen2", changes).unwrap().layers.iter().map(|layer| window(&layer.mixer)).collect()
    }

    #[test]
    fn layers_slide_as_the_reference_says() {
        assert_eq!(windows(json!({"sliding_window": 8, "max_window_layers": 0})), [None; 3]);
        let used = |mut changes: Value| {
            changes["use_sliding_window"] = json!(true);
            windows(changes)
        };
        assert_eq!(used(json!({"sliding_window": 8, "max_window_layers": 1})), [None, Some(8), Some(8)]);
        assert_eq!(used(json!({"max_window_layers": 0})), [Some(4096); 3]);
        assert_eq!(used(json!({"sliding_window": null, "max_window_layers": 0})), [None; 3]);
        let types = ["sliding_attention", "full_attention", "full_attention"];
        assert_eq!(used(json!({"sliding_window": 8, "layer_types": types})), [Some(8), None, None]);
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let head_dim = |model_type: &str| match &read(model_type, json!({})).unwrap().layers[0].mixer {
            MixerConfig::Attention(attention) => attention.head_dim,
            _ => unreachable!("these attend"),
        };
        assert_eq!(["llama", "qwen3", "ernie4_5"].map(head_dim), [16, 128, 128]);
        let padding = |model_type, changes| read(model_type, changes).unwrap().pad_token_id;
        assert_eq!((padding("llama", json!({})), padding("ernie4_5", json!({}))), (None, Some(0)));
        assert_eq!(padding("llama", json!({"pad_token_id": -1})), Some(319));
        assert_eq!(read("llama", json!({"hidden_act": "gelu_new"})).unwrap().layers[0].act, Activation::GeluTanh);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let sliding = vec!["sliding_attention"; 3];
        for (changes, expected) in [
            (json!({"hidden_act": "mish"}), r#"hidden_act is "mish"; supported: "gelu""#),
            (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1, but dropout is not computed here: set"),
            (json!({"layer_types": sliding}), "sliding attention needs use_sliding_window=true"),
            (json!({"layer_types": ["chunked_attention"]}), r#"supported: "full_attention", "sliding_attention""#),
            (json!({"layer_types": ["full_attention"]}), "layer_types is a list of 1, but num_hidden_layers is 3"),
            (json!({"pad_token_id": -321}), "pad_token_id is -321, but must be below vocab_size (320)"),
        ] {
            let message = read("qwen2", changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
