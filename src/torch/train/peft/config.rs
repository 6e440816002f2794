//! The settings of `adapter_config.json`.

use super::error::AdapterError;
use super::pattern::Patterns;
use crate::params::LoraConfig;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

pub const CONFIG: &str = "adapter_config.json";

/// The settings of `adapter_config.json` that are used here. The tensors tell which modules have adapters, and of what rank.
pub struct AdapterConfig {
    /// The settings of the modules that no pattern names.
    pub lora: LoraConfig,
    /// `alpha` of the modules that a pattern names.
    alpha_pattern: Patterns,
    /// Names or endings of the parameters that have adapters of their own: stacks, and weights of linear maps.
    pub target_parameters: Vec<String>,
}

impl AdapterConfig {
    /// Returns the adapter of rank `r` beside the module at this path of the module tree, or beside this parameter.
    ///
    /// # Errors
    /// A pattern cannot be read as a regular expression.
    pub fn lora_of(&self, path: &str, r: i64) -> Result<LoraConfig, AdapterError> {
        let alpha = self.alpha_pattern.get(path)?.unwrap_or(self.lora.alpha);
        Ok(LoraConfig { r, alpha, ..self.lora.clone() })
    }

    /// Returns whether the parameter of this name in the module tree has an adapter of its own.
    pub fn is_target_parameter(&self, name: &str) -> bool {
        let mut targets = self.target_parameters.iter();
        targets
            .any(|target| name.strip_suffix(target.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    }
}

/// Reads what an adapter's folder says of it.
///
/// # Errors
/// The file is missing, of another method than LoRA, or asks for what is not implemented.
pub fn read_adapter_config(folder: &Path) -> Result<AdapterConfig, AdapterError> {
    let path = &folder.join(CONFIG);
    let json = read_json(path)?;
    if json["peft_type"] != "LORA" {
        let reason = format!("peft_type is {}", json["peft_type"]);
        return Err(AdapterError::Config { path: path.to_owned(), reason });
    }
    understand(path, &json)
}

/// Returns the settings in `json`, which the file at `path` has.
///
/// # Errors
/// They ask for what is not implemented, or a value has another type than PEFT's.
pub(super) fn understand(path: &Path, json: &Value) -> Result<AdapterConfig, AdapterError> {
    let wrong = |reason: String| AdapterError::Config { path: path.to_owned(), reason };
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    for key in [
        "layer_replication",
        "fan_in_fan_out",
        "lora_bias",
        "trainable_token_indices",
        "alora_invocation_tokens",
        "use_qalora",
        "use_bdlora",
        "monteclora_config",
        "kasa_config",
    ] {
        if !is_unset(&json[key]) {
            return Err(wrong(format!("{key} is {}, which is not implemented", json[key])));
        }
    }
    // Others take what they begin with out of the base: such adapters do not stand beside the weights in its files.
    let init = json["init_lora_weights"].as_str();
    if let Some(name) = init.filter(|name| !["gaussian", "eva", "orthogonal"].contains(name)) {
        let help = "have PEFT convert it (`path_initial_model_for_weight_conversion` of `save_pretrained`)";
        return Err(wrong(format!(
            "init_lora_weights is {name:?}, which needs a changed base instead of the one in the files: {help}"
        )));
    }
    if !is_unset(&json["bias"]) && json["bias"] != "none" {
        return Err(wrong(format!("bias is {}; supported: \"none\"", json["bias"])));
    }
    let r = json["r"].as_i64().filter(|r| *r > 0).ok_or_else(|| wrong("r must be a positive integer".into()))?;
    // A default in place of a value that cannot be read would be another adapter.
    let must_be = |key: &str, what: &str| wrong(format!("{key} is {}, but must be {what}", json[key]));
    let flag = |key: &str| match &json[key] {
        Value::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| must_be(key, "true or false")),
    };
    let number = |key: &str, default: f64| match &json[key] {
        Value::Null => Ok(default),
        value => value.as_f64().ok_or_else(|| must_be(key, "a number")),
    };
    let dropout = number("lora_dropout", 0.0)?;
    if !(0.0..1.0).contains(&dropout) {
        return Err(must_be("lora_dropout", "at least 0 and below 1"));
    }
    let target_parameters = match &json["target_parameters"] {
        Value::Null => Ok(Vec::new()),
        list => Vec::deserialize(list).map_err(|_| must_be("target_parameters", "a list of names")),
    };
    Ok(AdapterConfig {
        lora: LoraConfig {
            r,
            alpha: number("lora_alpha", 8.0)?,
            dropout,
            use_rslora: flag("use_rslora")?,
            use_dora: flag("use_dora")?,
        },
        alpha_pattern: Patterns::read(path, json, "alpha_pattern")?,
        target_parameters: target_parameters?,
    })
}

fn read_json(path: &Path) -> Result<Value, AdapterError> {
    let text =
        loongforge_core::files::read_text(path).map_err(|source| AdapterError::Io { path: path.to_owned(), source })?;
    let wrong = |error: serde_json::Error| AdapterError::Config { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_str(&text).map_err(wrong)
}

/// Describes where the base of adapters is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterBase {
    /// A folder, or an id of the hub.
    pub name: String,
    /// The revision in the hub's repository.
    pub revision: Option<String>,
}

impl AdapterBase {
    /// Returns the base that was loaded: a folder of the hub's cache is told by its id, as other machines know it.
    pub fn of(folder: &str) -> Self {
        let mut parts = Path::new(folder).iter().rev().map(|part| part.to_str().unwrap_or_default());
        let [commit, snapshots, repo] = [(); 3].map(|()| parts.next().unwrap_or_default());
        match repo.strip_prefix("models--") {
            Some(id) if snapshots == "snapshots" => {
                Self { name: id.replacen("--", "/", 1), revision: Some(commit.to_owned()) }
            }
            _ => Self { name: folder.to_owned(), revision: None },
        }
    }
}

/// Returns the base that the adapters in `folder` name, a folder or `org/name@revision`; `None` where they name none.
///
/// # Errors
/// Their config cannot be read.
pub fn adapter_base(folder: &Path) -> Result<Option<String>, AdapterError> {
    let json = read_json(&folder.join(CONFIG))?;
    let name = json["base_model_name_or_path"].as_str().filter(|name| !name.is_empty());
    Ok(name.map(|name| match json["revision"].as_str() {
        Some(revision) => format!("{name}@{revision}"),
        None => name.to_owned(),
    }))
}
