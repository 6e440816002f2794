//! Keys of transformers' trainer, which LLaMA-Factory and axolotl both hand on, some under names of their own.

use serde_json::{Map, Value, json};

use super::sheet::{Sheet, schedule};

/// The precision of frozen weights.
pub(super) const FROZEN: &str = "model.foundation.frozen_precision";

/// The reason why PEFT's regular expressions over modules have no counterpart.
pub(super) const REGULAR_EXPRESSION: &str =
    "it is a regular expression: lora.target_modules takes endings of names, or whole names with `*`";

/// The answer to rules for the end of an epoch of interleaved data sets.
pub(super) const EPOCH: &str = "an epoch has the samples of all data sets: set train.steps to the smallest \
     SAMPLES / PROBABILITY of a set (until the first set ends) or the largest (until all have been read), divided by \
     train.global_batch_size";

/// The answer to trackers that are not supported.
pub(super) const TRACKERS: &str =
    "only metrics.jsonl, TensorBoard, W&B, MLflow, Prometheus and a web page are supported";

/// The answer to keys of SwanLab.
pub(super) const SWANLAB: &str = "set log.wandb, whose file `swanlab convert -t wandb-local` sends";

/// The reason why keys of transfers that run beside the computation have no counterpart.
pub(super) const OVERLAP: &str = "communication overlaps automatically";

/// The answer to float16.
pub(super) const NO_FP16: &str = "use bf16, which needs no loss scaling";

/// The answer to keys that save activation memory.
pub(super) const SAVES_MEMORY: &str =
    "model.foundation.recompute: all or memory.activation_budget saves activation memory";

/// The reason why keys of W&B need no counterpart.
pub(super) const NO_WANDB: &str = "nothing is written for W&B unless log.wandb is set";

/// The reason why keys of the loader of data have no counterpart.
pub(super) const READ_AHEAD: &str = "data actors read ahead; pools.data.replicas sets their number";

/// The reason why keys that drop fields of samples need no counterpart.
pub(super) const UNREAD: &str = "fields that a sample's format does not have are never read";

/// The remark that a checkpoint contains more than the model.
pub(super) const WHOLE: &str =
    "a checkpoint also contains the optimizer's state; `loongforge checkpoint export-hf` writes only the model";

impl Sheet {
    /// Freezes the image tower and its projector: beside adapters PEFT trains nothing else.
    pub fn freeze_pictures(&mut self) {
        ["model.image_encoder.freeze", "model.image_projector.freeze"].iter().for_each(|key| self.set(key, true));
    }

    /// Samples of a step: those of a device, under `per_device` or so many by default, times those that are accumulated and the
    /// devices.
    pub fn batch(&mut self, per_device: &str, default: f64) {
        let size = self.number(per_device).unwrap_or(default);
        self.global_batch(size);
        self.arrived(per_device, "train.global_batch_size");
    }

    /// Sets the global batch: samples of a device, times gradient accumulation, times devices.
    fn global_batch(&mut self, of_device: f64) {
        let accumulated = "gradient_accumulation_steps";
        let devices = self.devices().unwrap_or_else(|| {
            self.note("train.global_batch_size is the batch size of one GPU: multiply it by the number of GPUs");
            1.0
        });
        let size = of_device * self.number(accumulated).unwrap_or(1.0) * devices;
        self.set("train.global_batch_size", size as u64);
        self.arrived(accumulated, "train.global_batch_size");
    }

    /// Sets packing where `key` packs: batches are counted in packs then, as theirs are. It is to be read after the duration.
    pub fn packs(&mut self, key: &str) {
        // All packs are made before the first step, unless a number of steps says how many samples are needed.
        let mode = if self.steps().is_some() { "stream" } else { "offline" };
        self.set("data.pack.mode", mode);
        self.arrived(key, "data.pack.mode");
    }

    /// Adds the note about long documents.
    pub fn long_documents(&mut self) {
        self.note(
            "the original splits a text that is longer than a row; here it is skipped or truncated \
             (data.pack.too_long): write shorter texts, or the `.bin` and `.idx` files of Megatron's \
             preprocess_data.py, whose documents are split",
        );
    }

