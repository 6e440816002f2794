//! Translates musubi-tuner's rates, optimizers, memory and runs.

use serde_json::{Value, json};

use super::sheet::{Fate, Sheet};
use super::trainer::{FROZEN, READ_AHEAD, WHOLE};

/// Returns the words `NAME=VALUE` under a key.
pub(super) fn assignments(sheet: &Sheet, key: &str) -> Vec<(String, String)> {
    let words = match sheet.get(key) {
        Some(Value::Array(list)) => list.iter().collect(),
        other => other.into_iter().collect::<Vec<_>>(),
    };
    let parts = |word: &Value| {
        let text = word.as_str().map_or_else(|| word.to_string(), str::to_owned);
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        (name.trim().to_owned(), value.trim().to_owned())
    };
    words.into_iter().map(parts).collect()
}

/// Translates the training: `repeats` is how often an epoch has each sample.
pub(super) fn read(sheet: &mut Sheet, repeats: f64, has_adapters: bool) {
    rates(sheet);
    duration(sheet, repeats);
    optimizer(sheet);
    precision(sheet, has_adapters);
    memory(sheet);
    run(sheet, repeats);
    trackers(sheet);
    uploads(sheet);
    let fused = ["sdpa", "flash_attn", "flash3", "sage_attn", "xformers", "split_attn"];
    sheet.settled("attention is always fused", &fused);
    sheet.settled("operators are already compiled", &["compile"]);
    sheet.settled_all("operators are already compiled", &["compile_", "dynamo_"]);
    sheet.settled("the processor chooses the precision of matrix products", &["cuda_allow_tf32"]);
    sheet.settled("libtorch chooses its algorithms", &["cuda_cudnn_benchmark"]);
    sheet.settled(READ_AHEAD, &["max_data_loader_n_workers", "persistent_data_loader_workers"]);
    sheet.settled("it applies only to HunyuanVideo", &["guidance_scale", "flow_shift"]);
    sheet.launcher();
    sheet.settled_all("`loongforge launch` places processes on machines", &["ddp_", "num_cpu_threads_per_process"]);
}

/// Translates the rate and its schedule.
fn rates(sheet: &mut Sheet) {
    // Their default.
    const RATE: f64 = 2e-6;
    let name = sheet.text("lr_scheduler").unwrap_or_default();
    let is_stable = name == "warmup_stable_decay";
    // Without steps of decay, which is their default, that schedule does not fall.
    let falls = sheet.number("lr_decay_steps").is_some_and(|steps| steps > 0.0);
    let lr = sheet.number("learning_rate").unwrap_or(RATE);
    let least = sheet.number("lr_scheduler_min_lr_ratio").map(|share| share * lr);
    if is_stable && !falls {
        sheet.with("lr_scheduler", "train.schedule", |_| Ok("constant".into()));
        sheet.settled("the schedule does not fall without lr_decay_steps", &["lr_scheduler_min_lr_ratio"]);
    }
    sheet.scheduler("lr_scheduler", "constant", RATE);
    sheet.set("train.lr", RATE);
    sheet.copy_number("learning_rate", "train.lr");
    if is_stable && falls || name == "cosine_with_min_lr" {
        least.into_iter().for_each(|least| sheet.set("train.min_lr", least));
        sheet.arrived("lr_scheduler_min_lr_ratio", "train.min_lr");
    }
    if is_stable && falls {
        sheet.with("lr_decay_steps", "train.decay_steps", |steps| match steps.as_u64() {
            Some(1..) => Ok(steps.clone()),
            _ => Err("it must be a number of steps"),
        });
    }
    if name == "inverse_sqrt" {
        sheet.missing("the rate falls from the end of the warm-up on", &["lr_scheduler_timescale"]);
    }
    let unused = ["lr_scheduler_num_cycles", "lr_scheduler_power", "lr_scheduler_timescale"];
    sheet.settled("the schedule does not use it", &unused);
    sheet.settled("the schedule does not use it", &["lr_decay_steps", "lr_scheduler_min_lr_ratio"]);
    let known = "train.schedule must be cosine, linear, constant, inverse_sqrt or wsd";
    sheet.missing(known, &["lr_scheduler_type", "lr_scheduler_args"]);
}

