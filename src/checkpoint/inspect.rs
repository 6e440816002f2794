//! Shows the contents of a folder: tensors by pattern, types, sizes.

use loongforge_core::checkpoint::{MANIFEST, Manifest};
use loongforge_core::text::{counted, grouped};
use loongforge_core::{files, observe};
use loongforge_torch::train::hf::{Checkpoint, Stored, TensorFile, collapse};
use loongforge_torch::train::state_files;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Returns a page about the folder; with `all` every tensor is a line of its own.
///
/// # Errors
/// There are no weights in it, or they are torn.
pub fn inspect(folder: &Path, all: bool) -> anyhow::Result<String> {
    let checkpoint = Checkpoint::open_any(folder)?;
    let mut page = String::new();
    let config = files::read(&folder.join("config.json"), files::MAX_TEXT_BYTES).ok();
    let config = config.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    // Robot policies have a `type`.
    let model = match &config {
        None => "no config.json",
        Some(config) => {
            let named = ["model_type", "type"].into_iter().find_map(|key| config[key].as_str());
            named.unwrap_or("config.json names no model_type")
        }
    };
    writeln!(page, "{}: {model}", folder.display())?;
    if folder.join(MANIFEST).is_file() {
        let manifest = Manifest::read(folder)?;
        let steps = counted(manifest.num_steps, "step");
        writeln!(page, "checkpoint of a run after {steps}, {}", manifest.precision)?;
    }
    let tensors: Vec<(&str, &Stored)> = checkpoint.tensors().collect();
    let elements = |stored: &Stored| stored.shape.iter().product::<i64>() as u64;
    let (mut parameters, mut bytes, mut types) = (0, 0, BTreeMap::<String, u64>::new());
    for (_, stored) in &tensors {
        parameters += elements(stored);
        bytes += stored.bytes;
        *types.entry(stored.format()).or_default() += elements(stored);
    }
    let types: Vec<String> = types.into_iter().map(|(name, count)| format!("{name} {}", grouped(count))).collect();
    let (num_tensors, num_files) = (tensors.len(), checkpoint.files().len());
    writeln!(
        page,
        "{} parameters in {}, {} in {}",
        grouped(parameters),
        counted(num_tensors as u64, "tensor"),
        observe::bytes(bytes),
        counted(num_files as u64, "file")
    )?;
    writeln!(page, "types: {}\n", types.join(", "))?;
    let rows = tensors.iter().map(|(name, stored)| (*name, (stored.format(), stored.shape.clone(), stored.bytes)));
    let rows = match all {
        true => rows.map(|(name, key)| (name.escape_debug().to_string(), key, 1)).collect(),
        false => collapse(rows),
    };
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    for (name, (format, shape, bytes), count) in rows {
        let times = if count > 1 { format!(" x {count}") } else { String::new() };
        writeln!(page, "{name:width$}  {format:<6} {shape:?}{times}  {}", observe::bytes(bytes * count as u64))?;
    }
    for entry in optimizer_files(folder)? {
        let file = TensorFile::open(&folder.join(&entry))?;
        let bytes = file.tensors().values().map(|info| info.len).sum();
        let steps = file.note("num_steps").unwrap_or("unknown");
        let tensors = counted(file.tensors().len() as u64, "tensor");
        writeln!(page, "\n{entry}: {tensors}, {}, step {steps}", observe::bytes(bytes))?;
    }
    Ok(page)
}

/// Returns the names of the files of optimizer state that a run's checkpoint has, sorted; none for a single file of weights.
pub(super) fn optimizer_files(folder: &Path) -> std::io::Result<Vec<String>> {
    if folder.is_file() {
        return Ok(Vec::new());
    }
    let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(state_files(folder)?.into_iter().map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_torch::train::hf::write_tensor_file;
    use tch::Tensor;

    #[test]
    fn a_single_file_of_weights_can_be_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = [("a.weight".to_owned(), Tensor::from_slice(&[1f32, 2.0]))];
        write_tensor_file(&tensors, &[], dir.path(), "one.safetensors").unwrap();
        let page = inspect(&dir.path().join("one.safetensors"), true).unwrap();
        assert!(page.contains("2 parameters in 1 tensor, ") && page.contains("a.weight"), "{page}");
    }
}
