//! torchtitan's TOML, of the releases that have one, and its commands (`torchrun … -m torchtitan.train --job.config_file FILE
//! --training.steps 10`). Later versions are configured by Python, which is not read.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::flags::Flags;
use super::sheet::Sheet;
use super::shell::Word;
use super::trainer::{READ_AHEAD, WHOLE};
use super::variables::TORCHTITAN;
use super::{hub, toml, torchtitan_layout};
use crate::files;

/// Names of its program: the module, and the script that starts it.
pub(super) const PROGRAMS: [&str; 2] = ["torchtitan.train", "run_train.sh"];
const FILE: &str = "job.config_file";
/// Keys one of which every config has beside those of `training`.
const OWN: [&str; 5] =
    ["job.dump_folder", "job.description", "model.flavor", "model.name", "lr_scheduler.warmup_steps"];
/// Names of earlier releases, and a variable that is an option of its launcher.
const RENAMED: [(&str, &str); 10] = [
    ("NGPU", "nproc_per_node"),
    ("checkpoint.enable_checkpoint", "checkpoint.enable"),
    ("checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"),
    ("checkpoint.model_weights_only", "checkpoint.last_save_model_only"),
    ("experimental.context_parallel_degree", "parallelism.context_parallel_degree"),
    ("lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"),
    ("job.print_args", "job.print_config"),
    ("training.batch_size", "training.local_batch_size"),
    ("training.deterministic", "debug.deterministic"),
    ("training.seed", "debug.seed"),
];

/// Returns whether these are keys of torchtitan's TOML.
pub(super) fn is_config(fields: &Map<String, Value>) -> bool {
    let trains = fields.keys().any(|key| key.starts_with("training."));
    trains && OWN.iter().any(|key| fields.contains_key(*key))
}

/// Returns the keys of a file, under the names of its last release.
pub(super) fn renamed(mut flags: Flags) -> Flags {
    RENAMED.iter().for_each(|(old, new)| flags.rename(old, new));
    flags
}

/// Returns the options of a command that calls torchtitan, and the keys of the config that it names where that is here.
pub(super) fn command(program: &str, before: &[Word], after: &[Word]) -> Option<Flags> {
    let mut flags = Flags::of_command(before, after);
    let is_script = program.rsplit('/').next() == Some(PROGRAMS[1]);
    if is_script {
        before.iter().for_each(|word| flags.variable(&TORCHTITAN, word));
    }
    let mut flags = renamed(flags);
    let (option, variable) = (flags.fields.remove(FILE), flags.fields.remove(TORCHTITAN[0]));
    let is_own = program == PROGRAMS[0] || program.ends_with("torchtitan/train.py") || option.is_some();
    // Other programs have a script of this name as well.
    let trains = variable.is_some() || flags.fields.keys().any(|key| key.starts_with("training."));
    if !(is_own || is_script && trains) {
        return None;
    }
    match option.or(variable).as_ref().and_then(Value::as_str) {
        Some(path) => Some(flags.with_file(path, of_file(path))),
        None => Some(flags),
    }
}

fn of_file(path: &str) -> Option<Flags> {
    let fields = toml::read(&files::read_text(Path::new(path)).ok()?).ok()?;
    Some(renamed(Flags::of_fields(fields)))
}

/// Returns why a run is not translated: anything else in its place would train something that was not asked for.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let name = fields.get("model.name").and_then(Value::as_str)?;
    let is_flux = name.starts_with("flux");
    is_flux.then(|| format!("torchtitan's model `{name}` has no counterpart: only language models are translated"))
}

/// Translates all keys.
pub(super) fn read(sheet: &mut Sheet) {
    run(sheet);
    model(sheet);
    data(sheet);
    rates(sheet);
    torchtitan_layout::read(sheet);
    checkpoints(sheet);
    evaluation(sheet);
}

