//! The description of a policy's samples that its `config.json` gives with lerobot's keys.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::embodiments::Groot;
use super::fastwam::Frames;
use super::pictures::PictureSpec;
use super::prompt::PromptSpec;
use super::xvla::Rules;
use crate::config::Normalization;
use crate::data::card::{SMOLVLA, policy_vocabulary};

/// The tokenizer of actions that lerobot's config of Pi0-FAST names.
const ACTION_TOKENIZER: &str = "lerobot/fast-action-tokenizer";
/// The tokens of PaliGemma's vocabulary, the last ones, that stand for segments of pictures.
const SKIP_TOKENS: usize = 128;
/// Patches a side that become one feature of SmolVLM2.
const SMOL_MERGE: usize = 4;

/// lerobot's names of a state and of actions.
pub const STATE: &str = "observation.state";
pub const ACTION: &str = "action";

/// The kind of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    FastWam,
    Groot,
    Pi0,
    Pi05,
    Pi0Fast,
    SmolVla,
    Xvla,
}

/// The values of a policy where its config does not give them.
struct Published {
    /// The key of a picture's sides, and the side.
    sides: &'static str,
    side: usize,
    /// The side of the squares that its image tower cuts.
    patch: usize,
    horizon: usize,
    max_prompt: usize,
    normalization: Normalization,
    /// The tokenizer that lerobot's own files name.
    tokenizer: &'static str,
}

impl Family {
    fn published(self) -> Published {
        let pi = Published {
            sides: "image_resolution",
            side: 224,
            patch: 14,
            horizon: 50,
            max_prompt: 48,
            normalization: Normalization::MeanStd,
            tokenizer: "google/paligemma-3b-pt-224",
        };
        match self {
            // Configs of GR00T and FastWAM are read by files of their own.
            Self::Pi0 | Self::Groot | Self::FastWam => pi,
            Self::Pi0Fast => Published { max_prompt: 200, ..pi },
            Self::Pi05 => Published { max_prompt: 200, normalization: Normalization::Quantiles, ..pi },
            Self::SmolVla => Published {
                // Columns and rows, which are alike.
                sides: "resize_imgs_with_padding",
                side: 512,
                patch: 16,
                tokenizer: "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
                ..pi
            },
            Self::Xvla => Published {
                horizon: 32,
                max_prompt: 64,
                normalization: Normalization::Identity,
                tokenizer: "facebook/bart-large",
                ..pi
            },
        }
    }
}

/// The action tokens of a policy that learns such.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActionTokenSpec {
    /// The tokenizer that lerobot's processors name.
    pub tokenizer: String,
    /// Ids at the end of the vocabulary, `placeholder` among them, that they leave free.
    pub skip: i64,
    /// Tokens at most that follow a prompt to be learned, or are written.
    pub max_tokens: usize,
    pub max_written: usize,
}

/// The description of a policy's samples.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    pub family: Family,
    /// Steps of a chunk of actions.
    pub horizon: usize,
    pub max_state_dim: usize,
    pub max_action_dim: usize,
    /// The numbers of a state and of an action that the config says; those of the data may be fewer.
    pub state_dim: usize,
    pub action_dim: usize,
    pub pictures: PictureSpec,
    /// Names of its cameras, in order; those that the config adds as always empty are left out. A policy that has none goes by
    /// state and prompt alone.
    pub cameras: Vec<String>,
    pub prompt: PromptSpec,
    pub state_normalization: Normalization,
    pub action_normalization: Normalization,
    /// Actions are relative to the state. GR00T's have scales of their own for each step then.
    pub relative: bool,
    pub exclude: Vec<String>,
    /// Names of the numbers of an action, which `exclude` goes by.
    pub action_names: Vec<String>,
    /// Groups of an action's numbers, with their places, where GR00T's `meta/modality.json` names them; they fill the action.
    pub groups: Vec<(String, Range<usize>)>,
    /// Steps behind the end of an episode are left out of the loss, where a run says nothing of them.
    pub masks_padding: bool,
    /// The state is a column, not digits of the prompt.
    pub state_token: bool,
    /// The id that stands for a feature of a picture.
    pub placeholder: i64,
    /// The tokens of actions; empty where it learns none.
    pub action_tokens: ActionTokenSpec,
    /// The rules of X-VLA alone.
    pub xvla: Option<Rules>,
    /// The rules of FastWAM alone.
    pub frames: Option<Frames>,
    /// The properties that samples of GR00T alone have.
    pub groot: Option<Groot>,
    /// The embodiment of all samples, of a policy that has several: the name that lerobot has for it, and its number.
    pub embodiment: Option<(String, i64)>,
    /// Embodiments that the policy has parameters for; 1: it tells none apart.
    pub num_embodiments: usize,
    /// The random changes of training pictures that the model's config tells of, key by key; a run makes those of its own config.
    pub told_changes: Vec<String>,
}

