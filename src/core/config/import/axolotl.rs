//! axolotl's YAML (`axolotl train`), by its documented keys of 0.12.

use serde_json::{Value, json};

use super::sheet::{Sheet, schedule};
use super::trainer::{FROZEN, TRACKERS};

/// Translates the keys of a file, each by what axolotl does with it.
pub(super) fn read(sheet: &mut Sheet) {
    model(sheet);
    data(sheet);
    let is_kto = sheet.is("rl", "kto");
    method(sheet);
    train(sheet, is_kto);
    run(sheet);
}

fn model(sheet: &mut Sheet) {
    sheet.copy("base_model", "model.load");
    sheet.copy("tokenizer_config", "model.tokenizer");
    sheet.settled(
        "the class follows from config.json",
        &["model_type", "tokenizer_type", "base_model_config", "processor_type", "is_llama_derived_model"],
    );
    sheet.settled("no code of a model's folder is ever run", &["trust_remote_code"]);
    quantization(sheet);
    let built_in = "attention and losses are fused here, without a switch";
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
    let why = "model.foundation.frozen_precision is nf4, nf4_double or int8 of bitsandbytes, or fp8_e4m3fn";
    sheet.missing(why, &["load_in_4bit", "load_in_8bit", "gptq", "bnb_config_kwargs"]);
}

fn data(sheet: &mut Sheet) {
    sheet.with("datasets", "data.train", sets);
    for key in ["test_datasets", "eval_datasets"] {
        sheet.with(key, "eval.path", |value| match sets(value)?.as_array().map(Vec::as_slice) {
            Some([one]) => Ok(one["path"].clone()),
            _ => Err("write each set under eval.sets"),
        });
    }
    sheet.held_out("val_set_size");
    sheet.copy("sequence_len", "data.pack.max_tokens");
    sheet.settled(
        "samples are always packed, and never padded",
        &[
            "sample_packing",
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
    let trains = sheet.is_true("train_on_inputs");
    if trains {
        sheet.with("train_on_inputs", "train.phase", |_| Ok("pretrain".into()));
    }
    sheet.settled("only answers count in the loss of train.phase sft", &["train_on_inputs"]);
    sheet.with("shuffle_merged_datasets", "data.shuffle", |value| Ok(value.clone()));
    let prepared = "data is read as the run goes on; `loongforge data pack` packs ahead of time";
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

/// `lr_groups`, whose modules are parts of names, as ratios to the learning rate.
fn lr_ratios(groups: &Value, rate: Option<f64>) -> Result<Value, &'static str> {
    let rate = rate.filter(|rate| *rate > 0.0).ok_or("learning_rate, of which the ratios are, is no number above 0")?;
    let mut ratios = serde_json::Map::new();
    for group in groups.as_array().ok_or("it is no list")? {
        let own = group["lr"].as_f64().or_else(|| group["lr"].as_str()?.parse().ok()).ok_or("a group without lr")?;
        for module in group["modules"].as_array().ok_or("a group without modules")? {
            let module = module.as_str().ok_or("a module that is no text")?;
            ratios.insert(format!("*{module}*"), (own / rate).into());
        }
    }
    Ok(ratios.into())
}

/// `datasets` as `data.train`.
fn sets(value: &Value) -> Result<Value, &'static str> {
    let list = value.as_array().ok_or("it is no list")?;
    let set = |set: &Value| {
        let path = set["path"].as_str()?;
        // A data set of the hub, unless the path is that of a file.
        let is_hub = path.split('/').count() == 2 && !path.starts_with(['.', '/']) && !path.contains('.');
        let files = set["data_files"].as_str().map(str::to_owned);
        let path = files.unwrap_or_else(|| if is_hub { format!("hf://datasets/{path}") } else { path.to_owned() });
        let mut ours = json!({ "path": path });
        if let Some(messages) = set["field_messages"].as_str().filter(|name| *name != "messages") {
            ours["columns"] = json!({ "messages": messages });
        }
        Some(ours)
    };
    list.iter().map(set).collect::<Option<Vec<Value>>>().map(Value::from).ok_or("a data set without `path`")
}

fn method(sheet: &mut Sheet) {
    let has_adapters = sheet.get("adapter").is_some();
    if sheet.is("adapter", "lora") || sheet.is("adapter", "qlora") {
        sheet.arrived("adapter", "model.foundation.lora");
    }
    sheet.copy("lora_model_dir", "model.foundation.lora.adapter");
    sheet.copy_all(&[
        ("lora_r", "model.foundation.lora.r"),
        ("lora_alpha", "model.foundation.lora.alpha"),
        ("lora_dropout", "model.foundation.lora.dropout"),
        ("lora_target_modules", "model.foundation.lora.target_modules"),
        ("lora_modules_to_save", "model.foundation.lora.modules_to_save"),
        ("peft_use_dora", "model.foundation.lora.use_dora"),
        ("peft_use_rslora", "model.foundation.lora.use_rslora"),
    ]);
    sheet.settled("all linear maps are the default", &["lora_target_linear"]);
    sheet.missing("PEFT's layout is always written", &["lora_fan_in_fan_out", "peft"]);
    sheet.missing("this variant of adapters is not there", &["relora", "lora_on_cpu"]);
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
        Some(loss) => sheet.with("rl", "train.preference.loss", |_| Ok(loss.into())),
        None => sheet.missing("train.preference is dpo, ipo, orpo, simpo or kto", &["rl"]),
    }
    ["rl_beta", "dpo_beta", "orpo_alpha"].iter().for_each(|key| sheet.copy_number(key, "train.preference.beta"));
    sheet.copy_number("kto_desirable_weight", "train.preference.desirable_weight");
    sheet.copy_number("kto_undesirable_weight", "train.preference.undesirable_weight");
    sheet.preference("rpo_alpha");
}

