//! The items of a reference model: documents, each with the tokens to predict in it.
//!
//! For a model of text alone an item has a row for each of a document's tokens: the token's id, and the token to predict there or -1. For
//! a model that sees pictures it has the values of a [`PicturedAnswer`], a row each.
//!
//! Shapes: V values of all items, T tokens of all documents, P patches of all pictures, X values of a patch.

use std::ops::Range;

use loongforge_core::message::{Grid, NoPicturedText, PicturedAnswer};
use tch::{Device, IndexOp, Kind, Tensor};

use super::text::{head_of, picture_of, take_patches};

/// Values of a row of text: the id of a token, and the token to predict.
pub(super) const VALUES: i64 = 2;

/// The placeholders, patches and features of a model that sees pictures.
pub(super) struct Pictured<'a> {
    pub placeholders: &'a [i64],
    pub patch_dim: i64,
    /// The rows of features that a picture becomes.
    pub num_features: Box<dyn Fn(Grid) -> usize + 'a>,
}

/// The documents of a batch, end to end.
pub(super) struct Documents {
    /// The ends of documents among tokens: `[0, …, T]`.
    pub ends: Vec<usize>,
    pub ids: Vec<i64>,
    /// The token to predict at each token, or -1.
    pub targets: Vec<i64>,
    /// The patches of all pictures.
    pub grids: Vec<Grid>,
    /// The positions of all tokens on each axis.
    positions: [Vec<f32>; 3],
    /// The values that are patches, and how many are one.
    patches: Vec<Range<i64>>,
    patch_dim: i64,
}

impl Documents {
    /// Returns the number of rows of all items.
    pub fn num_rows(grids: &[Grid]) -> i64 {
        grids.iter().map(|grid| grid.num_cells() as i64).sum()
    }

    /// Reads texts, whose rows are `[T, 2]`.
    pub fn of_rows(grids: &[Grid], rows: &Tensor) -> Documents {
        let rows = rows.to_kind(Kind::Int64);
        let [ids, targets] = [0, 1].map(|column| {
            let column = rows.i((.., column)).contiguous().to_device(Device::Cpu);
            Vec::<i64>::try_from(&column).expect("a row of integers")
        });
        let mut documents = Documents { ids, targets, ..Documents::none(1) };
        for grid in grids {
            let len = grid.num_cells();
            documents.end(len);
            let positions = (0..len).map(|at| at as f32);
            documents.positions.iter_mut().for_each(|axis| axis.extend(positions.clone()));
        }
        documents
    }

    /// Reads documents with pictures, whose values are `[V, 1]`.
    ///
    /// # Errors
    /// An item is too short or too long for what it says of itself, or has other features than placeholders.
    pub fn of_values(grids: &[Grid], values: &Tensor, how: &Pictured<'_>) -> Result<Documents, NoPicturedText> {
        let mut documents = Documents::none(how.patch_dim);
        let mut start = 0;
        for grid in grids {
            let end = start + grid.num_cells() as i64;
            documents.read(start..end, values, how)?;
            start = end;
        }
        Ok(documents)
    }

    fn read(&mut self, item: Range<i64>, values: &Tensor, how: &Pictured<'_>) -> Result<(), NoPicturedText> {
        let begin = |len: usize| head_of(values, &item, len);
        let [pictures, tokens] = <[f32; 2]>::try_from(begin(2)?).map_err(|_| NoPicturedText)?;
        let len = PicturedAnswer::len_of_head([pictures, tokens]);
        let PicturedAnswer { text, targets } = PicturedAnswer::of_head(&begin(len)?)?;
        let num_patches: usize = text.grids.iter().map(|grid| grid.num_cells()).sum();
        let num_features: usize = text.grids.iter().map(|grid| (how.num_features)(*grid)).sum();
        let num_places = text.ids.iter().filter(|id| how.placeholders.contains(id)).count();
        let first = item.start + len as i64;
        let patches = first..first + num_patches as i64 * how.patch_dim;
        if patches.end > item.end || num_places != num_features || text.ids.is_empty() {
            return Err(NoPicturedText);
        }
        self.end(text.ids.len());
        for (axis, own) in self.positions.iter_mut().zip(text.positions.chunks(text.ids.len())) {
            axis.extend_from_slice(own);
        }
        self.ids.extend(text.ids);
        self.targets.extend(targets);
        self.grids.extend(text.grids);
        self.patches.push(patches);
        Ok(())
    }

    /// Returns documents of items of these sizes, of whose values nothing is known: a picture each that takes what the tokens leave, in a
    /// dry run.
    pub fn like(grids: &[Grid], how: &Pictured<'_>) -> Documents {
        let mut documents = Documents::none(how.patch_dim);
        let mut start = 0;
        for item in grids {
            let (len, tokens) = (item.num_cells() as i64, item.h as usize);
            let left = len - PicturedAnswer::len_of_head([1.0, tokens as f32]) as i64;
            let picture = picture_of(left / how.patch_dim).filter(|grid| (how.num_features)(*grid) < tokens);
            let num_features = picture.map_or(0, |grid| (how.num_features)(grid));
            let placeholder = how.placeholders.first().copied().unwrap_or(0);
            documents.ids.extend((0..tokens).map(|at| if at < num_features { placeholder } else { 0 }));
            documents.targets.extend((0..tokens).map(|at| if at < num_features { -1 } else { 0 }));
            documents.positions.iter_mut().for_each(|axis| axis.extend((0..tokens).map(|at| at as f32)));
            documents.end(tokens);
            if let Some(grid) = picture {
                let end = start + grid.num_cells() as i64 * how.patch_dim;
                documents.patches.push(start..end);
                documents.grids.push(grid);
            }
            start += len;
        }
        documents
    }

