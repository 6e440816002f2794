//! LLaMA-Factory's YAML (`llamafactory-cli train`), by its documented arguments of 0.9.

use serde_json::{Map, Value};

use super::llama_data::{self, DatasetInfo, OF_REMOTE_INFO};
use super::llama_parts;
use super::sheet::Sheet;
use super::trainer::{EPOCH, FROZEN, NO_FP16, READ_AHEAD, SAVES_MEMORY, SWANLAB, UNREAD};

/// Keys that tell a config of LLaMA-Factory from one of TRL.
pub(super) const OWN: [&str; 6] = ["stage", "finetuning_type", "dataset", "dataset_dir", "cutoff_len", "template"];

/// Stages whose method has no counterpart.
const REFUSED_STAGES: [&str; 2] = ["rm", "ppo"];
/// The values of `finetuning_type` that are translated; the others are adapters of other kinds.
const TYPES: [&str; 3] = ["lora", "full", "freeze"];

/// Keys of configs that merge, answer or serve, and train nothing.
const OF_OTHER_COMMANDS: [(&str, &str); 2] = [
    ("export_dir", "use `loongforge checkpoint export-hf` to merge adapters and write a model"),
    ("infer_backend", "use `loongforge chat` or `loongforge serve` for inference"),
];

/// Templates for models without one of their own. Most others are those of the models that they are named after.
const OTHER_TEMPLATES: [&str; 5] = ["alpaca", "default", "empty", "fewshot", "vicuna"];
/// The answer to these templates.
const OF_TEMPLATES: &str = "conversations are written with the template of the model's folder or a built-in one \
                            (data.template); for this one put its Jinja template into the folder as chat_template.jinja";

/// Returns why a config is not translated, where it trains nothing or by a method that has no counterpart: anything else in its place
/// would train something that was not asked for.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    if let Some(stage) = text("stage").filter(|stage| REFUSED_STAGES.contains(stage)) {
        return Some(format!(
            "LLaMA-Factory's stage `{stage}` has no counterpart: only pt, sft, dpo and kto are translated"
        ));
    }
    if let Some(kind) = text("finetuning_type").filter(|kind| !TYPES.contains(kind)) {
        return Some(format!(
            "LLaMA-Factory's finetuning_type `{kind}` has no counterpart: only lora, full and freeze are translated"
        ));
    }
    let trains = fields.contains_key("dataset") || fields.get("do_train") == Some(&Value::Bool(true));
    let other = OF_OTHER_COMMANDS.iter().find(|(key, _)| !trains && fields.contains_key(*key));
    other.map(|(key, ours)| format!("it trains nothing: it has `{key}` and no `dataset`; {ours}"))
}

/// Translates the keys of a file, each by what LLaMA-Factory does with it.
pub(super) fn read(sheet: &mut Sheet) {
    let (is_kto, is_pretraining) = (sheet.is("stage", "kto"), sheet.is("stage", "pt"));
    model(sheet);
    data(sheet);
    method(sheet);
    train(sheet, is_kto);
    packing(sheet, is_pretraining);
    run(sheet);
}

fn model(sheet: &mut Sheet) {
    // What they say of parts is read while the keys of the model are there.
    if llama_parts::sees(sheet) {
        llama_parts::limits(sheet);
    }
    llama_parts::towers(sheet);
    if sheet.is("finetuning_type", "freeze") {
        llama_parts::freeze(sheet);
    }
    // The limits of frames of Qwen3-VL and later are of all together here, and of each there.
    let is_later =
        |key: &str| sheet.get(key).and_then(Value::as_str).is_some_and(|name| name.to_lowercase().contains("qwen3"));
    if ["model_name_or_path", "template"].into_iter().any(is_later) {
        let why = "LLaMA-Factory's limit applies to each frame; data.video.max_pixels and min_pixels of this model \
                   apply to all frames together";
        sheet.missing(why, &["video_max_pixels", "video_min_pixels"]);
    }
    sheet.copy_all(&[
        ("model_name_or_path", "model.load"),
        ("adapter_name_or_path", "model.foundation.lora.adapter"),
        ("ref_model", "model.reference.load"),
        ("resize_vocab", "model.resize_embeddings"),
        ("moe_aux_loss_coef", "model.moe.aux_loss_coef"),
        ("image_max_pixels", "data.image.max_pixels"),
        ("image_min_pixels", "data.image.min_pixels"),
        ("video_max_pixels", "data.video.max_pixels"),
        ("video_min_pixels", "data.video.min_pixels"),
        ("video_maxlen", "data.video.max_frames"),
        ("video_fps", "data.video.fps"),
    ]);
    sheet.settled("no code of a model's folder is ever run", &["trust_remote_code"]);
    quantization(sheet);
    let built_in = "attention and losses are always fused";
    sheet.settled(built_in, &["flash_attn", "enable_liger_kernel", "use_unsloth", "use_fast_tokenizer", "shift_attn"]);
    sheet.missing("set model.load to a folder whose config.json contains it as `rope_scaling`", &["rope_scaling"]);
}

