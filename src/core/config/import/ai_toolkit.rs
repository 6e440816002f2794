//! Translates ai-toolkit's configs that train Wan and Qwen-Image: the YAML with the `job` extension and a trainer in `config.process`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::diffsynth::ENCODED;
use super::diffsynth_model::Named;
use super::sheet::{Sheet, schedule};
use super::trainer::{FROZEN, NO_FP16};

/// Trainers that learn from pictures and clips.
const TRAINERS: [&str; 3] = ["sd_trainer", "diffusion_trainer", "ui_trainer"];

/// Its names of models that are translated, without what follows a colon, and hub ids of models of the same sizes.
const MODELS: [(&str, &str); 8] = [
    ("wan21", "Wan-AI/Wan2.1-T2V-1.3B"),
    ("wan21_i2v", "Wan-AI/Wan2.1-I2V-14B-480P"),
    ("wan22_14b", "Wan-AI/Wan2.2-T2V-A14B"),
    ("wan22_14b_i2v", "Wan-AI/Wan2.2-I2V-A14B"),
    ("wan22_5b", "Wan-AI/Wan2.2-TI2V-5B"),
    ("qwen_image", "Qwen/Qwen-Image"),
    ("qwen_image_edit", "Qwen/Qwen-Image-Edit"),
    ("qwen_image_edit_plus", "Qwen/Qwen-Image-Edit-2509"),
];

const MAX_SIDE: f64 = 16384.0;
/// The side where a data set has no resolution.
const SIDE: u64 = 512;
const MAX_FRAMES: f64 = 65536.0;
const FP8: &str = "fp8_e4m3fn";

/// Returns the keys of the trainer of a config, `SECTION.KEY` and `datasets.N.KEY`; `None`: it is no config of ai-toolkit.
pub(super) fn flat(fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let config = fields.get("job").and(fields.get("config"))?.as_object()?;
    config.get("process")?;
    let mut keys = Map::new();
    for (key, value) in fields.iter().filter(|(key, _)| *key != "config").chain(config) {
        match value {
            Value::Array(processes) if key == "process" => {
                let (first, others) = processes.split_first()?;
                first.as_object()?.iter().for_each(|(key, value)| insert(&mut keys, key, value));
                let others = others.iter().enumerate();
                others.for_each(|(at, other)| insert(&mut keys, &format!("process.{}", at + 1), other));
            }
            value => insert(&mut keys, key, value),
        }
    }
    Some(keys)
}

/// Adds a key, or those of its section; a list of sections has numbers.
fn insert(keys: &mut Map<String, Value>, name: &str, value: &Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(key, value)| insert(keys, &format!("{name}.{key}"), value));
        }
        Value::Array(list) if name == "datasets" => {
            list.iter().enumerate().for_each(|(at, value)| insert(keys, &format!("{name}.{at}"), value));
        }
        value => _ = keys.insert(name.to_owned(), value.clone()),
    }
}

/// Returns why a config is not translated: anything else in its place would train something that was not asked for.
pub(super) fn refused(keys: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| keys.get(key).and_then(Value::as_str).unwrap_or_default();
    if !TRAINERS.contains(&text("type")) {
        return Some(format!(
            "ai-toolkit's process `{}` has no counterpart: only its trainers are translated",
            text("type")
        ));
    }
    if model(text("model.arch")).is_none() {
        return Some(format!(
            "ai-toolkit's model `{}` has no counterpart: of those that `model.arch` names, Wan and Qwen-Image are \
             translated",
            text("model.arch")
        ));
    }
    let network = keys.get("network.type").map_or("lora", |_| text("network.type"));
    (network != "lora").then(|| format!("ai-toolkit's network `{network}` has no counterpart: only lora is translated"))
}

fn model(arch: &str) -> Option<Named> {
    let arch = arch.split(':').next().unwrap_or(arch);
    MODELS.iter().find(|(name, _)| *name == arch).and_then(|(_, id)| Named::known(id))
}

/// Translates a config.
pub(super) fn read(sheet: &mut Sheet) {
    let model = sheet.text("model.arch").and_then(|arch| model(&arch));
    run(sheet);
    weights(sheet);
    let side = sets(sheet);
    if let Some(model) = model {
        sizes(sheet, &model, side);
    }
    steps(sheet);
    optimizer(sheet);
    levels(sheet);
    let samples = "write the prompts into a .txt file, one on each line, and set sample.prompts, every_steps, steps, guidance \
                   and size";
    for key in sheet.begin_with("sample.") {
        sheet.missing(samples, &[&key]);
    }
}

