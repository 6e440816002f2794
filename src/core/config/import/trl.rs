//! TRL's command lines and YAML (`trl sft`, `trl dpo`), by the fields of its configs of 1.16 and of transformers' trainer.

use serde_json::{Value, json};

use super::hub;
use super::llama_parts;
use super::sheet::Sheet;
use super::trainer::{FROZEN, NO_FP16, READ_AHEAD, SAVES_MEMORY, TRACKERS, UNREAD};
use super::{trl_loss, trl_mixture};

/// Keys that tell a config of TRL from one of LLaMA-Factory.
pub(super) const OWN: [&str; 26] = [
    "accelerate_config",
    "assistant_only_loss",
    "attn_implementation",
    "beta",
    "completion_only_loss",
    "cpo_alpha",
    "dataset_config",
    "dataset_kwargs",
    "dataset_mixer",
    "dataset_mixture",
    "dataset_name",
    "dataset_num_proc",
    "dataset_test_split",
    "dataset_text_field",
    "dataset_train_split",
    "datasets",
    "eos_token",
    "load_in_4bit",
    "lora_r",
    "lora_target_modules",
    "loss_type",
    "max_length",
    "max_seq_length",
    "num_processes",
    "padding_free",
    "use_peft",
];
/// Keys of a config that learns from pairs.
pub(super) const OF_PAIRS: [&str; 5] =
    ["beta", "label_smoothing", "loss_weights", "precompute_ref_log_probs", "sync_ref_model"];

/// Keys of a config that learns from rewards of answers that it makes.
pub(super) const OF_REWARDS: [&str; 4] =
    ["num_generations", "reward_funcs", "reward_model_name_or_path", "reward_weights"];

/// Keys of a config that learns from single answers.
pub(super) const OF_LABELS: [&str; 2] = ["desirable_weight", "undesirable_weight"];

/// Translates the arguments of `trl sft`.
pub(super) fn sft(sheet: &mut Sheet) {
    let only_answers = ["assistant_only_loss", "completion_only_loss"].iter().any(|key| sheet.is_true(key));
    let is_text = sheet.get("dataset_text_field").is_some();
    if is_text {
        sheet.set("train.phase", "pretrain");
    } else if !only_answers {
        sheet.note(
            "without assistant_only_loss, TRL counts every token of a conversation in the loss; here only answers \
             count: train.phase: pretrain counts all",
        );
    }
    for key in ["assistant_only_loss", "completion_only_loss"] {
        sheet.with(key, "train.phase", |_| Ok(if only_answers { "sft" } else { "pretrain" }.into()));
    }
    let field =
        sheet.get("dataset_text_field").and_then(Value::as_str).filter(|field| *field != "text").map(str::to_owned);
    sheet.missing("train.phase sft uses cross-entropy", &["loss_type"]);
    common(sheet, 2e-5);
    if let Some(field) = field {
        sheet.columns_of_sets(&json!({ "text": field }));
    }
    sheet.arrived("dataset_text_field", "train.phase, data.train[].columns");
    if sheet.is_true("packing") {
        sheet.packs("packing");
    }
    sheet.settled(
        "samples are always packed, and never attend to each other",
        &["packing", "packing_strategy", "eval_packing", "padding_free", "pad_to_multiple_of"],
    );
    sheet.settled("a sampler draws samples at random in any case, as data.shuffle does", &["shuffle_dataset"]);
}

/// Translates the arguments of `trl dpo`: its loss, if it has a counterpart, and the rest.
pub(super) fn dpo(sheet: &mut Sheet) {
    trl_loss::read(sheet);
    pairs(sheet);
    sheet.missing(
        "the reference model is not updated",
        &["sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"],
    );
    if sheet.is("f_divergence_type", "reverse_kl") {
        sheet.settled("it is the divergence of every loss of train.preference", &["f_divergence_type"]);
    }
    sheet.missing("only reverse_kl is supported", &["f_divergence_type"]);
    let variant = "this variant of the loss is not supported";
    sheet.missing(variant, &["loss_weights", "ld_alpha", "f_alpha_divergence_coef", "use_weighting", "discopop_tau"]);
    common(sheet, 1e-6);
}

