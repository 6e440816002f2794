//! DiffSynth-Studio's commands that train Wan and Qwen-Image (version 2.0), by the options of their `train.py`.

use serde_json::{Map, Value, json};

use super::diffsynth_model::{Found, Named, find};
use super::sheet::Sheet;
use super::trainer::{FROZEN, NO_WANDB, READ_AHEAD, REGULAR_EXPRESSION};

const LORA: &str = "model.foundation.lora";
/// The answer to keys of outputs that are kept.
pub(super) const ENCODED: &str = "`loongforge data encode` and pools.NAME.cache_dir cache the outputs of frozen towers";

/// The inputs that a model may be given beside the prompt.
const INPUTS: [&str; 3] = ["input_image", "end_image", "edit_image"];

/// Returns the words of a list with commas.
fn inputs(text: Option<&str>) -> Vec<&str> {
    text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|input| !input.is_empty()).collect()
}

/// Returns a message about training that has no counterpart; `None` where it has one.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    match text("task") {
        None | Some("sft" | "sft:train") => {}
        Some(task) if task.ends_with(":data_process") => {
            return Some(format!("its task `{task}` trains nothing: {ENCODED}"));
        }
        Some(task) => {
            return Some(format!("DiffSynth-Studio's task `{task}` has no counterpart: only sft is translated"));
        }
    }
    // Parts and inputs of another model are none of ours either: its name says most.
    if let Some(Found::Other(id)) = find(fields) {
        return Some(format!(
            "DiffSynth-Studio's model `{id}` has no counterpart: only T2V, I2V, FLF2V and TI2V of Wan 2.1 and 2.2, \
             and Qwen-Image with its editing models, are translated"
        ));
    }
    for key in ["trainable_models", "lora_base_model"] {
        if let Some(part) = text(key).filter(|part| !["dit", ""].contains(part)) {
            return Some(format!(
                "`--{key} {part}` of DiffSynth-Studio has no counterpart: only `dit`, the transformer, can be trained"
            ));
        }
    }
    let other = inputs(text("extra_inputs")).into_iter().find(|input| !INPUTS.contains(input));
    other.map(|input| {
        format!(
            "DiffSynth-Studio's extra input `{input}` has no counterpart: only first and last frames and pictures to edit are supported"
        )
    })
}

/// Translates the options of a command.
pub(super) fn read(sheet: &mut Sheet) {
    let model = match find(sheet.fields()) {
        Some(Found::Known(model)) => Some(model),
        _ => None,
    };
    weights(sheet, model.as_ref());
    data(sheet, model.as_ref());
    sizes(sheet, model.as_ref());
    levels(sheet, model.as_ref());
    adapters(sheet);
    train(sheet);
    memory(sheet);
    run(sheet);
}

fn weights(sheet: &mut Sheet, model: Option<&Named>) {
    let keys = ["model_id_with_origin_paths", "model_paths"];
    match model {
        Some(model) => {
            sheet.set("model.load", model.load.as_str());
            if let Some(experts) = model.experts {
                sheet.set("model.experts", experts);
                sheet.note(
                    "as in the script, one of two transformers is trained; without model.experts one run trains both, \
                     each on its noise levels",
                );
            }
            if model.is_local {
                sheet.note("files of Wan's first release are pickles, which are not read: model.load is set to the hub's Diffusers folder");
            }
            keys.iter().for_each(|key| sheet.arrived(key, "model.load"));
        }
        None => sheet.missing("name a folder in Diffusers' layout, or its hub id, in model.load", &keys),
    }
    sheet.copy("tokenizer_path", "model.text.tokenizer");
    sheet.settled("it comes from the model's folder", &["processor_path", "zero_cond_t"]);
    sheet.missing("none of the supported models takes audio", &["audio_processor_path"]);
    sheet.missing(
        "set model.load to the folder of a checkpoint; `loongforge run --resume` continues a run",
        &["resume_from_checkpoint"],
    );
    let given = sheet.text("extra_inputs");
    if model.is_some_and(Named::may_begin) && inputs(given.as_deref()).contains(&INPUTS[0]) {
        sheet.set("data.video.first_frame", 1.0);
        sheet.arrived("extra_inputs", "data.video.first_frame");
    }
    sheet.settled("the model determines its inputs", &["extra_inputs"]);
}

