//! FastWAM (`FastWAMPolicy` of lerobot 0.6.1): its `config.json` is lerobot's; where its frozen networks are not those of Wan 2.2
//! TI2V-5B, their configs are under `sizes`, as `vae` and `text_encoder`.

use loongforge_core::data::fastwam_networks;
use loongforge_core::message::Tower;
use serde_json::{Value, json};
use std::sync::Arc;

use super::diffusion_towers::{self, Wanted};
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::dit::WanConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::original_names::Naming;
use crate::model::policy::{Architecture, PolicyFamily, PolicyOptions};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;
use crate::model::vae::{Autoencoder, LatentPatch};
use crate::model::wam::{Flow, RULES, WamConfig};
use crate::params::ParallelRank;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The prefix of the names of all parameters.
const PREFIX: &str = "model.";

/// Keys of lerobot 0.6.2's config that change nothing here: what is read of data is `core/data/policy`'s, how a run trains is the
/// run's config, and the networks lie in the model's folder. lerobot reads `text_cfg_scale` and `negative_prompt` and does nothing.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "type", "device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path", "pretrained_revision",
    "input_features", "output_features", "normalization_mapping", "context_len", "model_id", "tokenizer_model_id",
    "text_encoder_model_id", "base_model_id", "mot_checkpoint_mixed_attn", "torch_dtype", "inference_seed", "rand_device",
    "text_cfg_scale", "negative_prompt", "fp32_attention", "use_gradient_checkpointing", "optimizer_lr",
    "optimizer_weight_decay", "compile_action_infer",
];
/// The keys that are read below.
#[rustfmt::skip]
const READ: &[&str] = &[
    "sizes", "n_obs_steps", "use_peft", "action_dim", "proprio_dim", "action_horizon", "num_video_frames", "action_video_freq_ratio",
    "image_size", "tokenizer_max_len", "load_text_encoder", "num_inference_steps", "sigma_shift", "tiled", "freeze_video_expert",
    "toggle_action_dimensions", "video_scheduler", "action_scheduler", "loss", "video_dit_config", "action_dit_config",
    "n_action_steps", "prompt_template",
];
#[rustfmt::skip]
const OF_VIDEO: &[&str] = &[
    "patch_size", "in_dim", "hidden_dim", "ffn_dim", "freq_dim", "text_dim", "out_dim", "num_heads", "attn_head_dim", "num_layers",
    "eps", "seperated_timestep", "use_gradient_checkpointing", "video_attention_mask_mode", "action_conditioned", "action_dim",
    "action_group_causal_mask_mode", "fp32_attention", "has_image_input", "has_image_pos_emb", "has_ref_conv", "add_control_adapter",
    "in_dim_control_adapter", "require_vae_embedding", "require_clip_embedding", "fuse_vae_embedding_in_latents",
];
#[rustfmt::skip]
const OF_ACTIONS: &[&str] = &[
    "action_dim", "hidden_dim", "ffn_dim", "num_heads", "attn_head_dim", "num_layers", "text_dim", "freq_dim", "eps",
    "use_gradient_checkpointing", "fp32_attention",
];

/// Reads the `config.json` of `FastWAMPolicy` of lerobot.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let (config, towers) = parts(keys)?;
    Ok(ModelConfig {
        model_type: "fastwam".into(),
        foundation: Arc::new(PolicyFamily::new(config)),
        low_noise: None,
        towers: Towers::new(towers),
        tree: TreeNames::default(),
        carried: CarriedParts::default(),
    })
}

/// Returns the policy that a `config.json` describes.
pub(in crate::model) fn config_of(config: &Value) -> Result<WamConfig> {
    parts(&Keys::new(config)).map(|(policy, _)| policy)
}