/// Translates the arguments of `trl orpo`.
pub(super) fn orpo(sheet: &mut Sheet) {
    sheet.set("train.preference.loss", "orpo");
    pairs(sheet);
    common(sheet, 1e-6);
}

/// Translates the arguments of `trl cpo`, of which SimPO has a counterpart.
pub(super) fn cpo(sheet: &mut Sheet) {
    let is_simpo = sheet.is("loss_type", "simpo");
    sheet.set("train.preference.loss", if is_simpo { "simpo" } else { "sigmoid" });
    if is_simpo {
        sheet.arrived("loss_type", "train.preference.loss");
        sheet.preference("simpo");
        let alpha = sheet.number("cpo_alpha").unwrap_or(1.0);
        sheet.set("train.preference.nll_weight", alpha);
    } else {
        sheet.note("CPO without simpo has no counterpart: train.preference.loss: sigmoid (DPO) is used instead");
        sheet.missing("orpo and simpo use no reference model", &["loss_type", "cpo_alpha"]);
    }
    sheet.arrived("cpo_alpha", "train.preference.nll_weight");
    sheet.settled("it applies only to another loss", &["simpo_gamma"]);
    pairs(sheet);
    common(sheet, 1e-6);
}

/// Translates the arguments of `trl kto`.
pub(super) fn kto(sheet: &mut Sheet) {
    sheet.set("train.preference.loss", "kto");
    match sheet.get("loss_type").is_none() || sheet.is("loss_type", "kto") {
        true => sheet.arrived("loss_type", "train.preference.loss"),
        false => sheet.missing("kto, which learns from single answers, is used instead", &["loss_type"]),
    }
    sheet.copy_number("desirable_weight", "train.preference.desirable_weight");
    sheet.copy_number("undesirable_weight", "train.preference.undesirable_weight");
    // Their default: neighbors in the file share a batch.
    sheet.set("data.shuffle", false);
    sheet.batch_of_groups("per_device_train_batch_size", 8.0);
    compared(sheet);
    common(sheet, 1e-6);
}

fn pairs(sheet: &mut Sheet) {
    if sheet.number("label_smoothing").is_some_and(|part| part > 0.0) {
        sheet.copy_number("label_smoothing", "train.preference.label_smoothing");
    }
    sheet.missing("train.preference.label_smoothing", &["label_smoothing"]);
    compared(sheet);
}

/// Keys of all methods that compare answers.
fn compared(sheet: &mut Sheet) {
    sheet.copy_number("beta", "train.preference.beta");
    sheet.settled("the reference model has its own pool", &["precompute_ref_log_probs", "precompute_ref_batch_size"]);
    sheet.missing("data.pack.max_tokens limits the length of samples", &["max_completion_length", "max_prompt_length"]);
    sheet.missing("eval.generate generates answers", &["generate_during_eval"]);
    sheet.settled("packs have no padding", &["padding_value", "padding_free", "pad_to_multiple_of"]);
    sheet.settled("models have no dropout", &["disable_dropout"]);
}

fn common(sheet: &mut Sheet, rate: f64) {
    let sees = llama_parts::sees(sheet);
    model(sheet);
    data(sheet);
    lora(sheet);
    if sees && sheet.has_set("model.foundation.lora") {
        sheet.freeze_pictures();
        sheet.note(
            "TRL also adds adapters to layers of the image tower that lora_target_modules matches; here it stays \
             frozen: model.image_encoder.lora gives it adapters",
        );
    }
    if !sheet.has_set("train.global_batch_size") {
        sheet.batch("per_device_train_batch_size", 8.0);
    }
    sheet.scheduler("lr_scheduler_type", "linear", rate);
    sheet.set("train.lr", rate);
    sheet.copy_number("learning_rate", "train.lr");
    sheet.duration("num_train_epochs", 3.0);
    sheet.optimizer("optim");
    precision(sheet);
    run(sheet);
}

