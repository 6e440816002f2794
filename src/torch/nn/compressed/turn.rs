//! Rotations of the last channels of heads, and back.

use tch::Tensor;

use crate::nn::Rope;

/// Turns the last channels of every head of `x_THC`, as many as the tables have.
pub(super) fn turn_last(x_THC: &Tensor, rope: &Rope) -> Tensor {
    with_last(x_THC, rope, |x| rope.apply(x))
}

/// Undoes `turn_last` for a sum of vectors that were turned by it at any positions, each by its own: what is left in it
/// are distances to the tokens of `rope`.
pub(super) fn turn_last_back(x_THC: &Tensor, rope: &Rope) -> Tensor {
    with_last(x_THC, rope, |x| rope.apply_back(x))
}

fn with_last(x_THC: &Tensor, rope: &Rope, turn: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let (width, turning) = (x_THC.size()[2], rope.width());
    let first = width - turning;
    match first {
        0 => turn(x_THC),
        _ => Tensor::cat(&[x_THC.narrow(2, 0, first), turn(&x_THC.narrow(2, first, turning))], -1),
    }
}
