//! The Hugging Face folder of a model: its `config.json` under the run's overrides, read before anything is built.

use crate::model::alike;
use crate::model::beside::{TOKENIZER, find_media, find_text_tokenizer, has_preprocessor};
use crate::model::composite::{
    fit_deepstack, has_parts, network_of, put_forced_tokens, put_image_token, put_parts, put_text, section_of,
};
use crate::model::decoder_keys::apply_decoder_keys;
use crate::model::diffusers::{self, read_json};
use crate::model::error::FolderError;
use crate::model::overrides::{apply, grow_vocabulary};
use crate::model::sources::locate;
use crate::model::tied::put_tied;
use loongforge_core::checkpoint::MANIFEST;
use loongforge_core::config::{Experts, Model, ModelKind, Part, RunConfig, code};
use loongforge_core::data::{
    DIFFUSION, DataError, MediaDecoder, ModelCard, Processor, ProcessorFolders, ProcessorOptions, SampleMaker,
    TEXT_TOKENIZER, frozen_towers, is_diffusion, is_fastwam, open_maker,
};
use loongforge_core::files::newest_of_run;
use loongforge_core::message::Tower;
use loongforge_torch::model::ModelConfig;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::Kind;

/// A model folder whose configuration was understood.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// Tokenizer and chat template are here.
    pub path: PathBuf,
    /// The preprocessor configs are here.
    pub media_path: PathBuf,
    /// The file of the text tower's own tokenizer; `None`: it is the model's, or there is no such tower.
    pub text_tokenizer: Option<PathBuf>,
    /// `config.json` with the overrides applied, as a checkpoint will hold it.
    pub json: Value,
    pub config: ModelConfig,
    /// Facts about the model's config that its user should know, a sentence each.
    pub notes: Vec<String>,
}

impl ModelFolder {
    /// Reads `model.config` or the `config.json` of `model.load`, puts the parts' configs into it, and applies
    /// `model.overrides`, whose keys may be dotted.
    ///
    /// # Errors
    /// The file is missing or not JSON, an override names no key, or the model is not one we train.
    pub fn open(model: &Model) -> Result<Self, FolderError> {
        let load = model.load.as_ref().map(|source| locate("model.load", source)).transpose()?;
        let mut json = match (&load, model.config.is_empty()) {
            (_, false) => Value::Object(model.config.clone()),
            (Some(folder), true) => read(folder, &|network| replaces(model, network))?,
            (None, true) if has_parts(model) => Value::Object(serde_json::Map::new()),
            (None, true) => return Err(FolderError::Missing { key: "model.load" }),
        };
        // The tokenizer may be elsewhere.
        let place = match &load {
            Some(folder) if model.config.is_empty() => folder.join("config.json"),
            _ => PathBuf::from("model.config"),
        };
        // Its parts are then those of the program that saved it.
        let as_saved = model.config.is_empty() && model.overrides.is_empty() && !has_parts(model);
        let saved = load.filter(|load| as_saved && is_saved(load, &json));
        let mut notes = Vec::new();
        // A network that another folder has was left out of the folder of a diffusion model.
        let lacks = |(key, part): (&str, &Part)| part.load.is_some() && json.get(network_of(key)).is_none();
        if has_parts(model) || is_diffusion(&json) && model.parts().into_iter().any(lacks) {
            put_parts(&mut json, model, |key, part| match &part.load {
                Some(source) => read(&locate(key, source)?, &|_| false),
                None => Err(FolderError::Missing { key }),
            })?;
            notes.extend(fit_deepstack(&mut json, model));
        }
        put_text(&mut json, model)?;
        for (key, part) in model.parts() {
            for (inner, value) in &part.overrides {
                let section = section_of(&mut json, key).ok_or(FolderError::NoSection { key })?;
                apply(section, inner, value).map_err(|_| FolderError::UnknownPartKey { key, inner: inner.clone() })?;
            }
        }
        let path = match model.tokenizer_source() {
            Some(source) => locate("model.tokenizer", source)?,
            None => return Err(FolderError::Missing { key: "model.tokenizer" }),
        };
        for (key, value) in &model.overrides {
            apply(&mut json, key, value)?;
        }
        if model.resize_embeddings {
            grow_vocabulary(&mut json, &path)?;
        }
        notes.extend(crate::model::composite::ignored(&json));
        let understood = Self::understand(&path, json).map_err(|error| error.of_config(place));
        let understood = understood.map_err(|error| match &saved {
            Some(saved) => error.of_saved(saved),
            None => error,
        });
        let mut folder = Self { notes, ..understood? };
        if let Some(one @ (Experts::High | Experts::Low)) = model.experts {
            folder.config = folder.config.with_one_transformer(one == Experts::High);
        }
        if let Some(encoder) = &model.image_encoder.load {
            let encoder = locate("model.image_encoder.load", encoder)?;
            if has_preprocessor(&encoder) {
                folder.media_path = encoder;
            }
        }
        if let Some(encoder) = model.audio_encoder.load.as_ref().filter(|_| !has_preprocessor(&folder.media_path)) {
            let encoder = locate("model.audio_encoder.load", encoder)?;
            if has_preprocessor(&encoder) {
                folder.media_path = encoder;
            }
        }
        if let Some(source) = &model.text.tokenizer {
            folder.text_tokenizer = Some(locate("model.text.tokenizer", source)?.join(TOKENIZER));
        } else if let Some(source) = &model.text_encoder.load {
            // No other tokenizer would give the ids that the tower knows.
            let encoder = locate("model.text_encoder.load", source)?;
            let found =
                [TEXT_TOKENIZER, TOKENIZER].map(|name| encoder.join(name)).into_iter().find(|file| file.is_file());
            folder.text_tokenizer = Some(found.ok_or(FolderError::Missing { key: "model.text.tokenizer" })?);
        }
        apply_decoder_keys(model, &mut folder.config)?;
        Ok(folder)
    }

