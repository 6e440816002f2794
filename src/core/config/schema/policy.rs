//! Settings of robot policies: what is read from the data, and how states and actions are normalized.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Robot policies: what is read from the data, and how states and actions are normalized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The model's name for each camera of the data, `{ observation.images.front: observation.images.base_0_rgb }`; cameras not
    /// listed keep their names unless a listed one takes the name.
    pub cameras: BTreeMap<String, String>,
    /// Key of the robot's state in the data.
    pub state: String,
    /// Key of the actions in the data.
    pub action: String,
    /// Normalization of states; `null`: from `normalization_mapping` in the model's config.
    pub state_normalization: Option<Normalization>,
    /// Normalization of actions; `null`: from `normalization_mapping` in the model's config.
    pub action_normalization: Option<Normalization>,
    /// Learn actions relative to the sample's state; `null`: from `use_relative_actions` in the model's config.
    pub relative_actions: Option<bool>,
    /// Names, or parts of names, of actions that stay absolute under `relative_actions`; `null`: from the model's config.
    pub exclude: Option<Vec<String>>,
    /// Mask steps after the end of the episode, which repeat its last action, out of the loss; `null`: as in the published model.
    pub mask_padding: Option<bool>,
    /// Number of the robot, for policies with separate parameters per robot (X-VLA); `null`: from the model's
    /// `policy_preprocessor.json`.
    pub domain: Option<usize>,
    /// The robots in the data by name, if there are several. A data set belongs to the robot that its `robot_type` names, or that
    /// lists it in `sets`. Checkpoints keep each robot's statistics, and `--embodiment NAME` selects one at inference.
    pub embodiments: BTreeMap<String, Embodiment>,
    /// Which data the statistics for each robot's normalization come from; `null`: its own.
    pub statistics: Option<Statistics>,
    /// Number of frames at the end of each episode at which no sample starts.
    pub drop_last_frames: usize,
    /// Number of noises and noise levels that each sample is trained with per step; the observations are encoded once for all of
    /// them.
    #[schemars(range(min = 1, max = 1024))]
    pub noise_draws: usize,
    /// Stop the gradient of the action loss at the vision-language model (knowledge insulation); with `token_weight` the model
    /// learns from tokens instead.
    pub insulate: bool,
    /// Weight of the action loss if `token_weight` is above 0.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub flow_weight: f64,
    /// Weight of the next-token loss that trains the vision-language model of Pi0.5 and Pi0 on the same actions as FAST tokens, and
    /// on the text of `text_target`; 0: no such loss.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub token_weight: f64,
    /// Folder of the FAST tokenizer, `tokenizer.json` and `processor_config.json`, for policies that learn action tokens; `null`:
    /// the folder `action_tokenizer` of the model.
    pub action_tokenizer: Option<PathBuf>,
    /// Key of texts in the data, such as subtasks, that the vision-language model learns to write before action tokens; `null`:
    /// none.
    pub text_target: Option<String>,
    /// Real-time chunking (Pi0.5): maximum number of actions at the start of a chunk that are given and not learned, drawn for each
    /// sample, so that the policy can continue a chunk whose beginning is already being executed. 0: none.
    #[schemars(range(max = 1024))]
    pub max_delay: usize,
    /// Random augmentation of training pictures, drawn for each sample; held-out pictures are not changed. `null`: none.
    pub augment: Option<Augment>,
}

/// A robot in the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Embodiment {
    /// Its number, for policies with separate parameters per robot (GR00T, X-VLA's domain); `null`: the published number of GR00T's
    /// embodiment of this name.
    pub number: Option<usize>,
    /// Data sets of `data.train` and `eval` that were recorded with this robot, whatever their `robot_type`.
    pub sets: Vec<PathBuf>,
}

/// The data that the statistics for a robot's normalization come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Statistics {
    // The data of the robot.
    Embodiment,
    // The data of all robots together; their states and actions must have the same dimensions.
    Merged,
}

/// Random augmentation of training pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Augment {
    /// Fraction of rows and columns that a randomly placed crop keeps, before it is resized to the original size. 1: no crop.
    #[schemars(range(min = 0.1, max = 1.0))]
    pub crop: f64,
    /// Largest rotation in either direction, in degrees.
    #[schemars(range(min = 0.0, max = 180.0))]
    pub rotate: f64,
    /// Largest deviation of the brightness factor from 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub brightness: f64,
    /// Largest deviation of the contrast factor from 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub contrast: f64,
    /// Largest deviation of the saturation factor from 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub saturation: f64,
    /// Largest hue shift in either direction, as a fraction of the color circle.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub hue: f64,
    /// Cameras that are neither cropped nor rotated, by parts of their names: those that move with the robot.
    pub fixed_cameras: Vec<String>,
}

impl Default for Augment {
    fn default() -> Self {
        Self {
            crop: 1.0,
            rotate: 0.0,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            fixed_cameras: vec!["wrist".to_owned()],
        }
    }
}

/// Normalization of states or actions, by the statistics of the training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Normalization {
    // None.
    Identity,
    // To mean 0 and standard deviation 1.
    MeanStd,
    // The minimum maps to -1, the maximum to 1.
    MinMax,
    // The 0.01 quantile maps to -1, the 0.99 quantile to 1; values outside are not clipped.
    Quantiles,
    // The same with the 0.1 and 0.9 quantiles.
    Quantile10,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cameras: BTreeMap::new(),
            state: "observation.state".to_owned(),
            action: "action".to_owned(),
            state_normalization: None,
            action_normalization: None,
            relative_actions: None,
            exclude: None,
            mask_padding: None,
            domain: None,
            embodiments: BTreeMap::new(),
            statistics: None,
            drop_last_frames: 0,
            noise_draws: 1,
            insulate: false,
            flow_weight: 1.0,
            token_weight: 0.0,
            action_tokenizer: None,
            text_target: None,
            max_delay: 0,
            augment: None,
        }
    }
}
