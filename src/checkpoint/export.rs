//! A folder's model once more: weights in another type or other shards, adapters added to their base, `config.json` to
//! match, the rest carried. Seen whole or not at all.

use super::draft::Draft;
use super::export_error::ExportError;
use super::fit::{expect_fit, load_options};
use super::llava::{BEGINS, CLASS, Llava};
use super::saved_config::{kept_in_float32, saved_config};
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use loongforge_actors::checkpoint::extras;
use loongforge_core::checkpoint::carried;
use loongforge_core::config::glob;
use loongforge_core::data::{Component, MODEL_INDEX, NAMED_TEMPLATES, is_diffusion, is_fastwam, is_policy};
use loongforge_core::files;
use loongforge_core::message::SavedFile;
use loongforge_core::text::shell_word;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::train::Adapters;
use loongforge_torch::train::hf::{Checkpoint, Dtype, FilesOf, LoadOptions, Rewrite, renamed, rewrite};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Describes how a folder is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Folder or hub id of the model that adapters are added to; `None`: what they say themselves.
    pub base: Option<String>,
    /// F32, BF16 or F16; `None` keeps every tensor's own.
    pub dtype: Option<Dtype>,
    pub max_shard_size: u64,
    /// True if packed weights may be unpacked; they cannot be written packed.
    pub dequantize: bool,
    /// True if a model put together from parts is written in the layout of a class of transformers, where it fits one.
    pub for_transformers: bool,
}

/// Tells what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    pub num_files: usize,
    /// Bytes of weights.
    pub bytes: u64,
    /// Facts that the user should know, a sentence each.
    pub said: Vec<String>,
}

/// Writes the model in `folder` into `out`, with its adapters added.
///
/// # Errors
/// `folder` has no whole model and no adapters of one, `out` holds something, or a file cannot be written. `out` is not there then.
pub fn export(folder: &Path, out: &Path, how: &Export) -> Result<Exported, ExportError> {
    let diffusion = || ExportError::Diffusion { folder: folder.to_owned(), out: out.to_owned() };
    if folder.join(MODEL_INDEX).is_file() && !folder.join("config.json").is_file() {
        return Err(diffusion());
    }
    let found = ModelFolders::find(folder, how.base.as_deref())?;
    let checkpoint = Checkpoint::open(&found.weights)?;
    if let Some((_, packed)) = checkpoint.tensors().find(|(_, stored)| stored.is_packed() && !how.dequantize) {
        return Err(ExportError::Packed { folder: found.weights, format: packed.format() });
    }
    let path = found.config.join("config.json");
    let bytes =
        files::read(&path, files::MAX_TEXT_BYTES).map_err(|source| ExportError::Io { path: path.clone(), source })?;
    let config: Value = serde_json::from_slice(&bytes).map_err(|source| ExportError::Json { path, source })?;
    // With its adapters added it is a model for `checkpoint export`.
    if is_diffusion(&config) && found.adapters.is_none() {
        return Err(diffusion());
    }
    let (mut carried_parts, mut stale_head): (&[&str], _) = (&[], None);
    let adapters = match &found.adapters {
        Some(adapters) => {
            let model = ModelFolder::open_plain(&found.config)?;
            let ignored = found.ignored();
            expect_fit(&found.weights, &model.config, &options_of(&found, &model))?;
            if how.dtype.is_none() {
                carried_parts = model.config.carried.prefixes;
            }
            let opened = Adapters::open(adapters, &model.config, &checkpoint)?;
            stale_head = stale_head_of(&model.config, &opened, &ignored);
            Some(opened)
        }
        None => None,
    };
    let (mut said, layout) = if how.for_transformers { layout_of(&config) } else { (Vec::new(), None) };
    said.extend(adapters.iter().flat_map(told_grown));
    let config = layout.as_ref().map_or(config, |layout| layout.config.clone());
    let draft = Draft::beside(out)?;
    let to = draft.path();
    let begins: &[(&str, &str)] = if layout.is_some() { &BEGINS } else { &[] };
    // lerobot takes the frozen networks of a policy from the hub.
    let leaves_out = how.for_transformers && is_fastwam(&config);
    if leaves_out {
        said.push("the autoencoder and the text encoder are left out: lerobot takes them from Wan-AI/Wan2.2-TI2V-5B-Diffusers".to_owned());
    }
    let rename = |name: &str| {
        let is_left = leaves_out && Component::of_tensor(name).is_some() || stale_head.as_deref() == Some(name);
        (!is_left).then(|| renamed(name, begins))
    };
    // lerobot reads a policy's weights from one file.
    let max_shard_size = if how.for_transformers && is_policy(&config) { u64::MAX } else { how.max_shard_size };
    let (dtype, float32) = (how.dtype, &kept_in_float32(&config, how.dtype)[..]);
    let how = Rewrite { dtype, float32, max_shard_size, rename: &rename, stem: "model" };
    let is_pipeline = is_diffusion(&config) && found.weights.join(MODEL_INDEX).is_file();
    let files = match is_pipeline {
        true => rewrite_networks(&checkpoint, adapters.as_ref(), to, &how)?,
        false => rewrite(&checkpoint, adapters.as_ref(), to, &how)?,
    };
    let dtype = dtype_name(how.dtype, &checkpoint, adapters.is_some());
    if is_diffusion(&config) {
        let format = if is_pipeline { "comfyui" } else { "diffusers" };
        let next = format!("loongforge checkpoint export {} OUT --format {format}", shell_word(out));
        said.push(format!("the adapters are added; `{next}` writes the model for other programs"));
    }
    let config = saved_config(&config, dtype, carried_parts);
    let pipeline = if is_pipeline { extras(&config, &files, &found.weights)? } else { Vec::new() };
    for extra in pipeline {
        put(to, extra.name(), &extra.contents()?)?;
    }
    put(to, "config.json", &text(&config))?;
    copy_others(&found, to)?;
    if let Some(Err(why)) = layout.map(|layout| layout.write_processor(to)) {
        said.push(format!("no processor_config.json was written: {why}"));
    }
    draft.publish()?;
    Ok(Exported { num_files: files.len(), bytes: files.iter().map(|file| file.bytes).sum(), said })
}

