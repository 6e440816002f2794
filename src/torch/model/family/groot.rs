//! GR00T N1.7 (`GR00TN17` of lerobot 0.6.1) and N1.6 (`Gr00tN1d6` of NVIDIA's Isaac-GR00T): the first layers of a vision-language model
//! before a diffusion transformer of actions. `config.json` is NVIDIA's (`Gr00tN1d7`, `Gr00tN1d6`), or for N1.7 lerobot's (`groot`),
//! which says how it is trained and leaves the rest to the published policy; a policy of other sizes has NVIDIA's keys under `sizes`
//! there. The sizes of the vision-language model are under `backbone_config` beside them.

use std::sync::Arc;

use loongforge_core::data::{GrootVersion, groot_backbone};
use loongforge_core::schedule::TimeSampler;
use serde_json::{Value, json};

use super::groot_backbone::backbone_of;
use super::groot_keys::{LEROBOT_KEYS, N1_6_KEYS, NVIDIA_KEYS, TRANSFORMER_KEYS, refuse_others};
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::groot::{GrootConfig, TransformerSizes, Tuned};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::policy::{PolicyFamily, PolicyOptions};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The prefix that lerobot gives to the names of all parameters.
const LEROBOT_PREFIX: &str = "_groot_model.";

/// Reads NVIDIA's config.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    published(keys).map(|parts| model(version_of(keys).model_type(), parts))
}

/// A policy's parts: the foundation, and its tower.
type Parts = (GrootConfig, ModelTower);

/// Returns the parts of NVIDIA's config.
pub(in crate::model) fn published(keys: &Keys<'_>) -> Result<Parts> {
    let version = version_of(keys);
    match version {
        GrootVersion::N1_6 => keys.only_keys(&[NVIDIA_KEYS, N1_6_KEYS].concat())?,
        GrootVersion::N1_7 => keys.only_keys(NVIDIA_KEYS)?,
    }
    parts(version, "", keys, tuned(keys, defaults(version))?)
}

fn version_of(keys: &Keys<'_>) -> GrootVersion {
    GrootVersion::of(keys.object()).unwrap_or(GrootVersion::N1_7)
}

/// Reads lerobot's config.
pub(in crate::model) fn read_lerobot(keys: &Keys<'_>) -> Result<ModelConfig> {
    of_lerobot(keys).map(|parts| model("groot", parts))
}

fn of_lerobot(keys: &Keys<'_>) -> Result<Parts> {
    keys.only_keys(LEROBOT_KEYS)?;
    keys.only("n_obs_steps", &[json!(1)])?;
    // Whether its folder has adapters the files say.
    keys.flag_or("use_peft")?;
    let mut sizes = keys.value("sizes").cloned().unwrap_or_else(|| json!({}));
    if let Some(steps) = keys.value("num_inference_timesteps").filter(|_| sizes.is_object()) {
        sizes["num_inference_timesteps"] = steps.clone();
    }
    let own = json!({ "sizes": sizes });
    let own = keys.instead(&own).section("sizes")?;
    own.only_keys(NVIDIA_KEYS)?;
    // lerobot takes older defaults for those of the published policy.
    let published = own.value("action_horizon").is_none();
    let version = GrootVersion::N1_7;
    let Defaults { horizon, dim, .. } = defaults(version);
    for (of_lerobot, key, default, older) in [
        ("chunk_size", "action_horizon", horizon, 50),
        ("max_action_dim", "max_action_dim", dim, 32),
        ("max_state_dim", "max_state_dim", dim, 64),
    ] {
        let mut known = vec![json!(own.size_or(key)?.unwrap_or(default))];
        known.extend(published.then(|| json!(older)));
        keys.only(of_lerobot, &known)?;
    }
    parts(version, LEROBOT_PREFIX, &own, tuned(keys, defaults(version))?)
}

/// The values of absent keys: for N1.6 the defaults of NVIDIA's class, for N1.7 those that lerobot takes for the published policy.
struct Defaults {
    horizon: i64,
    /// Numbers of an action or a state.
    dim: i64,
    state_dropout: f64,
    top_llm_layers: i64,
    /// Layers of `vl_self_attention_cfg`, heads and their width.
    context: Option<(i64, i64, i64)>,
}

