//! Recording a branch of a block beside its residual, with what happens among the ranks that share the block.

use crate::tape::{Slot, Tape};

/// Records `x` plus what `record` makes of it. Where the block `is_split` among ranks, `x` enters each rank's part, and the parts are
/// summed.
pub(in crate::model) fn beside(
    tape: &mut Tape,
    x: Slot,
    is_split: bool,
    record: impl FnOnce(&mut Tape, Slot) -> Slot,
) -> Slot {
    let entered = if is_split { tape.copy_to_region(x) } else { x };
    let y = record(tape, entered);
    let y = if is_split { tape.reduce_from_region(y) } else { y };
    tape.add(x, y)
}
