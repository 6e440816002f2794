//! GLM-5 and GLM-5.2 (`GlmMoeDsaForCausalLM`): DeepSeek-V3.2's blocks; some layers take the keys that an earlier one
//! chose (IndexShare).

use serde_json::{Value, json};

use super::common::NamePrefix;
use super::deepseek::{Defaults, V3, attention, biased_router, decoder, feed_forwards, indexer, rope};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::{KeyChoice, MlaConfig, NormConfig, RopeLayout};

/// The defaults of its config class.
const DEFAULTS: Defaults = Defaults { groups: [1, 1], ..V3 };

pub(super) const FAMILY: TextFamily = TextFamily::new("glm_moe_dsa", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let rope = rope(keys, RopeLayout::Interleaved)?;
    let (attention, indexer) = (attention(keys, &rope)?, indexer(keys, RopeLayout::Interleaved)?);
    let mut last = 0;
    let mixer = |(layer, full): (usize, bool)| {
        if full {
            last = layer;
        }
        let keys = match full {
            true => KeyChoice::Indexed { indexer: indexer.clone(), layer },
            false => KeyChoice::Shared { layer: last },
        };
        MlaConfig { keys, ..attention.clone() }
    };
    let mixers = full_layers(keys)?.into_iter().enumerate().map(mixer).collect();
    let feed_forwards = feed_forwards(keys, &DEFAULTS, biased_router(keys, &DEFAULTS)?, false)?;
    let decoder = decoder(keys, place, &DEFAULTS, mixers, feed_forwards, rope)?;
    let eps = keys.number_or("rms_norm_eps")?.unwrap_or(1e-5);
    let norm = NormConfig { eps, ..decoder.norm };
    Ok(decoder.with_norm(norm))
}

/// Returns which layers have an indexer of their own: `indexer_types`, or `index_topk_pattern`, or by `index_topk_freq`
/// and `index_skip_topk_offset`.
fn full_layers(keys: &Keys<'_>) -> Result<Vec<bool>, ModelConfigError> {
    let num_layers = keys.size("num_hidden_layers")?;
    let (key, found) = if let Some(types) = keys.value("indexer_types") {
        ("indexer_types", types.as_array().and_then(|types| types.iter().map(|kind| full(kind.as_str()?)).collect()))
    } else if let Some(pattern) = keys.value("index_topk_pattern") {
        let letters = |pattern: &str| pattern.chars().map(|kind| full(kind.encode_utf8(&mut [0; 4]))).collect();
        let list = || pattern.as_array()?.iter().map(|kind| full(kind.as_str()?)).collect();
        ("index_topk_pattern", pattern.as_str().map_or_else(list, letters))
    } else {
        let every = keys.index_or("index_topk_freq")?.unwrap_or(1).max(1);
        let offset = keys.index_or("index_skip_topk_offset")?.unwrap_or(2);
        let own = |layer: i64| (layer - offset + 1).max(0) % every == 0;
        ("index_topk_freq", Some((0..num_layers).map(own).collect::<Vec<bool>>()))
    };
    let value = keys.value(key).unwrap_or(&Value::Null);
    let found = found.ok_or_else(|| keys.unsupported(key, value, &[json!("full"), json!("shared")]))?;
    if found.len() as i64 != num_layers || !found[0] {
        let must = format!("must name num_hidden_layers ({num_layers}) layers, the first of them full");
        return Err(keys.inconsistent(key, value, must));
    }
    Ok(found)
}

fn full(kind: &str) -> Option<bool> {
    match kind {
        "full" | "F" => Some(true),
        "shared" | "S" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::full_layers;
    use crate::model::keys::Keys;

    fn read(key: &str, value: Value) -> Result<Vec<bool>, String> {
        let config = json!({"num_hidden_layers": 7, key: value, "index_skip_topk_offset": 3});
        full_layers(&Keys::new(&config)).map_err(|error| error.to_string())
    }

    #[test]
    fn layers_with_an_indexer_are_named_or_counted() {
        let [f, s] = [true, false];
        let expected = Ok(vec![f, f, f, s, s, s, f]);
        assert_eq!(read("index_topk_freq", json!(4)), expected);
        assert_eq!(read("index_topk_pattern", json!("FFFSSSF")), expected);
        let types = ["full", "full", "full", "shared", "shared", "shared", "full"];
        assert_eq!(read("indexer_types", json!(types)), expected);
        assert_eq!(read("index_topk_freq", json!(null)), Ok(vec![f; 7]));
    }

    #[test]
    fn errors_name_the_key() {
        let error = read("index_topk_pattern", json!("SFFFFFF")).unwrap_err();
        assert!(error.contains("index_topk_pattern") && error.contains("the first of them full"), "{error}");
        let error = read("indexer_types", json!(["half"])).unwrap_err();
        assert!(error.contains("indexer_types") && error.contains("\"shared\""), "{error}");
    }
}
