//! Adapters of a diffusion transformer in the single files that other programs load.

use super::keys::{ALPHA, COMFY, KOHYA, NETWORK};
use super::names::{PREFIX, SECOND};
use crate::model::Naming;
use crate::params::ADAPTER_PARTS;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// The name of the file that Diffusers looks for in a folder.
pub const DIFFUSERS_LORA_FILE: &str = "pytorch_lora_weights.safetensors";

/// The note in which Diffusers keeps PEFT's settings.
pub(super) const METADATA: &str = "lora_adapter_metadata";

/// The prefix of the names of a text tower.
pub(super) const TEXT: &str = "text_encoder.";

/// The form of a single file of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraForm {
    /// `transformer.PATH.lora_A.weight`; PEFT's settings are a note.
    Diffusers,
    /// `diffusion_model.PATH.lora_A.weight`, of Wan with the names of its first release.
    ComfyUi,
    /// `lora_unet_PATH.lora_down.weight` with `_` for dots, and `.alpha`.
    Kohya,
}

/// An adapter of one linear map.
pub(super) struct Written {
    /// PEFT's path.
    pub path: String,
    pub a: Tensor,
    pub b: Tensor,
    /// The factor of `B A x`.
    pub scale: f64,
}

impl Written {
    fn rank(&self) -> i64 {
        self.a.size()[0]
    }

    /// Returns B times the factor, in its own type.
    fn folded(&self) -> Tensor {
        match self.scale == 1.0 {
            true => self.b.shallow_clone(),
            false => (self.b.to_kind(Kind::Float) * self.scale).to_kind(self.b.kind()),
        }
    }
}

/// The tensors of a file, and Diffusers' note.
pub(super) type FormTensors = (Vec<(String, Tensor)>, Option<String>);

impl LoraForm {
    /// Returns the contents of a file.
    pub(super) fn tensors(self, maps: &[Written]) -> Result<FormTensors, String> {
        let mut tensors = Vec::new();
        for map in maps {
            let name = self.name(&map.path)?;
            match self {
                Self::Kohya => {
                    let alpha = Tensor::from(map.scale * map.rank() as f64).to_kind(Kind::Float);
                    let named = [(".lora_down.weight", &map.a), (".lora_up.weight", &map.b), (ALPHA, &alpha)];
                    tensors.extend(named.map(|(end, tensor)| (format!("{name}{end}"), tensor.shallow_clone())));
                }
                Self::Diffusers | Self::ComfyUi => {
                    tensors.push((format!("{name}{}", ADAPTER_PARTS[0]), map.a.shallow_clone()));
                    tensors.push((format!("{name}{}", ADAPTER_PARTS[1]), map.folded()));
                }
            }
        }
        Ok((tensors, (self == Self::Diffusers).then(|| metadata(maps).to_string())))
    }

    /// Returns the prefix of the names of a map's tensors.
    fn name(self, path: &str) -> Result<String, String> {
        let (network, inner) = match path.strip_prefix(SECOND) {
            Some(inner) => (SECOND, inner),
            None => (NETWORK, path),
        };
        if self == Self::Diffusers {
            let is_encoder = path.starts_with(TEXT);
            return Ok(if is_encoder { path.to_owned() } else { format!("{network}{inner}") });
        }
        let is_qwen = inner.starts_with("transformer_blocks.");
        let theirs = if is_qwen { Some(inner.to_owned()) } else { Naming::Wan.from_diffusers(inner) };
        let theirs = theirs.ok_or_else(|| format!("{path} has no name in files of this format"))?;
        Ok(match self {
            Self::Kohya => format!("{KOHYA}{}", theirs.replace('.', "_")),
            _ => format!("{COMFY}{theirs}"),
        })
    }
}

