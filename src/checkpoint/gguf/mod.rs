//! A language model as one GGUF file, which llama.cpp reads.
//!
//! ```text
//! config.json ── architecture ┐              tokenizer ── vocabulary ─┬ byte_level
//! weights (+ adapters) ─ plan ┴─ container ─ general                  ├ word_pieces
//!                  names ┘ └ values                                   └ special
//! ```
//!
//! Keys, names, orders and types are those of llama.cpp's `convert_hf_to_gguf.py`. Everything is known before a byte is written.

mod architecture;
mod byte_level;
mod container;
mod gemma;
mod general;
mod heads;
mod json_file;
mod keys;
mod names;
mod plan;
mod special;
#[cfg(test)]
mod tests;
mod tokens;
mod values;
mod vocabulary;
mod word_pieces;

use super::draft::{remove_left, unfinished};
use super::export::{Exported, options_of, told_grown};
use super::export_error::ExportError;
use super::fit::expect_fit;
use super::row_blocks;
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use architecture::describe;
pub use container::TensorType;
use container::{Metadata, write_header, write_padding};
use json_file::read_json;
use loongforge_core::checkpoint::Manifest;
use loongforge_core::data::ChatTemplate;
use loongforge_torch::train::hf::{Beyond, Checkpoint, Dtype};
use loongforge_torch::train::{Adapters, WeightsError};
use names::Architecture;
use plan::{Plan, Planned};
use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tch::{Kind, Tensor};
use tokens::Files;
use values::encoded;
use vocabulary::vocabulary;

/// Writes the model in `folder`, its adapters added, as the GGUF file `out`. `base` is the model that adapters are added to, `None`:
/// what they say themselves; `kind` the type of matrices, `None`: that of the checkpoint.
///
/// # Errors
/// llama.cpp has no architecture or no tokenizer like the model's, `folder` has no whole model, `out` is there, or a file cannot be
/// read or written. `out` is not there then.
pub fn export_gguf(
    folder: &Path,
    out: &Path,
    base: Option<&str>,
    kind: Option<TensorType>,
    dequantize: bool,
) -> Result<Exported, ExportError> {
    let found = ModelFolders::find(folder, base)?;
    // A link to nothing is a name that is taken as well.
    if out.exists() || out.is_symlink() {
        let reason = "already exists: name another file".to_owned();
        return Err(ExportError::Form { path: out.to_owned(), reason });
    }
    let path = found.config.join("config.json");
    let wrong = |reason: String| ExportError::Form { path: path.clone(), reason };
    let model = ModelFolder::open_plain(&found.config)?;
    let model_type = model.json["model_type"].as_str().unwrap_or_default();
    let (Some(architecture), Some(decoder)) = (Architecture::of(model_type), model.config.decoder()) else {
        let known = Architecture::TYPES.map(|(name, _)| name).join(", ");
        // Robot policies have a `type` instead.
        let what = match model.json["type"].as_str().filter(|_| model_type.is_empty()) {
            Some(kind) => format!("type is {kind:?}, a robot policy"),
            None => format!("model_type is {model_type:?}"),
        };
        return Err(wrong(format!("{what}; GGUF files can be written for {known}")));
    };
    let described = describe(architecture, &model.json, decoder).map_err(wrong)?;
    let mut said = described.said.clone();
    let no_tokenizer = |reason: String| ExportError::Form { path: found.config.join("tokenizer.json"), reason };
    let tokenizer = Files::read(&found.config)?;
    let template =
        ChatTemplate::find(&found.config, &tokenizer.settings).map_err(|error| no_tokenizer(error.to_string()))?;
    let vocabulary =
        vocabulary(&tokenizer, &model.json, decoder.vocab_size as usize, template).map_err(no_tokenizer)?;

    let checkpoint = Checkpoint::open(&found.weights)?;
    if let Some((_, packed)) = checkpoint.tensors().find(|(_, stored)| stored.is_packed() && !dequantize) {
        return Err(ExportError::Packed { folder: found.weights, format: packed.format() });
    }
    expect_fit(&found.weights, &model.config, &options_of(&found, &model))?;
    let adapters = found.adapters.as_ref().map(|adapters| Adapters::open(adapters, &model.config, &checkpoint));
    let adapters = adapters.transpose()?;
    let kind = kind.unwrap_or_else(|| of_checkpoint(&checkpoint));
    let turned = architecture.turns_neighbors().then_some(described.num_heads);
    let plan = Plan::new(
        architecture,
        (&checkpoint, adapters.as_ref()),
        decoder.tie_word_embeddings,
        turned,
        described.frequency_factors.as_deref(),
        kind,
    );
    let plan = plan.map_err(|reason| ExportError::Form { path: found.weights.clone(), reason })?;
    said.extend(adapters.iter().flat_map(told_grown).chain(plan.said()));

    let generation = read_json(&found.config.join("generation_config.json"))?;
    let descriptions = plan.descriptions();
    let mut metadata = general::general(architecture, &name_of(folder), &generation, kind, &descriptions);
    metadata.extend(described.metadata);
    metadata.extend(vocabulary);

    write_file(out, &metadata, &plan, &checkpoint, adapters.as_ref())?;
    Ok(Exported { num_files: 1, bytes: descriptions.iter().map(container::Description::num_bytes).sum(), said })
}

