//! The config of a diffusion transformer, from the names and shapes of its weights: single files carry none.

use crate::model::error::FolderError;
use loongforge_torch::train::hf::Checkpoint;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Width of the heads of every published model of both families: no shape of Wan's tells it.
const HEAD_DIM: i64 = 128;

/// Tensors that only models have which are not trained here, and the names of those.
const OTHER_KINDS: [(&str, &str); 5] = [
    ("vace_", "VACE"),
    ("face_adapter", "Animate"),
    ("casual_audio_encoder", "S2V"),
    ("audio_injector", "S2V"),
    ("control_adapter", "Camera"),
];

/// Reads the headers of the file, or of the folder of one network, and says what its transformer's config must be. `num_heads`:
/// where something else tells it.
///
/// # Errors
/// A file is torn, or holds no transformer of Wan or Qwen-Image.
pub(super) fn config(path: &Path, num_heads: Option<i64>) -> Result<Value, FolderError> {
    let checkpoint = Checkpoint::open(path)?;
    let wrong = |reason: String| FolderError::File { path: path.to_owned(), reason };
    let names = || checkpoint.tensors().map(|(name, _)| name);
    let inner = |name: &str| name.strip_prefix("transformer.").unwrap_or(name).to_owned();
    for (begin, kind) in OTHER_KINDS {
        if names().any(|name| inner(name).starts_with(begin)) {
            return Err(wrong(format!("it is a {kind} model, which is not trained here")));
        }
    }
    let shapes = Shapes { checkpoint: &checkpoint };
    let found = match () {
        () if shapes.has("patch_embedding.weight") => shapes.wan(num_heads),
        () if shapes.has("img_in.weight") => shapes.qwen_image(),
        () => return Err(wrong("it contains no transformer of Wan or Qwen-Image".to_owned())),
    };
    found.map_err(wrong)
}

struct Shapes<'a> {
    checkpoint: &'a Checkpoint,
}

impl Shapes<'_> {
    fn has(&self, name: &str) -> bool {
        self.checkpoint.get(&format!("transformer.{name}")).is_some()
    }

    fn size(&self, name: &str, dim: usize) -> Result<i64, String> {
        let stored = self.checkpoint.get(&format!("transformer.{name}"));
        let size = stored.and_then(|stored| stored.shape.get(dim).copied());
        size.filter(|size| *size > 0).ok_or_else(|| format!("{name} is missing or has too few dimensions"))
    }

    /// Returns the number of blocks whose names begin so.
    fn blocks(&self, stem: &str) -> usize {
        let number =
            |name: &str| name.strip_prefix("transformer.")?.strip_prefix(stem)?.split('.').next()?.parse().ok();
        let last: Option<usize> = self.checkpoint.tensors().filter_map(|(name, _)| number(name)).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn wan(&self, num_heads: Option<i64>) -> Result<Value, String> {
        let width = self.size("patch_embedding.weight", 0)?;
        let num_heads = num_heads.unwrap_or((width / HEAD_DIM).max(1));
        if num_heads <= 0 || width % num_heads != 0 {
            return Err(format!("its width {width} is not a multiple of the head width {HEAD_DIM}"));
        }
        let patch: Vec<i64> = (2..5).map(|dim| self.size("patch_embedding.weight", dim)).collect::<Result<_, _>>()?;
        let pictures = "condition_embedder.image_embedder";
        let mut json = json!({
            "_class_name": "WanTransformer3DModel",
            "num_attention_heads": num_heads,
            "attention_head_dim": width / num_heads,
            "in_channels": self.size("patch_embedding.weight", 1)?,
            "out_channels": self.size("proj_out.weight", 0)? / patch.iter().product::<i64>(),
            "text_dim": self.size("condition_embedder.text_embedder.linear_1.weight", 1)?,
            "freq_dim": self.size("condition_embedder.time_embedder.linear_1.weight", 1)?,
            "ffn_dim": self.size("blocks.0.ffn.net.0.proj.weight", 0)?,
            "num_layers": self.blocks("blocks."),
            "cross_attn_norm": self.has("blocks.0.norm2.weight"),
            "qk_norm": "rms_norm_across_heads",
            "eps": 1e-6,
            "rope_max_seq_len": 1024,
            "image_dim": null,
            "added_kv_proj_dim": null,
            "pos_embed_seq_len": null,
        });
        json["patch_size"] = json!(patch);
        if self.has(&format!("{pictures}.norm1.weight")) {
            json["image_dim"] = json!(self.size(&format!("{pictures}.norm1.weight"), 0)?);
            json["added_kv_proj_dim"] = json!(width);
            json["pos_embed_seq_len"] = json!(self.size(&format!("{pictures}.pos_embed"), 1).ok());
        }
        Ok(json)
    }

    fn qwen_image(&self) -> Result<Value, String> {
        let (width, head_dim) =
            (self.size("img_in.weight", 0)?, self.size("transformer_blocks.0.attn.norm_q.weight", 0)?);
        if head_dim != HEAD_DIM || width % head_dim != 0 {
            return Err(format!("its heads are {head_dim} wide, but only heads of width {HEAD_DIM} are supported"));
        }
        let patch_size = 2;
        let mut json = Map::new();
        json.insert("_class_name".to_owned(), json!("QwenImageTransformer2DModel"));
        let entries = [
            ("patch_size", json!(patch_size)),
            ("in_channels", json!(self.size("img_in.weight", 1)?)),
            ("out_channels", json!(self.size("proj_out.weight", 0)? / (patch_size * patch_size))),
            ("num_layers", json!(self.blocks("transformer_blocks."))),
            ("attention_head_dim", json!(head_dim)),
            ("num_attention_heads", json!(width / head_dim)),
            ("joint_attention_dim", json!(self.size("txt_in.weight", 1)?)),
            ("guidance_embeds", json!(false)),
            ("axes_dims_rope", json!([16, 56, 56])),
            // Files of Qwen-Image-Edit-2511 for ComfyUI say by this tensor that references have no noise.
            ("zero_cond_t", json!(self.has("__index_timestep_zero__"))),
        ];
        json.extend(entries.map(|(key, value)| (key.to_owned(), value)));
        Ok(Value::Object(json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_torch::train::hf::write_tensor_file;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn the_largest_number_of_a_block_is_an_error_of_the_model_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["patch_embedding.weight".to_owned(), format!("blocks.{}.norm2.weight", usize::MAX)];
        let tensors = names.map(|name| (name, Tensor::zeros([2], (Kind::Float, Device::Cpu))));
        write_tensor_file(&tensors, &[], dir.path(), "model.safetensors").unwrap();
        let checkpoint = Checkpoint::open(&dir.path().join("model.safetensors")).unwrap();
        assert_eq!(Shapes { checkpoint: &checkpoint }.blocks("blocks."), usize::MAX);
    }
}
