//! SmolVLA (`SmolVLAPolicy` of lerobot): the first layers of SmolVLM2 with an action expert. Its `config.json` is lerobot's; where
//! `vlm_model_name` is no published model, the widths of the vision-language model are under `sizes`.

use std::sync::Arc;

use loongforge_core::message::Tower;
use loongforge_core::schedule::TimeSampler;
use serde_json::{Value, json};

use super::pi::{check_periods, looking, stream};
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
    vlm: "vlm_with_expert.vlm.",
    text: "model.text_model.",
    expert: "vlm_with_expert.lm_expert.",
    head: None,
};
const TOWER: &str = "model.vlm_with_expert.vlm.model.";
const PROJECTOR: &str = "model.vlm_with_expert.vlm.model.connector.modality_projection.";
/// Stored and not used: the head of the vision-language model.
const CARRIED: &[&str] = &["model.vlm_with_expert.vlm.lm_head."];
/// `rms_norm_eps` of SmolVLM2, for both streams. Its `rope_theta` is not used: lerobot turns heads by its own base.
const NORM: NormConfig = NormConfig { eps: 1e-5, zero_centered: false };
/// The distribution from which lerobot draws times; there is no key for it.
const TIMES: TimeSampler = TimeSampler::Beta { alpha: 1.5, beta: 1.0, scale: 0.999, offset: 0.001 };
/// The published policy's vision-language model.
const PUBLISHED: &str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct";

/// Keys of lerobot 0.6.1's config that change nothing here: what is read of data is `core/data/policy`'s, how a run trains is the
/// run's config, and prefixes are not padded, so that how they would be does not matter.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "type", "device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path", "pretrained_revision",
    "input_features", "output_features", "normalization_mapping", "n_action_steps", "empty_cameras", "tokenizer_max_length",
    "optimizer_lr", "optimizer_betas", "optimizer_eps", "optimizer_weight_decay", "optimizer_grad_clip_norm",
    "scheduler_warmup_steps", "scheduler_decay_steps", "scheduler_decay_lr", "load_vlm_weights", "use_cache", "prefix_length",
    "pad_language_to", "compile_model", "compile_mode", "freeze_vision_encoder",
];
/// The keys that are read below.
#[rustfmt::skip]
const READ: &[&str] = &[
    "sizes", "n_obs_steps", "use_peft", "chunk_size", "max_state_dim", "max_action_dim", "resize_imgs_with_padding",
    "adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "num_steps", "train_expert_only", "train_state_proj", "vlm_model_name",
    "add_image_special_tokens", "attention_mode", "num_expert_layers", "num_vlm_layers", "self_attn_every_n_layers",
    "expert_width_multiplier", "min_period", "max_period", "rtc_config",
];

/// The sizes that `vlm_model_name` or `sizes` stand for.
struct Vlm {
    vocab_size: i64,
    /// The stream of all its layers.
    text: StreamConfig,
    vision: Value,
    /// Side of the block of patches that becomes one feature.
    scale_factor: i64,
    /// Width of the expert's feed-forward, where it is not lerobot's of the expert's width.
    expert_mlp_dim: Option<i64>,
    visual_start: bool,
}

