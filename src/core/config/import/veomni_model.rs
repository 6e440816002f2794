//! Translates which model VeOmni trains, its adapters, and on which data.

use std::path::Path;

use serde_json::{Value, json};

use super::sheet::Sheet;
use super::trainer::{READ_AHEAD, REGULAR_EXPRESSION};
use crate::config::yaml;
use crate::files;

const LORA: &str = "model.lora_config.";
const OURS: &str = "model.foundation.lora";

/// Translates the keys of `model` and `data`.
pub(super) fn read(sheet: &mut Sheet) {
    let sees = sees(sheet);
    towers(sheet, sees);
    media(sheet);
    adapters(sheet, sees);
    model(sheet);
    data(sheet, sees);
}

/// Returns whether something tells that the model takes pictures.
fn sees(sheet: &Sheet) -> bool {
    let own = ["train.freeze_vit", "train.vit_lr", "train.freeze_audio_tower"];
    !sheet.begin_with("data.mm_configs.").is_empty()
        || own.iter().any(|key| sheet.get(key).is_some())
        || ["vl", "omni"].into_iter().any(|part| is_named(sheet, part))
}

/// Returns whether the name of the chat template or of the model's folder has this part.
fn is_named(sheet: &Sheet, part: &str) -> bool {
    let has_part = |name: String| {
        let folder = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        folder.to_lowercase().contains(part)
    };
    let keys = ["data.chat_template", "model.model_path", "model.config_path"];
    keys.iter().any(|key| sheet.text(key).is_some_and(has_part))
}

fn model(sheet: &mut Sheet) {
    let weights = sheet.text("model.model_path");
    sheet.copy_all(&[
        ("model.model_path", "model.load"),
        ("model.tokenizer_path", "model.tokenizer"),
        ("model.model_config", "model.overrides"),
    ]);
    match (sheet.text("model.config_path"), weights) {
        (Some(config), None) => random(sheet, &config),
        (Some(config), Some(weights)) if config == weights => sheet.arrived("model.config_path", "model.load"),
        _ => sheet
            .missing("config.json is that of model.load: model.overrides replaces its keys", &["model.config_path"]),
    }
    sheet.settled_all("attention and losses are always fused", &["model.ops_implementation."]);
    sheet.settled(
        "attention and losses are always fused",
        &["model.attn_implementation", "model.moe_implementation", "model.force_use_huggingface"],
    );
    sheet.settled("weights are sharded whatever their modules", &["model.basic_modules"]);
    sheet.settled("files of weights are found by their index", &["model.safetensor_idx_path"]);
    sheet.settled_all("scheduler.balance spreads pictures over replicas", &["model.encoder_data_balance"]);
    sheet.settled(
        "the model is no composition of parts",
        &["model.foundation", "model.encoders", "model.decoders", "model.input_encoder", "model.output_encoder"],
    );
    sheet.missing("the model is no composition of parts", &["model.encode_target"]);
}

/// Translates a model without weights: a folder, or a `config.json` of any name.
fn random(sheet: &mut Sheet, path: &str) {
    const KEY: &str = "model.config_path";
    if !path.ends_with(".json") {
        sheet.set("model.weights", "random");
        return sheet.copy(KEY, "model.load");
    }
    let text = files::read_text(Path::new(path)).ok();
    match text.and_then(|text| serde_json::from_str::<Value>(&text).ok()).filter(Value::is_object) {
        Some(keys) => {
            sheet.set("model.config", keys);
            sheet.arrived(KEY, "model.config");
        }
        None => sheet.missing("it cannot be read here: put its keys under model.config", &[KEY]),
    }
}