/// Returns what programs call the model: as its run, or else as its folder.
fn name_of(folder: &Path) -> String {
    let manifest = Manifest::read(folder).ok();
    let run = manifest.and_then(|manifest| Some(manifest.config["run"]["name"].as_str()?.to_owned()));
    let own = || Some(std::path::absolute(folder).ok()?.file_name()?.to_string_lossy().into_owned());
    run.or_else(own).unwrap_or_else(|| "model".to_owned())
}

/// Writes the file `out`: what is planned of `checkpoint`, changed by `adapters`.
///
/// # Errors
/// A file of this name is there, or one cannot be read or written; no draft is left.
fn write_file(
    out: &Path,
    metadata: &Metadata,
    plan: &Plan,
    checkpoint: &Checkpoint,
    adapters: Option<&Adapters>,
) -> Result<(), ExportError> {
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |source| ExportError::Io { path: out.to_owned(), source };
    std::fs::create_dir_all(parent).map_err(io)?;
    let prefix = unfinished(out);
    remove_left(parent, &prefix);
    // Beside it, so that the rename stays on one disk.
    let mut drafts = tempfile::Builder::new();
    // A temporary file is its owner's alone unless it is told otherwise.
    drafts.prefix(&prefix).permissions(Permissions::from_mode(0o666));
    let draft = drafts.tempfile_in(parent).map_err(io)?;
    let _ = draft.as_file().try_lock();
    let mut writer = BufWriter::new(draft);
    write_header(&mut writer, metadata, &plan.descriptions()).map_err(io)?;
    for planned in plan.tensors() {
        write_tensor(&mut writer, checkpoint, adapters, planned).map_err(|error| match error {
            Failed::Read(error) => error,
            Failed::Write(source) => io(source),
        })?;
    }
    let draft = writer.into_inner().map_err(|error| io(error.into_error()))?;
    draft.as_file().sync_all().map_err(io)?;
    draft.persist_noclobber(out).map(drop).map_err(|error| io(error.error))
}

enum Failed {
    Read(ExportError),
    Write(std::io::Error),
}

/// Writes the values of one tensor, a block of rows at a time where they lie in the checkpoint as they are written.
fn write_tensor(
    writer: &mut impl Write,
    checkpoint: &Checkpoint,
    adapters: Option<&Adapters>,
    planned: &Planned,
) -> Result<(), Failed> {
    let kind = planned.description.kind;
    let read = |error| Failed::Read(ExportError::Weights(WeightsError::from(error)));
    let beyond = |error: Beyond| {
        let (folder, reason) = (checkpoint.folder().to_owned(), format!("{}: {error}", planned.description.name));
        Failed::Read(ExportError::Weights(WeightsError::Convert { folder, reason }))
    };
    let mut write = |values: &Tensor| {
        let encoded = encoded(values, kind).map_err(beyond)?;
        writer.write_all(&encoded).map_err(Failed::Write)
    };
    if let Some(made) = &planned.made {
        write(&Tensor::from_slice(made))?;
    }
    for name in &planned.sources {
        let stored = checkpoint.get(name).expect("planned of this checkpoint");
        let is_changed = adapters.is_some_and(|adapters| adapters.changes(name));
        if stored.shape.len() > 1 && planned.heads.is_none() && !is_changed {
            for (first, rows) in row_blocks(&stored.shape) {
                write(&checkpoint.read_rows(stored, first, rows, Kind::Float).map_err(read)?)?;
            }
            continue;
        }
        let values = checkpoint.read(stored, Kind::Float).map_err(read)?;
        let values = adapters.map_or(values.shallow_clone(), |adapters| adapters.apply(name, &values));
        let values = if planned.adds_one { values + 1.0 } else { values };
        write(&planned.heads.map_or(values.shallow_clone(), |heads| plan::neighbors(&values, heads)))?;
    }
    write_padding(writer, &planned.description).map_err(Failed::Write)
}

/// Returns the type of most files: that of the checkpoint's first matrix.
fn of_checkpoint(checkpoint: &Checkpoint) -> TensorType {
    let matrix = checkpoint.tensors().find(|(_, stored)| stored.shape.len() > 1 && stored.dtype.is_plain_float());
    match matrix.map(|(_, stored)| (stored.is_packed(), stored.dtype)) {
        Some((false, Dtype::F16)) => TensorType::F16,
        Some((false, Dtype::F32 | Dtype::F64)) => TensorType::F32,
        _ => TensorType::Bf16,
    }
}
