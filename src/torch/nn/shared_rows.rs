//! Beginnings that documents of a packed row have in common, which are computed once.
//!
//! A token of a causal document depends on the tokens before it alone. Therefore, where a document begins as an earlier one of its row
//! does, as the two answers to one prompt do, the rows of that beginning are the earlier one's, and only attention, which needs each
//! document's keys, sees them twice.
//!
//! Shapes: T tokens of the row, U rows that are computed.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::device::upload;

/// A document needs one row in so many of its packed row in common with others; fewer are not worth an index for every layer.
const WORTH: usize = 16;

/// The rows of a packed row that are computed, and the computed row that each token has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRows {
    /// The tokens whose rows are computed, ascending, `[U]`.
    kept: Vec<i64>,
    /// The place of each token's row among these, `[T]`.
    places: Vec<i64>,
}

/// The indices of shared rows on a device, as attention takes them.
pub(super) struct SharedIndex {
    pub kept: Tensor,
    pub places: Tensor,
}

impl SharedRows {
    /// Returns the rows of documents that end at `cu_seqlens` `[0, …, T]`, of which two tokens at the same place of two documents are
    /// alike where `are_alike` says so; `None` where too few are to be worth it.
    pub fn find(cu_seqlens: &[usize], are_alike: impl Fn(usize, usize) -> bool) -> Option<SharedRows> {
        let documents: Vec<Range<usize>> = cu_seqlens.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let num_tokens = cu_seqlens.last().copied().unwrap_or(0);
        let mut source: Vec<usize> = (0..num_tokens).collect();
        for (number, document) in documents.iter().enumerate() {
            let common = |earlier: &Range<usize>| {
                earlier.clone().zip(document.clone()).take_while(|(a, b)| are_alike(*a, *b)).count()
            };
            let best = documents[..number].iter().map(|earlier| (common(earlier), earlier.start));
            let Some((len, start)) = best.max_by_key(|(len, start)| (*len, std::cmp::Reverse(*start))) else {
                continue;
            };
            for at in 0..len {
                source[document.start + at] = source[start + at];
            }
        }
        let kept: Vec<i64> = (0..).zip(&source).filter(|(row, from)| row == *from).map(|(row, _)| row as i64).collect();
        if (num_tokens - kept.len()) * WORTH < num_tokens.max(1) {
            return None;
        }
        let place = |from: &usize| kept.binary_search(&(*from as i64)).expect("a kept row") as i64;
        Some(SharedRows { places: source.iter().map(place).collect(), kept })
    }

    /// Returns the tokens whose rows are computed.
    pub fn kept(&self) -> &[i64] {
        &self.kept
    }

    /// Returns the values of the tokens whose rows are computed, from those of all tokens.
    pub fn of<T: Copy>(&self, all: &[T]) -> Vec<T> {
        self.kept.iter().map(|row| all[*row as usize]).collect()
    }

    /// Copies the indices of kept rows and of their places to `device`, int64, for gathers.
    pub(super) fn to_device(&self, device: Device) -> SharedIndex {
        let index = |values: &[i64]| upload(&Tensor::from_slice(values), device);
        SharedIndex { kept: index(&self.kept), places: index(&self.places) }
    }
}

#[cfg(test)]
mod tests {
    use super::SharedRows;

    #[test]
    fn a_beginning_is_that_of_the_earlier_document_with_the_longest_one() {
        let ids = [1, 2, 3, 4, 1, 2, 5, 1, 2, 5, 6, 9];
        let found = SharedRows::find(&[0, 4, 7, 11, 12], |a, b| ids[a] == ids[b]).unwrap();
        assert_eq!(found.kept(), [0, 1, 2, 3, 6, 10, 11]);
        assert_eq!(found.places, [0, 1, 2, 3, 0, 1, 4, 0, 1, 4, 5, 6]);
        assert_eq!(found.of(&ids), [1, 2, 3, 4, 5, 6, 9]);
    }

    #[test]
    fn few_common_rows_are_not_worth_it() {
        let ids: Vec<usize> = (0..20).chain([0]).chain(100..120).collect();
        assert_eq!(SharedRows::find(&[0, 20, 41], |a, b| ids[a] == ids[b]), None);
        assert_eq!(SharedRows::find(&[0], |_, _| true), None);
        assert_eq!(SharedRows::find(&[0, 0, 0], |_, _| true), None);
    }
}
