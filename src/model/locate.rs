//! The folders of a trained model: a run's newest checkpoint, any folder, or that of adapters and that of the base which
//! they are added to.

use crate::model::hub::{HubError, resolve_model};
use loongforge_core::checkpoint::{CheckpointError, Manifest, latest};
use loongforge_core::config::lora_files_of_two;
use loongforge_core::data::MODEL_INDEX;
use loongforge_core::text::shell_word;
use loongforge_torch::train::hf::{INDEX_FILE, SINGLE_FILE, TensorFile, is_adapter};
use loongforge_torch::train::{AdapterError, DIFFUSERS_LORA_FILE, adapter_base};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("no such folder: {folder}; an id of the hub has the form org/name")]
    Missing { folder: PathBuf },
    #[error("{folder} has no checkpoint yet")]
    NoCheckpoint { folder: PathBuf },
    #[error(
        "{folder} holds adapters and does not name their base model: merge them into the model that they were trained on, with \
         `loongforge checkpoint export-hf {} OUT --base MODEL`",
        shell_word(folder)
    )]
    Unnamed { folder: PathBuf },
    #[error(
        "{folder} holds adapters of a model whose weights are in folders of its parts, so that no folder is their base: resume the run \
         with checkpoint.merge_lora=true and more train.steps, so that it saves a whole model"
    )]
    Parts { folder: PathBuf },
    #[error(
        "{folder} holds adapters of {base}, which is not a local folder: name it, with \
         `loongforge checkpoint export-hf {} OUT --base MODEL`",
        shell_word(folder)
    )]
    Gone { folder: PathBuf, base: String },
    #[error("{folder} holds whole weights; --base is for adapters")]
    Whole { folder: PathBuf },
    #[error("{path} holds adapters and does not name their base model: name it with --base")]
    NoBase { path: PathBuf },
    #[error("{path} is a config, not a model: name the folder of its run (`run.dir`), that of a model, or a hub id")]
    Config { path: PathBuf },
}

/// Returns the folder of the model that a user names: a folder, a hub id, or the folder of a run, of which the newest checkpoint is
/// meant.
///
/// # Errors
/// There is no such folder, the hub has no such model or it cannot be fetched, or a run has no checkpoint yet.
pub fn find_model(named: &str) -> Result<PathBuf, BaseError> {
    let folder = resolve_model(named)?;
    // One file of weights is a model as well.
    if folder.is_file() {
        let is_yaml = folder.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
        let is_config = is_yaml || folder.ends_with("config.json");
        return if is_config { Err(BaseError::Config { path: folder }) } else { Ok(folder) };
    }
    if !folder.is_dir() {
        return Err(BaseError::Missing { folder });
    }
    if ["config.json", MODEL_INDEX].iter().any(|name| folder.join(name).is_file()) || is_adapter(&folder) {
        return Ok(folder);
    }
    for checkpoints in [folder.join("checkpoints"), folder.clone()] {
        if let Some(newest) = latest(&checkpoints)? {
            return Ok(newest);
        }
    }
    if folder.join("checkpoints").is_dir() || folder.join("metrics.jsonl").is_file() {
        return Err(BaseError::NoCheckpoint { folder });
    }
    Ok(folder)
}

/// Works like [`find_model`], and of a folder with adapters that were exported for another program returns their file.
///
/// # Errors
/// Fails as that function does.
pub fn find_weights(named: &str) -> Result<PathBuf, BaseError> {
    let folder = find_model(named)?;
    Ok(lora_in(&folder).unwrap_or(folder))
}

/// Describes where what makes up a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolders {
    /// The folder of the weights, or of those that the adapters are added to.
    pub weights: PathBuf,
    pub adapters: Option<PathBuf>,
    /// `config.json` and tokenizer: beside the adapters, as a run saves them, or beside the weights.
    pub config: PathBuf,
}

