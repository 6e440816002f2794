//! ms-swift's `swift sft`, `swift pt` and `swift rlhf`: command lines, and YAML or JSON of the same arguments (version 4).

use serde_json::{Map, Value, json};

use super::flags::{Flags, keys_of_file, split_config};
use super::sheet::Sheet;
use super::shell::Word;
use super::trainer::{EPOCH, FROZEN, NO_FP16, READ_AHEAD, REGULAR_EXPRESSION, UNREAD};
use super::variables::MS_SWIFT;
use super::{llama_parts, ms_swift_media, ms_swift_sets, ms_swift_train};

/// Commands that train.
pub(super) const COMMANDS: [&str; 3] = ["sft", "pt", "rlhf"];
/// Keys one of which every config has beside `model` and a data set.
const OWN: [&str; 10] = [
    "train_type",
    "tuner_type",
    "sft_type",
    "rlhf_type",
    "split_dataset_ratio",
    "lora_rank",
    "torch_dtype",
    "truncation_strategy",
    "per_device_train_batch_size",
    "num_train_epochs",
];
/// Earlier names, and those of other trainers that mean the same.
const RENAMED: [(&str, &str); 10] = [
    ("freeze_aligner", "freeze_multi_modal_projector"),
    ("freeze_llm", "freeze_language_model"),
    ("freeze_vit", "freeze_vision_tower"),
    ("lorap_lr_ratio", "loraplus_lr_ratio"),
    ("model", "model_name_or_path"),
    ("sequence_parallel_size", "context_parallel_size"),
    ("sft_type", "tuner_type"),
    ("train_type", "tuner_type"),
    ("NNODES", "nnodes"),
    ("NPROC_PER_NODE", "nproc_per_node"),
];
const LORA: &str = "model.foundation.lora";
const LOSS: &str = "train.preference.loss";

/// Returns whether these are keys of ms-swift's YAML or JSON.
pub(super) fn is_config(fields: &Map<String, Value>) -> bool {
    let has = |key: &str| fields.contains_key(key);
    fields.get("model").is_some_and(Value::is_string)
        && (has("dataset") || has("cached_dataset"))
        && OWN.iter().any(|key| has(key))
}

/// Returns the keys under names that other parts of the importer know as well.
pub(super) fn renamed(mut flags: Flags) -> Flags {
    RENAMED.iter().for_each(|(old, new)| flags.rename(old, new));
    flags
}

/// Returns the command of a file or module of ms-swift that launchers start: `swift/cli/sft.py`, `swift.cli.sft`.
pub(super) fn called(program: &str) -> Option<&str> {
    match program.strip_prefix("swift.cli.") {
        Some(module) => Some(module),
        None => Some(program.strip_suffix(".py")?.rsplit_once("swift/cli/")?.1),
    }
}

/// Returns the options behind `swift sft` and the like, with those of a launcher and the variables before it, and the keys of the
/// config that may be among them, where that is here.
pub(super) fn command(method: &str, before: &[Word], after: &[Word]) -> Option<Flags> {
    COMMANDS.contains(&method).then_some(())?;
    let (config, options) = split_config(after, &[".yaml", ".yml", ".json"]);
    let mut flags = Flags::of_command(before, options);
    before.iter().for_each(|word| flags.variable(&MS_SWIFT, word));
    let flags = renamed(flags);
    match config {
        Some(path) => {
            let file = keys_of_file(path).map(|fields| renamed(Flags::of_fields(fields)));
            Some(flags.with_file(path, file))
        }
        None => Some(flags),
    }
}

/// Returns why a run is not translated: anything else in its place would train something that was not asked for.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let other = |key: &str, known: &[&str]| {
        let value = fields.get(key).and_then(Value::as_str).filter(|value| !known.contains(value))?;
        Some(format!("ms-swift's {key} `{value}` has no counterpart: only {} are translated", known.join(", ")))
    };
    if fields.contains_key("micro_batch_size") || fields.contains_key("train_iters") {
        let why = "it is of ms-swift's `megatron` commands: only `swift sft`, `pt` and `rlhf` are translated";
        return Some(why.to_owned());
    }
    other("rlhf_type", &["dpo", "orpo", "simpo", "kto"])
        .or_else(|| other("tuner_type", &["lora", "full"]))
        .or_else(|| other("task_type", &["causal_lm"]))
}

