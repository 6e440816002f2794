//! Low-rank adapters (LoRA) of one part of the model; names and defaults follow PEFT.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Source;
use crate::config::pattern::glob;
use crate::config::schema::JsonMap;

/// PEFT's name for every linear module except the output layer.
const ALL_LINEAR: &str = "all-linear";

/// Linear modules of a diffusion transformer outside attention and MLP: embeddings, modulation and output.
const OUTSIDE_OF_BLOCKS: [&str; 9] = [
    "patch_embedding",
    "condition_embedder",
    "time_text_embed",
    "img_in",
    "txt_in",
    "norm_out",
    "proj_out",
    "img_mod",
    "txt_mod",
];

/// Low-rank adapters (LoRA) on linear modules, whose own weights stay frozen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    /// Rank; `null`: from `adapter`, else 16.
    #[schemars(range(min = 1, max = 4096))]
    pub r: Option<usize>,
    /// The adapters' output is scaled by `alpha / r`; `null`: from `adapter`, else 32.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub alpha: Option<f64>,
    /// Dropout probability of the adapters' inputs in training; `null`: from `adapter`, else 0. What is dropped depends on which samples
    /// share a pack, and thus on the number of replicas.
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: Option<f64>,
    /// Modules that get adapters: suffixes of their names such as `q_proj`, whole names with `*`, or `all-linear`, which in a
    /// diffusion transformer means attention and MLP of the blocks; `null`: those of `adapter`, else `all-linear`.
    #[schemars(extend("x-one-or-more" = true))]
    pub target_modules: Option<Vec<String>>,
    /// Modules that get no adapters even if `target_modules` matches them.
    #[schemars(extend("x-one-or-more" = true))]
    pub exclude_modules: Vec<String>,
    /// Stacked parameters that get adapters, such as those of experts: suffixes of their names such as `experts.down_proj`, or
    /// whole names with `*`. `all-linear` does not include them.
    #[schemars(extend("x-one-or-more" = true))]
    pub target_parameters: Vec<String>,
    /// Ranks that override `r`, by suffixes of module names or whole names with `*`; the first match applies.
    pub rank_pattern: JsonMap,
    /// Alphas that override `alpha`, in the same way.
    pub alpha_pattern: JsonMap,
    /// Scale by `alpha / sqrt(r)` (rank-stabilized LoRA); must be the same in all parts. `null`: from `adapter`, else false.
    pub use_rslora: Option<bool>,
    /// Also train the norms of the weights' rows (DoRA, weight-decomposed adaptation); must be the same in all parts. `null`: from
    /// `adapter`, else false.
    pub use_dora: Option<bool>,
    /// LoRA+: learning rate of `B` divided by that of `A`, such as 16; other one-dimensional parameters that the part trains, such
    /// as DoRA's norms, use the rate of `B`. `null`: one rate for both.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub loraplus_lr_ratio: Option<f64>,
    /// Modules to train in full besides the adapters, by suffixes of their names such as `embed_tokens`, or whole names with `*`;
    /// those that `adapter` contains are trained too.
    #[schemars(extend("x-one-or-more" = true))]
    pub modules_to_save: Vec<String>,
    /// Adapter to continue from: directory or hub id of a PEFT or Diffusers adapter, or a `.safetensors` file in the layout of
    /// Diffusers, ComfyUI or kohya's scripts. For both transformers of Wan 2.2 also a directory with two files whose names end
    /// with `_high_noise.safetensors` and `_low_noise.safetensors`; one file whose name ends with the latter is of the low-noise one.
    pub adapter: Option<Source>,
}

impl Lora {
    /// Returns the rank of the adapters: `r`, by default 16.
    pub fn rank(&self) -> usize {
        self.r.unwrap_or(16)
    }

