//! Steps, rates, optimizer and precision.

use serde_json::{Value, json};

use crate::config::import::sheet::Sheet;
use crate::config::import::trainer::NO_FP16;

/// The reason why a number of samples has no counterpart.
const NO_STEPS: &str = "set the number of steps: these samples / train.global_batch_size, of which one is not known";

/// Translates the options of steps, rates, the optimizer and precision.
pub(super) fn read(sheet: &mut Sheet) {
    batch(sheet);
    // Also where it follows from the samples of a device.
    let size = sheet.set_number("train.global_batch_size").filter(|size| *size >= 1.0);
    let samples = steps_of(sheet, "train_samples", size).map(f64::floor);
    let steps = sheet.number("train_iters").or(samples);
    sheet.copy("train_iters", "train.steps");
    sheet.with("train_samples", "train.steps", |_| {
        let why = "set train.steps: train_samples / train.global_batch_size, of which one is not known";
        samples.map(|steps| (steps as u64).into()).ok_or(why)
    });
    rate(sheet, steps, size);
    sheet.arrived("global_batch_size", "train.global_batch_size");
    optimizer(sheet);
    precision(sheet);
    sheet.set("run.seed", 1234);
    sheet.copy("seed", "run.seed");
    sheet.settled("the loss is a mean over tokens", &["calculate_per_token_loss", "no_check_for_nan_in_loss_and_grad"]);
    sheet.with("loss_reduction", "train.loss_weighting", |value| match value.as_str() {
        Some("token" | "sample" | "square") => Ok(value.clone()),
        _ => Err("train.loss_weighting must be token, sample or square"),
    });
    sheet.settled("the mean is over the global batch", &["loss_reduction_all_gather"]);
    dropout(sheet);
    sheet.settled("weights are loaded from model.load", &["init_method_std"]);
    let recompute = "memory.activation_budget determines what is recomputed";
    sheet.with("recompute_granularity", "model.foundation.recompute", |value| match value.as_str() {
        Some("full") => Ok("all".into()),
        _ => Err(recompute),
    });
    sheet.missing(
        recompute,
        &["recompute_activations", "recompute_modules", "checkpoint_activations", "custom_pipeline_recompute_layers"],
    );
    sheet.missing(
        "model.foundation.recompute: all recomputes every layer; memory.activation_budget only as many as needed",
        &["recompute_num_layers"],
    );
    sheet.settled("model.foundation.recompute: all recomputes every layer", &["recompute_method", "recompute_vision"]);
    sheet.missing(recompute, &["activation_checkpoint_module_patterns", "activation_checkpoint_skip_modules"]);
}

/// Tells of dropout, which models of theirs have unless it is turned off, and none here has.
fn dropout(sheet: &mut Sheet) {
    const KEYS: [&str; 2] = ["attention_dropout", "hidden_dropout"];
    if KEYS.iter().any(|key| sheet.get(key).is_none()) {
        sheet.note(
            "Megatron's models have a dropout of 0.1 unless attention_dropout and hidden_dropout are set to 0; models \
             here have none",
        );
    }
    sheet.missing("models have no dropout", &KEYS);
}

fn batch(sheet: &mut Sheet) {
    // LoongForge's robot policies count the samples of a device.
    if sheet.get("per_device_batch_size").is_some() {
        sheet.batch("per_device_batch_size", 1.0);
    }
    // Without a batch of all devices it is that of one, times data parallelism.
    let own = sheet.number("micro_batch_size").filter(|_| !sheet.is_unsaid("global_batch_size"));
    if let Some(size) = sheet.number("global_batch_size") {
        sheet.set("train.global_batch_size", size as u64);
    } else if let Some(own) = own {
        match super::layout::replicas(sheet) {
            Some(replicas) => sheet.set("train.global_batch_size", (own * replicas) as u64),
            None => {
                sheet.set("train.global_batch_size", own as u64);
                sheet.note(
                    "train.global_batch_size is the batch size of one replica: multiply it by the number of replicas",
                );
            }
        }
    }
    if sheet.number("micro_batch_size").is_some_and(|size| size > 1.0) {
        sheet.note(
            "micro_batch_size is above 1: here a micro-batch is one pack, with data.pack.max_tokens tokens in total",
        );
    }
    sheet.settled("a micro-batch is one pack of data.pack.max_tokens tokens", &["micro_batch_size"]);
    sheet.missing("the batch size is constant", &["rampup_batch_size", "step_batch_size_schedule"]);
}

