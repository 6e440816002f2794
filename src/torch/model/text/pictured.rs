//! The places of texts and of the pictures among them in the values of items of a text tower.
//!
//! Shapes: V values of all items, T tokens of all texts, P patches of all pictures, X values of a patch.

use std::ops::Range;

use loongforge_core::message::{Grid, NoPicturedText, PicturedText};
use tch::{Device, Kind, Tensor};

/// The texts of a batch.
pub(super) struct PicturedTexts {
    /// The ends of texts among tokens: `[0, …, T]`.
    pub ends: Vec<usize>,
    /// The patches of all pictures.
    pub grids: Vec<Grid>,
    /// The tokens that features of pictures replace.
    pub rows: Vec<i64>,
    /// The positions of all tokens on each axis.
    positions: [Vec<f32>; 3],
    /// The values that are ids, and those of patches.
    ids: Vec<Range<i64>>,
    patches: Vec<Range<i64>>,
}

impl PicturedTexts {
    /// Reads items of these sizes, whose values are `[V, 1]`, of a model with this placeholder of pictures and with X values
    /// a patch.
    ///
    /// # Errors
    /// An item is too short or too long for what it says of itself.
    pub fn read(
        items: &[Grid],
        values: &Tensor,
        placeholder: i64,
        patch_dim: i64,
    ) -> Result<PicturedTexts, NoPicturedText> {
        let mut texts = PicturedTexts::none();
        let mut start = 0;
        for item in items {
            let end = start + item.num_cells() as i64;
            texts.read_item((start..end, item.h), values, placeholder, patch_dim)?;
            start = end;
        }
        Ok(texts)
    }

    /// Makes texts of items of these sizes, of whose values nothing is known, in a dry run: where the grid tells the tokens, with a picture
    /// that takes what they leave. `num_features` are the rows of features that a picture becomes.
    pub fn like(items: &[Grid], patch_dim: i64, num_features: impl Fn(Grid) -> usize) -> PicturedTexts {
        let mut texts = PicturedTexts::none();
        let mut start = 0;
        for item in items {
            let (len, before) = (item.num_cells() as i64, texts.ends[texts.ends.len() - 1]);
            let is_pictured = item.h > 1;
            let num_tokens = if is_pictured { item.h as usize } else { len as usize };
            // Behind the sizes of one picture, the ids and their positions.
            let left = len - 5 - 4 * num_tokens as i64;
            let picture = picture_of(left / patch_dim).filter(|it| is_pictured && num_features(*it) < num_tokens);
            texts.positions.iter_mut().for_each(|axis| axis.extend((0..num_tokens).map(|at| at as f32)));
            texts.ids.push(start..start + num_tokens as i64);
            texts.ends.push(before + num_tokens);
            if let Some(grid) = picture {
                texts.rows.extend(before as i64..(before + num_features(grid)) as i64);
                texts.patches.push(start..start + grid.num_cells() as i64 * patch_dim);
                texts.grids.push(grid);
            }
            start += len;
        }
        texts
    }

    fn none() -> PicturedTexts {
        PicturedTexts {
            ends: vec![0],
            grids: Vec::new(),
            rows: Vec::new(),
            positions: Default::default(),
            ids: Vec::new(),
            patches: Vec::new(),
        }
    }

