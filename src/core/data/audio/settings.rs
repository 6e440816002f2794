//! The keys of a feature extractor in `preprocessor_config.json` or `processor_config.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::data::error::DataError;
use crate::data::tokenizer_file::{read_json, read_json_if_exists};

/// A feature extractor's settings under Hugging Face's names; what is absent is `WhisperFeatureExtractor`'s default.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct AudioSettings {
    #[serde(skip)]
    path: PathBuf,
    /// Mel bins of a frame.
    pub feature_size: usize,
    /// Samples a second.
    pub sampling_rate: u32,
    /// Samples from one frame to the next.
    pub hop_length: usize,
    /// Samples of a frame.
    pub n_fft: usize,
    /// Seconds to which a clip is padded, for families that pad.
    pub chunk_length: usize,
    /// Samples to which a shorter clip is padded (Qwen3-ASR).
    pub min_length: Option<usize>,
    padding_value: f64,
    dither: f64,
    do_normalize: bool,
}

impl Default for AudioSettings {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            feature_size: 80,
            sampling_rate: 16_000,
            hop_length: 160,
            n_fft: 400,
            chunk_length: 30,
            min_length: None,
            padding_value: 0.0,
            dither: 0.0,
            do_normalize: false,
        }
    }
}

impl AudioSettings {
    /// Reads the feature extractor's settings of a model folder.
    ///
    /// # Errors
    /// The file is missing or of another form, or asks for what is not known.
    pub fn read(model_dir: &Path) -> Result<Self, DataError> {
        let both = model_dir.join("processor_config.json");
        let nested = read_json_if_exists(&both)?;
        if let Json::Object(_) = &nested["feature_extractor"] {
            return Self::parse(nested["feature_extractor"].clone(), both);
        }
        let path = model_dir.join("preprocessor_config.json");
        if !path.exists() {
            let reason = "is missing, which says how recordings become the input of the audio tower: copy that of the tower's \
                          model, or name a folder that has it in `model.audio_encoder.load`";
            return Err(DataError::file(&path, reason));
        }
        Self::parse(read_json(&path)?, path)
    }

    /// # Errors
    /// A key is of another form, out of range, or asks for what is not known; `path` and key are named.
    pub fn parse(json: Json, path: PathBuf) -> Result<Self, DataError> {
        let mut settings: Self = serde_json::from_value(json).map_err(|error| DataError::file(&path, error))?;
        settings.path = path;
        let range = |key: &str, value: usize, (least, most): (usize, usize)| match value {
            value if (least..=most).contains(&value) => Ok(()),
            _ => Err(settings.wrong(format!("{key} must be {least} to {most}, found {value}"))),
        };
        range("feature_size", settings.feature_size, (1, 512))?;
        range("sampling_rate", settings.sampling_rate as usize, (4_000, 192_000))?;
        range("n_fft", settings.n_fft, (16, 16_384))?;
        range("hop_length", settings.hop_length, (1, settings.n_fft))?;
        range("chunk_length", settings.chunk_length, (1, 3_600))?;
        for (key, is_known) in [
            ("dither: only 0 is supported", settings.dither == 0.0),
            ("padding_value: only 0 is supported", settings.padding_value == 0.0),
            ("do_normalize: only false is supported", !settings.do_normalize),
        ] {
            if !is_known {
                return Err(settings.wrong(key));
            }
        }
        Ok(settings)
    }

    /// Creates an error of the file that the settings were read from.
    pub fn wrong(&self, reason: impl ToString) -> DataError {
        DataError::file(&self.path, reason)
    }

    /// Samples of `chunk_length`.
    pub fn chunk_samples(&self) -> usize {
        self.chunk_length * self.sampling_rate as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_named() {
        for (json, part) in [
            (r#"{"dither": 0.001}"#, "dither: only 0"),
            (r#"{"do_normalize": true}"#, "do_normalize: only false"),
            (r#"{"padding_value": 1}"#, "padding_value: only 0"),
            (r#"{"n_fft": 0}"#, "n_fft must be 16 to 16384, found 0"),
            (r#"{"hop_length": 401}"#, "hop_length must be 1 to 400, found 401"),
            (r#"{"feature_size": "many"}"#, "invalid type"),
        ] {
            let settings =
                AudioSettings::parse(serde_json::from_str(json).unwrap(), "a/preprocessor_config.json".into());
            let error = settings.unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("preprocessor_config.json"), "{error}");
        }
        let own = serde_json::json!({"feature_size": 128, "chunk_length": 300, "min_pixels": 3, "return_attention_mask": true});
        assert_eq!(AudioSettings::parse(own, "a".into()).unwrap().chunk_samples(), 4_800_000);
    }

    #[test]
    fn a_folder_without_settings_is_told_where_they_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let error = AudioSettings::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("preprocessor_config.json: is missing"), "{error}");
        assert!(error.contains("`model.audio_encoder.load`"), "{error}");
    }
}
