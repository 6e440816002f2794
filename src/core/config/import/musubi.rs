//! Translates musubi-tuner's commands that train Wan and Qwen-Image, by the options of `wan_train_network.py`,
//! `qwen_image_train_network.py` and `qwen_image_train.py`, and the TOML of the same options. Here is what is trained; data sets, noise
//! levels and the training are in files of their own.

use std::path::Path;

use serde_json::{Map, Value};

use super::diffsynth_model::{Named, experts};
use super::flags::Flags;
use super::sheet::{Fate, Sheet};
use super::shell::Word;
use super::trainer::REGULAR_EXPRESSION;
use super::{musubi_data, musubi_levels, musubi_train, toml};
use crate::files;

const LORA: &str = "model.foundation.lora";
const FILE: &str = "--config_file";
/// Keys whose values are shown to nobody.
const SECRETS: [&str; 2] = ["huggingface_token", "wandb_api_key"];
/// The smaller one of two models of one task.
const SMALLER: &str = "Wan-AI/Wan2.1-I2V-14B-480P";

/// Tasks of Wan that are translated, and hub ids of their models.
const TASKS: &[(&str, &str)] = &[
    ("t2v-1.3B", "Wan-AI/Wan2.1-T2V-1.3B"),
    ("t2v-14B", "Wan-AI/Wan2.1-T2V-14B"),
    ("t2i-14B", "Wan-AI/Wan2.1-T2V-14B"),
    ("i2v-14B", SMALLER),
    ("flf2v-14B", "Wan-AI/Wan2.1-FLF2V-14B-720P"),
    ("t2v-A14B", "Wan-AI/Wan2.2-T2V-A14B"),
    ("i2v-A14B", "Wan-AI/Wan2.2-I2V-A14B"),
];

/// Versions of Qwen-Image that are translated, and hub ids of their models.
const VERSIONS: &[(&str, &str)] = &[
    ("original", "Qwen/Qwen-Image"),
    ("edit", "Qwen/Qwen-Image-Edit"),
    ("edit-2509", "Qwen/Qwen-Image-Edit-2509"),
    ("edit-2511", "Qwen/Qwen-Image-Edit-2511"),
];

/// A function that translates the options of a script.
pub(super) type Read = fn(&mut Sheet);

/// Scripts that are translated.
const SCRIPTS: [(&str, Read); 3] =
    [("wan_train_network", wan), ("qwen_image_train_network", qwen_image), ("qwen_image_train", whole_qwen_image)];

/// Returns whether a word is a module of its programs.
pub(super) fn is_module(word: &str) -> bool {
    word.starts_with("musubi_tuner.")
}

/// Returns the name of a program without its folder or package.
fn script(program: &str) -> &str {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.strip_suffix(".py").unwrap_or_else(|| name.rsplit('.').next().unwrap_or(name))
}

/// Returns the options of a command that calls one of its scripts that train, with those of the TOML that it may name, and the keys of
/// its data sets, where these files are here.
pub(super) fn command(program: &str, before: &[Word], after: &[Word]) -> Option<Flags> {
    let name = script(program);
    let (file, options) = split_file(after);
    let flags = Flags::of_command(before, &options);
    let unsaid = flags.unsaid();
    let has = |key: &str| flags.fields.contains_key(key) || unsaid.contains(key);
    let trains = has("dit") && has("dataset_config");
    let is_known = SCRIPTS.iter().any(|(known, _)| *known == name) && (trains || file.is_some());
    // The others are refused by name.
    let is_another = trains && name.contains("_train");
    if !(is_known || is_another) {
        return None;
    }
    let flags = match file {
        Some(path) => {
            let path = if path.ends_with(".toml") { path } else { format!("{path}.toml") };
            let keys = files::read_text(Path::new(&path)).ok().and_then(|text| toml::read(&text).ok());
            flags.with_file(&path, keys.map(|keys| Flags::of_fields(flat(keys))))
        }
        None => flags,
    };
    Some(with_sets(flags))
}

/// Returns the TOML of options that a command may name, and its other words.
fn split_file(after: &[Word]) -> (Option<String>, Vec<Word>) {
    let mut words = after.to_vec();
    let found = after.iter().enumerate().find_map(|(at, word)| match word.text.strip_prefix(FILE)? {
        "" => after.get(at + 1).map(|next| (at..at + 2, next.text.clone(), next.is_said())),
        rest => rest.strip_prefix('=').map(|path| (at..at + 1, path.to_owned(), word.is_said())),
    });
    match found {
        Some((range, path, true)) => {
            words.drain(range);
            (Some(path), words)
        }
        _ => (None, words),
    }
}

/// Options without their sections, which only group them.
fn flat(fields: Map<String, Value>) -> Map<String, Value> {
    let name = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    fields.into_iter().map(|(key, value)| (name(&key), value)).collect()
}

/// Returns whether these are options in TOML.
pub(super) fn is_config(fields: &Map<String, Value>) -> bool {
    let has = |name: &str| fields.keys().any(|key| key.rsplit('.').next() == Some(name));
    has("dit") && has("dataset_config")
}

