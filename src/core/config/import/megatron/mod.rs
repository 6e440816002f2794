//! Options of Megatron-LM's and LoongForge's training programs, by their published examples.

mod data;
mod layout;
mod model;
mod run;
mod train;

use super::sheet::Sheet;

/// Translates all options of a command line.
pub(super) fn read(sheet: &mut Sheet) {
    layout::virtual_stages(sheet);
    model::read(sheet);
    data::read(sheet);
    train::read(sheet);
    layout::read(sheet);
    run::read(sheet);
}
