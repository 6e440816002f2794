//! Translates how VeOmni trains: steps and batches, the optimizer's rates, and the layout of the model.

use serde_json::{Value, json};

use super::sheet::Sheet;
use super::trainer::{NO_FP16, OVERLAP};

const STEPS: &str = "train.steps";

/// Translates the keys of `train`, except those of the run.
pub(super) fn read(sheet: &mut Sheet) {
    let devices = devices(sheet);
    let epochs = sheet.number("train.num_train_epochs").unwrap_or(1.0).max(1.0);
    batch(sheet, devices);
    steps(sheet, epochs);
    rates(sheet);
    optimizer(sheet);
    layout(sheet, devices);
    precision(sheet);
    checkpoints(sheet, epochs);
}

/// Returns how many devices have samples of their own, where a launcher or the layout tells.
fn devices(sheet: &Sheet) -> Option<f64> {
    let ulysses = sheet.number("train.accelerator.ulysses_size").unwrap_or(1.0).max(1.0);
    let launched = sheet.devices().map(|all| all / ulysses);
    let sizes = ["train.accelerator.dp_replicate_size", "train.accelerator.dp_shard_size"];
    let [replicate, shard] = sizes.map(|key| sheet.number(key).filter(|size| *size >= 1.0));
    let written = replicate.zip(shard).map(|(replicate, shard)| replicate * shard);
    launched.or(written).filter(|all| *all >= 1.0 && all.fract() == 0.0)
}

fn is_off(sheet: &Sheet, key: &str) -> bool {
    sheet.get(key) == Some(&Value::Bool(false))
}

/// Translates the batch: packs where batches are dynamic, as they are by default, else samples.
fn batch(sheet: &mut Sheet, devices: Option<f64>) {
    const OURS: &str = "train.global_batch_size";
    let micro = sheet.number("train.micro_batch_size").unwrap_or(1.0);
    if sheet.number(OURS).is_some() {
        sheet.copy_number(OURS, OURS);
        return sheet.settled("a pack has as many samples as fit", &["train.micro_batch_size"]);
    }
    sheet.set(OURS, (micro * devices.unwrap_or(1.0)) as u64);
    sheet.arrived("train.micro_batch_size", OURS);
    if devices.is_none() {
        sheet.note(
            "without global_batch_size the batch is micro_batch_size samples of each GPU, whose number is not known: \
             multiply train.global_batch_size by it, and divide train.steps",
        );
    }
    sheet.missing("it must be a number", &[OURS]);
}

/// Translates the length of the run. An epoch of dynamic batches has as many steps as `train_size` tokens need.
fn steps(sheet: &mut Sheet, epochs: f64) {
    let limit = sheet.number("train.max_steps").filter(|steps| *steps >= 1.0);
    let is_padded = is_off(sheet, "train.rmpad") && !sheet.is_true("train.rmpad_with_pos_ids");
    let is_dynamic = !is_off(sheet, "train.dyn_bsz") && !is_padded;
    let mut ours = STEPS;
    if is_dynamic {
        let grown = 1.0 + sheet.number("train.bsz_warmup_ratio").unwrap_or(0.0) / 2.0;
        let tokens = (sheet.number("data.train_size").unwrap_or(1e7) * grown).floor();
        let of_step = sheet.set_number("train.global_batch_size").unwrap_or(1.0)
            * sheet.set_number("data.pack.max_tokens").unwrap_or(2048.0);
        let own = (tokens / of_step.max(1.0)).ceil().max(1.0);
        sheet.set(STEPS, (limit.map_or(own, |limit| own.min(limit)) * epochs) as u64);
        sheet.set("data.pack.mode", "stream");
        sheet.note(
            "train.steps is what data.train_size (10 million tokens by default), max_steps and the epochs come to; \
             VeOmni ends an epoch earlier where the data ends: set train.epochs and data.pack.mode: offline instead if \
             that is meant",
        );
        sheet.arrived("data.train_size", STEPS);
        sheet.settled("train_size determines the number of steps", &["data.train_sample"]);
    } else if let Some(limit) = limit {
        sheet.set(STEPS, (limit * epochs) as u64);
        sheet.note("VeOmni ends each epoch after max_steps, or where its data ends; here train.steps are done");
    } else {
        ours = "train.epochs";
        sheet.set(ours, epochs);
    }
    sheet.arrived("train.num_train_epochs", ours);
    sheet.arrived("train.max_steps", ours);
    if sheet.is("data.datasets_type", "iterable") && !is_dynamic {
        sheet.missing("samples are counted: set train.steps if a run is to have fewer", &["data.train_sample"]);
    }
    sheet.settled("samples are counted", &["data.train_sample"]);
    sheet.settled("it applies only to dynamic batches", &["data.train_size"]);
    sheet.settled("files are read in blocks, whatever their kind", &["data.datasets_type"]);
    let packs = "samples are always packed, and never attend to each other";
    let keys = ["dyn_bsz", "dyn_bsz_runtime", "dyn_bsz_margin", "pad_to_length", "rmpad", "rmpad_with_pos_ids"];
    keys.iter().for_each(|key| sheet.settled(packs, &[&format!("train.{key}")]));
    if !sheet.is("train.dyn_bsz_count_mode", "effective") {
        let keys = ["train.dyn_bsz_count_mode", "train.dyn_bsz_physical_overflow_ratio"];
        sheet.settled("a pack is bounded by all its tokens", &keys);
    }
    let counted = "a pack is bounded by all its tokens, also those that count in no loss";
    sheet.missing(counted, &["train.dyn_bsz_count_mode", "train.dyn_bsz_physical_overflow_ratio"]);
    if sheet.number("train.bsz_warmup_ratio").is_none_or(|ratio| ratio == 0.0) {
        sheet.settled("it applies only with bsz_warmup_ratio", &["train.bsz_warmup_init_mbtoken"]);
    }
    let whole = "batches have their full size from the first step on";
    sheet.missing(whole, &["train.bsz_warmup_ratio", "train.bsz_warmup_init_mbtoken"]);
}

