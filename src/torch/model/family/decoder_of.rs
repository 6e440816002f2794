//! The decoder of a config with some changes, which the tests of families look at.

use serde_json::Value;

use crate::model::ModelConfig;
use crate::model::decoder::DecoderConfig;

/// Returns the decoder that the config's family reads, or the text of its error.
pub(super) fn decoder_of(mut config: Value, changes: &Value) -> Result<DecoderConfig, String> {
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let model = ModelConfig::from_hf(&config).map_err(|error| error.to_string())?;
    Ok(model.decoder().unwrap().clone())
}