fn run(sheet: &mut Sheet) {
    let name = sheet.text("name").unwrap_or_else(|| "imported".to_owned());
    if let Some(folder) = sheet.text("training_folder") {
        sheet.set("run.dir", format!("{}/{name}", folder.trim_end_matches('/')));
    }
    sheet.set("run.name", name);
    sheet.arrived("name", "run.name");
    sheet.arrived("training_folder", "run.dir");
    sheet.copy_all(&[
        ("save.save_every", "checkpoint.every_steps"),
        ("save.max_step_saves_to_keep", "checkpoint.keep_last"),
    ]);
    sheet.settled("`loongforge checkpoint export --dtype` writes files for other programs", &["save.dtype"]);
    sheet.missing("`loongforge checkpoint push` uploads a checkpoint", &["save.push_to_hub"]);
    sheet.settled_all("`loongforge checkpoint push` uploads a checkpoint", &["save.hf_"]);
    sheet.settled("the trainer is translated", &["job", "type"]);
    sheet.settled("`device` of a run chooses the device", &["device"]);
    sheet.settled("metrics are always written", &["performance_log_every", "sqlite_db_path"]);
    sheet.settled_all("files of weights have no such entries", &["meta."]);
    sheet.missing("write it into the captions, or set `caption` of a data set that has none", &["trigger_word"]);
}

/// Translates the model, its adapters and the precision of what is frozen.
fn weights(sheet: &mut Sheet) {
    const LORA: &str = "model.foundation.lora";
    sheet.copy("model.name_or_path", "model.load");
    sheet.settled("the folder of the model says it", &["model.arch"]);
    let rank = ["network.linear", "network.rank"].into_iter().find(|key| sheet.get(key).is_some());
    if let Some(rank) = rank {
        sheet.copy(rank, &format!("{LORA}.r"));
        // Their default.
        sheet.set(&format!("{LORA}.alpha"), 1);
        let alpha = ["network.linear_alpha", "network.alpha"].into_iter().find(|key| sheet.get(key).is_some());
        alpha.into_iter().for_each(|alpha| sheet.copy_number(alpha, &format!("{LORA}.alpha")));
        sheet.copy_number("network.dropout", &format!("{LORA}.dropout"));
        sheet.arrived("network.type", LORA);
    }
    let convolutions = "adapters are those of linear layers";
    sheet.missing(convolutions, &["network.conv", "network.conv_alpha"]);
    let [high, low] = ["high", "low"].map(|noise| format!("model.model_kwargs.train_{noise}_noise"));
    let is_off = |sheet: &Sheet, key: &str| sheet.get(key) == Some(&Value::Bool(false));
    let experts = match (is_off(sheet, &high), is_off(sheet, &low)) {
        (false, true) => Some("high"),
        (true, false) => Some("low"),
        _ => None,
    };
    experts.into_iter().for_each(|experts| sheet.set("model.experts", experts));
    [high, low].iter().for_each(|key| sheet.arrived(key, "model.experts"));
    let text = "model.text_encoder.frozen_precision";
    let quantized = [("model.quantize", "model.qtype", FROZEN), ("model.quantize_te", "model.qtype_te", text)];
    for (switch, kind, ours) in quantized {
        let is_fp8 = sheet.text(kind).is_none_or(|kind| kind.contains("float8"));
        if sheet.is_true(switch) && is_fp8 && (ours == text || rank.is_some()) {
            sheet.set(ours, FP8);
            [switch, kind].iter().for_each(|key| sheet.arrived(key, ours));
        }
        if !sheet.is_true(switch) {
            sheet.settled("it is off", &[kind]);
        }
        sheet.missing("set frozen_precision beside adapters to fp8_e4m3fn, int8 or nf4", &[switch, kind]);
    }
    sheet.missing("memory.weight_budget offloads frozen weights that do not fit to the host", &["model.low_vram"]);
}