    /// Returns `alpha`, which is divided by the rank to scale the adapters; by default 32.
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(32.0)
    }

    /// Returns the rank of the adapter of this module or parameter.
    pub fn rank_of(&self, name: &str) -> usize {
        number_of(&self.rank_pattern, name).map_or(self.rank(), |rank| rank as usize)
    }

    /// Returns the alpha of the adapter of this module or parameter.
    pub fn alpha_of(&self, name: &str) -> f64 {
        number_of(&self.alpha_pattern, name).unwrap_or(self.alpha())
    }

    /// Returns whether the linear module `name` (`model.layers.0.self_attn.q_proj`) gets an adapter.
    pub fn targets(&self, name: &str) -> bool {
        let is = |pattern: &String| is_meant(pattern, name);
        let all = self.all_linear() && !name.ends_with("lm_head") && !is_outside_of_blocks(name);
        let named = self.target_modules.iter().flatten().any(is);
        (all || named) && !self.exclude_modules.iter().any(is) && !self.saves(name)
    }

    /// Returns whether the module at this path is trained in full, or is inside one that is.
    pub fn saves(&self, path: &str) -> bool {
        let ends = path.match_indices('.').map(|(dot, _)| dot).chain([path.len()]);
        ends.into_iter().any(|end| self.modules_to_save.iter().any(|pattern| is_meant(pattern, &path[..end])))
    }

    /// Returns whether the stacked parameter `name` (`model.layers.0.mlp.experts.down_proj`) gets adapters.
    pub fn targets_parameter(&self, name: &str) -> bool {
        let is = |pattern: &String| is_meant(pattern, name);
        self.target_parameters.iter().any(is) && !self.exclude_modules.iter().any(is)
    }

    /// Returns the first of `target_modules` that matches none of these modules.
    pub fn target_without_module<'a>(&self, modules: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let alone = |target: &String| Self { target_modules: Some(vec![target.clone()]), ..Self::default() };
        let absent = |target: &&String| !modules.clone().any(|module| alone(target).targets(module));
        self.target_modules.iter().flatten().find(absent).map(String::as_str)
    }

    /// Returns the first of `target_parameters` that matches none of these names.
    pub fn target_without_parameter<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        unmatched(self.target_parameters.iter(), names)
    }

    /// Returns the first pattern of `rank_pattern` or `alpha_pattern` that matches none of these modules, with its key.
    pub fn pattern_without_module<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Option<(&'static str, &str)> {
        let ranks = unmatched(self.rank_pattern.keys(), names.clone()).map(|pattern| ("rank_pattern", pattern));
        ranks.or_else(|| unmatched(self.alpha_pattern.keys(), names).map(|pattern| ("alpha_pattern", pattern)))
    }

    /// Returns the first of `modules_to_save` that matches none of these names.
    pub fn saved_without_module<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let alone = |pattern: &String| Self { modules_to_save: vec![pattern.clone()], ..Self::default() };
        let absent = |pattern: &&String| !names.clone().any(|name| alone(pattern).saves(name));
        self.modules_to_save.iter().find(absent).map(String::as_str)
    }

    /// Returns whether every linear module except the output layer is targeted.
    pub fn all_linear(&self) -> bool {
        self.target_modules.as_ref().is_none_or(|names| names.iter().any(|name| name == ALL_LINEAR))
    }
}

/// Returns whether this is a linear module of a diffusion transformer outside attention and MLP.
fn is_outside_of_blocks(name: &str) -> bool {
    let mut parts = name.split('.');
    let is_transformer = parts.next().is_some_and(|first| ["transformer", "transformer_2"].contains(&first));
    is_transformer && parts.any(|part| OUTSIDE_OF_BLOCKS.contains(&part))
}

fn number_of(patterns: &JsonMap, name: &str) -> Option<f64> {
    patterns.iter().find(|(pattern, _)| is_meant(pattern, name)).and_then(|(_, value)| value.as_f64())
}

/// Returns the first of these patterns that matches none of these names.
fn unmatched<'p, 'a>(
    mut patterns: impl Iterator<Item = &'p String>,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'p str> {
    patterns.find(|pattern| !names.clone().any(|name| is_meant(pattern, name))).map(String::as_str)
}

/// Returns whether a pattern matches `name`: as a suffix, or as a whole with `*`.
fn is_meant(pattern: &str, name: &str) -> bool {
    match pattern.contains(['*', '?']) {
        true => glob(pattern, name),
        false => name.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
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
    fn ranks_and_saved_modules_go_by_name() {
        let patterns = |text: &str| serde_json::from_str(text).unwrap();
        let lora = Lora {
            rank_pattern: patterns(r#"{"layers.0.*": 4, "q_proj": 2}"#),
            alpha_pattern: patterns(r#"{"v_proj": 3.5}"#),
            modules_to_save: vec!["embed_tokens".into(), "merger".into()],
            ..Lora::default()
        };
        let [q, v] = ["layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"];
        assert_eq!((lora.rank_of(q), lora.rank_of(v), lora.rank_of("layers.0.self_attn.q_proj")), (2, 16, 4));
        assert_eq!((lora.alpha_of(q), lora.alpha_of(v)), (32.0, 3.5));
        assert!(lora.saves("model.embed_tokens") && lora.saves("model.merger.mlp.0") && !lora.saves("model.mlp.0"));
        assert!(!lora.targets("model.merger.mlp.0") && lora.targets("model.mlp.0"));
        assert_eq!(lora.pattern_without_module([q].into_iter()), Some(("rank_pattern", "layers.0.*")));
        assert_eq!(lora.saved_without_module(["a.merger.b"].into_iter()), Some("embed_tokens"));
    }

    #[test]
    fn all_of_a_diffusion_transformer_are_those_of_its_blocks() {
        let lora = Lora::default();
        for name in [
            "transformer.blocks.0.attn2.to_out.0",
            "transformer_2.blocks.3.ffn.net.0.proj",
            "transformer.h.0.attn.c_proj",
        ] {
            assert!(lora.targets(name), "{name}");
        }
        for name in [
            "transformer.condition_embedder.time_proj",
            "transformer.transformer_blocks.0.img_mod.1",
            "transformer_2.proj_out",
        ] {
            assert!(!lora.targets(name), "{name}");
        }
        assert!(lora.targets("vision.proj_out"));
    }

    #[test]
    fn targets_are_endings_patterns_or_all() {
        let lora = |targets: &[&str], but: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Lora { target_modules: Some(owned(targets)), exclude_modules: owned(but), ..Lora::default() }
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