/// Returns the options of a TOML file, with the keys of the data sets that it names.
pub(super) fn of_fields(fields: Map<String, Value>) -> Flags {
    with_sets(Flags::of_fields(flat(fields)))
}

/// Adds the keys of the data sets that are named, where their file is here, and hides what is secret.
fn with_sets(mut flags: Flags) -> Flags {
    flags.rename("lr_warmup_steps", "warmup_steps");
    for key in ["warmup_steps", "lr_decay_steps"] {
        if let Some(value) = flags.fields.get_mut(key)
            && let Some(share) = value.as_str().and_then(percent)
        {
            *value = share.into();
        }
    }
    for key in SECRETS {
        if let Some(value) = flags.fields.get_mut(key) {
            *value = "not shown".into();
        }
    }
    let file = flags.fields.get("dataset_config").and_then(Value::as_str).and_then(musubi_data::of_file);
    flags.fields.extend(file.into_iter().flatten());
    flags
}

/// Reads `10%`, a part of all steps.
fn percent(text: &str) -> Option<f64> {
    text.strip_suffix('%')?.trim().parse::<f64>().ok().map(|percent| percent / 100.0).filter(|share| share.is_finite())
}

/// Returns what translates a run, by its script or, without one, by its options.
///
/// # Errors
/// It trains what has no counterpart: anything else in its place would train something that was not asked for.
pub(super) fn reader(program: &str, fields: &Map<String, Value>) -> Result<Read, String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let module = text("network_module").map(|module| module.rsplit('.').next().unwrap_or(module));
    let name = match (script(program), module) {
        ("", Some("lora_wan")) => SCRIPTS[0].0,
        ("", Some("lora_qwen_image")) => SCRIPTS[1].0,
        ("", _) => return Err(format!("it does not say which script reads it: import the command with {FILE}")),
        (name, _) => name,
    };
    let listed = |list: &[(&str, &str)]| list.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let Some((_, read)) = SCRIPTS.iter().find(|(known, _)| *known == name) else {
        let known = SCRIPTS.map(|(known, _)| known).join(", ");
        return Err(format!("musubi-tuner's script `{name}` has no counterpart: only {known} are translated"));
    };
    let (key, list, own) = match name.starts_with("wan") {
        true => ("task", TASKS, "lora_wan"),
        false => ("model_version", VERSIONS, "lora_qwen_image"),
    };
    if let Some(module) = module.filter(|module| name.ends_with("_network") && *module != own) {
        return Err(format!("musubi-tuner's network_module `{module}` has no counterpart: only `{own}` is translated"));
    }
    match text(key).filter(|value| !list.iter().any(|(known, _)| known.eq_ignore_ascii_case(value))) {
        Some(value) => Err(format!("musubi-tuner's {key} `{value}` has no counterpart: only {} are", listed(list))),
        None => Ok(*read),
    }
}

/// Returns the hub id behind a name, in small or capital letters.
fn id(list: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    list.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, id)| *id)
}

/// Translates the options of `wan_train_network.py`.
fn wan(sheet: &mut Sheet) {
    let file = sheet.text("dit").unwrap_or_default().to_lowercase();
    let task = sheet.text("task").unwrap_or_else(|| "t2v-14B".to_owned());
    let found = id(TASKS, &task).filter(|_| !sheet.is_unsaid("task"));
    let found = match found {
        Some(SMALLER) if file.contains("720") => Some("Wan-AI/Wan2.1-I2V-14B-720P"),
        found => found,
    };
    if found == Some(SMALLER) && !file.contains("480") {
        sheet.note("the file's name does not say whether it is the model of 480P or of 720P: model.load is the former");
    }
    let mut model = found.and_then(Named::known);
    if let Some(model) = model.as_mut().filter(|_| task.to_uppercase().ends_with("A14B")) {
        model.experts = one_of_two(sheet, musubi_levels::boundary(model), &file);
    }
    weights(sheet, model.as_ref(), &["task", "dit", "dit_high_noise"]);
    sheet.settled("each transformer has a pool of its own", &["offload_inactive_dit"]);
    sheet.settled("a sample has one noise level, which both shapes hold", &["force_v2_1_time_embedding"]);
    common(sheet, model.as_ref(), true);
}

/// Returns which of two transformers is trained, by the file's name or else by its noise levels; `None`: both.
fn one_of_two(sheet: &mut Sheet, boundary: f64, file: &str) -> Option<&'static str> {
    if sheet.get("dit_high_noise").is_some() || sheet.is_unsaid("dit_high_noise") {
        return None;
    }
    let [min, max] = musubi_levels::bounds(sheet);
    let by_levels = match () {
        () if min >= boundary => Some("high"),
        () if max <= boundary => Some("low"),
        () => None,
    };
    let found = experts(file).or(by_levels);
    if found.is_none() {
        sheet.note(
            "the command trains one of two transformers and does not say which: set model.experts to high or low; \
             without the key one run trains both",
        );
    }
    found
}

