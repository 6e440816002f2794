//! A reader of what the `config.json` of GR00T says of its samples.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::embodiments::{Groot, NEW};
use super::groot_framing::Framing;
use super::pictures::PictureSpec;
use super::prompt::PromptSpec;
use super::scales::name_of;
use super::spec::{ActionTokenSpec, Family, SampleSpec, cameras, flag, only, size, texts, width};
use crate::config::Normalization;
use crate::data::card::{GrootVersion, ModelCard, groot_keys};
use crate::data::lerobot::Info;
use crate::data::processor::PolicyOptions;
use crate::message::Tower;

/// Keys of random changes of training pictures, which are of no use to a policy that acts.
const CHANGES: [&str; 3] = ["random_rotation_angle", "color_jitter_params", "extra_augmentation_config"];

/// The key of what lerobot does with actions behind the policy, and the embodiment for which it does something where the key is absent
/// or `auto`.
const DECODING: &str = "action_decode_transform";
const SIMULATED: &str = "libero_sim";

/// # Errors
/// The reason: a key that is missing, wrong or not implemented.
pub fn read(config: &Json) -> Result<SampleSpec, String> {
    only(config, "n_obs_steps", &[Json::Null, 1.into()])?;
    let keys = groot_keys(config);
    let relative = flag(config, "use_relative_actions")? || flag(keys, "use_relative_action")?;
    // Actions that a simulator has other signs for.
    only(config, DECODING, &[Json::Null, "auto".into()])?;
    let groot = Groot { version: GrootVersion::of(config).unwrap_or(GrootVersion::N1_7) };
    let framing = Framing::of(groot.version, keys)?;
    only(keys, "use_mean_std", &[Json::Null, false.into()])?;
    only(keys, "formalize_language", &[Json::Null, true.into()])?;
    let (horizon, dim) = groot.version.horizon_and_width();
    let (max_state_dim, max_action_dim) = (size(keys, "max_state_dim", dim)?, size(keys, "max_action_dim", dim)?);
    let placeholder = ModelCard::of(config).placeholder(Tower::Vision);
    let placeholder = placeholder.ok_or("`backbone_config` has no id of the placeholder token of pictures")?;
    let mut cameras =
        cameras(config).map_err(|reason| format!("{reason}; without the key, a run takes those of its data sets"))?;
    if cameras.is_empty() {
        return Err("`input_features` has no camera (type VISUAL)".to_owned());
    }
    // lerobot goes by the alphabet.
    cameras.sort();
    let tag = match &config["embodiment_tag"] {
        Json::Null => NEW,
        tag => tag.as_str().ok_or_else(|| format!("`embodiment_tag` is {tag}, not a name"))?,
    };
    // lerobot's default turns the gripper of this one around; NVIDIA's config has no such key, and its tag from a run.
    let is_auto = !config["type"].is_null() && config.get(DECODING).is_none_or(|own| own == "auto");
    if groot.version == GrootVersion::N1_7 && tag == SIMULATED && is_auto {
        return Err(format!(
            "`embodiment_tag` is {SIMULATED:?}, whose gripper lerobot turns around unless `{DECODING}` is null; that \
             is not implemented: set `{DECODING}` to null"
        ));
    }
    let spec = SampleSpec {
        family: Family::Groot,
        horizon: size(keys, "action_horizon", horizon)?,
        max_state_dim,
        max_action_dim,
        state_dim: width(config, "input_features", "observation.state", max_state_dim)?,
        action_dim: width(config, "output_features", "action", max_action_dim)?,
        pictures: PictureSpec::whole([framing.side(); 2]),
        cameras,
        prompt: PromptSpec { max_tokens: usize::MAX, ..PromptSpec::default() },
        state_normalization: Normalization::MinMax,
        action_normalization: Normalization::MinMax,
        relative,
        exclude: texts(config, "relative_exclude_joints")?.unwrap_or_default(),
        action_names: Vec::new(),
        groups: Vec::new(),
        masks_padding: true,
        state_token: true,
        placeholder,
        // It learns none.
        action_tokens: ActionTokenSpec::default(),
        xvla: None,
        groot: Some(groot),
        frames: None,
        embodiment: None,
        num_embodiments: size(keys, "max_num_embodiments", 32)?,
        told_changes: CHANGES
            .iter()
            .filter(|key| !keys[**key].is_null())
            .map(|key| format!("{key} {:.120}", keys[*key].to_string()))
            .collect(),
    };
    embodied(spec, groot, tag)
}

