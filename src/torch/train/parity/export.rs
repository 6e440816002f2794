//! A fixture's model after a few steps as a Hugging Face folder, with the logits that we compute with it:
//! `tests/oracle/roundtrip.py` tells whether the reference reads it and computes the same.
//!
//! It writes what a run writes of a model, by the same code; `config.json` is the caller's.

use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use super::fixture::{Document, Fixture};
use super::models::Models;
use super::run::is_of_tokens;
use super::state::ParityError;
use crate::model::fixture_tensors as tensors;
use crate::params::{ParamSpec, ParamStore, StoredTensor};
use crate::train::hf::{
    FilesOf, INDEX_FILE, MAX_SHARD_SIZE, Shards, index_of, num_shards, save_weights, write_tensor_file,
};
use crate::train::{
    AdapterBase, AdapterFile, AdapterSettings, adapter_config, modules_to_save, read_adapter_config, save_adapter,
};

/// The folder of the adapter alone, in PEFT's format.
const ADAPTER: &str = "adapter";
const LOGITS: &str = "logits.safetensors";

/// Trains the model of the fixture in `folder` for `num_steps` on its batch, and writes into `out`, which must be there:
///
/// * the weights, in a file for the encoder and one for the decoder; an adapter is added to its base,
/// * `adapter/` where the fixture has one: the same adapter apart, for the fixture as its base,
/// * `logits.safetensors`: `logits` `[B, S, V]`, of the adapter beside its base, zero where `attention_mask` is; and the
///   arguments that the reference's model takes.
///
/// # Errors
/// The folder is no fixture, or a file cannot be written.
pub fn export(folder: &Path, out: &Path, num_steps: usize) -> Result<(), ParityError> {
    if !is_of_tokens(folder)? {
        return Err(ParityError::OfTokens("--export"));
    }
    let fixture = Fixture::read(folder)?;
    let mut models = Models::load(&fixture, &fixture.config, folder)?;
    let documents: Vec<&Document> = fixture.documents.iter().collect();
    for _ in 0..num_steps {
        models.update(&fixture, &documents)?;
    }
    write_weights(&stores(&models), out, MAX_SHARD_SIZE)?;
    if fixture.has_adapter {
        let apart = out.join(ADAPTER);
        create(&apart)?;
        let base = std::path::absolute(folder).unwrap_or(folder.to_owned());
        let base = Some(AdapterBase::of(&base.display().to_string()));
        let there = read_adapter_config(folder)?.lora;
        let settings =
            AdapterSettings { base, dropout: there.dropout, use_rslora: there.use_rslora, writes_text: true };
        let stores = stores(&models);
        let specs: Vec<ParamSpec> =
            stores.iter().flat_map(|store| store.ids().map(move |id| store.spec(id).clone())).collect();
        let tree = fixture.config.tree.clone();
        let config = serde_json::to_string_pretty(&adapter_config(&specs, &tree, &settings));
        let file = AdapterFile {
            config: Some(config.expect("JSON of plain values")),
            modules_to_save: modules_to_save(specs.iter(), &tree),
            name: AdapterFile::name(0, 1),
            tree,
        };
        save_adapter(&stores, &file, apart.as_path())?;
    }
    let (logits, _) = models.logits(&documents);
    let mut all: Vec<(String, Tensor)> = tensors(&folder.join("inputs.safetensors"))?
        .into_iter()
        .filter(|(name, _)| !name.starts_with("packed.") && !["labels", "position_ids"].contains(&name.as_str()))
        .collect();
    all.push(("logits".to_owned(), padded(&logits, &fixture.attention_mask)));
    write_tensor_file(&all, &[("format", "pt")], out, LOGITS)?;
    Ok(())
}

/// Returns the rows of tokens `[T, V]` where `mask` `[B, S]` has tokens; zeros elsewhere.
fn padded(logits: &Tensor, mask: &Tensor) -> Tensor {
    let (size, width) = (mask.size(), logits.size()[1]);
    let rows = mask.flatten(0, -1).nonzero().flatten(0, -1);
    let all = Tensor::zeros([mask.numel() as i64, width], (Kind::Float, logits.device()));
    all.index_copy(0, &rows, logits).view([size[0], size[1], width])
}

/// Returns the stores of the encoder and of the decoder, the order of their files.
fn stores(models: &Models) -> Vec<&ParamStore> {
    let mut stores: Vec<&ParamStore> = models.pools().map(|(params, _)| params.as_ref()).collect();
    stores.reverse();
    stores
}

