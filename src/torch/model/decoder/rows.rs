//! Rows of a packed sequence as indices.

use std::rc::Rc;

use tch::{Kind, Tensor};

use crate::device::upload;

/// Returns the rows as an index.
pub(super) fn index(rows: &[i64], device: tch::Device) -> Rc<Tensor> {
    Rc::new(upload(&Tensor::from_slice(rows).to_kind(Kind::Int64), device))
}

/// Returns the rows that count, and their labels.
pub(super) fn counted(labels: &[i64]) -> (Vec<i64>, Vec<i64>) {
    (0..).zip(labels).filter(|(_, label)| **label >= 0).map(|(row, label)| (row, *label)).unzip()
}