/// Translates the options of `qwen_image_train_network.py`.
fn qwen_image(sheet: &mut Sheet) {
    of_qwen_image(sheet, true);
}

/// Translates the options of `qwen_image_train.py`.
fn whole_qwen_image(sheet: &mut Sheet) {
    of_qwen_image(sheet, false);
}

/// Translates the options of both scripts of Qwen-Image.
fn of_qwen_image(sheet: &mut Sheet, has_adapters: bool) {
    let file = sheet.text("dit").unwrap_or_default();
    let version = match sheet.text("model_version") {
        Some(version) => version,
        None if sheet.is_true("edit_plus") => "edit-2509".to_owned(),
        None if sheet.is_true("edit") => "edit".to_owned(),
        None => "original".to_owned(),
    };
    let found = id(VERSIONS, &version).filter(|_| !sheet.is_unsaid("model_version"));
    let found = match found {
        Some("Qwen/Qwen-Image") if file.contains("2512") => Some("Qwen/Qwen-Image-2512"),
        found => found,
    };
    let mut model = found.and_then(Named::known);
    if let (Some(model), Some((folder, _))) = (&mut model, file.split_once("/transformer/")) {
        model.load = folder.to_owned();
        model.is_local = false;
    }
    if sheet.get("model_version").is_some() {
        sheet.settled("model_version takes precedence", &["edit", "edit_plus"]);
    }
    weights(sheet, model.as_ref(), &["model_version", "edit", "edit_plus", "dit"]);
    sheet.missing("config.json in model.load determines the layers", &["num_layers"]);
    sheet.missing("layers of pictures are not supported", &["remove_first_image_from_target"]);
    common(sheet, model.as_ref(), has_adapters);
}

fn weights(sheet: &mut Sheet, model: Option<&Named>, keys: &[&str]) {
    match model {
        Some(model) => {
            sheet.set("model.load", model.load.as_str());
            if let Some(experts) = model.experts {
                sheet.set("model.experts", experts);
            }
            if model.is_local {
                sheet.note(
                    "model.load is set to the hub's Diffusers folder of the model, whose other networks are read as \
                     well; if --dit is a model of your own, name a folder in Diffusers' layout with its weights",
                );
            }
            keys.iter().for_each(|key| sheet.arrived(key, "model.load"));
        }
        None => sheet.missing("name a folder in Diffusers' layout, or its hub id, in model.load", keys),
    }
    sheet.settled("it comes from the model's folder", &["vae", "t5", "clip", "text_encoder"]);
}

fn common(sheet: &mut Sheet, model: Option<&Named>, has_adapters: bool) {
    let repeats = musubi_data::read(sheet, model);
    musubi_levels::read(sheet, model);
    match has_adapters {
        true => adapters(sheet),
        false => sheet.settled_all(
            "all weights of the transformer are trained",
            &["network_", "scale_weight_norms", "dim_from_weights"],
        ),
    }
    let merged = "merge them into the model that model.load names, with `loongforge checkpoint export-hf`";
    sheet.missing(merged, &["base_weights", "base_weights_multiplier"]);
    musubi_train::read(sheet, repeats, has_adapters);
}

/// Translates the options of adapters: those of all layers of attention and feed-forwards, which is the default here.
fn adapters(sheet: &mut Sheet) {
    let ours = |name: &str| format!("{LORA}.{name}");
    if sheet.get("network_weights").is_some() {
        sheet.copy("network_weights", &ours("adapter"));
        let own = "it is that of the adapter that is continued";
        sheet.settled(own, &["network_dim", "network_alpha", "dim_from_weights"]);
    } else {
        // Their defaults.
        sheet.set(&ours("r"), 4);
        sheet.set(&ours("alpha"), 1.0);
        sheet.copy_number("network_dim", &ours("r"));
        sheet.copy_number("network_alpha", &ours("alpha"));
    }
    sheet.arrived("network_module", LORA);
    sheet.copy_number("network_dropout", &ours("dropout"));
    for (name, value) in musubi_train::assignments(sheet, "network_args") {
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
        let fate = match (name.as_str(), number) {
            ("loraplus_lr_ratio", Some(ratio)) => {
                sheet.set(&ours("loraplus_lr_ratio"), ratio);
                continue;
            }
            ("verbose", _) => Fate::Settled("it prints more"),
            ("exclude_patterns" | "include_patterns", _) => Fate::Missing(REGULAR_EXPRESSION),
            ("loraplus_lr_ratio", None) => Fate::Missing("it must be a number"),
            _ => Fate::Missing("of a network's arguments only loraplus_lr_ratio has a counterpart"),
        };
        sheet.tell(&format!("network_args {name}"), &Value::from(value), fate);
    }
    match sheet.has_set(&ours("loraplus_lr_ratio")) {
        true => sheet.arrived("network_args", &ours("loraplus_lr_ratio")),
        false => sheet.settled("each of them is told by itself", &["network_args"]),
    }
    sheet.missing("name the adapter in model.foundation.lora.adapter", &["dim_from_weights"]);
    sheet.missing("weights of adapters are not scaled", &["scale_weight_norms"]);
}
