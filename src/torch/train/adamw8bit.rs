//! AdamW with moments in bytes by libtorch's operators, on any device: what `native/adamw8bit.rs` does on the CPU in one pass.

use crate::native::{AdamWStep, MOMENT_BLOCK, MOMENT_MAPS, QuantizedMoment, resident};
use tch::{Kind, Tensor};

/// One step of flat `params`, float32, along a gradient that is scaled.
pub(super) fn step_by_operators(params: &Tensor, grad: &Tensor, moments: &[QuantizedMoment; 2], step: &AdamWStep) {
    let [beta1, beta2] = step.betas;
    let biases = step.betas.map(|beta| 1.0 - beta.powi(step.number as i32));
    let len = params.numel() as i64;
    let names = ["dynamic map", "dynamic map of squares"];
    let map = |at: usize| resident(names[at], params.device(), || Tensor::from_slice(&MOMENT_MAPS[at]));
    let maps = [map(0), map(1)];
    let mean = decoded(&moments[0], &maps[0], len) * beta1 + grad * (1.0 - beta1);
    let square = decoded(&moments[1], &maps[1], len) * beta2 + grad.square() * (1.0 - beta2);
    let denominator = square.sqrt() / biases[1].sqrt() + step.eps;
    let mut params = params.shallow_clone();
    let _ = params.g_mul_scalar_(1.0 - step.learning_rate * step.weight_decay);
    let _ = params.g_sub_(&(&mean / denominator * (step.learning_rate / biases[0])));
    encode(&mean, &moments[0], &maps[0]);
    encode(&square, &moments[1], &maps[1]);
}

fn decoded(moment: &QuantizedMoment, map: &Tensor, len: i64) -> Tensor {
    let scales = moment.maxima.unsqueeze(1).expand([-1, MOMENT_BLOCK], false).reshape([-1]).narrow(0, 0, len);
    map.index_select(0, &moment.codes.to_kind(Kind::Int)) * scales
}

fn encode(values: &Tensor, into: &QuantizedMoment, map: &Tensor) {
    let len = values.numel() as i64;
    let bounds = (map.narrow(0, 0, 255) + map.narrow(0, 1, 255)) / 2.0;
    let blocks =
        values.constant_pad_nd([0, (MOMENT_BLOCK - len % MOMENT_BLOCK) % MOMENT_BLOCK]).view([-1, MOMENT_BLOCK]);
    let most = blocks.abs().amax([1i64].as_slice(), false);
    let parts = (blocks * most.clamp_min(1e-38).reciprocal().unsqueeze(1)).clamp(-1.0, 1.0);
    let codes = parts.bucketize(&bounds, false, false).to_kind(Kind::Uint8).view([-1]).narrow(0, 0, len);
    into.codes.shallow_clone().copy_(&codes);
    into.maxima.shallow_clone().copy_(&most);
}
