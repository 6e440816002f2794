//! Translates ms-swift's rates, packs, layout, evaluations and run, mostly by keys of transformers' trainer.

use serde_json::{Value, json};

use super::sheet::Sheet;
use super::trainer::{SAVES_MEMORY, SWANLAB};

/// The reason why keys of an evaluation have no effect.
pub(super) const NO_EVALUATION: &str = "nothing is evaluated during the run";

/// Translates the keys of training.
pub(super) fn read(sheet: &mut Sheet, has_adapters: bool) {
    rates(sheet, has_adapters);
    packing(sheet);
    layout(sheet);
    evaluation(sheet);
    run(sheet);
}

/// Gives a trained projector its rate: theirs is the run's unless `aligner_lr` is there, ours that of the tower's pool.
fn projector_rate(sheet: &mut Sheet) {
    const RATIOS: &str = "model.image_projector.lr_ratios";
    if sheet.ours("model.image_projector.freeze") != Some(&Value::Bool(false)) {
        return sheet.settled("the projector is frozen", &["aligner_lr"]);
    }
    let Some(usual) = sheet.set_number("train.lr") else { return };
    let pool = sheet.set_number("pools.encoder.lr").unwrap_or(usual);
    let own = sheet.number("aligner_lr").unwrap_or(usual);
    let ratio = own / pool;
    if own != pool && !ratio.is_finite() {
        sheet.note("the image projector is not trained, as its pool has the rate 0: freeze the tower instead");
        return sheet.missing("lr_ratios are relative to pools.encoder.lr, which is 0", &["aligner_lr"]);
    }
    if own != pool {
        sheet.set(RATIOS, json!({ "*": ratio }));
    }
    sheet.arrived("aligner_lr", RATIOS);
}

/// Translates the rate, whose default depends on what is trained, and the optimizer.
fn rates(sheet: &mut Sheet, has_adapters: bool) {
    let lr = if has_adapters { 1e-4 } else { 1e-5 };
    // Their defaults, which are not those of transformers.
    let decay = sheet.number("weight_decay").unwrap_or(0.1);
    let betas = [("adam_beta1", 0.9), ("adam_beta2", 0.95)].map(|(key, beta)| sheet.number(key).unwrap_or(beta));
    sheet.scheduler("lr_scheduler_type", "cosine", lr);
    sheet.set("train.lr", lr);
    sheet.copy_number("learning_rate", "train.lr");
    projector_rate(sheet);
    sheet.duration("num_train_epochs", 3.0);
    sheet.optimizer("optim");
    sheet.set("train.optimizer.weight_decay", decay);
    sheet.set("train.optimizer.betas", json!(betas));
    sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &["optimizer", "optim_args"]);
    sheet.missing("train.steps or train.epochs ends a run", &["max_epochs"]);
}

fn packing(sheet: &mut Sheet) {
    let is_packed = sheet.is_true("packing") && !sheet.has_set("train.preference");
    if is_packed {
        sheet.packs("packing");
        sheet.copy("packing_length", "data.pack.max_tokens");
    }
    let packs = "samples are always packed, and never attend to each other";
    let keys = ["packing", "packing_length", "packing_num_proc", "packing_strategy", "padding_free", "padding_side"];
    sheet.settled(packs, &keys);
    sheet.settled("scheduler.balance distributes samples by their length", &["group_by_length"]);
}

fn layout(sheet: &mut Sheet) {
    let is_split = sheet.number("context_parallel_size").is_some_and(|size| size > 1.0);
    sheet.launcher();
    sheet.fsdp();
    sheet.copy("context_parallel_size", "pools.foundation.context_parallel");
    if is_split {
        sheet.set("pools.foundation.context_attention", "ulysses");
    }
    sheet.copy("deepspeed_autotp_size", "pools.foundation.tensor_parallel");
    sheet.settled(
        SAVES_MEMORY,
        &["gradient_checkpointing", "vit_gradient_checkpointing", "gradient_checkpointing_kwargs"],
    );
    sheet.settled_all("`loongforge launch` places processes on machines", &["ddp_", "use_ray", "device_"]);
}

/// Returns the key that says when held-out data is evaluated.
fn strategy(sheet: &Sheet) -> &'static str {
    if sheet.get("eval_strategy").is_some() { "eval_strategy" } else { "save_strategy" }
}

/// Returns whether held-out data is not read.
pub(super) fn evaluates_nothing(sheet: &Sheet) -> bool {
    sheet.is(strategy(sheet), "no")
}

/// Translates the keys of held-out data, which is evaluated as often as a checkpoint is written unless a key says otherwise.
fn evaluation(sheet: &mut Sheet) {
    const RATIO: &str = "split_dataset_ratio";
    let key = strategy(sheet);
    let is_steps = sheet.get(key).is_none() || sheet.is(key, "steps");
    let is_split = sheet.number(RATIO).is_some_and(|share| share > 0.0);
    let goes_by_epochs = sheet.is(key, "epoch") && sheet.has_set("train.epochs");
    let has_set = sheet.has_set("eval.path");
    if evaluates_nothing(sheet) || !(is_split || has_set) {
        return sheet.settled(NO_EVALUATION, &[RATIO, "eval_strategy", "eval_steps"]);
    }
    if !is_steps {
        sheet.settled("it applies only to the strategy `steps`", &["eval_steps"]);
    }
    if !is_steps && !goes_by_epochs {
        let why = "set eval.every_steps, which counts steps";
        sheet.with("eval_strategy", "eval.every_steps", |_| Err(why));
    }
    if is_split && !has_set {
        sheet.held_out(RATIO);
    }
    sheet.settled("val_dataset is what is evaluated", &[RATIO]);
    if goes_by_epochs {
        sheet.every_epochs("eval_strategy", "eval", 1.0);
    }
    if is_steps {
        let every = sheet.number("save_steps").unwrap_or(500.0);
        sheet.set("eval.every_steps", every.max(1.0) as u64);
        sheet.every("eval_steps", "eval.every_steps");
        sheet.arrived("eval_strategy", "eval.every_steps");
    }
}

fn run(sheet: &mut Sheet) {
    let is_named = ["run_name", "output_dir"].iter().any(|key| sheet.get(key).is_some());
    let model = sheet.ours("model.load").and_then(Value::as_str).unwrap_or_default();
    let name = model.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    // Their default.
    sheet.set("log.every_steps", 5);
    sheet.run_of_trainer();
    if !is_named && !name.is_empty() {
        sheet.set("run.name", name);
    }
    sheet.patience("early_stop_interval");
    if sheet.is_true("predict_with_generate") {
        sheet.missing("set eval.generate, the number of answers to generate", &["predict_with_generate"]);
    }
    sheet.settled("held-out losses are measured", &["predict_with_generate"]);
    sheet.missing("`loongforge evaluate` evaluates a checkpoint", &["eval_use_evalscope"]);
    sheet.missing("`loongforge checkpoint push` uploads a checkpoint", &["push_to_hub", "hub_model_id"]);
    for key in sheet.begin_with("swanlab_") {
        sheet.missing(SWANLAB, &[&key]);
    }
    sheet.settled("`run.dir` is used as it is", &["add_version", "logging_dir"]);
    sheet.settled("the link `best` in checkpoint.dir names the best checkpoint", &["create_checkpoint_symlink"]);
    sheet.settled("weights are always safetensors", &["safe_serialization", "max_shard_size"]);
    sheet.settled("use `loongforge run --resume`", &["resume_only_model", "load_args", "load_data_args"]);
    sheet.settled("this is always the case", &["logging_first_step", "check_model", "ignore_args_error"]);
}
