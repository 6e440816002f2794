//! The policy of a run of lerobot: where its weights are, which keys of its config are ours, and which are those of `config.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::sheet::Sheet;
use super::trainer::REGULAR_EXPRESSION;
use crate::files;

/// A policy that is implemented here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fastwam,
    Groot,
    Pi0,
    Pi05,
    Pi0Fast,
    Smolvla,
    Xvla,
}

/// The kinds with their names in lerobot, and parts of names by which a folder or hub id shows one; of two that begin alike the longer
/// comes first.
const KINDS: [(Kind, &str, &[&str]); 7] = [
    (Kind::Smolvla, "smolvla", &["smolvla"]),
    (Kind::Pi0Fast, "pi0_fast", &["pi0_fast", "pi0fast", "pi0-fast"]),
    (Kind::Pi05, "pi05", &["pi05", "pi0.5", "pi0_5"]),
    (Kind::Pi0, "pi0", &["pi0"]),
    (Kind::Xvla, "xvla", &["xvla", "x-vla"]),
    (Kind::Groot, "groot", &["groot", "gr00t"]),
    (Kind::Fastwam, "fastwam", &["fastwam"]),
];

/// Keys of a policy's config by which a run changes what is trained, or its shape; a `train_config.json` may have others than
/// the `config.json` that the run began with.
const CHANGES: [&str; 18] = [
    "chunk_size",
    "empty_cameras",
    "freeze_language_encoder",
    "freeze_video_expert",
    "freeze_vision_encoder",
    "max_action_dim",
    "max_state_dim",
    "n_action_steps",
    "tokenizer_max_length",
    "train_expert_only",
    "train_policy_transformer",
    "train_soft_prompts",
    "train_state_proj",
    "tune_diffusion_model",
    "tune_llm",
    "tune_projector",
    "tune_top_llm_layers",
    "tune_visual",
];

const LORA: &str = "model.foundation.lora";

impl Kind {
    /// Returns its name in lerobot.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("policy", |(_, name, _)| name)
    }

    /// Returns the maps that lerobot gives adapters to unless the command names others.
    fn adapted(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Pi05 => Some(&[
                "*.gemma_expert.*.self_attn.q_proj",
                "*.gemma_expert.*.self_attn.v_proj",
                "action_in_proj",
                "action_out_proj",
            ]),
            Self::Pi0 => Some(&[
                "*.gemma_expert.*.self_attn.q_proj",
                "*.gemma_expert.*.self_attn.v_proj",
                "state_proj",
                "action_in_proj",
                "action_out_proj",
                "action_time_mlp_in",
                "action_time_mlp_out",
            ]),
            Self::Smolvla => Some(&[
                "*.lm_expert.*.q_proj",
                "*.lm_expert.*.v_proj",
                "state_proj",
                "action_in_proj",
                "action_out_proj",
                "action_time_mlp_in",
                "action_time_mlp_out",
            ]),
            _ => None,
        }
    }
}

/// Returns a message about training that has no counterpart; `None` where it has one.
pub(super) fn refused(fields: &Map<String, Value>) -> Option<String> {
    let known = "only pi05, pi0, pi0_fast, smolvla, groot, xvla and fastwam are translated";
    if fields.iter().any(|(key, value)| key.starts_with("reward_model") && !value.is_null()) {
        return Some("lerobot's reward models have no counterpart: only policies are translated".to_owned());
    }
    let kind = kind_of(fields)?;
    let is_known = KINDS.iter().any(|(_, name, _)| *name == kind);
    (!is_known).then(|| format!("lerobot's policy `{kind}` has no counterpart: {known}"))
}

/// Returns the policy's kind, where it shows.
pub(super) fn kind(sheet: &Sheet) -> Option<Kind> {
    let name = kind_of(sheet.fields())?;
    KINDS.iter().find(|(_, known, _)| *known == name).map(|(kind, ..)| *kind)
}

/// Returns the name of the kind that a command, the `config.json` of a folder that is here, or the name of a folder gives.
fn kind_of(fields: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    if let Some(kind) = text("policy.type").filter(|kind| !kind.is_empty()) {
        return Some(kind.to_owned());
    }
    let path = text("policy.path").or(text("policy.pretrained_path"))?;
    let config = files::read_text(&Path::new(path).join("config.json")).ok();
    let config: Option<Value> = config.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(kind) = config.as_ref().and_then(|config| config["type"].as_str()) {
        return Some(kind.to_owned());
    }
    let path = path.to_lowercase();
    let found = KINDS.iter().find(|(.., parts)| parts.iter().any(|part| path.contains(part)));
    found.map(|(_, name, _)| (*name).to_owned())
}