/// Returns PEFT's settings of each network, as Diffusers keeps them: the factor is in the weights.
fn metadata(maps: &[Written]) -> Value {
    let mut networks: BTreeMap<&str, Vec<(&str, i64)>> = BTreeMap::new();
    for map in maps {
        let (network, inner) = match map.path.split_once('.') {
            Some((network, inner)) if [SECOND, TEXT].iter().any(|it| it.starts_with(network)) => (network, inner),
            _ => ("transformer", map.path.as_str()),
        };
        networks.entry(network).or_default().push((inner, map.rank()));
    }
    let mut json = Map::new();
    for (network, maps) in networks {
        let r = maps[0].1;
        let others: Map<String, Value> = maps
            .iter()
            .filter(|(_, rank)| *rank != r)
            .map(|(path, rank)| (super::pattern::exactly(path), json!(rank)))
            .collect();
        let paths: Vec<&str> = maps.iter().map(|(path, _)| *path).collect();
        let entries = [
            ("r", json!(r)),
            ("lora_alpha", json!(r)),
            ("rank_pattern", Value::Object(others.clone())),
            ("alpha_pattern", Value::Object(others)),
            ("target_modules", json!(paths)),
            ("use_rslora", json!(false)),
            ("bias", json!("none")),
        ];
        json.extend(entries.map(|(key, value)| (format!("{network}.{key}"), value)));
    }
    Value::Object(json)
}

/// Returns the settings in the notes of one file, or of the files of two transformers, of which the second may call its own as the first.
///
/// # Errors
/// Only one of two files has a note: the other one's factors would be taken from it.
pub(super) fn settings_of(notes: &[Option<&str>]) -> Result<Option<Value>, String> {
    match notes {
        [Some(one)] => Ok(settings(one)),
        [Some(high), Some(low)] => Ok(joined(high, low).and_then(|note| settings(&note))),
        _ if notes.iter().all(Option::is_none) => Ok(None),
        _ => Err(format!(
            "of the two files in this folder, only one has the settings of its adapters ({METADATA}): name one file \
             with both transformers instead"
        )),
    }
}

/// Returns one note for the notes of two transformers' files.
fn joined(high: &str, low: &str) -> Option<String> {
    let Ok(Value::Object(mut all)) = serde_json::from_str(high) else { return None };
    let Ok(Value::Object(own)) = serde_json::from_str(low) else { return None };
    for (key, value) in own {
        let of_second = key.strip_prefix(NETWORK).map(|inner| format!("{SECOND}{inner}"));
        all.insert(of_second.unwrap_or(key), value);
    }
    Some(Value::Object(all).to_string())
}

/// Returns the settings in Diffusers' note, as PEFT has them for one model: those of the transformer, and the alphas of other networks by
/// patterns.
fn settings(note: &str) -> Option<Value> {
    let Ok(Value::Object(all)) = serde_json::from_str(note) else { return None };
    let mut networks: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (key, value) in &all {
        let (network, key) = key.split_once('.')?;
        networks.entry(network).or_default().insert(key.to_owned(), value.clone());
    }
    let first = networks.get("transformer").or(networks.values().next())?;
    let (mut settings, mut alphas) = (first.clone(), Map::new());
    // The first pattern that matches counts, and the transformer's have no beginning.
    let (of_transformer, others): (Vec<_>, Vec<_>) =
        networks.iter().partition(|(network, _)| **network == "transformer");
    for (network, own) in others.into_iter().chain(of_transformer) {
        let begin = if *network == "transformer" { String::new() } else { format!("{network}\\.") };
        for (pattern, alpha) in own.get("alpha_pattern").and_then(Value::as_object).into_iter().flatten() {
            let pattern = match pattern.strip_prefix('^') {
                Some(whole) => format!("^{begin}{whole}"),
                None if begin.is_empty() => pattern.clone(),
                None => format!("^{begin}(?:.*\\.)?(?:{pattern})"),
            };
            alphas.insert(pattern, alpha.clone());
        }
        if let Some(alpha) = own.get("lora_alpha").filter(|_| !begin.is_empty()) {
            alphas.insert(format!("^{begin}.*"), alpha.clone());
        }
    }
    settings.insert("alpha_pattern".to_owned(), Value::Object(alphas));
    Some(Value::Object(settings))
}

/// Returns PEFT's name of the first part of a map's adapter without PEFT's beginning and its end.
pub(super) fn path_of(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.strip_suffix(ADAPTER_PARTS[0])
}