    fn none(patch_dim: i64) -> Documents {
        Documents {
            ends: vec![0],
            ids: Vec::new(),
            targets: Vec::new(),
            grids: Vec::new(),
            positions: Default::default(),
            patches: Vec::new(),
            patch_dim,
        }
    }

    fn end(&mut self, len: usize) {
        self.ends.push(self.ends[self.ends.len() - 1] + len);
    }

    /// Returns the positions `[T]`, or `[3, T]` for a model of three axes.
    pub fn positions(&self, has_axes: bool) -> Tensor {
        match has_axes {
            true => Tensor::from_slice(&self.positions.concat()).view([3, -1]),
            false => Tensor::from_slice(&self.positions[0]),
        }
    }

    /// Returns the tokens that features of pictures replace.
    pub fn rows_of(&self, placeholders: &[i64]) -> Vec<i64> {
        (0..).zip(&self.ids).filter(|(_, id)| placeholders.contains(id)).map(|(row, _)| row).collect()
    }

    /// Returns the number of the document of each token to predict.
    pub fn answers(&self) -> Vec<i64> {
        let of = |(two, number): (&[usize], i64)| {
            let counted = self.targets[two[0]..two[1]].iter().filter(|target| **target >= 0);
            counted.map(move |_| number)
        };
        self.ends.windows(2).zip(0..).flat_map(of).collect()
    }

    /// Makes of values `[V, 1]` patches `[P, X]` of this kind.
    pub fn take_patches(&self, kind: Kind) -> impl Fn(&Tensor) -> Tensor + use<> {
        take_patches(self.patches.clone(), self.patch_dim, kind)
    }
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::PicturedText;

    use super::*;

    /// Returns pictures of 3 values a patch, whose blocks of 2 × 2 patches are features at token 9.
    fn how() -> Pictured<'static> {
        Pictured { placeholders: &[9], patch_dim: 3, num_features: Box::new(|grid| grid.num_cells() / 4) }
    }

    fn answer(ids: &[i64], grids: Vec<Grid>, targets: &[i64], patches: &[f32]) -> (Grid, Vec<f32>) {
        let positions =
            [0.0, 0.5, 1.0].map(|begin| (0..ids.len()).map(move |at| begin + at as f32)).into_iter().flatten();
        let text = PicturedText { ids: ids.to_vec(), positions: positions.collect(), grids };
        PicturedAnswer { text, targets: targets.to_vec() }.item(&[patches])
    }

    #[test]
    fn documents_with_pictures_stand_beside_others() {
        let grids = vec![Grid { t: 1, h: 2, w: 4 }];
        let patches: Vec<f32> = (0..24).map(|value| value as f32 / 4.0).collect();
        let (seen, values) = answer(&[4, 9, 9, 5], grids.clone(), &[-1, -1, 5, 6], &patches);
        let (blind, others) = answer(&[7, 8, 3], Vec::new(), &[8, -1, -1], &[]);
        let all = Tensor::from_slice(&[values.clone(), others].concat()).view([-1, 1]);
        let found = Documents::of_values(&[seen, blind], &all, &how()).unwrap();
        assert_eq!((found.ends.as_slice(), found.ids.as_slice()), (&[0, 4, 7][..], &[4, 9, 9, 5, 7, 8, 3][..]));
        assert_eq!((found.rows_of(&[9]), found.grids.as_slice()), (vec![1, 2], grids.as_slice()));
        assert_eq!((found.answers(), found.positions(true).size()), (vec![0, 0, 1], vec![3, 7]));
        let columns = Vec::<f32>::try_from(found.positions(true).get(2)).unwrap();
        assert_eq!(columns, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0]);
        let taken = found.take_patches(Kind::Float)(&all);
        assert_eq!((taken.size(), Vec::<f32>::try_from(taken.flatten(0, -1)).unwrap()), (vec![8, 3], patches.clone()));
        // Cut off, of another model, and with a placeholder too many.
        let read = |grid, values: &[f32], how| {
            Documents::of_values(&[grid], &Tensor::from_slice(values).view([-1, 1]), &how).err()
        };
        assert_eq!(read(Grid { t: 9, h: 4, w: 1 }, &values[..36], how()), Some(NoPicturedText));
        assert_eq!(read(seen, &values, Pictured { patch_dim: 4, ..how() }), Some(NoPicturedText));
        let (grid, values) = answer(&[4, 9, 9, 9], grids, &[-1, -1, 5, 6], &patches);
        assert_eq!(read(grid, &values, how()), Some(NoPicturedText));
    }

    #[test]
    fn documents_of_unknown_values_are_of_their_size() {
        let grids = vec![Grid { t: 1, h: 12, w: 24 }];
        let (item, _) = answer(&[9; 100], grids.clone(), &[1; 100], &[0.0; 864]);
        let found = Documents::like(&[item, item], &how());
        assert_eq!((found.ends.as_slice(), found.rows_of(&[9]).len()), (&[0, 100, 200][..], 144));
        assert_eq!((found.answers().len(), found.grids), (56, grids.repeat(2)));
        let (item, _) = answer(&[7; 100], Vec::new(), &[1; 100], &[]);
        assert!(Documents::like(&[item], &how()).rows_of(&[9]).len() < 100);
    }
}