fn model(sheet: &mut Sheet) {
    let is_mixture = llama_parts::is_mixture(sheet);
    let revision =
        sheet.get("model_revision").and_then(Value::as_str).filter(|name| *name != "main").map(str::to_owned);
    sheet.with("model_name_or_path", "model.load", |value| match (&revision, value.as_str()) {
        (Some(revision), Some(name)) => Ok(format!("{name}@{revision}").into()),
        _ => Ok(value.clone()),
    });
    sheet.arrived("model_revision", "model.load");
    if sheet.get("router_aux_loss_coef").is_none() && is_mixture {
        sheet.note(
            "TRL adds a load-balancing loss of weight 0.001 to a mixture of experts: set model.moe.aux_loss_coef to \
             0.001",
        );
    }
    sheet.copy_number("router_aux_loss_coef", "model.moe.aux_loss_coef");
    sheet.settled("no code of a model's folder is ever run", &["trust_remote_code"]);
    let fused = "attention and losses are always fused";
    sheet.settled(fused, &["attn_implementation", "use_liger_kernel", "torch_compile"]);
    quantization(sheet);
    sheet.missing("it comes from config.json; model.overrides changes it", &["model_init_kwargs"]);
    sheet.settled("it comes from the tokenizer", &["eos_token", "pad_token"]);
    sheet.missing("put it into the model's folder, or set data.template", &["chat_template", "chat_template_path"]);
}

/// Translates frozen weights of 4 and 8 bits beside adapters, as bitsandbytes rounds them.
fn quantization(sheet: &mut Sheet) {
    let is_known = sheet.get("bnb_4bit_quant_type").is_none() || sheet.is("bnb_4bit_quant_type", "nf4");
    let doubled = sheet.is_true("use_bnb_nested_quant");
    let has_adapters = sheet.is_true("use_peft");
    if has_adapters && sheet.is_true("load_in_4bit") && is_known {
        sheet.frozen_in(4, doubled, "load_in_4bit");
        ["bnb_4bit_quant_type", "use_bnb_nested_quant"].iter().for_each(|key| sheet.arrived(key, FROZEN));
    } else if has_adapters && sheet.is_true("load_in_8bit") {
        sheet.frozen_in(8, false, "load_in_8bit");
    }
    let why =
        "with adapters, model.foundation.frozen_precision may be nf4, nf4_double or int8 (bitsandbytes), or fp8_e4m3fn";
    sheet.missing(why, &["load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant"]);
}