/// The stores as files of one model, with an index where there are several.
fn write_weights(stores: &[&ParamStore], out: &Path, max_size: u64) -> Result<(), ParityError> {
    let counts: Vec<usize> =
        stores.iter().map(|store| num_shards(specs(store), store.flat().kind(), max_size)).collect();
    let (mut first, total, mut saved) = (1, counts.iter().sum(), Vec::new());
    for (store, count) in stores.iter().zip(counts) {
        saved.extend(save_weights(store, out, &Shards { of: FilesOf::Whole, first, count, total, max_size })?);
        first += count;
    }
    if saved.len() > 1 {
        let bytes = |(piece, kind): (&StoredTensor, Kind)| {
            piece.shape.iter().product::<i64>() as usize * kind.elt_size_in_bytes()
        };
        let total_size: usize = stores.iter().flat_map(|store| pieces(store)).map(bytes).sum();
        let (path, index) = (out.join(INDEX_FILE), index_of(&saved, total_size as u64).to_string());
        std::fs::write(&path, index).map_err(|source| ParityError::Write { path, source })?;
    }
    Ok(())
}

/// Returns the parameters of a store.
fn specs(store: &ParamStore) -> impl Iterator<Item = &ParamSpec> + Clone {
    store.ids().map(|id| store.spec(id)).collect::<Vec<_>>().into_iter()
}

/// Returns the tensors that a store's files will have.
fn pieces(store: &ParamStore) -> impl Iterator<Item = (&StoredTensor, Kind)> {
    store.ids().flat_map(move |id| store.spec(id).pieces.iter().map(move |piece| (piece, store.leaf(id).kind())))
}

fn create(folder: &Path) -> Result<(), ParityError> {
    let wrong = |source| ParityError::Write { path: PathBuf::from(folder), source };
    std::fs::create_dir(folder).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::hf::Checkpoint;
    use crate::train::{AdapterFolder, load_adapter};
    use std::collections::BTreeSet;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
    }

    /// Returns the logits of the weights in `weights` for the fixture's batch, without adapters.
    fn logits(folder: &Path, weights: &Path) -> Tensor {
        let mut fixture = Fixture::read(folder).unwrap();
        fixture.has_adapter = false;
        let models = Models::load(&fixture, &fixture.config, weights).unwrap();
        padded(&models.logits(&fixture.documents.iter().collect::<Vec<_>>()).0, &fixture.attention_mask)
    }

    fn exported(out: &Path) -> Tensor {
        tensors(&out.join(LOGITS)).unwrap().remove("logits").unwrap()
    }

    /// Returns the names of a folder's tensors.
    fn names(folder: &Path) -> BTreeSet<String> {
        Checkpoint::open(folder).unwrap().tensors().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn what_is_exported_reads_back_to_the_same_logits() {
        let mut folders: Vec<PathBuf> =
            std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
        // Each family once.
        folders.retain(|folder| {
            folder.to_string_lossy().ends_with("-seed1") && !folder.join("adapter_config.json").is_file()
        });
        assert!(!folders.is_empty());
        for folder in folders {
            let (name, out) = (folder.display(), tempfile::tempdir().unwrap());
            export(&folder, out.path(), 2).unwrap();
            assert_eq!(
                out.path().join(INDEX_FILE).is_file(),
                !Fixture::read(&folder).unwrap().config.towers.is_empty()
            );
            // What prediction heads repeat of the embedding and the head included.
            assert_eq!(names(out.path()), names(&folder), "{name}");
            let trained = exported(out.path());
            assert_eq!(logits(&folder, out.path()), trained, "{name}");
            assert!(
                (logits(&folder, &folder) - trained).abs().max().double_value(&[]) > 1e-3,
                "{name} was not trained"
            );
        }
    }

    #[test]
    fn small_shards_of_two_pools_are_one_model() {
        let (folder, out) = (fixtures().join("qwen3_vl-seed1"), tempfile::tempdir().unwrap());
        let fixture = Fixture::read(&folder).unwrap();
        let models = Models::load(&fixture, &fixture.config, &folder).unwrap();
        write_weights(&stores(&models), out.path(), 20_000).unwrap();
        assert!(std::fs::read_dir(out.path()).unwrap().count() > 5);
        assert_eq!(logits(&folder, out.path()), logits(&folder, &folder));
    }

    #[test]
    fn an_adapter_is_exported_merged_and_apart() {
        for name in ["qwen3_lora-seed1", "qwen3_lora-rslora", "qwen3_lora-dora", "qwen2.5_vl_lora-seed1"] {
            let (folder, out) = (fixtures().join(name), tempfile::tempdir().unwrap());
            export(&folder, out.path(), 2).unwrap();
            let trained = exported(out.path());
            let merged = logits(&folder, out.path());
            assert!(merged.allclose(&trained, 1e-4, 1e-5, false), "{name}");
            assert!(!logits(&folder, &folder).allclose(&trained, 1e-2, 1e-2, false), "{name}: the base alone");

            let fixture = Fixture::read(&folder).unwrap();
            let models = Models::load(&fixture, &fixture.config, &folder).unwrap();
            let apart = AdapterFolder::open(&out.path().join(ADAPTER)).unwrap();
            for (params, _) in models.pools() {
                load_adapter(params, &apart, &fixture.config.tree, |_| true).unwrap();
            }
            let apart = models.logits(&fixture.documents.iter().collect::<Vec<_>>()).0;
            assert_eq!(padded(&apart, &fixture.attention_mask), trained, "{name}");
        }
    }
}
