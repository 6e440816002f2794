//! AdamW with moments in bytes by libtorch's operators, on any device: what `native/adamw8bit.rs` does on the CPU in one pass.

use super::moments::num_blocks;
use crate::native::{AdamWStep, MOMENT_BLOCK, MOMENT_MAPS, QuantizedMoment, resident};
use tch::{Kind, Tensor};

/// Elements of a step that are computed at once, a multiple of a block: the operators keep about 30 bytes of each.
const ELEMENTS: i64 = 16 << 20;

/// Takes one step of flat `params`, float32, along a gradient that is scaled.
pub(super) fn step_by_operators(params: &Tensor, grad: &Tensor, moments: &[QuantizedMoment; 2], step: &AdamWStep) {
    step_in_pieces(ELEMENTS, params, grad, moments, step);
}

/// Works like [`step_by_operators`] with so many elements at once, a multiple of a block. The bits are those of all at once.
fn step_in_pieces(elements: i64, params: &Tensor, grad: &Tensor, moments: &[QuantizedMoment; 2], step: &AdamWStep) {
    let all = params.numel() as i64;
    for start in (0..all).step_by(elements as usize) {
        let len = elements.min(all - start);
        let [params, grad] = [params, grad].map(|x| x.narrow(0, start, len));
        let moments = moments.each_ref().map(|moment| part_of(moment, start, len));
        step_of_piece(&params, &grad, &moments, step);
    }
}

/// Returns the moments of the `len` elements from `start` on, which is at the start of a block.
pub(super) fn part_of(moment: &QuantizedMoment, start: i64, len: i64) -> QuantizedMoment {
    QuantizedMoment {
        codes: moment.codes.narrow(0, start, len),
        maxima: moment.maxima.narrow(0, start / MOMENT_BLOCK, num_blocks(len)),
    }
}

fn step_of_piece(params: &Tensor, grad: &Tensor, moments: &[QuantizedMoment; 2], step: &AdamWStep) {
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

#[cfg(test)]
mod tests {
    use super::{MOMENT_BLOCK, num_blocks, step_by_operators, step_in_pieces};
    use crate::native::{AdamWStep, QuantizedMoment};
    use tch::{Device, Kind, Tensor};

    #[test]
    fn pieces_take_the_step_that_all_elements_take_at_once() {
        let cpu = (Kind::Float, Device::Cpu);
        for len in [0, 1, 2 * MOMENT_BLOCK, 3 * MOMENT_BLOCK + 77] {
            let numbers = |factor: f64| (Tensor::arange(len, cpu) * factor).sin();
            let state = || {
                let moments = [(), ()].map(|()| QuantizedMoment {
                    codes: Tensor::zeros([len], (Kind::Uint8, Device::Cpu)),
                    maxima: Tensor::zeros([num_blocks(len)], cpu),
                });
                (numbers(0.3), moments)
            };
            let (whole, pieces) = (state(), state());
            for number in 1..=3 {
                let step = AdamWStep {
                    learning_rate: 1e-2,
                    betas: [0.9, 0.95],
                    eps: 1e-8,
                    weight_decay: 0.1,
                    number,
                    grad_scale: 1.0,
                    zero_grad: false,
                };
                let grad = numbers(0.7 + number as f64);
                step_by_operators(&whole.0, &grad, &whole.1, &step);
                step_in_pieces(MOMENT_BLOCK, &pieces.0, &grad, &pieces.1, &step);
            }
            assert_eq!(pieces.0, whole.0, "{len}");
            for (pieces, whole) in pieces.1.iter().zip(&whole.1) {
                assert_eq!((&pieces.codes, &pieces.maxima), (&whole.codes, &whole.maxima), "{len}");
            }
        }
    }
}
