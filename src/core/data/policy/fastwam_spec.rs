//! A reader of what the `config.json` of FastWAM says of its samples.

use serde_json::{Value as Json, json};

use super::fastwam::{Frames, IDS};
use super::pictures::PictureSpec;
use super::prompt::PromptSpec;
use super::spec::{ActionTokenSpec, Family, SampleSpec, cameras, named, only, size, width};
use crate::config::Normalization;

/// # Errors
/// The reason: a key that is missing, wrong or not implemented.
pub fn read(config: &Json) -> Result<SampleSpec, String> {
    only(config, "n_obs_steps", &[Json::Null, 1.into()])?;
    let window = [size(config, "num_video_frames", 33)?, size(config, "action_video_freq_ratio", 4)?];
    let mut frames = Frames::of(config, window)?;
    let mut cameras = cameras(config)?;
    if cameras.is_empty() {
        return Err("`input_features` has no camera (type VISUAL), which FastWAM needs".to_owned());
    }
    // lerobot goes by the alphabet.
    cameras.sort();
    let [rows, columns] = frames.size;
    if columns % cameras.len() > 0 {
        return Err(format!(
            "`image_size` has {columns} columns, which cannot be divided evenly among {} cameras",
            cameras.len()
        ));
    }
    let mode = |kind: &str| match config["normalization_mapping"][kind].as_str() {
        None => Ok(Normalization::MeanStd),
        Some(name) => {
            named(name).ok_or_else(|| format!("`normalization_mapping.{kind}` is {name:?}, which is not supported"))
        }
    };
    only(&config["normalization_mapping"], "VISUAL", &[Json::Null, "IDENTITY".into()])?;
    // Null is no default here: lerobot's policy then has no state.
    if config.get("proprio_dim").is_some_and(Json::is_null) {
        return Err("`proprio_dim` is null, but a policy without a state is not implemented".to_owned());
    }
    let state_dim = size(config, "proprio_dim", 8)?;
    let action_dim = size(config, "action_dim", 7)?;
    frames.toggled = toggled(config, action_dim)?;
    Ok(SampleSpec {
        family: Family::FastWam,
        horizon: size(config, "action_horizon", 32)?,
        max_state_dim: state_dim,
        max_action_dim: action_dim,
        state_dim: width(config, "input_features", "observation.state", state_dim)?,
        action_dim: width(config, "output_features", "action", action_dim)?,
        pictures: PictureSpec::whole([rows, columns / cameras.len()]),
        cameras,
        prompt: PromptSpec { max_tokens: size(config, "tokenizer_max_len", 128)?, ..PromptSpec::default() },
        state_normalization: mode("STATE")?,
        action_normalization: mode("ACTION")?,
        relative: false,
        exclude: vec!["gripper".to_owned()],
        action_names: Vec::new(),
        groups: Vec::new(),
        masks_padding: true,
        state_token: true,
        placeholder: IDS[1],
        // It learns none.
        action_tokens: ActionTokenSpec::default(),
        xvla: None,
        frames: Some(frames),
        groot: None,
        embodiment: None,
        num_embodiments: 1,
        told_changes: Vec::new(),
    })
}

/// Returns the numbers of an action that become signs when the policy acts: those below 0 count from the last one.
fn toggled(config: &Json, action_dim: usize) -> Result<Vec<usize>, String> {
    let key = "toggle_action_dimensions";
    let all = match &config[key] {
        Json::Null => return Ok(Vec::new()),
        own => own.as_array().and_then(|all| all.iter().map(Json::as_i64).collect::<Option<Vec<i64>>>()),
    };
    let all = all.ok_or_else(|| format!("`{key}` is {}, not whole numbers", config[key]))?;
    let place = |at: i64| {
        let place = if at < 0 { at + action_dim as i64 } else { at };
        let place = usize::try_from(place).ok().filter(|place| *place < action_dim);
        place.ok_or_else(|| format!("`{key}` has {at}, but an action has {action_dim} numbers"))
    };
    all.into_iter().map(place).collect()
}

/// Puts the sizes of pictures into `config`: lerobot expects those that lie side by side.
pub fn put_cameras(spec: &SampleSpec, config: &mut Json) {
    let [rows, columns] = spec.pictures.resolution;
    for camera in &spec.cameras {
        config["input_features"][camera.as_str()] = json!({ "type": "VISUAL", "shape": [3, rows, columns] });
    }
}
