//! Pi0.5 and Pi0 (`PI05Policy` and `PI0Policy` of lerobot): PaliGemma with an action expert. Their `config.json` is lerobot's; small
//! policies have their widths under `sizes`.

use std::sync::Arc;

use loongforge_core::message::Tower;
use loongforge_core::schedule::TimeSampler;
use serde_json::{Value, json};

use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::policy::{
    FrozenParts, PolicyConfig, PolicyFamily, PolicyOptions, PolicyTree, StateToken, StreamConfig, TimeUse,
};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;
use crate::model::vision::keys::square;
use crate::model::vision::parts::read_tower;
use crate::model::vision::{ProjectorConfig, ProjectorKind, VisionConfig};
use crate::nn::{Activation, NormConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The beginnings of parameters' names.
const NAMES: PolicyTree = PolicyTree {
    all: "model.",
    vlm: "paligemma_with_expert.paligemma.",
    text: "model.language_model.",
    expert: "paligemma_with_expert.gemma_expert.model.",
    head: Some("lm_head.weight"),
};
/// The norms of both streams, as Gemma's.
const NORM: NormConfig = NormConfig { eps: 1e-6, zero_centered: true };
const PALIGEMMA: &str = "model.paligemma_with_expert.paligemma.model.";
/// Stored and not used: the head of the action expert.
const CARRIED: &[&str] = &["model.paligemma_with_expert.gemma_expert.lm_head."];
/// PaliGemma's tokens.
const VOCAB_SIZE: i64 = 257_152;
/// The standard deviation of positions of patches in a policy that learns to look.
const VISUAL_POSITIONS: f64 = 0.3;

/// Reads the `config.json` of lerobot's `PI05Policy`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read_pi05(keys: &Keys<'_>) -> Result<ModelConfig> {
    let sizes = keys.section_or("sizes")?;
    let has_state = sizes.as_ref().map_or(Ok(None), |sizes| sizes.flag_or("state_token"))?.unwrap_or(false);
    read(keys, "pi05", TimeUse::Norms, if has_state { StateToken::Prefix } else { StateToken::None })
}

/// Reads the `config.json` of lerobot's `PI0Policy`, in which the state is a row of the action expert.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read_pi0(keys: &Keys<'_>) -> Result<ModelConfig> {
    if let Some(sizes) = keys.section_or("sizes")? {
        sizes.only("state_token", &[json!(false)])?;
    }
    read(keys, "pi0", TimeUse::Rows, StateToken::Actions)
}

fn read(keys: &Keys<'_>, name: &str, time: TimeUse, state: StateToken) -> Result<ModelConfig> {
    refuse_others(keys)?;
    let sizes = keys.section_or("sizes")?;
    let PaliGemma { text, vision, vocab_size, image_token } = paligemma(keys, &sizes)?;
    let expert = match &sizes {
        Some(sizes) => {
            sizes.only_keys(&[
                "vocab_size",
                "vision",
                "text",
                "expert",
                "state_token",
                "initialization",
                "fast_skip_tokens",
            ])?;
            sizes.only("initialization", &[json!("visual")])?;
            stream(&sizes.section("expert")?)?
        }
        None => variant(keys, "action_expert_variant", "gemma_300m")?,
    };
    check_streams(keys, &text, &expert)?;
    let visual_start = sizes.as_ref().is_some_and(|sizes| sizes.value("initialization").is_some());
    let number = |key: &str, default: f64| keys.number_or(key).map(|value| value.unwrap_or(default));
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let expert_only = keys.flag_or("train_expert_only")?.unwrap_or(false);
    let config = PolicyConfig {
        names: NAMES,
        vocab_size,
        image_token,
        text,
        expert,
        norm: NORM,
        activation: Activation::GeluTanh,
        scaled_pictures: false,
        joint_every: 1,
        causal_actions: false,
        action_dim: size("max_action_dim", 32)?,
        state_dim: size("max_state_dim", 32)?,
        horizon: size("chunk_size", 50)?,
        time,
        state,
        times: times(keys)?,
        periods: [number("min_period", 4e-3)?, number("max_period", 4.0)?],
        // Older releases have it as `num_steps`.
        num_steps: size("num_inference_steps", size("num_steps", 10)?)?,
        visual_start,
        frozen: FrozenParts {
            prefix: expert_only,
            last_layer: false,
            state: expert_only && state == StateToken::Prefix,
        },
        options: PolicyOptions::default(),
    };
    check_periods(keys, &config)?;
    let encoder = encoder(keys, &sizes, &vision, text.width, visual_start)?;
    let tower = ModelTower { tower: Tower::Vision, family: Arc::new(encoder), placeholders: vec![config.image_token] };
    Ok(ModelConfig {
        model_type: name.into(),
        foundation: Arc::new(PolicyFamily::new(config)),
        low_noise: None,
        towers: Towers::new(vec![tower]),
        tree: TreeNames::default(),
        carried: CarriedParts { prefixes: CARRIED, flag: None },
    })
}

