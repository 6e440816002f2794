//! lerobot's `lerobot-train` (version 0.5): its command lines, and the `train_config.json` that it writes into each checkpoint. This file
//! translates the data, the run and its layout; the policy, and rates, are in files of their own.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::flags::Flags;
use super::sheet::Sheet;
use super::trainer::{NO_WANDB, TRACKERS};
use super::{hub, lerobot_policy, lerobot_rates};
use crate::config::yaml;

/// Keys whose value is a map; other maps are sections.
const MAPS: [&str; 4] =
    ["rename_map", "policy.input_features", "policy.output_features", "policy.normalization_mapping"];
const SECTIONS: [&str; 5] = ["dataset", "optimizer", "scheduler", "eval", "wandb"];

/// Episodes that a set may have: 16 million.
const MAX_EPISODES: u64 = 1 << 24;

/// Returns whether these are the keys of a `train_config.json`.
pub(super) fn is_config(fields: &Map<String, Value>) -> bool {
    let is_set = fields.get("dataset").is_some_and(|set| set.get("repo_id").is_some() || set.get("root").is_some());
    is_set && SECTIONS.iter().chain(&["policy"]).filter(|key| fields.contains_key(**key)).count() > 1
}

/// Returns the keys of a file, dotted as on a command line.
pub(super) fn flat(fields: Map<String, Value>) -> Flags {
    let mut all = Map::new();
    flatten("", fields, &mut all);
    Flags::of_fields(all)
}

fn flatten(begin: &str, fields: Map<String, Value>, all: &mut Map<String, Value>) {
    for (key, value) in fields {
        let key = format!("{begin}{key}");
        // Configs of networks within the policy stay whole.
        let is_section = !MAPS.contains(&key.as_str()) && !begin.starts_with("policy.");
        match value {
            Value::Object(inner) if is_section && !inner.is_empty() => flatten(&format!("{key}."), inner, all),
            value => _ = all.insert(key, value),
        }
    }
}

/// Returns the options of a command, of which lists, maps and `null` are written as in YAML.
pub(super) fn texts(mut flags: Flags) -> Flags {
    for value in flags.fields.values_mut() {
        let Some(text) = value.as_str() else { continue };
        match text {
            "null" | "None" => *value = Value::Null,
            text if text.starts_with(['[', '{']) => *value = yaml::read_yaml(text).unwrap_or_else(|_| text.into()),
            _ => {}
        }
    }
    flags
}

/// Translates the options of a command.
pub(super) fn command(sheet: &mut Sheet) {
    read(sheet, false);
}

/// Translates a `train_config.json`, which has every key, and the optimizer and schedule that came of them.
pub(super) fn file(sheet: &mut Sheet) {
    read(sheet, true);
}

fn read(sheet: &mut Sheet, is_file: bool) {
    let kind = lerobot_policy::kind(sheet);
    run(sheet, kind.map_or("policy", |kind| kind.name()));
    let set = data(sheet);
    lerobot_policy::read(sheet, kind, is_file, set.as_deref());
    lerobot_rates::read(sheet, kind, is_file);
    layout(sheet);
    evaluation(sheet);
    watch(sheet);
}

fn run(sheet: &mut Sheet, default: &str) {
    let folder = sheet.text("output_dir");
    let last = folder.as_deref().and_then(|folder| folder.trim_end_matches('/').rsplit('/').next());
    let name = sheet.text("job_name").or(last.map(str::to_owned)).unwrap_or_else(|| default.to_owned());
    sheet.set("run.name", name);
    sheet.arrived("job_name", "run.name");
    sheet.copy("output_dir", "run.dir");
    sheet.set("run.seed", 1000);
    sheet.copy("seed", "run.seed");
    sheet.settled("`run.deterministic` applies to all operators", &["cudnn_deterministic"]);
    sheet.set("train.steps", 100_000);
    sheet.copy("steps", "train.steps");
    let every = sheet.number("save_freq").unwrap_or(20_000.0).max(0.0);
    let saves = sheet.get("save_checkpoint") != Some(&Value::Bool(false));
    sheet.set("checkpoint.every_steps", if saves { every as u64 } else { 0 });
    sheet.arrived("save_freq", "checkpoint.every_steps");
    if !saves {
        sheet.set("checkpoint.at_end", false);
    }
    sheet.arrived("save_checkpoint", "checkpoint.at_end");
    if sheet.is("checkpoint_format", "safetensors") {
        sheet.settled("checkpoints are Hugging Face folders", &["checkpoint_format"]);
    }
    sheet.missing("checkpoints are always Hugging Face folders with safetensors", &["checkpoint_format"]);
    sheet.settled("use `loongforge run --resume`", &["resume", "checkpoint_path"]);
    sheet.missing("import that file as well: `loongforge import FILE`", &["config_path"]);
}