/// Returns the layout that a class of transformers has for a model of parts, if it is one, and what to say of it.
fn layout_of(config: &Value) -> (Vec<String>, Option<Llava>) {
    match Llava::of(config) {
        None => (Vec::new(), None),
        Some(Ok(layout)) => (vec![format!("the parts are written as {CLASS} of transformers")], Some(layout)),
        Some(Err(why)) => {
            (vec![format!("no class of transformers has the layout of these parts, which is kept: {why}")], None)
        }
    }
}

/// Returns how the weights of a model with a run's adapters are compared with it: as the run has.
pub(super) fn options_of(found: &ModelFolders, model: &ModelFolder) -> LoadOptions {
    let mut options = LoadOptions { resize_embeddings: found.may_grow(), ..load_options(&model.json) };
    options.ignore.extend(found.ignored());
    options
}

/// Returns the tensor of a head that is the embedding, which the adapters change, or whose tensor their run `ignored`: a base may store
/// it once more, as it was.
fn stale_head_of(model: &ModelConfig, adapters: &Adapters, ignored: &[String]) -> Option<String> {
    let [embedding, head] = model.tied_head()?;
    let is_stale = adapters.changes(&embedding) || ignored.iter().any(|pattern| glob(pattern, &head));
    is_stale.then_some(head)
}

/// Tells which tables of tokens have more rows than the base's.
pub(super) fn told_grown(adapters: &Adapters) -> impl Iterator<Item = String> {
    adapters.grown().iter().map(|(name, shape)| {
        let rows = shape.first().copied().unwrap_or_default();
        format!(
            "{name} has {rows} rows, more than in the base: those that the adapters do not hold are the mean of the others, as in \
             the run"
        )
    })
}