fn run(sheet: &mut Sheet) {
    let text = |key: &str, default: &str| sheet.text(key).unwrap_or_else(|| default.to_owned());
    let name = format!("{}-{}", text("model.name", "llama3"), text("model.flavor", "debugmodel"));
    sheet.set("run.name", name);
    sheet.set("run.dir", "./outputs");
    sheet.copy_all(&[
        ("job.dump_folder", "run.dir"),
        ("debug.seed", "run.seed"),
        ("debug.deterministic", "run.deterministic"),
    ]);
    sheet.settled("operators without a deterministic variant end a run", &["debug.deterministic_warn_only"]);
    sheet.missing("experts are chosen by the router", &["debug.moe_force_load_balance"]);
    sheet.settled("a description is read by nobody", &["job.description", "job.use_for_integration_test"]);
    sheet.settled("`loongforge check` shows the config", &["job.print_config", "job.save_config_file"]);
    // Their defaults, here and below.
    sheet.set("log.every_steps", 10);
    sheet.copy("metrics.log_freq", "log.every_steps");
    sheet.set("log.tensorboard", false);
    sheet.copy("metrics.enable_tensorboard", "log.tensorboard");
    if sheet.is_true("metrics.enable_wandb") {
        sheet.set("log.wandb.project", "torchtitan");
        sheet.arrived("metrics.enable_wandb", "log.wandb");
    }
    sheet.settled_all("metrics are written to the run's folder", &["metrics."]);
    sheet.missing("set watch.profile to the first step and the number of steps", &["profiling.enable_profiling"]);
    sheet.missing("docs/memory.md says what a run holds", &["profiling.enable_memory_snapshot"]);
    sheet.settled_all("it applies only to what is turned on", &["profiling."]);
    sheet.missing("a process that dies is replaced by the scheduler", &["fault_tolerance.enable"]);
    sheet.settled_all("it applies only to what is turned on", &["fault_tolerance.", "memory_estimation."]);
}

/// Translates the model, which has random weights unless a checkpoint of Hugging Face is named.
fn model(sheet: &mut Sheet) {
    const FOLDER: &str = "model.hf_assets_path";
    const INITIAL: &str = "checkpoint.initial_load_path";
    let loads = sheet.is_true("checkpoint.initial_load_in_hf");
    let initial = sheet.text(INITIAL).filter(|_| loads);
    if initial.is_some() {
        sheet.copy(FOLDER, "model.tokenizer");
        sheet.copy(INITIAL, "model.load");
    }
    sheet.copy(FOLDER, "model.load");
    sheet.copy("model.tokenizer_path", "model.tokenizer");
    if loads {
        sheet.arrived("checkpoint.initial_load_in_hf", "model.load");
    } else {
        sheet.set("model.weights", "random");
        sheet.settled("weights are random", &["checkpoint.initial_load_in_hf"]);
    }
    sheet.missing("name a Hugging Face folder as model.load: DCP's checkpoints are not read", &[INITIAL]);
    sheet.note(
        "the model is that of config.json in model.load, which must be the model that name and flavor mean: a folder \
         of the tokenizer alone has none",
    );
    balance(sheet);
    sheet.settled("config.json in model.load determines the model", &["model.name", "model.flavor"]);
    if sheet.get("model.converters").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        sheet.settled("it is off", &["model.converters"]);
    }
    let converted = sheet.get("model.converters").is_some();
    sheet.missing("train.precision is float32 or bf16", &["model.converters"]);
    let why = match converted {
        true => "it belongs to model.converters",
        false => "model.converters does not turn it on",
    };
    sheet.settled_all(why, &["quantize.", "float8.", "mx.", "model.print_after_conversion"]);
}

/// Translates the step by which biases of routers follow the load of their experts. Flavors have it in torchtitan's program, and no
/// section of its TOML does.
fn balance(sheet: &mut Sheet) {
    const OURS: &str = "model.moe.bias_update_rate";
    let [name, flavor] = ["model.name", "model.flavor"].map(|key| sheet.text(key).unwrap_or_default().to_lowercase());
    // `A3B` is how many parameters are active.
    let is_active = |part: &str| part.strip_prefix('a').is_some_and(|size| size.starts_with(char::is_numeric));
    let is_mixture = ["deepseek", "llama4", "gpt_oss"].iter().any(|begin| name.starts_with(begin))
        || flavor.contains("moe")
        || flavor.split(['-', '_']).any(is_active);
    let keys: Vec<String> = sheet.fields().keys().filter(|key| key.ends_with("load_balance_coeff")).cloned().collect();
    if is_mixture && keys.is_empty() {
        sheet.note(
            "torchtitan's mixtures of experts move the biases of their routers by load_balance_coeff at each step, \
             0.001 in most flavors: set model.moe.bias_update_rate to it if the model has such biases",
        );
    }
    keys.iter().for_each(|key| sheet.copy_number(key, OURS));
}

