//! Masks of the loss: how much each token of a picture or clip counts.

use super::latents::LatentSpace;
use super::pictures::Frames;
use crate::data::error::DataError;
use crate::data::{ColumnValues, SampleColumn};
use crate::message::Grid;

/// The column of the weights of a sample's tokens.
const WEIGHTS: &str = "weights";

/// Returns the weight in [0, 1] of each token of one frame: the mean brightness of its pixels in `mask`, whose sides are whole tokens.
pub fn of_tokens(mask: &Frames, space: LatentSpace) -> Vec<f32> {
    let ([rows, columns], width) = (space.unit(), mask.columns);
    let bytes = &mask.rgb[0];
    let mean = |top: usize, left: usize| {
        let row = |at: usize| &bytes[3 * ((top + at) * width + left)..3 * ((top + at) * width + left + columns)];
        let sum: u64 = (0..rows).flat_map(row).map(|byte| u64::from(*byte)).sum();
        (sum as f64 / (255 * 3 * rows * columns) as f64) as f32
    };
    let tops = (0..mask.rows / rows).map(|row| row * rows);
    tops.flat_map(|top| (0..width / columns).map(move |column| mean(top, column * columns))).collect()
}

/// Returns the column of a sample of `num_tokens` tokens, of which the first are its target `grid`: `of_frame` weighs the tokens of each
/// frame, the first `num_clean` are given and count nothing, nor do references. Returns how many tokens count as well.
///
/// # Errors
/// No token counts.
pub fn column(
    of_frame: Option<&[f32]>,
    grid: Grid,
    num_tokens: usize,
    num_clean: usize,
) -> Result<(SampleColumn, usize), DataError> {
    let (frame, target) = ((grid.h * grid.w) as usize, grid.num_cells());
    let weight = |token: usize| match of_frame {
        _ if token < num_clean || token >= target => 0.0,
        Some(weights) => weights[token % frame],
        None => 1.0,
    };
    let weights: Vec<f32> = (0..num_tokens).map(weight).collect();
    let counted = weights.iter().filter(|weight| **weight > 0.0).count();
    if counted == 0 {
        return Err(DataError::Line("its mask is black, which leaves nothing to learn".to_owned()));
    }
    let values = ColumnValues::F32(weights);
    let column =
        SampleColumn { name: WEIGHTS.to_owned(), before: Vec::new(), rows: num_tokens, after: Vec::new(), values };
    Ok((column, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_as_much_as_their_part_of_the_mask_is_bright() {
        let space = LatentSpace { channels: 3, frames: 4, side: 1, patch: [2, 2] };
        let gray = |bytes: [u8; 8]| bytes.iter().flat_map(|byte| [*byte; 3]).collect();
        let mask = Frames { rows: 2, columns: 4, rgb: vec![gray([255, 255, 0, 255, 255, 255, 0, 255])] };
        let of_frame = of_tokens(&mask, space);
        assert_eq!(of_frame, [1.0, 0.5]);
        // Two frames, of which the first is given, and a token of a reference.
        let (column, counted) = column(Some(&of_frame), Grid { t: 2, h: 1, w: 2 }, 5, 2).unwrap();
        assert_eq!((column.values, counted), (ColumnValues::F32(vec![0.0, 0.0, 1.0, 0.5, 0.0]), 2));
        let black = super::column(Some(&[0.0, 0.0]), Grid { t: 1, h: 1, w: 2 }, 2, 0).unwrap_err().to_string();
        assert!(black.contains("its mask is black"), "{black}");
    }
}
