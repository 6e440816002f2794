//! Features of a frozen encoder: kept ones, and others made item by item.

use crate::engine::cache::{FeatureCache, stack};
use crate::engine::cache_key::Key;
use crate::model::EncoderModel;
use crate::tape::Execution;
use crate::train::TrainState;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{Grid, Tower};
use tch::{Kind, Tensor};

/// The values of items as the tower of `model` takes them, whose parameters are of `kind`.
pub(super) fn input(model: &dyn EncoderModel, items: &Tensor, kind: Kind) -> Tensor {
    if model.takes_ids() { items.shallow_clone() } else { items.to_kind(kind) }
}

/// Features of items of a frozen encoder, level by level, and how many were kept: the others are encoded, each by itself.
pub(super) fn encode_each(
    cache: &mut FeatureCache,
    (tower, model): (Tower, &dyn EncoderModel),
    state: &TrainState,
    grids: &[Grid],
    pixels: &Tensor,
) -> Result<(Vec<Tensor>, u32), EngineError> {
    let (kind, device) = (state.params().flat().kind(), state.params().flat().device());
    let (mut start, mut num_cached) = (0, 0);
    let mut features = |&grid: &Grid| -> Result<Vec<Tensor>, EngineError> {
        let len = grid.num_cells() as i64;
        let own = pixels.narrow(0, start, len);
        start += len;
        let key = Key::of(tower, grid, &own);
        if let Some(kept) = cache.get(tower, &key) {
            num_cached += 1;
            return Ok(kept);
        }
        let made = encode_one(model, state, grid, &own)?;
        cache.keep(tower, key, &made);
        Ok(made)
    };
    let items: Vec<Vec<Tensor>> = grids.iter().map(&mut features).collect::<Result<_, _>>()?;
    let num_levels = items.first().map_or(0, Vec::len);
    Ok(((0..num_levels).map(|level| stack(&items, level, kind, device)).collect(), num_cached))
}

/// Features of one item of a frozen encoder, level by level.
pub(in crate::engine) fn encode_one(
    model: &dyn EncoderModel,
    state: &TrainState,
    grid: Grid,
    pixels: &Tensor,
) -> Result<Vec<Tensor>, EngineError> {
    let params = state.params();
    let record = model.record_items(&[grid], pixels)?;
    let inputs = vec![(record.pixels, input(model, pixels, params.flat().kind()))];
    let mut run = Execution::forward_only(record.tape, params.clone(), inputs).with_mesh(state.mesh_or_single());
    run.forward()?;
    Ok(record.outputs.iter().map(|&slot| run.value(slot).shallow_clone()).collect())
}
