//! What the `config.json` of a policy says of its samples: lerobot's keys.

use serde_json::{Map, Value as Json};

use crate::config::Normalization;
use crate::data::card::policy_vocabulary;

/// The image tower of PaliGemma cuts squares of this side.
const PATCH: usize = 14;

/// Which policy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Groot,
    Pi0,
    Pi05,
}

/// What samples of a policy look like.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    pub family: Family,
    /// Steps of a chunk of actions.
    pub horizon: usize,
    pub max_state_dim: usize,
    pub max_action_dim: usize,
    /// The numbers of a state and of an action that the config says; those of the data may be fewer.
    pub state_dim: usize,
    pub action_dim: usize,
    /// Rows and columns of a picture.
    pub resolution: [usize; 2],
    pub patch: usize,
    /// Names of its cameras, in order; those that the config adds as always empty are left out. A policy that has none goes by
    /// state and prompt alone.
    pub cameras: Vec<String>,
    /// Tokens of a prompt at most; more are cut off.
    pub max_prompt: usize,
    pub state_normalization: Normalization,
    pub action_normalization: Normalization,
    pub relative: bool,
    pub exclude: Vec<String>,
    /// Names of the numbers of an action, which `exclude` goes by.
    pub action_names: Vec<String>,
    /// The state is a column, not digits of the prompt.
    pub state_token: bool,
    /// The id that stands for a feature of a picture.
    pub placeholder: i64,
    /// The embodiment of all samples, of a policy that has several: its name, and its number.
    pub embodiment: Option<(String, i64)>,
}

impl PolicySpec {
    /// # Errors
    /// The reason: a policy that is not implemented, a key that is missing, wrong or not implemented.
    pub fn of(config: &Json) -> Result<Self, String> {
        let family = match config["type"].as_str() {
            Some("pi05") => Family::Pi05,
            Some("pi0") => Family::Pi0,
            _ => return Err(format!("`type` is {}, and samples are made for pi05, pi0 and groot", config["type"])),
        };
        only(config, "n_obs_steps", &[Json::Null, 1.into()])?;
        let size = |key: &str, default: usize| size(config, key, default);
        let resolution = match &config["image_resolution"] {
            Json::Null => [224, 224],
            sides => match [&sides[0], &sides[1]].map(Json::as_u64) {
                [Some(rows), Some(columns)] if (1..=4096).contains(&rows) && (1..=4096).contains(&columns) => {
                    [rows as usize, columns as usize]
                }
                _ => return Err(format!("`image_resolution` is {sides}, not two sides")),
            },
        };
        let patch = match &config["sizes"]["vision"]["patch_size"] {
            Json::Null => PATCH,
            side => side
                .as_u64()
                .filter(|side| (1..=512).contains(side))
                .ok_or_else(|| format!("`sizes.vision.patch_size` is {side}"))? as usize,
        };
        let (max_state_dim, max_action_dim) = (size("max_state_dim", 32)?, size("max_action_dim", 32)?);
        let cameras = cameras(config)?;
        let width = |holder: &str, key: &str, most: usize| width(config, holder, key, most);
        let mode = |kind: &str, default: Normalization| match config["normalization_mapping"][kind].as_str() {
            None => Ok(default),
            Some(name) => named(name).ok_or_else(|| format!("`normalization_mapping.{kind}` is {name:?}")),
        };
        let default = if family == Family::Pi05 { Normalization::Quantiles } else { Normalization::MeanStd };
        if mode("VISUAL", Normalization::Identity)? != Normalization::Identity {
            return Err("`normalization_mapping.VISUAL` is not IDENTITY, which is not implemented".to_owned());
        }
        let texts = |key: &str| match &config[key] {
            Json::Null => Ok(None),
            Json::Array(names) => Ok(Some(names.iter().map(|it| it.as_str().unwrap_or_default().to_owned()).collect())),
            other => Err(format!("`{key}` is {other}, not a list of names")),
        };
        let state_token = match &config["sizes"]["state_token"] {
            Json::Null => family == Family::Pi0,
            Json::Bool(value) => *value || family == Family::Pi0,
            other => return Err(format!("`sizes.state_token` is {other}")),
        };
        Ok(Self {
            family,
            horizon: size("chunk_size", 50)?,
            max_state_dim,
            max_action_dim,
            state_dim: width("input_features", "observation.state", max_state_dim)?,
            action_dim: width("output_features", "action", max_action_dim)?,
            resolution,
            patch,
            cameras,
            max_prompt: size("tokenizer_max_length", if family == Family::Pi05 { 200 } else { 48 })?,
            state_normalization: mode("STATE", default)?,
            action_normalization: mode("ACTION", default)?,
            relative: flag(config, "use_relative_actions")?,
            exclude: texts("relative_exclude_joints")?.unwrap_or_else(|| vec!["gripper".to_owned()]),
            action_names: texts("action_feature_names")?.unwrap_or_default(),
            state_token,
            placeholder: policy_vocabulary(config) - 1,
            embodiment: None,
        })
        .and_then(Self::checked)
    }