/// Writes a file into a folder of `dir`, which is made where it is not there.
pub(super) fn put(dir: &Path, name: &str, contents: &[u8]) -> Result<(), ExportError> {
    let path = dir.join(name);
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, contents));
    written.map_err(|source| ExportError::Io { path, source })
}

/// Returns the text of a JSON file.
pub(super) fn text(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("JSON can be written");
    text.push(b'\n');
    text
}

/// Rewrites a diffusion model into a folder for each of its networks, as Diffusers has them.
fn rewrite_networks(
    checkpoint: &Checkpoint,
    adapters: Option<&Adapters>,
    to: &Path,
    how: &Rewrite<'_>,
) -> Result<Vec<SavedFile>, ExportError> {
    let mut files = Vec::new();
    for of in FilesOf::networks() {
        if !checkpoint.tensors().any(|(name, _)| of.has(name)) {
            continue;
        }
        let rename = |name: &str| of.has(name).then(|| of.in_file(name).to_owned());
        let stem = of.stem();
        files.extend(rewrite(checkpoint, adapters, to, &Rewrite { rename: &rename, stem: &stem, ..*how })?);
    }
    Ok(files)
}

/// Returns the name that `config.json` has for the type of the weights that are written; `None`: it says what it said.
fn dtype_name(dtype: Option<Dtype>, checkpoint: &Checkpoint, has_adapters: bool) -> Option<&'static str> {
    let written = match dtype {
        Some(dtype) => dtype,
        None if checkpoint.is_quantized() => Dtype::BF16,
        // The run's `config.json` says how the run computed.
        None if has_adapters => {
            checkpoint.tensors().map(|(_, stored)| stored.dtype).find(|dtype| dtype.is_plain_float())?
        }
        None => return None,
    };
    Some(match written {
        Dtype::BF16 => "bfloat16",
        Dtype::F16 => "float16",
        Dtype::F64 => "float64",
        _ => "float32",
    })
}

/// Copies the files that are no weights: what lies beside the adapters goes before what lies beside their base, of which a chat template
/// beside the adapters replaces all.
fn copy_others(found: &ModelFolders, to: &Path) -> Result<(), ExportError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        |source| ExportError::Io { path, source }
    };
    let adapters = found.adapters.as_ref();
    let has_template = adapters.is_some_and(|folder| folder.join("chat_template.jinja").is_file());
    for folder in [Some(&found.weights), adapters].into_iter().flatten() {
        let is_replaced = |name: &String| has_template && Some(folder) != adapters && name.starts_with(NAMED_TEMPLATES);
        for name in carried(folder)?.into_iter().filter(|name| !is_replaced(name)) {
            to.join(&name).parent().map_or(Ok(()), fs::create_dir_all).map_err(io(to))?;
            copy(&folder.join(&name), &to.join(&name)).map_err(io(&folder.join(&name)))?;
        }
    }
    Ok(())
}