/// Reads the `config.json` of `SmolVLAPolicy` of lerobot.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    refuse_others(keys)?;
    let vlm = read_vlm(keys)?;
    let number = |key: &str, default: f64| keys.number_or(key).map(|value| value.unwrap_or(default));
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|value| value.unwrap_or(default));
    let text = StreamConfig { depth: num_layers(keys, vlm.text.depth)?, ..vlm.text };
    let expert_only = flag("train_expert_only", true)?;
    let config = PolicyConfig {
        names: NAMES,
        vocab_size: vlm.vocab_size,
        image_token: vlm.vocab_size - 1,
        text,
        expert: expert(keys, &text, vlm.expert_mlp_dim)?,
        norm: NORM,
        activation: Activation::Silu,
        scaled_pictures: true,
        joint_every: joint_every(keys)?,
        causal_actions: true,
        action_dim: size("max_action_dim", 32)?,
        state_dim: size("max_state_dim", 32)?,
        horizon: size("chunk_size", 50)?,
        time: TimeUse::Rows,
        state: StateToken::PrefixLevel,
        times: TIMES,
        periods: [number("min_period", 4e-3)?, number("max_period", 4.0)?],
        num_steps: size("num_steps", 10)?,
        visual_start: vlm.visual_start,
        // lerobot freezes all of the last layer where it trains the others.
        frozen: FrozenParts { prefix: expert_only, last_layer: true, state: !flag("train_state_proj", true)? },
        options: PolicyOptions::default(),
    };
    check_periods(keys, &config)?;
    let encoder = encoder(keys, &vlm, text.width)?;
    let tower = ModelTower { tower: Tower::Vision, family: Arc::new(encoder), placeholders: vec![config.image_token] };
    Ok(ModelConfig {
        model_type: "smolvla".into(),
        foundation: Arc::new(PolicyFamily::new(config)),
        low_noise: None,
        towers: Towers::new(vec![tower]),
        tree: TreeNames::default(),
        carried: CarriedParts { prefixes: CARRIED, flag: None },
    })
}

/// Refuses what lerobot's policy can do and this cannot, and keys that it does not have.
fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    let known = [HARMLESS, READ].concat();
    keys.no_others(&known, || "SmolVLA's config of lerobot 0.6.1 has no such key".into())?;
    keys.only("n_obs_steps", &[json!(1)])?;
    for key in ["adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "add_image_special_tokens"] {
        keys.only(key, &[json!(false)])?;
    }
    // Whether its folder has adapters the files say.
    keys.flag_or("use_peft")?;
    if let Some(rtc) = keys.section_or("rtc_config")? {
        rtc.only("enabled", &[json!(false)])?;
    }
    Ok(())
}

fn read_vlm(keys: &Keys<'_>) -> Result<Vlm> {
    let name = keys.text_or("vlm_model_name")?.unwrap_or(PUBLISHED);
    let Some(sizes) = keys.section_or("sizes")? else {
        return match name == PUBLISHED {
            true => Ok(published()),
            false => {
                let must = format!("must be {PUBLISHED:?} where there are no `sizes` of another model");
                Err(keys.inconsistent("vlm_model_name", name, must))
            }
        };
    };
    sizes.only_keys(&["vocab_size", "scale_factor", "vision", "text", "expert_mlp_dim", "initialization"])?;
    sizes.only("initialization", &[json!("visual")])?;
    Ok(Vlm {
        vocab_size: sizes.size("vocab_size")?,
        text: stream(&sizes.section("text")?)?,
        vision: sizes.section("vision")?.filled(&json!({})),
        scale_factor: sizes.size_or("scale_factor")?.unwrap_or(2),
        expert_mlp_dim: sizes.size_or("expert_mlp_dim")?,
        visual_start: sizes.value("initialization").is_some(),
    })
}

/// Returns SmolVLM2 of 500 M parameters.
fn published() -> Vlm {
    Vlm {
        vocab_size: 49_280,
        text: StreamConfig { width: 960, depth: 32, mlp_dim: 2560, num_heads: 15, num_kv_heads: 5, head_dim: 64 },
        vision: json!({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "patch_size": 16, "image_size": 512}),
        scale_factor: 4,
        expert_mlp_dim: None,
        visual_start: false,
    }
}

/// Returns the number of layers of both streams: the first of the vision-language model, which has `depth`, and as many of the expert.
fn num_layers(keys: &Keys<'_>, depth: i64) -> Result<i64> {
    let found = keys.integer_or("num_vlm_layers")?.unwrap_or(16);
    let num_layers = if found <= 0 { depth } else { found.min(depth) };
    match keys.integer_or("num_expert_layers")?.unwrap_or(-1) {
        of_expert if of_expert > 0 && of_expert != num_layers => {
            let must = format!("an expert of fewer layers than num_vlm_layers ({num_layers}) is not implemented");
            Err(keys.inconsistent("num_expert_layers", of_expert, must))
        }
        _ => Ok(num_layers),
    }
}