fn data(sheet: &mut Sheet, model: Option<&Named>) {
    let [base, list] = ["dataset_base_path", "dataset_metadata_path"].map(|key| sheet.text(key));
    match (base, list) {
        (base, Some(list)) => {
            let folder = |path: &str| path.trim_start_matches("./").trim_end_matches('/').to_owned();
            let beside = list.rsplit_once('/').map(|(folder, _)| folder).unwrap_or(".");
            let elsewhere = base.filter(|base| folder(base) != folder(beside));
            let set = match &elsewhere {
                Some(base) => json!([{ "path": list, "media_dir": base }]),
                None => json!([{ "path": list }]),
            };
            sheet.set("data.train", set);
            sheet.arrived("dataset_metadata_path", "data.train");
            match elsewhere {
                Some(_) => sheet.arrived("dataset_base_path", "data.train[].media_dir"),
                None => sheet.settled("file paths are relative to the list's folder", &["dataset_base_path"]),
            }
        }
        (_, None) => sheet.missing(
            "data that DiffSynth-Studio encoded in advance is not read: name the list of pictures or clips in data.train",
            &["dataset_base_path"],
        ),
    }
    sheet.settled(READ_AHEAD, &["dataset_num_workers"]);
    let keys = sheet.text("data_file_keys").unwrap_or_default();
    match keys.split(',').map(str::trim).all(|key| ["", "image", "video", "edit_image"].contains(&key)) {
        true => sheet.settled("the fields of records have these names", &["data_file_keys"]),
        false => sheet.missing(
            "the fields of records are image, video and edit_image; data.train[].columns maps other names",
            &["data_file_keys"],
        ),
    }
    sheet.missing("it applies only to other models", &["framewise_decoding"]);
    if model.is_some_and(|model| !model.is_image()) {
        sheet.note(
            "DiffSynth-Studio takes every frame of a clip; here data.video.fps frames a second are taken: set \
             it to the frame rate of the clips",
        );
    }
}

/// Sizes of what is made, and of what holds it.
fn sizes(sheet: &mut Sheet, model: Option<&Named>) {
    let side = |key: &str| sheet.number(key).map(|side| side as u64);
    let of_pixels = sheet.number("max_pixels").map_or(1024 * 1024, |pixels| pixels as u64);
    let (area, pixels) = match (side("height"), side("width")) {
        (Some(rows), Some(columns)) => (json!(format!("{rows}x{columns}")), rows.saturating_mul(columns)),
        _ => (json!(of_pixels), of_pixels),
    };
    let is_image = model.is_some_and(Named::is_image);
    // They are one more than a multiple of 4; others are rounded down to that.
    let frames = if is_image { 1 } else { sheet.number("num_frames").unwrap_or(81.0) as u64 };
    let frames = frames.saturating_sub(1) / 4 * 4 + 1;
    let ours = if is_image { "data.image.area" } else { "data.video.area" };
    sheet.set(ours, area);
    if sheet.get("height").is_some() && sheet.get("width").is_some() {
        sheet.settled("height and width take precedence", &["max_pixels"]);
        sheet.note(
            "DiffSynth-Studio resizes all frames to height and width; here larger ones are scaled down to as \
             many pixels and keep their aspect ratio",
        );
    }
    ["height", "width", "max_pixels"].iter().for_each(|key| sheet.arrived(key, ours));
    if !is_image {
        sheet.set("data.video.frames", frames);
        sheet.arrived("num_frames", "data.video.frames");
    }
    let Some(model) = model else { return };
    model.packs(sheet, &[(frames, pixels)]);
}