/// Returns the path of a data set: one of C4, or what is at `path`.
fn set(name: &str, path: Option<&str>) -> Option<String> {
    let name = name.to_lowercase();
    let split = (name == "c4_validation").then_some("validation");
    let is_c4 = name == "c4" || split.is_some();
    match path {
        Some(path) if !hub::is_of_hub(path) => Some(path.to_owned()),
        Some(path) if !is_c4 => Some(hub::path(path, &[])),
        path => is_c4.then(|| hub::path(path.unwrap_or("allenai/c4"), &[Some("en"), split])),
    }
}

fn data(sheet: &mut Sheet) {
    let keys = ["training.dataset", "training.dataset_path"];
    let [name, path] = keys.map(|key| sheet.text(key));
    match set(name.as_deref().unwrap_or("c4_test"), path.as_deref()) {
        Some(path) => {
            sheet.set("data.train", json!([{ "path": path }]));
            keys.iter().for_each(|key| sheet.arrived(key, "data.train"));
        }
        None => {
            sheet.note("the data set is one that torchtitan's program knows by name: name its files in data.train");
            sheet.missing("name its files in data.train", &keys);
        }
    }
    sheet.set("train.phase", "pretrain");
    sheet.set("data.shuffle", false);
    sheet.set("data.pack.mode", "stream");
    sheet.set("data.pack.max_tokens", 2048);
    sheet.copy("training.seq_len", "data.pack.max_tokens");
    sheet.note(
        "torchtitan cuts rows from one stream of documents, which attend to each other within a row in most models; \
         here a pack has whole documents, or pieces of long ones, and none attends to another",
    );
    sheet.settled_all(READ_AHEAD, &["training.dataloader.", "validation.dataloader."]);
}

/// Translates the rate, which is constant between warm-up and decay.
fn rates(sheet: &mut Sheet) {
    const RATIO: &str = "lr_scheduler.decay_ratio";
    const KIND: &str = "lr_scheduler.decay_type";
    let number = |key: &str, default: f64| sheet.number(key).unwrap_or(default);
    let (lr, steps) = (number("optimizer.lr", 8e-4), number("training.steps", 10_000.0));
    let all = number("lr_scheduler.total_steps", steps);
    let end = all.min(steps).max(0.0);
    let warmup = number("lr_scheduler.warmup_steps", 200.0).clamp(0.0, end);
    let betas = [number("optimizer.beta1", 0.9), number("optimizer.beta2", 0.95)];
    let least = number("lr_scheduler.min_lr_factor", 0.0) * lr;
    let decay = sheet.number(RATIO).map(|ratio| (ratio * all).round().min(end - warmup));
    sheet.set("train.lr", lr);
    sheet.set("train.steps", steps as u64);
    sheet.set("train.warmup_steps", warmup as u64);
    sheet.set("train.min_lr", least);
    let kind = sheet.text(KIND).unwrap_or_else(|| "linear".to_owned());
    let is_stable = decay.is_some_and(|decay| decay < end - warmup);
    let never_falls = decay.is_some_and(|decay| decay < 1.0);
    sheet.set("train.schedule", if is_stable { "wsd" } else { "linear" });
    if let Some(decay) = decay.filter(|_| is_stable && !never_falls) {
        sheet.set("train.decay_steps", decay as u64);
    }
    match (kind.as_str(), is_stable) {
        _ if never_falls => sheet.set("train.schedule", "constant"),
        ("linear", _) => {}
        ("cosine", false) => sheet.set("train.schedule", "cosine"),
        _ => {
            sheet.note("the rate falls linearly here: decay_type sqrt, and cosine with decay_ratio, are not supported");
            sheet.missing("the rate falls linearly", &[KIND]);
        }
    }
    sheet.arrived(KIND, "train.schedule");
    sheet.arrived(RATIO, "train.decay_steps");
    sheet.arrived("lr_scheduler.min_lr_factor", "train.min_lr");
    sheet.arrived("lr_scheduler.warmup_steps", "train.warmup_steps");
    sheet.arrived("optimizer.lr", "train.lr");
    sheet.arrived("training.steps", "train.steps");
    if all != steps {
        sheet.missing("the schedule ends with train.steps", &["lr_scheduler.total_steps"]);
    }
    sheet.settled("the schedule ends with train.steps", &["lr_scheduler.total_steps"]);
    sheet.set("train.optimizer.betas", json!(betas));
    ["optimizer.beta1", "optimizer.beta2"].iter().for_each(|key| sheet.arrived(key, "train.optimizer.betas"));
    sheet.set("train.optimizer.weight_decay", 0.1);
    sheet.copy_number("optimizer.weight_decay", "train.optimizer.weight_decay");
    sheet.decay_of_all();
    sheet.copy_number("optimizer.eps", "train.optimizer.eps");
    sheet.set("train.clip_grad", 1.0);
    sheet.copy_number("training.max_norm", "train.clip_grad");
    if sheet.is("optimizer.name", "AdamW") {
        sheet.settled("AdamW is the optimizer", &["optimizer.name"]);
    }
    sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &["optimizer.name"]);
    let computed = ["optimizer.implementation", "optimizer.fused", "optimizer.early_step_in_backward"];
    sheet.settled("how a step is computed is built in", &computed);
}

