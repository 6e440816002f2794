//! The keys of `model`: the model that is trained, its initial weights, and the parts of it that are trained.
//!
//! File readers elsewhere resolve the keys to one `config.json` and one folder per part.

use crate::message::{Tower, TowerPart, TowerSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Experts, JsonMap, Lora};
use crate::config::Source;
use crate::config::pattern::glob;

/// The model: a Hugging Face directory or hub id, a `config.json` given here, or a composition of parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Directory in Hugging Face layout (`config.json`, tokenizer, chat template, preprocessor config, weights), hub id
    /// `org/name[@revision]`, or folder of an object store, `s3://BUCKET/FOLDER`.
    pub load: Option<Source>,
    /// `load` the weights of `model.load` and of the parts' `load`, or start from `random` weights; a part's own `load` is always
    /// loaded.
    pub weights: Weights,
    /// The keys of a `config.json`, instead of the one in `model.load`.
    pub config: JsonMap,
    /// Keys of the model's `config.json` to replace.
    pub overrides: JsonMap,
    /// Directory or hub id of tokenizer, chat template and preprocessor config; `null`: `model.load`, else `model.foundation.load`.
    /// The preprocessor config comes from `model.image_encoder.load` if it has one; if there is none at either, from
    /// `model.audio_encoder.load`.
    pub tokenizer: Option<Source>,
    /// Enlarge the token embeddings if the tokenizer has more tokens.
    pub resize_embeddings: bool,
    /// Tensors in `model.load` to ignore, by name; `*` matches anything. Other tensors that the model does not have are an error.
    pub load_ignore: Vec<String>,
    /// The vision tower.
    pub image_encoder: Part,
    /// The projector from the vision tower's features to the width of the language model.
    pub image_projector: Part,
    /// The audio tower.
    pub audio_encoder: Part,
    /// The projector from the audio tower's features to the width of the language model.
    pub audio_projector: Part,
    /// The text tower: the encoder of T5, UMT5 or CLIP, or a language model whose hidden states are the features.
    pub text_encoder: Part,
    /// The projector from the text tower's states to the width of the language model.
    pub text_projector: Part,
    /// The text that the text tower reads, and which of its hidden states are the features.
    pub text: TextTower,
    /// The variational autoencoder whose latents a diffusion model generates. It is never trained.
    pub vae: Part,
    /// The language model or the diffusion transformer.
    pub foundation: Part,
    /// The frozen reference model of `train.preference`; its `load` defaults to `model.load`, else `model.foundation.load`. Of the
    /// other keys, only `recompute` and `frozen_precision` may be set.
    pub reference: Part,
    /// Diffusion models with two transformers: train `both`, each on its noise levels, or only the `high`-noise or `low`-noise one,
    /// with samples at its noise levels only; the other keeps its weights. `null`: both.
    pub experts: Option<Experts>,
    /// Multi-token prediction.
    pub mtp: Mtp,
    /// Mixture of experts.
    pub moe: Moe,
    /// The indexers of sparse attention.
    pub indexer: Indexer,
}

/// One part of the model: what it is, where its weights come from and how it is trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Part {
    /// The keys of this part's `config.json`, instead of those in the model's.
    pub config: JsonMap,
    /// Keys of this part's config to replace, wherever the config comes from.
    pub overrides: JsonMap,
    /// Directory or hub id of this part's weights. Without it and without `model.load`, the part is initialized randomly.
    pub load: Option<Source>,
    /// Freeze this part's weights; no gradient is computed for them. `null`: true for the autoencoder and the text and image towers
    /// of a diffusion model, else false.
    pub freeze: Option<bool>,
    /// Additional parameters to freeze, by their names in the checkpoint; `*` matches anything.
    pub freeze_patterns: Vec<String>,
    /// Parameters to train even if `freeze` or `freeze_patterns` match them.
    pub train_patterns: Vec<String>,
    /// Learning rates of trained parameters relative to the rate of their pool, by their names in the checkpoint, such as
    /// `"*.vlm.*": 0.1`; `*` matches anything. At most one pattern may match a parameter.
    pub lr_ratios: JsonMap,
    /// Segments whose activations are recomputed in the backward pass.
    pub recompute: Recompute,
    /// Train low-rank adapters instead of this part's weights; `null`: none.
    pub lora: Option<Lora>,
    /// Storage precision of frozen weights of this part's linear layers: `fp8_e4m3fn` (one scale per row), `nf4` (QLoRA's 4 bits in
    /// blocks of 64), `nf4_double` (with double quantization) or `int8` (per row, as LLM.int8 stores weights); they are cast to
    /// `train.precision` for use. `null`: `train.precision`.
    pub frozen_precision: Option<FrozenPrecision>,
}

