//! Describes how two folders' weights differ: names, shapes, types, values.

use super::row_blocks;
use loongforge_torch::train::WeightsError;
use loongforge_torch::train::hf::{Checkpoint, Dtype, Stored};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tch::Kind;

/// A tensor's difference.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorDiff {
    OnlyLeft,
    OnlyRight,
    Shapes(Vec<i64>, Vec<i64>),
    /// The largest absolute difference, and the largest finite absolute value on the left; NaN where only one side is.
    Values {
        max_abs: f64,
        max_left: f64,
    },
    Exact,
}

/// A tensor that both or one of the folders have.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub name: String,
    pub types: (Option<String>, Option<String>),
    pub diff: TensorDiff,
}

impl Difference {
    /// Returns whether values differ by at most `tolerance` times the tensor's largest.
    pub fn is_close(&self, tolerance: f64) -> bool {
        match self.diff {
            TensorDiff::Exact => true,
            TensorDiff::Values { max_abs, max_left } => max_abs <= tolerance * max_left,
            _ => false,
        }
    }

    /// Returns `exact`, `close`, `different` or why there is nothing to compare.
    pub fn verdict(&self, tolerance: f64) -> &'static str {
        match self.diff {
            TensorDiff::Exact => "exact",
            TensorDiff::OnlyLeft => "only left",
            TensorDiff::OnlyRight => "only right",
            TensorDiff::Shapes(..) => "other shape",
            TensorDiff::Values { .. } if self.is_close(tolerance) => "close",
            TensorDiff::Values { .. } => "different",
        }
    }

    /// Returns the difference as an object: name, verdict at this tolerance, types, and shapes or the largest difference.
    pub fn to_json(&self, tolerance: f64) -> Value {
        let mut entry =
            json!({ "name": self.name, "verdict": self.verdict(tolerance), "types": [self.types.0, self.types.1] });
        match &self.diff {
            TensorDiff::Shapes(left, right) => entry["shapes"] = json!([left, right]),
            TensorDiff::Values { max_abs, max_left } => {
                (entry["max_abs"], entry["max_left"]) = (json!(max_abs), json!(max_left));
            }
            _ => {}
        }
        entry
    }
}

/// Returns every tensor of either folder, by name. Values of types up to 32 bits are compared as float32, so types may differ; whole
/// numbers and float64 as they are.
///
/// # Errors
/// A file cannot be read.
pub fn diff(left: &Checkpoint, right: &Checkpoint) -> Result<Vec<Difference>, WeightsError> {
    let names: BTreeSet<&str> = left.tensors().chain(right.tensors()).map(|(name, _)| name).collect();
    let _no_grad = tch::no_grad_guard();
    let one = |name: &str| {
        let (a, b) = (left.get(name), right.get(name));
        let diff = match (a, b) {
            (Some(a), Some(b)) if a.shape != b.shape => TensorDiff::Shapes(a.shape.clone(), b.shape.clone()),
            (Some(a), Some(b)) => values((left, a), (right, b))?,
            (Some(_), None) => TensorDiff::OnlyLeft,
            _ => TensorDiff::OnlyRight,
        };
        Ok(Difference { name: name.to_owned(), types: (a.map(Stored::format), b.map(Stored::format)), diff })
    };
    names.into_iter().map(one).collect()
}

fn values(left: (&Checkpoint, &Stored), right: (&Checkpoint, &Stored)) -> Result<TensorDiff, WeightsError> {
    let kind = |stored: &Stored| match stored.dtype {
        dtype if dtype.is_plain_float() && dtype != Dtype::F64 => Some(Kind::Float),
        dtype => dtype.kind(),
    };
    let (Some(left_kind), Some(right_kind)) = (kind(left.1), kind(right.1)) else {
        return Ok(TensorDiff::Values { max_abs: f64::NAN, max_left: f64::NAN });
    };
    let is_whole = |kind| matches!(kind, Kind::Bool | Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64);
    // In float64, whole numbers above 2^53 are rounded, and then no difference is left of some.
    let are_whole = is_whole(left_kind) && is_whole(right_kind);
    let least = if are_whole { 1.0 } else { 0.0 };
    let shape = &left.1.shape;
    let (mut max_abs, mut max_left) = (0f64, 0f64);
    for (start, len) in row_blocks(shape) {
        let read = |(checkpoint, stored): (&Checkpoint, &Stored), kind| match shape.is_empty() {
            true => checkpoint.read(stored, kind),
            false => checkpoint.read_rows(stored, start, len, kind),
        };
        let (own_a, own_b) = (read(left, left_kind)?, read(right, right_kind)?);
        let (a, b) = (own_a.to_kind(Kind::Double), own_b.to_kind(Kind::Double));
        if a.numel() > 0 {
            let both_nan = a.isnan().logical_and(&b.isnan());
            let equal = if are_whole { own_a.eq_tensor(&own_b) } else { a.eq_tensor(&b) };
            // Infinities of one sign are equal; their difference is not a number.
            let same = equal.logical_or(&both_nan);
            let distance = (&a - &b).abs().clamp_min(least).masked_fill(&same, 0.0).max().double_value(&[]);
            max_abs = if distance.is_nan() { f64::NAN } else { max_abs.max(distance) };
            max_left = max_left.max(a.nan_to_num(0.0, 0.0, 0.0).abs().max().double_value(&[]));
        }
        if max_abs.is_nan() {
            break;
        }
    }
    Ok(if max_abs == 0.0 { TensorDiff::Exact } else { TensorDiff::Values { max_abs, max_left } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_torch::train::hf::write_tensor_file;
    use tch::Tensor;

    #[test]
    fn an_infinity_on_both_sides_hides_no_difference() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, values: &[f32]| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let tensors = [("w".to_owned(), Tensor::from_slice(values))];
            write_tensor_file(&tensors, &[], folder.as_path(), "model.safetensors").unwrap();
            Checkpoint::open(&folder).unwrap()
        };
        let left = folder("left", &[f32::NEG_INFINITY, 1.0, 2.0]);
        let right = folder("right", &[f32::NEG_INFINITY, 1.0, 3.0]);
        let found = diff(&left, &right).unwrap();
        assert_eq!(found[0].diff, TensorDiff::Values { max_abs: 1.0, max_left: 2.0 });
        assert_eq!((found[0].is_close(1e-3), found[0].is_close(0.5)), (false, true));
    }

    #[test]
    fn values_that_float32_or_float64_would_round_to_one_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, number: i64, value: f64| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let tensors = [("n", Tensor::from_slice(&[number])), ("x", Tensor::from_slice(&[value]))];
            let tensors = tensors.map(|(name, values)| (name.to_owned(), values));
            write_tensor_file(&tensors, &[], folder.as_path(), "model.safetensors").unwrap();
            Checkpoint::open(&folder).unwrap()
        };
        let (left, right) = (folder("left", 1 << 53, 1.0), folder("right", (1 << 53) + 1, 1.0 + 1e-12));
        let found = diff(&left, &right).unwrap();
        assert_eq!(found[0].diff, TensorDiff::Values { max_abs: 1.0, max_left: (1u64 << 53) as f64 });
        assert!(matches!(found[1].diff, TensorDiff::Values { max_abs, .. } if max_abs > 0.0), "{:?}", found[1].diff);
        assert!(diff(&left, &left).unwrap().iter().all(|found| found.diff == TensorDiff::Exact));
    }
}
