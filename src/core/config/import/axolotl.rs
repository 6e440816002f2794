//! axolotl's YAML (`axolotl train`), by its documented keys of 0.12.

use serde_json::{Map, Value};

use super::axolotl_sets;
use super::sheet::Sheet;
use super::trainer::{FROZEN, NO_FP16, SAVES_MEMORY, TRACKERS, WHOLE};

/// Keys of adapters, which say nothing without `adapter`.
const ADAPTERS: [&str; 10] = [
    "lora_alpha",
    "lora_dropout",
    "lora_fan_in_fan_out",
    "lora_model_dir",
    "lora_modules_to_save",
    "lora_r",
    "lora_target_linear",
    "lora_target_modules",
    "peft_use_dora",
    "peft_use_rslora",
];
/// Methods under `rl` that learn from answers that the model makes.
const REFUSED: [&str; 4] = ["ebft", "gdpo", "grpo", "ppo"];
/// Keys that turn a method on whose loss is none of a language model's.
const OTHER_LOSSES: [&str; 3] = ["diffusion", "process_reward_model", "reward_model"];

/// Returns the key whose method has no counterpart: anything else in its place would train something that was not asked for.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let rl = text("rl").filter(|rl| REFUSED.contains(rl)).map(|rl| format!("rl: {rl}"));
    let adapter = text("adapter").filter(|kind| !kind.is_empty() && !["lora", "qlora"].contains(kind));
    let is_on = |key: &&&str| fields.get(**key).is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
    let other = || OTHER_LOSSES.iter().find(is_on).map(|key| (*key).to_owned());
    rl.or_else(|| adapter.map(|kind| format!("adapter: {kind}"))).or_else(other)
}

/// Translates the keys of a file, each by what axolotl does with it.
pub(super) fn read(sheet: &mut Sheet) {
    model(sheet);
    data(sheet);
    let is_kto = sheet.is("rl", "kto");
    method(sheet);
    train(sheet, is_kto);
    packing(sheet);
    run(sheet);
}

fn model(sheet: &mut Sheet) {
    sheet.copy("base_model", "model.load");
    sheet.copy("tokenizer_config", "model.tokenizer");
    sheet.settled(
        "config.json determines the class",
        &["model_type", "tokenizer_type", "base_model_config", "processor_type", "is_llama_derived_model"],
    );
    sheet.settled("no code of a model's folder is ever run", &["trust_remote_code"]);
    quantization(sheet);
    let built_in = "attention and losses are always fused";
    sheet.settled(
        built_in,
        &[
            "flash_attention",
            "sdp_attention",
            "xformers_attention",
            "flex_attention",
            "liger_rope",
            "liger_rms_norm",
            "liger_glu_activation",
            "liger_fused_linear_cross_entropy",
            "unsloth_cross_entropy_loss",
            "lora_mlp_kernel",
            "lora_qkv_kernel",
            "lora_o_kernel",
            "torch_compile",
            "plugins",
            "attn_implementation",
            "liger_layer_norm",
            "use_kernels",
            "flash_attn_cross_entropy",
        ],
    );
    let pads = |tokens: &Value| tokens.as_object().is_some_and(|tokens| tokens.keys().all(|key| key == "pad_token"));
    if sheet.get("special_tokens").is_some_and(pads) {
        sheet.settled("packs have no padding", &["special_tokens"]);
    }
    sheet.missing("add them to the tokenizer, and set model.resize_embeddings", &["special_tokens", "tokens"]);
    sheet.copy("resize_token_embeddings_to_32x", "model.resize_embeddings");
}