/// Translates folders, each once for every side of its resolution, and captions. Returns the largest side.
fn sets(sheet: &mut Sheet) -> u64 {
    let at = |key: &String| key.strip_prefix("datasets.")?.split('.').next()?.parse().ok();
    let ats: BTreeSet<usize> = sheet.fields().keys().filter_map(at).collect();
    let sides = |sheet: &Sheet, at: usize| match numbers(sheet, &format!("datasets.{at}.resolution"), MAX_SIDE) {
        sides if sides.is_empty() => vec![SIDE],
        sides => sides,
    };
    let largest = ats.iter().flat_map(|at| sides(sheet, *at)).max().unwrap_or(SIDE);
    let mut found = Vec::new();
    for &at in &ats {
        let own = |name: &str| format!("datasets.{at}.{name}");
        let Some(folder) = sheet.text(&own("folder_path")) else { continue };
        let mut set = json!({ "path": folder });
        if let Some(caption) = sheet.text(&own("default_caption")).filter(|caption| !caption.is_empty()) {
            set["caption"] = caption.into();
        }
        found.extend(sides(sheet, at).into_iter().map(|side| {
            let mut set = set.clone();
            if side != largest {
                set["area"] = format!("{side}x{side}").into();
            }
            set
        }));
        sheet.arrived(&own("folder_path"), "data.train");
        sheet.arrived(&own("default_caption"), "data.train[].caption");
        let is_read = |end: &String| ["txt", "caption"].contains(&end.trim_start_matches('.'));
        if sheet.text(&own("caption_ext")).is_some_and(|end| is_read(&end)) {
            sheet.settled("captions are in NAME.txt or NAME.caption", &[&own("caption_ext")]);
        }
        sheet.missing("captions are in NAME.txt or NAME.caption: rename them", &[&own("caption_ext")]);
        sheet.settled(ENCODED, &[&own("cache_latents"), &own("cache_latents_to_disk")]);
        sheet.settled("pictures and frames keep their aspect ratio", &[&own("buckets")]);
        if sheet.number(&own("num_repeats")) == Some(1.0) {
            sheet.settled("each sample is read once per epoch", &[&own("num_repeats")]);
        }
        sheet.missing("set the `weight` of each data set to its num_repeats", &[&own("num_repeats")]);
        let dropout = sheet.number(&own("caption_dropout_rate"));
        match (sheet.set_number("data.caption_dropout"), dropout) {
            (Some(first), Some(own_rate)) if first != own_rate => {}
            _ => sheet.copy_number(&own("caption_dropout_rate"), "data.caption_dropout"),
        }
        sheet.missing("data.caption_dropout is that of all data sets", &[&own("caption_dropout_rate")]);
        let edited = "write a list of records that name their pictures in edit_image or control_path";
        sheet.missing(edited, &[&own("control_path"), &own("control_path_1"), &own("control_path_2")]);
        let masks = "write a list of records with the field `mask`, and set data.masks";
        sheet.missing(masks, &[&own("mask_path"), &own("alpha_mask")]);
    }
    if found.len() > 1 {
        sheet.once_per_epoch();
    }
    if !found.is_empty() {
        sheet.set("data.train", found);
    }
    largest
}

/// Returns the whole numbers from 1 on under a key, one or a list of them; nothing where one is none.
fn numbers(sheet: &Sheet, key: &str, most: f64) -> Vec<u64> {
    let number = |value: &Value| value.as_f64().filter(|number| (1.0..=most).contains(number)).map(|it| it as u64);
    match sheet.get(key) {
        Some(Value::Array(list)) => list.iter().map(number).collect::<Option<_>>().unwrap_or_default(),
        value => value.and_then(number).into_iter().collect(),
    }
}

/// Translates sides, of which `side` is the largest, and numbers of frames, of which the largest counts.
fn sizes(sheet: &mut Sheet, model: &Named, side: u64) {
    let ends = |sheet: &Sheet, end: &str| -> Vec<String> {
        sheet.begin_with("datasets.").into_iter().filter(|key| key.ends_with(end)).collect()
    };
    let (sides, lengths) = (ends(sheet, ".resolution"), ends(sheet, ".num_frames"));
    let longest = lengths.iter().flat_map(|key| numbers(sheet, key, MAX_FRAMES)).max().unwrap_or(1);
    let frames = if model.is_image() { 1 } else { (longest - 1) / 4 * 4 + 1 };
    let area = format!("{side}x{side}");
    sheet.set("data.image.area", area.clone());
    if frames > 1 {
        sheet.set("data.video.area", area);
        sheet.set("data.video.frames", frames);
        sheet.set("data.video.take", "uniform");
        sheet.note("ai-toolkit spreads the frames evenly over a clip unless shrink_video_to_frames is false");
    }
    model.packs(sheet, &[(frames, side * side)]);
    for key in sides {
        match numbers(sheet, &key, MAX_SIDE)[..] {
            [] => sheet.missing("a side must have from 1 to 16384 pixels", &[&key]),
            [own] if own == side => sheet.arrived(&key, "data.image.area"),
            _ => sheet.arrived(&key, "data.train[].area"),
        }
    }
    for key in lengths {
        match numbers(sheet, &key, MAX_FRAMES)[..] {
            [1] => sheet.settled("a picture has one frame", &[&key]),
            [own] if own == frames => sheet.arrived(&key, "data.video.frames"),
            _ => {}
        }
        sheet.missing("data.video.frames is one for all data sets, one more than a multiple of 4", &[&key]);
    }
    for key in ends(sheet, ".shrink_video_to_frames") {
        if sheet.is_true(&key) {
            sheet.arrived(&key, "data.video.take");
        }
    }
}