/// Translates what names episodes; returns the path of the set.
fn data(sheet: &mut Sheet) -> Option<String> {
    let (id, root) = (sheet.text("dataset.repo_id"), sheet.text("dataset.root"));
    let revision = sheet.text("dataset.revision").filter(|_| root.is_none());
    let of_hub = |id: String| match hub::is_of_hub(&id) {
        true => hub::path(&format!("{id}{}", revision.map(|it| format!("@{it}")).unwrap_or_default()), &[]),
        false => id,
    };
    let path = root.clone().or(id.map(of_hub));
    let episodes = episodes(sheet);
    if let Some(path) = &path {
        let mut set = json!({ "path": path });
        if let Some(episodes) = episodes {
            set["episodes"] = episodes.into();
        }
        sheet.set("data.train", json!([set]));
    }
    sheet.arrived("dataset.root", "data.train");
    match root.is_some() {
        true => sheet.settled("dataset.root is the folder of the data set", &["dataset.repo_id", "dataset.revision"]),
        false => ["dataset.repo_id", "dataset.revision"].iter().for_each(|key| sheet.arrived(key, "data.train")),
    }
    if sheet.is("dataset.repo_type", "dataset") {
        sheet.settled("data.train names the data set", &["dataset.repo_type"]);
    }
    sheet.missing("copy the set to a folder or to a data set on the hub", &["dataset.repo_type"]);
    transforms(sheet);
    if sheet.number("tolerance_s") == Some(1e-4) {
        sheet.settled("frames must lie within 0.1 ms of their timestamps", &["tolerance_s"]);
    }
    sheet.missing("frames must lie within 0.1 ms of their timestamps", &["tolerance_s"]);
    sheet.settled(
        "data actors read ahead and decode; pools.data.replicas sets their number",
        &[
            "dataloader_multiprocessing_context",
            "dataset.return_uint8",
            "dataset.streaming",
            "dataset.video_backend",
            "num_workers",
            "persistent_workers",
            "prefetch_factor",
        ],
    );
    sheet.settled("depth cameras are not read", &["dataset.depth_output_unit"]);
    sheet.settled("pictures are normalized as in the published model", &["dataset.use_imagenet_stats"]);
    renamed(sheet);
    path
}

/// Translates which episodes are used, into numbers and ranges; `None`: all.
fn episodes(sheet: &mut Sheet) -> Option<Vec<Value>> {
    let keys = ["dataset.episodes", "dataset.exclude_episodes"];
    let [wanted, without] = keys.map(|key| sheet.get(key).map(episode_numbers));
    if matches!(wanted, Some(None)) || matches!(without, Some(None)) {
        sheet.missing("set data.train[].episodes; it must be a list of numbers of episodes, from 0", &keys);
        return None;
    }
    let (wanted, without) = (wanted.flatten(), without.flatten().unwrap_or_default());
    let ranges = match wanted {
        Some(wanted) => ranges(wanted.difference(&without).copied()),
        None if without.is_empty() => {
            sheet.settled("it is empty", &keys);
            return None;
        }
        None => {
            // From behind each that is left out to before the next one; behind the last all.
            let begins = std::iter::once(0).chain(without.iter().map(|one| one + 1));
            let ends = without.iter().copied().map(Some).chain([None]);
            begins.zip(ends).filter_map(|(begin, end)| range(begin, end)).collect()
        }
    };
    if ranges.is_empty() {
        sheet.missing("no episode is left: set data.train[].episodes", &keys);
        return None;
    }
    sheet.note("lerobot ignores episodes that the data set does not have; here `check` refuses them");
    keys.iter().for_each(|key| sheet.arrived(key, "data.train[].episodes"));
    Some(ranges)
}

