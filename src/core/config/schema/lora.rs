//! Low-rank adapters of one part of the model; names and defaults as in PEFT.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Source;
use crate::config::pattern::glob;

/// PEFT's word for every linear module but the output layer.
const ALL_LINEAR: &str = "all-linear";

/// Low-rank adapters on linear modules, whose own weights are kept as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    /// Rank.
    #[schemars(range(min = 1, max = 4096))]
    pub r: usize,
    /// The adapters' output is scaled by `alpha / r`.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub alpha: f64,
    /// Share of the adapters' inputs that is dropped in training.
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
    /// Modules that get adapters: endings of their names such as `q_proj`, whole names with `*`, or `all-linear`.
    #[schemars(extend("x-one-or-more" = true))]
    pub target_modules: Vec<String>,
    /// Modules that get none though `target_modules` names them.
    #[schemars(extend("x-one-or-more" = true))]
    pub exclude_modules: Vec<String>,
    /// Stacked parameters that get adapters, such as those of experts: endings of their names such as
    /// `experts.down_proj`, or whole names with `*`. `all-linear` does not mean them.
    #[schemars(extend("x-one-or-more" = true))]
    pub target_parameters: Vec<String>,
    /// Directory or hub id of a PEFT adapter to go on from.
    pub adapter: Option<Source>,
}

impl Lora {
    /// Whether the linear module `name` (`model.layers.0.self_attn.q_proj`) gets an adapter.
    pub fn targets(&self, name: &str) -> bool {
        let is = |pattern: &String| is_meant(pattern, name);
        let all = self.all_linear() && !name.ends_with("lm_head");
        (all || self.target_modules.iter().any(is)) && !self.exclude_modules.iter().any(is)
    }

    /// Whether the stacked parameter `name` (`model.layers.0.mlp.experts.down_proj`) gets adapters.
    pub fn targets_parameter(&self, name: &str) -> bool {
        let is = |pattern: &String| is_meant(pattern, name);
        self.target_parameters.iter().any(is) && !self.exclude_modules.iter().any(is)
    }

    /// The first of `target_modules` that names none of these.
    pub fn target_without_module<'a>(&self, modules: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let alone = |target: &String| Self {
            target_modules: vec![target.clone()],
            exclude_modules: Vec::new(),
            ..self.clone()
        };
        let absent = |target: &&String| !modules.clone().any(|module| alone(target).targets(module));
        self.target_modules.iter().find(absent).map(String::as_str)
    }

    /// The first of `target_parameters` that names none of these.
    pub fn target_without_parameter<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let absent = |target: &&String| !names.clone().any(|name| is_meant(target, name));
        self.target_parameters.iter().find(absent).map(String::as_str)
    }

    /// Whether every linear module but the output layer is meant.
    pub fn all_linear(&self) -> bool {
        self.target_modules.iter().any(|name| name == ALL_LINEAR)
    }
}

/// Whether a pattern means `name`: it is an ending of it, or matches it with its `*`.
fn is_meant(pattern: &str, name: &str) -> bool {
    match pattern.contains(['*', '?']) {
        true => glob(pattern, name),
        false => name.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
    }
}

impl Default for Lora {
    fn default() -> Self {
        Self {
            r: 16,
            alpha: 32.0,
            dropout: 0.0,
            target_modules: vec![ALL_LINEAR.to_owned()],
            exclude_modules: Vec::new(),
            target_parameters: Vec::new(),
            adapter: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacked_parameters_are_meant_by_name_alone() {
        let lora = Lora { target_parameters: vec!["experts.down_proj".to_owned()], ..Lora::default() };
        let [down, up] = ["down_proj", "gate_up_proj"].map(|name| format!("model.layers.0.mlp.experts.{name}"));
        assert!(lora.targets_parameter(&down) && !lora.targets_parameter(&up));
        assert_eq!(lora.target_without_parameter([down.as_str()].into_iter()), None);
        assert_eq!(lora.target_without_parameter([up.as_str()].into_iter()), Some("experts.down_proj"));
    }

    #[test]
    fn targets_are_endings_patterns_or_all() {
        let lora = |targets: &[&str], but: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Lora { target_modules: owned(targets), exclude_modules: owned(but), ..Lora::default() }
        };
        let q = "model.layers.0.self_attn.q_proj";
        assert!(lora(&["q_proj"], &[]).targets(q) && !lora(&["proj"], &[]).targets(q));
        assert!(lora(&["self_attn.q_proj"], &[]).targets(q) && lora(&["model.layers.*.self_attn.*"], &[]).targets(q));
        assert!(lora(&["all-linear"], &[]).targets(q) && !lora(&["all-linear"], &["q_proj"]).targets(q));
        assert!(
            !lora(&["all-linear"], &[]).targets("lm_head") && lora(&["all-linear", "lm_head"], &[]).targets("lm_head")
        );
    }
}