/// Copies the contents of a file and not its mode: a base may be read-only, and some of its files are written over.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut files::open(from)?, &mut File::create(to)?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::{MANIFEST, Manifest};
    use loongforge_torch::train::hf::write_tensor_file;
    use serde_json::json;
    use std::collections::BTreeMap;
    use tch::{Kind, Tensor};

    /// Files with the head beside a tied embedding are common (Qwen3-0.6B's), and transformers keeps a head that differs.
    #[test]
    fn a_tied_head_that_the_base_stores_is_left_out_where_adapters_change_the_embedding() {
        let dir = tempfile::tempdir().unwrap();
        let [base, adapters, out] = ["base", "adapters", "out"].map(|name| dir.path().join(name));
        [&base, &adapters].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-tied-3layers");
        fs::copy(fixture.join("config.json"), base.join("config.json")).unwrap();
        let [embedding, head] = ["model.embed_tokens.weight", "lm_head.weight"];
        let mut tensors = Tensor::read_safetensors(fixture.join("model.safetensors")).unwrap();
        tensors.retain(|(name, _)| name != head);
        let table = tensors.iter().find(|(name, _)| name == embedding).unwrap().1.shallow_clone();
        tensors.push((head.to_owned(), table.shallow_clone()));
        write_tensor_file(&tensors, &[("format", "pt")], base.as_path(), "model.safetensors").unwrap();
        let new = table + 1.0;
        let saved = [embedding, head].map(|name| (format!("base_model.model.{name}"), new.shallow_clone()));
        write_tensor_file(&saved, &[], adapters.as_path(), "adapter_model.safetensors").unwrap();
        let config = json!({"peft_type": "LORA", "r": 1, "base_model_name_or_path": base});
        fs::write(adapters.join("adapter_config.json"), config.to_string()).unwrap();
        let how = Export { base: None, dtype: None, max_shard_size: 40_000, dequantize: false, for_transformers: true };
        export(&adapters, &out, &how).unwrap();
        let written = Checkpoint::open(&out).unwrap();
        assert!(written.get(head).is_none());
        assert!(written.read(written.get(embedding).unwrap(), Kind::Float).unwrap() == new);
        // One that is no embedding's at all, which the run was told to ignore.
        tensors.last_mut().unwrap().1 = &new * 2.0;
        write_tensor_file(&tensors, &[("format", "pt")], base.as_path(), "model.safetensors").unwrap();
        let again = dir.path().join("again");
        assert!(export(&adapters, &again, &how).unwrap_err().to_string().contains("lm_head.weight differs from"));
        let config = json!({"model": {"load_ignore": ["lm_head.*"]}});
        let manifest = Manifest { config, ..Manifest::of_files(1, BTreeMap::new()) };
        fs::write(adapters.join(MANIFEST), manifest.to_text()).unwrap();
        export(&adapters, &again, &how).unwrap();
        assert!(Checkpoint::open(&again).unwrap().get(head).is_none());
    }

    #[test]
    fn a_finite_value_that_would_be_infinite_is_refused_by_the_name_of_its_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let [model, out] = ["model", "out"].map(|name| dir.path().join(name));
        fs::create_dir(&model).unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        let tensors = [("small", 1f32), ("large", -7e4)]
            .map(|(name, value)| (name.to_owned(), Tensor::from_slice(&[value, f32::INFINITY, 0.5])));
        write_tensor_file(&tensors, &[], model.as_path(), "model.safetensors").unwrap();
        let write = |dtype| {
            let dtype = Some(dtype);
            let how = Export { base: None, dtype, max_shard_size: 40_000, dequantize: false, for_transformers: false };
            export(&model, &out, &how)
        };
        let error = write(Dtype::F16).unwrap_err().to_string();
        assert!(error.contains("model: large: F16 would make 1 of its finite values infinite, such as 7e4"), "{error}");
        assert!(!out.exists());
        write(Dtype::BF16).unwrap();
        let written = Checkpoint::open(&out).unwrap();
        let values = written.read(written.get("small").unwrap(), Kind::Float).unwrap();
        assert_eq!(values, Tensor::from_slice(&[1f32, f32::INFINITY, 0.5]));
    }

    #[test]
    fn files_of_a_read_only_base_are_writable_in_what_is_exported() {
        let dir = tempfile::tempdir().unwrap();
        let [weights, adapters, out] = ["weights", "adapters", "out"].map(|name| dir.path().join(name));
        [&weights, &adapters, &out].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        for (folder, name) in [(&weights, "tokenizer.json"), (&weights, "vocab.json"), (&adapters, "tokenizer.json")] {
            let path = folder.join(name);
            fs::write(&path, folder.file_name().unwrap().as_encoded_bytes()).unwrap();
            let mut mode = fs::metadata(&path).unwrap().permissions();
            mode.set_readonly(true);
            fs::set_permissions(&path, mode).unwrap();
        }
        let found = ModelFolders { weights, config: adapters.clone(), adapters: Some(adapters) };
        copy_others(&found, &out).unwrap();
        assert_eq!(fs::read_to_string(out.join("tokenizer.json")).unwrap(), "adapters");
        let is_readonly = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().readonly();
        assert!(!is_readonly("tokenizer.json") && !is_readonly("vocab.json"));
    }
}
