//! Describes whether the weights in a folder are those of a model: asked before anything is built.

use super::row_blocks;
use loongforge_core::config::glob;
use loongforge_core::data::{COMPONENTS, DIFFUSION, ModelCard};
use loongforge_torch::model::ModelConfig;
use loongforge_torch::train::WeightsError;
use loongforge_torch::train::hf::{Checkpoint, LoadOptions, Stored, compare_weights};
use serde_json::Value;
use std::path::Path;
use tch::Kind;

/// The reasons why weights and model do not go together.
pub type FitError = WeightsError;

/// Opens the weights in `folder` and compares all of them with the parameters of both pools; parts that checkpoints carry
/// are left out of it. Nothing is allocated.
///
/// # Errors
/// A file is torn, or a tensor is missing, misshaped, of a wrong type or not the model's, and all such tensors are in one table; or it
/// fails as [`expect_tied_head`] does.
pub fn expect_fit(folder: &Path, model: &ModelConfig, options: &LoadOptions) -> Result<(), FitError> {
    let checkpoint = Checkpoint::open(folder)?;
    let carried = model.carried.prefixes.iter().map(|prefix| format!("{prefix}*"));
    let specs = model.specs();
    // A run has parts of a diffusion model's encoders, and both of its transformers or one; checkpoints carry the rest.
    let has_first = specs.iter().any(|spec| spec.name.starts_with("transformer."));
    let is_whole = |name: &str| has_first && name == "transformer";
    let networks = COMPONENTS.iter().filter(|network| model.model_type == DIFFUSION && !is_whole(network.name));
    let networks = networks.map(|network| format!("{}.*", network.name));
    let ignore = options.ignore.iter().cloned().chain(carried).chain(networks).collect();
    compare_weights(&specs, &checkpoint, &LoadOptions { ignore, ..options.clone() })?;
    expect_same_head(&checkpoint, model, &options.ignore)
}

/// Sees to it that a head in `folder` is the embedding where the config says that they are one: nothing would read a head that
/// differs, which transformers keeps. `ignored`: patterns of tensors that are left out on purpose.
///
/// # Errors
/// They differ, or a file is torn.
pub fn expect_tied_head(folder: &Path, model: &ModelConfig, ignored: &[String]) -> Result<(), FitError> {
    if model.tied_head().is_some() { expect_same_head(&Checkpoint::open(folder)?, model, ignored) } else { Ok(()) }
}

/// `ignored`: patterns of tensors that are left out on purpose.
fn expect_same_head(checkpoint: &Checkpoint, model: &ModelConfig, ignored: &[String]) -> Result<(), FitError> {
    let Some([embedding, head]) = model.tied_head() else { return Ok(()) };
    let (Some(table), Some(own)) = (checkpoint.get(&embedding), checkpoint.get(&head)) else { return Ok(()) };
    if ignored.iter().any(|pattern| glob(pattern, &head)) || are_equal(checkpoint, table, own)? {
        return Ok(());
    }
    Err(FitError::OtherHead { folder: checkpoint.folder().to_owned(), head, embedding })
}

