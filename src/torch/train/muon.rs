//! Muon (Keller Jordan 2024; Liu et al. 2025, arXiv:2502.16982): the update is the nearest matrix whose singular values are alike,
//! which five Newton–Schulz iterations come close to. Arithmetic and constants are those of `torch.optim.Muon`.

use super::rule::{Adjust, MuonConfig};
use crate::native::{Arg, NativeError, Op};
use crate::params::{ParamSpec, matrices_of};
use std::sync::OnceLock;
use tch::{Kind, Tensor};

const STEPS: usize = 5;
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// The least norm that a matrix is divided by.
const EPS: f64 = 1e-7;

/// Takes a gradient into the running mean, both flat, and returns the update: the mean that the next equal gradient would make
/// (Nesterov).
pub(super) fn nesterov(momentum: &Tensor, grad: &Tensor, config: &MuonConfig) -> Tensor {
    let _ = momentum.shallow_clone().lerp_(grad, 1.0 - config.momentum);
    grad.lerp(momentum, config.momentum)
}

/// Returns the update to subtract from parameter `spec`, of the shape of `update`, with a learning rate of 1: each of its matrices made
/// orthogonal, times the factor of its shape. Products are in bfloat16, the result is float32.
///
/// # Errors
/// libtorch lacks the operator.
pub(super) fn orthogonal(spec: &ParamSpec, update: &Tensor, config: &MuonConfig) -> Result<Tensor, NativeError> {
    let made = update.zeros_like();
    for (from, into) in matrices_of(spec, update).iter().zip(matrices_of(spec, &made)) {
        let mut into = into;
        into.copy_(&newton_schulz(from)?);
        let _ = into.g_mul_scalar_(factor(from, config));
    }
    Ok(made)
}

/// Returns the factor of the learning rate for a matrix `[out, in]`.
fn factor(matrix: &Tensor, config: &MuonConfig) -> f64 {
    let (outputs, inputs) = matrix.size2().expect("a matrix");
    let (outputs, inputs) = (outputs as f64, inputs as f64);
    match config.adjust {
        Adjust::Original => (outputs / inputs).max(1.0).sqrt(),
        Adjust::MatchRmsAdamw => 0.2 * outputs.max(inputs).sqrt(),
    }
}

/// Makes a matrix `[out, in]` nearly orthogonal, in bfloat16: singular values come to lie between about 0.7 and 1.2.
fn newton_schulz(matrix: &Tensor) -> Result<Tensor, NativeError> {
    let [a, b, c] = COEFFICIENTS;
    let (outputs, inputs) = matrix.size2().expect("a matrix");
    let is_tall = outputs > inputs;
    let low = matrix.to_kind(Kind::BFloat16);
    let mut x = if is_tall { low.tr() } else { low };
    x = &x / x.norm().clamp_min(EPS);
    for _ in 0..STEPS {
        let gram = x.matmul(&x.tr());
        let both = addmm([&gram, &gram, &gram], b, c)?;
        x = addmm([&x, &both, &x], a, 1.0)?;
    }
    Ok(if is_tall { x.tr() } else { x })
}

/// Returns `beta * summand + alpha * left @ right`.
fn addmm([summand, left, right]: [&Tensor; 3], beta: f64, alpha: f64) -> Result<Tensor, NativeError> {
    static ADDMM: OnceLock<Op> = OnceLock::new();
    let op = match ADDMM.get() {
        Some(op) => op,
        None => {
            let found = Op::find("aten::addmm", "")?;
            ADDMM.get_or_init(|| found)
        }
    };
    let args = [Arg::Tensor(summand), Arg::Tensor(left), Arg::Tensor(right), Arg::Double(beta), Arg::Double(alpha)];
    Ok(op.call(&args)?.remove(0))
}
