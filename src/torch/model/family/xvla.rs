//! X-VLA (`XVLAPolicy` of lerobot): its `config.json` is lerobot's, with that of Florence-2 under `florence_config`, as transformers or
//! as the first release writes it.
//!
//! Dropout and stochastic depth are not computed: training goes through what the reference computes in eval mode. The data's notes
//! tell users so (`core/data/policy/xvla.rs`).

use std::sync::Arc;

use loongforge_core::data::policy::ActionSpace;
use loongforge_core::message::Tower;
use serde_json::{Value, json};

use super::bart::{self, divides};
use super::davit::{self, ratio};
use crate::model::bart::BartConfig;
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::davit::DavitConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::policy::{PolicyFamily, PolicyOptions};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;
use crate::model::xvla::{FrozenParts, XvlaConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The prefix of the names of all parameters.
const PREFIX: &str = "model.";
const TOWER: &str = "model.vlm.vision_tower.";
const PROJECTOR: &str = "model.vlm.multi_modal_projector.";
const LANGUAGE: &str = "model.vlm.language_model.";

/// Reads the `config.json` of `XVLAPolicy` of lerobot.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let (config, tower) = parts(keys)?;
    let encoder = ModelTower { tower: Tower::Vision, family: Arc::new(tower), placeholders: vec![config.image_token] };
    Ok(ModelConfig {
        model_type: "xvla".into(),
        foundation: Arc::new(PolicyFamily::new(config)),
        low_noise: None,
        towers: Towers::new(vec![encoder]),
        tree: TreeNames::default(),
        carried: CarriedParts::default(),
    })
}

/// Returns the policy and its tower.
fn parts(keys: &Keys<'_>) -> Result<(XvlaConfig, DavitConfig)> {
    refuse_others(keys)?;
    let florence = keys.section("florence_config")?;
    florence.only("tie_word_embeddings", &[json!(true)])?;
    let frozen = keys.flag_or("freeze_vision_encoder")?.unwrap_or(false);
    let tower = davit::read(&florence.section("vision_config")?, [TOWER, PROJECTOR], frozen)?;
    let language = bart::read(&florence.section("text_config")?, LANGUAGE, tower.outputs)?;
    Ok((policy(keys, language, &tower)?, tower))
}

/// Returns the policy that a `config.json` describes.
pub(in crate::model) fn config_of(config: &Value) -> Result<XvlaConfig> {
    parts(&Keys::new(config)).map(|(policy, _)| policy)
}

/// Refuses what lerobot's policy can do and this one cannot.
fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    keys.only("n_obs_steps", &[json!(1)])?;
    keys.only("dtype", &[json!("float32"), json!("bfloat16")])?;
    // Whether its folder has adapters the files say.
    keys.flag_or("use_peft")?;
    // With "longest", what a sample is depends on the others of its batch.
    keys.only("pad_language_to", &[json!("max_length")])
}

fn policy(keys: &Keys<'_>, language: BartConfig, tower: &DavitConfig) -> Result<XvlaConfig> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|value| value.unwrap_or(default));
    let whole = keys.filled(&json!({}));
    let space = ActionSpace::of(&whole);
    let mode = || keys.value("action_mode").map_or_else(|| "ee6d".to_owned(), Value::to_string);
    let space = space.map_err(|reason| keys.inconsistent("action_mode", mode(), reason))?;
    let width = size("hidden_size", 1024)?;
    let num_heads = size("num_heads", 16)?;
    divides(keys, "num_heads", num_heads, "hidden_size", width)?;
    let pixels = pixels(keys)?;
    let config = XvlaConfig {
        prefix: PREFIX.into(),
        image_token: language.vocab_size,
        language,
        view_features: features(keys, tower, pixels)?,
        num_views: num_views(keys)?,
        horizon: size("chunk_size", 32)?,
        state_dim: if flag("use_proprio", true)? { size("max_state_dim", 32)? } else { 0 },
        space,
        num_domains: size("num_domains", 30)?,
        num_prompts: keys.index_or("len_soft_prompts")?.unwrap_or(32),
        width,
        depth: size("depth", 24)?,
        num_heads,
        mlp_dim: inner(keys, "mlp_ratio", width)?,
        time_dim: size("dim_time", 32)?,
        max_rows: size("max_len_seq", 512)?,
        domain_maps: flag("use_hetero_proj", false)?,
        num_steps: size("num_denoising_steps", 10)?,
        frozen: FrozenParts {
            language: flag("freeze_language_encoder", false)?,
            transformer: !flag("train_policy_transformer", true)?,
            prompts: !flag("train_soft_prompts", true)?,
        },
        options: PolicyOptions::default(),
    };
    check_state(keys, &config)?;
    check_rows(keys, &config)?;
    Ok(config)
}