/// Returns the policy and its towers.
fn parts(keys: &Keys<'_>) -> Result<(WamConfig, Vec<ModelTower>)> {
    refuse_others(keys)?;
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let action_dim = size("action_dim", 7)?;
    let (video_sizes, action_sizes) = (video_sizes(action_dim), action_sizes(action_dim));
    let video_keys = keys.section_or("video_dit_config")?.unwrap_or_else(|| keys.instead(&video_sizes));
    let action_keys = keys.section_or("action_dit_config")?.unwrap_or_else(|| keys.instead(&action_sizes));
    let text_rows = size("tokenizer_max_len", 128)?;
    let video = video_stream(&video_keys, text_rows)?;
    let action = action_stream(&action_keys, &video)?;
    if action_keys.size("action_dim")? != action_dim {
        return Err(action_keys.inconsistent(
            "action_dim",
            action_keys.size("action_dim")?,
            "must be that of the policy",
        ));
    }
    expect_template(keys)?;
    let networks = fastwam_networks(&keys.filled(&json!({})));
    let networks = keys.instead(&networks);
    let wanted = Wanted {
        patch: LatentPatch([1, video.patch[0], video.patch[1]]),
        text: ("text_dim", video.text_dim),
        image: None,
    };
    let (mut towers, vae) = diffusion_towers::read(&networks, &video_keys, &wanted)?;
    if vae.channels() != video.in_channels {
        let must = format!("must be the number of latent channels of the autoencoder ({})", vae.channels());
        return Err(video_keys.inconsistent("in_dim", video.in_channels, must));
    }
    let clip = clip(keys, &vae, video.patch)?;
    let infer_shift = match keys.number_or("sigma_shift")? {
        Some(shift) if shift <= 0.0 => return Err(keys.inconsistent("sigma_shift", shift, "must be more than 0")),
        shift => shift,
    };
    let flow = |of: &str| flow(keys, of, infer_shift);
    let config = WamConfig {
        prefix: PREFIX.into(),
        rules: RULES,
        // Null: it has none.
        state_dim: keys.size_or_null("proprio_dim", 8)?.unwrap_or(0),
        action_dim,
        horizon: clip.horizon,
        frame: clip.frame,
        num_frames: clip.num_frames,
        video_flow: flow("video")?,
        action_flow: flow("action")?,
        num_steps: size("num_inference_steps", 10)?,
        freezes_video: keys.flag_or("freeze_video_expert")?.unwrap_or(false),
        options: PolicyOptions::default(),
        video,
        action,
    };
    let inputs = config.inputs();
    for tower in &mut towers {
        let input = inputs.iter().find(|input| input.tower == tower.tower);
        tower.placeholders = input.map_or_else(Vec::new, |input| input.placeholders.clone());
    }
    debug_assert!(towers.iter().all(|it| matches!(it.tower, Tower::Text | Tower::Vae)));
    Ok((config, towers))
}

/// Refuses what lerobot's policy can do and this cannot, and keys that it does not have.
fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    let known = [HARMLESS, READ].concat();
    keys.no_others(&known, || "FastWAM's config of lerobot 0.6.2 has no such key".into())?;
    keys.only("n_obs_steps", &[json!(1)])?;
    for (key, value) in [("tiled", false), ("load_text_encoder", true)] {
        keys.only(key, &[json!(value)])?;
    }
    // Whether its folder has adapters the files say.
    keys.flag_or("use_peft")?;
    // Numbers that become signs when it acts are data's.
    let _ = keys.value("toggle_action_dimensions");
    Ok(())
}

/// lerobot formats the template as Python does: other braces would name other values, or stand for one brace.
fn expect_template(keys: &Keys<'_>) -> Result<()> {
    let key = "prompt_template";
    let around = |template: &str| template.split_once("{task}").map(|(before, after)| format!("{before}{after}"));
    match keys.text_or(key)? {
        Some(template) if around(template).is_none_or(|around| around.contains(['{', '}'])) => {
            Err(keys.inconsistent(key, json!(template), "must have {task} once, and no other braces"))
        }
        _ => Ok(()),
    }
}

