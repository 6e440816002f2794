//! Rules over which model is trained. Whether a hub id exists is not checked here: there is no network access.

use std::io::ErrorKind;

use super::error::code;
use super::folder_kind::{FolderKind, is_lora_file, is_tensor_file};
use super::validate::Rules;
use super::{Lora, Part, RunConfig, Source, Weights};
use crate::files;
use crate::store::{check_store_url, is_store_url};

impl Rules<'_> {
    /// Checks that there is a model with weights and a tokenizer, that some of it is trained, and that the folders it names contain
    /// what is read from them.
    pub(super) fn model(&mut self, config: &RunConfig) {
        self.named(config);
        self.trained(config);
        self.directories(config);
    }

    /// Checks that there is a model, and that its weights and its tokenizer have a source.
    fn named(&mut self, config: &RunConfig) {
        let model = &config.model;
        let foundation = &model.foundation;
        let described = model.load.is_some()
            || !model.config.is_empty()
            || !foundation.config.is_empty()
            || foundation.load.is_some();
        let keys = ["model.load", "model"];
        self.broken(!described, code::MISSING_KEY, &keys, || {
            let help = "name a Hugging Face directory or hub id, give a `model.config`, or use a built-in config, as \
                        in `defaults: [models/qwen3@model: qwen3_0_6b]` (`loongforge models` lists them)";
            ("no model: `model.load` is missing".to_owned(), help)
        });
        let no_weights =
            described && model.weights == Weights::Load && model.load.is_none() && model.foundation.load.is_none();
        self.broken(no_weights, code::MISSING_KEY, &["model.weights", "model.load", "model"], || {
            let help = "name a directory or hub id with weights in `model.load` or `model.foundation.load`, or set \
                        `model.weights: random`";
            ("no weights: `model.load` is missing".to_owned(), help)
        });
        let no_tokenizer = described && !no_weights && model.tokenizer_source().is_none();
        self.broken(no_tokenizer, code::MISSING_KEY, &["model.tokenizer", "model.load", "model"], || {
            let help = "name a directory or hub id with `tokenizer.json` in `model.tokenizer`";
            ("no tokenizer: `model.tokenizer` is missing".to_owned(), help)
        });
    }

    /// Checks that something is trained, and that adapters are saved only where there are some.
    fn trained(&mut self, config: &RunConfig) {
        let model = &config.model;
        let all_frozen = model.is_all_frozen();
        let keys = ["model.foundation.freeze", "model.image_encoder.freeze", "model.image_projector.freeze"];
        self.broken(all_frozen, code::COMBINATION, &keys, || {
            (
                "image encoder, image projector and foundation are all frozen".to_owned(),
                "nothing would be trained: set one `freeze` to false, or give it a `lora` or `train_patterns`",
            )
        });
        for (key, part) in model.parts() {
            self.lr_ratios(key, part);
            let Some(lora) = &part.lora else { continue };
            let of = |name: &str| format!("{key}.lora.{name}");
            let rate = lora.dropout.unwrap_or(0.0);
            let has_parameters = !lora.target_parameters.is_empty();
            self.broken(rate > 0.0 && has_parameters, code::COMBINATION, &[&of("dropout")], || {
                let help = "PEFT does not support dropout with `target_parameters`: set it to 0, or leave those out";
                (format!("`{}` is {rate}, but `target_parameters` is set", of("dropout")), help)
            });
            self.broken(lora.use_dora == Some(true) && has_parameters, code::COMBINATION, &[&of("use_dora")], || {
                let help = "PEFT does not support DoRA with `target_parameters`: leave one of the two out";
                (format!("both `{}` and `target_parameters` are set", of("use_dora")), help)
            });
            let nothing = lora.target_modules.as_ref().is_some_and(Vec::is_empty) && !has_parameters;
            self.broken(nothing, code::OUT_OF_RANGE, &[&of("target_modules")], || {
                let help = "name what gets adapters, or leave out `lora`";
                (format!("`{}` and `target_parameters` are empty", of("target_modules")), help)
            });
            self.patterns(key, lora);
        }
        self.alike(config);
        let moves = model.moe.bias_update_rate.is_some_and(|rate| rate > 0.0);
        let adapted = model.foundation.lora.is_some();
        let keys = ["model.moe.bias_update_rate", "model.foundation.lora"];
        self.broken(moves && adapted, code::COMBINATION, &keys, || {
            let help = "adapters are added to frozen weights: set it to 0, or leave out `lora`";
            ("both `model.moe.bias_update_rate` and `model.foundation.lora` are set".to_owned(), help)
        });
        let forgets = moves && !adapted && config.saves_adapters_only();
        self.broken(forgets, code::COMBINATION, &["model.moe.bias_update_rate", "checkpoint.merge_lora"], || {
            let help = "a resumed run would start with those of the loaded model: set `checkpoint.merge_lora: true`, \
                        or the rate to 0";
            ("`model.moe.bias_update_rate` moves biases, which checkpoints of adapters do not contain".to_owned(), help)
        });
        let merge = config.checkpoint.merge_lora;
        let adapts = model.parts().iter().any(|(_, part)| part.lora.is_some());
        self.broken(merge && !adapts, code::COMBINATION, &["checkpoint.merge_lora"], || {
            let help = "no part of the model has a `lora`: add one, or leave this out";
            ("`checkpoint.merge_lora` requires adapters".to_owned(), help)
        });
    }

    /// Checks that learning rates by pattern are numbers that multiply one.
    fn lr_ratios(&mut self, key: &str, part: &Part) {
        let is_ratio = |value: &serde_json::Value| value.as_f64().is_some_and(|ratio| ratio > 0.0 && ratio.is_finite());
        for (pattern, value) in part.lr_ratios.iter().filter(|(_, value)| !is_ratio(value)) {
            let key = format!("{key}.lr_ratios");
            self.broken(true, code::OUT_OF_RANGE, &[&key], || {
                (
                    format!("`{key}`: {pattern} is {value}"),
                    "a ratio must be a number above 0; use `freeze_patterns` to freeze",
                )
            });
        }
    }

    /// Ranks and alphas by pattern are numbers that ranks and alphas can be.
    fn patterns(&mut self, key: &str, lora: &Lora) {
        let is_rank = |value: &serde_json::Value| value.as_u64().is_some_and(|rank| (1..=4096).contains(&rank));
        let is_alpha = |value: &serde_json::Value| value.as_f64().is_some_and(|alpha| alpha > 0.0);
        for (pattern, value) in lora.rank_pattern.iter().filter(|(_, value)| !is_rank(value)) {
            let key = format!("{key}.lora.rank_pattern");
            self.broken(true, code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: {pattern} is {value}"), "a rank must be an integer from 1 to 4096")
            });
        }
        for (pattern, value) in lora.alpha_pattern.iter().filter(|(_, value)| !is_alpha(value)) {
            let key = format!("{key}.lora.alpha_pattern");
            self.broken(true, code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: {pattern} is {value}"), "an alpha must be a number above 0")
            });
        }
    }

    /// One `adapter_config.json` has the adapters of all parts.
    fn alike(&mut self, config: &RunConfig) {
        let parts = config.model.parts();
        let loras: Vec<(&str, &Lora)> =
            parts.iter().filter_map(|(key, part)| Some((*key, part.lora.as_ref()?))).collect();
        type Flag = fn(&Lora) -> bool;
        let flags: [(&str, Flag); 2] = [
            ("use_rslora", |lora| lora.use_rslora.unwrap_or(false)),
            ("use_dora", |lora| lora.use_dora.unwrap_or(false)),
        ];
        for (name, flag) in flags {
            let typed = loras.iter().filter(|(_, lora)| lora.adapter.is_none());
            let typed: Vec<(&str, bool)> = typed.map(|(key, lora)| (*key, flag(lora))).collect();
            let other = typed.iter().find(|(_, value)| *value != typed[0].1);
            let Some((key, _)) = other else { continue };
            let [first, key] = [typed[0].0, key].map(|key| format!("{key}.lora.{name}"));
            self.broken(!config.checkpoint.merge_lora, code::COMBINATION, &[&key, &first], || {
                let help = "one adapter_config.json covers the adapters of all parts: set both to the same value, or \
                            `checkpoint.merge_lora: true`";
                (format!("`{first}` and `{key}` differ"), help)
            });
        }
    }

    /// Directories that are named are there and hold what is read from them.
    fn directories(&mut self, config: &RunConfig) {
        let model = &config.model;
        let loads = model.weights == Weights::Load;
        if let Some(source) = &model.load {
            let is_plain = FolderKind::of(source.as_path()) == FolderKind::Plain;
            let needs_config = (model.config.is_empty() && is_plain).then_some("config.json");
            self.directory("model.load", source, needs_config, loads);
        }
        match &model.tokenizer {
            Some(source) => {
                self.directory("model.tokenizer", source, None, false);
                self.holds_tokenizer("model.tokenizer", source);
            }
            None => {
                let from_load = model.load.as_ref().map(|source| ("model.load", source));
                let from_part = model.foundation.load.as_ref().map(|source| ("model.foundation.load", source));
                if let Some((key, source)) = from_load.or(from_part) {
                    self.holds_tokenizer(key, source);
                }
            }
        }
        if let Some(source) = &model.text.tokenizer {
            self.directory("model.text.tokenizer", source, None, false);
            if source.as_path().is_dir() {
                self.holds("model.text.tokenizer", source, "tokenizer.json");
            }
        }
        for (key, part) in model.parts() {
            if let Some(source) = &part.load {
                let needs_config = (part.config.is_empty() && model.config.is_empty() && model.load.is_none())
                    .then_some("config.json");
                self.directory(&format!("{key}.load"), source, needs_config, true);
            }
            if let Some(source) = part.lora.as_ref().and_then(|lora| lora.adapter.as_ref()) {
                let needs = (!is_lora_file(source.as_path())).then_some("adapter_config.json");
                self.directory(&format!("{key}.lora.adapter"), source, needs, true);
            }
        }
    }

    /// Checks the folder `source` of a key: that it exists, has the file `needs`, and, if `weights` are read, tensors of a model.
    /// Folders on the hub or in a store are not checked.
    pub(super) fn directory(&mut self, key: &str, source: &Source, needs: Option<&str>, weights: bool) {
        if is_store_url(source.as_str())
            && let Err(reason) = check_store_url(source.as_str())
        {
            return self.broken(true, code::OUT_OF_RANGE, &[key], || {
                (format!("`{key}` {reason}"), "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            });
        }
        if source.is_elsewhere() {
            return;
        }
        let dir = source.as_path();
        if is_tensor_file(dir) {
            return;
        }
        if !dir.is_dir() {
            let what = if dir.exists() { "is not a directory" } else { "no such directory" };
            return self.missing(key, dir, what);
        }
        if let Some(newest) = files::newest_of_run(dir) {
            return self.broken(true, code::NO_SUCH_FILE, &[key], || {
                let message = format!(
                    "`{key}`: `{source}` is the folder of a run; its newest checkpoint is `{}`",
                    newest.display()
                );
                (message, "name the checkpoint: it has the files of a model")
            });
        }
        // Which of its networks are needed shows when they are read.
        if FolderKind::of(dir) == FolderKind::Pipeline {
            return;
        }
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let tensors: Vec<String> =
            names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".safetensors")).collect();
        // A checkpoint of a run has optimizer state beside them.
        let is_beside = |name: &String| name.ends_with("adapter_model.safetensors") || name.starts_with("optimizer-");
        let is_adapter = dir.join("adapter_config.json").is_file() && tensors.iter().all(is_beside);
        if !key.ends_with(".adapter") && weights && is_adapter {
            return self.broken(true, code::NO_SUCH_FILE, &[key], || {
                let help = match key {
                    "model.reference.load" => "merge them into their base first: `loongforge checkpoint export-hf`",
                    _ => {
                        "load their base, and continue from them with `model.foundation.lora.adapter`; or merge them \
                         first: `loongforge checkpoint export-hf`"
                    }
                };
                (format!("`{key}`: `{}` holds adapters, not a model", dir.display()), help)
            });
        }
        if let Some(name) = needs {
            let lone = tensors.iter().min().filter(|_| key.ends_with(".adapter") && !dir.join("config.json").is_file());
            if let Some(file) = lone.filter(|_| !dir.join(name).is_file()) {
                let help = format!("name a file of adapters: {}", dir.join(file).display());
                return self.broken(true, code::NO_SUCH_FILE, &[key], || {
                    (format!("`{key}`: no `{name}` in `{source}`"), help.as_str())
                });
            }
            self.holds(key, source, name);
        }
        let pickle =
            ["pytorch_model.bin", "pytorch_model.bin.index.json"].map(|name| dir.join(name)).iter().any(|p| p.exists());
        self.broken(weights && tensors.is_empty(), code::NO_SUCH_FILE, &[key], || {
            let help = match key {
                _ if pickle => {
                    "its weights are pickle files (pytorch_model.bin), which run code when they are opened and are never \
                     read: convert it once where you trust it, with transformers' `save_pretrained`"
                }
                "model.load" => "set `model.weights: random` to start from random weights",
                _ => "weights are read from `.safetensors` files, never from pickle",
            };
            (format!("`{key}`: no `.safetensors` weights in `{}`", dir.display()), help)
        });
    }

    /// A directory that is there has a tokenizer of a kind that is read.
    fn holds_tokenizer(&mut self, key: &str, source: &Source) {
        let dir = source.as_path();
        match FolderKind::of(dir) {
            FolderKind::Network => return,
            // A checkpoint whose model came without a folder of its tokenizer has its files beside the index.
            FolderKind::Pipeline if dir.join("tokenizer.json").is_file() => return,
            FolderKind::Pipeline => return self.holds(key, source, "tokenizer/tokenizer.json"),
            FolderKind::Plain => {}
        }
        let others = ["qwen.tiktoken", "tiktoken.model"];
        if dir.is_dir() && files::newest_of_run(dir).is_none() && !others.iter().any(|name| dir.join(name).is_file()) {
            self.holds(key, source, "tokenizer.json");
        }
    }

    fn holds(&mut self, key: &str, source: &Source, name: &str) {
        let found = files::metadata(&source.as_path().join(name));
        self.broken(found.is_err(), code::NO_SUCH_FILE, &[key], || {
            let message = match &found {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    format!("`{key}`: `{name}` in `{source}`: {error}")
                }
                _ => format!("`{key}`: no `{name}` in `{source}`"),
            };
            (message, "a model directory has the files of a Hugging Face repository")
        });
    }
}
