//! The places of a config's models: a model on the hub becomes a folder of its cache.

use crate::model::error::FolderError;
use crate::model::hub::{model_here, resolve, resolve_config};
use crate::model::stored::Extent;
use loongforge_core::config::{Lora, Model, RunConfig, Source, Weights};
use std::path::{Path, PathBuf};

/// Fetches whatever of the model is on the hub, weights included where they are loaded: every source becomes a directory.
///
/// # Errors
/// The hub has no such model, or it cannot be fetched.
pub fn fetch(model: &mut Model) -> Result<(), FolderError> {
    settle(model, |key, source, extent| {
        resolve(source, extent).map(Some).map_err(|source| FolderError::Hub { key, source })
    })
}

/// Fetches the model of `eval.reader` where it is on the hub or in a store: its source becomes a directory.
///
/// # Errors
/// The hub has no such model, or it cannot be fetched.
pub fn fetch_reader(config: &mut RunConfig) -> Result<(), FolderError> {
    let key = "eval.reader.load";
    settle_reader(config, |source| resolve(source, Extent::Whole).map_err(|source| FolderError::Hub { key, source }))
}

/// Puts a directory in the place of the hub id or URL of `eval.reader`.
fn settle_reader(
    config: &mut RunConfig,
    find: impl FnOnce(&str) -> Result<PathBuf, FolderError>,
) -> Result<(), FolderError> {
    let reader = config.eval.as_mut().and_then(|eval| eval.reader.as_mut());
    // A run in a folder of runs may not be there yet.
    let is_elsewhere = |load: &Source| load.is_elsewhere() && !load.as_path().parent().is_some_and(Path::is_dir);
    let Some(reader) = reader.filter(|reader| is_elsewhere(&reader.load)) else { return Ok(()) };
    reader.load = Source::new(find(reader.load.as_str())?.display().to_string());
    Ok(())
}

/// Names the directories of what is here; the keys of weights that are on the hub and were not fetched. Adapters that were
/// not are left out of `model`.
pub fn without_fetching(model: &mut Model) -> Vec<&'static str> {
    let mut missing = Vec::new();
    let here = |key, source: &str, extent: Extent| {
        let here = model_here(source);
        missing.extend((extent == Extent::Whole && here.is_none()).then_some(key));
        Ok(here)
    };
    settle(model, here).expect("nothing is fetched");
    for (_, lora) in adapters(model) {
        if let Some(lora) = lora {
            lora.adapter = lora.adapter.take().filter(|adapter| !adapter.is_elsewhere());
        }
    }
    missing
}

/// Puts a directory in the place of every hub id or URL for which `find` has one; it hears of the key, the id, and how
/// much is needed.
fn settle(
    model: &mut Model,
    mut find: impl FnMut(&'static str, &str, Extent) -> Result<Option<PathBuf>, FolderError>,
) -> Result<(), FolderError> {
    use Extent::{Whole, WithoutWeights};
    let of_model = if model.weights == Weights::Load { Whole } else { WithoutWeights };
    let sources = [
        ("model.load", &mut model.load, of_model),
        ("model.tokenizer", &mut model.tokenizer, WithoutWeights),
        ("model.image_encoder.load", &mut model.image_encoder.load, Whole),
        ("model.image_projector.load", &mut model.image_projector.load, Whole),
        ("model.audio_encoder.load", &mut model.audio_encoder.load, Whole),
        ("model.audio_projector.load", &mut model.audio_projector.load, Whole),
        ("model.text.tokenizer", &mut model.text.tokenizer, WithoutWeights),
        ("model.text_encoder.load", &mut model.text_encoder.load, Whole),
        ("model.text_projector.load", &mut model.text_projector.load, Whole),
        ("model.vae.load", &mut model.vae.load, Whole),
        ("model.foundation.load", &mut model.foundation.load, Whole),
        ("model.reference.load", &mut model.reference.load, Whole),
    ];
    for (key, source, extent) in sources {
        let Some(named) = source.as_mut().filter(|source| source.is_elsewhere()) else { continue };
        if let Some(folder) = find(key, named.as_str(), extent)? {
            *named = Source::new(folder.display().to_string());
        }
    }
    for (key, lora) in adapters(model) {
        let named = lora.as_mut().and_then(|lora| lora.adapter.as_mut());
        let Some(named) = named.filter(|source| source.is_elsewhere()) else { continue };
        if let Some(folder) = find(key, named.as_str(), Whole)? {
            *named = Source::new(folder.display().to_string());
        }
    }
    Ok(())
}

/// Returns the parts that may start from adapters, by the keys that name those.
fn adapters(model: &mut Model) -> [(&'static str, &mut Option<Lora>); 7] {
    [
        ("model.image_encoder.lora.adapter", &mut model.image_encoder.lora),
        ("model.image_projector.lora.adapter", &mut model.image_projector.lora),
        ("model.audio_encoder.lora.adapter", &mut model.audio_encoder.lora),
        ("model.audio_projector.lora.adapter", &mut model.audio_projector.lora),
        ("model.text_encoder.lora.adapter", &mut model.text_encoder.lora),
        ("model.text_projector.lora.adapter", &mut model.text_projector.lora),
        ("model.foundation.lora.adapter", &mut model.foundation.lora),
    ]
}

/// Returns the directory that a key names.
pub(super) fn locate(key: &'static str, source: &Source) -> Result<PathBuf, FolderError> {
    resolve_config(source.as_str()).map_err(|source| FolderError::Hub { key, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;
    use serde_json::json;

    #[test]
    fn the_reader_of_samples_is_fetched_where_it_is_on_the_hub() {
        let mut config = load_text(include_str!("../../configs/sft_text.yaml")).unwrap().config;
        let mut settled = |load: &str| {
            config.eval = serde_json::from_value(json!({"path": "a", "reader": {"load": load}})).unwrap();
            let find = |source: &str| Ok(PathBuf::from("/cache").join(source));
            settle_reader(&mut config, find).unwrap();
            config.eval.as_ref().unwrap().reader.as_ref().unwrap().load.as_str().to_owned()
        };
        assert_eq!(settled("org/reader"), "/cache/org/reader");
        // A folder that is not there yet is none of the hub.
        assert_eq!(settled("runs/digits/checkpoints/step-00000750"), "runs/digits/checkpoints/step-00000750");
        assert_eq!(settled("configs/reader"), "configs/reader");
    }

    #[test]
    fn weights_of_every_part_are_fetched() {
        let keys = Model::default().parts().map(|(key, _)| key);
        let part =
            |key: &&'static str| (key.trim_start_matches("model.").to_owned(), json!({"load": "nobody/nothing"}));
        let parts: serde_json::Map<String, serde_json::Value> = keys.iter().map(part).collect();
        let mut model: Model = serde_json::from_value(parts.into()).unwrap();
        let missing = without_fetching(&mut model);
        for key in keys {
            assert!(missing.contains(&format!("{key}.load").as_str()), "{key}: {missing:?}");
        }
    }
}