/// Storage precision of frozen weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum FrozenPrecision {
    // 8 bits, 4 of them the exponent, with one scale per row of a weight.
    #[serde(rename = "fp8_e4m3fn")]
    Fp8E4m3fn,
    // 4 bits (QLoRA's NF4), with the largest magnitude of every 64 numbers of a row.
    #[serde(rename = "nf4")]
    Nf4,
    // `nf4` with the largest magnitudes stored in 8 bits: double quantization.
    #[serde(rename = "nf4_double")]
    Nf4Double,
    // 8 bits, with the largest magnitude of each row, as LLM.int8 stores weights.
    #[serde(rename = "int8")]
    Int8,
}

/// The input of a text tower, and which of its hidden states are used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TextTower {
    /// Directory or hub id of the tower's `tokenizer.json`; `null`: from `model.text_encoder.load`, or if that is null the model's
    /// tokenizer.
    pub tokenizer: Option<Source>,
    /// The text that the tower reads, with `{}` for the sample's text; `null`: from the model's `config.json`, else Qwen-Image's
    /// template for that model, else `{}`.
    pub template: Option<String>,
    /// Maximum length of a text in tokens, including the template; longer texts are truncated. `null`: from the model's
    /// `config.json`, else 546 for Qwen-Image, else the positions of CLIP's tower (77), else 512.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<usize>,
    /// Number of tokens at the beginning, such as a template's, whose states are dropped; `null`: from the model's `config.json`,
    /// else 34 for Qwen-Image, else 0.
    pub drop_tokens: Option<usize>,
    /// Hidden states to use, side by side, numbered as `hidden_states` in transformers: 0 is the embeddings, -1 the last layer
    /// after the final norm (also for CLIP, whose `hidden_states` are taken before it). `null`: from the model's `config.json`,
    /// else `[-1]`.
    pub layers: Option<Vec<i64>>,
}

/// Multi-token prediction: layers that predict tokens further ahead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mtp {
    /// Number of multi-token prediction layers to train; `null`: none, whatever the model's `config.json` says.
    #[schemars(range(max = 16))]
    pub num_layers: Option<usize>,
    /// Weight of their mean loss, added to the main loss.
    #[schemars(range(min = 0.0))]
    pub loss_weight: f64,
}

/// Load balancing of the routers of a mixture of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Moe {
    /// Weight of the load-balancing loss; `null`: from the model's `config.json`.
    #[schemars(range(min = 0.0))]
    pub aux_loss_coef: Option<f64>,
    /// Weight of the loss on the magnitude of the router logits (z-loss); `null`: from the model's `config.json`.
    #[schemars(range(min = 0.0))]
    pub z_loss_coef: Option<f64>,
    /// Update step of the routers' load-balancing biases, in models that have them; `null`: from the model's `config.json`, else 0.
    #[schemars(range(min = 0.0))]
    pub bias_update_rate: Option<f64>,
}

/// Training of the indexers of sparse attention (DeepSeek-V3.2, GLM-5), which select keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Indexer {
    /// Weight of the divergence between the indexers' scores and the attention, averaged over tokens; `null`: the indexers are not
    /// trained.
    #[schemars(range(min = 0.0))]
    pub loss_coef: Option<f64>,
    /// Learn from the attention to all keys instead of to the selected keys; no keys are selected meanwhile. Freeze the other
    /// parameters with `model.foundation.freeze` and `train_patterns`.
    pub warm_up: bool,
}

/// The source of the initial weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Weights {
    #[default]
    Load,
    Random,
}

/// The segments that are recomputed in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Recompute {
    #[default]
    None,
    All,
}

