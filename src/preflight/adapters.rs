//! Folders of adapters to go on from, against what the runs that saved them have written.

use loongforge_core::checkpoint::{CheckpointError, MANIFEST, Manifest};
use loongforge_core::config::RunConfig;
use loongforge_core::files;
use std::path::Path;

/// Says which adapters to go on from are not as the run that saved them wrote them.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key}.lora.adapter: {source}; name other adapters, or remove {MANIFEST} there if its files were changed on purpose"
)]
pub struct AdapterProblem {
    key: &'static str,
    source: CheckpointError,
}

/// Checks that adapters to go on from are as written where they are a run's: a wrong bit changes a number, and no tensor's shape. Of other
/// programs' folders nobody knows.
///
/// # Errors
/// A file of adapters, or the manifest beside it, has changed or cannot be read.
pub(super) fn expect_as_written(config: &RunConfig) -> Result<(), AdapterProblem> {
    for (key, part) in config.model.parts() {
        if let Some(source) = part.lora.as_ref().and_then(|lora| lora.adapter.as_ref()) {
            verify(source.as_path()).map_err(|source| AdapterProblem { key, source })?;
        }
    }
    Ok(())
}

/// Compares the files of adapters with the manifest of their checkpoint, where there is one. What else the run wrote there may be gone.
fn verify(folder: &Path) -> Result<(), CheckpointError> {
    let path = folder.join(MANIFEST);
    let text = match files::read(&path, files::MAX_TEXT_BYTES) {
        Ok(text) => text,
        Err(error) if files::is_missing(&error) => return Ok(()),
        Err(error) => return Err(CheckpointError::read(&path)(error)),
    };
    Manifest::parse(&text, folder)?.verify_some(folder, |name| name.starts_with("adapter_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::{FileEntry, sha256};
    use loongforge_core::config::{Lora, Source, load_text};

    #[test]
    fn a_wrong_bit_in_adapters_of_a_run_is_found_and_those_of_others_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let loaded = load_text(include_str!("../../configs/sft_text.yaml"));
        let mut config = loaded.unwrap_or_else(|report| panic!("{report}")).config;
        let adapter = Some(Source::new(dir.path().display().to_string()));
        config.model.foundation.lora = Some(Lora { adapter, ..Lora::default() });
        let check = || expect_as_written(&config).map_err(|error| error.to_string());
        std::fs::write(path("adapter_model.safetensors"), "numbers").unwrap();
        assert_eq!(check(), Ok(()));
        let hash = sha256(&path("adapter_model.safetensors")).unwrap();
        // Of what the run wrote, an optimizer's state is not needed.
        let files = [("adapter_model.safetensors", hash.as_str()), ("optimizer-foundation.safetensors", "gone")];
        let entry = |(name, hash): (&str, &str)| (name.to_owned(), FileEntry { bytes: 7, sha256: hash.to_owned() });
        let manifest = Manifest::of_files(1, files.map(entry).into());
        std::fs::write(path(MANIFEST), manifest.to_text()).unwrap();
        assert_eq!(check(), Ok(()));
        std::fs::write(path("adapter_model.safetensors"), "numberr").unwrap();
        let error = check().unwrap_err();
        assert!(error.starts_with("model.foundation.lora.adapter: checkpoint "), "{error}");
        let words = ["adapter_model.safetensors changed", "remove MANIFEST.json"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