impl SampleSpec {
    /// # Errors
    /// The reason: a policy that is not implemented, a key that is missing, wrong or not implemented.
    pub fn of(config: &Json) -> Result<Self, String> {
        let family = family_of(config)?;
        let published = family.published();
        let is_smol = family == Family::SmolVla;
        let xvla = (family == Family::Xvla).then(|| Rules::of(config)).transpose()?;
        only(config, "n_obs_steps", &[Json::Null, 1.into()])?;
        let size = |key: &str, default: usize| size(config, key, default);
        let resolution = resolution(config, &published, xvla.as_ref())?;
        let [patch, merge] = blocks(config, &published, xvla.as_ref(), is_smol)?;
        let max_state_dim = size("max_state_dim", 32)?;
        let max_action_dim = match &xvla {
            Some(rules) => rules.space.dim(),
            None => size("max_action_dim", 32)?,
        };
        let cameras = cameras(config)?;
        let width = |holder: &str, key: &str, most: usize| width(config, holder, key, most);
        let mode = |kind: &str, default: Normalization| mode(config, kind, default);
        if mode("VISUAL", Normalization::Identity)? != Normalization::Identity {
            return Err("`normalization_mapping.VISUAL` is not IDENTITY, which is not implemented".to_owned());
        }
        let texts = |key: &str| texts(config, key);
        let state_token = state_token(config, family, xvla.as_ref())?;
        Ok(Self {
            family,
            horizon: size("chunk_size", published.horizon)?,
            max_state_dim,
            max_action_dim,
            state_dim: width("input_features", "observation.state", max_state_dim)?,
            action_dim: width("output_features", "action", max_action_dim)?,
            pictures: PictureSpec { resolution, patch, merge, in_corner: is_smol },
            cameras,
            prompt: prompt(config, family, &published)?,
            state_normalization: mode("STATE", published.normalization)?,
            action_normalization: mode("ACTION", published.normalization)?,
            relative: flag(config, "use_relative_actions")?,
            exclude: texts("relative_exclude_joints")?.unwrap_or_else(|| vec!["gripper".to_owned()]),
            action_names: texts("action_feature_names")?.unwrap_or_default(),
            groups: Vec::new(),
            masks_padding: is_smol,
            state_token,
            placeholder: policy_vocabulary(config) - 1,
            action_tokens: action_tokens(config, family)?,
            told_changes: Vec::new(),
            num_embodiments: xvla.as_ref().map_or(1, |rules| rules.num_domains.max(0) as usize),
            xvla,
            frames: None,
            groot: None,
            embodiment: None,
        })
        .and_then(Self::checked)
    }

    fn checked(self) -> Result<Self, String> {
        let PictureSpec { resolution: [rows, columns], patch, merge, .. } = self.pictures;
        let block = patch * merge;
        if rows % block + columns % block > 0 {
            return Err(format!(
                "pictures of {rows}×{columns} cannot be divided into blocks of {block}×{block} pixels"
            ));
        }
        if self.xvla.is_some() && self.cameras.is_empty() {
            return Err("`input_features` has no camera (type VISUAL), which X-VLA needs".to_owned());
        }
        Ok(self)
    }

    /// Returns whether actions have scales of their own at each step of a chunk.
    pub fn scales_by_step(&self) -> bool {
        self.family == Family::Groot && self.relative
    }
}

/// Keys of `input_features` of the type VISUAL; none only where the policy has a state to go by.
pub(super) fn cameras(config: &Json) -> Result<Vec<String>, String> {
    let features = match &config["input_features"] {
        Json::Null => &Map::new(),
        features => features.as_object().ok_or("`input_features` is not a map")?,
    };
    let is_camera = |key: &&String| config["input_features"][key.as_str()]["type"] == "VISUAL";
    let is_real = |key: &&String| !key.contains("empty_camera");
    let cameras: Vec<String> = features.keys().filter(is_camera).filter(is_real).cloned().collect();
    match cameras.is_empty() && !features.contains_key("observation.state") {
        true => Err("`input_features` has neither a camera (type VISUAL) nor observation.state".to_owned()),
        false => Ok(cameras),
    }
}

