//! Values in a type with a smaller range, and those that it does not have.

use super::dtype::Dtype;
use tch::{Kind, Tensor};

/// Finite values that would be infinite in another type.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{to} would make {count} of its finite values infinite, such as {largest:e}: name a type with a larger range")]
pub struct Beyond {
    pub count: i64,
    /// The largest absolute value.
    pub largest: f64,
    pub to: Dtype,
}

/// Returns floating-point values of any shape in the type `to`, rounded to the nearest; the shape stays.
///
/// # Errors
/// Finite ones would be infinite.
///
/// # Panics
/// No tensor has values of this type.
pub fn narrowed(values: &Tensor, to: Dtype) -> Result<Tensor, Beyond> {
    let kind = to.kind().expect("only types that tensors have are written");
    let narrow = values.to_kind(kind);
    if kind == values.kind() {
        return Ok(narrow);
    }
    let lost = narrow.isinf().logical_and(&values.isinf().logical_not());
    match lost.sum(Kind::Int64).int64_value(&[]) {
        0 => Ok(narrow),
        count => {
            let largest = values.masked_fill(&lost.logical_not(), 0.0).abs().max().double_value(&[]);
            Err(Beyond { count, largest, to })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_values_stay_finite_or_are_counted() {
        let values = Tensor::from_slice(&[f32::INFINITY, 65_519.0, -65_520.0, 7e4, f32::NAN, 0.0]);
        let expected = Beyond { count: 2, largest: 7e4, to: Dtype::F16 };
        assert_eq!(narrowed(&values, Dtype::F16).unwrap_err(), expected);
        assert!(expected.to_string().starts_with("F16 would make 2 of its finite values infinite, such as 7e4"));
        assert_eq!(narrowed(&values.narrow(0, 0, 2), Dtype::F16).unwrap(), values.narrow(0, 0, 2).to_kind(Kind::Half));
        assert!(narrowed(&values, Dtype::BF16).is_ok() && narrowed(&values, Dtype::F32).is_ok());
        assert!(narrowed(&Tensor::zeros([0, 3], (Kind::Double, tch::Device::Cpu)), Dtype::F32).is_ok());
    }
}