    /// Works like [`ModelFolder::open`], settles what `config.model` does not say, and learns what `config.train.preference` says. A
    /// policy whose config has a pool for the `text` tower has its vision-language model there, if that can be a tower.
    ///
    /// # Errors
    /// Fails as [`ModelFolder::open`] and [`ModelFolder::with_preference`] do.
    pub fn open_settled(config: &mut RunConfig) -> Result<Self, FolderError> {
        let model = &mut config.model;
        let mut folder = Self::open(model)?;
        model.settle(folder.model_kind());
        let apart = config.pools.names(Tower::Text).then(|| folder.config.with_prefix_tower()).flatten();
        let is_split = apart.is_some();
        if let Some(apart) = apart {
            folder.config = apart;
        }
        if let Some(policy) = folder.config.foundation.as_policy() {
            let frozen = frozen_towers(&folder.json).map(|frozen| frozen || policy.freezes_tower());
            let parts = match is_split {
                false => [(&mut model.image_encoder, frozen[0]), (&mut model.image_projector, frozen[1])],
                // What it does not have is not trained.
                true => [(&mut model.text_encoder, frozen[0]), (&mut model.text_projector, true)],
            };
            parts.into_iter().filter(|(_, frozen)| *frozen).for_each(|(part, _)| {
                part.freeze.get_or_insert(true);
            });
            if is_fastwam(&folder.json) {
                model.text_encoder.freeze.get_or_insert(true);
                model.vae.freeze.get_or_insert(true);
            }
        }
        let folder = folder.with_token_training(&config.train, config.run.seed)?;
        match &config.train.preference {
            Some(preference) => folder.with_preference(config, preference),
            None => Ok(folder),
        }
    }

    /// Returns whether the model predicts tokens, the noise of pictures, or actions of robots.
    pub fn model_kind(&self) -> ModelKind {
        ModelCard::of(&self.json).kind()
    }

    /// Reads a checkpoint or any other model folder as it is.
    ///
    /// # Errors
    /// Fails as [`ModelFolder::open`] does.
    pub fn open_plain(path: &Path) -> Result<Self, FolderError> {
        let json = read(path, &|_| false)?;
        let is_saved = is_saved(path, &json);
        Self::understand(path, json).map_err(|error| if is_saved { error.of_saved(path) } else { error })
    }

    fn understand(path: &Path, mut json: Value) -> Result<Self, FolderError> {
        put_image_token(&mut json, path);
        put_forced_tokens(&mut json, path)?;
        // What the pipeline reads is not in published configs.
        if json["text"].is_null()
            && let Some(text) = ModelCard::of(&json).text_defaults()
        {
            json["text"] = text;
        }
        let is_composed = json.get("model_type").is_some_and(|name| name == "loongforge_vlm" || name == DIFFUSION);
        let wrong = |source| match is_composed {
            true => FolderError::Parts { code: code::MODEL_PARTS, source },
            false => match alike::hint(path, &json, &source) {
                Some(hint) => FolderError::Alike { path: path.join("config.json"), what: format!("{source}; {hint}") },
                None => FolderError::Model { path: path.join("config.json"), source },
            },
        };
        let config = ModelConfig::from_hf(&json).map_err(wrong)?;
        let text_tokenizer = find_text_tokenizer(path, &json);
        let (path, media_path) = (path.to_owned(), find_media(path, &json));
        Ok(Self { path, media_path, text_tokenizer, json, config, notes: Vec::new() })
    }

    /// Returns the kind that `config.json` names for the weights, where parameters can be of it; else float32.
    pub fn kind(&self) -> Kind {
        let holders = ModelCard::of(&self.json).of_text();
        let named = holders.flat_map(|keys| ["dtype", "torch_dtype"].map(|key| keys[key].as_str())).flatten().next();
        if named == Some("bfloat16") { Kind::BFloat16 } else { Kind::Float }
    }