/// Grippers are hidden in states as well, so these must have their numbers.
fn check_state(keys: &Keys<'_>, config: &XvlaConfig) -> Result<()> {
    let last = config.space.hidden.iter().max().map_or(-1, |at| *at as i64);
    match config.state_dim > last {
        true => Ok(()),
        false if config.state_dim == 0 => Err(keys.inconsistent(
            "use_proprio",
            false,
            "this action_mode masks numbers of the state, which must be there",
        )),
        false => Err(keys.inconsistent(
            "max_state_dim",
            config.state_dim,
            format!("this action_mode masks number {last} of the state, which must be there"),
        )),
    }
}

/// Both transformers have a position for each row.
fn check_rows(keys: &Keys<'_>, config: &XvlaConfig) -> Result<()> {
    let prompt = keys.size_or("tokenizer_max_length")?.unwrap_or(64);
    let encoded = config.view_features + prompt;
    let rows = config.horizon + encoded + (config.num_views - 1).saturating_mul(config.view_features);
    if rows > config.max_rows {
        let must = format!("actions, prompt and pictures take {rows} rows");
        return Err(keys.inconsistent("max_len_seq", config.max_rows, must));
    }
    if encoded > config.language.max_positions {
        let must = format!("a picture and a prompt take {encoded} positions of text_config.max_position_embeddings");
        return Err(keys.inconsistent(
            "tokenizer_max_length",
            prompt,
            format!("{must} ({})", config.language.max_positions),
        ));
    }
    Ok(())
}

/// Returns the number of pictures of a sample: as many as lerobot's policy counts when it opens this config.
fn num_views(keys: &Keys<'_>) -> Result<i64> {
    let cameras = cameras(keys).len() as i64;
    let empty = keys.index_or("empty_cameras")?.unwrap_or(0);
    let most = keys.size_or("num_image_views")?.unwrap_or(0).max(cameras.saturating_add(empty));
    match most {
        0 => Err(keys.missing("num_image_views")),
        1..=64 => Ok(most),
        _ => Err(keys.inconsistent("num_image_views", most, "must be at most 64")),
    }
}

/// Returns the cameras of `input_features`.
fn cameras<'a>(keys: &Keys<'a>) -> Vec<&'a Value> {
    let features = keys.value("input_features").and_then(Value::as_object).into_iter().flatten();
    features.map(|(_, feature)| feature).filter(|feature| feature["type"] == "VISUAL").collect()
}

/// Returns the rows and columns of all pictures: `resize_imgs_with_padding`, or what all cameras have.
fn pixels(keys: &Keys<'_>) -> Result<[i64; 2]> {
    let checked = |key: &str, found: &[i64]| match found {
        [rows, columns] if (1..=4096).contains(rows) && (1..=4096).contains(columns) => Ok([*rows, *columns]),
        other => Err(keys.inconsistent(key, format!("{other:?}"), "must be rows and columns of at most 4096")),
    };
    if keys.value("resize_imgs_with_padding").is_some() {
        return checked("resize_imgs_with_padding", &keys.indices("resize_imgs_with_padding")?);
    }
    let sizes: Vec<Vec<i64>> = cameras(keys)
        .iter()
        .map(|camera| [1, 2].iter().filter_map(|at| camera["shape"][at].as_i64()).collect())
        .collect();
    match sizes.as_slice() {
        [] => Err(keys.missing("resize_imgs_with_padding")),
        [first, others @ ..] if others.iter().all(|other| other == first) => checked("input_features", first),
        _ => Err(keys.inconsistent(
            "resize_imgs_with_padding",
            "null",
            "the cameras of input_features have pictures of several sizes",
        )),
    }
}

/// Returns the number of features of a picture of this size.
fn features(keys: &Keys<'_>, tower: &DavitConfig, pixels: [i64; 2]) -> Result<i64> {
    let patch = tower.patch();
    let wrong = |must: String| Err(keys.inconsistent("resize_imgs_with_padding", format!("{pixels:?}"), must));
    if pixels.iter().any(|side| side % patch != 0) {
        return wrong(format!("rows and columns must be multiples of {patch}, the step of the first convolution"));
    }
    match tower.grid_of(pixels) {
        None => wrong("such pictures are smaller than a convolution".into()),
        Some([rows, columns]) if rows.max(columns) > tower.max_positions => {
            let most = tower.max_positions;
            wrong(format!("the last stage has {rows} x {columns} places, but there are only {most} x {most} positions"))
        }
        Some(_) => Ok(tower.num_features_of(pixels)),
    }
}

/// Returns the width between two maps, cut off as `int` does.
fn inner(keys: &Keys<'_>, key: &str, width: i64) -> Result<i64> {
    Ok((width as f64 * ratio(keys, key)?) as i64)
}

#[cfg(test)]
#[path = "xvla_tests.rs"]
mod tests;