/// Returns how many steps the samples under `key` are, where a batch has `size`.
fn steps_of(sheet: &Sheet, key: &str, size: Option<f64>) -> Option<f64> {
    sheet.number(key).zip(size).map(|(samples, size)| samples / size)
}

fn rate(sheet: &mut Sheet, steps: Option<f64>, size: Option<f64>) {
    for key in ["lr", "lr_base"] {
        sheet.copy_number(key, "train.lr");
    }
    sheet.set("train.min_lr", 0.0);
    sheet.copy_number("min_lr", "train.min_lr");
    sheet.set("train.schedule", "linear");
    sheet.with("lr_decay_style", "train.schedule", |value| match value.as_str().unwrap_or_default() {
        "cosine" | "cosine_with_min_lr" => Ok("cosine".into()),
        "linear" => Ok("linear".into()),
        "constant" => Ok("constant".into()),
        "inverse-square-root" => Ok("inverse_sqrt".into()),
        "WSD" => Ok("wsd".into()),
        _ => Err("train.schedule must be cosine, linear, constant, inverse_sqrt or wsd"),
    });
    wsd(sheet, size);
    let decay = sheet.number("lr_decay_iters").or(steps_of(sheet, "lr_decay_samples", size).map(f64::floor));
    let keys = ["lr_decay_iters", "lr_decay_samples"];
    let is_said = keys.iter().any(|key| sheet.get(key).is_some());
    let decays_all = !is_said || decay.is_some() && decay == steps;
    match decays_all {
        true => sheet.settled("the learning rate decays until the last step", &keys),
        false => sheet.missing("the learning rate decays until the last step", &keys),
    }
    let within = decay.or(steps).zip(sheet.number("lr_warmup_fraction")).map(|(steps, part)| (steps * part).round());
    match within {
        // Theirs is a share of the steps in which the rate falls.
        Some(warmup) if !decays_all => {
            sheet.with("lr_warmup_fraction", "train.warmup_steps", |_| Ok((warmup as u64).into()))
        }
        _ => sheet.copy_number("lr_warmup_fraction", "train.warmup_ratio"),
    }
    sheet.copy("lr_warmup_iters", "train.warmup_steps");
    let warmup = steps_of(sheet, "lr_warmup_samples", size).map(|steps| steps.round() as u64);
    sheet.with("lr_warmup_samples", "train.warmup_steps", |_| warmup.map(Value::from).ok_or(NO_STEPS));
    sheet.missing("the learning rate starts at 0", &["lr_warmup_init"]);
    sheet.missing(
        "all parameters have the same learning rate; pools.encoder.lr sets that of encoders",
        &["decoupled_lr", "decoupled_min_lr"],
    );
    sheet.settled(
        "a resumed run uses the schedule in the config",
        &["override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"],
    );
}

/// Translates the end of Megatron's schedule WSD.
fn wsd(sheet: &mut Sheet, size: Option<f64>) {
    if sheet.ours("train.schedule").is_none_or(|schedule| schedule != "wsd") {
        let keys = ["lr_wsd_decay_iters", "lr_wsd_decay_samples", "lr_wsd_decay_style"];
        return sheet.settled("it applies only to lr_decay_style: WSD", &keys);
    }
    if sheet.get("lr_wsd_decay_style").is_none() && !sheet.is_unsaid("lr_wsd_decay_style") {
        sheet.note(
            "Megatron's WSD falls exponentially unless lr_wsd_decay_style is linear; train.schedule: wsd falls \
             linearly",
        );
    }
    if sheet.is("lr_wsd_decay_style", "linear") {
        sheet.settled("train.schedule: wsd falls linearly", &["lr_wsd_decay_style"]);
    }
    sheet.missing("train.schedule: wsd falls linearly", &["lr_wsd_decay_style"]);
    sheet.copy("lr_wsd_decay_iters", "train.decay_steps");
    let decay = steps_of(sheet, "lr_wsd_decay_samples", size).map(|steps| steps.floor() as u64);
    sheet.with("lr_wsd_decay_samples", "train.decay_steps", |_| decay.map(Value::from).ok_or(NO_STEPS));
}