impl ModelFolders {
    /// Finds the model in `folder`. The base of adapters is `base`, or what they say themselves: a folder or a hub id. A relative
    /// path of a run's adapters also starts where the run was started.
    ///
    /// # Errors
    /// There is no such folder. The base is not known, not here, or cannot be fetched; or `base` is said of a whole model.
    pub fn find(folder: &Path, base: Option<&str>) -> Result<Self, BaseError> {
        let named = || folder.to_owned();
        if !folder.is_dir() {
            return Err(BaseError::Missing { folder: named() });
        }
        if !is_adapter(folder) {
            return match base {
                None => Ok(Self { weights: named(), adapters: None, config: named() }),
                Some(_) => Err(BaseError::Whole { folder: named() }),
            };
        }
        let is_given = base.is_some();
        let base = match base {
            Some(base) => base.to_owned(),
            None => adapter_base(folder)?.ok_or_else(|| match is_of_parts(folder) {
                true => BaseError::Parts { folder: named() },
                false => BaseError::Unnamed { folder: named() },
            })?,
        };
        let at_start = || start_of_run(folder).map(|start| start.join(&base)).filter(|base| base.is_dir());
        let weights = match is_given || Path::new(&base).is_dir() {
            true => resolve_model(&base)?,
            false => at_start().map_or_else(|| resolve_model(&base), Ok)?,
        };
        if !weights.is_dir() {
            return Err(match is_given {
                true => BaseError::Missing { folder: weights },
                false => BaseError::Gone { folder: named(), base },
            });
        }
        let config = if folder.join("config.json").is_file() { named() } else { weights.clone() };
        Ok(Self { weights, adapters: Some(named()), config })
    }

    /// Works like [`ModelFolders::find`], and also takes adapters of a diffusion model in the files of other programs, which do not name
    /// their base.
    ///
    /// # Errors
    /// Fails as that function does, or where `base` is missing.
    pub fn find_any(path: &Path, base: Option<&str>) -> Result<Self, BaseError> {
        let file = lora_in(path).filter(|_| !is_lora_of_others(path));
        let path = file.as_deref().unwrap_or(path);
        if !is_lora_of_others(path) {
            return Self::find(path, base);
        }
        let weights = resolve_model(base.ok_or_else(|| BaseError::NoBase { path: path.to_owned() })?)?;
        if !weights.is_dir() {
            return Err(BaseError::Missing { folder: weights });
        }
        Ok(Self { config: weights.clone(), weights, adapters: Some(path.to_owned()) })
    }

    /// Returns the patterns of tensors of the weights that a run's adapters do without (`model.load_ignore`).
    pub fn ignored(&self) -> Vec<String> {
        let manifest = self.adapters.as_ref().and_then(|adapters| Manifest::read(adapters).ok());
        let patterns = manifest.as_ref().and_then(|manifest| manifest.config["model"]["load_ignore"].as_array());
        patterns.into_iter().flatten().filter_map(|pattern| pattern.as_str().map(str::to_owned)).collect()
    }

    /// Returns whether the model may have more tokens than the weights: the config beside a run's adapters says how many there are, to
    /// which the run has grown the tables of their base (`model.resize_embeddings`).
    pub fn may_grow(&self) -> bool {
        self.adapters.is_some() && self.config != self.weights
    }
}

/// Returns whether a path is a file of adapters as ComfyUI, kohya's scripts and Diffusers have them, or a folder of such that
/// `AdapterFolder::open` knows.
pub fn is_lora_of_others(path: &Path) -> bool {
    let has_adapters = |file: TensorFile| file.tensors().keys().any(|name| name.contains(".lora_"));
    match path.is_file() {
        true => TensorFile::open(path).is_ok_and(has_adapters),
        false => !is_adapter(path) && (path.join(DIFFUSERS_LORA_FILE).is_file() || lora_files_of_two(path).is_some()),
    }
}

/// Returns the file of adapters in a folder that has no other weights, as `checkpoint export` writes it.
fn lora_in(folder: &Path) -> Option<PathBuf> {
    if [SINGLE_FILE, INDEX_FILE, "config.json", MODEL_INDEX].iter().any(|name| folder.join(name).is_file()) {
        return None;
    }
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut weights = files.filter(|file| file.extension().is_some_and(|kind| kind == "safetensors"));
    let file = weights.next().filter(|_| weights.next().is_none())?;
    (!is_adapter(folder) && is_lora_of_others(&file)).then_some(file)
}

/// Returns whether the run of a checkpoint took the weights of a part from a folder of its own.
fn is_of_parts(checkpoint: &Path) -> bool {
    let Ok(manifest) = Manifest::read(checkpoint) else { return false };
    let model = manifest.config["model"].as_object();
    model.is_some_and(|model| model.iter().any(|(key, part)| key != "reference" && part["load"].is_string()))
}