    /// Reads an item whose grid has so many rows.
    fn read_item(
        &mut self,
        (item, num_rows): (Range<i64>, u32),
        values: &Tensor,
        placeholder: i64,
        patch_dim: i64,
    ) -> Result<(), NoPicturedText> {
        let begin = |len: usize| head_of(values, &item, len);
        let before = self.ends[self.ends.len() - 1];
        let Some(num_sizes) = PicturedText::len_of_sizes(begin(1)?[0]) else {
            let num_tokens = item.end - item.start;
            self.positions.iter_mut().for_each(|axis| axis.extend((0..num_tokens).map(|at| at as f32)));
            self.ends.push(before + num_tokens as usize);
            self.ids.push(item);
            return Ok(());
        };
        let len = PicturedText::len_of_head(&begin(num_sizes)?)?;
        let text = PicturedText::of_head(&begin(len)?, num_sizes)?;
        let num_patches: usize = text.grids.iter().map(|grid| grid.num_cells()).sum();
        let patches = item.start + len as i64..item.start + len as i64 + num_patches as i64 * patch_dim;
        // Zeros fill the last frame.
        if !(0..i64::from(num_rows.max(1))).contains(&(item.end - patches.end)) {
            return Err(NoPicturedText);
        }
        let num_tokens = text.ids.len();
        let places = (before as i64..).zip(&text.ids).filter(|(_, id)| **id == placeholder);
        self.rows.extend(places.map(|(row, _)| row));
        for (axis, own) in self.positions.iter_mut().zip(text.positions.chunks(num_tokens.max(1))) {
            axis.extend_from_slice(own);
        }
        let first = item.start + num_sizes as i64;
        self.ids.push(first..first + num_tokens as i64);
        self.patches.push(patches);
        self.grids.extend(text.grids);
        self.ends.push(before + num_tokens);
        Ok(())
    }

    /// Returns the positions `[3, T]`.
    pub fn positions(&self) -> Tensor {
        Tensor::from_slice(&self.positions.concat()).view([3, -1])
    }

    /// Makes of values `[V, 1]` the ids `[T, 1]`.
    pub fn take_ids(&self) -> impl Fn(&Tensor) -> Tensor + use<> {
        take(self.ids.clone())
    }

    /// Makes of values `[V, 1]` patches `[P, X]` of this kind.
    pub fn take_patches(&self, patch_dim: i64, kind: Kind) -> impl Fn(&Tensor) -> Tensor + use<> {
        take_patches(self.patches.clone(), patch_dim, kind)
    }
}

/// Makes of values `[V, 1]` the patches `[P, X]` at `ranges`, of this kind.
pub(in crate::model) fn take_patches(
    ranges: Vec<Range<i64>>,
    patch_dim: i64,
    kind: Kind,
) -> impl Fn(&Tensor) -> Tensor {
    let patches = take(ranges);
    move |values| patches(values).view([-1, patch_dim]).to_kind(kind)
}

/// Returns the first `len` values of an item, which lies at `item` among `values` `[V, 1]`.
///
/// # Errors
/// It has fewer.
pub(in crate::model) fn head_of(values: &Tensor, item: &Range<i64>, len: usize) -> Result<Vec<f32>, NoPicturedText> {
    let len = len as i64;
    let head = (len <= item.end - item.start).then(|| values.narrow(0, item.start, len));
    let head = head.map(|head| head.flatten(0, -1).to_kind(Kind::Float).to_device(Device::Cpu));
    head.and_then(|head| Vec::<f32>::try_from(head).ok()).ok_or(NoPicturedText)
}

/// Returns a picture of about so many patches, in blocks of any tower's size; `None`: they are too few.
pub(in crate::model) fn picture_of(num_patches: i64) -> Option<Grid> {
    let columns = |rows: i64| num_patches.max(0) / rows / rows * rows;
    let rows = [12, 4].into_iter().find(|rows| columns(*rows) > 0)?;
    Some(Grid { t: 1, h: rows as u32, w: columns(rows) as u32 })
}