fn data(sheet: &mut Sheet) {
    named_set(sheet);
    trl_mixture::read(sheet);
    if sheet.get("datasets").and_then(Value::as_array).is_some_and(|sets| sets.len() > 1) {
        sheet.once_per_epoch();
    }
    sheet.with("datasets", "data.train", |value| {
        let list = value.as_array().ok_or("it must be a list")?;
        let set = |set: &Value| {
            let keys = set.as_object()?;
            let files = set["data_files"].as_str().or(set["path"].as_str())?;
            // Other keys choose among files, which only the hub knows.
            let is_known = |key: &str| ["path", "data_files"].contains(&key) || (key == "split" && set[key] == "train");
            keys.keys().all(|key| is_known(key)).then(|| json!({ "path": path(files) }))
        };
        let sets: Option<Vec<Value>> = list.iter().map(set).collect();
        sets.map(Value::from).ok_or("name the files of each set in data.train")
    });
    sheet.missing("name the files of this configuration in data.train", &["dataset_config"]);
    if sheet.is("dataset_train_split", "train") {
        sheet.settled("data.train names files", &["dataset_train_split"]);
    }
    sheet.missing("name the files of this split in data.train", &["dataset_train_split"]);
    sheet.missing("name its file in eval.path", &["dataset_test_split"]);
    sheet.held_out("test_split_size");
    sheet.settled(
        READ_AHEAD,
        &[
            "dataset_num_proc",
            "dataset_streaming",
            "streaming",
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_prefetch_factor",
        ],
    );
    sheet.settled(UNREAD, &["remove_unused_columns", "no_remove_unused_columns"]);
    sheet.missing("its parts are keys of `data`", &["dataset_kwargs"]);
    let is_pairs = sheet.has_set("train.preference");
    // Their default where nothing is said; -1 and `null` are no limit.
    let is_old = sheet.get("max_length").is_none() && sheet.get("max_seq_length").is_some();
    let key = if is_old { "max_seq_length" } else { "max_length" };
    let length = if sheet.get(key).is_some() { sheet.number(key) } else { Some(1024.0) };
    match length.filter(|length| *length >= 1.0 && !sheet.is_null(key)) {
        Some(length) => {
            sheet.set("data.pack.max_tokens", length as u64);
            if is_pairs {
                sheet.long_answers();
            } else {
                sheet.set("data.pack.too_long", "truncate");
            }
            sheet.arrived(key, "data.pack.max_tokens");
        }
        None => {
            const BOUNDED: &str =
                "TRL trains on samples of any length; here data.pack.max_tokens limits them (default: 2048)";
            sheet.note(BOUNDED);
            sheet.missing(BOUNDED, &[key]);
        }
    }
    sheet.with("truncation_mode", "data.pack.too_long", |value| match value.as_str() {
        Some("keep_start") => Ok(if is_pairs { "skip" } else { "truncate" }.into()),
        _ => Err("only the end of a sample can be cut off"),
    });
}

/// Returns the path of a data set of the hub, unless the name is that of a file.
fn path(name: &str) -> String {
    if hub::is_of_hub(name) { hub::path(name, &[]) } else { name.to_owned() }
}

/// Translates the data set under `dataset_name`, with its configuration and splits, where it is one of the hub.
fn named_set(sheet: &mut Sheet) {
    let text = |key: &str| sheet.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(name) = text("dataset_name") else { return };
    if !hub::is_of_hub(&name) {
        sheet.set("data.train", json!([{ "path": name }]));
        return sheet.arrived("dataset_name", "data.train");
    }
    let [config, train, test] = ["dataset_config", "dataset_train_split", "dataset_test_split"].map(text);
    let of_split = |split: Option<&str>| hub::path(&name, &[config.as_deref(), split]);
    let first = train.as_deref().and_then(hub::first_of);
    // Other parts of splits are told as missing below.
    let train = first.map(|(split, _)| split).or(train.as_deref().filter(|split| hub::is_split(split)));
    let mut set = json!({ "path": of_split(train.filter(|split| *split != "train")) });
    if let Some((_, most)) = first {
        set["max_samples"] = most.into();
    }
    sheet.set("data.train", json!([set]));
    ["dataset_name", "dataset_config"].iter().for_each(|key| sheet.arrived(key, "data.train"));
    if train.is_some() {
        sheet.arrived("dataset_train_split", "data.train");
    }
    // Their default, where the run is evaluated and sets nothing aside.
    let is_evaluated = sheet.get("eval_strategy").is_some_and(|it| it != "no");
    let has_default = is_evaluated && sheet.get("test_split_size").is_none();
    let split = test.or_else(|| has_default.then(|| "test".to_owned())).filter(|split| hub::is_split(split));
    if let Some(split) = split.filter(|_| is_evaluated) {
        sheet.set("eval.path", of_split(Some(&split)));
        sheet.arrived("dataset_test_split", "eval.path");
    } else {
        sheet.settled("nothing is evaluated without eval_strategy", &["dataset_test_split"]);
    }
}