    /// Adds the note about long answers that are compared.
    pub fn long_answers(&mut self) {
        self.note(
            "answers that are compared are not cut: a sample that is longer than data.pack.max_tokens is skipped, \
             where the original truncates it",
        );
    }

    /// Translates the batch of KTO: the samples of a device are a group, and groups are accumulated.
    pub fn batch_of_groups(&mut self, per_device: &str, default: f64) {
        let size = self.number(per_device).unwrap_or(default) as u64;
        self.set("train.preference.group_size", size.max(2));
        self.arrived(per_device, "train.preference.group_size");
        self.global_batch(1.0);
    }

    /// Translates the length of the run: `max_steps` if it is above 0, else the key `epochs`, or this many by default.
    pub fn duration(&mut self, epochs: &str, default: f64) {
        if self.number("max_steps").is_some_and(|steps| steps > 0.0) {
            self.copy("max_steps", "train.steps");
            self.settled("max_steps takes precedence", &[epochs]);
        } else {
            self.set("train.epochs", default);
            self.copy_number(epochs, "train.epochs");
            self.settled("it is not set", &["max_steps"]);
        }
    }

    /// Translates the schedule under `key`, which is `default` by default, its options and its warm-up; the rate is `default_lr` by
    /// default. It is to be read before `learning_rate`.
    pub fn scheduler(&mut self, key: &str, default: &str, default_lr: f64) {
        let (is_constant, is_stable) = (self.is(key, "constant"), self.is(key, "warmup_stable_decay"));
        let options = self.get("lr_scheduler_kwargs").and_then(options);
        let is_linear = |options: &Map<String, Value>| options.get("decay_type").is_some_and(|kind| kind == "linear");
        if is_stable && !options.as_ref().is_some_and(is_linear) {
            self.note(
                "warmup_stable_decay falls along half a cosine in transformers unless its decay_type is linear; \
                 train.schedule: wsd falls linearly",
            );
        }
        let peak = self.number("learning_rate").unwrap_or(default_lr);
        match options.and_then(|options| of_options(&options, peak)) {
            Some(set) if set.is_empty() => {
                self.settled("the schedule here is so in any case", &["lr_scheduler_kwargs"]);
            }
            Some(set) => {
                let names: Vec<&str> = set.iter().map(|(ours, _)| *ours).collect();
                let names = names.join(", ");
                set.into_iter().for_each(|(ours, value)| self.set(ours, value));
                self.arrived("lr_scheduler_kwargs", &names);
            }
            None => {
                let why = "only train.min_lr and train.decay_steps of the schedule can be set";
                self.missing(why, &["lr_scheduler_kwargs"]);
            }
        }
        self.set("train.schedule", default);
        self.with(key, "train.schedule", schedule);
        if is_constant {
            let why = "the schedule `constant` has no warm-up in transformers; `constant_with_warmup` has one";
            self.settled(why, &["warmup_steps", "warmup_ratio"]);
        }
        self.warmup();
    }

    /// Translates `warmup_steps`, which below 1 are a fraction of all steps, or `warmup_ratio`.
    fn warmup(&mut self) {
        let steps = self.number("warmup_steps").unwrap_or(0.0);
        if steps > 0.0 {
            self.settled("warmup_steps takes precedence", &["warmup_ratio"]);
        }
        if steps > 0.0 && steps < 1.0 {
            self.copy_number("warmup_steps", "train.warmup_ratio");
        }
        self.copy("warmup_steps", "train.warmup_steps");
        self.copy_number("warmup_ratio", "train.warmup_ratio");
    }