/// Weights of 4 and 8 bits, which bitsandbytes rounds when it loads them.
fn quantization(sheet: &mut Sheet) {
    let is_theirs = |sheet: &Sheet, key, default: &str| sheet.get(key).is_none() || sheet.is(key, default);
    let is_known = ["bitsandbytes", "bnb"].iter().any(|name| is_theirs(sheet, "quantization_method", name))
        && is_theirs(sheet, "quantization_type", "nf4");
    let doubled = sheet.get("double_quantization") != Some(&Value::Bool(false));
    match sheet.number("quantization_bit") {
        Some(bits) if is_known && (bits == 4.0 || bits == 8.0) => {
            sheet.frozen_in(bits as u32, doubled, "quantization_bit");
            for key in ["quantization_method", "quantization_type", "double_quantization"] {
                sheet.arrived(key, FROZEN);
            }
        }
        Some(_) => {
            let why = "model.foundation.frozen_precision must be nf4, nf4_double or int8 (bitsandbytes), or fp8_e4m3fn";
            let keys = ["quantization_bit", "quantization_method", "double_quantization", "quantization_type"];
            sheet.missing(why, &keys);
        }
        None => sheet.settled(
            "it applies only with quantization_bit",
            &["quantization_method", "double_quantization", "quantization_type"],
        ),
    }
}

fn data(sheet: &mut Sheet) {
    let has_several = |value: &Value| match value {
        Value::Array(names) => names.len() > 1,
        names => names.as_str().is_some_and(|names| names.contains(',')),
    };
    let is_joined = sheet.get("mix_strategy").is_none_or(|strategy| strategy == "concat");
    if sheet.get("dataset").is_some_and(has_several) && is_joined && sheet.get("interleave_probs").is_none() {
        sheet.once_per_epoch();
    }
    let info = DatasetInfo::of(sheet);
    let media = sheet.get("media_dir").and_then(Value::as_str).map(str::to_owned);
    let with_media = |mut set: Value| {
        if let Some(media) = &media {
            set["media_dir"] = media.as_str().into();
        }
        set
    };
    let mut notes = Vec::new();
    sheet.with("dataset", "data.train", |value| match &llama_data::names(value)[..] {
        _ if info.is_remote() => Err(OF_REMOTE_INFO),
        [] => Err("it must name a data set"),
        names => Ok(names.iter().map(|name| with_media(info.set(name, &mut notes))).collect()),
    });
    llama_data::held_out(sheet, &info, &mut notes);
    notes.into_iter().for_each(|note| sheet.note(note));
    sheet.arrived("media_dir", "data.train[].media_dir");
    if info.is_remote() {
        sheet.missing(OF_REMOTE_INFO, &["dataset_dir"]);
    }
    let why = match info.is_here() {
        _ if info.is_online() => "the paths in data.train name data sets of the Hugging Face hub",
        true => "data.train has the files and fields that its dataset_info.json names",
        false => "the paths in data.train start with it: compare them with the files in dataset_info.json",
    };
    sheet.settled(why, &["dataset_dir"]);
    if sheet.is("stage", "dpo") || sheet.is("stage", "kto") {
        sheet.long_answers();
    } else {
        sheet.set("data.pack.too_long", "truncate");
    }
    // Their default.
    sheet.set("data.pack.max_tokens", 2048);
    sheet.copy("cutoff_len", "data.pack.max_tokens");
    rendering(sheet);
    sheet.held_out("val_size");
    learned(sheet);
    if sheet.get("max_samples").is_some() && ["eval.path", "eval.sets"].iter().any(|key| sheet.has_set(key)) {
        sheet.note("max_samples limits eval_dataset as well; here eval.max_samples limits evaluations during the run");
    }
    sheet.limit_sets("max_samples");
    sheet.settled(
        READ_AHEAD,
        &["preprocessing_num_workers", "dataloader_num_workers", "overwrite_cache", "streaming", "buffer_size"],
    );
    mixture(sheet);
}

