//! Actions relative to the state in which they begin, for the joints that are not excluded.

use std::sync::Arc;

use crate::data::error::DataError;
use crate::data::lerobot::{FeatureStats, Running, Set};

/// Which numbers of an action are relative: those whose name has none of `exclude` in it, in small letters; all where the data
/// has no names.
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

/// Statistics of relative actions: over all chunks of `horizon` steps that lie within an episode.
///
/// # Errors
/// A file is damaged, or no episode has that many steps.
pub fn stats(
    set: &Arc<Set>,
    (state, action): (&str, &str),
    horizon: usize,
    mask: &[bool],
) -> Result<FeatureStats, DataError> {
    let mut running = Running::new(mask.len());
    for number in 0..set.blocks(0).len() {
        // Chunks that end within the episode begin so many frames before its last one.
        let block = set.open_block(number, horizon - 1)?;
        let steps: Vec<i64> = (0..horizon as i64).collect();
        for at in 0..block.num_samples() {
            let step = block.step(at);
            let mut chunk = step.window(action, &steps)?.values;
            to_relative(&mut chunk, &step.numbers(state)?, mask);
            running.add(&chunk);
        }
    }
    running.finish().ok_or_else(|| {
        DataError::file(set.folder(), format!("has no episode of {horizon} frames, and relative actions need one"))
    })
}
