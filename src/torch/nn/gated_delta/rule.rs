//! The gated delta rule, chunk by chunk: within a chunk as matrix products, between chunks by a state for each head.
//!
//! A head's state S maps keys to values. A token decays it by exp(g), reads what it has for its key, and writes
//! a part β of what is missing: `S ← exp(g) S`, `S ← S + k (β (v - kᵀ S))ᵀ`; the output is `qᵀ S`. The chunked form is that
//! of `torch_chunk_gated_delta_rule`; queries and keys stay at their own number of heads as long as they can.
//!
//! Shapes: T tokens, N chunks, I (and J) tokens of a chunk, K key heads, V value heads, G = V / K, C width of a key,
//! E width of a value.

use tch::Tensor;

use super::documents::DeltaDocuments;
use crate::native::delta_scan;
use crate::nn::{prefix_sums, take_rows};

/// The inputs of the rule, all of one kind, float32 at least.
pub(super) struct DeltaInputs {
    /// Normalized and scaled, `[T, K, C]`.
    pub q_TKC: Tensor,
    /// Normalized, `[T, K, C]`.
    pub k_TKC: Tensor,
    pub v_TVE: Tensor,
    /// The logarithm of the decay, `[T, V]`.
    pub decay_TV: Tensor,
    /// `[T, V]`.
    pub beta_TV: Tensor,
}

/// Returns the outputs `[T, V, E]`. `last` `[B, V, C, E]`, contiguous and without a gradient, holds the states at the start, in the order
/// of `documents`, and is overwritten by those at the end.
pub(super) fn gated_delta_rule(inputs: &DeltaInputs, documents: &DeltaDocuments, last: &mut Tensor) -> Tensor {
    let (key_size, value_size) = (inputs.k_TKC.size(), inputs.v_TVE.size());
    let (keys, groups, chunk) = (key_size[1], value_size[1] / key_size[1], documents.chunk);
    let heads = |x: &Tensor, rows: &Tensor| {
        let width = x.size()[2];
        take_rows(&x.reshape([-1, width]), rows).view([-1, x.size()[1], chunk, width])
    };
    let numbers = |x_TV: &Tensor| {
        let x_NVI = take_rows(&x_TV.reshape([-1, 1]), &documents.value_rows).view([-1, value_size[1], chunk]);
        x_NVI * documents.filled.to_kind(x_TV.kind())
    };
    let q_NKIC = heads(&inputs.q_TKC, &documents.key_rows);
    let k_NKIC = heads(&inputs.k_TKC, &documents.key_rows);
    let v_NVIE = heads(&inputs.v_TVE, &documents.value_rows);
    let beta_NVI = numbers(&inputs.beta_TV);
    // The logarithm of the decay since the chunk's start.
    let decay_NVI = prefix_sums(&numbers(&inputs.decay_TV));
    let (from_start, to_end) = (decay_NVI.exp(), (decay_NVI.narrow(-1, chunk - 1, 1) - &decay_NVI).exp());

    let options = (decay_NVI.kind(), decay_NVI.device());
    let later = Tensor::full([chunk, chunk], f64::NEG_INFINITY, options).triu(1);
    let between_NVIJ = ((decay_NVI.unsqueeze(-1) + later) - decay_NVI.unsqueeze(-2)).exp();
    let grouped = |x: &Tensor| x.unflatten(1, [keys, groups]);
    let k_transposed = k_NKIC.transpose(-1, -2);
    let scores = |x_NKIC: &Tensor| (x_NKIC.matmul(&k_transposed).unsqueeze(2) * grouped(&between_NVIJ)).flatten(1, 2);
    // What a chunk's tokens write depends on what its earlier ones wrote: the system of the UT transform.
    let system_NVIJ = scores(&k_NKIC) * beta_NVI.unsqueeze(-1);
    let identity = Tensor::eye(chunk, options).expand_as(&system_NVIJ);
    let solved_NVIJ = system_NVIJ.linalg_solve_triangular(&identity, false, true, true) * beta_NVI.unsqueeze(-2);
    let written_NVIE = solved_NVIJ.matmul(&v_NVIE);
    // One product for all value heads of a key head.
    let decayed = grouped(&(solved_NVIJ * from_start.unsqueeze(-2))).flatten(2, 3);
    let read_NVIC = decayed.matmul(&k_NKIC).unflatten(2, [groups, chunk]).flatten(1, 2);

    let of_values =
        |x_NKIC: &Tensor, factor_NVI: &Tensor| (x_NKIC.unsqueeze(2) * grouped(factor_NVI).unsqueeze(-1)).flatten(1, 2);
    let keys_NVIC = of_values(&k_NKIC, &to_end);
    let whole_NV = from_start.select(-1, chunk - 1);
    let (v_new, states) = delta_scan(&written_NVIE, &read_NVIC, &keys_NVIC, &whole_NV, last, &documents.counts);
    let matrices = |x: &Tensor| x.flatten(0, 1);
    let q_NVIC = of_values(&q_NKIC, &from_start);
    let before = matrices(&q_NVIC).bmm(&matrices(&states));
    let y = before.baddbmm(&matrices(&scores(&q_NKIC)), &matrices(&v_new), 1.0, 1.0);
    take_rows(&y.view([-1, value_size[2]]), &documents.token_rows).view(value_size.as_slice())
}

