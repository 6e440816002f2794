//! The readers that the configs of vision towers have in common.

use serde_json::json;

use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

/// Returns the activation of `key`, or `default`.
pub(super) fn activation(keys: &Keys<'_>, key: &str, default: Activation) -> Result<Activation, ModelConfigError> {
    Ok(keys.activation_or(key)?.unwrap_or(default))
}

/// Returns `rope_parameters.rope_theta`, 10 000 where there is none.
pub(super) fn axial_theta(keys: &Keys<'_>) -> Result<f64, ModelConfigError> {
    let Some(rope) = keys.section_or("rope_parameters")? else { return Ok(10_000.0) };
    rope.only("rope_type", &[json!("axial")])?;
    Ok(rope.number_or("rope_theta")?.unwrap_or(10_000.0))
}

/// Heads must share the width; with a rotary embedding of two axes each needs channels for both.
pub(super) fn check_heads(
    keys: &Keys<'_>,
    (width_key, width): (&str, i64),
    key: &str,
    heads: i64,
    rope: bool,
) -> Result<(), ModelConfigError> {
    let unit = if rope { 4 * heads } else { heads };
    if width % unit == 0 {
        return Ok(());
    }
    let factor = if rope { "4 x " } else { "" };
    Err(keys.inconsistent(width_key, width, format!("must be a multiple of {factor}{key} ({unit})")))
}

/// Returns `hidden_size` and `num_heads` of a tower with a rotary embedding of two axes.
pub(super) fn width_and_heads(keys: &Keys<'_>) -> Result<(i64, i64), ModelConfigError> {
    let (width, num_heads) = (keys.size("hidden_size")?, keys.size("num_heads")?);
    check_heads(keys, ("hidden_size", width), "num_heads", num_heads, true)?;
    Ok((width, num_heads))
}

/// Returns the side of a square, of one number or of two equal ones.
pub(in crate::model) fn square(keys: &Keys<'_>, key: &str) -> Result<Option<i64>, ModelConfigError> {
    if !keys.value(key).is_some_and(|value| value.is_array()) {
        return keys.size_or(key);
    }
    match keys.indices(key)?.as_slice() {
        [height, width] if height == width && *height > 0 => Ok(Some(*height)),
        other => Err(keys.inconsistent(key, format!("{other:?}"), "must be two equal sizes")),
    }
}

/// Returns the number of blocks whose states `vision_feature_layer` takes of a tower of `num_blocks`, counted as in `hidden_states` of
/// transformers: 0 are the patches, -1 the states behind the last block. `default` where the key is absent.
pub(in crate::model) fn feature_layer(
    keys: &Keys<'_>,
    num_blocks: i64,
    default: Option<i64>,
) -> Result<Option<i64>, ModelConfigError> {
    let key = "vision_feature_layer";
    let Some(layer) = keys.integer_or(key)?.or(default) else { return Ok(None) };
    let blocks = if layer < 0 { num_blocks + 1 + layer } else { layer };
    match (1..=num_blocks).contains(&blocks) {
        true => Ok(Some(blocks)),
        false => {
            Err(keys.inconsistent(key, layer, format!("must be one of the {num_blocks} blocks: -1 is the last one")))
        }
    }
}

/// Returns `spatial_merge_size`, a key of our own: the side of the square of patches that becomes one feature.
pub(super) fn merge(keys: &Keys<'_>) -> Result<i64, ModelConfigError> {
    Ok(keys.size_or("spatial_merge_size")?.unwrap_or(1))
}

/// Works like [`merge`] of a tower whose pictures always have `side` patches a side.
pub(super) fn merge_of(keys: &Keys<'_>, side: i64) -> Result<i64, ModelConfigError> {
    let merge = merge(keys)?;
    match side % merge {
        0 => Ok(merge),
        _ => Err(keys.inconsistent("spatial_merge_size", merge, format!("must divide the {side} patches of a side"))),
    }
}

/// Returns the width of a feed-forward: `mlp_ratio` times that of a state, four times where a config has no ratio.
pub(super) fn mlp_width(keys: &Keys<'_>, width: i64) -> Result<i64, ModelConfigError> {
    let ratio = keys.number_or("mlp_ratio")?.unwrap_or(4.0);
    let inner = (width as f64 * ratio) as i64;
    match (1..=64 * width).contains(&inner) {
        true => Ok(inner),
        false => {
            let must = format!("must be at most 64, and leave at least one channel of the width ({width})");
            Err(keys.inconsistent("mlp_ratio", ratio, must))
        }
    }
}

/// Refuses dropout.
pub(super) fn no_dropout(keys: &Keys<'_>, names: &[&str]) -> Result<(), ModelConfigError> {
    names.iter().try_for_each(|name| keys.no_dropout(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::mlp_width;
    use crate::model::keys::Keys;

    #[test]
    fn a_feed_forward_has_a_width_within_bounds() {
        let of = |ratio: f64| {
            let config = json!({"mlp_ratio": ratio});
            mlp_width(&Keys::new(&config), 48).map_err(|error| error.to_string())
        };
        assert_eq!((of(2.5), of(64.0)), (Ok(120), Ok(3072)));
        for ratio in [-4.0, 0.0, 0.02, 65.0, 1e300] {
            let message = of(ratio).unwrap_err();
            assert!(message.contains("must be at most 64, and leave at least one channel"), "{message}");
        }
    }
}