fn video_stream(keys: &Keys<'_>, text_rows: i64) -> Result<WanConfig> {
    keys.no_others(OF_VIDEO, || "lerobot's `WanVideoDiT` has no such key".into())?;
    let off = ["has_image_input", "has_image_pos_emb", "has_ref_conv", "add_control_adapter", "require_vae_embedding"];
    for key in off.into_iter().chain(["require_clip_embedding", "action_conditioned"]) {
        keys.only(key, &[json!(false)])?;
    }
    keys.only("fuse_vae_embedding_in_latents", &[json!(true)])?;
    keys.only("seperated_timestep", &[json!(true)])?;
    // With another mask lerobot trains, and cannot act.
    let mode = "video_attention_mask_mode";
    keys.only(mode, &[json!("first_frame_causal")])?;
    if keys.value(mode).is_none() || keys.value("seperated_timestep").is_none() {
        return Err(keys.missing(if keys.value(mode).is_none() { mode } else { "seperated_timestep" }));
    }
    let patch = WanConfig::read_patch(keys)?;
    let stream = stream(keys, "video", text_rows)?;
    if stream.hidden != stream.num_heads * stream.head_dim {
        let must = format!("must be num_heads * attn_head_dim ({})", stream.num_heads * stream.head_dim);
        return Err(keys.inconsistent("hidden_dim", stream.hidden, must));
    }
    if stream.head_dim < 6 {
        return Err(keys.inconsistent("attn_head_dim", stream.head_dim, "must be at least 6"));
    }
    let (inputs, outputs) = (keys.size("in_dim")?, keys.size("out_dim")?);
    if inputs != outputs {
        return Err(keys.inconsistent("out_dim", outputs, format!("must be in_dim ({inputs})")));
    }
    Ok(WanConfig { in_channels: inputs, out_channels: outputs, patch, ..stream })
}

fn action_stream(keys: &Keys<'_>, video: &WanConfig) -> Result<WanConfig> {
    keys.no_others(OF_ACTIONS, || "lerobot's `ActionDiT` has no such key".into())?;
    let action = stream(keys, "action", video.text_rows)?;
    let alike = [
        ("num_layers", action.num_layers as i64, video.num_layers as i64),
        ("num_heads", action.num_heads, video.num_heads),
        ("attn_head_dim", action.head_dim, video.head_dim),
        ("text_dim", action.text_dim, video.text_dim),
    ];
    match alike.into_iter().find(|(_, own, other)| own != other) {
        Some((key, own, other)) => {
            Err(keys.inconsistent(key, own, format!("must be that of video_dit_config ({other})")))
        }
        None => Ok(action),
    }
}

/// Returns a stream without what frames alone have.
fn stream(keys: &Keys<'_>, name: &str, text_rows: i64) -> Result<WanConfig> {
    let even = |key: &str| match keys.size(key)? {
        size if size % 2 == 0 => Ok(size),
        size => Err(keys.inconsistent(key, size, "must be even")),
    };
    Ok(WanConfig {
        prefix: format!("{PREFIX}mot.mixtures.{name}."),
        names: Naming::Wan,
        hidden: keys.size("hidden_dim")?,
        num_heads: keys.size("num_heads")?,
        head_dim: even("attn_head_dim")?,
        num_layers: keys.size("num_layers")? as usize,
        inner: keys.size("ffn_dim")?,
        in_channels: 1,
        out_channels: 1,
        patch: [1, 1],
        text_dim: keys.size("text_dim")?,
        text_rows,
        freq_dim: even("freq_dim")?,
        cross_norm: true,
        eps: keys.number_or("eps")?.unwrap_or(1e-6),
        image: None,
        parallel: ParallelRank::default(),
    })
}

/// Sizes of what a sample learns.
struct Clip {
    horizon: i64,
    frame: [i64; 2],
    num_frames: i64,
}