/// Returns the expert's stream: the widths of the prefix's, but for those of rows and of feed-forwards.
fn expert(keys: &Keys<'_>, text: &StreamConfig, mlp_dim: Option<i64>) -> Result<StreamConfig> {
    let factor = keys.number_or("expert_width_multiplier")?.unwrap_or(0.75);
    let width = (text.width as f64 * factor) as i64;
    if !(factor > 0.0 && factor <= 16.0) || width < 2 || width % 2 != 0 {
        let must = format!("times {} must be even: times are encoded as sines and cosines", text.width);
        return Err(keys.inconsistent("expert_width_multiplier", factor, must));
    }
    Ok(StreamConfig { width, mlp_dim: mlp_dim.unwrap_or(feed_forward(width)), ..*text })
}

/// Returns lerobot's `get_intermediate_size`: four times two thirds of a width, each cut off, up to a multiple of 256.
fn feed_forward(width: i64) -> i64 {
    let third = (2.0 * width as f64 / 3.0) as i64;
    (4 * third + 255) / 256 * 256
}

/// Returns the interval of the layers in which actions attend to both streams: see [`PolicyConfig::joint_every`].
fn joint_every(keys: &Keys<'_>) -> Result<usize> {
    let every = keys.integer_or("self_attn_every_n_layers")?.unwrap_or(2);
    match keys.text_or("attention_mode")?.unwrap_or("cross_attn") {
        "self_attn" => Ok(1),
        "cross_attn" => Ok(usize::try_from(every).unwrap_or(0)),
        other => Err(keys.unsupported("attention_mode", &json!(other), &[json!("cross_attn"), json!("self_attn")])),
    }
}

/// Returns SmolVLM's tower, whose pictures are whole squares: SigLIP's with one linear map of a block of patches (pixel shuffle) behind
/// it.
fn encoder(keys: &Keys<'_>, vlm: &Vlm, width: i64) -> Result<VisionConfig> {
    let sizes = keys.section_or("sizes")?;
    let section = sizes.as_ref().map(|sizes| sizes.section("vision")).transpose()?;
    let mut vision = vlm.vision.clone();
    let given = section.as_ref().map_or_else(|| Keys::new(&vlm.vision), |section| section.instead(&vlm.vision));
    given.only_keys(&[
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "patch_size",
        "image_size",
    ])?;
    for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size"] {
        given.size(key)?;
    }
    let side = square(&given, "image_size")?.ok_or_else(|| given.missing("image_size"))?;
    check_resolution(keys, side)?;
    if side % (given.size("patch_size")? * vlm.scale_factor) != 0 {
        let must = format!("must be whole blocks of scale_factor ({}) patches a side", vlm.scale_factor);
        return Err(given.inconsistent("image_size", side, must));
    }
    vision["model_type"] = json!("siglip_vision_model");
    vision["spatial_merge_size"] = json!(vlm.scale_factor);
    let mut encoder = read_tower(&given.instead(&vision), TOWER, PROJECTOR, width)?;
    encoder.projector = ProjectorConfig {
        prefix: PROJECTOR.into(),
        inputs: encoder.tower.width(),
        merge: vlm.scale_factor,
        outputs: width,
        kind: ProjectorKind::Linear { name: "proj", bias: false },
        initializer_range: encoder.projector.initializer_range,
    };
    Ok(if vlm.visual_start { looking(encoder) } else { encoder })
}