/// Translates the keys that say which tokens count in the loss.
fn learned(sheet: &mut Sheet) {
    let mask = sheet.is_true("mask_history");
    sheet.with("mask_history", "train.learn", |_| Ok(if mask { "last" } else { "all" }.into()));
    if sheet.is_true("train_on_prompt") && sheet.get("stage").is_none_or(|stage| stage == "sft") {
        sheet.with("train_on_prompt", "train.phase", |_| Ok("pretrain".into()));
    }
    sheet.settled("it is off, or applies only to stage: sft", &["train_on_prompt"]);
}

/// Translates the keys that say how conversations are written.
fn rendering(sheet: &mut Sheet) {
    if sheet.get("template").and_then(Value::as_str).is_some_and(|name| OTHER_TEMPLATES.contains(&name)) {
        sheet.missing(OF_TEMPLATES, &["template"]);
    }
    // Qwen3's own one writes an empty thought before the last answer, which is learned.
    if sheet.is("template", "qwen3_nothink") {
        sheet.with("template", "data.template", |_| Ok("chatml".into()));
    }
    sheet.settled("the chat template is that of the model's folder; data.template has built-in ones", &["template"]);
    if sheet.is_true("enable_thinking") {
        sheet.settled("templates of models that think do so by default", &["enable_thinking"]);
    }
    sheet.with("enable_thinking", "data.template_kwargs.enable_thinking", |value| match value {
        Value::Bool(_) => Ok(value.clone()),
        _ => Err("it must be true or false"),
    });
    if sheet.is("stage", "pt") {
        sheet.settled("texts have no system message", &["default_system"]);
    }
    sheet.default_system("default_system");
}

/// Translates the shares in which data sets are read.
fn mixture(sheet: &mut Sheet) {
    sheet.probabilities("interleave_probs");
    if sheet.is("mix_strategy", "concat") {
        sheet.settled("data.mix: samples reads every sample once per epoch", &["mix_strategy"]);
    }
    sheet.missing(EPOCH, &["mix_strategy"]);
}

/// Translates adapters, and returns whether there are any.
fn adapters(sheet: &mut Sheet) -> bool {
    const LORA: &str = "model.foundation.lora";
    const KEYS: [&str; 7] =
        ["additional_target", "lora_alpha", "lora_dropout", "lora_rank", "lora_target", "use_dora", "use_rslora"];
    let is_frozen = sheet.has_set("model.foundation.train_patterns");
    let has_adapters = !is_frozen && sheet.get("finetuning_type").is_none_or(|kind| kind == "lora");
    let continues = sheet.has_set("model.foundation.lora.adapter") && !sheet.is_true("create_new_adapter");
    if has_adapters {
        sheet.arrived("finetuning_type", LORA);
    }
    sheet.settled("without lora, all weights are trained", &["finetuning_type"]);
    match (has_adapters, continues) {
        (false, _) => sheet.settled("it applies only to finetuning_type: lora", &KEYS),
        (true, true) => sheet.settled("it comes from adapter_name_or_path", &KEYS),
        (true, false) => {
            let rank = sheet.number("lora_rank").unwrap_or(8.0);
            sheet.set("model.foundation.lora.r", rank as u64);
            // Their default.
            let alpha = sheet.number("lora_alpha").unwrap_or(2.0 * rank);
            sheet.set("model.foundation.lora.alpha", alpha);
        }
    }
    sheet.arrived("lora_rank", "model.foundation.lora.r");
    sheet.arrived("lora_alpha", "model.foundation.lora.alpha");
    sheet.copy_all(&[
        ("lora_dropout", "model.foundation.lora.dropout"),
        ("use_rslora", "model.foundation.lora.use_rslora"),
        ("use_dora", "model.foundation.lora.use_dora"),
    ]);
    if sheet.is("lora_target", "all") {
        sheet.settled("all linear layers are the default", &["lora_target"]);
    }
    sheet.with("lora_target", "model.foundation.lora.target_modules", |value| Ok(names(value)));
    sheet.with("additional_target", "model.foundation.lora.modules_to_save", |value| Ok(names(value)));
    has_adapters
}