    /// Returns the processor of samples for this model, which predicts tokens.
    ///
    /// # Errors
    /// Fails as [`Processor::open`] does.
    pub fn processor(&self, options: &ProcessorOptions) -> Result<Processor, DataError> {
        let folders =
            ProcessorFolders { model: &self.path, media: &self.media_path, text: self.text_tokenizer.as_deref() };
        Processor::open_from(folders, &self.json, options)
    }

    /// Returns the maker of samples for this model, whatever it learns; files are decoded by `decoder`.
    ///
    /// # Errors
    /// Fails as [`open_maker`] does.
    pub fn maker(
        &self,
        options: &ProcessorOptions,
        decoder: Arc<dyn MediaDecoder>,
    ) -> Result<Box<dyn SampleMaker>, DataError> {
        let folders =
            ProcessorFolders { model: &self.path, media: &self.media_path, text: self.text_tokenizer.as_deref() };
        open_maker(folders, &self.json, options, decoder)
    }
}

/// Returns whether a network of a diffusion model comes from elsewhere than `model.load`.
fn replaces(model: &Model, network: &str) -> bool {
    let given = |part: &Part| !part.config.is_empty() || part.load.is_some();
    model.parts().iter().any(|(key, part)| network_of(key) == network && given(part))
}

/// Returns the config of a model's folder or file; networks of a diffusion model for which `is_replaced` are left out.
fn read(folder: &Path, is_replaced: &dyn Fn(&str) -> bool) -> Result<Value, FolderError> {
    match diffusers::read(folder, is_replaced)? {
        Some(json) => Ok(json),
        None => {
            let path = folder.join("config.json");
            if folder.is_dir() && !path.exists() {
                return Err(no_model(folder));
            }
            let mut json = read_json(&path)?;
            put_tied(&mut json, folder);
            Ok(json)
        }
    }
}

/// Returns whether a run has saved the model in this folder, or it was exported from what a run saved.
fn is_saved(folder: &Path, json: &Value) -> bool {
    json["model_type"] == "loongforge_vlm" || folder.join(MANIFEST).is_file()
}

