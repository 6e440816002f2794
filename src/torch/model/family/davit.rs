//! DaViT's `config.json`, as transformers (`Florence2VisionConfig`) or the first release of Florence-2 writes it.
//!
//! Stochastic depth is not computed: training goes through what the reference computes in eval mode. Data's notes tell users so.

use serde_json::json;

use super::bart::{divides, dropped};
use crate::model::davit::{DavitConfig, StageConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns a tower and its projector, whose parameters' names begin with these `prefixes`.
pub(super) fn read(keys: &Keys<'_>, prefixes: [&str; 2], frozen: bool) -> Result<DavitConfig> {
    keys.only("model_type", &[json!("davit"), json!("florence_vision")])?;
    dropped(keys, "drop_path_rate")?;
    keys.only("image_feature_source", &[json!(["spatial_avg_pool", "temporal_avg_pool"])])?;
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    // The first release has these in sections of their own.
    let in_section = |section: &str, kind: &str, theirs: &str, key: &str, default: i64| {
        let Some(section) = keys.section_or(section)? else { return size(key, default) };
        section.only("type", &[json!(kind)])?;
        section.size(theirs)
    };
    Ok(DavitConfig {
        prefix: prefixes[0].into(),
        projector_prefix: prefixes[1].into(),
        in_channels: size("in_channels", 3)?,
        stages: stages(keys)?,
        window: size("window_size", 12)?,
        mlp_ratio: ratio(keys, "mlp_ratio")?,
        qkv_bias: keys.flag_or("qkv_bias")?.unwrap_or(true),
        activation: keys.activation_or("activation_function")?.unwrap_or(Activation::Gelu),
        outputs: size("projection_dim", 1024)?,
        max_positions: in_section(
            "image_pos_embed",
            "learned_abs_2d",
            "max_pos_embeddings",
            "max_position_embeddings",
            50,
        )?
        .min(1 << 20),
        max_frames: in_section(
            "visual_temporal_embedding",
            "COSINE",
            "max_temporal_embeddings",
            "max_temporal_embeddings",
            100,
        )?,
        std: keys.number_or("initializer_range")?.unwrap_or(0.02),
        frozen,
    })
}

/// Returns the stages: lists of one length.
fn stages(keys: &Keys<'_>) -> Result<Vec<StageConfig>> {
    let numbers = |key: &str, default: [i64; 4]| match keys.value(key) {
        None => Ok(default.to_vec()),
        Some(_) => keys.indices(key),
    };
    let widths = if keys.value("dim_embed").is_some() { "dim_embed" } else { "embed_dim" };
    let norms = match keys.value("patch_prenorm") {
        None => vec![false, true, true, true],
        Some(value) => value.as_array().into_iter().flatten().map(|it| it == &json!(true)).collect(),
    };
    let lists = [
        ("depths", numbers("depths", [1, 1, 9, 1])?),
        (widths, numbers(widths, [128, 256, 512, 1024])?),
        ("num_heads", numbers("num_heads", [4, 8, 16, 32])?),
        ("num_groups", numbers("num_groups", [4, 8, 16, 32])?),
        ("patch_size", numbers("patch_size", [7, 3, 3, 3])?),
        ("patch_stride", numbers("patch_stride", [4, 2, 2, 2])?),
        ("patch_padding", numbers("patch_padding", [3, 1, 1, 1])?),
    ];
    let count = lists[0].1.len();
    if !(1..=16).contains(&count) || norms.len() != count {
        return Err(keys.inconsistent("patch_prenorm", format!("{norms:?}"), format!("depths has {count} stages")));
    }
    for (key, list) in &lists {
        let least = i64::from(*key != "patch_padding");
        if list.len() != count || list.iter().any(|it| !(least..=1 << 16).contains(it)) {
            let must = format!("must be {count} numbers from {least} on, as depths has");
            return Err(keys.inconsistent(key, format!("{list:?}"), must));
        }
    }
    let at = |list: usize, stage: usize| lists[list].1[stage];
    let stage = |number: usize| {
        let width = at(1, number);
        divides(keys, "num_heads", at(2, number), lists[1].0, width)?;
        divides(keys, "num_groups", at(3, number), lists[1].0, width)?;
        Ok(StageConfig {
            depth: at(0, number).min(4096),
            width,
            num_heads: at(2, number),
            num_groups: at(3, number),
            kernel: at(4, number),
            stride: at(5, number),
            padding: at(6, number),
            norm_first: norms[number],
        })
    };
    (0..count).map(stage).collect()
}

/// Reads a ratio of widths; 4 where the key is missing.
///
/// # Errors
/// It is no number between 0.01 and 64.
pub(super) fn ratio(keys: &Keys<'_>, key: &str) -> Result<f64> {
    let ratio = keys.number_or(key)?.unwrap_or(4.0);
    match (0.01..=64.0).contains(&ratio) {
        true => Ok(ratio),
        false => Err(keys.inconsistent(key, ratio, "must be between 0.01 and 64")),
    }
}