/// Weights of 4 and 8 bits. axolotl's own settings of bitsandbytes, which `bnb_config_kwargs` changes, are NF4 with double
/// quantization.
fn quantization(sheet: &mut Sheet) {
    let own = |sheet: &Sheet, key: &str| sheet.get("bnb_config_kwargs").map(|own| own[key].clone()).unwrap_or_default();
    let kind = own(sheet, "bnb_4bit_quant_type");
    let is_known = kind.is_null() || kind == "nf4";
    let doubled = own(sheet, "bnb_4bit_use_double_quant") != Value::Bool(false);
    // A method of its own has these weights where nothing else is said.
    let implied = sheet.is("adapter", "qlora") && !sheet.is_true("load_in_8bit");
    if (sheet.is_true("load_in_4bit") || implied) && is_known {
        sheet.frozen_in(4, doubled, "load_in_4bit");
        sheet.arrived("bnb_config_kwargs", FROZEN);
    } else if sheet.is_true("load_in_8bit") {
        sheet.frozen_in(8, false, "load_in_8bit");
    }
    let why = "model.foundation.frozen_precision must be nf4, nf4_double or int8 (bitsandbytes), or fp8_e4m3fn";
    sheet.missing(why, &["load_in_4bit", "load_in_8bit", "gptq", "bnb_config_kwargs"]);
}

fn data(sheet: &mut Sheet) {
    let is_pairs = sheet.get("rl").is_some_and(|rl| rl != "kto");
    let is_streamed = sheet.get("datasets").is_none() && sheet.get("pretraining_dataset").is_some();
    if is_streamed || axolotl_sets::are_texts(sheet) {
        sheet.set("train.phase", "pretrain");
        sheet.long_documents();
    }
    if sheet.get("datasets").is_some() {
        axolotl_sets::train(sheet, "datasets", is_pairs);
    } else if is_streamed {
        axolotl_sets::train(sheet, "pretraining_dataset", false);
    }
    for key in ["test_datasets", "eval_datasets"] {
        if sheet.get(key).is_some() {
            axolotl_sets::held_out(sheet, key, is_pairs);
        }
    }
    if sheet.number("val_set_size") == Some(0.0) {
        sheet.settled("no samples are set aside", &["val_set_size"]);
    }
    sheet.held_out("val_set_size");
    sheet.with("excess_length_strategy", "data.pack.too_long", |value| match value.as_str() {
        Some("drop") => Ok("skip".into()),
        Some("raise") => Ok("error".into()),
        Some("truncate") => Ok("truncate".into()),
        _ => Err("data.pack.too_long must be skip, truncate or error"),
    });
    // Their default.
    sheet.set("data.pack.max_tokens", 512);
    sheet.copy("sequence_len", "data.pack.max_tokens");
    sheet.settled(
        "samples are always packed, and never padded",
        &[
            "eval_sample_packing",
            "pad_to_sequence_len",
            "sample_packing_eff_est",
            "multipack_real_batches",
            "group_by_length",
        ],
    );
    sheet.settled(
        "the chat template is that of the model's folder; data.template has built-in ones",
        &["chat_template", "chat_template_jinja"],
    );
    sheet.default_system("default_system_message");
    let trains = sheet.is_true("train_on_inputs");
    if trains {
        sheet.with("train_on_inputs", "train.phase", |_| Ok("pretrain".into()));
    }
    sheet.settled("only answers count in the loss of train.phase sft", &["train_on_inputs"]);
    order(sheet, is_streamed);
    let prepared = "data is read during the run; `loongforge data pack` packs it in advance";
    sheet.settled(
        prepared,
        &[
            "dataset_prepared_path",
            "dataset_processes",
            "dataset_keep_in_memory",
            "push_dataset_to_hub",
            "skip_prepare_dataset",
            "dataloader_num_workers",
            "dataloader_prefetch_factor",
            "dataloader_pin_memory",
        ],
    );
}

/// Translates the order of samples. A sampler draws them at random whatever is done when sets are merged, unless they are streamed.
fn order(sheet: &mut Sheet, is_streamed: bool) {
    if sheet.is_true("curriculum_sampling") {
        sheet.with("curriculum_sampling", "data.shuffle", |_| Ok(false.into()));
    } else if is_streamed {
        sheet.copy("shuffle_merged_datasets", "data.shuffle");
    }
    sheet.settled(
        "data.shuffle determines the order of samples",
        &["curriculum_sampling", "shuffle_before_merging_datasets", "shuffle_merged_datasets"],
    );
}