/// Returns the error of a folder without a model, which may be the folder of a run.
fn no_model(folder: &Path) -> FolderError {
    let hint =
        newest_of_run(folder).map(|newest| format!("; a run's checkpoints are models: name {}", newest.display()));
    FolderError::NoModel { path: folder.to_owned(), hint: hint.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_without_a_model_is_said_to_have_none_and_a_run_names_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let error = || ModelFolder::open_plain(dir.path()).unwrap_err().to_string();
        assert!(error().ends_with("has no model: neither config.json nor model_index.json"), "{}", error());
        std::fs::create_dir_all(dir.path().join("checkpoints/step-00000006")).unwrap();
        assert!(error().ends_with("checkpoints/step-00000006"), "{}", error());
    }

    #[test]
    fn a_checkpoint_with_a_part_of_another_program_says_that_it_needs_that_one() {
        let dir = tempfile::tempdir().unwrap();
        let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-seed1/config.json");
        let foundation: Value = serde_json::from_slice(&std::fs::read(llama).unwrap()).unwrap();
        let blocks = json!({"model_type": "blocks"});
        let parts = json!({"model_type": "loongforge_vlm", "foundation": foundation, "image_encoder": blocks});
        let error = |config: &Value| {
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let model: Model = serde_json::from_value(json!({"load": dir.path()})).unwrap();
            let opened = [ModelFolder::open_plain(dir.path()), ModelFolder::open(&model)];
            let [plain, loaded] = opened.map(|opened| opened.map(|_| ()).unwrap_err().to_string());
            assert_eq!(plain, loaded);
            plain
        };
        let own = "open the folder with that program, which has families of its own (loongforge::cli::main_with";
        let told = error(&parts);
        assert!(told.contains("image_encoder.model_type is \"blocks\"") && told.contains(own), "{told}");
        let alone = json!({"model_type": "bigram"});
        assert!(!error(&alone).contains(own), "anybody may have written that one");
        std::fs::write(dir.path().join(MANIFEST), "{}").unwrap();
        let told = error(&alone);
        assert!(told.contains("model_type is \"bigram\"") && told.contains(own), "{told}");
    }

    #[test]
    fn a_mistake_in_a_config_is_not_said_to_be_in_the_folder_of_the_tokenizer() {
        let [dir, tokenizer] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let config = json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_position_embeddings": 512});
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let error = |from: Value| {
            let mut model = json!({"tokenizer": tokenizer.path()});
            model.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
            let model: Model = serde_json::from_value(model).unwrap();
            ModelFolder::open(&model).map(|_| ()).unwrap_err().to_string()
        };
        let written = error(json!({"config": config}));
        assert!(written.starts_with("model.config: ") && written.contains("vocab_size is missing"), "{written}");
        let loaded = error(json!({"load": dir.path()}));
        assert!(loaded.starts_with(&format!("{}: ", dir.path().join("config.json").display())), "{loaded}");
    }

    /// A folder of another type, with the tensors of a known one.
    #[test]
    fn an_unknown_model_is_named_by_its_tensors() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures");
        let opened = |fixture: &str, changes: Value| {
            let (from, dir) = (fixtures.join(fixture), tempfile::tempdir().unwrap());
            std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
            let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
            config["model_type"] = json!("newcomer");
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            ModelFolder::open_plain(dir.path()).map(|_| ()).unwrap_err().to_string()
        };
        for (fixture, changes, expected) in [
            ("llama3-seed1", json!({}), "it looks like llama or "),
            ("olmo2-seed1", json!({}), "it looks like olmo2: keys and tensors are those"),
            ("mixtral-seed1", json!({}), "set model.overrides.model_type=mixtral"),
            ("llama3-seed1", json!({"residual_factor": 0.2}), "keys that llama does not read (residual_factor)"),
        ] {
            let error = opened(fixture, changes);
            assert!(error.contains("model_type is \"newcomer\"") && error.contains(expected), "{error}");
        }
        let other = opened("llama3-seed1", json!({"intermediate_size": 40}));
        assert!(!other.contains("looks like") && !other.contains("has the tensors"), "{other}");
    }

    #[test]
    fn a_model_of_parts_without_the_token_of_its_tower_says_what_to_set() {
        let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-seed1/config.json");
        let foundation: Value = serde_json::from_slice(&std::fs::read(llama).unwrap()).unwrap();
        let whisper = json!({"model_type": "whisper", "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48, "num_mel_bins": 8, "max_source_positions": 10});
        let mut config = json!({"model_type": "loongforge_vlm", "foundation": foundation, "audio_encoder": whisper});
        let error = |config: &Value| ModelFolder::understand(Path::new("."), config.clone()).map(|_| ()).unwrap_err();
        let told = error(&config).to_string();
        assert!(
            told.contains("audio_token_id is missing: it is the id of the token that stands for a recording"),
            "{told}"
        );
        assert!(told.contains("set model.config: { audio_token_id: N }"), "{told}");
        config["audio_token_id"] = json!("seven");
        let told = error(&config).to_string();
        assert!(told.contains("audio_token_id") && !told.contains("set model.config"), "{told}");
    }

    #[test]
    fn recordings_are_read_by_the_preprocessor_config_of_their_tower_where_the_model_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let [llm, tower] = ["llm", "tower"].map(|name| dir.path().join(name));
        [&llm, &tower].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-seed1/config.json");
        std::fs::copy(llama, llm.join("config.json")).unwrap();
        let whisper = json!({"model_type": "whisper", "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48, "num_mel_bins": 8, "max_source_positions": 10});
        std::fs::write(tower.join("config.json"), whisper.to_string()).unwrap();
        std::fs::write(tower.join("preprocessor_config.json"), "{}").unwrap();
        let model: Model = serde_json::from_value(json!({"config": {"audio_token_id": 3},
            "audio_encoder": {"load": tower}, "audio_projector": {"config": {"model_type": "linear"}},
            "foundation": {"load": llm}}))
        .unwrap();
        let open = || ModelFolder::open(&model).unwrap();
        assert_eq!((open().path, open().media_path), (llm.clone(), tower));
        std::fs::write(llm.join("preprocessor_config.json"), "{}").unwrap();
        assert_eq!(open().media_path, llm);
    }

    /// A transformer's folder, and the other networks where the user says they are.
    #[test]
    fn networks_of_a_diffusion_model_may_be_in_folders_of_their_own() {
        let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines/wan2.1_i2v/model");
        let of = |name: &str| whole.join(name);
        let model = |load: PathBuf| -> Model {
            serde_json::from_value(
                json!({"load": load, "vae": {"load": of("vae")}, "text_encoder": {"load": of("text_encoder")},
                "image_encoder": {"load": of("image_encoder")}, "text": {"tokenizer": of("tokenizer")}}),
            )
            .unwrap()
        };
        let expected = ModelFolder::open_plain(&whole).unwrap().json;
        for load in [of("transformer"), whole.clone()] {
            let opened = ModelFolder::open(&model(load)).unwrap().json;
            for network in ["transformer", "vae", "text_encoder"] {
                assert_eq!(opened[network], expected[network], "{network}");
            }
            assert_eq!(opened["image_encoder"]["model_type"], expected["image_encoder"]["model_type"]);
        }
    }
}
