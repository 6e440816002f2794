//! A diffusion model or its adapters in the form that another program reads.

use super::draft::Draft;
use super::export::{Exported, put, text};
use super::export_error::ExportError;
use super::saved_config::kept_in_float32;
use crate::model::diffusers;
use loongforge_actors::checkpoint::extras;
use loongforge_core::data::{COMPONENTS, Component, is_diffusion};
use loongforge_core::files;
use loongforge_core::message::SavedFile;
use loongforge_torch::model::{COMFY_PREFIX, ModelConfig, Naming};
use loongforge_torch::train::hf::{
    Checkpoint, Dtype, FilesOf, MAX_SHARD_SIZE, Rewrite, TensorFile, is_adapter, rewrite,
};
use loongforge_torch::train::{AdapterFolder, Adapters, DIFFUSERS_LORA_FILE, LoraForm, write_lora};
use serde_json::{Value, json};
use std::path::Path;

/// The form of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Folders of Diffusers; adapters in one file.
    Diffusers,
    /// One file for each network, with the names that ComfyUI knows.
    ComfyUi,
    /// The transformer as in Wan's own releases.
    Original,
    /// Adapters as kohya's scripts have them.
    Kohya,
}

/// Writes the diffusion model or the adapters at `path` into the folder `out`; `averages`: with the averaged weights of
/// `train.ema`, which the checkpoint of a run has.
///
/// # Errors
/// The form has no place for it, `out` holds something, or a file cannot be read or written. `out` is not there then.
pub fn export_diffusion(
    path: &Path,
    out: &Path,
    format: Format,
    dtype: Option<Dtype>,
    averages: bool,
) -> Result<Exported, ExportError> {
    if is_adapter(path) || path.join(DIFFUSERS_LORA_FILE).is_file() || is_lora_file(path) {
        expect_of_diffusion(path)?;
        return export_adapters(path, out, format, dtype, averages);
    }
    // One network alone is no whole model, and has its form all the same.
    let wrong = |reason: String| ExportError::Form { path: path.to_owned(), reason };
    let json = diffusers::read(path, &|_| false)?.ok_or_else(|| wrong("it is not a diffusion model".to_owned()))?;
    let checkpoint = Checkpoint::open(path)?;
    let averages = match averages {
        true => {
            let model = ModelConfig::from_hf(&json).map_err(|error| wrong(error.to_string()))?;
            Some(Adapters::averages(path, &model, &checkpoint)?)
        }
        false => None,
    };
    let draft = Draft::beside(out)?;
    let (mut files, mut said) = (Vec::new(), Vec::new());
    for network in COMPONENTS {
        let of = FilesOf::Network(network);
        if !checkpoint.tensors().any(|(name, _)| of.has(name)) {
            continue;
        }
        let Some(naming) = format.naming(network, &checkpoint)? else {
            said.push(format!("{} is left out: the original releases have it as a pickle", network.name));
            continue;
        };
        let unknown = checkpoint.tensors().find(|(name, _)| of.has(name) && naming.of(of.in_file(name)).is_none());
        if let Some((name, _)) = unknown {
            return Err(ExportError::Form {
                path: path.to_owned(),
                reason: format!("{name} has no name in this format"),
            });
        }
        let rename = |name: &str| naming.of(of.in_file(name)).filter(|_| of.has(name));
        // Files of other programs are of one type.
        let float32 = match format {
            Format::Diffusers => kept_in_float32(&json[network.name], dtype),
            _ => Vec::new(),
        };
        let max_shard_size = naming.max_size;
        let how = Rewrite { dtype, float32: &float32, max_shard_size, rename: &rename, stem: &naming.stem };
        files.extend(rewrite(&checkpoint, averages.as_ref(), draft.path(), &how)?);
        if format == Format::Original {
            let config = original_config(&json[network.name]);
            let name = naming.stem.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
            put(draft.path(), &format!("{name}config.json"), &text(&config))?;
        }
    }
    if format == Format::Diffusers {
        for extra in extras(&json, &files, path)? {
            put(draft.path(), extra.name(), &extra.contents()?)?;
        }
    }
    draft.publish()?;
    Ok(Exported { num_files: files.len(), bytes: total(&files), said })
}

/// # Errors
/// The config beside the adapters of a run is that of another model.
fn expect_of_diffusion(path: &Path) -> Result<(), ExportError> {
    let bytes = files::read(&path.join("config.json"), files::MAX_TEXT_BYTES).unwrap_or_default();
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(config) if !is_diffusion(&config) && config["_class_name"].is_null() => {
            let reason = "its adapters are not those of a diffusion model: PEFT loads them as they are, and `loongforge \
                          checkpoint export-hf` adds them to their base";
            Err(ExportError::Form { path: path.to_owned(), reason: reason.to_owned() })
        }
        _ => Ok(()),
    }
}