/// Translates the keys of the image tower, which has a rate of its own, and the audio tower.
fn towers(sheet: &mut Sheet, sees: bool) {
    let has_adapters = !sheet.begin_with(LORA).is_empty();
    let keys = ["train.freeze_vit", "train.freeze_audio_tower", "train.vit_lr"];
    if has_adapters {
        return sheet.settled("beside adapters nothing else is trained", &keys);
    }
    let is_omni = is_named(sheet, "omni");
    if sheet.is_true("train.freeze_vit") {
        sheet.set("model.image_encoder.freeze", true);
        // The merger of an omni model is trained.
        sheet.set("model.image_projector.freeze", !is_omni);
        sheet.arrived("train.freeze_vit", "model.image_encoder.freeze, model.image_projector.freeze");
    } else if sees {
        // Their default.
        sheet.set("pools.encoder.lr", 1e-6);
        sheet.copy_number("train.vit_lr", "pools.encoder.lr");
    }
    sheet.settled("the image tower is frozen", &["train.vit_lr"]);
    sheet.settled("parts are trained unless they are frozen", &["train.freeze_vit"]);
    match is_omni {
        true => sheet.copy("train.freeze_audio_tower", "model.audio_encoder.freeze"),
        false => sheet.settled("VeOmni reads it for omni models only", &["train.freeze_audio_tower"]),
    }
}

/// Sizes of pictures and clips.
fn media(sheet: &mut Sheet) {
    const EACH: &str = "VeOmni's limit applies to each frame; data.video.max_pixels and min_pixels of this model apply \
                        to all frames together";
    let key = |name: &str| format!("data.mm_configs.{name}");
    for (theirs, ours) in [
        ("image_max_pixels", "data.image.max_pixels"),
        ("image_min_pixels", "data.image.min_pixels"),
        ("min_frames", "data.video.min_frames"),
        ("max_frames", "data.video.max_frames"),
        ("fps", "data.video.fps"),
        ("use_audio_in_video", "data.video.sound"),
    ] {
        sheet.copy(&key(theirs), ours);
    }
    if is_named(sheet, "qwen3") {
        sheet.copy(&key("video_total_pixels"), "data.video.max_pixels");
        sheet.missing(EACH, &[&key("video_max_pixels"), &key("video_min_pixels")]);
    } else {
        sheet.copy(&key("video_max_pixels"), "data.video.max_pixels");
        sheet.copy(&key("video_min_pixels"), "data.video.min_pixels");
    }
    let built_in = ["scale_factor", "frame_factor", "sample_rate"];
    built_in.iter().for_each(|name| sheet.settled("the model's preprocessor config has it", &[&key(name)]));
    sheet.settled("there are no such limits", &["data.mm_configs"]);
}

fn adapters(sheet: &mut Sheet, sees: bool) {
    let key = |name: &str| format!("{LORA}{name}");
    let ours = |name: &str| format!("{OURS}.{name}");
    sheet.settled("all weights are trained", &["model.lora_config"]);
    if sheet.begin_with(LORA).is_empty() {
        return;
    }
    if sees {
        sheet.freeze_pictures();
    }
    sheet.settled("adapters are trained", &[&key("is_trainable")]);
    if sheet.get(&key("lora_adapter")).is_some() {
        sheet.copy(&key("lora_adapter"), &ours("adapter"));
        return sheet.settled_all("it comes from lora_adapter", &[LORA]);
    }
    for (names, name) in [(["rank", "r"], "r"), (["alpha", "lora_alpha"], "alpha")] {
        // Their default.
        let found = names.iter().find_map(|name| sheet.number(&key(name))).unwrap_or(8.0);
        sheet.set(&ours(name), if name == "r" { Value::from(found as u64) } else { found.into() });
        names.iter().for_each(|theirs| sheet.arrived(&key(theirs), &ours(name)));
    }
    modules(sheet);
    sheet.copy(&key("use_rslora"), &ours("use_rslora"));
    sheet.copy_number(&key("lora_dropout"), &ours("dropout"));
    for name in ["rank_pattern", "alpha_pattern"] {
        sheet.with(&key(name), &ours(name), |map| match map.as_object() {
            Some(map) if map.is_empty() => Ok(json!({})),
            _ => Err(REGULAR_EXPRESSION),
        });
    }
    sheet.missing("biases have no adapters", &[&key("bias")]);
    sheet.missing("each expert has an adapter of its own", &[&key("share_expert_lora")]);
    if sheet.is_true(&key("init_lora_weights")) {
        sheet.settled("B begins at zero", &[&key("init_lora_weights")]);
    }
    sheet.settled("the model is model.load", &[&key("task_type"), &key("base_model_name_or_path")]);
}

