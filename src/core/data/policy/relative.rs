//! Actions relative to the state in which they begin, for the joints that are not excluded.

use std::sync::Arc;

use crate::data::error::DataError;
use crate::data::lerobot::{FeatureStats, Running, Set};

/// Returns which numbers of an action are relative: those whose name contains none of `exclude`, in small letters; all where the data has
/// no names.
pub fn mask(width: usize, names: &[String], exclude: &[String]) -> Vec<bool> {
    let exclude: Vec<String> = exclude.iter().filter(|it| !it.is_empty()).map(|it| it.to_lowercase()).collect();
    let is_relative = |at: usize| match names.get(at) {
        Some(name) => !exclude.iter().any(|word| name.to_lowercase().contains(word)),
        None => true,
    };
    (0..width).map(is_relative).collect()
}

/// Subtracts the state from actions one after the other.
pub fn to_relative(actions: &mut [f32], state: &[f32], mask: &[bool]) {
    each(actions, state, mask, |action, state| action - state);
}

/// Adds the state to actions one after the other.
pub fn to_absolute(actions: &mut [f32], state: &[f32], mask: &[bool]) {
    each(actions, state, mask, |action, state| action + state);
}

fn each(actions: &mut [f32], state: &[f32], mask: &[bool], with: fn(f32, f32) -> f32) {
    for action in actions.chunks_mut(mask.len().max(1)) {
        for ((action, &state), _) in action.iter_mut().zip(state).zip(mask).filter(|(_, is_relative)| **is_relative) {
            *action = with(*action, state);
        }
    }
}

/// Returns the least and the greatest of relative actions at each step of a chunk, `[horizon, width]` each, over all chunks that lie
/// within an episode of these sets (GR00T).
///
/// # Errors
/// A file is damaged, or no episode has that many steps.
pub fn bounds_by_step(
    sets: &[Arc<Set>],
    keys: (&str, &str),
    horizon: usize,
    mask: &[bool],
) -> Result<[Vec<f32>; 2], DataError> {
    let len = horizon * mask.len();
    let [mut low, mut high] = [vec![f32::INFINITY; len], vec![f32::NEG_INFINITY; len]];
    for set in sets {
        each_chunk(set, keys, horizon, mask, |chunk| {
            for (value, (low, high)) in chunk.iter().zip(low.iter_mut().zip(&mut high)) {
                (*low, *high) = (low.min(*value), high.max(*value));
            }
        })?;
    }
    match low.first().is_some_and(|low| low.is_finite()) {
        true => Ok([low, high]),
        false => Err(too_short(&sets[0], horizon)),
    }
}

/// Statistics of relative actions: over all chunks of `horizon` steps that lie within an episode.
///
/// # Errors
/// A file is damaged, or no episode has that many steps.
pub fn stats(set: &Arc<Set>, keys: (&str, &str), horizon: usize, mask: &[bool]) -> Result<FeatureStats, DataError> {
    let mut running = Running::new(mask.len());
    each_chunk(set, keys, horizon, mask, |chunk| running.add(chunk))?;
    running.finish().ok_or_else(|| too_short(set, horizon))
}

fn too_short(set: &Set, horizon: usize) -> DataError {
    DataError::file(set.folder(), format!("has no episode of {horizon} frames, but relative actions need one"))
}

/// Calls `with` for the relative actions of each chunk that lies within an episode.
fn each_chunk(
    set: &Arc<Set>,
    (state, action): (&str, &str),
    horizon: usize,
    mask: &[bool],
    mut with: impl FnMut(&[f32]),
) -> Result<(), DataError> {
    for number in 0..set.blocks(0).len() {
        // Chunks that end within the episode begin so many frames before its last one.
        let block = set.open_block(number, horizon - 1)?;
        let steps: Vec<i64> = (0..horizon as i64).collect();
        for at in 0..block.num_samples() {
            let step = block.step(at);
            let mut chunk = step.window(action, &steps)?.values;
            to_relative(&mut chunk, &step.numbers(state)?, mask);
            with(&chunk);
        }
    }
    Ok(())
}
