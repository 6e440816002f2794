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
        let mut texts = PicturedTexts {
            ends: vec![0],
            grids: Vec::new(),
            rows: Vec::new(),
            positions: Default::default(),
            ids: Vec::new(),
            patches: Vec::new(),
        };
        let mut start = 0;
        for item in items {
            let end = start + item.num_cells() as i64;
            texts.read_item(start..end, values, placeholder, patch_dim)?;
            start = end;
        }
        Ok(texts)
    }

    fn read_item(
        &mut self,
        item: Range<i64>,
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
        let patches = item.start + len as i64..item.end;
        let num_patches: usize = text.grids.iter().map(|grid| grid.num_cells()).sum();
        if num_patches as i64 * patch_dim != patches.end - patches.start {
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

    /// Returns `[3, T]`.
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
}