/// Returns whether two tables have the same values. A block of rows is read at a time.
fn are_equal(checkpoint: &Checkpoint, one: &Stored, other: &Stored) -> Result<bool, FitError> {
    let are_floats = [one, other].iter().all(|stored| stored.dtype.is_plain_float());
    if one.shape.len() != 2 || one.shape != other.shape || !are_floats {
        return Ok(false);
    }
    for (first, len) in row_blocks(&one.shape) {
        let rows = |stored: &Stored| checkpoint.read_rows(stored, first, len, Kind::Float);
        if !rows(one)?.equal(&rows(other)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns how strictly a folder with this `config.json` is compared: layers for multi-token prediction may be left
/// out.
pub fn load_options(config: &Value) -> LoadOptions {
    // The last one is ERNIE-4.5's, which has modules of their own for the parts of such a layer.
    let mut ignore = ["mtp.*", "*.mtp.*", "*mtp_layers.*", "model.mtp_*"].map(str::to_owned).to_vec();
    for keys in ModelCard::of(config).of_text() {
        let number = |key: &str| keys[key].as_u64();
        let (layers, heads) = (number("num_hidden_layers"), number("num_nextn_predict_layers"));
        if let (Some(layers), Some(heads)) = (layers, heads) {
            // They are stored behind the last layer.
            ignore.extend((layers..layers + heads.min(16)).map(|layer| format!("*layers.{layer}.*")));
        }
    }
    LoadOptions { ignore, ..LoadOptions::default() }
}

#[cfg(test)]
mod tests {
    use loongforge_torch::train::hf::write_tensor_file;
    use serde_json::json;
    use tch::{Device, Tensor};

    use super::*;

    #[test]
    fn prediction_layers_of_every_layout_may_be_left_out() {
        let config = json!({"num_hidden_layers": 28, "num_nextn_predict_layers": 1});
        let ignore = load_options(&config).ignore;
        let is_ignored = |name: &str| ignore.iter().any(|pattern| glob(pattern, name));
        for name in [
            "mtp.fc.weight",
            "model.layers.28.eh_proj.weight",
            "model.mtp_layers.0.input_proj.weight",
            "model.mtp_block.0.mlp.down_proj.weight",
            "model.mtp_linear_proj.0.weight",
        ] {
            assert!(is_ignored(name), "{name}");
        }
        assert!(!is_ignored("model.layers.27.mlp.down_proj.weight") && !is_ignored("model.embed_tokens.weight"));
    }

    #[test]
    fn a_head_beside_a_tied_embedding_must_be_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let model = |tied: bool| {
            let config = json!({
                "model_type": "llama", "vocab_size": 6, "hidden_size": 4, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": tied
            });
            ModelConfig::from_hf(&config).unwrap()
        };
        let table = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([6, 4]);
        let check = |head: Tensor, tied: bool, ignored: &[String]| {
            let tensors =
                [("model.embed_tokens.weight".to_owned(), table.shallow_clone()), ("lm_head.weight".to_owned(), head)];
            write_tensor_file(&tensors, &[], folder.path(), "model.safetensors").unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            let model = model(tied);
            let with_options = expect_same_head(&checkpoint, &model, ignored).map_err(|error| error.to_string());
            (expect_tied_head(folder.path(), &model, &[]).is_ok(), with_options)
        };
        assert_eq!(check(table.to_kind(Kind::BFloat16), true, &[]), (true, Ok(())));
        let (is_taken, error) = check(table.shallow_clone() * 2.0, true, &[]);
        let error = error.unwrap_err();
        assert!(!is_taken && error.contains("lm_head.weight differs from model.embed_tokens.weight"), "{error}");
        assert_eq!(check(table.shallow_clone() * 2.0, true, &["lm_head.*".to_owned()]), (false, Ok(())));
        assert!(check(table.shallow_clone() * 2.0, false, &[]).0);
    }

    /// Its head has a name of its own, and its table another one than those of decoders.
    #[test]
    fn a_head_in_a_folder_of_florence_2_must_be_the_same() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/florence/florence2-seed1");
        let config: Value = serde_json::from_slice(&std::fs::read(fixture.join("config.json")).unwrap()).unwrap();
        let model = ModelConfig::from_hf(&config).unwrap();
        let tensors = Tensor::read_safetensors(fixture.join("model.safetensors")).unwrap();
        let table = tensors.iter().find(|(name, _)| name == "model.language_model.shared.weight").unwrap();
        let table = table.1.shallow_clone();
        let folder = tempfile::tempdir().unwrap();
        let check = |head: Tensor| {
            let mut stored: Vec<_> = tensors.iter().map(|(name, it)| (name.clone(), it.shallow_clone())).collect();
            stored.push(("lm_head.weight".to_owned(), head));
            write_tensor_file(&stored, &[], folder.path(), "model.safetensors").unwrap();
            let fits = expect_fit(folder.path(), &model, &load_options(&config)).map_err(|error| error.to_string());
            (expect_tied_head(folder.path(), &model, &[]).is_ok(), fits)
        };
        assert_eq!(check(table.shallow_clone()), (true, Ok(())));
        let (is_taken, error) = check(table * 2.0);
        let error = error.unwrap_err();
        assert!(
            !is_taken && error.contains("lm_head.weight differs from model.language_model.shared.weight"),
            "{error}"
        );
    }
}
