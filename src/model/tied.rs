//! Describes whether a head is the embedding where the config of a folder does not say, and its weights do.

use loongforge_torch::train::hf::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

/// Models whose classes in transformers tie a head that the weights lack, unless the config of the whole model has the key; with the
/// names of their embedding and their head.
const TIED_BY_CLASS: [(&str, &str, &str); 3] = [
    ("internvl", WITHIN, HEAD_WITHIN),
    ("kimi_k25", WITHIN, HEAD_WITHIN),
    ("ernie4_5_vl_moe", "model.language_model.embed_tokens.weight", "lm_head.weight"),
];
const WITHIN: &str = "language_model.model.embed_tokens.weight";
const HEAD_WITHIN: &str = "language_model.lm_head.weight";

/// The key of a config that says so.
const KEY: &str = "tie_word_embeddings";

/// Puts `tie_word_embeddings` into the config of the model in `folder` where it lacks the key, and the weights have an embedding and
/// no head: its class ties them then. A head that is there is the model's own.
pub(super) fn put_tied(json: &mut Value, folder: &Path) {
    let found = TIED_BY_CLASS.iter().find(|(name, ..)| json["model_type"] == *name);
    let Some((_, embedding, head)) = found.filter(|_| json.get(KEY).is_none()) else { return };
    // Weights that cannot be opened are refused where they are read.
    let Ok(weights) = Checkpoint::open(folder) else { return };
    if weights.get(embedding).is_some() && weights.get(head).is_none() {
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
        for (name, embedding, head) in TIED_BY_CLASS {
            assert_eq!(tied(json!({"model_type": name}), &[embedding]), Some(true), "{name}");
            assert_eq!(tied(json!({"model_type": name}), &[embedding, head]), None, "{name}");
            assert_eq!(tied(json!({"model_type": name, KEY: false}), &[embedding]), Some(false), "{name}");
        }
        assert_eq!(tied(json!({"model_type": "llava"}), &[WITHIN]), None);
        let mut config = json!({"model_type": "internvl"});
        put_tied(&mut config, &dir.path().join("gone"));
        assert_eq!(config, json!({"model_type": "internvl"}));
    }
}