fn defaults(version: GrootVersion) -> Defaults {
    let (horizon, dim) = version.horizon_and_width();
    let (state_dropout, top_llm_layers, context) = match version {
        GrootVersion::N1_6 => (0.0, 4, None),
        GrootVersion::N1_7 => (0.2, 0, Some((4, 32, 64))),
    };
    Defaults { horizon: horizon as i64, dim: dim as i64, state_dropout, top_llm_layers, context }
}

/// Returns the model of these parts.
fn model(name: &str, (config, tower): Parts) -> ModelConfig {
    ModelConfig {
        model_type: name.into(),
        foundation: Arc::new(PolicyFamily::new(config)),
        low_noise: None,
        towers: Towers::new(vec![tower]),
        tree: TreeNames::default(),
        carried: CarriedParts::default(),
    }
}

fn parts(version: GrootVersion, prefix: &str, keys: &Keys<'_>, tuned: Tuned) -> Result<Parts> {
    refuse_others(version, keys)?;
    let defaults = defaults(version);
    let number = |key: &str, default: f64| keys.number_or(key).map(|value| value.unwrap_or(default));
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let all = json!({"model_type": version.model_type(), "backbone_config": keys.value("backbone_config")});
    let backbone = groot_backbone(&all);
    let holder = keys.section_or("backbone_config")?;
    let of_backbone = holder.as_ref().map_or_else(|| keys.instead(&backbone), |holder| holder.instead(&backbone));
    if holder.is_none() {
        keys.only("model_name", &[json!(version.backbone())])?;
    }
    let (decoder, tower) = backbone_of(version, keys, &of_backbone, prefix)?;
    let actions = transformer(keys, "diffusion_model_cfg", Some((32, 32, 48)))?;
    let context = transformer(keys, "vl_self_attention_cfg", defaults.context)?;
    let hidden_size = size("hidden_size", 1024)?;
    let horizon = size("action_horizon", defaults.horizon)?;
    let state_dropout = probability(keys, "state_dropout_prob", number("state_dropout_prob", defaults.state_dropout)?)?;
    let is_n1_6 = version == GrootVersion::N1_6;
    let state_noise = number("state_additive_noise_scale", 0.0)?;
    if !(0.0..=1e3).contains(&state_noise) {
        return Err(keys.inconsistent("state_additive_noise_scale", state_noise, "must be between 0 and 1000"));
    }
    let config = GrootConfig {
        prefix: prefix.into(),
        input: Towers::new(vec![tower.clone()]).inputs(decoder.hidden_size).swap_remove(0),
        split: false,
        norm: keys.flag_or("use_vlln")?.unwrap_or(true),
        context,
        actions,
        text_every: size("attend_text_every_n_blocks", 2)?,
        hidden_size,
        action_dim: size("max_action_dim", defaults.dim)?,
        state_dim: size("max_state_dim", defaults.dim)?,
        horizon,
        max_positions: match keys.flag_or("add_pos_embed")?.unwrap_or(true) {
            true => Some(size("max_seq_len", 1024)?),
            false => None,
        },
        num_embodiments: size("max_num_embodiments", 32)?,
        times: times(keys)?,
        num_buckets: size("num_timestep_buckets", 1000)?,
        state_dropout,
        has_mask_token: is_n1_6 && state_dropout > 0.0,
        state_noise,
        num_steps: size("num_inference_timesteps", 4)?,
        tuned,
        options: PolicyOptions::default(),
        backbone: decoder,
        last_norm: is_n1_6,
    };
    check(keys, &config)?;
    Ok((config, tower))
}

fn tuned(keys: &Keys<'_>, defaults: Defaults) -> Result<Tuned> {
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|value| value.unwrap_or(default));
    Ok(Tuned {
        llm: flag("tune_llm", false)?,
        top_llm_layers: keys.index_or("tune_top_llm_layers")?.unwrap_or(defaults.top_llm_layers) as usize,
        visual: flag("tune_visual", false)?,
        projector: flag("tune_projector", true)?,
        diffusion_model: flag("tune_diffusion_model", true)?,
        vlln: flag("tune_vlln", true)?,
    })
}