/// Returns a size under `key`.
pub(super) fn size(config: &Json, key: &str, default: usize) -> Result<usize, String> {
    match &config[key] {
        Json::Null => Ok(default),
        value => value
            .as_u64()
            .and_then(|it| usize::try_from(it).ok())
            .filter(|&it| (1..=1 << 16).contains(&it))
            .ok_or_else(|| format!("`{key}` is {value}, not a size from 1 to 65536")),
    }
}

/// Returns the number of values of a feature, which is at most `most`, and `most` where the config does not say.
pub(super) fn width(config: &Json, holder: &str, key: &str, most: usize) -> Result<usize, String> {
    // A checkpoint puts the data's own into it.
    if !(config[holder].is_null() || config[holder].is_object()) {
        return Err(format!("`{holder}` is not a map"));
    }
    match &config[holder][key]["shape"][0] {
        Json::Null => Ok(most),
        value => match value.as_u64().map(|it| it as usize) {
            Some(width) if (1..=most).contains(&width) => Ok(width),
            _ => Err(format!("`{holder}.{key}.shape` is [{value}], but at most {most} numbers fit")),
        },
    }
}

/// Returns a list of names.
pub(super) fn texts(config: &Json, key: &str) -> Result<Option<Vec<String>>, String> {
    match &config[key] {
        Json::Null => Ok(None),
        Json::Array(names) => Ok(Some(names.iter().map(|it| it.as_str().unwrap_or_default().to_owned()).collect())),
        other => Err(format!("`{key}` is {other}, not a list of names")),
    }
}

/// # Errors
/// Samples of such a policy are not made here.
fn family_of(config: &Json) -> Result<Family, String> {
    match config["type"].as_str() {
        Some("pi05") => Ok(Family::Pi05),
        Some("pi0") => Ok(Family::Pi0),
        Some("pi0_fast") => Ok(Family::Pi0Fast),
        Some(SMOLVLA) => Ok(Family::SmolVla),
        Some("xvla") => Ok(Family::Xvla),
        _ => {
            let own = &config["type"];
            Err(format!("`type` is {own}; supported: pi05, pi0, pi0_fast, smolvla, groot, xvla and fastwam"))
        }
    }
}

/// Rows and columns of the pictures that the tower takes.
///
/// # Errors
/// The config's are not two sides.
fn resolution(config: &Json, published: &Published, xvla: Option<&Rules>) -> Result<[usize; 2], String> {
    match (xvla, &config[published.sides]) {
        (Some(rules), _) => Ok(rules.resolution),
        (None, Json::Null) => Ok([published.side; 2]),
        (None, found) => match [&found[0], &found[1]].map(Json::as_u64) {
            [Some(rows), Some(columns)] if (1..=4096).contains(&rows) && (1..=4096).contains(&columns) => {
                Ok([rows as usize, columns as usize])
            }
            _ => Err(format!("`{}` is {found}, not two sides", published.sides)),
        },
    }
}

/// Returns the side of a patch, and that of the block of patches that becomes one feature.
///
/// # Errors
/// A side is no number from 1 to 512.
fn blocks(config: &Json, published: &Published, xvla: Option<&Rules>, is_smol: bool) -> Result<[usize; 2], String> {
    let side = |place: &str, default: usize| match config["sizes"].pointer(place) {
        None | Some(Json::Null) => Ok(default),
        Some(side) => match side.as_u64().filter(|side| (1..=512).contains(side)) {
            Some(side) => Ok(side as usize),
            None => Err(format!("`sizes{}` must be 1 to 512, found {side}", place.replace('/', "."))),
        },
    };
    let patch = match xvla {
        Some(rules) => rules.patch,
        None => side("/vision/patch_size", published.patch)?,
    };
    let merge = match (is_smol, config["sizes"].is_null()) {
        (false, _) => 1,
        (true, true) => SMOL_MERGE,
        (true, false) => side("/scale_factor", 2)?,
    };
    Ok([patch, merge])
}