fn checkpoints(sheet: &mut Sheet) {
    if sheet.is_true("checkpoint.enable") {
        sheet.set("checkpoint.every_steps", 500);
        sheet.copy("checkpoint.interval", "checkpoint.every_steps");
        sheet.set("checkpoint.keep_last", 10);
        if sheet.number("checkpoint.keep_latest_k") == Some(0.0) {
            let why = "checkpoint.keep_last is at least 1: set it to as many as there are room for";
            sheet.with("checkpoint.keep_latest_k", "checkpoint.keep_last", |_| Err(why));
        }
        sheet.copy("checkpoint.keep_latest_k", "checkpoint.keep_last");
        let is_async = sheet.text("checkpoint.async_mode").is_some_and(|mode| mode != "disabled");
        sheet.set("checkpoint.async", is_async);
        sheet.arrived("checkpoint.async_mode", "checkpoint.async");
        sheet.arrived("checkpoint.enable", "checkpoint.every_steps");
    } else {
        sheet.set("checkpoint.every_steps", 0);
        sheet.set("checkpoint.at_end", false);
        sheet.arrived("checkpoint.enable", "checkpoint.at_end");
        sheet.note("without checkpoint.enable torchtitan writes no checkpoint: drop checkpoint.at_end to write one");
        let keys = ["checkpoint.interval", "checkpoint.keep_latest_k", "checkpoint.async_mode"];
        sheet.settled("it applies only with checkpoint.enable", &keys);
    }
    sheet.settled("checkpoints lie in the run's folder; checkpoint.dir is another one", &["checkpoint.folder"]);
    sheet.settled("checkpoints are Hugging Face folders", &["checkpoint.last_save_in_hf"]);
    sheet.settled(WHOLE, &["checkpoint.last_save_model_only", "checkpoint.export_dtype"]);
    sheet.settled("use `loongforge run --resume`", &["checkpoint.load_step"]);
    let initial = ["checkpoint.initial_load_model_only", "checkpoint.initial_load_in_hf_quantized"];
    sheet.settled("model.load names weights, whatever their precision", &initial);
    sheet.settled("samples that were read are part of a checkpoint", &["checkpoint.enable_ft_dataloader_checkpoints"]);
    let others = ["enable_first_step_checkpoint", "create_seed_checkpoint", "load_only"];
    others.iter().for_each(|name| {
        sheet.missing("checkpoints are written every checkpoint.every_steps steps", &[&format!("checkpoint.{name}")]);
    });
}

/// Translates the keys of held-out data.
fn evaluation(sheet: &mut Sheet) {
    if sheet.is_true("validation.enable") {
        let keys = ["validation.dataset", "validation.dataset_path"];
        let [name, path] = keys.map(|key| sheet.text(key));
        if let Some(path) = set(name.as_deref().unwrap_or("c4_validation"), path.as_deref()) {
            sheet.set("eval.path", path);
            sheet.set("eval.every_steps", 10);
            sheet.copy("validation.freq", "eval.every_steps");
            ["validation.enable", keys[0], keys[1]].iter().for_each(|key| sheet.arrived(key, "eval.path"));
        }
        sheet.missing("name held-out files in eval.path", &["validation.enable", keys[0], keys[1], "validation.freq"]);
        sheet.missing("eval.max_samples bounds how many samples are read", &["validation.steps"]);
    }
    let packs = "evaluation uses packs of the same size as training";
    sheet.settled(packs, &["validation.local_batch_size", "validation.seq_len"]);
    sheet.settled_all("it is off", &["validation."]);
}