/// Translates `swift sft`, and configs that name no `rlhf_type`.
pub(super) fn sft(sheet: &mut Sheet) {
    sheet.settled("it applies only to `swift rlhf`", &["beta", "rpo_alpha", "cpo_alpha", "simpo_gamma"]);
    common(sheet, "default");
}

/// Translates `swift pt`.
pub(super) fn pt(sheet: &mut Sheet) {
    common(sheet, "all");
}

/// Translates `swift rlhf`, whose method is dpo by default.
pub(super) fn rlhf(sheet: &mut Sheet) {
    let method = sheet.text("rlhf_type").unwrap_or_else(|| "dpo".to_owned());
    sheet.set(LOSS, if method == "dpo" { "sigmoid" } else { method.as_str() });
    sheet.arrived("rlhf_type", LOSS);
    // Their defaults.
    sheet.set("train.preference.beta", if method == "simpo" { 2.0 } else { 0.1 });
    sheet.copy_number("beta", "train.preference.beta");
    match method.as_str() {
        "dpo" => {
            let only = |loss: &Value| loss.as_array().filter(|list| list.len() == 1).map(|list| list[0].clone());
            sheet.with("loss_type", LOSS, |loss| match only(loss).as_ref().unwrap_or(loss).as_str() {
                Some(name @ ("sigmoid" | "hinge" | "ipo" | "robust")) => Ok(name.into()),
                _ => Err("one of sigmoid, hinge, ipo and robust; sigmoid is used instead"),
            });
            sheet.copy_number("rpo_alpha", "train.preference.nll_weight");
            let loss = sheet.ours(LOSS).cloned();
            if loss.is_some_and(|loss| loss == "sigmoid" || loss == "robust")
                && sheet.number("label_smoothing").is_some_and(|part| part > 0.0)
            {
                sheet.copy_number("label_smoothing", "train.preference.label_smoothing");
            }
        }
        "simpo" => {
            sheet.set("train.preference.gamma", 1.0);
            sheet.copy_number("simpo_gamma", "train.preference.gamma");
            sheet.set("train.preference.nll_weight", 1.0);
            sheet.copy_number("cpo_alpha", "train.preference.nll_weight");
        }
        "kto" => {
            sheet.copy_number("desirable_weight", "train.preference.desirable_weight");
            sheet.copy_number("undesirable_weight", "train.preference.undesirable_weight");
        }
        _ => {}
    }
    sheet.copy("ref_model", "model.reference.load");
    if sheet.is("loss_type", &method) {
        sheet.settled("it is that of the method", &["loss_type"]);
    }
    let others = ["rpo_alpha", "cpo_alpha", "simpo_gamma", "desirable_weight", "undesirable_weight"];
    sheet.settled("it applies only to another method", &others);
    sheet.missing("only one loss is computed", &["loss_weights", "loss_type", "ld_alpha", "label_smoothing"]);
    sheet.settled("answers that are compared are not made by the model", &["max_completion_length", "temperature"]);
    common(sheet, "last_round");
}

fn common(sheet: &mut Sheet, loss_scale: &str) {
    let sees = llama_parts::sees(sheet);
    let has_adapters = sheet.get("tuner_type").is_none_or(|kind| kind == "lora");
    sheet.set("run.seed", 42);
    ms_swift_media::read(sheet);
    batch(sheet);
    model(sheet);
    data(sheet);
    learned(sheet, loss_scale);
    towers(sheet, sees, has_adapters);
    adapters(sheet, has_adapters);
    ms_swift_train::read(sheet, has_adapters);
}