/// Translates noise levels: a grid of 1000, shifted, and the weight of each.
fn levels(sheet: &mut Sheet, model: Option<&Named>) {
    sheet.set("train.loss.weight", "bell");
    let keys = ["min_timestep_boundary", "max_timestep_boundary"];
    let Some(model) = model else {
        return sheet.missing("set train.sigma.min and train.sigma.max, which bound the noise levels", &keys);
    };
    let shift = model.shift();
    sheet.set("train.sigma.density", "discrete");
    sheet.set("train.sigma.shift", (shift * 1e6).round() / 1e6);
    if model.is_image() {
        // Where its grid is stretched to.
        sheet.set("train.sigma.min", 0.02);
        return sheet.missing("set train.sigma.min and train.sigma.max, which bound the noise levels", &keys);
    }
    if model.experts.is_some() {
        return keys.iter().for_each(|key| sheet.arrived(key, "model.experts"));
    }
    // Shares of the grid, from the highest level on.
    let level = |share: f64| (shift * (1.0 - share) / (1.0 + (shift - 1.0) * (1.0 - share)) * 1e6).round() / 1e6;
    for (key, ours) in [("max_timestep_boundary", "train.sigma.min"), ("min_timestep_boundary", "train.sigma.max")] {
        let share = sheet.number(key).filter(|share| (0.0..=1.0).contains(share));
        sheet.with(key, ours, |_| share.map(|share| level(share).into()).ok_or("it must be a fraction from 0 to 1"));
    }
}

fn adapters(sheet: &mut Sheet) {
    sheet.settled("the transformer is trained", &["trainable_models"]);
    let is_whole = sheet.text("lora_base_model").is_none();
    let of_adapters = ["lora_base_model", "lora_target_modules", "lora_rank", "lora_checkpoint"];
    sheet.missing(
        "merge it into the model that model.load names, with `loongforge checkpoint export-hf`",
        &["preset_lora_path", "preset_lora_model"],
    );
    if is_whole {
        return sheet.settled("adapters are used only with lora_base_model", &of_adapters);
    }
    let rank = sheet.number("lora_rank").unwrap_or(32.0) as u64;
    sheet.set(&format!("{LORA}.r"), rank);
    sheet.set(&format!("{LORA}.alpha"), rank);
    let names = sheet.text("lora_target_modules").unwrap_or_else(|| "q,k,v,o,ffn.0,ffn.2".to_owned());
    let names: Vec<&str> = names.split(',').map(|name| ours(name.trim())).filter(|name| !name.is_empty()).collect();
    // One name alone is a regular expression for PEFT.
    if names.len() == 1 && names[0].contains(['(', '|', '\\', '*']) {
        sheet.missing(REGULAR_EXPRESSION, &["lora_target_modules"]);
    } else if !names.is_empty() {
        sheet.set(&format!("{LORA}.target_modules"), json!(names));
    }
    sheet.arrived("lora_base_model", LORA);
    sheet.arrived("lora_rank", &format!("{LORA}.r, {LORA}.alpha"));
    sheet.arrived("lora_target_modules", &format!("{LORA}.target_modules"));
    sheet.copy("lora_checkpoint", &format!("{LORA}.adapter"));
}

/// Maps of Wan's first release as Diffusers calls them; Qwen-Image's have its names.
fn ours(name: &str) -> &str {
    match name {
        "q" => "to_q",
        "k" => "to_k",
        "v" => "to_v",
        "o" => "to_out.0",
        "k_img" => "add_k_proj",
        "v_img" => "add_v_proj",
        "ffn.0" => "ffn.net.0.proj",
        "ffn.2" => "ffn.net.2",
        name => name,
    }
}