fn clip(keys: &Keys<'_>, vae: &Autoencoder, patch: [i64; 2]) -> Result<Clip> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let image = if keys.has("image_size") { keys.indices("image_size")? } else { vec![224, 448] };
    let &[rows, columns] = image.as_slice() else {
        return Err(keys.inconsistent("image_size", json!(image), "must be rows and columns"));
    };
    let [time, space] = vae.factors();
    let unit = patch.map(|side| side * space);
    if rows < 1 || columns < 1 || rows % unit[0] + columns % unit[1] > 0 {
        let must = format!("must be multiples of {} rows and {} columns, one place of a frame", unit[0], unit[1]);
        return Err(keys.inconsistent("image_size", json!(image), must));
    }
    let (frames, ratio) = (size("num_video_frames", 33)?, size("action_video_freq_ratio", 4)?);
    let behind = (frames - 1) / ratio;
    if frames < 2 || (frames - 1) % ratio > 0 || behind % time > 0 {
        let must = format!(
            "must be one more than a multiple of {} (action_video_freq_ratio and the autoencoder)",
            time * ratio
        );
        return Err(keys.inconsistent("num_video_frames", frames, must));
    }
    let horizon = size("action_horizon", 32)?;
    if horizon % behind > 0 {
        return Err(keys.inconsistent("action_horizon", horizon, format!("must be a multiple of {behind} frames")));
    }
    if let Some(executed) = keys.size_or("n_action_steps")?.filter(|executed| *executed > horizon) {
        let must = format!("must be at most action_horizon ({horizon})");
        return Err(keys.inconsistent("n_action_steps", executed, must));
    }
    Ok(Clip { horizon, frame: [rows / unit[0], columns / unit[1]], num_frames: 1 + behind / time })
}

/// Returns times and weight of the stream `of`.
fn flow(keys: &Keys<'_>, of: &str, infer_shift: Option<f64>) -> Result<Flow> {
    let none = json!({});
    let scheduler = keys.section_or(&format!("{of}_scheduler"))?.unwrap_or_else(|| keys.instead(&none));
    scheduler.only_keys(&["train_shift", "infer_shift", "num_train_timesteps"])?;
    let shift = |key: &str, default: f64| match scheduler.number_or(key)?.unwrap_or(default) {
        shift if shift > 0.0 => Ok(shift),
        shift => Err(scheduler.inconsistent(key, shift, "must be more than 0")),
    };
    let loss = keys.section_or("loss")?.unwrap_or_else(|| keys.instead(&none));
    loss.only_keys(&["lambda_video", "lambda_action"])?;
    let weight = loss.number_or(&format!("lambda_{of}"))?.unwrap_or(1.0);
    if weight < 0.0 {
        return Err(loss.inconsistent(&format!("lambda_{of}"), weight, "must not be negative"));
    }
    Ok(Flow {
        train_shift: shift("train_shift", 5.0)?,
        infer_shift: infer_shift.map_or_else(|| shift("infer_shift", 5.0), Ok)?,
        num_times: scheduler.size_or("num_train_timesteps")?.unwrap_or(1000),
        weight,
    })
}

/// Returns lerobot's `default_video_dit_config`.
fn video_sizes(action_dim: i64) -> Value {
    json!({
        "patch_size": [1, 2, 2], "in_dim": 48, "hidden_dim": 3072, "ffn_dim": 14336, "freq_dim": 256, "text_dim": 4096, "out_dim": 48,
        "num_heads": 24, "attn_head_dim": 128, "num_layers": 30, "eps": 1e-6, "seperated_timestep": true,
        "video_attention_mask_mode": "first_frame_causal", "action_conditioned": false, "action_dim": action_dim,
    })
}

