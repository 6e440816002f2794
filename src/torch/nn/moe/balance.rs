//! Balancing of the experts' loads: two losses of the router's logits, and a bias that follows the loads.

use tch::{Kind, Tensor};

use super::order::Order;

/// Returns the load-balancing loss of Switch Transformer (Fedus et al. 2021, equations 4 to 6) over all layers at once, as transformers'
/// `load_balancing_loss_func`: experts × the sum over experts of (assignments a row) × (mean probability).
///
/// `choices_E` and `probabilities_E` are one sum over the rows for each layer, `num_rows` is over all layers.
/// A layer's choices and probabilities are `[E]`; returns a scalar.
pub fn aux_loss(choices_E: &[&Tensor], probabilities_E: &[&Tensor], num_rows: i64) -> Tensor {
    let choices_E = Tensor::stack(choices_E, 0).sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
    let probabilities_E = Tensor::stack(probabilities_E, 0).sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
    // A micro-batch may be empty.
    let (rows, experts) = (num_rows.max(1) as f64, probabilities_E.size()[0] as f64);
    (choices_E * probabilities_E).sum(Kind::Float) * (experts / (rows * rows))
}

/// Returns how often each expert is among a row's `top_k` by probability, `[E]` int64: what the loss above counts,
/// whatever the router chose; and the sums of the probabilities, `[E]` float32, with a gradient.
pub fn choices_by_softmax(logits_TE: &Tensor, top_k: i64) -> (Tensor, Tensor) {
    let probabilities_TE = logits_TE.softmax(-1, Kind::Float);
    let chosen_TK = tch::no_grad(|| probabilities_TE.topk(top_k, -1, true, false).1);
    let counts_E = Order::count(&chosen_TK, logits_TE.size()[1]);
    (counts_E, probabilities_TE.sum_dim_intlist([0i64].as_slice(), false, Kind::Float))
}

/// Returns the sum over the rows of the squared log-sum-exp of their logits (Zoph et al. 2022, ST-MoE, equation 5). `logits_TE` `[T, E]`;
/// returns a scalar.
pub fn z_loss(logits_TE: &Tensor) -> Tensor {
    logits_TE.logsumexp([-1i64].as_slice(), false).square().sum(Kind::Float)
}

/// Moves the bias by `rate` toward even loads (Wang et al. 2024, "Auxiliary-loss-free load balancing"): up for an
/// expert with less than the mean load, down for one with more. `counts_E` are a whole step's. Both are `[E]`.
pub fn update_bias(bias_E: &Tensor, counts_E: &Tensor, rate: f64) {
    let _no_grad = tch::no_grad_guard();
    let loads_E = counts_E.to_kind(Kind::Float);
    let error_E = loads_E.mean(Kind::Float) - loads_E;
    let _ = bias_E.detach().g_add_(&(error_E.sign() * rate));
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{aux_loss, choices_by_softmax, update_bias, z_loss};

    #[test]
    fn even_loads_have_loss_top_k_and_a_collapse_has_more() {
        let even = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu));
        let (_, probabilities) = choices_by_softmax(&even, 2);
        let counts = Tensor::from_slice(&[2i64, 2, 2, 2]);
        assert!((aux_loss(&[&counts], &[&probabilities], 4).double_value(&[]) - 2.0).abs() < 1e-6);
        let collapsed = Tensor::from_slice(&[9f32, 9.0, 0.0, 0.0]).expand([4, 4], false);
        let (counts, probabilities) = choices_by_softmax(&collapsed, 2);
        assert_eq!(Vec::<i64>::try_from(&counts).unwrap(), [4, 4, 0, 0]);
        assert!(aux_loss(&[&counts], &[&probabilities], 4).double_value(&[]) > 3.9);
    }

    #[test]
    fn z_loss_is_of_the_partition_function() {
        let logits = Tensor::zeros([3, 4], (Kind::Float, Device::Cpu));
        assert!((z_loss(&logits).double_value(&[]) - 3.0 * 4f64.ln().powi(2)).abs() < 1e-5);
    }

    #[test]
    fn a_bias_goes_against_the_load() {
        let bias = Tensor::zeros([2, 4], (Kind::Float, Device::Cpu));
        update_bias(&bias.get(1), &Tensor::from_slice(&[8i64, 0, 4, 4]), 0.5);
        assert_eq!(Vec::<f32>::try_from(bias.flatten(0, -1)).unwrap(), [0.0, 0.0, 0.0, 0.0, -0.5, 0.5, 0.0, 0.0]);
    }
}