impl FrozenPrecision {
    /// Returns the bits per number, without scales.
    pub fn bits(self) -> u64 {
        match self {
            Self::Fp8E4m3fn | Self::Int8 => 8,
            Self::Nf4 | Self::Nf4Double => 4,
        }
    }
}

impl Model {
    /// Returns the source of tokenizer, chat template and preprocessor config.
    pub fn tokenizer_source(&self) -> Option<&Source> {
        self.tokenizer.as_ref().or(self.load.as_ref()).or(self.foundation.load.as_ref())
    }

    /// Returns the source of the reference model of `train.preference`, if a folder is given.
    pub fn reference_source(&self) -> Option<&Source> {
        self.reference.load.as_ref().or(self.load.as_ref()).or(self.foundation.load.as_ref())
    }

    /// Returns the folder with all weights that adapters are added to; `None`: they are random, or some are in the folder of a part.
    /// Only for a model that is settled.
    pub fn adapter_base(&self) -> Option<&Source> {
        let base = self.load.as_ref().or(self.foundation.load.as_ref());
        // Adapters of a diffusion model are those of its transformer.
        if self.vae.freeze.is_some() || self.is_foundation_alone() {
            return base;
        }
        let is_kept =
            |part: &Part| part.freeze == Some(true) || part.lora.is_some() || !part.freeze_patterns.is_empty();
        let is_elsewhere = |part: &Part| part.load.is_some() && part.load.as_ref() != base && is_kept(part);
        self.load.as_ref().filter(|_| !self.parts().iter().any(|(_, part)| is_elsewhere(part)))
    }

    /// Returns whether the config sets any key of the reference model.
    pub fn names_reference(&self) -> bool {
        Part { freeze: self.reference.freeze.filter(|freeze| !freeze), ..self.reference.clone() } != Part::default()
    }

    /// Returns the parts with their keys, without the reference model.
    pub fn parts(&self) -> [(&'static str, &Part); 8] {
        [
            ("model.image_encoder", &self.image_encoder),
            ("model.image_projector", &self.image_projector),
            ("model.audio_encoder", &self.audio_encoder),
            ("model.audio_projector", &self.audio_projector),
            ("model.text_encoder", &self.text_encoder),
            ("model.text_projector", &self.text_projector),
            ("model.vae", &self.vae),
            ("model.foundation", &self.foundation),
        ]
    }

    /// Returns what the config says of a part of a tower, with its key.
    pub fn tower_part(&self, tower: Tower, part: TowerPart) -> (&'static str, &Part) {
        let [image_encoder, image_projector, audio_encoder, audio_projector, text_encoder, text_projector, vae, _] =
            self.parts();
        match (tower, part) {
            (Tower::Vision, TowerPart::Encoder) => image_encoder,
            (Tower::Vision, TowerPart::Projector) => image_projector,
            (Tower::Audio, TowerPart::Encoder) => audio_encoder,
            (Tower::Audio, TowerPart::Projector) => audio_projector,
            (Tower::Text, TowerPart::Encoder) => text_encoder,
            (Tower::Text, TowerPart::Projector) => text_projector,
            // They have no projector.
            (Tower::Vae, _) => vae,
            (Tower::Reference, _) => ("model.reference", &self.reference),
        }
    }

    /// Returns whether the config sets any key of a tower or its projector.
    pub fn has_part_of(&self, tower: Tower) -> bool {
        TowerPart::ALL.into_iter().any(|part| *self.tower_part(tower, part).1 != Part::default())
    }

    /// Returns whether the config alone freezes all parameters of these towers. Patterns that happen to match everything do not
    /// count.
    pub fn has_frozen(&self, towers: TowerSet) -> bool {
        // Settled for diffusion models alone, whose towers have no projectors.
        let has_projectors = self.vae.freeze.is_none();
        let parts = |tower| TowerPart::ALL.map(|part| self.tower_part(tower, part).1);
        let is_frozen = |tower| parts(tower)[..1 + usize::from(has_projectors)].iter().all(|part| part.is_frozen());
        towers.iter().all(|tower| matches!(tower, Tower::Vae | Tower::Reference) || is_frozen(tower))
    }

    /// Returns whether nothing is trained, whatever the parameters are. Optional parts that the config does not mention do not
    /// count.
    pub fn is_all_frozen(&self) -> bool {
        let optional =
            [&self.audio_encoder, &self.audio_projector, &self.text_encoder, &self.text_projector, &self.vae];
        let optional = optional.into_iter().filter(|part| **part != Part::default());
        let parts = [&self.image_encoder, &self.image_projector, &self.foundation].into_iter().chain(optional);
        parts.into_iter().all(Part::is_frozen)
    }

    /// Returns whether the language model is the only part, and nothing else says what the model is: a plain language model.
    pub fn is_foundation_alone(&self) -> bool {
        let given = |part: &Part| !part.config.is_empty() || part.load.is_some();
        let whole = self.load.is_some() || !self.config.is_empty();
        !whole && given(&self.foundation) && self.parts()[..7].iter().all(|(_, part)| !given(part))
    }
}

impl Part {
    /// Returns whether parameter `name` (as in the checkpoint) is trained itself, apart from adapters.
    pub fn trains(&self, name: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| glob(pattern, name));
        let frozen = self.freeze == Some(true) || self.lora.is_some() || any(&self.freeze_patterns);
        let is_saved = |lora: &Lora| name.rsplit_once('.').is_some_and(|(module, _)| lora.saves(module));
        !frozen || any(&self.train_patterns) || self.lora.as_ref().is_some_and(is_saved)
    }