/// Pictures become squares of the tower's side.
fn check_resolution(keys: &Keys<'_>, side: i64) -> Result<()> {
    let must = format!("must be two sizes, each the tower's image_size ({side})");
    let found = match keys.has("resize_imgs_with_padding") {
        true if keys.value("resize_imgs_with_padding").is_none() => {
            return Err(keys.inconsistent("resize_imgs_with_padding", "null", must));
        }
        true => keys.indices("resize_imgs_with_padding")?,
        false => vec![512, 512],
    };
    match found == [side, side] {
        true => Ok(()),
        false => Err(keys.inconsistent("resize_imgs_with_padding", format!("{found:?}"), must)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::params::{ParamSpec, Role};

    fn specs(config: &Value) -> BTreeMap<String, ParamSpec> {
        let model = ModelConfig::from_hf(config).unwrap();
        model.specs().into_iter().map(|spec| (spec.name.clone(), spec)).collect()
    }

    fn small() -> Value {
        json!({"type": "smolvla", "chunk_size": 8, "max_action_dim": 2, "max_state_dim": 2, "resize_imgs_with_padding": [32, 32],
            "num_vlm_layers": 3, "sizes": {"vocab_size": 39, "scale_factor": 2,
                "vision": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
                    "patch_size": 4, "image_size": 32},
                "text": {"width": 48, "depth": 4, "mlp_dim": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}}})
    }

    /// lerobot's own names, of the sizes that SmolVLM2 has.
    #[test]
    fn the_published_config_has_published_names_and_sizes() {
        let found = specs(&json!({"type": "smolvla", "rtc_config": null}));
        let (vlm, expert) = ("model.vlm_with_expert.vlm.model", "model.vlm_with_expert.lm_expert");
        for (name, shape) in [
            (format!("{vlm}.text_model.embed_tokens.weight"), vec![49_280, 960]),
            (format!("{vlm}.text_model.layers.15.mlp.down_proj.weight"), vec![960, 2560]),
            (format!("{vlm}.text_model.layers.0.self_attn.k_proj.weight"), vec![320, 960]),
            (format!("{vlm}.text_model.norm.weight"), vec![960]),
            (format!("{vlm}.connector.modality_projection.proj.weight"), vec![960, 12_288]),
            (format!("{vlm}.vision_model.embeddings.position_embedding.weight"), vec![1024, 768]),
            (format!("{vlm}.vision_model.encoder.layers.11.mlp.fc1.weight"), vec![3072, 768]),
            (format!("{vlm}.vision_model.post_layernorm.bias"), vec![768]),
            (format!("{expert}.layers.15.input_layernorm.weight"), vec![720]),
            (format!("{expert}.layers.0.mlp.up_proj.weight"), vec![2048, 720]),
            (format!("{expert}.layers.0.self_attn.k_proj.weight"), vec![320, 720]),
            (format!("{expert}.layers.1.self_attn.k_proj.weight"), vec![320, 320]),
            (format!("{expert}.layers.15.self_attn.v_proj.weight"), vec![320, 320]),
            (format!("{expert}.layers.1.self_attn.q_proj.weight"), vec![960, 720]),
            (format!("{expert}.norm.weight"), vec![720]),
            ("model.action_time_mlp_in.weight".to_owned(), vec![720, 1440]),
            ("model.state_proj.weight".to_owned(), vec![960, 32]),
            ("model.action_out_proj.bias".to_owned(), vec![32]),
        ] {
            assert_eq!(found[&name].shape, shape, "{name}");
        }
        assert!(!found.keys().any(|name| name.contains("layers.16.")));
        // 450 M with the head that is carried.
        let count: i64 = found.values().map(|spec| spec.shape.iter().product::<i64>()).sum();
        assert_eq!((count + 49_280 * 960) / 1_000_000, 450);
    }

    /// The frozen parts of the foundation are those that lerobot freezes; towers are the run's to freeze.
    #[test]
    fn parts_are_frozen_as_lerobot_freezes_them() {
        let frozen = |change: Value| {
            let mut config = small();
            change.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
            let model = ModelConfig::from_hf(&config).unwrap();
            let of = |spec: ParamSpec| (spec.role == Role::Frozen).then_some(spec.name);
            model.foundation.specs().into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let by_default = frozen(json!({}));
        assert!(
            by_default.iter().all(|name| name.contains(".vlm.")) && by_default.len() == 2 + 3 * 9,
            "{by_default:?}"
        );
        let with_state = frozen(json!({"train_state_proj": false}));
        assert_eq!(with_state.len(), by_default.len() + 2);
        let last = frozen(json!({"train_expert_only": false}));
        assert!(
            last.iter().all(|name| name.contains("text_model.layers.2.") || name.ends_with("text_model.norm.weight"))
        );
        assert_eq!(last.len(), 10);
    }

    /// The streams have as many layers as lerobot's, and actions attend to both streams in the same of them.
    #[test]
    fn layers_are_those_that_lerobot_builds() {
        let crosses = |change: Value| {
            let mut config = small();
            change.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
            let found = specs(&config);
            let inputs = |number: usize| {
                let name = format!("model.vlm_with_expert.lm_expert.layers.{number}.self_attn.k_proj.weight");
                found.get(&name).map(|spec| spec.shape[1] == 32)
            };
            (0..).map_while(inputs).collect::<Vec<_>>()
        };
        assert_eq!(crosses(json!({})), [false, true, false]);
        assert_eq!(crosses(json!({"num_vlm_layers": -1})), [false, true, false, true]);
        assert_eq!(crosses(json!({"num_vlm_layers": 9, "self_attn_every_n_layers": 3})), [false, true, true, false]);
        assert_eq!(crosses(json!({"self_attn_every_n_layers": -1})), [true; 3]);
        assert_eq!(crosses(json!({"attention_mode": "self_attn"})), [false; 3]);
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (pointer, value, expected) in [
            ("/n_obs_steps", json!(2), "n_obs_steps is 2; supported: 1"),
            ("/rtc_config", json!({"enabled": true}), "rtc_config.enabled is true"),
            ("/adapt_to_pi_aloha", json!(true), "adapt_to_pi_aloha is true"),
            ("/add_image_special_tokens", json!(true), "add_image_special_tokens is true"),
            ("/paligemma_variant", json!("gemma_2b"), "has no such key"),
            ("/num_expert_layers", json!(1), "num_expert_layers is 1, but an expert of fewer layers"),
            ("/attention_mode", json!("other"), r#"attention_mode is "other"; supported"#),
            ("/expert_width_multiplier", json!(0.0), "expert_width_multiplier is 0, but times 48"),
            ("/expert_width_multiplier", json!(0.15625), "must be even"),
            (
                "/resize_imgs_with_padding",
                json!([32, 48]),
                "resize_imgs_with_padding is [32, 48], but must be two sizes",
            ),
            ("/resize_imgs_with_padding", json!(null), "resize_imgs_with_padding is null"),
            ("/sizes/scale_factor", json!(3), "sizes.vision.image_size is 32, but must be whole blocks"),
            ("/sizes/text/num_kv_heads", json!(3), "sizes.text.num_kv_heads is 3, but must divide num_heads (4)"),
            ("/sizes/heads", json!(4), "sizes.heads is 4, but only vocab_size"),
            ("/sizes/vision/max_image_size", json!(4), "sizes.vision.max_image_size is 4, but only"),
            ("/min_period", json!(5.0), "min_period is 5, but must be between 0 and max_period (4)"),
        ] {
            let mut config = small();
            let (holder, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(holder).unwrap()[key] = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let other = json!({"type": "smolvla", "vlm_model_name": "HuggingFaceTB/SmolVLM-256M-Instruct"});
        let message = ModelConfig::from_hf(&other).unwrap_err().to_string();
        assert!(message.contains("vlm_model_name is HuggingFaceTB/SmolVLM-256M-Instruct, but must be"), "{message}");
    }
}