/// Translates `lr_groups`, whose modules are parts of names, as ratios to the learning rate.
fn lr_ratios(groups: &Value, rate: Option<f64>) -> Result<Value, &'static str> {
    let rate = rate
        .filter(|rate| *rate > 0.0)
        .ok_or("the ratios are relative to learning_rate, which must be a number above 0")?;
    let mut ratios = serde_json::Map::new();
    for group in groups.as_array().ok_or("it must be a list")? {
        let own = group["lr"].as_f64().or_else(|| group["lr"].as_str()?.parse().ok()).ok_or("a group has no lr")?;
        for module in group["modules"].as_array().ok_or("a group has no modules")? {
            let module = module.as_str().ok_or("each module must be text")?;
            ratios.insert(format!("*{module}*"), (own / rate).into());
        }
    }
    Ok(ratios.into())
}

/// Counts a batch in packs with `sample_packing`, unless answers are compared.
fn packing(sheet: &mut Sheet) {
    if sheet.is_true("sample_packing") && !sheet.has_set("train.preference") {
        sheet.packs("sample_packing");
    }
    sheet.settled("samples are always packed, and never padded", &["sample_packing"]);
}

fn method(sheet: &mut Sheet) {
    let has_adapters = sheet.is("adapter", "lora") || sheet.is("adapter", "qlora");
    if has_adapters {
        sheet.arrived("adapter", "model.foundation.lora");
    } else {
        let why = "it applies only to adapters, which `adapter: lora` turns on";
        sheet.settled(why, &ADAPTERS);
    }
    if has_adapters && sheet.get("lora_model_dir").is_some() {
        sheet.copy("lora_model_dir", "model.foundation.lora.adapter");
        sheet.settled("it comes from lora_model_dir", &ADAPTERS);
    }
    if sheet
        .get("lora_target_modules")
        .and_then(Value::as_str)
        .is_some_and(|names| names.contains(['[', '(', '\\', '|']))
    {
        sheet.missing(
            "it is a regular expression, but model.foundation.lora.target_modules is a list of names: all linear layers get adapters",
            &["lora_target_modules"],
        );
    }
    if sheet.is_true("lora_target_linear") {
        // Modules that are named besides count too.
        sheet.with("lora_target_modules", "model.foundation.lora.target_modules", |names| {
            let named = names.as_array().cloned().unwrap_or_else(|| vec![names.clone()]);
            Ok([Value::from("all-linear")].into_iter().chain(named).collect())
        });
    }
    sheet.copy_all(&[
        ("lora_r", "model.foundation.lora.r"),
        ("lora_alpha", "model.foundation.lora.alpha"),
        ("lora_dropout", "model.foundation.lora.dropout"),
        ("lora_target_modules", "model.foundation.lora.target_modules"),
        ("lora_modules_to_save", "model.foundation.lora.modules_to_save"),
        ("peft_use_dora", "model.foundation.lora.use_dora"),
        ("peft_use_rslora", "model.foundation.lora.use_rslora"),
    ]);
    sheet.settled("all linear layers are the default", &["lora_target_linear"]);
    sheet.missing("adapters are always written in PEFT's layout", &["lora_fan_in_fan_out", "peft"]);
    sheet.missing("this adapter variant is not supported", &["relora", "lora_on_cpu"]);
    sheet.regularization(has_adapters);
    let loss = match sheet.get("rl").and_then(Value::as_str) {
        Some("dpo") => Some("sigmoid"),
        Some("ipo") => Some("ipo"),
        Some("orpo") => Some("orpo"),
        Some("simpo") => Some("simpo"),
        Some("kto") => Some("kto"),
        _ => None,
    };
    match loss {
        Some(loss) => preference(sheet, loss),
        None => sheet.missing("only dpo, ipo, orpo, simpo and kto are supported (train.preference)", &["rl"]),
    }
    sheet.settled(
        "it applies only to another method (rl)",
        &[
            "cpo_alpha",
            "dpo_beta",
            "dpo_label_smoothing",
            "kto_desirable_weight",
            "kto_undesirable_weight",
            "orpo_alpha",
            "rl_beta",
            "rpo_alpha",
            "simpo_gamma",
        ],
    );
}