/// Translates the rate and its schedule.
fn rates(sheet: &mut Sheet) {
    let key = |name: &str| format!("train.optimizer.{name}");
    // Their defaults, here and below.
    sheet.set("train.lr", 5e-5);
    sheet.copy_number(&key("lr"), "train.lr");
    let lr = sheet.set_number("train.lr").unwrap_or(5e-5);
    let style = sheet.text(&key("lr_decay_style")).unwrap_or_else(|| "constant".to_owned());
    sheet.set("train.schedule", "constant");
    sheet.with(&key("lr_decay_style"), "train.schedule", |style| match style.as_str() {
        Some("constant" | "linear" | "cosine") => Ok(style.clone()),
        _ => Err("it must be constant, linear or cosine; constant is used instead"),
    });
    if style == "cosine" {
        let least = sheet.number(&key("lr_min")).unwrap_or(1e-7);
        sheet.set("train.min_lr", least.clamp(0.0, lr.max(0.0)));
        sheet.arrived(&key("lr_min"), "train.min_lr");
    } else if style == "linear" {
        // The floor of theirs, whatever lr_min is.
        sheet.set("train.min_lr", 1e-7_f64.min(lr));
    }
    sheet.settled("VeOmni reads it for the schedule cosine only", &[&key("lr_min")]);
    sheet.copy_number(&key("lr_warmup_ratio"), "train.warmup_ratio");
    if style != "cosine" || sheet.number(&key("lr_decay_ratio")) == Some(1.0) {
        sheet.settled("the rate falls until the last step", &[&key("lr_decay_ratio")]);
    }
    sheet.missing("the rate falls until the last step", &[&key("lr_decay_ratio")]);
    sheet.missing("the warm-up begins at 0", &[&key("lr_start")]);
}

fn optimizer(sheet: &mut Sheet) {
    let key = |name: &str| format!("train.optimizer.{name}");
    sheet.set("train.optimizer.betas", json!([0.9, 0.95]));
    sheet.set("train.optimizer.weight_decay", 0.0);
    sheet.copy_number(&key("weight_decay"), "train.optimizer.weight_decay");
    sheet.decay_of_all();
    sheet.set("train.clip_grad", 1.0);
    sheet.copy_number(&key("max_grad_norm"), "train.clip_grad");
    match sheet.text(&key("type")).as_deref() {
        Some("muon") => muon(sheet),
        Some("adamw") | None => sheet.settled("AdamW is the optimizer", &[&key("type")]),
        Some("anyprecision_adamw") => {
            sheet.missing("moments have 32 bits, or 8 with adamw_8bit", &[&key("type")]);
        }
        Some(_) => sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &[&key("type")]),
    }
    sheet.settled_all("it applies only to type: muon", &[&key("muon_")]);
    for name in ["no_decay_modules", "no_decay_params"] {
        if sheet.get(&key(name)).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            sheet.settled("it is off", &[&key(name)]);
        }
        sheet.missing("which parameters decay is built in", &[&key(name)]);
    }
}