fn lora(sheet: &mut Sheet) {
    const LORA: &str = "model.foundation.lora";
    if sheet.is_true("use_peft") {
        sheet.set(&format!("{LORA}.r"), sheet.number("lora_r").unwrap_or(16.0) as u64);
        sheet.set(&format!("{LORA}.alpha"), sheet.number("lora_alpha").unwrap_or(32.0));
        sheet.set(&format!("{LORA}.dropout"), sheet.number("lora_dropout").unwrap_or(0.05));
        sheet.arrived("use_peft", LORA);
        for (theirs, ours) in [("lora_r", "r"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")] {
            sheet.arrived(theirs, &format!("{LORA}.{ours}"));
        }
        if sheet.get("lora_target_modules").is_none() && !sheet.is_unsaid("lora_target_modules") {
            // PEFT's for nearly all language models.
            sheet.set(&format!("{LORA}.target_modules"), json!(["q_proj", "v_proj"]));
            sheet.note(
                "without lora_target_modules PEFT chooses them by the model's architecture: q_proj and v_proj of \
                 LLaMA, Mistral, Qwen and Gemma; for another one set model.foundation.lora.target_modules",
            );
        }
        if sheet.is("lora_target_modules", "all-linear") {
            sheet.settled("all linear layers are the default", &["lora_target_modules"]);
        }
        let list = |value: &Value| {
            let names = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            let names = names.iter().filter_map(Value::as_str).flat_map(|name| name.split(','));
            Ok(names.map(str::trim).filter(|name| !name.is_empty()).map(Value::from).collect())
        };
        sheet.with("lora_target_modules", "model.foundation.lora.target_modules", list);
        sheet.with("lora_modules_to_save", "model.foundation.lora.modules_to_save", list);
        sheet.copy("use_rslora", "model.foundation.lora.use_rslora");
        sheet.copy("use_dora", "model.foundation.lora.use_dora");
        sheet.with("lora_target_parameters", "model.foundation.lora.target_parameters", list);
    }
    sheet.settled(
        "it applies only to adapters, which use_peft turns on",
        &[
            "use_peft",
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_target_parameters",
            "lora_modules_to_save",
            "use_rslora",
            "use_dora",
            "lora_task_type",
        ],
    );
}

fn precision(sheet: &mut Sheet) {
    // Their default, unless fp16 is asked for.
    let is_bf16 = sheet.get("bf16").is_none_or(|value| *value == Value::Bool(true));
    sheet.set("train.precision", if is_bf16 { "bf16" } else { "float32" });
    sheet.arrived("bf16", "train.precision");
    sheet.missing(NO_FP16, &["fp16"]);
    sheet.settled("weights are held in train.precision", &["dtype", "torch_dtype", "tf32"]);
    sheet.settled(
        SAVES_MEMORY,
        &[
            "gradient_checkpointing",
            "no_gradient_checkpointing",
            "gradient_checkpointing_kwargs",
            "activation_offloading",
        ],
    );
    sheet.launcher();
    sheet.fsdp();
}

fn run(sheet: &mut Sheet) {
    sheet.run_of_trainer();
    if sheet.has_set("eval.every_steps") && !["eval.path", "data.val_size"].iter().any(|key| sheet.has_set(key)) {
        sheet.note(
            "eval_strategy evaluates a split of the data set, which a file has not: name a file in eval.path, or hold \
             samples out with data.val_size",
        );
    }
    sheet.missing("transformers calls it eval_strategy now: rename it, and import again", &["evaluation_strategy"]);
    if sheet.has_set("eval.path") {
        sheet.arrived("do_eval", "eval.path");
    }
    sheet.missing("eval.every_steps evaluates eval.path during the run", &["do_eval"]);
    sheet.missing(TRACKERS, &["trackio_space_id"]);
    sheet.settled("this is always the case", &["logging_first_step"]);
    sheet
        .missing("`loongforge checkpoint push` uploads a checkpoint", &["push_to_hub", "hub_model_id", "hub_strategy"]);
    sheet.missing("import that file as well: `loongforge import FILE`", &["config"]);
    sheet.missing("set them before `loongforge run`", &["env"]);
}