/// Translates the keys of the policy; `set` is the path of the data.
pub(super) fn read(sheet: &mut Sheet, kind: Option<Kind>, is_file: bool, set: Option<&str>) {
    weights(sheet, kind);
    if kind == Some(Kind::Fastwam) {
        // Tokens of its frames.
        sheet.set("data.pack.max_tokens", 8192);
    }
    precision(sheet, kind);
    sheet.with("policy.device", "device", |value| match value.as_str() {
        Some("mps") | None => Err("device must be cpu or cuda"),
        Some(_) => Ok(value.clone()),
    });
    for key in ["policy.gradient_checkpointing", "policy.use_gradient_checkpointing"] {
        let recompute = if sheet.is_true(key) { "all" } else { "none" };
        sheet.with(key, "model.foundation.recompute", |_| Ok(recompute.into()));
    }
    normalization(sheet, kind);
    // A config that has none is as the policy was published.
    sheet.copy_all(&[
        ("policy.use_relative_actions", "policy.relative_actions"),
        ("policy.relative_exclude_joints", "policy.exclude"),
        ("policy.rtc_training_max_delay", "policy.max_delay"),
    ]);
    if let Some(tag) = sheet.text("policy.embodiment_tag").filter(|_| kind == Some(Kind::Groot)) {
        let robot = set.map_or_else(|| json!({}), |set| json!({ "sets": [set] }));
        let robots = Map::from_iter([(tag, robot)]);
        sheet.set("policy.embodiments", robots);
        sheet.arrived("policy.embodiment_tag", "policy.embodiments");
    }
    adapters(sheet, kind);
    sheet.missing(
        "`loongforge checkpoint push` uploads a checkpoint",
        &["policy.repo_id", "policy.private", "policy.tags", "policy.license"],
    );
    sheet.settled("nothing is uploaded during a run", &["policy.push_to_hub"]);
    sheet.settled("operators are compiled already", &["policy.compile_model", "policy.compile_mode"]);
    sheet.settled(
        "the data and config.json determine it",
        &["policy.input_features", "policy.output_features", "policy.action_feature_names"],
    );
    sheet.settled("it applies only at inference: see real-time chunking in docs/policies.md", &["policy.rtc_config"]);
    for key in sheet.begin_with("policy.") {
        let name = key["policy.".len()..].to_owned();
        // Read with the rates.
        if name.starts_with("optimizer_")
            || name.starts_with("scheduler_")
            || ["warmup_ratio", "max_steps"].contains(&name.as_str())
        {
            continue;
        }
        match is_file && !CHANGES.contains(&name.as_str()) {
            true => sheet.settled(
                "it comes from config.json in model.load; put this run's changes into model.overrides",
                &[&key],
            ),
            false => sheet.copy(&key, &format!("model.overrides.{name}")),
        }
    }
}

fn weights(sheet: &mut Sheet, kind: Option<Kind>) {
    let keys = ["policy.path", "policy.pretrained_path", "policy.base_model_path"];
    let revision = sheet.text("policy.pretrained_revision").map(|revision| format!("@{revision}")).unwrap_or_default();
    match keys.iter().find_map(|key| sheet.text(key)) {
        Some(path) => {
            sheet.set("model.load", format!("{path}{revision}"));
            keys.iter().chain(&["policy.pretrained_revision"]).for_each(|key| sheet.arrived(key, "model.load"));
            if kind.is_none() {
                sheet.note(
                    "the kind of policy cannot be determined: learning rate, optimizer and schedule are in its \
                     config.json (`optimizer_lr`, `scheduler_warmup_steps`, …): set train.lr and the others",
                );
            }
        }
        None => sheet.note(
            "the policy starts without its own weights: set model.load to a folder with its config.json and \
             tokenizer, and model.weights to random",
        ),
    }
    sheet.settled("it comes from config.json in model.load", &["policy.type"]);
}

