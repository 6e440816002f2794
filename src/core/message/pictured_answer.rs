//! Values of an item of a reference model with vision: an answer after its prompt, with the token to predict at each position. Such
//! an item is one of [`crate::message::Tower::Reference`] with rows of one value each.
//!
//! ```text
//! pictures │ tokens │ frames rows columns of each picture │ ids │ positions by frame, by row, by column │ targets │ patches │ zeros
//! ```
//!
//! Its grid is as many frames as the values take × as many rows as there are tokens × 1, so that a reader without the values knows the
//! number of tokens, too. Zeros fill the last frame.

use super::Grid;
use super::pictured_text::{NoPicturedText, PicturedText, count};

/// An answer after its prompt, with features of pictures among its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PicturedAnswer {
    pub text: PicturedText,
    /// The token to predict at each position, or -1.
    pub targets: Vec<i64>,
}

impl PicturedAnswer {
    /// Returns the item's grid and values; `patches` are those of all pictures, concatenated.
    pub fn item(&self, patches: &[&[f32]]) -> (Grid, Vec<f32>) {
        let targets: Vec<f32> = self.targets.iter().map(|&target| target as f32).collect();
        let mut values = self.text.values(&[&[targets.as_slice()], patches].concat());
        // No number of pictures is below 0 here.
        values[0] = self.text.grids.len() as f32;
        let tokens = self.targets.len().max(1);
        let frames = values.len().div_ceil(tokens);
        values.resize(frames * tokens, 0.0);
        (Grid { t: frames as u32, h: tokens as u32, w: 1 }, values)
    }

    /// Returns the number of values before the patches, for an item that begins with these two.
    pub fn len_of_head([pictures, tokens]: [f32; 2]) -> usize {
        2 + 3 * count(pictures) + 5 * count(tokens)
    }

    /// Reads the answer from the values before the patches.
    ///
    /// # Errors
    /// Fails if there are more or fewer values than they say.
    pub fn of_head(head: &[f32]) -> Result<Self, NoPicturedText> {
        let &[pictures, tokens, ..] = head else { return Err(NoPicturedText) };
        if head.len() != Self::len_of_head([pictures, tokens]) {
            return Err(NoPicturedText);
        }
        let (text, targets) = head.split_at(head.len() - count(tokens));
        let text = PicturedText::of_head(text, 2 + 3 * count(pictures))?;
        Ok(Self { text, targets: targets.iter().map(|&target| target as i64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_says_how_it_is_laid_out() {
        for num_pictures in [0, 2] {
            let grids = vec![Grid { t: 1, h: 2, w: 4 }; num_pictures];
            let positions = (0..12).map(|at| at as f32).collect();
            let text = PicturedText { ids: vec![5, 9, 9, 151_655], positions, grids };
            let answer = PicturedAnswer { text, targets: vec![-1, -1, 9, 0] };
            let (grid, values) = answer.item(&vec![&[0.5; 16][..]; num_pictures]);
            let len = PicturedAnswer::len_of_head([values[0], values[1]]);
            assert_eq!((len, grid.h, grid.num_cells()), (22 + 3 * num_pictures, 4, values.len()));
            assert!((0..4).contains(&(values.len() - len - 16 * num_pictures)), "{}", values.len());
            assert_eq!(PicturedAnswer::of_head(&values[..len]).unwrap(), answer);
            assert_eq!(PicturedAnswer::of_head(&values[..len - 1]), Err(NoPicturedText));
        }
        assert_eq!(PicturedAnswer::of_head(&[0.0]), Err(NoPicturedText));
        assert_eq!(PicturedAnswer::len_of_head([f32::INFINITY, -1.0]), 2 + 3 * (1 << 24), "no number of tokens");
    }
}