fn train(sheet: &mut Sheet) {
    // An epoch has every record so many times.
    let [epochs, repeat] = ["num_epochs", "dataset_repeat"].map(|key| sheet.number(key).unwrap_or(1.0));
    sheet.set("train.epochs", epochs * repeat);
    ["num_epochs", "dataset_repeat"].iter().for_each(|key| sheet.arrived(key, "train.epochs"));
    sheet.batch("batch_size", 1.0);
    sheet.set("train.lr", 1e-4);
    sheet.copy_number("learning_rate", "train.lr");
    sheet.set("train.schedule", "constant");
    sheet.set("train.warmup_steps", 0);
    sheet.set("train.clip_grad", 0.0);
    sheet.set("train.precision", "bf16");
    sheet.set("train.optimizer.betas", json!([0.9, 0.999]));
    sheet.set("train.optimizer.weight_decay", 0.01);
    sheet.copy_number("weight_decay", "train.optimizer.weight_decay");
    match sheet.text("customized_optimizer").as_deref() {
        Some("torch.optim.AdamW") => sheet.settled("AdamW is the optimizer", &["customized_optimizer"]),
        Some("bitsandbytes.optim.AdamW8bit") => sheet.optimizer_is("adamw_8bit", "customized_optimizer"),
        _ => sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &["customized_optimizer"]),
    }
    sheet.settled("sft is the only task", &["task"]);
    sheet.launcher();
    sheet.settled("parameters without gradients need no option", &["find_unused_parameters"]);
}

fn memory(sheet: &mut Sheet) {
    // Of Wan it is so without the switch.
    sheet.set("model.foundation.recompute", "all");
    sheet.arrived("use_gradient_checkpointing", "model.foundation.recompute");
    sheet.missing("memory.activation_budget moves activations to the host", &["use_gradient_checkpointing_offload"]);
    let has_adapters = sheet.has_set(LORA);
    let is_transformer = |text: &str| text.contains("transformer/") || text.contains("diffusion_pytorch_model");
    if has_adapters && sheet.text("fp8_models").is_some_and(|files| is_transformer(&files)) {
        sheet.set(FROZEN, "fp8_e4m3fn");
        sheet.arrived("fp8_models", FROZEN);
    }
    sheet.missing(
        "with adapters, model.foundation.frozen_precision: fp8_e4m3fn stores frozen weights in FP8",
        &["fp8_models"],
    );
    let method =
        sheet.text("quant_options").filter(|options| is_transformer(options) && options.contains("bitsandbytes_nf4"));
    if has_adapters && method.is_some() {
        sheet.frozen_in(4, false, "quant_options");
    }
    sheet
        .missing("with adapters, model.foundation.frozen_precision may be nf4, int8 or fp8_e4m3fn", &["quant_options"]);
    sheet.missing(
        "memory.weight_budget offloads frozen weights to the host, train.optimizer.offload the optimizer's state",
        &["offload_models", "enable_model_cpu_offload", "enable_optimizer_cpu_offload", "cpu_offload_split_threshold"],
    );
    sheet.settled("weights are loaded directly onto their device", &["initialize_model_on_cpu"]);
}

fn run(sheet: &mut Sheet) {
    let folder = sheet.text("output_path");
    let name = folder.as_deref().and_then(|folder| folder.trim_end_matches('/').rsplit('/').next());
    sheet.set("run.name", name.unwrap_or("imported"));
    sheet.copy("output_path", "run.dir");
    match sheet.get("save_steps") {
        Some(_) => sheet.copy("save_steps", "checkpoint.every_steps"),
        None => sheet.note(
            "DiffSynth-Studio writes a checkpoint after each epoch; here one is written at the end of the run: set \
             checkpoint.every_epochs for more",
        ),
    }
    sheet.settled(
        "use `loongforge checkpoint export` to write a file that other programs load",
        &["remove_prefix_in_ckpt"],
    );
    sheet.settled(
        "TensorBoard's files and metrics.jsonl are always written",
        &["enable_tensorboard_log", "enable_csv_log"],
    );
    if sheet.is_true("enable_wandb_log") {
        sheet.set("log.wandb.project", sheet.text("wandb_project").unwrap_or_else(|| "DiffSynth-Studio".to_owned()));
        ["enable_wandb_log", "wandb_project"].iter().for_each(|key| sheet.arrived(key, "log.wandb.project"));
    }
    sheet.settled(NO_WANDB, &["wandb_project"]);
    sheet.missing(super::trainer::SWANLAB, &["enable_swanlab_log", "swanlab_project"]);
    sheet.missing("template models have no counterpart", &["template_model_id_or_path", "enable_lora_hot_loading"]);
}