/// Returns lerobot's `default_action_dit_config`.
fn action_sizes(action_dim: i64) -> Value {
    json!({
        "action_dim": action_dim, "hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 24, "attn_head_dim": 128, "num_layers": 30,
        "text_dim": 4096, "freq_dim": 256, "eps": 1e-6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_policy_has_its_sizes() {
        let config = json!({"type": "fastwam", "compile_action_infer": false});
        let policy = config_of(&config).unwrap();
        assert_eq!((policy.video.width(), policy.action.width(), policy.num_steps), (3072, 1024, 10));
        assert_eq!((policy.frame, policy.num_frames, policy.horizon, policy.state_dim), ([7, 14], 3, 32, 8));
        let model = ModelConfig::from_hf(&config).unwrap();
        let count = |prefix: &str| -> i64 {
            let of = |spec: &crate::params::ParamSpec| spec.shape.iter().product::<i64>();
            model.specs().iter().filter(|spec| spec.name.starts_with(prefix)).map(of).sum()
        };
        // Frames have all that Wan 2.2 TI2V-5B has.
        let wan = loongforge_core::config::model_files().find(|file| file.name == "wan2_2_ti2v_5b").unwrap();
        let wan = ModelConfig::from_hf(&Value::Object(wan.config)).unwrap();
        let all: i64 = wan.foundation.specs().iter().map(|spec| spec.shape.iter().product::<i64>()).sum();
        let of_actions = count("model.mot.mixtures.action.") + of_action_blocks(&model);
        assert_eq!(count("model."), all + of_actions + 8 * 4096 + 4096);
        assert!(model.towers.iter().map(|it| it.placeholders.clone()).eq([vec![2], vec![1]]));
    }

    fn of_action_blocks(model: &ModelConfig) -> i64 {
        let own = |spec: &&crate::params::ParamSpec| spec.name.contains(".blocks.action.");
        model.foundation.specs().iter().filter(own).map(|spec| spec.shape.iter().product::<i64>()).sum()
    }

    #[test]
    fn errors_name_the_key() {
        let error = |key: &str, value: Value| {
            let mut config =
                json!({"type": "fastwam", "video_dit_config": video_sizes(7), "action_dit_config": action_sizes(7)});
            let (holder, key) = key.rsplit_once('/').unwrap();
            config.pointer_mut(holder).unwrap()[key] = value;
            ModelConfig::from_hf(&config).unwrap_err().to_string()
        };
        let cases = [
            (
                "/video_dit_config/video_attention_mask_mode",
                json!("bidirectional"),
                "video_attention_mask_mode is \"bidirectional\"",
            ),
            ("/video_dit_config/action_conditioned", json!(true), "video_dit_config.action_conditioned is true"),
            ("/video_dit_config/hidden_dim", json!(3000), "must be num_heads * attn_head_dim (3072)"),
            ("/video_dit_config/in_dim", json!(16), "video_dit_config.out_dim is 48, but must be in_dim (16)"),
            (
                "/action_dit_config/num_layers",
                json!(29),
                "action_dit_config.num_layers is 29, but must be that of video_dit_config",
            ),
            ("/action_dit_config/action_dim", json!(6), "action_dit_config.action_dim is 6"),
            ("/image_size", json!([224, 440]), "must be multiples of 32 rows and 32 columns"),
            ("/num_video_frames", json!(31), "must be one more than a multiple of 16"),
            ("/action_horizon", json!(30), "must be a multiple of 8 frames"),
            ("/n_action_steps", json!(33), "n_action_steps is 33, but must be at most action_horizon (32)"),
            ("/sigma_shift", json!(0), "sigma_shift is 0, but must be more than 0"),
            ("/sigma_shift", json!(-1.0), "sigma_shift is -1, but must be more than 0"),
            ("/prompt_template", json!(3), "prompt_template must be a string, not 3"),
            ("/prompt_template", json!("go"), "prompt_template is \"go\", but must have {task} once"),
            ("/prompt_template", json!("{task}, {task}"), "must have {task} once"),
            ("/prompt_template", json!("{task} {}"), "no other braces"),
            ("/load_text_encoder", json!(false), "load_text_encoder is false"),
            ("/chunk_size", json!(5), "has no such key"),
        ];
        for (key, value, expected) in cases {
            let message = error(key, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
