//! The names of the tensors of adapters in files. PEFT's folders have the names that we go by; files of diffusion models have others:
//! Diffusers' (`transformer.PATH.lora_A.weight`), ComfyUI's (`diffusion_model.PATH…`, PATH as in the model's first release) and kohya's
//! (`lora_unet_PATH.lora_down.weight` with `_` for every dot, and `.alpha`); DiffSynth-Studio's begin with the transformer's blocks
//! (`blocks.0.self_attn.q.lora_A.default.weight`). One table tells them apart.

use super::names::{PREFIX, SECOND};
use crate::model::{COMFY_PREFIX, Naming};
use crate::params::ADAPTER_PARTS;
use std::collections::BTreeMap;

/// The prefix of the names of a transformer's tensors.
pub(super) const NETWORK: &str = "transformer.";
/// The prefix of names in files that ComfyUI loads, and in kohya's.
pub(super) const COMFY: &str = "diffusion_model.";
pub(super) const KOHYA: &str = "lora_unet_";

/// Beginnings of names in files, the longest first of those that begin alike, and what PEFT has instead behind its own.
const BEGINNINGS: [(&str, &str); 7] = [
    ("base_model.model.transformer.", ""),
    (PREFIX, ""),
    (COMFY_PREFIX, ""),
    (COMFY, ""),
    (SECOND, SECOND),
    ("text_encoder.", "text_encoder."),
    (NETWORK, ""),
];

/// The prefixes of names in files of DiffSynth-Studio, of Wan and of Qwen-Image.
const BLOCKS: [&str; 2] = ["blocks.", "transformer_blocks."];

/// Ends of names in files, and PEFT's.
const ENDS: [(&str, &str); 10] = [
    (".lora_A.weight", ADAPTER_PARTS[0]),
    (".lora_B.weight", ADAPTER_PARTS[1]),
    (".lora_A.default.weight", ADAPTER_PARTS[0]),
    (".lora_B.default.weight", ADAPTER_PARTS[1]),
    (".lora_down.weight", ADAPTER_PARTS[0]),
    (".lora_up.weight", ADAPTER_PARTS[1]),
    (".lora.down.weight", ADAPTER_PARTS[0]),
    (".lora.up.weight", ADAPTER_PARTS[1]),
    (".lora_magnitude_vector", ADAPTER_PARTS[2]),
    (ALPHA, ALPHA),
];

/// The end of the name of a map's alpha, a scalar.
pub(super) const ALPHA: &str = ".alpha";

/// Names in a file by the names that PEFT has for the same.
#[derive(Default)]
pub(super) struct Keys {
    /// `None`: the file has PEFT's names.
    others: Option<Others>,
}

#[derive(Default)]
struct Others {
    by_name: BTreeMap<String, String>,
    /// The names by the path with `_` for every dot, and the end.
    flat: BTreeMap<String, String>,
}

impl Keys {
    /// Reads the names of a file that may have any of the forms.
    ///
    /// # Errors
    /// Two of them are the same map's.
    pub fn of<'a>(names: impl Iterator<Item = &'a String>) -> Result<Self, String> {
        let mut others = Others::default();
        for name in names {
            let Some((begin, end)) = ENDS.iter().find_map(|(end, ours)| Some((name.strip_suffix(end)?, ours))) else {
                continue;
            };
            let (map, ours) = match begin.strip_prefix(KOHYA) {
                Some(flat) => (&mut others.flat, format!("{flat}{end}")),
                None => match canonical(begin) {
                    Some(path) => (&mut others.by_name, format!("{PREFIX}{path}{end}")),
                    None => continue,
                },
            };
            if let Some(other) = map.insert(ours, name.clone()) {
                return Err(format!("{other} and {name} are the same tensor"));
            }
        }
        Ok(Self { others: Some(others) })
    }

    /// Returns the file's name of what PEFT calls `name`; it may have none of this name.
    pub fn find<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let Some(Others { by_name, flat }) = &self.others else { return Some(name) };
        if let Some(found) = by_name.get(name) {
            return Some(found);
        }
        let end = ADAPTER_PARTS.into_iter().chain([ALPHA]).find(|end| name.ends_with(end))?;
        let path = name.strip_prefix(PREFIX)?.strip_suffix(end)?;
        let original = match path.strip_prefix(SECOND) {
            Some(inner) => Naming::Wan.from_diffusers(inner).map(|inner| format!("{SECOND}{inner}")),
            None => Naming::Wan.from_diffusers(path),
        };
        let paths = [Some(path), original.as_deref()].into_iter().flatten();
        paths.into_iter().find_map(|path| flat.get(&format!("{}{end}", path.replace('.', "_")))).map(String::as_str)
    }

    /// Returns PEFT's names of what the file holds; `None` where they are the file's, and without what only kohya's names tell.
    pub fn names(&self) -> Option<Vec<&str>> {
        Some(self.others.as_ref()?.by_name.keys().map(String::as_str).collect())
    }

    /// Returns whether maps have alphas of their own, or the rank where they have none: PEFT's have those of the config.
    pub fn have_alphas(&self) -> bool {
        self.others.is_some()
    }
}

/// Returns PEFT's path of the map at this beginning of a name.
fn canonical(begin: &str) -> Option<String> {
    let named = BEGINNINGS.iter().find_map(|(from, to)| Some((begin.strip_prefix(from)?, *to)));
    let is_block = BLOCKS.iter().any(|blocks| begin.starts_with(blocks));
    let (path, network) = named.or(is_block.then_some((begin, "")))?;
    let path = Naming::Wan.to_diffusers(path).unwrap_or_else(|| path.to_owned());
    Some(format!("{network}{path}"))
}