fn method(sheet: &mut Sheet) {
    let has_adapters = adapters(sheet);
    sheet.settled(
        "it applies only to finetuning_type: freeze",
        &["freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"],
    );
    sheet.missing("name layers in model.foundation.train_patterns", &["use_llama_pro"]);
    let others = "this adapter variant is not supported";
    sheet.missing(others, &["pissa_init", "pissa_iter", "use_galore", "use_badam", "use_apollo", "create_new_adapter"]);
    sheet.regularization(has_adapters);
    match sheet.get("stage").and_then(Value::as_str).unwrap_or("sft") {
        "sft" => sheet.settled("sft is the default of train.phase", &["stage"]),
        "pt" => {
            sheet.long_documents();
            sheet.with("stage", "train.phase", |_| Ok("pretrain".into()));
        }
        "dpo" => preference(sheet),
        "kto" => {
            sheet.set("train.preference.loss", "kto");
            sheet.arrived("stage", "train.preference");
            sheet.copy_number("pref_beta", "train.preference.beta");
            sheet.copy_number("kto_chosen_weight", "train.preference.desirable_weight");
            sheet.copy_number("kto_rejected_weight", "train.preference.undesirable_weight");
            sheet
                .missing("train.preference.loss: kto cannot be combined with a negative log-likelihood", &["pref_ftx"]);
        }
        _ => sheet.missing("only sft, pretraining, preference pairs and kto are supported", &["stage"]),
    }
    sheet.settled(
        "it applies only to preference training",
        &[
            "pref_beta",
            "pref_ftx",
            "pref_loss",
            "simpo_gamma",
            "dpo_label_smoothing",
            "kto_chosen_weight",
            "kto_rejected_weight",
        ],
    );
}

fn preference(sheet: &mut Sheet) {
    let loss = sheet.get("pref_loss").and_then(Value::as_str).unwrap_or("sigmoid").to_owned();
    let known = ["sigmoid", "hinge", "ipo", "orpo", "simpo"].contains(&loss.as_str());
    sheet.set("train.preference.loss", if known { loss.as_str() } else { "sigmoid" });
    sheet.arrived("stage", "train.preference");
    match known {
        true => sheet.arrived("pref_loss", "train.preference.loss"),
        false => sheet
            .missing("this loss is not supported by train.preference.loss; sigmoid is used instead", &["pref_loss"]),
    }
    sheet.preference(if known { loss.as_str() } else { "sigmoid" });
    sheet.copy_number("pref_beta", "train.preference.beta");
    if let Some(weight) = sheet.number("pref_ftx").filter(|_| loss == "orpo") {
        // It comes on top of the likelihood that is part of this loss.
        sheet.with("pref_ftx", "train.preference.nll_weight", |_| Ok((1.0 + weight).into()));
    }
    sheet.copy_number("pref_ftx", "train.preference.nll_weight");
}