    /// Returns the patterns of `lr_ratios` that match parameter `name` (as in the checkpoint), with their ratios.
    pub fn lr_ratios_of<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, f64)> {
        let matching = self.lr_ratios.iter().filter(move |(pattern, _)| glob(pattern, name));
        matching.filter_map(|(pattern, ratio)| Some((pattern.as_str(), ratio.as_f64()?)))
    }

    /// Returns whether nothing in this part can be trained, whatever its parameters are.
    pub fn is_frozen(&self) -> bool {
        let all = self.freeze == Some(true) || self.freeze_patterns.iter().any(|pattern| pattern == "*");
        all && self.lora.is_none() && self.train_patterns.is_empty()
    }
}

impl Default for Mtp {
    fn default() -> Self {
        Self { num_layers: None, loss_weight: 0.1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_parameters() {
        let mut part = Part { freeze_patterns: vec!["*.embed_tokens.*".into()], ..Part::default() };
        assert!(part.trains("model.layers.0.mlp.up_proj.weight") && !part.trains("model.embed_tokens.weight"));
        part.freeze = Some(true);
        assert!(part.is_frozen() && !part.trains("model.layers.0.mlp.up_proj.weight"));
        part.train_patterns = vec!["model.layers.1?.*".into()];
        assert!(part.trains("model.layers.12.mlp.up_proj.weight") && !part.trains("model.layers.1.mlp.up_proj.weight"));
        assert!(!part.is_frozen());
    }

    #[test]
    fn adapters_of_parts_in_several_folders_have_no_base() {
        let base = |edit: &dyn Fn(&mut Model)| {
            let mut model = Model { load: Some(Source::new("whole")), ..Model::default() };
            model.foundation.lora = Some(Lora::default());
            edit(&mut model);
            model.adapter_base().map(|base| base.as_str().to_owned())
        };
        assert_eq!(base(&|_| {}).as_deref(), Some("whole"));
        let alone = |model: &mut Model| {
            model.load = None;
            model.foundation.load = Some(Source::new("llm"));
        };
        assert_eq!(base(&alone).as_deref(), Some("llm"));
        let parts = |model: &mut Model| {
            alone(model);
            model.audio_encoder = Part { load: Some(Source::new("whisper")), freeze: Some(true), ..Part::default() };
        };
        assert_eq!(base(&parts), None);
        // A tower that is trained as a whole is saved with the adapters, a frozen one is not.
        let tower = |freeze| Part { load: Some(Source::new("tower")), freeze, ..Part::default() };
        assert_eq!(base(&|model| model.image_encoder = tower(None)).as_deref(), Some("whole"));
        assert_eq!(base(&|model| model.image_encoder = tower(Some(true))), None);
    }
}