    /// Sets AdamW with their defaults; its name is under `optimizer`.
    pub fn optimizer(&mut self, optimizer: &str) {
        self.set("train.optimizer.weight_decay", 0.0);
        self.copy_number("weight_decay", "train.optimizer.weight_decay");
        let betas = [("adam_beta1", 0.9), ("adam_beta2", 0.999)];
        let numbers = betas.map(|(key, default)| self.number(key).unwrap_or(default));
        self.set("train.optimizer.betas", json!(numbers));
        betas.iter().for_each(|(key, _)| self.arrived(key, "train.optimizer.betas"));
        self.copy_number("adam_epsilon", "train.optimizer.eps");
        self.copy_number("max_grad_norm", "train.clip_grad");
        match self.get(optimizer).and_then(Value::as_str).unwrap_or("adamw_torch") {
            "adamw_8bit" | "adamw_bnb_8bit" | "paged_adamw_8bit" | "adamw_torch_8bit" => {
                self.optimizer_is("adamw_8bit", optimizer)
            }
            "adamw_torch_4bit" => self.missing("moments have 32 bits, or 8 with adamw_8bit", &[optimizer]),
            "adamw_hf" | "adamw_apex_fused" | "paged_adamw" | "paged_adamw_32bit" => {
                self.settled("AdamW is the optimizer", &[optimizer])
            }
            name if name.starts_with("adamw_torch") => self.settled("AdamW is the optimizer", &[optimizer]),
            "muon" => self.optimizer_is("muon", optimizer),
            _ => self.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &[optimizer]),
        }
    }

    /// Says which parameters decay here, where all do in the original.
    pub fn decay_of_all(&mut self) {
        if self.set_number("train.optimizer.weight_decay").is_some_and(|decay| decay > 0.0) {
            self.note(
                "the original's weight decay applies to all parameters; here norms and biases, which have one \
                 dimension, do not decay",
            );
        }
    }

    /// Sets the type of the optimizer, of which `key` speaks.
    pub fn optimizer_is(&mut self, kind: &str, key: &str) {
        self.set("train.optimizer.type", kind);
        self.arrived(key, "train.optimizer.type");
    }

    /// Sets frozen weights of so many bits, of which `key` speaks: 4 by NF4, or 8.
    pub fn frozen_in(&mut self, bits: u32, doubled: bool, key: &str) {
        let precision = match (bits, doubled) {
            (4, true) => "nf4_double",
            (4, false) => "nf4",
            _ => "int8",
        };
        self.set(FROZEN, precision);
        self.arrived(key, FROZEN);
    }

    /// Gives each data set its probability, of those under `key`, as its weight.
    pub fn probabilities(&mut self, key: &str) {
        let sets = self.ours("data.train").and_then(Value::as_array).cloned().unwrap_or_default();
        self.with(key, "data.train", |value| {
            let shares = numbers(value);
            let is_share = |share: &f64| *share > 0.0 && *share <= 1.0;
            if shares.len() != sets.len() || !shares.iter().all(is_share) || !sets.iter().all(Value::is_object) {
                return Err("it must have a number above 0 and up to 1 for each data set");
            }
            let weighted = sets.into_iter().zip(shares).map(|(mut set, share)| {
                set["weight"] = share.into();
                set
            });
            Ok(weighted.collect())
        });
    }

    /// Translates label smoothing, noise on embeddings, and LoRA+.
    pub fn regularization(&mut self, has_adapters: bool) {
        self.copy_number("label_smoothing_factor", "train.label_smoothing");
        self.copy_number("neftune_noise_alpha", "train.neftune_alpha");
        if has_adapters {
            self.copy_number("loraplus_lr_ratio", "model.foundation.lora.loraplus_lr_ratio");
        }
        self.settled("it applies only to adapters", &["loraplus_lr_ratio"]);
        self.settled("embeddings have no adapters", &["loraplus_lr_embedding"]);
    }

    /// Translates the settings of the preference loss `loss`, except the weight of the likelihood, which each trainer calls otherwise.
    /// They are to be read before beta.
    pub fn preference(&mut self, loss: &str) {
        if loss == "simpo" {
            // Their defaults, and not those of its paper.
            self.set("train.preference.beta", 0.1);
            self.set("train.preference.gamma", 0.5);
            self.copy_number("simpo_gamma", "train.preference.gamma");
        }
        if loss == "sigmoid" {
            self.copy_number("dpo_label_smoothing", "train.preference.label_smoothing");
        }
        self.settled("it applies only to another loss", &["simpo_gamma", "dpo_label_smoothing"]);
    }

    /// Translates the keys of a run's name, evaluations, trackers and checkpoints.
    pub fn run_of_trainer(&mut self) {
        if self.get("save_steps").is_none() && self.get("save_strategy").is_none_or(|it| it == "steps") {
            // Their default.
            self.set("checkpoint.every_steps", 500);
        }
        self.strategy("logging_strategy", "logging_steps", "log.every_steps counts steps");
        self.run(&["run_name", "output_dir"]);
        self.arrived("run_name", "run.name");
        let saves = ["checkpoint.every_steps", "checkpoint.every_epochs"].iter().any(|key| self.has_set(key));
        if saves && !self.has_set("checkpoint.keep_last") {
            self.note(
                "without save_total_limit the original keeps all checkpoints; here the last 3 and the best one are kept: set \
                 checkpoint.keep_last for more",
            );
        }
        if self.is("eval_strategy", "steps") {
            self.every("eval_steps", "eval.every_steps");
            self.arrived("eval_strategy", "eval.every_steps");
        }
        if self.is("eval_strategy", "epoch") && self.has_held_out() && self.every_epochs("eval_strategy", "eval", 1.0) {
            self.settled("it applies only to the strategy `steps`", &["eval_steps"]);
        }
        self.no_evaluation();
        self.compared_answers();
        self.missing("eval.every_steps evaluates during the run", &["eval_strategy", "eval_steps", "eval_on_start"]);
        self.settled("evaluation uses packs of the same size as training", &["per_device_eval_batch_size"]);
        self.best_model();
        self.trackers();
        self.with("train_sampling_strategy", "data.shuffle", |value| match value.as_str() {
            Some("random") => Ok(true.into()),
            Some("sequential") => Ok(false.into()),
            _ => Err("samples are read in random order, or with data.shuffle: false in that of the files"),
        });
        self.settled("use `loongforge run --resume`", &["resume_from_checkpoint"]);
        self.settled("this is always the case", &["do_train", "ddp_timeout"]);
        self.settled(WHOLE, &["save_only_model"]);
    }

    /// Translates the choice of the best checkpoint. The Trainer loads it after the last step, for which no key is needed here.
    fn best_model(&mut self) {
        if self.get("metric_for_best_model").and_then(Value::as_str).is_none_or(|name| name.ends_with("loss")) {
            let keys = ["metric_for_best_model", "greater_is_better"];
            self.settled("the best step is that of the lowest held-out loss", &keys);
        }
        let why = "the best step is that of the lowest held-out loss; eval.best names the set";
        self.missing(why, &["metric_for_best_model", "greater_is_better"]);
        self.settled("the link `best` in checkpoint.dir names the best checkpoint", &["load_best_model_at_end"]);
    }

    /// Trackers, of which there may be several.
    fn trackers(&mut self) {
        let names: Vec<String> = match self.get("report_to") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            name => name.and_then(Value::as_str).into_iter().map(str::to_owned).collect(),
        };
        let mut arrived = Vec::new();
        for (name, ours) in [("wandb", "log.wandb.project"), ("mlflow", "log.mlflow.experiment")] {
            if names.iter().any(|it| it == name) {
                // Theirs is in the environment.
                self.set(ours, "loongforge");
                arrived.push(ours);
            }
        }
        let others = ["tensorboard", "none", "all", "wandb", "mlflow"];
        if names.iter().any(|name| !others.contains(&name.as_str())) {
            let is_swanlab = names.iter().any(|name| name == "swanlab");
            self.missing(if is_swanlab { SWANLAB } else { TRACKERS }, &["report_to"]);
        } else if arrived.is_empty() {
            self.settled("TensorBoard's files are always written", &["report_to"]);
        } else {
            self.arrived("report_to", &arrived.join(", "));
        }
    }

    /// Does what `section` does every so many epochs, as `key` says. False: the run's length is not in epochs, and nothing is set. To
    /// be read after the duration.
    pub fn every_epochs(&mut self, key: &str, section: &str, epochs: f64) -> bool {
        let counts_epochs = self.has_set("train.epochs");
        if counts_epochs {
            let ours = format!("{section}.every_epochs");
            self.unset(section, "every_steps");
            self.set(&ours, epochs);
            self.arrived(key, &ours);
        }
        counts_epochs
    }

    /// Translates a key that says when something is done. Only the strategy `steps` has a counterpart, for the reason `why`; with another
    /// strategy the key `steps` has no effect.
    fn strategy(&mut self, strategy: &str, steps: &str, why: &'static str) {
        match self.get(strategy).is_none_or(|it| it == "steps") {
            true => self.settled(why, &[strategy]),
            false => {
                self.missing(why, &[strategy]);
                self.settled("it applies only to the strategy `steps`", &[steps]);
            }
        }
    }

    /// Translates the times at which a Trainer saves before the end; the default is every `save_steps`.
    fn save_strategy(&mut self) {
        if self.is("save_strategy", "no") {
            let why = "a checkpoint is written only at the end; `checkpoint.at_end: false` turns that off";
            return self.settled(why, &["save_strategy", "save_steps"]);
        }
        if self.is("save_strategy", "epoch") && self.every_epochs("save_strategy", "checkpoint", 1.0) {
            return self.settled("it applies only to the strategy `steps`", &["save_steps"]);
        }
        self.strategy("save_strategy", "save_steps", "checkpoint.every_steps counts steps");
    }

    /// The run's name is the last part of what the first of `names` that is there has.
    pub fn run(&mut self, names: &[&str]) {
        let name = names.iter().find_map(|key| self.get(key).and_then(Value::as_str));
        let name = name.and_then(|name| name.trim_end_matches('/').rsplit('/').next()).unwrap_or("imported").to_owned();
        self.set("run.name", name);
        self.save_strategy();
        self.copy_all(&[("output_dir", "run.dir"), ("seed", "run.seed"), ("save_total_limit", "checkpoint.keep_last")]);
        self.every("logging_steps", "log.every_steps");
        self.every("save_steps", "checkpoint.every_steps");
    }

    /// Translates the steps from one to the next; a number below 1 is a fraction of all steps.
    pub fn every(&mut self, theirs: &str, ours: &str) {
        match (self.number(theirs).filter(|share| *share > 0.0 && *share < 1.0), self.steps()) {
            (None, _) => self.copy(theirs, ours),
            (Some(share), Some(all)) => self.with(theirs, ours, |_| Ok(((share * all as f64).ceil() as u64).into())),
            (Some(_), None) => self.with(theirs, ours, |_| {
                Err("it is a fraction of all steps, whose number depends on the samples: set a number of steps")
            }),
        }
    }
}