/// Returns the sizes of a transformer; `published` are layers, heads and their width where the key is absent.
fn transformer(keys: &Keys<'_>, key: &str, published: Option<(i64, i64, i64)>) -> Result<TransformerSizes> {
    let none = TransformerSizes { num_layers: 0, num_heads: 1, head_dim: 1, dropout: 0.0, final_dropout: false };
    let Some(own) = keys.section_or(key)? else {
        let sizes = |(num_layers, num_heads, head_dim)| TransformerSizes {
            num_layers,
            num_heads,
            head_dim,
            dropout: 0.2,
            final_dropout: true,
        };
        return Ok(published.map_or(none, sizes));
    };
    own.only_keys(TRANSFORMER_KEYS)?;
    if own.index_or("num_layers")? == Some(0) {
        return Ok(none);
    }
    // Numbers beside sines would be those of `sinusoidal`.
    match own.has("positional_embeddings") {
        true => own.only("positional_embeddings", &[])?,
        false => return Err(own.missing("positional_embeddings")),
    }
    let only = |key: &str, value: Value| own.only(key, &[value]);
    only("activation_fn", json!("gelu-approximate"))?;
    only("attention_bias", json!(true))?;
    only("norm_eps", json!(1e-5))?;
    only("upcast_attention", json!(false))?;
    if key == "diffusion_model_cfg" {
        only("norm_type", json!("ada_norm"))?;
        only("norm_elementwise_affine", json!(false))?;
        if own.flag_or("interleave_self_attention")? != Some(true) {
            return Err(own.inconsistent("interleave_self_attention", "not true", "must be true"));
        }
    }
    Ok(TransformerSizes {
        num_layers: own.size("num_layers")?,
        num_heads: own.size("num_attention_heads")?,
        head_dim: own.size("attention_head_dim")?,
        dropout: probability(&own, "dropout", own.number_or("dropout")?.unwrap_or(0.1))?,
        final_dropout: own.flag_or("final_dropout")?.unwrap_or(true),
    })
}

fn probability(keys: &Keys<'_>, key: &str, value: f64) -> Result<f64> {
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err(keys.inconsistent(key, value, "must be in [0, 1)")) }
}

/// Returns the distribution of times between actions, 0, and noise, 1: the times of the reference are 1 minus these.
fn times(keys: &Keys<'_>) -> Result<TimeSampler> {
    let number = |key: &str, default: f64| {
        let value = keys.number_or(key)?.unwrap_or(default);
        let is_good = value.is_finite() && value > 0.0 && (key != "noise_s" || value <= 1.0);
        if is_good { Ok(value) } else { Err(keys.inconsistent(key, value, "must be positive, and noise_s at most 1")) }
    };
    let [alpha, beta, scale] =
        [number("noise_beta_alpha", 1.5)?, number("noise_beta_beta", 1.0)?, number("noise_s", 0.999)?];
    Ok(TimeSampler::Beta { alpha, beta, scale, offset: 1.0 - scale })
}

/// Widths that several keys say.
fn check(keys: &Keys<'_>, config: &GrootConfig) -> Result<()> {
    let equal = |key: &str, found: i64, of: &str, value: i64| match found == value {
        true => Ok(()),
        false => Err(keys.inconsistent(key, found, format!("must equal {of} ({value})"))),
    };
    let (width, seen) = (config.actions.width(), config.backbone.hidden_size);
    let own = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    equal("input_embedding_dim", own("input_embedding_dim", 1536)?, "heads of diffusion_model_cfg", width)?;
    equal("backbone_embedding_dim", own("backbone_embedding_dim", 2048)?, "text_config.hidden_size", seen)?;
    if let Some(actions) = keys.section_or("diffusion_model_cfg")? {
        let outputs = actions.size_or("output_dim")?.unwrap_or(26);
        equal("diffusion_model_cfg.output_dim", outputs, "hidden_size", config.hidden_size)?;
    }
    if config.context.num_layers > 0 {
        equal("vl_self_attention_cfg", config.context.width(), "text_config.hidden_size", seen)?;
    }
    if width % 2 != 0 {
        return Err(keys.inconsistent(
            "input_embedding_dim",
            width,
            "must be even: times are encoded as sines and cosines",
        ));
    }
    match config.max_positions.filter(|entries| *entries < config.horizon) {
        Some(entries) => {
            let must = format!("must be at least action_horizon ({})", config.horizon);
            Err(keys.inconsistent("max_seq_len", entries, must))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "groot_tests.rs"]
mod tests;