/// The vision-language model of a policy: sizes of its stream, its tower's config, its tokens.
pub(super) struct PaliGemma {
    pub text: StreamConfig,
    pub vision: Value,
    pub vocab_size: i64,
    pub image_token: i64,
}

/// Reads the vision-language model of a policy: by the variant that lerobot names, or by the widths under `sizes`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(super) fn paligemma(keys: &Keys<'_>, sizes: &Option<Keys<'_>>) -> Result<PaliGemma> {
    let (text, vision) = match sizes {
        Some(sizes) => {
            let vision = sizes.section("vision")?.filled(&json!({"model_type": "siglip_vision_model"}));
            (stream(&sizes.section("text")?)?, vision)
        }
        None => (variant(keys, "paligemma_variant", "gemma_2b")?, so400m(keys)?),
    };
    let vocab_size = sizes.as_ref().map_or(Ok(None), |sizes| sizes.size_or("vocab_size"))?.unwrap_or(VOCAB_SIZE);
    Ok(PaliGemma { text, vision, vocab_size, image_token: image_token(keys, vocab_size)? })
}

/// Refuses what lerobot's policies can do and these cannot.
pub(super) fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    keys.only("n_obs_steps", &[json!(1)])?;
    keys.only("dtype", &[json!("float32"), json!("bfloat16")])?;
    // Guidance by an unfinished chunk, at inference and in training; memories of earlier pictures and states; in configs of
    // older releases states and actions of another space.
    keys.only("rtc_training_max_delay", &[json!(0)])?;
    if let Some(rtc) = keys.section_or("rtc_config")? {
        rtc.only("enabled", &[json!(false)])?;
    }
    for key in ["use_visual_memory", "use_proprioceptive_memory", "adapt_to_pi_aloha", "use_delta_joint_actions_aloha"]
    {
        keys.only(key, &[json!(false)])?;
    }
    // Whether its folder has adapters the files say.
    keys.flag_or("use_peft")?;
    keys.only("train_state_proj", &[json!(true)])
}

/// Returns the token that features of pictures replace: the last of the table, which no prompt has.
fn image_token(keys: &Keys<'_>, vocab_size: i64) -> Result<i64> {
    keys.only("image_token_id", &[json!(vocab_size - 1)])?;
    Ok(vocab_size - 1)
}

/// Returns Openpi's sizes of a stream by their name.
fn variant(keys: &Keys<'_>, key: &str, default: &str) -> Result<StreamConfig> {
    let heads = StreamConfig { width: 0, depth: 18, mlp_dim: 0, num_heads: 8, num_kv_heads: 1, head_dim: 256 };
    match keys.text_or(key)?.unwrap_or(default) {
        "gemma_2b" => Ok(StreamConfig { width: 2048, mlp_dim: 16_384, ..heads }),
        "gemma_300m" => Ok(StreamConfig { width: 1024, mlp_dim: 4096, ..heads }),
        other => Err(keys.unsupported(key, &json!(other), &[json!("gemma_2b"), json!("gemma_300m")])),
    }
}