/// Reads a list of numbers, also one with commas in a text; nothing if one of them is no number.
fn numbers(value: &Value) -> Vec<f64> {
    let numbers: Option<Vec<f64>> = match value {
        Value::Array(list) => list.iter().map(Value::as_f64).collect(),
        text => text.as_str().unwrap_or_default().split(',').map(|part| part.trim().parse().ok()).collect(),
    };
    numbers.unwrap_or_default()
}

/// Reads the options of a schedule, which are a map or JSON.
fn options(value: &Value) -> Option<Map<String, Value>> {
    let options = value.as_str().map_or_else(|| Ok(value.clone()), serde_json::from_str);
    options.ok().and_then(|options: Value| options.as_object().cloned())
}

/// Returns our keys for the options of a schedule whose highest rate is `peak`; `None`: an option has no counterpart.
fn of_options(options: &Map<String, Value>, peak: f64) -> Option<Vec<(&'static str, Value)>> {
    let mut set = Vec::new();
    for (name, value) in options {
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        match (name.as_str(), number) {
            ("min_lr", Some(rate)) => set.push(("train.min_lr", rate.into())),
            ("min_lr_rate" | "min_lr_ratio", Some(share)) => set.push(("train.min_lr", (share * peak).into())),
            ("num_decay_steps", Some(steps)) if steps >= 1.0 => set.push(("train.decay_steps", (steps as u64).into())),
            // Half a period is their default, and ours.
            ("num_cycles", _) if number == Some(0.5) => {}
            ("decay_type" | "warmup_type", _) if value == "linear" => {}
            _ => return None,
        }
    }
    Some(set)
}
