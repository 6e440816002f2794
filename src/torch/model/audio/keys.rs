//! The readers that the configs of audio towers have in common.

use serde_json::{Map, Value, json};

use super::projector::{AudioProjectorConfig, ProjectorMap};
use super::tower_config::{AudioPositions, AudioTowerConfig, StemConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, MlpNames, TowerNorm};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Fixed in the reference, not configured.
pub(super) const NORM: TowerNorm = TowerNorm::Layer(1e-5);

/// Returns a size under Whisper's key, or under the one that Voxtral has instead.
fn size(keys: &Keys<'_>, whisper: &str, voxtral: &str) -> Result<i64> {
    let found = keys.size_or(whisper)?;
    found.map_or_else(|| keys.size_or(voxtral)?.ok_or_else(|| keys.missing(whisper)), Ok)
}

/// Sizes of Whisper's large encoder, under its key and under Voxtral's.
const LARGE: [(&str, &str, i64); 5] = [
    ("num_mel_bins", "num_mel_bins", 128),
    ("d_model", "hidden_size", 1280),
    ("encoder_layers", "num_hidden_layers", 32),
    ("encoder_attention_heads", "num_attention_heads", 20),
    ("encoder_ffn_dim", "intermediate_size", 5120),
];

/// Returns the config of a class whose sizes are those of Whisper's large encoder, with what it leaves out: folders that older releases
/// of transformers saved have no key with the class's default.
pub(super) fn with_sizes(keys: &Keys<'_>) -> Value {
    let absent = LARGE.iter().filter(|(whisper, voxtral, _)| keys.value(whisper).or(keys.value(voxtral)).is_none());
    let sizes: Map<String, Value> = absent.map(|(whisper, _, size)| ((*whisper).to_owned(), json!(size))).collect();
    keys.filled(&Value::Object(sizes))
}

/// Returns a tower with Whisper's blocks and convolutions, of whose keys those of attention have a bias where `k_bias` says so. Each
/// `chunk` frames attend to each other alone.
pub(super) fn tower(keys: &Keys<'_>, prefix: &str, k_bias: bool, chunk: i64) -> Result<AudioTowerConfig> {
    for key in ["dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "layerdrop"] {
        keys.no_dropout(key)?;
    }
    let width = size(keys, "d_model", "hidden_size")?;
    let num_heads = size(keys, "encoder_attention_heads", "num_attention_heads")?;
    if width % (2 * num_heads) != 0 {
        let must = format!("must be a multiple of 2 x the number of heads ({num_heads})");
        return Err(keys.inconsistent("d_model", width, must));
    }
    keys.only("head_dim", &[json!(width / num_heads)])?;
    keys.only("num_key_value_heads", &[json!(num_heads)])?;
    let inner = size(keys, "encoder_ffn_dim", "intermediate_size")?;
    let initializer_range = keys.number_or("initializer_range")?.or(keys.number_or("init_std")?).unwrap_or(0.02);
    let activation = keys.activation_or("activation_function")?.unwrap_or(Activation::Gelu);
    let block = BlockConfig {
        norms: ["self_attn_layer_norm", "final_layer_norm"],
        qkv: vec!["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        k_bias,
        o: "self_attn.out_proj",
        mlp: MlpNames::Plain(["fc1", "fc2"]),
        activation,
        ..BlockConfig::new(width, num_heads, inner, NORM, initializer_range)
    };
    Ok(AudioTowerConfig {
        prefix: prefix.into(),
        num_mel_bins: keys.size("num_mel_bins")?,
        stem: StemConfig::Line,
        // The reference's stem has this one whatever `activation_function` says.
        activation: Activation::Gelu,
        chunk,
        frames_behind: 0,
        positions: AudioPositions::Sinusoids,
        chunks_per_window: 1,
        num_layers: size(keys, "encoder_layers", "num_hidden_layers")?,
        block,
        pool: false,
        final_norm: ("ln_post", NORM),
        unused: None,
    })
}

/// Returns the projector of one linear map after another, from single states of `tower`.
pub(super) fn projector(
    tower: &AudioTowerConfig,
    prefix: &str,
    maps: &[(&'static str, i64)],
    activation: Activation,
) -> AudioProjectorConfig {
    let map = |&(name, outputs)| ProjectorMap { name, outputs, bias: true };
    AudioProjectorConfig {
        prefix: prefix.into(),
        inputs: tower.width(),
        stack: 1,
        maps: maps.iter().map(map).collect(),
        activation,
        initializer_range: tower.block.initializer_range,
    }
}