/// Translates the batch: without accumulation that is named, ms-swift accumulates until there are 16 samples.
fn batch(sheet: &mut Sheet) {
    const SIZE: &str = "per_device_train_batch_size";
    const ACCUMULATED: &str = "gradient_accumulation_steps";
    const OURS: &str = "train.global_batch_size";
    const GROUP: &str = "train.preference.group_size";
    let is_kto = sheet.ours(LOSS).is_some_and(|loss| loss == "kto");
    if sheet.get(ACCUMULATED).is_some() || sheet.is_unsaid(ACCUMULATED) {
        return if is_kto { sheet.batch_of_groups(SIZE, 1.0) } else { sheet.batch(SIZE, 1.0) };
    }
    // The samples of a device are a group of KTO, which has two at least.
    let size = sheet.number(SIZE).unwrap_or(1.0).max(if is_kto { 2.0 } else { 1.0 });
    let devices = sheet.devices().unwrap_or(1.0);
    let accumulated = (16.0 / (size * devices)).ceil().max(1.0);
    if is_kto {
        sheet.set(GROUP, size as u64);
        sheet.set(OURS, (devices * accumulated) as u64);
    } else {
        sheet.set(OURS, (size * devices * accumulated) as u64);
    }
    sheet.arrived(SIZE, if is_kto { GROUP } else { OURS });
}

fn model(sheet: &mut Sheet) {
    let is_mixture = llama_parts::is_mixture(sheet);
    let revision = sheet.text("model_revision").filter(|name| !["main", "master"].contains(&name.as_str()));
    sheet.with("model_name_or_path", "model.load", |value| match (&revision, value.as_str()) {
        (Some(revision), Some(name)) => Ok(format!("{name}@{revision}").into()),
        _ => Ok(value.clone()),
    });
    sheet.arrived("model_revision", "model.load");
    // A model without experts is refused with the key.
    if !is_mixture && sheet.number("router_aux_loss_coef") == Some(0.0) {
        sheet.settled("it is off", &["router_aux_loss_coef"]);
    }
    sheet.copy_number("router_aux_loss_coef", "model.moe.aux_loss_coef");
    sheet.settled("config.json determines the class", &["model_type", "task_type"]);
    let programs = "no program is run: what it registers (data sets, losses, templates) has no counterpart";
    sheet.missing(programs, &["external_plugins", "custom_register_path"]);
    let fused = ["attn_impl", "experts_impl", "use_liger_kernel", "use_logits_to_keep"];
    sheet.settled("attention and losses are always fused", &fused);
    let template = "the chat template is that of the model's folder; data.template has built-in ones";
    sheet.settled(template, &["template", "template_backend", "agent_template"]);
    for key in ["max_pixels", "min_pixels"] {
        sheet.copy(key, &format!("data.image.{key}"));
    }
    sheet.with("enable_thinking", "data.template_kwargs.enable_thinking", |value| match value {
        Value::Bool(_) => Ok(value.clone()),
        _ => Err("it must be true or false"),
    });
    // With `bf16` weights of 32 bits are master weights.
    let is_whole = sheet.is("torch_dtype", "float32") && !sheet.is_true("bf16");
    sheet.set("train.precision", if is_whole { "float32" } else { "bf16" });
    if sheet.is("torch_dtype", "float16") {
        sheet.missing(NO_FP16, &["torch_dtype"]);
    }
    ["torch_dtype", "bf16"].iter().for_each(|key| sheet.arrived(key, "train.precision"));
    sheet.missing(NO_FP16, &["fp16"]);
}

