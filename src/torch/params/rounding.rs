//! Describes how few bits the values of a frozen weight take, and how many bytes that makes.

use tch::Kind;

use super::id::ALIGN;
use crate::native::NF4_BLOCK;

/// Largest magnitudes that share a maximum where they are rounded themselves.
pub(super) const GROUP: i64 = 256;

/// Says what the values of a frozen weight are rounded to while no tape reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// The values are not rounded.
    #[default]
    None,
    /// Float8 (E4M3) with a scale for each row.
    Float8,
    /// NF4 with the largest magnitude of each block of a row.
    Nf4,
    /// NF4, where largest magnitudes are rounded to 8 bits in their turn.
    Nf4Double,
    /// Int8 with the largest magnitude of each row.
    Int8,
}

/// The memory of a rounded weight: elements of its values, float32 numbers beside them, and bytes of rounded maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub values: i64,
    pub scales: i64,
    pub codes: i64,
}

impl Rounding {
    /// Returns whether frozen weights are rounded.
    pub fn is_some(self) -> bool {
        self != Rounding::None
    }

    /// Returns the kind of the tensor that holds the rounded values, in a store of this `kind`.
    pub(super) fn kind(self, kind: Kind) -> Kind {
        match self {
            Self::None => kind,
            Self::Float8 => Kind::Float8e4m3fn,
            Self::Nf4 | Self::Nf4Double => Kind::Uint8,
            Self::Int8 => Kind::Int8,
        }
    }

    /// Returns the memory of a weight of this shape, of these `matrices`.
    pub(super) fn sizes(self, shape: &[i64], matrices: &[RowRange]) -> Sizes {
        let (rows, width) = rows_of(shape);
        let blocks = num_blocks(width);
        let groups = || matrices.iter().map(|matrix| num_groups(matrix.len * blocks)).sum::<i64>();
        match self {
            Self::None => Sizes { values: rows * width, ..Sizes::default() },
            Self::Float8 | Self::Int8 => Sizes { values: rows * width, scales: rows, codes: 0 },
            Self::Nf4 => Sizes { values: rows * ((width + 1) / 2), scales: rows * blocks, codes: 0 },
            Self::Nf4Double => Sizes {
                values: rows * ((width + 1) / 2),
                // A maximum for each group, and a mean for each matrix.
                scales: groups() + matrices.len() as i64,
                codes: rows * blocks,
            },
        }
    }
}

/// Elements of a weight that operators find at once: they keep up to 14 bytes of each beside it.
pub(super) const AT_ONCE: i64 = 16 << 20;

/// Returns pieces of a matrix of so many rows and columns, of at most `at_once` elements or of one row: the first row and the number of
/// rows.
pub(super) fn pieces(rows: i64, width: i64, at_once: i64) -> impl Iterator<Item = (i64, i64)> {
    let most = (at_once / width.max(1)).max(1);
    (0..rows).step_by(most as usize).map(move |first| (first, most.min(rows - first)))
}

/// Rows of a weight that are a matrix of the checkpoint: the first one, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowRange {
    pub first: i64,
    pub len: i64,
}

/// Returns the rows and columns of matrices `[.., out, in]`, one below the other.
pub(super) fn rows_of(shape: &[i64]) -> (i64, i64) {
    let (width, rows) = shape.split_last().expect("a map has dimensions");
    (rows.iter().product(), *width)
}

/// Returns the number of blocks of a row of NF4.
pub(super) fn num_blocks(width: i64) -> i64 {
    (width + NF4_BLOCK - 1) / NF4_BLOCK
}

/// Returns the number of groups of so many maxima.
pub(super) fn num_groups(maxima: i64) -> i64 {
    (maxima + GROUP - 1) / GROUP
}

/// Returns the number of elements with the gap behind them.
pub(super) fn padded(elements: i64) -> i64 {
    (elements + ALIGN - 1) / ALIGN * ALIGN
}