/// Translates what the methods that compare answers read beside `rl`.
fn preference(sheet: &mut Sheet, loss: &'static str) {
    const BETA: &str = "train.preference.beta";
    sheet.with("rl", "train.preference.loss", |_| Ok(loss.into()));
    sheet.preference(loss);
    // The last of these that is there counts.
    ["orpo_alpha", "dpo_beta", "rl_beta"].iter().for_each(|key| sheet.copy_number(key, BETA));
    let is_beta = |trl: &Value| trl.as_object().is_some_and(|keys| keys.keys().all(|key| key == "beta"));
    if sheet.get("trl").is_some_and(|trl| is_beta(trl) && trl["beta"].is_number()) {
        sheet.with("trl", BETA, |trl| Ok(trl["beta"].clone()));
    }
    match loss {
        "kto" => {
            sheet.copy_number("kto_desirable_weight", "train.preference.desirable_weight");
            sheet.copy_number("kto_undesirable_weight", "train.preference.undesirable_weight");
        }
        "simpo" => {
            // Their default.
            sheet.set("train.preference.nll_weight", 1.0);
            sheet.copy_number("cpo_alpha", "train.preference.nll_weight");
        }
        _ => sheet.copy_number("rpo_alpha", "train.preference.nll_weight"),
    }
}

fn train(sheet: &mut Sheet, is_kto: bool) {
    match is_kto {
        true => sheet.batch_of_groups("micro_batch_size", 1.0),
        false => sheet.batch("micro_batch_size", 1.0),
    }
    let rate = sheet.number("learning_rate");
    sheet.with("lr_groups", "model.foundation.lr_ratios", |groups| lr_ratios(groups, rate));
    let is_cosine =
        sheet.get("lr_scheduler").is_none() || ["cosine", "rex"].iter().any(|name| sheet.is("lr_scheduler", name));
    let is_constant = sheet.is("lr_scheduler", "constant");
    // Their default. A rate must be given.
    sheet.scheduler("lr_scheduler", "cosine", 0.0);
    sheet.copy_number("learning_rate", "train.lr");
    sheet.duration("num_epochs", 1.0);
    if !is_constant {
        warmup(sheet);
    }
    if !is_cosine {
        sheet.settled("it applies only to lr_scheduler: cosine", &["cosine_min_lr_ratio"]);
    }
    if let Some((ratio, rate)) = sheet.number("cosine_min_lr_ratio").zip(rate) {
        sheet.with("cosine_min_lr_ratio", "train.min_lr", |_| Ok((ratio * rate).into()));
    }
    sheet.optimizer("optimizer");
    // `auto` is their default.
    let is_auto = sheet.get("bf16").is_none() && !sheet.is_true("fp16");
    if is_auto
        || sheet.is_true("bf16")
        || sheet.is("bf16", "auto")
        || sheet.is("bf16", "full")
        || sheet.is_true("bfloat16")
    {
        sheet.set("train.precision", "bf16");
    }
    ["bf16", "bfloat16"].iter().for_each(|key| sheet.arrived(key, "train.precision"));
    sheet.missing(NO_FP16, &["fp16", "fp8"]);
    sheet.settled("the processor chooses the precision of matrix products", &["tf32"]);
    sheet.deepspeed("deepspeed");
    fsdp(sheet);
    sheet.copy_all(&[
        ("tensor_parallel_size", "pools.foundation.tensor_parallel"),
        ("context_parallel_size", "pools.foundation.context_parallel"),
        ("sequence_parallel_degree", "pools.foundation.context_parallel"),
        ("expert_parallel_size", "pools.foundation.expert_parallel"),
    ]);
    sheet.settled(SAVES_MEMORY, &["gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading"]);
}