fn train(sheet: &mut Sheet, is_kto: bool) {
    match is_kto {
        true => sheet.batch_of_groups("per_device_train_batch_size", 8.0),
        false => sheet.batch("per_device_train_batch_size", 8.0),
    }
    let is_stable = sheet.is("lr_scheduler_type", "warmup_stable_decay");
    sheet.scheduler("lr_scheduler_type", "linear", 5e-5);
    if is_stable && !sheet.has_set("train.decay_steps") {
        sheet.note(
            "without num_decay_steps LLaMA-Factory's rate falls over two thirds of the steps after the warm-up, here \
             over a tenth of all: set train.decay_steps",
        );
    }
    // Their default.
    sheet.set("train.lr", 5e-5);
    sheet.copy_number("learning_rate", "train.lr");
    sheet.duration("num_train_epochs", 3.0);
    sheet.optimizer("optim");
    if sheet.is_true("use_muon") {
        sheet.optimizer_is("muon", "use_muon");
    }
    sheet.missing("it is off", &["use_muon"]);
    if sheet.is_true("bf16") || sheet.is_true("pure_bf16") {
        sheet.set("train.precision", "bf16");
    }
    ["bf16", "pure_bf16"].iter().for_each(|key| sheet.arrived(key, "train.precision"));
    sheet.missing(NO_FP16, &["fp16"]);
    sheet.launcher();
    sheet.copy_all(&[
        ("tensor_model_parallel_size", "pools.foundation.tensor_parallel"),
        ("pipeline_model_parallel_size", "pools.foundation.pipeline_parallel"),
        ("expert_model_parallel_size", "pools.foundation.expert_parallel"),
        ("context_parallel_size", "pools.foundation.context_parallel"),
    ]);
    sheet.fsdp();
    sheet.settled(SAVES_MEMORY, &["gradient_checkpointing", "disable_gradient_checkpointing", "use_reentrant_gc"]);
}

/// Counts packed samples in packs, as pretraining does unless told otherwise. It is to be read after the duration.
fn packing(sheet: &mut Sheet, is_pretraining: bool) {
    let is_packed = match sheet.get("packing") {
        Some(packing) => *packing == Value::Bool(true),
        None => is_pretraining || sheet.is_true("neat_packing"),
    };
    if is_packed && !sheet.has_set("train.preference") {
        ["packing", "neat_packing"].iter().for_each(|key| sheet.packs(key));
    }
    sheet.settled("samples are always packed, and never attend to each other", &["packing", "neat_packing"]);
}

/// Settles the keys of transformers' trainer that say how its work is done, and not what is trained.
fn workings(sheet: &mut Sheet) {
    sheet.settled(
        READ_AHEAD,
        &[
            "dataloader_persistent_workers",
            "dataloader_pin_memory",
            "dataloader_prefetch_factor",
            "preprocessing_batch_size",
            "tokenized_path",
        ],
    );
    sheet.settled(UNREAD, &["remove_unused_columns"]);
    sheet.settled("samples are always packed, and never padded", &["group_by_length", "ignore_pad_token_for_loss"]);
    sheet.settled("the loss is the mean over all tokens of a step", &["average_tokens_across_devices"]);
    sheet.settled("operators are already compiled", &["torch_compile"]);
    sheet.settled("evaluations always say how many tokens are predicted", &["compute_accuracy"]);
    sheet.settled("TensorBoard's files are in run.dir", &["logging_dir"]);
    sheet.settled_all("`loongforge launch` places processes on machines", &["ddp_"]);
}

fn run(sheet: &mut Sheet) {
    sheet.run_of_trainer();
    workings(sheet);
    sheet.patience("early_stopping_steps");
    let why = "set eval.generate, the number of answers to generate, and eval.scores: [bleu, rouge]";
    sheet.missing(why, &["predict_with_generate"]);
    sheet.missing("`loongforge checkpoint push` uploads a checkpoint", &["push_to_hub", "hub_model_id"]);
    sheet.missing(SWANLAB, &["use_swanlab"]);
    sheet.settled("use `loongforge run --overwrite`", &["overwrite_output_dir"]);
    sheet.settled("this is always the case", &["plot_loss", "include_num_input_tokens_seen"]);
    sheet.settled("`loongforge evaluate` does so after the run", &["do_eval", "do_predict"]);
    if sheet.is_true("disable_shuffling") {
        sheet.with("disable_shuffling", "data.shuffle", |_| Ok(false.into()));
    }
    sheet.settled("data.shuffle is on by default", &["disable_shuffling"]);
}

/// Returns a list of names, which may be written with commas.
fn names(value: &Value) -> Value {
    match value {
        Value::String(text) => text.split(',').map(|name| Value::from(name.trim())).collect(),
        list => list.clone(),
    }
}
