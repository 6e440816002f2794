//! Checkpoints, logs, and when a run ends.

use serde_json::Value;

use crate::config::import::sheet::Sheet;
use crate::config::import::trainer::NO_WANDB;

/// Translates the options of checkpoints, logs, evaluations and profiles.
pub(super) fn read(sheet: &mut Sheet) {
    checkpoints(sheet);
    logs(sheet);
    profile(sheet);
    formats(sheet);
    sheet.missing("checkpoints contain the optimizer's state", &["no_save_optim", "no_save_rng"]);
    sheet.settled("scheduler.lease and pools.*.grace set how long to wait", &["distributed_timeout_minutes"]);
    sheet.missing(
        "the run ends after train.steps; a signal stops it after a checkpoint",
        &["exit_interval", "exit_duration_in_mins", "exit_signal_handler"],
    );
    sheet.settled(
        "evaluations use packs of the same size as training",
        &["inference_max_requests", "inference_max_seq_length"],
    );
    sheet.settled("train.phase and the model determine the trainer", &["trainer_type"]);
}

/// Translates where checkpoints are written, and when.
fn checkpoints(sheet: &mut Sheet) {
    let folder = ["save", "output_dir"].iter().find_map(|key| sheet.get(key).and_then(Value::as_str));
    // A folder that the environment or an argument gives is one as well.
    let is_unsaid = folder.is_none() && ["save", "output_dir"].iter().any(|key| sheet.is_unsaid(key));
    let saves = folder.is_some() || is_unsaid;
    let name = folder.and_then(|name| name.trim_end_matches('/').rsplit('/').next()).filter(|name| !name.is_empty());
    let name = name.unwrap_or("imported").to_owned();
    sheet.set("run.name", name);
    sheet.copy("save", "checkpoint.dir");
    sheet.copy("output_dir", "run.dir");
    if !saves {
        sheet.set("checkpoint.at_end", false);
        if sheet.has_set("eval") {
            sheet.set("eval.save_best", false);
        }
        sheet.settled("no checkpoint is written, as without `save`", &["save_interval"]);
        sheet.note(
            "without `save` Megatron writes no checkpoint: drop checkpoint.at_end to write one after the last step",
        );
    }
    if is_unsaid {
        sheet.note("the script does not give the checkpoint folder: checkpoints are written into run.dir unless checkpoint.dir is set");
    }
    if saves && sheet.number("save_interval") == Some(0.0) {
        sheet.settled("a checkpoint is always written at the end", &["save_interval"]);
    }
    sheet.copy("save_interval", "checkpoint.every_steps");
    if saves && sheet.has_set("checkpoint.every_steps") {
        sheet.note(
            "the original keeps all checkpoints; here the last 3 and the best one are kept: set checkpoint.keep_last for \
             more",
        );
    }
}

/// Translates what is logged.
fn logs(sheet: &mut Sheet) {
    sheet.copy("log_interval", "log.every_steps");
    sheet.settled(
        "TensorBoard's files are always written, into the run's folder",
        &["tensorboard_dir", "tensorboard_logs_path"],
    );
    wandb(sheet);
    sheet.settled(
        "all measurements are in the metrics of every step",
        &[
            "check_weight_hash_across_dp_replicas_interval",
            "disable_straggler_on_startup",
            "log_memory_to_tensorboard",
            "log_num_zeros_in_grad",
            "log_params_norm",
            "log_progress",
            "log_straggler",
            "log_throughput",
            "log_timers_to_tensorboard",
            "log_validation_ppl_to_tensorboard",
            "logging_level",
            "straggler_minmax_count",
            "timing_log_option",
        ],
    );
}

/// Settles the form of checkpoints.
fn formats(sheet: &mut Sheet) {
    sheet.settled(
        "checkpoints are complete Hugging Face folders with optimizer state and data position",
        &[
            "allow_missing_adapter_checkpoint",
            "allow_missing_vision_projection_checkpoint",
            "async_save",
            "auto_detect_ckpt_format",
            "ckpt_assume_constant_structure",
            "ckpt_format",
            "ckpt_fully_parallel_load",
            "ckpt_fully_parallel_save",
            "dist_ckpt_format",
            "dist_ckpt_strictness",
            "finetune",
            "no_load_optim",
            "no_load_rng",
            "no_strict_fsdp_dtensor_load",
            "save_format",
            "save_hf",
            "save_hf_path",
            "use_dist_ckpt",
        ],
    );
}

/// Megatron records the steps after `profile_step_start` up to `profile_step_end`.
fn profile(sheet: &mut Sheet) {
    let (start_key, end_key) = ("profile_step_start", "profile_step_end");
    let number = |key: &str, default: f64| sheet.number(key).unwrap_or(default) as u64;
    let (start, end, all) = (number(start_key, 10.0), number(end_key, 12.0), sheet.steps().unwrap_or(u64::MAX));
    if !sheet.is_true("profile") {
        sheet.settled("it has no effect without `profile`", &["profile", "profile_ranks", start_key, end_key]);
    } else if start > 0 && (start + 1..=(start + 100).min(all)).contains(&end) {
        sheet.set("watch.profile.first", start + 1);
        sheet.set("watch.profile.steps", end - start);
        ["profile", start_key, end_key].iter().for_each(|key| sheet.arrived(key, "watch.profile"));
    } else {
        let why = "watch.profile records 1 to 100 steps, between the second and the last step";
        ["profile", start_key, end_key].iter().for_each(|key| sheet.with(key, "watch.profile", |_| Err(why)));
    }
    sheet.settled("every process that computes is recorded", &["profile_ranks", "use_pytorch_profiler"]);
}

/// Megatron writes for W&B where a project is named.
fn wandb(sheet: &mut Sheet) {
    let project = sheet.get("wandb_project").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let keys = ["wandb_project", "wandb_exp_name", "wandb_entity", "wandb_save_dir", "wandb_mode"];
    if !project || sheet.is("wandb_mode", "disabled") {
        return sheet.settled(NO_WANDB, &keys);
    }
    sheet.copy("wandb_project", "log.wandb.project");
    sheet.copy("wandb_exp_name", "log.wandb.name");
    sheet.copy("wandb_entity", "log.wandb.entity");
    sheet.settled("W&B files are written to the run's folder; `wandb sync` uploads them", &keys);
}