fn data(sheet: &mut Sheet) {
    let names = |value: &Value| -> Vec<String> {
        let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut notes = Vec::new();
    sheet.with("dataset", "data.train", |value| match names(value) {
        names if names.is_empty() => Err("it must name data sets"),
        names => Ok(names.iter().map(|name| ms_swift_sets::set(name, &mut notes)).collect()),
    });
    if ms_swift_train::evaluates_nothing(sheet) {
        sheet.settled(ms_swift_train::NO_EVALUATION, &["val_dataset"]);
    }
    sheet.with("val_dataset", "eval.path", |value| match &names(value)[..] {
        [one] => Ok(ms_swift_sets::held_out(one, &mut notes)),
        _ => Err("list each set under eval.sets"),
    });
    let is_hf = ["use_hf", "USE_HF"].iter().any(|key| sheet.is_true(key) || sheet.number(key) == Some(1.0));
    notes.retain(|note| !(is_hf && note.starts_with("ms-swift finds")));
    notes.into_iter().for_each(|note| sheet.note(note));
    let has_several = sheet.ours("data.train").and_then(Value::as_array).is_some_and(|sets| sets.len() > 1);
    if has_several && sheet.get("interleave_prob").is_none() {
        sheet.once_per_epoch();
    }
    sheet.probabilities("interleave_prob");
    sheet.missing(EPOCH, &["stopping_strategy"]);
    sheet.settled("hf://datasets/NAME is a data set of the hub", &["use_hf", "USE_HF"]);
    ms_swift_sets::columns(sheet);
    sheet.missing("name the files that it was made from in data.train", &["cached_dataset", "cached_val_dataset"]);
    let names = "write names into the samples: `{{NAME}}` and `{{AUTHOR}}` would be learned as they stand";
    sheet.missing(names, &["model_name", "model_author"]);
    if sheet.text("system").is_some_and(|text| text.ends_with(".txt")) {
        sheet.missing("set data.system to the text of this file", &["system"]);
    }
    sheet.default_system("system");
    sheet.copy("train_dataloader_shuffle", "data.shuffle");
    match sheet.number("max_length") {
        Some(length) if length >= 1.0 => sheet.copy("max_length", "data.pack.max_tokens"),
        _ => sheet.note("without max_length samples may be as long as the model allows: set data.pack.max_tokens"),
    }
    if sheet.has_set("train.preference") {
        sheet.settled("answers that are compared are not cut: long samples are skipped", &["truncation_strategy"]);
    }
    sheet.with("truncation_strategy", "data.pack.too_long", |value| match value.as_str() {
        Some("delete") => Ok("skip".into()),
        Some("right") => Ok("truncate".into()),
        Some("split") => Err("lines of text and plain are split; other samples are skipped, or cut with `truncate`"),
        _ => Err("only the end of a sample can be cut off: data.pack.too_long: truncate"),
    });
    sheet.settled(UNREAD, &["remove_unused_columns"]);
    sheet.settled(
        READ_AHEAD,
        &[
            "dataset_num_proc",
            "dataset_shuffle",
            "data_seed",
            "dataloader_drop_last",
            "dataloader_num_workers",
            "dataloader_persistent_workers",
            "dataloader_pin_memory",
            "dataloader_prefetch_factor",
            "lazy_tokenize",
            "load_from_cache_file",
            "shuffle_buffer_size",
            "streaming",
        ],
    );
}

/// Translates the keys that say which tokens count in the loss.
fn learned(sheet: &mut Sheet, default: &str) {
    let scale = sheet.text("loss_scale").unwrap_or_else(|| default.to_owned());
    let is_pairs = sheet.has_set("train.preference");
    match scale.as_str() {
        "all" if !is_pairs => {
            sheet.set("train.phase", "pretrain");
            sheet.arrived("loss_scale", "train.phase");
        }
        "last_round" if !is_pairs => {
            sheet.set("train.learn", "last");
            sheet.arrived("loss_scale", "train.learn");
        }
        "default" | "last_round" => sheet.settled("answers count in the loss", &["loss_scale"]),
        _ => sheet.missing("train.learn and the weight of a message choose what counts", &["loss_scale"]),
    }
    sheet.settled("texts have no chat template, and messages have one", &["use_chat_template"]);
    if is_pairs {
        sheet.settled("answers are compared whole", &["acc_strategy"]);
    }
    if sheet.is("acc_strategy", "seq") {
        sheet.with("acc_strategy", "train.loss_weighting", |_| Ok("sample".into()));
    }
    sheet.settled("token is the default of train.loss_weighting", &["acc_strategy"]);
}

/// Translates the keys of the image tower and projector, which are frozen unless told otherwise.
fn towers(sheet: &mut Sheet, sees: bool, has_adapters: bool) {
    if has_adapters && sheet.is_true("freeze_language_model") {
        let why = "the language model has no adapters there: move model.foundation.lora to model.image_encoder.lora";
        sheet.with("freeze_language_model", "model.foundation.freeze", |_| Err(why));
    }
    sheet.copy("freeze_language_model", "model.foundation.freeze");
    for (theirs, ours) in [
        ("freeze_vision_tower", "model.image_encoder.freeze"),
        ("freeze_multi_modal_projector", "model.image_projector.freeze"),
    ] {
        if sees {
            sheet.set(ours, true);
        }
        if has_adapters && sheet.get(theirs) == Some(&Value::Bool(false)) {
            let why = "it has adapters there: model.image_encoder.lora or model.image_projector.lora gives it some";
            sheet.with(theirs, ours, |_| Err(why));
        }
        sheet.copy(theirs, ours);
    }
    if !sees {
        sheet.note(
            "ms-swift trains only the language model of a vision-language model: if this is one, set \
             model.image_encoder.freeze and model.image_projector.freeze to true",
        );
    }
    sheet.copy_number("vit_lr", "pools.encoder.lr");
}

fn adapters(sheet: &mut Sheet, has_adapters: bool) {
    let ours = |name: &str| format!("{LORA}.{name}");
    let continued = match sheet.get("adapters") {
        Some(Value::Array(list)) if list.len() == 1 => list[0].as_str().map(str::to_owned),
        one => one.and_then(Value::as_str).map(str::to_owned),
    };
    if has_adapters {
        sheet.arrived("tuner_type", LORA);
    }
    sheet.settled("without lora, all weights are trained", &["tuner_type"]);
    let continues = has_adapters && continued.is_some();
    if let Some(adapter) = continued.filter(|_| has_adapters) {
        sheet.set(&ours("adapter"), adapter);
        sheet.arrived("adapters", &ours("adapter"));
    } else if has_adapters {
        // Their defaults.
        sheet.set(&ours("r"), 8);
        sheet.set(&ours("alpha"), 32);
        sheet.set(&ours("dropout"), 0.05);
        for (theirs, name) in [("lora_rank", "r"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")] {
            sheet.copy_number(theirs, &ours(name));
        }
        if sheet.get("target_modules").is_some_and(|it| *it == "all-linear" || *it == json!(["all-linear"])) {
            sheet.settled("all linear layers are the default", &["target_modules"]);
        }
        let list = |value: &Value| Ok(if value.is_array() { value.clone() } else { json!([value]) });
        for key in ["target_modules", "target_parameters", "modules_to_save"] {
            sheet.with(key, &ours(key), list);
        }
        sheet.missing(REGULAR_EXPRESSION, &["target_regex"]);
        ["use_rslora", "use_dora"].iter().for_each(|key| sheet.copy(key, &ours(key)));
        sheet.missing("biases have no adapters", &["lora_bias"]);
        sheet.missing("adapters are trained in train.precision", &["lora_dtype"]);
        sheet.settled_all("it applies only to init_weights: lora-ga", &["lora_ga_"]);
        quantization(sheet);
    }
    // Beside adapters that are made, what is left is unknown.
    if !has_adapters || continues {
        sheet.settled_all("it applies only to adapters that are made", &["lora_", "target_"]);
    }
    sheet.missing("only one adapter can be continued", &["adapters"]);
    if sheet.is_true("init_weights") {
        sheet.settled("B begins at zero", &["init_weights"]);
    }
    sheet.missing("B begins at zero", &["init_weights"]);
    sheet.settled("it applies only to adapters that are made", &["modules_to_save", "use_rslora", "use_dora"]);
    sheet.missing("frozen weights of full training are not rounded", &["quant_method", "quant_bits"]);
    sheet.settled_all("it applies only with quant_bits", &["bnb_4bit_"]);
    sheet.regularization(has_adapters);
    let patterns = ["freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio"];
    sheet.missing("name them in model.foundation.freeze_patterns", &patterns);
    sheet.missing(
        "name them in model.foundation.train_patterns",
        &["trainable_parameters", "trainable_parameters_regex"],
    );
}

/// Translates frozen weights of 4 and 8 bits beside adapters, as bitsandbytes rounds them.
fn quantization(sheet: &mut Sheet) {
    let bits = sheet.number("quant_bits");
    let is_known = sheet.is("quant_method", "bnb")
        && (bits == Some(8.0) || sheet.get("bnb_4bit_quant_type").is_none_or(|kind| kind == "nf4"));
    if let Some(bits) = bits.filter(|bits| is_known && (*bits == 4.0 || *bits == 8.0)) {
        let doubled = sheet.get("bnb_4bit_use_double_quant") != Some(&Value::Bool(false));
        sheet.frozen_in(bits as u32, doubled, "quant_bits");
        let others = ["quant_method", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"];
        others.iter().for_each(|key| sheet.arrived(key, FROZEN));
    }
    let why = "model.foundation.frozen_precision must be nf4, nf4_double or int8 (bitsandbytes), or fp8_e4m3fn";
    sheet.missing(why, &["quant_method", "quant_bits"]);
}
