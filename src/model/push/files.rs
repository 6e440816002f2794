//! The files of a folder that make up a model that others can use.

use super::error::PushError;
use loongforge_core::checkpoint::{MANIFEST, SPEAKERS};
use std::fs;
use std::path::{Path, PathBuf};

/// Kinds of files that belong to a model.
const ENDINGS: [&str; 8] = [".safetensors", ".json", ".txt", ".jinja", ".model", ".tiktoken", ".md", ".gguf"];
/// One of these makes a folder a model.
const HEADS: [&str; 3] = ["config.json", "adapter_config.json", "model_index.json"];
/// The files that only the run that wrote them needs.
const OF_RUN: [&str; 2] = [MANIFEST, "data.json"];

/// A file to be pushed.
#[derive(Debug, PartialEq, Eq)]
pub struct PushFile {
    /// The file's name in the repository.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Returns the files of the model in `folder`, of folders in it too, and the names of those that are left out.
///
/// # Errors
/// The folder cannot be read, or holds no model.
pub fn files_of(folder: &Path) -> Result<(Vec<PushFile>, Vec<String>), PushError> {
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    collect(folder, "", &mut files, &mut left_out)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    left_out.sort();
    let is_head = |file: &PushFile| HEADS.contains(&file.name.as_str()) || file.name.ends_with(".gguf");
    match files.iter().any(is_head) {
        true => Ok((files, left_out)),
        false => Err(PushError::NoModel { folder: folder.to_owned() }),
    }
}

fn collect(folder: &Path, begin: &str, files: &mut Vec<PushFile>, left_out: &mut Vec<String>) -> Result<(), PushError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        |source| PushError::Io { path, source }
    };
    for entry in fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        let Some(file_name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{begin}{file_name}");
        // Links of the hub's cache are followed.
        let metadata = fs::metadata(&path).map_err(io(&path))?;
        let is_plain = file_name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+=".contains(c));
        let of_run = OF_RUN.contains(&name.as_str()) || name.starts_with("optimizer");
        let is_kind = ENDINGS.iter().any(|ending| file_name.ends_with(ending)) || name == SPEAKERS;
        if file_name.starts_with('.') || !is_plain {
            left_out.push(name);
        } else if metadata.is_dir() && begin.is_empty() {
            collect(&path, &format!("{name}/"), files, left_out)?;
        } else if metadata.is_file() && is_kind && !of_run {
            files.push(PushFile { name, path, bytes: metadata.len() });
        } else {
            left_out.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_pushed_without_what_only_its_run_needs() {
        let folder = tempfile::tempdir().unwrap();
        let error = files_of(folder.path()).unwrap_err().to_string();
        assert!(error.contains("holds no model"), "{error}");
        fs::create_dir_all(folder.path().join("vae/deep")).unwrap();
        for name in [
            "config.json",
            "model.safetensors",
            "README.md",
            "MANIFEST.json",
            "data.json",
            "optimizer-foundation.safetensors",
            "old.bin",
            ".hidden.json",
            "vae/config.json",
            "vae/deep/x.json",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let (files, left_out) = files_of(folder.path()).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["README.md", "config.json", "model.safetensors", "vae/config.json"]);
        let others =
            [".hidden.json", "MANIFEST.json", "data.json", "old.bin", "optimizer-foundation.safetensors", "vae/deep"];
        assert_eq!(left_out, others);
    }
}
