//! Describes how few bits the values of a frozen weight take, and how many bytes that makes.

use tch::Kind;

use super::id::ALIGN;
use super::spec::ParamSpec;
use crate::native::NF4_BLOCK;

/// Largest magnitudes that share a maximum where they are rounded themselves.
pub(super) const GROUP: i64 = 256;

/// Says what the values of a frozen weight are rounded to while no tape reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// They are not rounded.
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

/// What a rounded weight takes: elements of its values, float32 numbers beside them, and bytes of rounded maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub values: i64,
    pub scales: i64,
    pub codes: i64,
}

impl Rounding {
    pub fn is_some(self) -> bool {
        self != Rounding::None
    }

    /// The kind of values that are held so, in a store of this `kind`.
    pub(super) fn kind(self, kind: Kind) -> Kind {
        match self {
            Self::None => kind,
            Self::Float8 => Kind::Float8e4m3fn,
            Self::Nf4 | Self::Nf4Double => Kind::Uint8,
            Self::Int8 => Kind::Int8,
        }
    }

    /// What a weight of this shape, of these `matrices`, takes.
    pub(super) fn sizes(self, shape: &[i64], matrices: &[Rows]) -> Sizes {
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

    /// Bytes of a weight's values in a unit of a store of this `kind`, and of what is beside them on the device in any case.
    pub(super) fn bytes(self, spec: &ParamSpec, kind: Kind) -> (u64, u64) {
        let sizes = self.sizes(&spec.shape, &matrices(spec));
        let values = padded(sizes.values) * self.kind(kind).elt_size_in_bytes() as i64;
        (values as u64, (sizes.scales * 4 + sizes.codes) as u64)
    }
}

/// Rows of a weight that are a matrix of the checkpoint: the first one, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub first: i64,
    pub len: i64,
}

/// Rows and columns of matrices `[.., out, in]`, one below the other.
pub(super) fn rows_of(shape: &[i64]) -> (i64, i64) {
    let (width, rows) = shape.split_last().expect("a map has dimensions");
    (rows.iter().product(), *width)
}

/// Blocks of a row of NF4.
pub(super) fn num_blocks(width: i64) -> i64 {
    (width + NF4_BLOCK - 1) / NF4_BLOCK
}

/// Groups of so many maxima.
pub(super) fn num_groups(maxima: i64) -> i64 {
    (maxima + GROUP - 1) / GROUP
}

/// Elements with the gap behind them.
pub(super) fn padded(elements: i64) -> i64 {
    (elements + ALIGN - 1) / ALIGN * ALIGN
}

/// The matrices that a weight is made of: one for each that the checkpoint has, in the order of rows.
pub(super) fn matrices(spec: &ParamSpec) -> Vec<Rows> {
    let (rows, _) = rows_of(&spec.shape);
    let of_part = spec.shape[spec.shape.len() - 2];
    let inner: i64 = spec.shape[1..spec.shape.len() - 1].iter().product();
    let mut found: Vec<Rows> = Vec::new();
    let is_cut = spec.shard.as_ref().is_some_and(|shard| !shard.cuts.is_empty());
    for piece in spec.pieces.iter().filter(|piece| !piece.repeats && !is_cut) {
        // Rows of one matrix, or of the outermost dimension.
        let (first, each, all) = match piece.index {
            Some(index) => (index * inner, inner / of_part, inner),
            None => (0, inner, rows),
        };
        let (start, len) = piece.rows.map_or((0, all), |(start, len)| (start * each.max(1), len * each.max(1)));
        let (mut first, mut left) = (first + start, len);
        while left > 0 {
            let len = if spec.shape.len() > 2 { of_part.min(left) } else { left };
            found.push(Rows { first, len });
            (first, left) = (first + len, left - len);
        }
    }
    found.sort_by_key(|matrix| matrix.first);
    let ends = found.iter().scan(0, |end, matrix| {
        let follows = matrix.first == *end;
        *end += matrix.len;
        Some((follows, *end))
    });
    let is_whole = ends.clone().all(|(follows, _)| follows) && ends.last().is_some_and(|(_, end)| end == rows);
    if is_whole {
        return found;
    }
    (0..rows / of_part).map(|index| Rows { first: index * of_part, len: of_part }).collect()
}