/// Translates the keys of Muon, with a rate and a decay of its own.
fn muon(sheet: &mut Sheet) {
    let key = |name: &str| format!("train.optimizer.{name}");
    sheet.optimizer_is("muon", &key("type"));
    let is_original = sheet.is(&key("muon_adjust_lr_fn"), "original");
    sheet.copy_number(&key("muon_momentum"), "train.optimizer.muon.momentum");
    sheet.copy(&key("muon_adjust_lr_fn"), "train.optimizer.muon.adjust_lr");
    let lr = sheet.set_number("train.lr").filter(|lr| *lr > 0.0);
    let own = sheet.number(&key("muon_lr")).zip(lr).map(|(own, lr)| own / lr);
    // Their default.
    let ratio = own.unwrap_or(if is_original { 25.0 } else { 1.0 });
    sheet.set("train.optimizer.muon.lr_ratio", ratio);
    sheet.arrived(&key("muon_lr"), "train.optimizer.muon.lr_ratio");
    let decay = sheet.number(&key("muon_weight_decay")).unwrap_or(0.0);
    if sheet.set_number("train.optimizer.weight_decay") == Some(decay) {
        sheet.arrived(&key("muon_weight_decay"), "train.optimizer.weight_decay");
    } else {
        sheet.note("VeOmni's Muon has a decay of its own, muon_weight_decay (0 by default); here there is one for all");
        let one = "train.optimizer.weight_decay applies to all parameters";
        sheet.missing(one, &[&key("muon_weight_decay")]);
    }
    let is_usual =
        sheet.number(&key("muon_ns_steps")).is_none_or(|steps| steps == 5.0) && !is_off(sheet, &key("muon_nesterov"));
    if is_usual {
        sheet.settled("momentum is Nesterov's, with five iterations", &[&key("muon_ns_steps"), &key("muon_nesterov")]);
    }
    let iterations = "Muon has Nesterov's momentum and five iterations of Newton and Schulz";
    for name in ["muon_ns_steps", "muon_nesterov", "muon_ns_coefficients", "muon_head_group_size"] {
        if is_off(sheet, &key(name)) {
            sheet.with(&key(name), "train.optimizer.muon", |_| Err(iterations));
        }
        sheet.missing(iterations, &[&key(name)]);
    }
    sheet.settled_all("how Muon is computed is built in", &[&key("muon_")]);
}

/// Translates the layout of a model over devices.
fn layout(sheet: &mut Sheet, devices: Option<f64>) {
    const ZERO: &str = "pools.foundation.zero";
    let key = |name: &str| format!("train.accelerator.{name}");
    let (mode, reshard) = (key("fsdp_config.fsdp_mode"), key("fsdp_config.reshard_after_forward"));
    sheet.launcher();
    match devices {
        Some(devices) => sheet.set("pools.foundation.replicas", devices as u64),
        None => {
            sheet.note("the number of GPUs is not known: set pools.foundation.replicas to it, divided by ulysses_size")
        }
    }
    let level = match () {
        () if sheet.is(&mode, "ddp") => 0,
        () if is_off(sheet, &reshard) => 2,
        () => 3,
    };
    sheet.set(ZERO, level);
    [&mode, &reshard].into_iter().for_each(|key| sheet.arrived(key, ZERO));
    let sizes = [key("dp_replicate_size"), key("dp_shard_size")];
    if sheet.number(&sizes[0]).is_some_and(|size| size > 1.0) && level > 0 {
        sheet.missing("weights are sharded over all replicas", &[&sizes[0]]);
    }
    sheet.settled("pools.foundation.replicas counts devices", &[&sizes[0], &sizes[1]]);
    if sheet.number(&key("ulysses_size")).is_some_and(|size| size > 1.0) {
        sheet.set("pools.foundation.context_attention", "ulysses");
    }
    sheet.copy(&key("ulysses_size"), "pools.foundation.context_parallel");
    sheet.copy(&key("ep_size"), "pools.foundation.expert_parallel");
    for name in ["tp_size", "pp_size", "cp_size"] {
        if sheet.number(&key(name)) == Some(1.0) {
            sheet.settled("it is off", &[&key(name)]);
        }
    }
    sheet.copy(&key("tp_size"), "pools.foundation.tensor_parallel");
    sheet.copy(&key("pp_size"), "pools.foundation.pipeline_parallel");
    sheet.missing("context parallelism is that of ulysses_size", &[&key("cp_size")]);
    for name in ["extra_parallel_sizes", "extra_parallel_names", "extra_parallel_placement_innermost"] {
        if sheet.get(&key(name)).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            sheet.settled("it is off", &[&key(name)]);
        }
    }
    sheet.settled(OVERLAP, &[&key("enable_async"), &key("ep_outside")]);
    sheet.fsdp_offload(&key("fsdp_config.offload"));
    let fsdp = ["reshard_after_backward", "forward_prefetch", "max_load_broadcast_size"];
    fsdp.iter().for_each(|name| sheet.settled(OVERLAP, &[&key(&format!("fsdp_config.{name}"))]));
}

