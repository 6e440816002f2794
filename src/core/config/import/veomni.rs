//! VeOmni's YAML, and its command lines, which name a YAML file and replace keys of it (`bash train.sh tasks/train_text.py FILE
//! --train.optimizer.lr 1e-5`). Here is what a run is; model and data, and the training, are in files of their own.

use serde_json::{Map, Value};

use super::flags::{Flags, keys_of_file, split_config};
use super::sheet::Sheet;
use super::shell::Word;
use super::trainer::NO_WANDB;
use super::{veomni_model, veomni_train};

/// Keys one of which every config has, and no config of another trainer.
const OWN: [&str; 3] = ["data.train_path", "model.model_path", "model.config_path"];
/// Keys whose value is a map; other maps are sections.
const MAPS: [&str; 3] = ["model.model_config", "model.lora_config.rank_pattern", "model.lora_config.alpha_pattern"];
/// Programs that train by reinforcement, or models that are made of parts or generate pictures.
const REFUSED_TASKS: [&str; 6] =
    ["train_text_rl", "train_vlm_rl", "train_dit", "train_flux", "train_wan", "train_omni_model"];

/// Beginnings of keys that only models made of parts, taught by others or that generate pictures have.
const OF_OTHERS: [&str; 5] =
    ["model.condition_model_", "model.decoders.", "model.encoders.", "model.teacher_model_", "train.training_task"];

/// Names of the first versions, and those that took their place, in `train`.
const RENAMED: [(&str, &str); 34] = [
    ("accelerator.offload.activation_gpu_limit", "accelerator.offload_config.activation_gpu_limit"),
    ("accelerator.offload.enable_activation", "accelerator.offload_config.enable_activation"),
    ("activation_gpu_limit", "accelerator.offload_config.activation_gpu_limit"),
    ("ckpt_manager", "checkpoint.manager"),
    ("context_parallel_size", "accelerator.cp_size"),
    ("data_parallel_mode", "accelerator.fsdp_config.fsdp_mode"),
    ("data_parallel_replicate_size", "accelerator.dp_replicate_size"),
    ("data_parallel_shard_size", "accelerator.dp_shard_size"),
    ("enable_activation_offload", "accelerator.offload_config.enable_activation"),
    ("enable_compile", "torch_compile.enable"),
    ("enable_forward_prefetch", "accelerator.fsdp_config.forward_prefetch"),
    ("enable_fsdp_offload", "accelerator.fsdp_config.offload"),
    ("enable_full_shard", "accelerator.fsdp_config.reshard_after_forward"),
    ("enable_gradient_checkpointing", "gradient_checkpointing.enable"),
    ("enable_mixed_precision", "accelerator.fsdp_config.mixed_precision.enable"),
    ("enable_profiling", "profile.enable"),
    ("enable_reentrant", "gradient_checkpointing.enable_reentrant"),
    ("ep_outside", "accelerator.ep_outside"),
    ("expert_parallel_size", "accelerator.ep_size"),
    ("load_checkpoint_path", "checkpoint.load_path"),
    ("lr", "optimizer.lr"),
    ("lr_decay_ratio", "optimizer.lr_decay_ratio"),
    ("lr_decay_style", "optimizer.lr_decay_style"),
    ("lr_min", "optimizer.lr_min"),
    ("lr_start", "optimizer.lr_start"),
    ("lr_warmup_ratio", "optimizer.lr_warmup_ratio"),
    ("max_grad_norm", "optimizer.max_grad_norm"),
    ("optimizer", "optimizer.type"),
    ("output_dir", "checkpoint.output_dir"),
    ("pipeline_parallel_size", "accelerator.pp_size"),
    ("save_async", "checkpoint.save_async"),
    ("tensor_parallel_size", "accelerator.tp_size"),
    ("ulysses_parallel_size", "accelerator.ulysses_size"),
    ("weight_decay", "optimizer.weight_decay"),
];
/// Keys that only moved into a section of this name.
const MOVED: [(&str, &[&str]); 2] = [
    ("checkpoint", &["save_steps", "save_epochs", "hf_save_steps", "hf_save_epochs", "save_hf_weights"]),
    ("optimizer", &["no_decay_modules", "no_decay_params"]),
];

/// Returns whether these are the keys of VeOmni's YAML.
pub(super) fn is_config(fields: &Map<String, Value>) -> bool {
    let has = |key: &str| {
        let (section, key) = key.split_once('.').unwrap_or_default();
        fields.get(section).and_then(|section| section.get(key)).is_some_and(|value| !value.is_null())
    };
    fields.get("train").is_some_and(Value::is_object) && OWN.into_iter().any(has)
}

/// Returns the keys of a file, dotted as on a command line, under the names that they have now.
pub(super) fn flat(fields: Map<String, Value>) -> Flags {
    let mut all = Map::new();
    flatten("", fields, &mut all);
    renamed(Flags::of_fields(all))
}

fn flatten(begin: &str, fields: Map<String, Value>, all: &mut Map<String, Value>) {
    for (key, value) in fields {
        let key = format!("{begin}{key}");
        match value {
            Value::Object(inner) if !MAPS.contains(&key.as_str()) && !inner.is_empty() => {
                flatten(&format!("{key}."), inner, all);
            }
            value => _ = all.insert(key, value),
        }
    }
}

fn renamed(mut flags: Flags) -> Flags {
    for (old, new) in RENAMED {
        flags.rename(&format!("train.{old}"), &format!("train.{new}"));
    }
    for (section, keys) in MOVED {
        keys.iter().for_each(|key| flags.rename(&format!("train.{key}"), &format!("train.{section}.{key}")));
    }
    flags.rename("train.dyn_bsz_buffer_size", "data.dyn_bsz_buffer_size");
    flags
}

