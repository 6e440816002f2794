//! Features of a frozen encoder: kept ones, and others made item by item.

use crate::engine::cache::{FeatureCache, stack};
use crate::engine::cache_key::Key;
use crate::model::EncoderModel;
use crate::tape::Execution;
use crate::train::TrainState;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{Grid, Tower};
use tch::{Kind, Tensor};

/// Returns the values of items as the tower of `model` takes them, whose parameters are of `kind`.
pub(super) fn input(model: &dyn EncoderModel, items: &Tensor, kind: Kind) -> Tensor {
    if model.takes_ids() { items.shallow_clone() } else { items.to_kind(kind) }
}

/// Returns the features of items of a frozen encoder, level by level, and how many were kept: the others are encoded, each by itself.
pub(super) fn encode_each(
    cache: &mut FeatureCache,
    (tower, model): (Tower, &dyn EncoderModel),
    state: &TrainState,
    grids: &[Grid],
    pixels: &Tensor,
) -> Result<(Vec<Tensor>, u32), EngineError> {
    let device = state.params().flat().device();
    let (mut start, mut num_cached) = (0, 0);
    let mut features = |&grid: &Grid| -> Result<Vec<Tensor>, EngineError> {
        let len = grid.num_cells() as i64;
        let own = pixels.narrow(0, start, len);
        start += len;
        let key = Key::of(tower, grid, &own);
        let kept = cache.get(tower, &key);
        let kept = if cache.may_differ() { of_all_ranks(kept, state)? } else { kept };
        if let Some(kept) = kept {
            num_cached += 1;
            return Ok(kept);
        }
        let made = encode_one(model, state, grid, &own)?;
        cache.keep(tower, key, &made);
        Ok(made)
    };
    let items: Vec<Vec<Tensor>> = grids.iter().map(&mut features).collect::<Result<_, _>>()?;
    let num_levels = items.first().map_or(0, Vec::len);
    Ok(((0..num_levels).map(|level| stack(&items, level, device)).collect(), num_cached))
}

/// Returns the features of items of a frozen encoder, level by level, each encoded by itself: the bits are those of [`encode_each`].
pub(super) fn encode_apart(
    model: &dyn EncoderModel,
    state: &TrainState,
    grids: &[Grid],
    pixels: &Tensor,
) -> Result<Vec<Tensor>, EngineError> {
    let mut start = 0;
    let mut features = |&grid: &Grid| {
        let own = pixels.narrow(0, start, grid.num_cells() as i64);
        start += own.size()[0];
        encode_one(model, state, grid, &own)
    };
    let items: Vec<Vec<Tensor>> = grids.iter().map(&mut features).collect::<Result<_, _>>()?;
    let (num_levels, device) = (items.first().map_or(0, Vec::len), state.params().flat().device());
    Ok((0..num_levels).map(|level| stack(&items, level, device)).collect())
}

/// Keeps an item's features if all ranks that compute the encoder together have kept them: where one lacks them, all encode it.
fn of_all_ranks(kept: Option<Vec<Tensor>>, state: &TrainState) -> Result<Option<Vec<Tensor>>, EngineError> {
    let Some(mesh) = state.mesh().filter(|mesh| mesh.tp.world() > 1) else { return Ok(kept) };
    let lacks = Tensor::from_slice(&[i64::from(kept.is_none())]);
    mesh.tp.all_reduce_max(&lacks)?;
    Ok(kept.filter(|_| lacks.int64_value(&[0]) == 0))
}

/// Returns the features of one item of a frozen encoder, level by level.
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

#[cfg(test)]
mod tests {
    use super::of_all_ranks;
    use crate::comm::Mesh;
    use crate::params::ParamStore;
    use crate::train::{Lanes, TrainState};
    use loongforge_core::config::Layout;
    use std::rc::Rc;
    use std::time::Duration;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn an_item_that_one_rank_lacks_is_kept_by_none() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let on_rank = |rank: usize| {
            let layout = Layout { tp: 2, ..Layout::default() };
            let mesh = Rc::new(Mesh::join(&store, "pool", layout, rank, Duration::from_secs(60)).unwrap());
            let params = Rc::new(ParamStore::new(Vec::new(), Kind::Float, Device::Cpu));
            let state = TrainState::new(params, mesh.data.clone(), Lanes::PerReplica, None).unwrap().split_among(mesh);
            let kept = || Some(vec![Tensor::from(1.0)]);
            let is_kept = |kept: Option<Vec<Tensor>>| of_all_ranks(kept, &state).unwrap().is_some();
            [is_kept(kept()), is_kept(kept().filter(|_| rank == 0)), is_kept(None)]
        };
        std::thread::scope(|scope| {
            let on_rank = &on_rank;
            let ranks = [0, 1].map(|rank| scope.spawn(move || on_rank(rank)));
            ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), [true, false, false]));
        });
    }
}