/// Sets the warm-up that theirs is by default: 3% of the steps, but at most 100. It is to be read after the duration.
fn warmup(sheet: &mut Sheet) {
    if ["train.warmup_steps", "train.warmup_ratio"].iter().any(|key| sheet.has_set(key)) {
        return;
    }
    if let Some(steps) = sheet.steps() {
        return sheet.set("train.warmup_steps", (steps.saturating_mul(3) / 100).min(100));
    }
    sheet.set("train.warmup_ratio", 0.03);
    sheet.note(
        "axolotl's warm-up has 3% of the steps, but at most 100: in a run of more than 3,333 steps replace \
         train.warmup_ratio by train.warmup_steps: 100",
    );
}

/// Translates FSDP as a level of ZeRO, and how many replicas there are.
fn fsdp(sheet: &mut Sheet) {
    const REPLICAS: [&str; 2] = ["dp_replicate_size", "dp_shard_size"];
    if let Some(devices) = sheet.devices().filter(|_| REPLICAS.iter().any(|key| sheet.get(key).is_some())) {
        sheet.set("pools.foundation.replicas", devices as u64);
        REPLICAS.iter().for_each(|key| sheet.arrived(key, "pools.foundation.replicas"));
    }
    sheet.fsdp();
}

fn run(sheet: &mut Sheet) {
    let says = ["save_steps", "save_strategy", "saves_per_epoch"].iter().any(|key| sheet.get(key).is_some());
    // Their defaults.
    sheet.set("checkpoint.keep_last", 4);
    if !says && sheet.has_set("train.epochs") {
        sheet.set("checkpoint.every_epochs", 1.0);
    }
    sheet.run(&["output_dir"]);
    let is_said = ["eval_steps", "eval_strategy", "evals_per_epoch"].iter().any(|key| sheet.get(key).is_some());
    sheet.no_evaluation();
    sheet.every("eval_steps", "eval.every_steps");
    // Their default, too.
    let is_each_epoch = !is_said || sheet.is("eval_strategy", "epoch");
    if is_each_epoch && sheet.has_held_out() && !sheet.every_epochs("eval_strategy", "eval", 1.0) {
        sheet.missing("eval.every_steps counts steps", &["eval_strategy"]);
    }
    if let Some(count) = sheet.number("saves_per_epoch").filter(|count| *count > 0.0) {
        sheet.every_epochs("saves_per_epoch", "checkpoint", 1.0 / count);
    }
    sheet.missing("checkpoint.every_steps counts steps", &["saves_per_epoch"]);
    if !sheet.has_held_out() {
        sheet.settled("nothing is held out", &["evals_per_epoch"]);
    }
    if let Some(count) = sheet.number("evals_per_epoch").filter(|count| *count > 0.0) {
        sheet.every_epochs("evals_per_epoch", "eval", 1.0 / count);
    }
    sheet.missing("eval.every_steps counts steps", &["evals_per_epoch"]);
    sheet.compared_answers();
    sheet.patience("early_stopping_patience");
    sheet.settled("evaluation uses packs of the same size as training", &["eval_batch_size"]);
    sheet.copy_all(&[
        ("wandb_project", "log.wandb.project"),
        ("wandb_entity", "log.wandb.entity"),
        ("wandb_name", "log.wandb.name"),
        ("mlflow_experiment_name", "log.mlflow.experiment"),
    ]);
    sheet.missing(TRACKERS, &["wandb_watch", "wandb_log_model", "wandb_run_id", "comet_project_name"]);
    sheet.settled("TensorBoard's files are always written", &["use_tensorboard"]);
    sheet.settled(WHOLE, &["save_only_model"]);
    sheet.settled("use `loongforge run --resume`", &["resume_from_checkpoint", "auto_resume_from_checkpoints"]);
    sheet.settled(
        "this is always the case",
        &[
            "save_safetensors",
            "save_first_step",
            "strict",
            "debug",
            "ddp_timeout",
            "eval_strategy",
            "remove_unused_columns",
        ],
    );
}