/// Translates the precision of computations, and what is kept of a forward pass.
fn precision(sheet: &mut Sheet) {
    const OURS: &str = "train.precision";
    const RECOMPUTE: &str = "model.foundation.recompute";
    let key = |name: &str| format!("train.accelerator.fsdp_config.mixed_precision.{name}");
    // Without mixed precision all is bfloat16 there, the master weights too.
    let is_mixed = !is_off(sheet, &key("enable"));
    let is_whole = is_mixed && sheet.is(&key("param_dtype"), "float32");
    sheet.set(OURS, if is_whole { "float32" } else { "bf16" });
    sheet.arrived(&key("enable"), OURS);
    if sheet.is(&key("param_dtype"), "float16") {
        sheet.missing(NO_FP16, &[&key("param_dtype")]);
    }
    sheet.arrived(&key("param_dtype"), OURS);
    sheet.settled_all("train.precision is the precision of what is computed", &[&key("")]);
    let checkpointing = "train.gradient_checkpointing.enable";
    if !is_off(sheet, checkpointing) {
        // Their default.
        sheet.set(RECOMPUTE, "all");
    }
    sheet.arrived(checkpointing, RECOMPUTE);
    sheet.settled_all("layers are recomputed whole", &["train.gradient_checkpointing."]);
    let key = |name: &str| format!("train.accelerator.offload_config.{name}");
    let offload = [key("enable_activation"), key("activation_gpu_limit")];
    if !sheet.is_true(&offload[0]) {
        sheet.settled("it is off", &[&offload[0], &offload[1]]);
    }
    let why = "memory.activation_budget saves activation memory";
    sheet.missing(why, &[&offload[0], &offload[1]]);
}

fn checkpoints(sheet: &mut Sheet, epochs: f64) {
    const EVERY: &str = "checkpoint.every_steps";
    let key = |name: &str| format!("train.checkpoint.{name}");
    let saved = sheet.number(&key("save_epochs")).unwrap_or(1.0);
    sheet.set(EVERY, 0);
    sheet.copy(&key("save_steps"), EVERY);
    // Folders of weights alone are written by another key, unless that is turned off.
    if sheet.set_number(EVERY) == Some(0.0) && !is_off(sheet, &key("save_hf_weights")) {
        sheet.copy(&key("hf_save_steps"), EVERY);
    }
    sheet.copy(&key("save_async"), "checkpoint.async");
    if saved == 0.0 || epochs <= saved {
        let why = "a checkpoint is written at the end; `checkpoint.at_end: false` turns that off";
        sheet.settled(why, &[&key("save_epochs")]);
    } else if let Some(steps) = sheet.steps().filter(|_| sheet.set_number(EVERY) == Some(0.0)) {
        // Their default: at the end of each epoch.
        sheet.set(EVERY, ((steps as f64 / epochs * saved) as u64).max(1));
        sheet.arrived(&key("save_epochs"), EVERY);
    } else {
        sheet.note("VeOmni also saves at the ends of epochs (save_epochs); checkpoint.every_steps counts steps");
    }
    sheet.missing("checkpoint.every_steps counts steps", &[&key("save_epochs")]);
    let folders = "checkpoints are Hugging Face folders";
    for name in ["manager", "save_hf_weights", "hf_save_steps", "hf_save_epochs", "dcp_save_to_lowest_rank"] {
        sheet.settled(folders, &[&key(name)]);
    }
    sheet.settled("use `loongforge run --resume`", &[&key("load_path")]);
}