fn precision(sheet: &mut Sheet, kind: Option<Kind>) {
    let mixed = sheet.text("accelerator.mixed_precision").or(sheet.text("mixed_precision"));
    let own = sheet.text("policy.dtype").or(sheet.text("policy.torch_dtype"));
    // GR00T computes in it unless told otherwise.
    let autocast = match kind {
        Some(Kind::Groot) => sheet.get("policy.use_bf16") != Some(&Value::Bool(false)),
        _ => sheet.is_true("policy.use_amp"),
    };
    let is_bf16 = mixed.as_deref() == Some("bf16") || own.as_deref() == Some("bfloat16") || autocast;
    sheet.set("train.precision", if is_bf16 { "bf16" } else { "float32" });
    let is_fp16 = |text: &Option<String>| text.as_deref().is_some_and(|text| ["fp16", "float16"].contains(&text));
    for (key, is_half) in [
        ("accelerator.mixed_precision", is_fp16(&mixed)),
        ("mixed_precision", is_fp16(&mixed)),
        ("policy.dtype", is_fp16(&own)),
    ] {
        match is_half {
            true => sheet.missing("train.precision must be bf16 or float32", &[key]),
            false => sheet.arrived(key, "train.precision"),
        }
    }
    ["policy.torch_dtype", "policy.use_amp", "policy.use_bf16"]
        .iter()
        .for_each(|key| sheet.arrived(key, "train.precision"));
}

/// Numbers of states and actions; pictures are as the policy was published.
fn normalization(sheet: &mut Sheet, kind: Option<Kind>) {
    if kind == Some(Kind::Groot) {
        // lerobot's class says mean and deviation, which its processor does not take.
        let why = "GR00T's processor normalizes by the least and greatest values, whatever it says";
        return sheet.settled(why, &["policy.normalization_mapping"]);
    }
    let Some(map) = sheet.get("policy.normalization_mapping").and_then(Value::as_object).cloned() else { return };
    let ours = |theirs: &Value| match theirs.as_str().unwrap_or_default() {
        "IDENTITY" => Some("identity"),
        "MEAN_STD" => Some("mean_std"),
        "MIN_MAX" => Some("min_max"),
        "QUANTILES" => Some("quantiles"),
        "QUANTILE10" => Some("quantile10"),
        _ => None,
    };
    let pairs = [("STATE", "policy.state_normalization"), ("ACTION", "policy.action_normalization")];
    let found: Vec<(&str, Option<&str>)> =
        pairs.iter().filter_map(|(key, to)| Some((*to, ours(map.get(*key)?)))).collect();
    if found.iter().any(|(_, name)| name.is_none()) {
        let why = "policy.state_normalization and policy.action_normalization must be identity, mean_std, min_max, quantiles or quantile10";
        return sheet.missing(why, &["policy.normalization_mapping"]);
    }
    found.into_iter().for_each(|(to, name)| sheet.set(to, name));
    sheet.arrived("policy.normalization_mapping", "policy.state_normalization, policy.action_normalization");
}

fn adapters(sheet: &mut Sheet, kind: Option<Kind>) {
    let others: Vec<String> = sheet.begin_with("peft.");
    let is_lora = sheet.text("peft.method_type").is_none_or(|method| method.eq_ignore_ascii_case("lora"));
    let adapted = kind.and_then(Kind::adapted);
    if others.is_empty() {
        return sheet.settled("`peft` determines it", &["policy.use_peft"]);
    }
    if !is_lora {
        return sheet.missing(
            "only LoRA adapters are supported (model.foundation.lora)",
            &others.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    sheet.freeze_pictures();
    sheet.set(&format!("{LORA}.r"), sheet.number("peft.r").unwrap_or(16.0) as u64);
    // PEFT's own.
    sheet.set(&format!("{LORA}.alpha"), sheet.number("peft.lora_alpha").unwrap_or(8.0));
    sheet.arrived("peft.r", &format!("{LORA}.r"));
    sheet.arrived("peft.lora_alpha", &format!("{LORA}.alpha"));
    sheet.arrived("peft.method_type", LORA);
    let is_pattern = |text: &str| text.contains(['(', '|', '\\', '[']) || text.contains(".*");
    let targets = match sheet.get("peft.target_modules") {
        Some(Value::String(text)) if !is_pattern(text) => {
            Some(json!(text.split(',').map(str::trim).collect::<Vec<_>>()))
        }
        Some(Value::Array(list)) => Some(list.clone().into()),
        Some(_) => None,
        None => adapted.map(|names| json!(names)),
    };
    match targets {
        Some(targets) => {
            sheet.set(&format!("{LORA}.target_modules"), targets);
            sheet.arrived("peft.target_modules", &format!("{LORA}.target_modules"));
        }
        None => sheet.missing(REGULAR_EXPRESSION, &["peft.target_modules"]),
    }
    if sheet.get("peft.full_training_modules").is_some_and(|list| *list == json!([])) {
        sheet.settled("it is empty", &["peft.full_training_modules"]);
    }
    sheet.copy("peft.full_training_modules", &format!("{LORA}.modules_to_save"));
    sheet.settled("`peft` determines it", &["policy.use_peft"]);
}