fn export_adapters(
    path: &Path,
    out: &Path,
    format: Format,
    dtype: Option<Dtype>,
    averages: bool,
) -> Result<Exported, ExportError> {
    let (form, name) = match format {
        Format::Diffusers => (LoraForm::Diffusers, DIFFUSERS_LORA_FILE),
        Format::ComfyUi => (LoraForm::ComfyUi, "lora.safetensors"),
        Format::Kohya => (LoraForm::Kohya, "lora.safetensors"),
        Format::Original => {
            let reason = "adapters can only be written as diffusers, comfyui or kohya".to_owned();
            return Err(ExportError::Form { path: path.to_owned(), reason });
        }
    };
    let folder = AdapterFolder::open(path)?;
    let folder = if averages { folder.with_averages(path)? } else { folder };
    let draft = Draft::beside(out)?;
    let files = write_lora(&folder, form, dtype, &draft.path().join(name))?;
    draft.publish()?;
    Ok(Exported { num_files: files.len(), bytes: total(&files), said: Vec::new() })
}

/// Says where the tensors of one network go and what they are called there.
struct NetworkFiles {
    naming: Naming,
    prefix: &'static str,
    stem: String,
    max_size: u64,
}

impl NetworkFiles {
    fn of(&self, name: &str) -> Option<String> {
        Some(format!("{}{}", self.prefix, self.naming.from_diffusers(name)?))
    }
}

impl Format {
    /// Returns where a network goes; `None`: it is left out.
    fn naming(self, network: Component, checkpoint: &Checkpoint) -> Result<Option<NetworkFiles>, ExportError> {
        let has = |name: &str| checkpoint.get(&format!("{}.{name}", network.name)).is_some();
        let is_transformer = network.name.starts_with("transformer");
        let original = match () {
            () if is_transformer && has("blocks.0.attn1.to_q.weight") => Naming::Wan,
            () if network.name == "vae" && has("decoder.up_blocks.0.upsampler.resample.1.weight") => Naming::WanVae22,
            () if network.name == "vae" => Naming::WanVae21,
            () => Naming::Diffusers,
        };
        let two = Component::named("transformer_2")
            .is_some_and(|second| checkpoint.tensors().any(|(name, _)| FilesOf::Network(second).has(name)));
        let noise = match (is_transformer && two, network.name) {
            (false, _) => None,
            (true, "transformer") => Some("high_noise"),
            (true, _) => Some("low_noise"),
        };
        Ok(match self {
            Self::Diffusers => {
                let stem = FilesOf::Network(network).stem();
                Some(NetworkFiles { naming: Naming::Diffusers, prefix: "", stem, max_size: MAX_SHARD_SIZE })
            }
            Self::ComfyUi => {
                let stem = noise.map_or(network.name.to_owned(), |noise| format!("transformer_{noise}"));
                let prefix = if is_transformer { COMFY_PREFIX } else { "" };
                Some(NetworkFiles { naming: original, prefix, stem, max_size: u64::MAX })
            }
            Self::Original if original == Naming::Wan => {
                let dir = noise.map_or(String::new(), |noise| format!("{noise}_model/"));
                let stem = format!("{dir}{}", network.stem);
                Some(NetworkFiles { naming: original, prefix: "", stem, max_size: MAX_SHARD_SIZE })
            }
            Self::Original if is_transformer => {
                let reason = "only Wan has an original format of its own; that of Qwen-Image is Diffusers'".to_owned();
                return Err(ExportError::Form { path: checkpoint.folder().to_owned(), reason });
            }
            Self::Original => None,
            Self::Kohya => {
                let reason = "kohya is a format for adapters, but this is a whole model".to_owned();
                return Err(ExportError::Form { path: checkpoint.folder().to_owned(), reason });
            }
        })
    }
}

/// Returns the config of a transformer in Wan's own releases.
fn original_config(config: &Value) -> Value {
    let heads = config["num_attention_heads"].as_i64().unwrap_or(1);
    let width = heads * config["attention_head_dim"].as_i64().unwrap_or(1);
    let model_type = match (config["in_channels"] == config["out_channels"], config["pos_embed_seq_len"].is_null()) {
        (true, _) => "t2v",
        (false, true) => "i2v",
        (false, false) => "flf2v",
    };
    json!({"_class_name": "WanModel", "dim": width, "eps": config["eps"], "ffn_dim": config["ffn_dim"],
        "freq_dim": config["freq_dim"], "in_dim": config["in_channels"], "model_type": model_type, "num_heads": heads,
        "num_layers": config["num_layers"], "out_dim": config["out_channels"], "text_len": 512})
}

/// Returns whether this is a file with adapters in it.
fn is_lora_file(path: &Path) -> bool {
    let names =
        |file: &loongforge_torch::train::hf::TensorFile| file.tensors().keys().any(|name| name.contains(".lora_"));
    path.is_file() && TensorFile::open(path).is_ok_and(|file| names(&file))
}

fn total(files: &[SavedFile]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}

#[cfg(test)]
#[path = "diffusion_tests.rs"]
mod tests;
