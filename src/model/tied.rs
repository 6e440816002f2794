//! Describes whether a head is the embedding where the config of a folder does not say, and its weights do.

use loongforge_torch::train::hf::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

/// Models whose classes in transformers tie a head that the weights lack, unless the config of the whole model has the key.
const TIED_BY_CLASS: [&str; 2] = ["internvl", "kimi_k25"];

/// The key of a config that says so.
const KEY: &str = "tie_word_embeddings";

const EMBEDDING: &str = "language_model.model.embed_tokens.weight";
const HEAD: &str = "language_model.lm_head.weight";

/// Puts `tie_word_embeddings` into the config of the model in `folder` where it lacks the key, and the weights have an embedding and
/// no head: its class ties them then. A head that is there is the model's own.
pub(super) fn put_tied(json: &mut Value, folder: &Path) {
    let is_of_class = json["model_type"].as_str().is_some_and(|name| TIED_BY_CLASS.contains(&name));
    if !is_of_class || json.get(KEY).is_some() {
        return;
    }
    // Weights that cannot be opened are refused where they are read.
    let Ok(weights) = Checkpoint::open(folder) else { return };
    if weights.get(EMBEDDING).is_some() && weights.get(HEAD).is_none() {
        json[KEY] = json!(true);
    }
}

#[cfg(test)]
mod tests {
    use loongforge_torch::train::hf::write_tensor_file;
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn a_class_ties_a_head_that_the_weights_lack() {
        let dir = tempfile::tempdir().unwrap();
        let tied = |mut config: Value, names: &[&str]| {
            let table = Tensor::zeros([4, 2], (Kind::Float, Device::Cpu));
            let tensors: Vec<(String, Tensor)> =
                names.iter().map(|name| ((*name).to_owned(), table.shallow_clone())).collect();
            write_tensor_file(&tensors, &[], dir.path(), "model.safetensors").unwrap();
            put_tied(&mut config, dir.path());
            config[KEY].as_bool()
        };
        for name in TIED_BY_CLASS {
            assert_eq!(tied(json!({"model_type": name}), &[EMBEDDING]), Some(true), "{name}");
            assert_eq!(tied(json!({"model_type": name}), &[EMBEDDING, HEAD]), None, "{name}");
            assert_eq!(tied(json!({"model_type": name, KEY: false}), &[EMBEDDING]), Some(false), "{name}");
        }
        assert_eq!(tied(json!({"model_type": "llava"}), &[EMBEDDING]), None);
        let mut config = json!({"model_type": "internvl"});
        put_tied(&mut config, &dir.path().join("gone"));
        assert_eq!(config, json!({"model_type": "internvl"}));
    }
}