    fn checked(self) -> Result<Self, String> {
        let [rows, columns] = self.resolution;
        if rows % self.patch + columns % self.patch > 0 {
            return Err(format!("`image_resolution` {rows}×{columns} is not whole patches of {}", self.patch));
        }
        Ok(self)
    }

    /// Features of a picture, down and across.
    pub fn grid(&self) -> [usize; 2] {
        self.resolution.map(|side| side / self.patch)
    }
}

/// Keys of `input_features` of the type VISUAL; none only where the policy has a state to go by.
pub(super) fn cameras(config: &Json) -> Result<Vec<String>, String> {
    let features = match &config["input_features"] {
        Json::Null => &Map::new(),
        features => features.as_object().ok_or("`input_features` is no map")?,
    };
    let is_camera = |key: &&String| config["input_features"][key.as_str()]["type"] == "VISUAL";
    let is_real = |key: &&String| !key.contains("empty_camera");
    let cameras: Vec<String> = features.keys().filter(is_camera).filter(is_real).cloned().collect();
    match cameras.is_empty() && !features.contains_key("observation.state") {
        true => Err("`input_features` has neither a camera, of the type VISUAL, nor observation.state".to_owned()),
        false => Ok(cameras),
    }
}

/// A size under `key`.
pub(super) fn size(config: &Json, key: &str, default: usize) -> Result<usize, String> {
    match &config[key] {
        Json::Null => Ok(default),
        value => value
            .as_u64()
            .and_then(|it| usize::try_from(it).ok())
            .filter(|&it| (1..=1 << 16).contains(&it))
            .ok_or_else(|| format!("`{key}` is {value}, not a size")),
    }
}

/// The numbers of a feature, of which at most so many fit.
pub(super) fn width(config: &Json, holder: &str, key: &str, most: usize) -> Result<usize, String> {
    match &config[holder][key]["shape"][0] {
        Json::Null => Ok(most),
        value => match value.as_u64().map(|it| it as usize) {
            Some(width) if (1..=most).contains(&width) => Ok(width),
            _ => Err(format!("`{holder}.{key}.shape` is [{value}], and at most {most} numbers fit")),
        },
    }
}

pub(super) fn flag(config: &Json, key: &str) -> Result<bool, String> {
    match &config[key] {
        Json::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| format!("`{key}` is {value}, not true or false")),
    }
}

pub(super) fn only(config: &Json, key: &str, known: &[Json]) -> Result<(), String> {
    match known.contains(&config[key]) {
        true => Ok(()),
        false => Err(format!("`{key}` is {}, which is not implemented", config[key])),
    }
}

/// The normalization that lerobot has this word for.
pub fn named(name: &str) -> Option<Normalization> {
    NAMES.into_iter().find(|(word, _)| *word == name).map(|(_, mode)| mode)
}

/// The word that lerobot has for it.
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