fn duration(sheet: &mut Sheet, repeats: f64) {
    match sheet.number("max_train_epochs") {
        Some(epochs) => {
            sheet.set("train.epochs", epochs * repeats);
            sheet.settled("max_train_epochs takes precedence", &["max_train_steps"]);
        }
        None => {
            // Their default.
            sheet.set("train.steps", 1600);
            sheet.copy_number("max_train_steps", "train.steps");
        }
    }
    sheet.arrived("max_train_epochs", "train.epochs");
}

fn optimizer(sheet: &mut Sheet) {
    const KIND: &str = "optimizer_type";
    const OPTIONS: &str = "optimizer_args";
    // The defaults of AdamW.
    sheet.set("train.optimizer.betas", json!([0.9, 0.999]));
    sheet.set("train.optimizer.weight_decay", 0.01);
    match sheet.text(KIND).unwrap_or_default().to_lowercase().as_str() {
        "" | "adamw" | "torch.optim.adamw" => sheet.settled("AdamW is the optimizer", &[KIND]),
        "adamw8bit" | "bitsandbytes.optim.adamw8bit" => sheet.optimizer_is("adamw_8bit", KIND),
        _ => sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &[KIND]),
    }
    let mut is_read = false;
    for (name, value) in assignments(sheet, OPTIONS) {
        let parts = value.trim_matches(['(', ')', '[', ']']).split(',').map(|part| part.trim().parse::<f64>().ok());
        let numbers: Option<Vec<f64>> = parts.map(|number| number.filter(|number| number.is_finite())).collect();
        match (name.as_str(), numbers.unwrap_or_default().as_slice()) {
            ("weight_decay", [decay]) => sheet.set("train.optimizer.weight_decay", *decay),
            ("eps", [eps]) => sheet.set("train.optimizer.eps", *eps),
            ("betas", [first, second]) => sheet.set("train.optimizer.betas", json!([first, second])),
            _ => {
                let why = "of an optimizer's arguments only weight_decay, betas and eps have a counterpart";
                sheet.tell(&format!("{OPTIONS} {name}"), &Value::from(value), Fate::Missing(why));
                continue;
            }
        }
        is_read = true;
    }
    match is_read {
        true => sheet.arrived(OPTIONS, "train.optimizer"),
        false => sheet.settled("each of them is told by itself", &[OPTIONS]),
    }
    sheet.set("train.clip_grad", 1.0);
    sheet.copy_number("max_grad_norm", "train.clip_grad");
    sheet.missing("gradients are kept until the step", &["fused_backward_pass"]);
}

fn precision(sheet: &mut Sheet, has_adapters: bool) {
    const KEY: &str = "mixed_precision";
    let is_off = sheet.is(KEY, "no") || sheet.get(KEY) == Some(&Value::Bool(false));
    sheet.set("train.precision", if is_off { "float32" } else { "bf16" });
    if sheet.is(KEY, "fp16") {
        sheet.missing("use bf16, which needs no loss scaling", &[KEY]);
    }
    sheet.arrived(KEY, "train.precision");
    let of_frozen = ["fp8_base", "fp8_scaled"];
    if has_adapters && sheet.is_true(of_frozen[0]) {
        sheet.set(FROZEN, "fp8_e4m3fn");
        of_frozen.iter().for_each(|key| sheet.arrived(key, FROZEN));
    }
    sheet.settled("it applies only to adapters with fp8_base", &of_frozen);
    let towers = "it applies only to samples; model.text_encoder.frozen_precision is that of the text tower";
    sheet.settled(towers, &["fp8_t5", "fp8_vl", "fp8_llm"]);
    sheet.settled("master weights are float32", &["full_bf16"]);
    sheet.settled("the autoencoder has the precision of its model", &["vae_dtype"]);
    sheet.settled("use `loongforge checkpoint export` to write a file that other programs load", &["save_precision"]);
}