/// Works like [`read`], with the cameras of the sets that are trained on where the config names none: NVIDIA's never does.
///
/// # Errors
/// The reason: as [`read`], or a set cannot be read.
pub fn read_with(config: &Json, options: &PolicyOptions) -> Result<SampleSpec, String> {
    if !config["input_features"].is_null() || options.sets.is_empty() {
        return read(config);
    }
    let mut config = config.clone();
    for path in options.sets.iter().flat_map(|file| &file.path.0) {
        let info = Info::read(Path::new(path))
            .map_err(|error| format!("has no `input_features`, nor has the data: {error}"))?;
        for feature in info.cameras() {
            config["input_features"][name_of(&options.settings, &feature.key)] = json!({ "type": "VISUAL" });
        }
    }
    read(&config)
}

/// Puts the embodiment into `config`, and into one of lerobot's that nothing is done with its actions which is not done here.
pub fn put_embodiment(tag: &str, config: &mut Json) {
    config["embodiment_tag"] = tag.into();
    if tag == SIMULATED && !config["type"].is_null() {
        config[DECODING] = Json::Null;
    }
}

/// Puts cameras that `config` does not name into it.
pub fn put_cameras(spec: &SampleSpec, config: &mut Json) {
    let [rows, columns] = spec.pictures.resolution;
    for camera in &spec.cameras {
        let own = &mut config["input_features"][camera.as_str()];
        if own.is_null() {
            *own = json!({ "type": "VISUAL", "shape": [3, rows, columns] });
        }
    }
}

/// Returns `spec` with the embodiment `tag`.
///
/// # Errors
/// The reason: it is not known, or the policy has fewer.
fn embodied(spec: SampleSpec, groot: Groot, tag: &str) -> Result<SampleSpec, String> {
    let Some(number) = groot.published_number(tag) else {
        let known: Vec<&str> = groot.known().iter().map(|(name, _)| *name).collect();
        return Err(format!("`embodiment_tag` is {tag:?}; supported: {}", known.join(", ")));
    };
    numbered(spec, groot, tag, number)
}

/// Returns `spec` with the embodiment `name`, whose number is `number`. One that the published policy has no name for goes by that of a
/// new one.
///
/// # Errors
/// The reason: the policy has fewer.
pub fn numbered(spec: SampleSpec, groot: Groot, name: &str, number: i64) -> Result<SampleSpec, String> {
    let num_embodiments = spec.num_embodiments;
    let tag = if groot.published_number(name).is_some() { name } else { NEW };
    match usize::try_from(number).is_ok_and(|number| number < num_embodiments) {
        true => Ok(SampleSpec { embodiment: Some((tag.to_owned(), number)), ..spec }),
        false => {
            Err(format!("embodiment {name:?} has the number {number}, but `max_num_embodiments` is {num_embodiments}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lerobot_leaves_actions_of_a_trained_policy_alone() {
        let put = |tag: &str, mut config: Json| {
            put_embodiment(tag, &mut config);
            config
        };
        let expected = json!({ "type": "groot", "embodiment_tag": SIMULATED, DECODING: null });
        assert_eq!(put(SIMULATED, json!({ "type": "groot", DECODING: "auto" })), expected);
        assert_eq!(put(SIMULATED, json!({ "type": "groot" })), expected);
        assert_eq!(put(NEW, json!({ "type": "groot" })), json!({ "type": "groot", "embodiment_tag": NEW }));
        // NVIDIA's has no such key, and the checkpoint of a run on it is read.
        assert_eq!(put(SIMULATED, json!({})), json!({ "embodiment_tag": SIMULATED }));
        let camera = json!({ "type": "VISUAL", "shape": [3, 200, 300] });
        let published = json!({ "model_type": "Gr00tN1d7", "input_features": { "observation.images.front": camera } });
        let spec = read(&put(SIMULATED, published)).unwrap();
        assert_eq!(spec.embodiment, Some((SIMULATED.to_owned(), 2)));
    }
}