fn steps(sheet: &mut Sheet) {
    let accumulated = ["train.gradient_accumulation", "train.gradient_accumulation_steps"];
    let several = accumulated.iter().find_map(|key| sheet.number(key)).unwrap_or(1.0);
    let size = (sheet.number("train.batch_size").unwrap_or(1.0) * several).max(1.0);
    sheet.set("train.global_batch_size", size as u64);
    accumulated.iter().for_each(|key| sheet.arrived(key, "train.global_batch_size"));
    sheet.arrived("train.batch_size", "train.global_batch_size");
    // Their default.
    sheet.set("train.steps", 1000);
    sheet.copy("train.steps", "train.steps");
    if sheet.get("train.gradient_checkpointing") != Some(&Value::Bool(false)) {
        sheet.set("model.foundation.recompute", "all");
        sheet.arrived("train.gradient_checkpointing", "model.foundation.recompute");
    }
    sheet.settled("it is off", &["train.gradient_checkpointing"]);
    let precision = match sheet.text("train.dtype").as_deref() {
        Some("bf16" | "bfloat16" | "fp16" | "float16") => "bf16",
        _ => "float32",
    };
    if ["fp16", "float16"].iter().any(|half| sheet.is("train.dtype", half)) {
        sheet.missing(NO_FP16, &["train.dtype"]);
    }
    sheet.set("train.precision", precision);
    sheet.arrived("train.dtype", "train.precision");
    if sheet.is_true("train.ema_config.use_ema") {
        sheet.set("train.ema", 0.999);
        sheet.copy_number("train.ema_config.ema_decay", "train.ema");
        sheet.arrived("train.ema_config.use_ema", "train.ema");
    }
    sheet.settled("it is off", &["train.ema_config.use_ema", "train.ema_config.ema_decay"]);
    sheet.settled("the transformer is trained", &["train.train_unet"]);
    sheet.missing("set model.text_encoder.freeze to false", &["train.train_text_encoder"]);
    sheet.settled("a sample goes to the transformer of its noise level", &["train.switch_boundary_every"]);
    sheet.settled(ENCODED, &["train.cache_text_embeddings"]);
    sheet.missing("captions are always read", &["train.unload_text_encoder"]);
    sheet.settled("it applies only to samples", &["train.skip_first_sample", "train.disable_sampling"]);
}

fn optimizer(sheet: &mut Sheet) {
    const KIND: &str = "train.optimizer";
    // The defaults of AdamW.
    sheet.set("train.optimizer.betas", json!([0.9, 0.999]));
    sheet.set("train.optimizer.weight_decay", 0.01);
    sheet.set("train.clip_grad", 1.0);
    sheet.copy_number("train.max_grad_norm", "train.clip_grad");
    sheet.copy_number("train.optimizer_params.weight_decay", "train.optimizer.weight_decay");
    sheet.copy_number("train.optimizer_params.eps", "train.optimizer.eps");
    sheet.copy_number("train.lr", "train.lr");
    match sheet.text(KIND).unwrap_or_default().to_lowercase().as_str() {
        "" | "adamw" => sheet.settled("AdamW is the optimizer", &[KIND]),
        "adamw8bit" => sheet.optimizer_is("adamw_8bit", KIND),
        _ => sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &[KIND]),
    }
    sheet.set("train.schedule", "constant");
    sheet.with("train.lr_scheduler", "train.schedule", schedule);
    sheet.copy("train.lr_scheduler_params.num_warmup_steps", "train.warmup_steps");
}

/// Translates the noise levels and the loss.
fn levels(sheet: &mut Sheet) {
    const KIND: &str = "train.timestep_type";
    let density = match sheet.text(KIND).as_deref() {
        None | Some("sigmoid") => Some("logit_normal"),
        Some("linear") => Some("uniform"),
        Some(_) => None,
    };
    if let Some(density) = density {
        sheet.set("train.sigma.density", density);
        sheet.arrived(KIND, "train.sigma.density");
    }
    sheet.missing("set train.sigma.density and train.sigma.shift: only sigmoid and linear are translated", &[KIND]);
    if sheet.is("train.noise_scheduler", "flowmatch") {
        sheet.settled("noise levels are those of flow matching", &["train.noise_scheduler"]);
    }
    sheet.missing("noise levels are those of flow matching", &["train.noise_scheduler"]);
    if sheet.is("train.content_or_style", "balanced") {
        sheet.settled("it is the density of noise levels", &["train.content_or_style"]);
    }
    sheet.missing("set train.sigma.mean, min and max", &["train.content_or_style"]);
    if sheet.is("train.loss_type", "mse") {
        sheet.settled("it is the loss here", &["train.loss_type"]);
    }
    sheet.missing("train.loss.kind must be mse, huber, pseudo_huber or smooth_l1", &["train.loss_type"]);
}
