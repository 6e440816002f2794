//! Checkpoints and model folders as such, without a run: what is in them, whether they are whole, how they differ, and
//! the same weights in another form.

mod diff;
mod diffusion;
mod draft;
mod export;
mod export_error;
mod fit;
mod gguf;
mod inspect;
mod llava;
mod saved_config;
mod verify;

pub use diff::{Difference, TensorDiff, diff};
pub use diffusion::{Format, export_diffusion};
pub use export::{Export, Exported, export};
pub use export_error::ExportError;
pub use fit::{FitError, expect_fit, expect_tied_head, load_options};
pub use gguf::{TensorType as GgufType, export_gguf};
pub use inspect::inspect;
pub use llava::{CLASS as LLAVA_CLASS, Llava};
pub use saved_config::{put_use_peft, saved_config};
pub use verify::verify;

/// Elements of a tensor that are read at once.
const BLOCK: i64 = 8 << 20;

/// Returns the first row and number of rows of each block of a tensor of this shape; a tensor without dimensions is one row.
fn row_blocks(shape: &[i64]) -> impl Iterator<Item = (i64, i64)> {
    // There may be any number of rows without values.
    let rows = if shape.contains(&0) { 0 } else { shape.first().copied().unwrap_or(1) };
    let step = (BLOCK / shape.iter().skip(1).product::<i64>().max(1)).max(1);
    (0..rows).step_by(step as usize).map(move |first| (first, step.min(rows - first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_all_rows_once() {
        let blocks = |shape: &[i64]| row_blocks(shape).collect::<Vec<_>>();
        assert_eq!((blocks(&[]), blocks(&[0, 4]), blocks(&[5, 7])), (vec![(0, 1)], vec![], vec![(0, 5)]));
        assert!(blocks(&[1 << 56, 0]).is_empty(), "rows without values");
        assert_eq!(blocks(&[5, BLOCK / 2]), [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(blocks(&[2, BLOCK * 2]), [(0, 1), (1, 1)]);
    }
}
