//! Describes the networks of a diffusion model, each of which has a folder of its own in Diffusers' layout, and an object of
//! its own in the model's `config.json` as this program has it.

use serde_json::Value as Json;

pub use crate::config::MODEL_INDEX;

/// The `model_type` of a diffusion model's `config.json`.
pub const DIFFUSION: &str = "loongforge_diffusion";

/// A network of a diffusion model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// Name of its folder, of its object in `config.json`, and of what its tensors' names begin with.
    pub name: &'static str,
    /// The beginning of the names of its files of weights.
    pub stem: &'static str,
    /// The Python library that its class is from.
    pub library: &'static str,
}

const fn of_diffusers(name: &'static str) -> Component {
    Component { name, stem: "diffusion_pytorch_model", library: "diffusers" }
}

const fn of_transformers(name: &'static str) -> Component {
    Component { name, stem: "model", library: "transformers" }
}

/// All networks that a model may have.
pub const COMPONENTS: [Component; 5] = [
    of_diffusers("transformer"),
    of_diffusers("transformer_2"),
    of_diffusers("vae"),
    of_transformers("text_encoder"),
    of_transformers("image_encoder"),
];

impl Component {
    /// Returns the network that has the tensor of this name, and the tensor's name in the network's own files.
    pub fn of_tensor(name: &str) -> Option<(Self, &str)> {
        let (first, rest) = name.split_once('.')?;
        Some((Self::named(first)?, rest))
    }

    /// Returns the network of this name.
    pub fn named(name: &str) -> Option<Self> {
        COMPONENTS.into_iter().find(|component| component.name == name)
    }
}

/// Returns whether a `config.json` is a diffusion model's.
pub fn is_diffusion(config: &Json) -> bool {
    config["model_type"] == DIFFUSION
}
