//! Columns of samples: named tensors whose rows lie end to end, sample after sample, along one axis.

use super::DataError;
use crate::message::SampleId;

/// A column of a sample beside those of its tokens, such as the actions of a robot.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleColumn {
    pub name: String,
    /// Sizes of the axes before the one along which samples lie.
    pub before: Vec<usize>,
    /// The size of that axis: the sample's rows.
    pub rows: usize,
    /// Sizes of the axes behind it.
    pub after: Vec<usize>,
    /// `before × rows × after` values, row-major.
    pub values: ColumnValues,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ColumnValues {
    F32(Vec<f32>),
    I64(Vec<i64>),
}

impl SampleColumn {
    /// Bytes of its values.
    pub fn num_bytes(&self) -> usize {
        match &self.values {
            ColumnValues::F32(values) => size_of_val(&values[..]),
            ColumnValues::I64(values) => size_of_val(&values[..]),
        }
    }

    /// Borrows the column, to be joined with others of its name.
    pub(super) fn view(&self) -> ColumnView<'_> {
        let values = match &self.values {
            ColumnValues::F32(values) => Values::F32(values),
            ColumnValues::I64(values) => Values::I64(values),
        };
        ColumnView { name: &self.name, before: &self.before, rows: self.rows, after: &self.after, values }
    }
}

/// Any column of one sample.
#[derive(Clone, Copy, Debug)]
pub struct ColumnView<'a> {
    pub name: &'a str,
    pub before: &'a [usize],
    pub rows: usize,
    pub after: &'a [usize],
    pub values: Values<'a>,
}

/// The values of a [`ColumnView`], row-major.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
}

/// One column of several samples: `[before, rows of all samples, after]`.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedColumn {
    pub shape: Vec<usize>,
    pub values: ColumnValues,
}

/// Puts a column of samples end to end.
///
/// # Errors
/// Samples have it under other names, with other sizes beside its rows, or in other types.
pub fn join_column(parts: &[(SampleId, ColumnView<'_>)]) -> Result<JoinedColumn, DataError> {
    let &[(first_id, first), ..] = parts else {
        return Ok(JoinedColumn { shape: vec![0], values: ColumnValues::I64(Vec::new()) });
    };
    let key =
        |view: &ColumnView<'_>| (view.name.to_owned(), view.before.to_vec(), view.after.to_vec(), view.values.name());
    if let Some((id, other)) = parts.iter().find(|(_, view)| key(view) != key(&first)) {
        let reason = format!("its column is {:?}, but that of sample {first_id} is {:?}", key(other), key(&first));
        return Err(DataError::Column { id: *id, reason });
    }
    let outer: usize = first.before.iter().product();
    let inner: usize = first.after.iter().product();
    if let Some((id, view)) = parts.iter().find(|(_, view)| view.values.len() != outer * view.rows * inner) {
        let (name, rows, found) = (view.name, view.rows, view.values.len());
        let reason = format!("column {name} has {found} values in {rows} rows, but needs {}", outer * rows * inner);
        return Err(DataError::Column { id: *id, reason });
    }
    let rows = parts.iter().map(|(_, view)| view.rows).sum();
    let shape = [first.before, &[rows], first.after].concat();
    let values = match first.values {
        Values::F32(_) => ColumnValues::F32(join(parts, outer, inner, Values::as_f32)),
        Values::I64(_) => ColumnValues::I64(join(parts, outer, inner, Values::as_i64)),
    };
    Ok(JoinedColumn { shape, values })
}

fn join<'a, T: Copy>(
    parts: &[(SampleId, ColumnView<'a>)],
    outer: usize,
    inner: usize,
    values: fn(Values<'a>) -> &'a [T],
) -> Vec<T> {
    let piece = |at: usize, view: &ColumnView<'a>| {
        let len = view.rows * inner;
        &values(view.values)[at * len..(at + 1) * len]
    };
    (0..outer).flat_map(|at| parts.iter().flat_map(move |(_, view)| piece(at, view))).copied().collect()
}

impl<'a> Values<'a> {
    fn name(self) -> &'static str {
        match self {
            Self::F32(_) => "float32",
            Self::I64(_) => "int64",
        }
    }

    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    fn as_f32(self) -> &'a [f32] {
        if let Self::F32(values) = self { values } else { &[] }
    }

    fn as_i64(self) -> &'a [i64] {
        if let Self::I64(values) = self { values } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(rows: usize, values: Vec<f32>) -> SampleColumn {
        SampleColumn {
            name: "actions".into(),
            before: vec![2],
            rows,
            after: vec![2],
            values: ColumnValues::F32(values),
        }
    }

    #[test]
    fn samples_lie_end_to_end_along_the_axis_of_rows() {
        let (one, two) = (column(1, vec![1.0, 2.0, 3.0, 4.0]), column(2, (5..13).map(|value| value as f32).collect()));
        let joined = join_column(&[(SampleId(4), one.view()), (SampleId(7), two.view())]).unwrap();
        let values = [1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 3.0, 4.0, 9.0, 10.0, 11.0, 12.0];
        assert_eq!(joined, JoinedColumn { shape: vec![2, 3, 2], values: ColumnValues::F32(values.to_vec()) });
    }

    #[test]
    fn columns_that_differ_are_named_with_their_sample() {
        let one = column(1, vec![0.0; 4]);
        let error = |other: SampleColumn| {
            join_column(&[(SampleId(4), one.view()), (SampleId(7), other.view())]).unwrap_err().to_string()
        };
        let other = error(SampleColumn { name: "state".into(), ..one.clone() });
        assert!(other.contains("sample 7") && other.contains("state") && other.contains("actions"), "{other}");
        assert!(error(SampleColumn { after: vec![3], ..one.clone() }).contains("[3]"));
        assert!(error(SampleColumn { values: ColumnValues::I64(vec![0; 4]), ..one.clone() }).contains("int64"));
        assert!(error(column(2, vec![0.0; 4])).contains("4 values in 2 rows, but needs 8"));
    }
}
