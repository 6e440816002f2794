//! The keys of a run's config for a language model beside its `config.json`: heads that predict further tokens, balance of experts, and
//! indexers.

use crate::model::error::FolderError;
use loongforge_core::config::Model;
use loongforge_torch::model::ModelConfig;

/// Applies `model.mtp`, `model.moe` and `model.indexer`.
///
/// # Errors
/// The model has no such heads, routers or indexers.
pub(super) fn apply_decoder_keys(model: &Model, config: &mut ModelConfig) -> Result<(), FolderError> {
    // Most published configs name heads whose weights a checkpoint may lack: they are trained where a run asks.
    let num_heads = model.mtp.num_layers.unwrap_or(0);
    if num_heads > 0 && config.edit_decoder(|it| it.enable_mtp(num_heads, model.mtp.loss_weight)) != Some(true) {
        return Err(FolderError::NoMtp { num_heads, model_type: config.model_type.clone() });
    }
    let moe = &model.moe;
    let balanced = config.edit_decoder(|decoder| {
        let balance = &mut decoder.balance;
        for (value, wanted) in [
            (&mut balance.aux_loss_coef, moe.aux_loss_coef),
            (&mut balance.z_loss_coef, moe.z_loss_coef),
            (&mut balance.bias_update_rate, moe.bias_update_rate),
        ] {
            *value = wanted.unwrap_or(*value);
        }
        decoder.num_experts().is_some()
    });
    if balanced != Some(true) && [moe.aux_loss_coef, moe.z_loss_coef, moe.bias_update_rate].iter().any(Option::is_some)
    {
        return Err(FolderError::NoRouters { model_type: config.model_type.clone() });
    }
    if let Some(coef) = model.indexer.loss_coef
        && config.edit_decoder(|it| it.train_indexers(coef, model.indexer.warm_up)) != Some(true)
    {
        return Err(FolderError::NoIndexer { model_type: config.model_type.clone() });
    }
    Ok(())
}
