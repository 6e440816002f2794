//! Settings of robot policies: what they read of the data, and how states and actions become the model's numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Robot policies: what is read of the data, and how states and actions are normalized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The model's name of each camera of the data, `{ observation.images.front: observation.images.base_0_rgb }`; cameras that
    /// are not named here keep their name.
    pub cameras: BTreeMap<String, String>,
    /// Key of the robot's state in the data.
    pub state: String,
    /// Key of the actions in the data.
    pub action: String,
    /// Normalization of states; `null`: as `normalization_mapping` of the model's config says.
    pub state_normalization: Option<Normalization>,
    /// Normalization of actions; `null`: as `normalization_mapping` of the model's config says.
    pub action_normalization: Option<Normalization>,
    /// Learn actions relative to the state of the sample; `null`: as `use_relative_actions` of the model's config says.
    pub relative_actions: Option<bool>,
    /// Names, or parts of names, of actions that stay absolute under `relative_actions`; `null`: as the model's config says.
    pub exclude: Option<Vec<String>>,
    /// Leave steps behind the end of the episode, which repeat its last action, out of the loss; `null`: as the model was
    /// published.
    pub mask_padding: Option<bool>,
    /// The number of the robot among those that the policy has parameters of its own for (X-VLA); `null`: as
    /// `policy_preprocessor.json` of the model says.
    pub domain: Option<usize>,
    /// The robots of the data by name, where it has several. A set belongs to the robot that its `robot_type` names, or whose
    /// `sets` has it. Checkpoints keep the statistics of each, and `--embodiment NAME` chooses one where a policy acts.
    pub embodiments: BTreeMap<String, Embodiment>,
    /// Which data normalizes each robot's states and actions; `null`: its own.
    pub statistics: Option<Statistics>,
    /// Frames at the end of each episode that begin no sample.
    pub drop_last_frames: usize,
    /// Noises and noise levels that each sample is trained with in one step; what the model sees is computed once for all.
    #[schemars(range(min = 1, max = 1024))]
    pub noise_draws: usize,
    /// Keep the gradient of the actions' loss out of the vision-language model (knowledge insulation); `token_weight` has the model
    /// learn from tokens instead.
    pub insulate: bool,
    /// Weight of the actions' loss where `token_weight` is above 0.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub flow_weight: f64,
    /// Weight of the next-token loss by which the vision-language model of Pi0.5 and Pi0 learns the same actions as FAST tokens, and
    /// the text of `text_target`; 0: no such loss.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub token_weight: f64,
    /// Folder of the FAST tokenizer, `tokenizer.json` and `processor_config.json`, of policies that learn action tokens; `null`: the
    /// folder `action_tokenizer` of the model.
    pub action_tokenizer: Option<PathBuf>,
    /// Key of texts in the data, such as the subtask, that the vision-language model learns to write before action tokens; `null`:
    /// none.
    pub text_target: Option<String>,
    /// Real-time chunking (Pi0.5): the first actions of a chunk, from none to so many as drawn for each sample, are given as they are
    /// and not learned, so that the policy can go on with a chunk whose begin is being executed. 0: none.
    #[schemars(range(max = 1024))]
    pub max_delay: usize,
    /// Random changes of training pictures, drawn for each sample; held-out pictures stay as they are. `null`: none.
    pub augment: Option<Augment>,
}

/// A robot of the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Embodiment {
    /// Its number among those that the policy has parameters of its own for (GR00T, X-VLA's domain); `null`: the published
    /// number of GR00T's embodiment of this name.
    pub number: Option<usize>,
    /// Sets of `data.train` and `eval` that were recorded with it, whatever their `robot_type`.
    pub sets: Vec<PathBuf>,
}

/// Which data normalizes the states and actions of a robot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Statistics {
    // That of the robot.
    Embodiment,
    // That of all robots together; their states and actions have equally many numbers.
    Merged,
}

/// Random changes of training pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Augment {
    /// The share of rows and columns that a crop at a random place keeps; it is enlarged again. 1: all.
    #[schemars(range(min = 0.1, max = 1.0))]
    pub crop: f64,
    /// Degrees by which a picture is turned to either side at most.
    #[schemars(range(min = 0.0, max = 180.0))]
    pub rotate: f64,
    /// How far the factor of brightness lies from 1 at most.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub brightness: f64,
    /// How far the factor of contrast lies from 1 at most.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub contrast: f64,
    /// How far the factor of saturation lies from 1 at most.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub saturation: f64,
    /// The part of the circle of hues by which colors are turned to either side at most.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub hue: f64,
    /// Cameras that are neither cropped nor turned, by parts of their names: those that move with the robot.
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

/// Normalization of a state or of actions, by the statistics of the training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Normalization {
    // None.
    Identity,
    // Mean 0 and deviation 1.
    MeanStd,
    // The minimum becomes -1, the maximum 1.
    MinMax,
    // The quantile 0.01 becomes -1, the quantile 0.99 becomes 1; what lies outside is not clipped.
    Quantiles,
    // The same with the quantiles 0.1 and 0.9.
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