/// Reads the widths of one stream.
///
/// # Errors
/// A key is missing, not known, or has a value that is not computed here.
pub(super) fn stream(keys: &Keys<'_>) -> Result<StreamConfig> {
    keys.only_keys(&["width", "depth", "mlp_dim", "num_heads", "num_kv_heads", "head_dim"])?;
    let stream = StreamConfig {
        width: keys.size("width")?,
        depth: keys.size("depth")?,
        mlp_dim: keys.size("mlp_dim")?,
        num_heads: keys.size("num_heads")?,
        num_kv_heads: keys.size("num_kv_heads")?,
        head_dim: keys.size("head_dim")?,
    };
    if stream.num_heads % stream.num_kv_heads != 0 {
        let must = format!("must divide num_heads ({})", stream.num_heads);
        return Err(keys.inconsistent("num_kv_heads", stream.num_kv_heads, must));
    }
    if stream.head_dim % 2 != 0 {
        return Err(keys.inconsistent(
            "head_dim",
            stream.head_dim,
            "must be even: rotary embeddings use both halves of a head",
        ));
    }
    if stream.width % 2 != 0 {
        return Err(keys.inconsistent("width", stream.width, "must be even: times are encoded as sines and cosines"));
    }
    Ok(stream)
}

/// Both streams have the same layers and heads: they attend together.
fn check_streams(keys: &Keys<'_>, text: &StreamConfig, expert: &StreamConfig) -> Result<()> {
    let heads = |of: &StreamConfig| [of.depth, of.num_heads, of.num_kv_heads, of.head_dim];
    match heads(text) == heads(expert) {
        true => Ok(()),
        false => Err(keys.inconsistent(
            "sizes.expert",
            format!("{:?}", heads(expert)),
            format!("depth, num_heads, num_kv_heads and head_dim must be those of sizes.text ({:?})", heads(text)),
        )),
    }
}

fn times(keys: &Keys<'_>) -> Result<TimeSampler> {
    let number = |key: &str, default: f64| {
        let key = format!("time_sampling_{key}");
        let value = keys.number_or(&key)?.unwrap_or(default);
        match value.is_finite() && (value > 0.0 || key.ends_with("offset") && value == 0.0) {
            true => Ok(value),
            false => Err(keys.inconsistent(&key, value, "must be positive")),
        }
    };
    let [alpha, beta] = [number("beta_alpha", 1.5)?, number("beta_beta", 1.0)?];
    let [scale, offset] = [number("scale", 0.999)?, number("offset", 0.001)?];
    if scale + offset > 1.0 + 1e-9 {
        return Err(keys.inconsistent("time_sampling_scale", scale, "plus time_sampling_offset must be at most 1"));
    }
    Ok(TimeSampler::Beta { alpha, beta, scale, offset })
}

/// # Errors
/// The periods of the sinusoids of a time do not ascend from above 0.
pub(super) fn check_periods(keys: &Keys<'_>, config: &PolicyConfig) -> Result<()> {
    let [shortest, longest] = config.periods;
    match shortest > 0.0 && longest > shortest && longest.is_finite() {
        true => Ok(()),
        false => {
            Err(keys.inconsistent("min_period", shortest, format!("must be between 0 and max_period ({longest})")))
        }
    }
}