/// Returns the folder in which a checkpoint's run was started: what is left of the checkpoint's path before `run.dir`.
fn start_of_run(checkpoint: &Path) -> Option<PathBuf> {
    let manifest = Manifest::read(checkpoint).ok()?;
    let dir = Path::new(manifest.config["run"]["dir"].as_str()?);
    let dir = dir.strip_prefix(".").unwrap_or(dir);
    let checkpoint = checkpoint.canonicalize().ok()?;
    let run = checkpoint.parent()?.parent()?;
    let start = run.ancestors().nth(dir.components().count()).filter(|_| run.ends_with(dir))?;
    Some(start.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::MANIFEST;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn a_folder_with_a_space_is_one_word_of_a_command() {
        let error = BaseError::Gone { folder: "a b".into(), base: "c".to_owned() }.to_string();
        assert!(error.starts_with("a b holds") && error.contains("export-hf 'a b' OUT --base MODEL"), "{error}");
    }

    #[test]
    fn a_relative_base_of_adapters_is_found_from_other_folders() {
        let start = tempfile::tempdir().unwrap();
        let checkpoint = start.path().join("runs/my/checkpoints/step-00000001");
        let base = start.path().canonicalize().unwrap().join("base-of-adapters");
        [&checkpoint, &base].into_iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        let write = |name: &str, text: &str| std::fs::write(checkpoint.join(name), text).unwrap();
        write("adapter_config.json", r#"{"peft_type": "LORA", "base_model_name_or_path": "base-of-adapters"}"#);
        write("adapter_model.safetensors", "");
        let find = |dir: &str| {
            let of_run = Manifest { config: json!({"run": {"dir": dir}}), ..Manifest::of_files(1, BTreeMap::new()) };
            write(MANIFEST, &of_run.to_text());
            ModelFolders::find(&checkpoint, None)
        };
        for dir in ["runs/my", "./runs/my"] {
            assert_eq!(find(dir).unwrap().weights, base, "{dir}");
        }
        for dir in ["runs/other", "/runs/my"] {
            let error = find(dir).unwrap_err().to_string();
            assert!(error.contains("base-of-adapters, which is not a local folder"), "{dir}: {error}");
        }
        let given = ModelFolders::find(&checkpoint, Some("./gone")).unwrap_err().to_string();
        assert!(given.starts_with("no such folder: ./gone"), "{given}");
    }

    #[test]
    fn adapters_without_a_base_say_where_their_weights_are() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("adapter_config.json", r#"{"peft_type": "LORA", "base_model_name_or_path": null}"#);
        write("adapter_model.safetensors", "");
        let error = || ModelFolders::find(dir.path(), None).unwrap_err().to_string();
        assert!(error().contains("does not name their base model"), "{}", error());
        for (model, part) in [
            (json!({"load": null, "reference": {"load": "a"}, "audio_encoder": {"load": null}}), "does not name"),
            (json!({"audio_encoder": {"load": "whisper"}, "foundation": {"load": "llm"}}), "merge_lora=true"),
        ] {
            let of_run = Manifest { config: json!({"model": model}), ..Manifest::of_files(1, BTreeMap::new()) };
            write(MANIFEST, &of_run.to_text());
            assert!(error().contains(part), "{}", error());
        }
    }
    #[test]
    fn adapters_for_another_program_are_found_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let header = r#"{"a.lora_A.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
        let file = dir.path().join("lora.safetensors");
        std::fs::write(&file, bytes).unwrap();
        let named = dir.path().to_str().unwrap();
        assert_eq!(find_weights(named).unwrap(), file);
        assert_eq!(ModelFolders::find_any(dir.path(), Some(named)).unwrap().adapters, Some(file));
        // Beside weights they are not what is meant.
        std::fs::write(dir.path().join(SINGLE_FILE), "").unwrap();
        assert_eq!(find_weights(named).unwrap(), dir.path());
    }

    #[test]
    fn a_config_is_no_model() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my.yaml");
        std::fs::write(&file, "run: { name: my }").unwrap();
        let error = find_model(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("my.yaml is a config, not a model: name the folder of its run"), "{error}");
    }
}