/// Works like `gated_delta_rule` for one more token of each document: T is B, and the states are in the order of the
/// tokens.
pub(super) fn delta_step(inputs: &DeltaInputs, state_BVCE: &mut Tensor) -> Tensor {
    let groups = inputs.v_TVE.size()[1] / inputs.k_TKC.size()[1];
    let wide = |x: &Tensor| x.repeat_interleave_self_int(groups, 1, None);
    let number = |x_BV: &Tensor| x_BV.unsqueeze(-1).unsqueeze(-1);
    let k_BV1C = wide(&inputs.k_TKC).unsqueeze(2);
    let decayed = &*state_BVCE * number(&inputs.decay_TV).exp();
    let write_BV1E = (inputs.v_TVE.unsqueeze(2) - k_BV1C.matmul(&decayed)) * number(&inputs.beta_TV);
    *state_BVCE = decayed + k_BV1C.transpose(2, 3) * write_BV1E;
    wide(&inputs.q_TKC).unsqueeze(2).matmul(state_BVCE).squeeze_dim(2)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{DeltaInputs, gated_delta_rule};
    use crate::native::grad;
    use crate::nn::Activation;
    use crate::nn::gated_delta::{DeltaDocuments, GatedDeltaConfig, GatedDeltaLayout};

    /// Token by token, from the definition.
    fn recurrent(inputs: &DeltaInputs, cu_seqlens: &[usize], states: &Tensor) -> (Tensor, Tensor) {
        let groups = inputs.v_TVE.size()[1] / inputs.k_TKC.size()[1];
        let wide = |x: &Tensor, token: i64| x.get(token).repeat_interleave_self_int(groups, 0, None).unsqueeze(-1);
        let (mut outputs, mut ends) = (Vec::new(), Vec::new());
        for (doc, range) in cu_seqlens.windows(2).enumerate() {
            let mut state_VCE = states.get(doc as i64);
            for token in range[0] as i64..range[1] as i64 {
                let (q_VC1, k_VC1) = (wide(&inputs.q_TKC, token), wide(&inputs.k_TKC, token));
                let number = |x: &Tensor| x.get(token).view([-1, 1, 1]);
                state_VCE = state_VCE * number(&inputs.decay_TV).exp();
                let read_V1E = k_VC1.transpose(1, 2).matmul(&state_VCE);
                let write_V1E = (inputs.v_TVE.get(token).unsqueeze(1) - read_V1E) * number(&inputs.beta_TV);
                state_VCE = state_VCE + k_VC1.matmul(&write_V1E);
                outputs.push(q_VC1.transpose(1, 2).matmul(&state_VCE).squeeze_dim(1));
            }
            ends.push(state_VCE);
        }
        (Tensor::stack(&outputs, 0), Tensor::stack(&ends, 0))
    }

    fn check(cu_seqlens: &[usize], keys: i64, values: i64, kind: Kind, tolerance: f64) {
        tch::manual_seed(7);
        let (tokens, key_dim, value_dim) = (cu_seqlens[cu_seqlens.len() - 1] as i64, 6, 10);
        let config = GatedDeltaConfig {
            hidden_size: 1,
            num_key_heads: keys,
            num_value_heads: values,
            key_head_dim: key_dim,
            value_head_dim: value_dim,
            conv_kernel_dim: 4,
            rms_norm_eps: 1e-6,
            act: Activation::Silu,
            layout: GatedDeltaLayout::Separate,
        };
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
        let unit = |x: Tensor| &x / x.square().sum_dim_intlist(-1, true, None).sqrt();
        let inputs = DeltaInputs {
            q_TKC: unit(random(&[tokens, keys, key_dim])) * 0.4,
            k_TKC: unit(random(&[tokens, keys, key_dim])),
            v_TVE: random(&[tokens, values, value_dim]),
            decay_TV: random(&[tokens, values]).exp().neg(),
            beta_TV: random(&[tokens, values]).sigmoid(),
        };
        let num_docs = cu_seqlens.len() as i64 - 1;
        let (start, seed) = (random(&[num_docs, values, key_dim, value_dim]), random(&[tokens, values, value_dim]));
        let of_kind = |kind: Kind| {
            let leaf = |x: &Tensor| x.to_kind(kind).copy().set_requires_grad(true);
            let DeltaInputs { q_TKC, k_TKC, v_TVE, decay_TV, beta_TV } = &inputs;
            DeltaInputs {
                q_TKC: leaf(q_TKC),
                k_TKC: leaf(k_TKC),
                v_TVE: leaf(v_TVE),
                decay_TV: leaf(decay_TV),
                beta_TV: leaf(beta_TV),
            }
        };
        let gradients = |y: &Tensor, inputs: &DeltaInputs| {
            let DeltaInputs { q_TKC, k_TKC, v_TVE, decay_TV, beta_TV } = inputs;
            let leaves = [q_TKC, k_TKC, v_TVE, decay_TV, beta_TV];
            grad(&[y], &[&seed.to_kind(y.kind())], &leaves).unwrap().into_iter().map(Option::unwrap)
        };
        let close = |found: &Tensor, expected: &Tensor| {
            let error = (found.to_kind(Kind::Double) - expected).abs().max().double_value(&[]);
            let bound = tolerance * expected.abs().max().double_value(&[]);
            assert!(error <= bound, "{error} of {bound} at {cu_seqlens:?}");
        };
        let (exact, tried) = (of_kind(Kind::Double), of_kind(kind));
        let (expected, expected_ends) = recurrent(&exact, cu_seqlens, &start);
        let documents = DeltaDocuments::new(cu_seqlens, &config, Device::Cpu);
        let mut last = start.to_kind(kind).index_select(0, &documents.order);
        let found = gated_delta_rule(&tried, &documents, &mut last);
        close(&found, &expected.detach());
        close(&last, &expected_ends.detach().index_select(0, &documents.order));
        for (found, expected) in gradients(&found, &tried).zip(gradients(&expected, &exact)) {
            close(&found, &expected);
        }
    }

    #[test]
    fn documents_of_any_length_equal_the_recurrence() {
        for cu_seqlens in [&[0, 1][..], &[0, 5], &[0, 64], &[0, 3, 200, 264, 265, 400], &[0, 130, 190, 390]] {
            check(cu_seqlens, 2, 6, Kind::Double, 1e-10);
            check(cu_seqlens, 3, 3, Kind::Float, 2e-5);
        }
    }
}
