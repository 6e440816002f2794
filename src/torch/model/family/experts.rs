//! The readers that the configs of families with experts have in common.

use serde_json::{Value, json};

use crate::model::decoder::{Balance, DecoderConfig, FeedForwardConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::moe::RouterConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns the number of experts under the first of `names` that the config has; transformers 5 writes `num_local_experts` whatever the
/// family's own name is.
pub(super) fn num_experts(keys: &Keys<'_>, names: &[&str]) -> Result<i64> {
    for name in names.iter().chain(&["num_local_experts"]) {
        if let Some(found) = keys.size_or(name)? {
            return Ok(found);
        }
    }
    Err(keys.missing(names.first().unwrap_or(&"num_local_experts")))
}

/// Refuses a router whose numbers do not fit together.
pub(super) fn checked(keys: &Keys<'_>, router: RouterConfig) -> Result<RouterConfig> {
    match router.problem() {
        Some((key, must)) => Err(keys.inconsistent(key, keys.value(key).unwrap_or(&Value::Null), must)),
        None => Ok(router),
    }
}

/// Returns the load-balancing loss, on where `output_router_logits` is, as in transformers.
pub(super) fn balance(keys: &Keys<'_>, default_coef: f64) -> Result<Balance> {
    let coef = keys.number_or("router_aux_loss_coef")?.unwrap_or(default_coef);
    let on = keys.flag_or("output_router_logits")?.unwrap_or(false);
    Ok(Balance { aux_loss_coef: if on { coef } else { 0.0 }, ..Balance::default() })
}

/// Returns the feed-forwards of Qwen's layers: experts in every `decoder_sparse_step`th but those of `mlp_only_layers`.
pub(super) fn qwen_layers(
    keys: &Keys<'_>,
    dense: &FeedForwardConfig,
    experts: &FeedForwardConfig,
) -> Result<Vec<FeedForwardConfig>> {
    let step = keys.size_or("decoder_sparse_step")?.unwrap_or(1);
    let dense_layers = if keys.value("mlp_only_layers").is_some() { keys.indices("mlp_only_layers")? } else { vec![] };
    let of_layer = |layer| match (layer + 1) % step == 0 && !dense_layers.contains(&layer) {
        true => experts.clone(),
        false => dense.clone(),
    };
    Ok((0..keys.size("num_hidden_layers")?).map(of_layer).collect())
}

/// Returns which layers have experts by `mlp_layer_types`, which transformers 5 writes; `None` where the key is not
/// there.
pub(super) fn sparse_layers(keys: &Keys<'_>) -> Result<Option<Vec<bool>>> {
    let Some(types) = keys.value("mlp_layer_types") else { return Ok(None) };
    let sparse = |kind: &Value| match kind.as_str() {
        Some("sparse") => Some(true),
        Some("dense") => Some(false),
        _ => None,
    };
    let found: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(sparse).collect());
    let found = found.ok_or_else(|| keys.unsupported("mlp_layer_types", types, &[json!("dense"), json!("sparse")]))?;
    let layers = keys.size("num_hidden_layers")?;
    if found.len() as i64 != layers {
        let must = format!("must have one entry for each of num_hidden_layers ({layers})");
        return Err(keys.inconsistent("mlp_layer_types", types, must));
    }
    Ok(Some(found))
}

/// Removes the load-balancing loss of the decoder's own config, which transformers does not add inside of this model; a run may ask for
/// one.
pub(super) fn unbalanced(decoder: DecoderConfig) -> DecoderConfig {
    DecoderConfig { balance: Balance::default(), ..decoder }
}