/// Returns the normalization of a kind of feature.
///
/// # Errors
/// It is not implemented.
fn mode(config: &Json, kind: &str, default: Normalization) -> Result<Normalization, String> {
    match config["normalization_mapping"][kind].as_str() {
        None => Ok(default),
        Some(name) => {
            named(name).ok_or_else(|| format!("`normalization_mapping.{kind}` is {name:?}, which is not supported"))
        }
    }
}

/// Returns whether the state is a column, not digits of the prompt.
///
/// # Errors
/// The config's is no truth value.
fn state_token(config: &Json, family: Family, xvla: Option<&Rules>) -> Result<bool, String> {
    let has_digits = matches!(family, Family::Pi05 | Family::Pi0Fast);
    match (xvla, &config["sizes"]["state_token"]) {
        (Some(rules), _) => Ok(rules.reads_state),
        (None, Json::Null) => Ok(!has_digits),
        (None, Json::Bool(value)) => Ok(*value || !has_digits),
        (None, other) => Err(format!("`sizes.state_token` must be true or false, found {other}")),
    }
}

/// # Errors
/// A key is not a size.
fn action_tokens(config: &Json, family: Family) -> Result<ActionTokenSpec, String> {
    let skip = match family {
        Family::Pi0Fast => size(config, "fast_skip_tokens", SKIP_TOKENS)?,
        // lerobot's config of Pi0.5 has no such key.
        _ => size(&config["sizes"], "fast_skip_tokens", SKIP_TOKENS)?,
    };
    Ok(ActionTokenSpec {
        tokenizer: config["action_tokenizer_name"].as_str().unwrap_or(ACTION_TOKENIZER).to_owned(),
        skip: skip as i64,
        max_tokens: size(config, "max_action_tokens", 256)?,
        max_written: size(config, "max_decoding_steps", 256)?,
    })
}

/// # Errors
/// Its length is not a size, or its padding is not implemented.
fn prompt(config: &Json, family: Family, published: &Published) -> Result<PromptSpec, String> {
    let tokenizer = match family {
        Family::SmolVla => config["vlm_model_name"].as_str(),
        Family::Pi0Fast => config["text_tokenizer_name"].as_str(),
        _ => None,
    };
    Ok(PromptSpec {
        max_tokens: size(config, "tokenizer_max_length", published.max_prompt)?,
        padding: padding(config, family == Family::SmolVla)?,
        tokenizer: tokenizer.unwrap_or(published.tokenizer).to_owned(),
    })
}

/// Returns how prompts are padded: `longest` or `max_length`.
///
/// # Errors
/// It is not implemented.
fn padding(config: &Json, is_smol: bool) -> Result<String, String> {
    match (is_smol, &config["pad_language_to"]) {
        (true, Json::Null) => Ok("longest".to_owned()),
        (true, Json::String(padding)) if ["longest", "max_length"].contains(&padding.as_str()) => Ok(padding.clone()),
        (true, other) => Err(format!("`pad_language_to` is {other}, not longest or max_length")),
        (false, _) => Ok("max_length".to_owned()),
    }
}

/// Returns a truth value; false where the key is missing or null.
///
/// # Errors
/// It is another value.
pub(super) fn flag(config: &Json, key: &str) -> Result<bool, String> {
    match &config[key] {
        Json::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| format!("`{key}` is {value}, not true or false")),
    }
}

/// # Errors
/// The value of a key is none of `known`.
pub(super) fn only(config: &Json, key: &str, known: &[Json]) -> Result<(), String> {
    match known.contains(&config[key]) {
        true => Ok(()),
        false => Err(format!("`{key}` is {}, which is not implemented", config[key])),
    }
}

/// Returns the normalization that lerobot has this word for.
pub fn named(name: &str) -> Option<Normalization> {
    NAMES.into_iter().find(|(word, _)| *word == name).map(|(_, mode)| mode)
}

/// Returns the word that lerobot has for it.
pub fn name_of(mode: Normalization) -> &'static str {
    NAMES.into_iter().find(|(_, other)| *other == mode).map_or("IDENTITY", |(word, _)| word)
}

const NAMES: [(&str, Normalization); 5] = [
    ("IDENTITY", Normalization::Identity),
    ("MEAN_STD", Normalization::MeanStd),
    ("MIN_MAX", Normalization::MinMax),
    ("QUANTILES", Normalization::Quantiles),
    ("QUANTILE10", Normalization::Quantile10),
];
