//! Values of an item of a text tower with vision (Qwen-Image-Edit, GR00T): a text in which some tokens are features of pictures. Such
//! an item is one of [`crate::message::Tower::Text`] with rows of one value each.
//!
//! ```text
//! -pictures │ tokens │ frames rows columns of each picture │ ids │ positions by frame, by row, by column │ patches │ zeros
//! ```
//!
//! A text without pictures has ids alone, which are at least 0. Numbers are whole and below 2²⁴, but for those of patches. An item whose
//! grid tells its tokens ([`PicturedText::item`]) may end with zeros, others end with the patches.

use super::Grid;

/// A text with features of pictures among its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PicturedText {
    pub ids: Vec<i64>,
    /// `[3, tokens]`.
    pub positions: Vec<f32>,
    /// Grid of patches of each picture.
    pub grids: Vec<Grid>,
}

/// Values that are not a text with pictures; they are foreign or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an item is not a text with pictures: its length does not match its first values")]
pub struct NoPicturedText;

impl PicturedText {
    /// Returns the item's values; `patches` are those of all pictures, concatenated.
    pub fn values(&self, patches: &[&[f32]]) -> Vec<f32> {
        let sides = self.grids.iter().flat_map(|grid| [grid.t, grid.h, grid.w]).map(|side| side as f32);
        let head = [-(self.grids.len() as f32), self.ids.len() as f32].into_iter().chain(sides);
        let ids = self.ids.iter().map(|&id| id as f32);
        let positions = self.positions.iter().copied();
        head.chain(ids).chain(positions).chain(patches.iter().flat_map(|patches| patches.iter().copied())).collect()
    }

    /// Returns the item's grid and values; `patches` are those of all pictures, concatenated. With pictures the grid is as many frames as
    /// the values take × as many rows as there are tokens × 1, and zeros fill the last frame: who has no values knows the tokens, too.
    pub fn item(&self, patches: &[&[f32]]) -> (Grid, Vec<f32>) {
        if self.grids.is_empty() {
            let ids: Vec<f32> = self.ids.iter().map(|&id| id as f32).collect();
            return (Grid { t: ids.len() as u32, h: 1, w: 1 }, ids);
        }
        let mut values = self.values(patches);
        let tokens = self.ids.len().max(1);
        let frames = values.len().div_ceil(tokens);
        values.resize(frames * tokens, 0.0);
        (Grid { t: frames as u32, h: tokens as u32, w: 1 }, values)
    }

    /// Returns the number of values that give sizes, for an item that begins with this value; `None`: a text without pictures.
    pub fn len_of_sizes(first: f32) -> Option<usize> {
        (first < 0.0).then_some(2 + 3 * count(-first))
    }

    /// Returns the number of values before the patches, for an item that begins with these sizes.
    ///
    /// # Errors
    /// Fails if there are too few values.
    pub fn len_of_head(sizes: &[f32]) -> Result<usize, NoPicturedText> {
        Ok(sizes.len() + 4 * count(*sizes.get(1).ok_or(NoPicturedText)?))
    }

    /// Reads the text from the values before the patches, the first `num_sizes` of which give sizes.
    ///
    /// # Errors
    /// Fails if there are more or fewer values than they say.
    pub fn of_head(head: &[f32], num_sizes: usize) -> Result<Self, NoPicturedText> {
        let (sizes, rest) = head.split_at_checked(num_sizes).ok_or(NoPicturedText)?;
        let num_tokens = count(*sizes.get(1).ok_or(NoPicturedText)?);
        let (ids, positions) = rest.split_at_checked(num_tokens).ok_or(NoPicturedText)?;
        if positions.len() != 3 * num_tokens {
            return Err(NoPicturedText);
        }
        let sides = sizes[2..].as_chunks::<3>().0.iter().map(|sides| sides.map(|side| side as u32));
        Ok(Self {
            ids: ids.iter().map(|&id| id as i64).collect(),
            positions: positions.to_vec(),
            grids: sides.map(|[t, h, w]| Grid { t, h, w }).collect(),
        })
    }
}

/// Reads a whole number from a value.
pub(super) fn count(value: f32) -> usize {
    (value as usize).min(1 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_say_how_they_are_laid_out() {
        let grids = vec![Grid { t: 1, h: 2, w: 4 }, Grid { t: 1, h: 2, w: 2 }];
        let text = PicturedText { ids: vec![5, 9, 9, 151_655], positions: vec![0.0; 12], grids };
        let values = text.values(&[&[0.5; 16], &[-0.5; 8]]);
        let num_sizes = PicturedText::len_of_sizes(values[0]).unwrap();
        let len = PicturedText::len_of_head(&values[..num_sizes]).unwrap();
        assert_eq!((num_sizes, len, values.len()), (8, 24, 48));
        assert_eq!(PicturedText::of_head(&values[..len], num_sizes).unwrap(), text);
        assert_eq!(PicturedText::of_head(&values[..len - 1], num_sizes), Err(NoPicturedText));
        assert_eq!(PicturedText::len_of_head(&values[..1]), Err(NoPicturedText));
        assert_eq!(PicturedText::len_of_sizes(0.0), None, "an id");
        // Four tokens: 12 frames of them are full.
        let (grid, item) = text.item(&[&[0.5; 16], &[-0.5; 7]]);
        assert_eq!((grid, item.len(), item[47]), (Grid { t: 12, h: 4, w: 1 }, 48, 0.0));
        assert_eq!(text.item(&[&[0.5; 16], &[-0.5; 9]]).0, Grid { t: 13, h: 4, w: 1 });
        let blind = PicturedText { grids: Vec::new(), ..text };
        assert_eq!(blind.item(&[]), (Grid { t: 4, h: 1, w: 1 }, vec![5.0, 9.0, 9.0, 151_655.0]));
        assert_eq!(PicturedText::len_of_sizes(f32::NEG_INFINITY), Some(2 + 3 * (1 << 24)), "no number of pictures");
    }
}