/// Returns the numbers of episodes in a list; `None`: it is another value.
fn episode_numbers(value: &Value) -> Option<BTreeSet<u64>> {
    let number = |one: &Value| one.as_u64().filter(|&number| number < MAX_EPISODES);
    value.as_array()?.iter().map(number).collect()
}

/// Returns the same numbers as ranges.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<Value> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, end)) if *end == number => *end += 1,
            _ => ranges.push((number, number + 1)),
        }
    }
    ranges.into_iter().filter_map(|(begin, end)| range(begin, Some(end))).collect()
}

/// Returns the episodes from `begin` to before `end`, as a config has them; `None`: there are none.
fn range(begin: u64, end: Option<u64>) -> Option<Value> {
    match end.map(|end| end.checked_sub(begin)) {
        None => Some(format!("{begin}-").into()),
        Some(None | Some(0)) => None,
        Some(Some(1)) => Some(begin.into()),
        Some(Some(count)) => Some(format!("{begin}-{}", begin + count - 1).into()),
    }
}

/// Translates the model's names of what the data has.
fn renamed(sheet: &mut Sheet) {
    let names = sheet.get("rename_map").and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut cameras, mut others) = (Map::new(), Vec::new());
    for (theirs, name) in &names {
        match name.as_str() {
            Some("observation.state") => others.push(("policy.state", theirs)),
            Some("action") => others.push(("policy.action", theirs)),
            Some(name) if name.starts_with("observation.image") => _ = cameras.insert(theirs.clone(), name.into()),
            _ => {
                return sheet.missing(
                    "set policy.cameras, policy.state and policy.action, which name features",
                    &["rename_map"],
                );
            }
        }
    }
    if names.is_empty() {
        return sheet.settled("it is empty", &["rename_map"]);
    }
    if (1..others.len()).any(|at| others[..at].iter().any(|(key, _)| *key == others[at].0)) {
        return sheet.missing(
            "two features get the same name: set policy.state and policy.action to those of the data, and policy.cameras",
            &["rename_map"],
        );
    }
    others.into_iter().for_each(|(key, theirs)| sheet.set(key, theirs.as_str()));
    if !cameras.is_empty() {
        sheet.set("policy.cameras", cameras);
    }
    sheet.arrived("rename_map", "policy.cameras, policy.state, policy.action");
}

