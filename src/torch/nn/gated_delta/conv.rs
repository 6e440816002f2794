//! The causal depthwise convolution over the tokens of each document, with an activation.
//!
//! Shapes: T tokens, F channels, W tokens that the convolution sees, B documents, P rows of its input.

use tch::Tensor;

use super::documents::DeltaDocuments;
use crate::nn::Activation;

/// Returns `act(Σ weight[·, W-1-i] x[t-i])`, where tokens before a document's start are zero. `x_TF`, `weight` `[F, 1, W]`; returns
/// `[T, F]`.
pub(super) fn causal_conv(x_TF: &Tensor, weight: &Tensor, documents: &DeltaDocuments, act: Activation) -> Tensor {
    let x_PF = with_zero_row(x_TF).index_select(0, &documents.conv_inputs);
    let y_1FP = x_PF.tr().unsqueeze(0).conv1d(weight, None::<Tensor>, 1, 0, 1, weight.size()[0]);
    act.forward(&y_1FP.squeeze_dim(0).tr().index_select(0, &documents.conv_outputs))
}

/// Returns the last W - 1 inputs of each document, `[B, W-1, F]`.
pub(super) fn conv_state(x_TF: &Tensor, documents: &DeltaDocuments) -> Tensor {
    let ends = with_zero_row(x_TF).index_select(0, &documents.conv_ends);
    ends.view([documents.num_documents, -1, x_TF.size()[1]])
}

/// Works like `causal_conv` for one more token of each document, `[B, F]`; moves `state` on by it.
pub(super) fn conv_step(x_BF: &Tensor, weight: &Tensor, state: &mut Tensor, act: Activation) -> Tensor {
    let x_BWF = Tensor::cat(&[&*state, &x_BF.unsqueeze(1)], 1);
    *state = x_BWF.narrow(1, 1, x_BWF.size()[1] - 1);
    act.forward(&(x_BWF * weight.squeeze_dim(1).tr()).sum_dim_intlist(1, false, None))
}

fn with_zero_row(x_TF: &Tensor) -> Tensor {
    x_TF.constant_pad_nd([0, 0, 0, 1])
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::causal_conv;
    use crate::native::grad;
    use crate::nn::Activation;
    use crate::nn::gated_delta::{DeltaDocuments, GatedDeltaConfig, GatedDeltaLayout};

    fn config(conv_kernel_dim: i64) -> GatedDeltaConfig {
        GatedDeltaConfig {
            hidden_size: 1,
            num_key_heads: 1,
            num_value_heads: 1,
            key_head_dim: 2,
            value_head_dim: 1,
            conv_kernel_dim,
            rms_norm_eps: 1e-6,
            act: Activation::Silu,
            layout: GatedDeltaLayout::Separate,
        }
    }

    /// One tap at a time, each document on its own.
    fn reference(x: &Tensor, weight: &Tensor, cu_seqlens: &[usize]) -> Tensor {
        let taps = weight.size()[2];
        let docs = cu_seqlens.windows(2).map(|ends| {
            let (start, len) = (ends[0] as i64, (ends[1] - ends[0]) as i64);
            let before = Tensor::zeros([taps - 1, x.size()[1]], (x.kind(), Device::Cpu));
            let padded = Tensor::cat(&[before, x.narrow(0, start, len)], 0);
            let sum: Tensor =
                (0..taps).map(|tap| padded.narrow(0, tap, len) * weight.select(2, tap).squeeze_dim(1)).sum();
            sum.silu()
        });
        Tensor::cat(&docs.collect::<Vec<_>>(), 0)
    }

    #[test]
    fn documents_do_not_see_each_other() {
        tch::manual_seed(2);
        for (cu_seqlens, taps) in [(&[0, 9][..], 4), (&[0, 1, 3, 20, 22], 4), (&[0, 2, 2, 90], 2), (&[0, 1, 5, 30], 7)]
        {
            let tokens = cu_seqlens[cu_seqlens.len() - 1] as i64;
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let (x, weight, seed) = (random(&[tokens, 5]), random(&[5, 1, taps]), random(&[tokens, 5]).detach());
            let documents = DeltaDocuments::new(cu_seqlens, &config(taps), Device::Cpu);
            let found = causal_conv(&x, &weight, &documents, Activation::Silu);
            let expected = reference(&x, &weight, cu_seqlens);
            assert!(found.allclose(&expected, 1e-5, 1e-6, false));
            let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&x, &weight]).unwrap().into_iter().flatten();
            for (found, expected) in gradients(&found).zip(gradients(&expected)) {
                assert!(found.allclose(&expected, 1e-4, 1e-5, false));
            }
        }
    }
}