/// Translates the keys that say which modules have adapters.
fn modules(sheet: &mut Sheet) {
    let key = |name: &str| format!("{LORA}{name}");
    let of_experts = ["model.ops_implementation.moe_implementation", "model.moe_implementation"];
    let has_experts = of_experts.iter().any(|key| sheet.get(key).is_some())
        || sheet.number("train.accelerator.ep_size").is_some_and(|size| size > 1.0);
    if has_experts && sheet.get(&key("target_parameters")).is_none() {
        sheet.note(
            "VeOmni takes gate_proj, up_proj and down_proj among lora_modules for the experts as well: name these \
             under model.foundation.lora.target_parameters",
        );
    }
    let list = |value: &Value| match value {
        Value::Array(_) => Ok(value.clone()),
        _ => Err(REGULAR_EXPRESSION),
    };
    // Without names only experts have adapters.
    sheet.set(&format!("{OURS}.target_modules"), json!([]));
    for (theirs, ours) in [
        ("lora_modules", "target_modules"),
        ("target_modules", "target_modules"),
        ("exclude_modules", "exclude_modules"),
        ("target_parameters", "target_parameters"),
    ] {
        sheet.with(&key(theirs), &format!("{OURS}.{ours}"), list);
    }
}

fn data(sheet: &mut Sheet, sees: bool) {
    let kind = sheet.text("data.data_type").unwrap_or_else(|| "conversation".to_owned());
    let is_pairs = kind == "dpo" || !sheet.begin_with("dpo_config.").is_empty();
    sets(sheet);
    if is_pairs {
        preference(sheet);
    } else if kind == "plaintext" {
        sheet.with("data.data_type", "train.phase", |_| Ok("pretrain".into()));
    }
    sheet.settled("sft is the default of train.phase", &["data.data_type"]);
    columns(sheet, &kind, is_pairs);
    // Their default.
    sheet.set("data.pack.max_tokens", 2048);
    sheet.copy("data.max_seq_len", "data.pack.max_tokens");
    if is_pairs {
        sheet.long_answers();
    } else if kind == "conversation" && !sees {
        sheet.set("data.pack.too_long", "truncate");
        sheet.note("VeOmni keeps the last tokens of a conversation that is too long; here the first are kept");
    }
    template(sheet, &kind);
    let why = "the format is detected from the first sample; data.train[].format sets it";
    sheet.settled(why, &["data.source_name", "data.data_tag"]);
    sheet.settled("data.on_bad_sample limits bad samples", &["data.silent_exception"]);
    sheet.settled("data.pack.look_ahead is the number of samples to choose from", &["data.dyn_bsz_buffer_size"]);
    sheet.settled_all(READ_AHEAD, &["data.dataloader."]);
    sheet.settled(
        READ_AHEAD,
        &[
            "data.dataloader_type",
            "data.drop_last",
            "data.drop_resume_buffer",
            "data.enable_multisource",
            "data.multisource_datasets_type",
            "data.num_workers",
            "data.pin_memory",
            "data.predownload_factor",
            "data.prefetch_factor",
            "data.shuffle_shard_nums",
            "data.split_nums",
        ],
    );
}

/// Files between commas, which are read as one set, or a YAML of several sources.
fn sets(sheet: &mut Sheet) {
    sheet.with("data.train_path", "data.train", |value| {
        let paths: Vec<&str> = value.as_str().unwrap_or_default().split(',').map(str::trim).collect();
        match paths[..] {
            [""] => Err("it must name files"),
            _ if paths.iter().any(|path| path.starts_with("hdfs:")) => {
                Err("HDFS is not read: copy the files to a folder or an object store")
            }
            [path] if path.ends_with(".yaml") => sources(path),
            [path] => Ok(json!([{ "path": path }])),
            _ => Ok(json!([{ "path": paths }])),
        }
    });
}