fn memory(sheet: &mut Sheet) {
    if sheet.is_true("gradient_checkpointing") {
        sheet.set("model.foundation.recompute", "all");
        sheet.arrived("gradient_checkpointing", "model.foundation.recompute");
    }
    let activations = "memory.activation_budget moves activations to the host";
    sheet.missing(activations, &["gradient_checkpointing", "gradient_checkpointing_cpu_offload"]);
    let weights = "memory.weight_budget offloads frozen weights that do not fit to the host";
    sheet.missing(weights, &["blocks_to_swap", "img_in_txt_in_offloading"]);
    let swapped = "it applies only to blocks_to_swap";
    sheet.settled(swapped, &["use_pinned_memory_for_block_swap", "block_swap_h2d_only", "block_swap_ring_size"]);
    sheet.settled("clips are encoded by the autoencoder's pool", &["vae_cache_cpu", "vae_chunk_size", "vae_tiling"]);
    sheet.settled("weights are loaded directly onto their device", &["disable_numpy_memmap", "mem_eff_save"]);
}

fn run(sheet: &mut Sheet, repeats: f64) {
    let folder = sheet.text("output_dir");
    let last = folder.as_deref().and_then(|folder| folder.trim_end_matches('/').rsplit('/').next()).map(str::to_owned);
    let name = sheet.text("output_name").or(last).unwrap_or_else(|| "imported".to_owned());
    sheet.set("run.name", name);
    sheet.arrived("output_name", "run.name");
    sheet.copy_all(&[
        ("output_dir", "run.dir"),
        ("seed", "run.seed"),
        ("save_every_n_steps", "checkpoint.every_steps"),
    ]);
    let count = sheet.number("save_every_n_epochs").filter(|count| *count > 0.0);
    if let Some(count) = count.filter(|_| !sheet.has_set("checkpoint.every_steps")) {
        sheet.every_epochs("save_every_n_epochs", "checkpoint", count * repeats);
    }
    let steps = "set checkpoint.every_steps, which counts steps; the last step is saved in any case";
    sheet.missing(steps, &["save_every_n_epochs"]);
    let kept = "checkpoint.keep_last is the number of checkpoints that are kept";
    sheet.missing(kept, &["save_last_n_steps", "save_last_n_epochs"]);
    sheet.missing(kept, &["save_last_n_steps_state", "save_last_n_epochs_state"]);
    sheet.settled(WHOLE, &["save_state", "save_state_on_train_end"]);
    sheet.missing("`loongforge run --resume` continues a run of its own", &["resume", "resume_from_huggingface"]);
    let samples =
        "name the file without its options (--w) in sample.prompts, and set sample.every_steps or every_epochs";
    sheet.missing(samples, &["sample_prompts", "sample_every_n_steps", "sample_every_n_epochs", "sample_at_first"]);
    sheet.settled("it applies only to samples", &["one_frame"]);
    sheet.settled("files of weights have no such entries", &["no_metadata", "training_comment"]);
    sheet.settled_all("files of weights have no such entries", &["metadata_"]);
    sheet.settled("`loongforge check` shows the config", &["log_config"]);
}

fn trackers(sheet: &mut Sheet) {
    if sheet.is("log_with", "wandb") || sheet.is("log_with", "all") {
        // Their default.
        sheet.set("log.wandb.project", "network_train");
        sheet.arrived("log_with", "log.wandb.project");
        sheet.copy("log_tracker_name", "log.wandb.project");
        sheet.copy("wandb_run_name", "log.wandb.name");
    }
    let written = "TensorBoard's files and metrics.jsonl are always written";
    sheet.settled(written, &["log_with", "logging_dir", "log_prefix"]);
    sheet.settled("nothing is written for W&B unless log.wandb is set", &["log_tracker_name", "wandb_run_name"]);
    sheet.settled("`wandb sync` has a key of its own", &["wandb_api_key"]);
    sheet.missing("only the project and the name of a run of W&B can be set", &["log_tracker_config"]);
}

fn uploads(sheet: &mut Sheet) {
    let why = "`loongforge checkpoint push` uploads a checkpoint";
    for key in sheet.begin_with("huggingface_") {
        sheet.missing(why, &[&key]);
    }
    sheet.missing(why, &["save_state_to_huggingface", "async_upload"]);
}