/// Returns the tower of the published policies, for pictures of `image_resolution`.
fn so400m(keys: &Keys<'_>) -> Result<Value> {
    Ok(
        json!({"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "patch_size": 14, "image_size": resolution(keys)?.unwrap_or(224)}),
    )
}

/// Returns the side of `image_resolution`, where it is there.
fn resolution(keys: &Keys<'_>) -> Result<Option<i64>> {
    if keys.value("image_resolution").is_none() {
        return Ok(None);
    }
    match keys.indices("image_resolution")?.as_slice() {
        [height, width] if height == width && *height > 0 => Ok(Some(*height)),
        other => Err(keys.inconsistent("image_resolution", format!("{other:?}"), "must be two equal sizes")),
    }
}

/// Returns SigLIP's tower with one linear map behind it.
pub(super) fn encoder(
    keys: &Keys<'_>,
    sizes: &Option<Keys<'_>>,
    vision: &Value,
    width: i64,
    looks: bool,
) -> Result<VisionConfig> {
    let section = sizes.as_ref().map(|sizes| sizes.section("vision")).transpose()?;
    let vision_keys = section.as_ref().map_or_else(|| Keys::new(vision), |section| section.instead(vision));
    vision_keys.only("model_type", &[json!("siglip_vision_model")])?;
    // lerobot takes the states behind the last norm.
    vision_keys.only("vision_feature_layer", &[])?;
    let tower = format!("{PALIGEMMA}vision_tower.");
    let projector = format!("{PALIGEMMA}multi_modal_projector.");
    let mut encoder = read_tower(&vision_keys, &tower, &projector, width)?;
    let side = square(&vision_keys, "image_size")?.unwrap_or(224);
    if let Some(found) = resolution(keys)?.filter(|found| *found != side) {
        return Err(keys.inconsistent("image_resolution", found, format!("must be the tower's image_size ({side})")));
    }
    let inputs = encoder.tower.width();
    let kind = ProjectorKind::Linear { name: "linear", bias: true };
    let initializer_range = encoder.projector.initializer_range;
    encoder.projector = ProjectorConfig {
        prefix: projector,
        inputs,
        merge: encoder.tower.merge,
        outputs: width,
        kind,
        initializer_range,
    };
    if encoder.tower.merge != 1 {
        return Err(vision_keys.inconsistent("spatial_merge_size", encoder.tower.merge, "must be 1"));
    }
    if looks {
        encoder = looking(encoder);
    }
    Ok(encoder)
}

/// Returns the encoder with random weights from which a small policy learns to look.
pub(super) fn looking(mut encoder: VisionConfig) -> VisionConfig {
    encoder.tower.position_std = Some(VISUAL_POSITIONS);
    let std = (3.0 * encoder.tower.width() as f64).powf(-0.5);
    encoder.tower.block.initializer_range = std;
    encoder.projector.initializer_range = std;
    encoder
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::params::{Init, ParamSpec, Role};

    fn specs(config: &Value) -> BTreeMap<String, ParamSpec> {
        let model = ModelConfig::from_hf(config).unwrap();
        model.specs().into_iter().map(|spec| (spec.name.clone(), spec)).collect()
    }

    fn small() -> Value {
        let stream = |width: i64, mlp_dim: i64| json!({"width": width, "depth": 3, "mlp_dim": mlp_dim, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16});
        json!({"type": "pi05", "chunk_size": 8, "max_action_dim": 2, "max_state_dim": 2, "image_resolution": [32, 32],
            "sizes": {"vocab_size": 39, "state_token": true, "initialization": "visual",
                "vision": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
                    "patch_size": 4, "image_size": 32},
                "text": stream(48, 96), "expert": stream(48, 144)}})
    }

    /// lerobot's own names, of the sizes that the variants stand for.
    #[test]
    fn published_configs_have_published_names_and_sizes() {
        let found = specs(&json!({"type": "pi05", "dtype": "bfloat16", "rtc_config": null}));
        let paligemma = "model.paligemma_with_expert.paligemma.model";
        let expert = "model.paligemma_with_expert.gemma_expert.model";
        for (name, shape) in [
            (format!("{paligemma}.language_model.embed_tokens.weight"), vec![257_152, 2048]),
            (format!("{paligemma}.language_model.layers.17.mlp.down_proj.weight"), vec![2048, 16_384]),
            (format!("{paligemma}.language_model.layers.0.self_attn.k_proj.weight"), vec![256, 2048]),
            (format!("{paligemma}.multi_modal_projector.linear.weight"), vec![2048, 1152]),
            (format!("{paligemma}.vision_tower.vision_model.embeddings.position_embedding.weight"), vec![256, 1152]),
            (format!("{paligemma}.vision_tower.vision_model.encoder.layers.26.mlp.fc1.weight"), vec![4304, 1152]),
            (format!("{expert}.layers.17.input_layernorm.dense.weight"), vec![3072, 1024]),
            (format!("{expert}.layers.0.self_attn.q_proj.weight"), vec![2048, 1024]),
            (format!("{expert}.norm.dense.bias"), vec![3072]),
            ("model.time_mlp_in.weight".to_owned(), vec![1024, 1024]),
            ("model.action_out_proj.bias".to_owned(), vec![32]),
        ] {
            assert_eq!(found[&name].shape, shape, "{name}");
        }
        let found = specs(&json!({"type": "pi0"}));
        assert_eq!(found["model.action_time_mlp_in.weight"].shape, [1024, 2048]);
        assert_eq!(found["model.state_proj.weight"].shape, [1024, 32]);
        assert_eq!(found[&format!("{expert}.layers.17.input_layernorm.weight")].shape, [1024]);
        let older = ModelConfig::from_hf(&json!({"type": "pi0", "num_steps": 5})).unwrap();
        assert_eq!(older.foundation.as_policy().unwrap().chunk().num_steps, 5);
    }

    /// Pads: 260,930 parameters, which start so that a policy of this size looks at its pictures.
    #[test]
    fn a_small_policy_starts_by_looking() {
        let found = specs(&small());
        let count = |spec: &ParamSpec| spec.shape.iter().product::<i64>();
        assert_eq!(found.values().map(count).sum::<i64>(), 260_930);
        let end = |end: &str| {
            &found.iter().find(|(name, _)| name.ends_with(end)).unwrap_or_else(|| panic!("no {end}")).1.init
        };
        assert_eq!(*end("gemma_expert.model.layers.1.input_layernorm.dense.bias"), Init::Parts(&[0.0, 0.0, 1.0]));
        assert_eq!(*end("action_in_proj.bias"), Init::Normal(1.0));
        assert_eq!(*end("position_embedding.weight"), Init::Normal(0.3));
        let Init::Normal(std) = *end("action_in_proj.weight") else { panic!("a normal start") };
        assert!((std - 0.3 / 6f64.sqrt()).abs() < 1e-12);
        let mut plain = small();
        plain["sizes"].as_object_mut().unwrap().remove("initialization");
        let found = specs(&plain);
        let gates = &found["model.paligemma_with_expert.gemma_expert.model.norm.dense.bias"];
        assert_eq!(gates.init, Init::Parts(&[0.0, 0.0, 0.0]));
    }

    /// Only the expert is trained in the policy, with the maps of actions and time.
    #[test]
    fn the_prefix_can_be_frozen() {
        let mut config = small();
        config["train_expert_only"] = json!(true);
        let model = ModelConfig::from_hf(&config).unwrap();
        for spec in model.foundation.specs() {
            let is_prefix = spec.name.contains(".paligemma.") || spec.name.contains("state_proj");
            assert_eq!(spec.role == Role::Frozen, is_prefix, "{}", spec.name);
        }
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (pointer, value, expected) in [
            ("/n_obs_steps", json!(2), "n_obs_steps is 2; supported: 1"),
            ("/rtc_config", json!({"enabled": true}), "rtc_config.enabled is true"),
            ("/rtc_training_max_delay", json!(4), "rtc_training_max_delay is 4"),
            ("/use_visual_memory", json!(true), "use_visual_memory is true"),
            ("/adapt_to_pi_aloha", json!(true), "adapt_to_pi_aloha is true"),
            ("/image_resolution", json!([32, 48]), "image_resolution is [32, 48], but must be two equal sizes"),
            ("/image_resolution", json!([64, 64]), "image_resolution is 64, but must be the tower's image_size (32)"),
            ("/image_token_id", json!(3), "image_token_id is 3; supported: 38"),
            ("/sizes/expert/head_dim", json!(8), "sizes.expert is [3, 4, 4, 8], but depth, num_heads"),
            ("/sizes/text/num_kv_heads", json!(3), "sizes.text.num_kv_heads is 3, but must divide num_heads (4)"),
            ("/sizes/initialization", json!("zeros"), r#"sizes.initialization is "zeros"; supported: "visual""#),
            ("/sizes/heads", json!(4), "sizes.heads is 4, but only vocab_size"),
            ("/sizes/vision/vision_feature_layer", json!(-2), "vision_feature_layer is -2"),
            ("/time_sampling_scale", json!(1.5), "time_sampling_scale is 1.5, but plus time_sampling_offset"),
            ("/time_sampling_beta_alpha", json!(0.0), "time_sampling_beta_alpha is 0, but must be positive"),
            ("/min_period", json!(5.0), "min_period is 5, but must be between 0 and max_period (4)"),
            ("/dtype", json!("float16"), r#"dtype is "float16""#),
        ] {
            let mut config = small();
            let (holder, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(holder).unwrap()[key] = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let unknown = ModelConfig::from_hf(&json!({"type": "pi0_faster"})).unwrap_err().to_string();
        assert!(unknown.contains(r#""pi0_faster"; supported"#), "{unknown}");
        let unknown = ModelConfig::from_hf(&json!({"type": "pi05", "paligemma_variant": "gemma_7b"})).unwrap_err();
        assert!(unknown.to_string().contains(r#"paligemma_variant is "gemma_7b""#), "{unknown}");
    }
}