/// Returns the sources in a YAML of their own, with their weights.
fn sources(path: &str) -> Result<Value, &'static str> {
    let read = files::read_text(Path::new(path)).ok().and_then(|text| yaml::read_yaml(&text).ok());
    let file = read.ok_or("it cannot be read here: name its sources in data.train, each with its weight")?;
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (sources, schedule) = (all(&file["sources"]), all(&file["schedule"]));
    let weights = schedule.first().map(|one| all(&one["weights"])).unwrap_or_default();
    let is_constant = schedule.len() == 1 && schedule[0]["schedule_type"] == "const";
    if sources.is_empty() || !is_constant || weights.len() != sources.len() {
        return Err("only one schedule of constant weights is read: set the `weight` of each set in data.train");
    }
    let read = sources.iter().zip(&weights).filter(|(_, weight)| weight.as_f64().is_some_and(|it| it > 0.0));
    Ok(read.map(|(path, weight)| json!({ "path": path, "weight": weight })).collect())
}

/// Translates the field that samples are read from.
fn columns(sheet: &mut Sheet, kind: &str, is_pairs: bool) {
    const KEY: &str = "data.text_keys";
    if is_pairs {
        return sheet.settled("pairs have the fields chosen and rejected", &[KEY]);
    }
    let (column, default) = if kind == "plaintext" { ("text", "content_split") } else { ("messages", "messages") };
    let field = match sheet.get(KEY) {
        Some(Value::Array(names)) if names.len() == 1 => names[0].as_str().map(str::to_owned),
        Some(name) => name.as_str().map(str::to_owned),
        None => Some(default.to_owned()),
    };
    let Some(field) = field else {
        return sheet.missing("a set has one such field: name it in data.train[].columns", &[KEY]);
    };
    if field != column && field != "conversations" && sheet.has_set("data.train") {
        sheet.columns_of_sets(&json!({ column: field }));
    }
    sheet.arrived(KEY, "data.train[].columns");
}

fn template(sheet: &mut Sheet, kind: &str) {
    const KEY: &str = "data.chat_template";
    const OWN: &str = "VeOmni's chat template `default` is not built in: that of the model's folder is used";
    if kind == "plaintext" {
        return sheet.settled("texts have no chat template", &[KEY]);
    }
    match sheet.text(KEY).as_deref() {
        Some("chatml") => {
            sheet.copy(KEY, "data.template");
            sheet.note("VeOmni's chatml also learns the header of an answer (`<|im_start|>assistant`)");
        }
        Some("llama2") => sheet.copy(KEY, "data.template"),
        Some("default") => sheet.missing(OWN, &[KEY]),
        Some(_) => {
            sheet.settled("the chat template is that of the model's folder; data.template has built-in ones", &[KEY]);
        }
        None => sheet.note(OWN),
    }
}

/// Pairs of answers.
fn preference(sheet: &mut Sheet) {
    let key = |name: &str| format!("dpo_config.{name}");
    sheet.set("train.preference.loss", "sigmoid");
    // Their default.
    sheet.set("train.preference.beta", 0.1);
    sheet.copy_number(&key("beta"), "train.preference.beta");
    if sheet.is(&key("loss_type"), "ipo") {
        sheet.settled("it applies only to another loss", &[&key("label_smoothing")]);
    }
    sheet.with(&key("loss_type"), "train.preference.loss", |loss| match loss.as_str() {
        Some("sigmoid" | "ipo") => Ok(loss.clone()),
        _ => Err("it must be sigmoid or ipo; sigmoid is used instead"),
    });
    if sheet.number(&key("label_smoothing")).is_some_and(|part| part > 0.0) {
        sheet.copy_number(&key("label_smoothing"), "train.preference.label_smoothing");
    }
    sheet.missing("train.preference.label_smoothing", &[&key("label_smoothing")]);
    sheet.missing("orpo and simpo have no reference model", &[&key("reference_free")]);
    sheet.missing("train.preference.loss determines whether likelihoods are averaged", &[&key("average_log_prob")]);
    sheet.settled("model.reference.frozen_precision is that of the reference model", &[&key("refer_model_precision")]);
    sheet.arrived("data.data_type", "train.preference");
}