/// Returns the options of a command that calls one of VeOmni's programs, and the keys of the config that it names where that is here.
/// Before the program may be a launcher.
pub(super) fn command(program: &str, before: &[Word], after: &[Word]) -> Option<Flags> {
    let (config, options) = split_config(after, &[".yaml", ".yml"]);
    let flags = Flags::of_command(before, options);
    let unsaid = flags.unsaid();
    let is_own = OWN.iter().any(|key| flags.fields.contains_key(*key) || unsaid.contains(*key));
    let is_task = program.split('/').any(|part| part == "tasks") && task(program).starts_with("train_");
    if !(is_own || is_task && config.is_some()) {
        return None;
    }
    let flags = renamed(flags);
    match config {
        Some(path) => Some(flags.with_file(path, keys_of_file(path).map(flat))),
        None => Some(flags),
    }
}

/// Returns the name of a program without its folder.
fn task(program: &str) -> &str {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.strip_suffix(".py").unwrap_or(name)
}

/// Returns why a run is not translated: anything else in its place would train something that was not asked for.
pub(super) fn refused(program: &str, fields: &Map<String, Value>) -> Option<String> {
    const TRANSLATED: &str = "only language and vision-language models are translated, with data_type plaintext, \
                              conversation or dpo";
    let task = task(program);
    if REFUSED_TASKS.contains(&task) {
        return Some(format!("VeOmni's task `{task}` has no counterpart: {TRANSLATED}"));
    }
    let kind = fields.get("data.data_type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| !["plaintext", "conversation", "dpo"].contains(kind)) {
        return Some(format!("VeOmni's data_type `{kind}` has no counterpart: {TRANSLATED}"));
    }
    let is_other = |key: &&String| OF_OTHERS.iter().any(|begin| key.starts_with(begin));
    let key = fields.keys().find(is_other)?;
    Some(format!("VeOmni's models with `{key}` have no counterpart: {TRANSLATED}"))
}

/// Translates all keys.
pub(super) fn read(sheet: &mut Sheet) {
    veomni_model::read(sheet);
    veomni_train::read(sheet);
    run(sheet);
}

fn run(sheet: &mut Sheet) {
    let output = sheet.text("train.checkpoint.output_dir").unwrap_or_else(|| "output".to_owned());
    let last = output.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let name = ["train.wandb.name", "train.wandb_name"].iter().find_map(|key| sheet.text(key)).unwrap_or(last);
    sheet.set("run.name", name);
    sheet.set("run.dir", output);
    sheet.arrived("train.checkpoint.output_dir", "run.dir");
    // Their default.
    sheet.set("run.seed", 42);
    sheet.copy_all(&[("train.seed", "run.seed"), ("train.enable_full_determinism", "run.deterministic")]);
    sheet.missing("`run.deterministic` applies to all operators", &["train.enable_batch_invariant_mode"]);
    wandb(sheet);
    sheet.settled(
        "VeOmni has the keys and evaluates nothing; eval.path and eval.every_steps do",
        &["data.eval_path", "train.eval_steps", "train.eval_epochs"],
    );
    let profile = "set watch.profile to the first step and the number of steps";
    sheet.missing(profile, &["train.profile.enable"]);
    sheet.missing("losses of data sets are those of eval.sets", &["train.channel_loss.enable"]);
    sheet.missing("there is no heatmap of the experts' load", &["train.moe_load_balance_monitor_interval"]);
    sheet.missing("data.pack.max_tokens bounds the memory of a pack", &["train.chunk_mbs_config.enable"]);
    sheet.settled_all(
        "it applies only to what `enable` turns on",
        &["train.profile.", "train.profile_", "train.channel_loss.", "train.chunk_mbs_config."],
    );
    sheet.settled_all("operators are already compiled", &["train.torch_compile."]);
    sheet.settled(
        "libtorch's allocator frees memory, and there is no Python garbage collection",
        &["train.empty_cache_steps", "train.gc_steps"],
    );
    sheet.settled(
        "weights are read by the ranks that hold them",
        &["train.init_device", "train.broadcast_model_weights_from_rank0", "train.ep_sharded_stream_load"],
    );
    sheet.settled(
        "steps overlap where nothing depends on them",
        &["train.sync_each_train_step", "train.allow_cuda_launch_blocking"],
    );
}

/// Translates the keys of W&B, which the first versions turned on unless told otherwise.
fn wandb(sheet: &mut Sheet) {
    let old = ["train.use_wandb", "train.wandb_project", "train.wandb_name"];
    let is_old = old.iter().any(|key| sheet.get(key).is_some());
    let is_on =
        sheet.is_true("train.wandb.enable") || (is_old && sheet.get("train.use_wandb") != Some(&Value::Bool(false)));
    if is_on {
        sheet.set("log.wandb.project", "VeOmni");
        for (theirs, ours) in [("project", "log.wandb.project"), ("name", "log.wandb.name")] {
            sheet.copy(&format!("train.wandb.{theirs}"), ours);
            sheet.copy(&format!("train.wandb_{theirs}"), ours);
        }
        ["train.wandb.enable", "train.use_wandb"].iter().for_each(|key| sheet.arrived(key, "log.wandb"));
        sheet.missing("`wandb sync` gives a run its id", &["train.wandb.id"]);
    }
    sheet.settled(NO_WANDB, &old);
    sheet.settled_all(NO_WANDB, &["train.wandb."]);
}