/// Makes of values `[V, 1]` those at `ranges`, end to end.
fn take(ranges: Vec<Range<i64>>) -> impl Fn(&Tensor) -> Tensor {
    move |values| {
        let parts = ranges.iter().map(|range| values.narrow(0, range.start, range.end - range.start));
        Tensor::cat(&parts.collect::<Vec<_>>(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_pictures_stand_beside_texts_without() {
        let grids = vec![Grid { t: 1, h: 2, w: 2 }];
        let positions = [[0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 3.0]].concat();
        let text = PicturedText { ids: vec![4, 9, 9], positions: positions.clone(), grids };
        let pictured = text.values(&[&[0.5; 8]]);
        let values: Vec<f32> = [vec![7.0, 8.0], pictured.clone(), vec![3.0]].concat();
        let values = Tensor::from_slice(&values).view([-1, 1]);
        let item = |len: usize| Grid { t: len as u32, h: 1, w: 1 };
        let items = [item(2), item(pictured.len()), item(1)];
        let found = PicturedTexts::read(&items, &values, 9, 2).unwrap();
        assert_eq!((found.ends.as_slice(), found.rows.as_slice()), (&[0, 2, 5, 6][..], &[3, 4][..]));
        let ids = Vec::<f32>::try_from(found.take_ids()(&values).flatten(0, -1)).unwrap();
        assert_eq!(ids, [7.0, 8.0, 4.0, 9.0, 9.0, 3.0]);
        let frames = Vec::<f32>::try_from(found.positions().get(2)).unwrap();
        assert_eq!(frames, [0.0, 1.0, 0.0, 1.0, 3.0, 0.0]);
        assert_eq!(found.take_patches(2, Kind::Float)(&values).size(), [4, 2]);
        // Values of another model, and an item that was cut.
        assert_eq!(PicturedTexts::read(&items, &values, 9, 3).err(), Some(NoPicturedText));
        let cut = PicturedTexts::read(&[item(2), item(9)], &values, 9, 2);
        assert_eq!(cut.err(), Some(NoPicturedText));
    }

    #[test]
    fn zeros_behind_patches_fill_the_last_frame_alone() {
        let text =
            PicturedText { ids: vec![4, 9, 9, 5], positions: vec![0.0; 12], grids: vec![Grid { t: 1, h: 2, w: 2 }] };
        let (grid, values) = text.item(&[&[0.5; 8]]);
        let values = Tensor::from_slice(&values).view([-1, 1]);
        assert_eq!((grid, values.size()[0]), (Grid { t: 8, h: 4, w: 1 }, 32));
        let read = |grid| PicturedTexts::read(&[grid], &values, 9, 2);
        let found = read(grid).unwrap();
        assert_eq!((found.ends.as_slice(), found.rows.as_slice()), (&[0, 4][..], &[1, 2][..]));
        assert_eq!(found.take_patches(2, Kind::Float)(&values), Tensor::from_slice(&[0.5f32; 8]).view([4, 2]));
        // A whole frame too many, and an item whose grid does not tell its tokens.
        let more = Tensor::cat(&[&values, &Tensor::zeros([4, 1], (Kind::Float, Device::Cpu))], 0);
        assert_eq!(PicturedTexts::read(&[Grid { t: 9, ..grid }], &more, 9, 2).err(), Some(NoPicturedText));
        assert_eq!(read(Grid { t: 32, h: 1, w: 1 }).err(), Some(NoPicturedText));
    }

    #[test]
    fn texts_of_unknown_values_are_of_their_size() {
        let grids = vec![Grid { t: 1, h: 12, w: 24 }];
        let text = PicturedText { ids: vec![9; 100], positions: vec![0.0; 300], grids: grids.clone() };
        let (item, _) = text.item(&[&[0.0; 864]]);
        let plain = Grid { t: 7, h: 1, w: 1 };
        let found = PicturedTexts::like(&[plain, item], 3, |grid| grid.num_cells() / 4);
        assert_eq!((found.ends.as_slice(), found.grids.as_slice()), (&[0, 7, 107][..], grids.as_slice()));
        assert_eq!((found.rows.len(), found.rows[0], found.positions().size()), (72, 7, vec![3, 107]));
        let few = PicturedTexts::like(&[plain, item], 3, |_| 100);
        assert_eq!((few.ends.as_slice(), few.grids.len()), (&[0, 7, 107][..], 0));
    }
}