fn train(sheet: &mut Sheet, is_kto: bool) {
    match is_kto {
        true => sheet.batch_of_groups("micro_batch_size", 1.0),
        false => sheet.batch("micro_batch_size", 1.0),
    }
    let rate = sheet.number("learning_rate");
    sheet.with("lr_groups", "model.foundation.lr_ratios", |groups| lr_ratios(groups, rate));
    sheet.copy_number("learning_rate", "train.lr");
    sheet.duration("num_epochs", 1.0);
    let ratio = sheet.number("cosine_min_lr_ratio").zip(sheet.number("learning_rate"));
    if let Some((ratio, rate)) = ratio {
        sheet.with("cosine_min_lr_ratio", "train.min_lr", |_| Ok((ratio * rate).into()));
    }
    sheet.with("lr_scheduler", "train.schedule", schedule);
    sheet.warmup();
    sheet.optimizer("optimizer");
    if sheet.is_true("bf16") || sheet.is("bf16", "auto") || sheet.is("bf16", "full") {
        sheet.set("train.precision", "bf16");
    }
    sheet.arrived("bf16", "train.precision");
    sheet.missing("bf16 is there; it needs no loss scaling", &["fp16", "fp8"]);
    sheet.settled("products are chosen by the processor", &["tf32"]);
    sheet.deepspeed("deepspeed");
    sheet.missing("pools.foundation.zero is a level, 0 to 3", &["fsdp", "fsdp_config", "fsdp_version"]);
    sheet.copy_all(&[
        ("tensor_parallel_size", "pools.foundation.tensor_parallel"),
        ("context_parallel_size", "pools.foundation.context_parallel"),
        ("sequence_parallel_degree", "pools.foundation.context_parallel"),
        ("dp_replicate_size", "pools.foundation.replicas"),
    ]);
    let recompute = "model.foundation.recompute: all, or memory.activation_budget, save memory of activations";
    sheet.settled(recompute, &["gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading"]);
}

fn run(sheet: &mut Sheet) {
    sheet.run(&["output_dir"]);
    sheet.copy_all(&[("eval_steps", "eval.every_steps"), ("early_stopping_patience", "eval.patience")]);
    sheet.missing("checkpoint.every_steps counts steps", &["saves_per_epoch"]);
    sheet.missing("eval.every_steps counts steps", &["evals_per_epoch"]);
    sheet.settled("packs of the run are evaluated with", &["eval_batch_size"]);
    sheet.copy_all(&[
        ("wandb_project", "log.wandb.project"),
        ("wandb_entity", "log.wandb.entity"),
        ("wandb_name", "log.wandb.name"),
        ("mlflow_experiment_name", "log.mlflow.experiment"),
    ]);
    sheet.missing(TRACKERS, &["wandb_watch", "wandb_log_model", "wandb_run_id", "comet_project_name"]);
    sheet.settled("TensorBoard's files are always written", &["use_tensorboard"]);
    sheet.settled("`loongforge run --resume`", &["resume_from_checkpoint", "auto_resume_from_checkpoints"]);
    sheet.settled(
        "it is always so here",
        &[
            "save_safetensors",
            "save_first_step",
            "strict",
            "debug",
            "ddp_timeout",
            "save_only_model",
            "eval_strategy",
            "remove_unused_columns",
        ],
    );
}
