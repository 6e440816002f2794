//! An action space says what the numbers of an action mean to X-VLA: lerobot's `action_mode` (`policies/xvla/action_hub.py`).

use serde_json::Value as Json;

/// The weight of each number of an action in the loss, and the numbers that are grippers.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionSpace {
    /// The weight of each of the model's numbers in the loss of a step, beside the mean over those that count at all; 0: the number is
    /// there only because the model has it.
    pub weights: Vec<f32>,
    /// Numbers that are learned by cross-entropy: the model predicts the logit of what lies between 0 and 1.
    pub logits: Vec<usize>,
    /// Numbers that the model does not see in noised actions and states.
    pub hidden: Vec<usize>,
    /// Numbers that pass through a sigmoid at the end of sampling.
    pub squashed: Vec<usize>,
    /// True if only as many numbers count as the data's actions have (`auto`).
    pub by_data: bool,
}

/// Numbers of an action that have a part of the loss together.
struct Part {
    of: Vec<usize>,
    /// The factor of the mean of their errors.
    scale: f64,
}

impl ActionSpace {
    /// Reads `action_mode`, and for `auto` the width beside it.
    ///
    /// # Errors
    /// The reason, with the key: another space, or no width.
    pub fn of(config: &Json) -> Result<Self, String> {
        let mode = match &config["action_mode"] {
            Json::Null => "ee6d".to_owned(),
            Json::String(mode) => mode.to_lowercase(),
            other => return Err(format!("`action_mode` is {other}, not a name")),
        };
        let part = |of: &[usize], scale: f64| Part { of: of.to_vec(), scale };
        let arms = |gripper: f64| {
            let position = [part(&[0, 1, 2], 500.0), part(&[10, 11, 12], 500.0)];
            let rotation = [3, 13].map(|first| Part { of: (first..first + 6).collect(), scale: 10.0 });
            position.into_iter().chain(rotation).chain([part(&[9, 19], gripper)]).collect::<Vec<_>>()
        };
        let first = |count: usize| Part { of: (0..count).collect(), scale: 1.0 };
        match mode.as_str() {
            "ee6d" => Ok(Self::new(20, &arms(1.0)).with_grippers(&[9, 19], true)),
            "agibot_ee6d" => Ok(Self::new(20, &arms(10.0))),
            "joint" => {
                let joints = Part { of: (0..14).filter(|at| ![6, 13].contains(at)).collect(), scale: 1.0 };
                Ok(Self::new(14, &[joints, part(&[6, 13], 0.1)]).with_grippers(&[6, 13], true))
            }
            "franka_joint7" => Ok(Self::new(20, &[first(7)])),
            "so101_bimanual" => {
                let arms = [Part { of: (0..6).collect(), scale: 1.0 }, Part { of: (6..12).collect(), scale: 1.0 }];
                let parts = arms.into_iter().chain([first(12), part(&[5, 11], 1.0)]).collect::<Vec<_>>();
                Ok(Self::new(20, &parts).with_grippers(&[5, 11], false))
            }
            "auto" => {
                let most = match &config["max_action_dim"] {
                    Json::Null => 20,
                    value => {
                        size(value).ok_or_else(|| format!("`max_action_dim` is {value}, not a size from 1 to 65536"))?
                    }
                };
                Ok(Self { by_data: true, ..Self::new(most, &[first(most)]) })
            }
            other => Err(format!(
                "`action_mode` is {other:?}; supported: ee6d, joint, agibot_ee6d, franka_joint7, so101_bimanual, auto"
            )),
        }
    }

    fn new(dim: usize, parts: &[Part]) -> Self {
        let mut each = vec![0.0; dim];
        for part in parts {
            part.of.iter().for_each(|&at| each[at] += part.scale / part.of.len() as f64);
        }
        let num_counted = each.iter().filter(|&&weight| weight > 0.0).count();
        let weights = each.into_iter().map(|weight| (weight * num_counted as f64) as f32).collect();
        Self { weights, logits: Vec::new(), hidden: Vec::new(), squashed: Vec::new(), by_data: false }
    }

    fn with_grippers(self, at: &[usize], by_logits: bool) -> Self {
        let logits = if by_logits { at.to_vec() } else { Vec::new() };
        Self { logits, hidden: at.to_vec(), squashed: at.to_vec(), ..self }
    }

    /// Numbers of an action of the model.
    pub fn dim(&self) -> usize {
        self.weights.len()
    }

    /// Returns whether a number counts in the loss, where the data's actions have `width` numbers.
    pub fn counts(&self, at: usize, width: usize) -> bool {
        if self.by_data { at < width } else { self.weights[at] > 0.0 }
    }
}

fn size(value: &Json) -> Option<usize> {
    value.as_u64().and_then(|it| usize::try_from(it).ok()).filter(|it| (1..=1 << 16).contains(it))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ActionSpace;

    /// The weights of a step are lerobot's means: of 1 everywhere they come to the sum of all scales.
    #[test]
    fn weights_are_those_of_the_parts() {
        for (mode, dim, num_counted, sum) in [
            ("ee6d", 20, 20, 1021.0),
            ("AGIBOT_ee6d", 20, 20, 1030.0),
            ("joint", 14, 14, 1.1),
            ("franka_joint7", 20, 7, 1.0),
            ("so101_bimanual", 20, 12, 4.0),
        ] {
            let space = ActionSpace::of(&json!({ "action_mode": mode })).unwrap();
            let counted = (0..space.dim()).filter(|&at| space.counts(at, 7)).count();
            assert_eq!((space.dim(), counted), (dim, num_counted), "{mode}");
            let mean = space.weights.iter().map(|&it| f64::from(it)).sum::<f64>() / counted as f64;
            assert!((mean / sum - 1.0).abs() < 1e-6, "{mode}: {mean}");
        }
        let auto = ActionSpace::of(&json!({"action_mode": "auto", "max_action_dim": 8})).unwrap();
        assert_eq!((&auto.weights, auto.counts(5, 6), auto.counts(6, 6)), (&vec![1.0; 8], true, false));
        assert!(auto.hidden.is_empty() && auto.squashed.is_empty());
    }

    #[test]
    fn other_spaces_are_named() {
        let error = |config| ActionSpace::of(&config).unwrap_err();
        assert!(error(json!({"action_mode": "wheel"})).contains(r#"`action_mode` is "wheel"; supported: ee6d"#));
        assert!(error(json!({"action_mode": "auto", "max_action_dim": "8"})).contains("`max_action_dim` is \"8\""));
    }
}
