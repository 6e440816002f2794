//! Describes which files of a model a pool writes, and what they and their tensors are called.

use super::opening::WHOLE;
use loongforge_core::data::Component;

/// Bytes of weights in one file at most, unless one tensor alone has more: transformers' default was 5 GB for years.
pub const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// Says which of a model's parameters some files hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesOf {
    /// All of a model whose weights are beside its `config.json`.
    Whole,
    /// One network of a diffusion model, which has a folder of its own.
    Network(Component),
    /// The parameters of a diffusion model that no network has.
    Rest,
}

impl FilesOf {
    /// Returns all files of a diffusion model.
    pub fn networks() -> impl Iterator<Item = Self> {
        loongforge_core::data::COMPONENTS.into_iter().map(Self::Network).chain([Self::Rest])
    }

    /// Returns whether the parameter whose tensor has this name is in them.
    pub fn has(self, name: &str) -> bool {
        let network = Component::of_tensor(name).map(|(network, _)| network);
        match self {
            Self::Whole => true,
            Self::Network(own) => network == Some(own),
            Self::Rest => network.is_none(),
        }
    }

    /// Returns the name that one of the model's tensors has in these files.
    pub fn in_file(self, name: &str) -> &str {
        match (self, Component::of_tensor(name)) {
            (Self::Network(_), Some((_, inner))) => inner,
            _ => name,
        }
    }

    /// Returns the start of the files' names: a folder, and the part before numbers.
    pub fn stem(self) -> String {
        match self {
            Self::Network(Component { name, stem, .. }) => format!("{name}/{stem}"),
            Self::Whole | Self::Rest => WHOLE.to_owned(),
        }
    }
}

/// Describes which of a model's files a pool writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    pub of: FilesOf,
    /// The number of the first, from 1.
    pub first: usize,
    /// The number of files.
    pub count: usize,
    /// The number of files of the whole model, or of the network; 1 is `model.safetensors`.
    pub total: usize,
    pub max_size: u64,
}

impl Shards {
    /// Returns the shards of a model in one file.
    pub fn single() -> Self {
        Self { of: FilesOf::Whole, first: 1, count: 1, total: 1, max_size: u64::MAX }
    }

    /// Returns the name of the pool's `index`-th file, with its folder.
    pub fn name(&self, index: usize) -> String {
        shard_name(&self.of.stem(), self.first + index, self.total)
    }
}

/// Returns `STEM-00001-of-00002.safetensors`, or `STEM.safetensors` where that is all.
pub fn shard_name(stem: &str, number: usize, total: usize) -> String {
    if total == 1 { format!("{stem}.safetensors") } else { format!("{stem}-{number:05}-of-{total:05}.safetensors") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_folders_and_names_without_them() {
        let vae = FilesOf::networks().find(|of| of.has("vae.conv_in.weight")).unwrap();
        assert_eq!(vae.in_file("vae.conv_in.weight"), "conv_in.weight");
        assert!(FilesOf::Rest.has("text_projector.0.weight") && !FilesOf::Rest.has("transformer_2.x"));
        let shards = Shards { of: vae, first: 2, count: 1, total: 3, max_size: 1 };
        assert_eq!(shards.name(0), "vae/diffusion_pytorch_model-00002-of-00003.safetensors");
        assert_eq!(Shards::single().name(0), "model.safetensors");
        assert!(FilesOf::Whole.has("vae.x") && FilesOf::Whole.in_file("transformer.h.0") == "transformer.h.0");
    }
}