fn optimizer(sheet: &mut Sheet) {
    // Their defaults.
    sheet.set("train.optimizer.weight_decay", 0.01);
    sheet.copy_number("weight_decay", "train.optimizer.weight_decay");
    sheet.missing(
        "AdamW's parameter groups are fixed: biases and norms do not decay like other parameters",
        &["weight_decay_grouping"],
    );
    let betas = [("adam_beta1", 0.9), ("adam_beta2", 0.999)];
    let numbers = betas.map(|(key, default)| sheet.number(key).unwrap_or(default));
    sheet.set("train.optimizer.betas", json!(numbers));
    betas.iter().for_each(|(key, _)| sheet.arrived(key, "train.optimizer.betas"));
    sheet.copy_number("adam_eps", "train.optimizer.eps");
    sheet.set("train.clip_grad", 1.0);
    sheet.copy_number("clip_grad", "train.clip_grad");
    if ["adam", "AdamW", "adamw"].iter().any(|name| sheet.is("optimizer", name)) {
        sheet.settled("AdamW is the optimizer", &["optimizer"]);
    }
    if sheet.is("optimizer", "muon") {
        sheet.copy("optimizer", "train.optimizer.type");
    }
    sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &["optimizer"]);
    offload(sheet);
    let moments = "moments are float32 and on the device; train.optimizer.type: adamw_8bit stores them in 8 bits";
    sheet.missing(
        moments,
        &[
            "use_precision_aware_optimizer",
            "exp_avg_dtype",
            "exp_avg_sq_dtype",
            "main_grads_dtype",
            "main_params_dtype",
        ],
    );
}

/// Translates Megatron-LM's offload of the optimizer's state, and that of its forks, whose `auto` chooses the part itself.
fn offload(sheet: &mut Sheet) {
    const OFFLOAD: &str = "train.optimizer.offload";
    const SHARES: [(&str, &str); 2] =
        [("optimizer_cpu_offload", "optimizer_offload_fraction"), ("offload_optimizer", "offload_optimizer_percent")];
    for (key, share) in SHARES {
        if sheet.number(share) == Some(0.0) && !sheet.is(key, "auto") {
            sheet.settled("the offloaded fraction is 0", &[key, share]);
        }
    }
    let is_on = sheet.is_true("optimizer_cpu_offload");
    let of_forks = ["auto", "manual", "static"].iter().any(|kind| sheet.is("offload_optimizer", kind));
    if is_on || of_forks {
        sheet.set(OFFLOAD, json!({ "to": "cpu" }));
        for (key, share) in SHARES {
            if sheet.number(share) != Some(0.0) {
                sheet.copy_number(share, "train.optimizer.offload.fraction");
            }
            sheet.arrived(key, OFFLOAD);
        }
    }
    sheet.settled("it has no effect without offload", &SHARES.map(|(_, share)| share));
    let off = "set train.optimizer.offload to offload the optimizer's state";
    sheet.missing(off, &["optimizer_cpu_offload", "offload_optimizer"]);
    let own = "the optimizer step on the host is built in and overlaps with copies";
    let keys = ["overlap_cpu_optimizer_d2h_h2d", "use_torch_optimizer_for_cpu_offload", "no_use_deepspeed_cpu_adam"];
    sheet.settled(own, &keys);
}

fn precision(sheet: &mut Sheet) {
    let is_bf16 = sheet.is_true("bf16") || sheet.is("dtype", "bfloat16");
    if is_bf16 {
        sheet.set("train.precision", "bf16");
    }
    ["bf16", "dtype"].iter().for_each(|key| sheet.arrived(key, "train.precision"));
    sheet.missing(NO_FP16, &["fp16"]);
    sheet.settled(
        "bf16 needs no loss scaling",
        &["initial_loss_scale", "loss_scale", "loss_scale_window", "min_loss_scale", "use_loss_scaling"],
    );
    let gradients = "gradients are summed in float32";
    sheet.settled(gradients, &["accumulate_allreduce_grads_in_fp32", "no_gradient_accumulation_fusion"]);
    sheet.missing(gradients, &["grad_reduce_in_bf16"]);
    sheet.missing(
        "FP8 matrix products are not supported",
        &[
            "fp8_amax_compute_algo",
            "fp8_amax_history_len",
            "fp8_force_no_requant",
            "fp8_format",
            "fp8_hybrid",
            "fp8_interval",
            "fp8_margin",
            "fp8_param_gather",
            "fp8_recipe",
            "force_pow_2_scales",
            "first_last_layers_bf16",
            "num_layers_at_end_in_bf16",
            "num_layers_at_start_in_bf16",
            "use_fp32_dtype_for_param_pattern",
        ],
    );
}