/// Changes of pictures, which lerobot draws from a list of its own.
fn transforms(sheet: &mut Sheet) {
    let keys = ["enable", "max_num_transforms", "random_order"].map(|key| format!("dataset.image_transforms.{key}"));
    let keys: Vec<String> = keys.into_iter().chain(sheet.begin_with("dataset.image_transforms.tfs")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    match sheet.is_true(keys[0]) {
        true => sheet.missing(
            "policy.augment augments pictures: lerobot's default ranges are brightness 0.2, contrast 0.2, saturation \
             0.5 and hue 0.05; sharpness and shifts have no counterpart",
            &keys,
        ),
        false => sheet.settled("pictures are not augmented", &keys),
    }
}

fn layout(sheet: &mut Sheet) {
    let degrees = ["parallelism.dp_replicate", "parallelism.dp_shard"];
    let [replicate, shard] = degrees.map(|key| sheet.number(key).unwrap_or(1.0));
    let devices = sheet.devices().or((shard > 1.0 || replicate > 1.0).then(|| replicate * shard.max(1.0)));
    let accumulated = "accelerator.gradient_accumulation.steps";
    if devices.is_none() {
        sheet.note("train.global_batch_size is the batch size of one GPU: multiply it by the number of GPUs");
    }
    let own = sheet.number("batch_size").unwrap_or(8.0) * sheet.number(accumulated).unwrap_or(1.0);
    sheet.set("train.global_batch_size", (own * devices.unwrap_or(1.0)) as u64);
    ["batch_size", accumulated].iter().for_each(|key| sheet.arrived(key, "train.global_batch_size"));
    sheet.launcher();
    if let Some(devices) = devices {
        sheet.set("pools.foundation.replicas", devices as u64);
    }
    if shard != 1.0 {
        sheet.set("pools.foundation.zero", 3);
    }
    degrees.iter().for_each(|key| sheet.arrived(key, "pools.foundation.replicas, pools.foundation.zero"));
    let one = ["parallelism.context_parallel.ring_degree", "parallelism.context_parallel.ulysses_degree"];
    for key in one.iter().chain(&["parallelism.cfg_parallel"]) {
        match sheet.number(key) {
            Some(1.0) => sheet.settled("it is off", &[key]),
            _ => sheet.missing("policies do not support context parallelism", &[key]),
        }
    }
    if sheet.is("accelerator.activation_checkpointing.mode", "full") {
        sheet.set("model.foundation.recompute", "all");
        sheet.arrived("accelerator.activation_checkpointing.mode", "model.foundation.recompute");
    }
    sheet.missing("train.optimizer.offload offloads the optimizer's state", &["accelerator.fsdp.cpu_offload"]);
    let inner =
        ["accelerator.ddp.", "accelerator.fsdp.", "accelerator.compile.", "accelerator.activation_checkpointing."];
    let inner: Vec<String> = inner.iter().flat_map(|begin| sheet.begin_with(begin)).collect();
    sheet.settled(
        "communication overlaps automatically, and operators are already compiled",
        &inner.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    sheet.settled(
        "the run uses this machine, or those that `loongforge launch` selects",
        &["job.target", "job.image", "job.timeout", "job.detach", "job.tags"],
    );
}

/// Evaluations, of which those in a simulator are asked by clients of `serve-policy`.
fn evaluation(sheet: &mut Sheet) {
    held_out(sheet);
    let has_env = sheet.get("env").is_some() || !sheet.begin_with("env.").is_empty();
    let env: Vec<String> = ["env", "eval"].iter().flat_map(|begin| sheet.begin_with(&format!("{begin}."))).collect();
    let keys: Vec<&str> = env.iter().map(String::as_str).chain(["env", "env_eval_freq", "eval_freq"]).collect();
    match has_env {
        true => sheet.missing("simulators query `loongforge serve-policy` after the run (docs/policies.md)", &keys),
        false => sheet.settled("it has no effect without `env`", &keys),
    }
}

/// Translates which part of the episodes is held out, and when its loss is measured.
fn held_out(sheet: &mut Sheet) {
    let [share, every, most] = ["dataset.eval_split", "eval_steps", "max_eval_samples"];
    let counts = [every, most].map(|key| sheet.number(key).map_or(0, |count| count.max(0.0) as u64));
    if sheet.number(share).is_some_and(|share| share > 0.0 && share < 1.0) {
        sheet.copy_number(share, "data.val_size");
        sheet.set("eval.every_steps", counts[0]);
        sheet.set("eval.save_best", false);
        sheet.arrived(every, "eval.every_steps");
        sheet.note(
            "lerobot holds out the last episodes of each task; data.val_size draws them from all episodes, whatever their \
             tasks",
        );
    }
    if sheet.has_set("data.val_size") && counts.iter().all(|&count| count > 0) {
        sheet.set("eval.max_samples", counts[1]);
        sheet.arrived(most, "eval.max_samples");
    }
    sheet.missing("data.val_size must be a fraction below 1", &[share]);
    sheet.missing(
        "it needs held-out episodes: set data.val_size, eval.every_steps and eval.max_samples",
        &[every, most],
    );
}

fn watch(sheet: &mut Sheet) {
    sheet.set("log.every_steps", 200);
    sheet.copy("log_freq", "log.every_steps");
    let keys = ["wandb.enable", "wandb.project", "wandb.entity", "wandb.notes"];
    if sheet.is_true("wandb.enable") && !sheet.is("wandb.mode", "disabled") {
        sheet.set("log.wandb.project", "lerobot");
        sheet.copy_all(&[
            ("wandb.project", "log.wandb.project"),
            ("wandb.entity", "log.wandb.entity"),
            ("wandb.notes", "log.wandb.notes"),
        ]);
        sheet.arrived("wandb.enable", "log.wandb");
        sheet.missing(TRACKERS, &["wandb.run_id"]);
    }
    sheet.settled(NO_WANDB, &keys);
    sheet.settled(
        "W&B files are written to the run's folder; `wandb sync` uploads them",
        &["wandb.mode", "wandb.disable_artifact", "wandb.add_tags", "wandb.run_id"],
    );
    let push = "`loongforge checkpoint push` uploads a checkpoint";
    sheet.missing(push, &["save_checkpoint_to_hub"]);
}
