//! The head and the cross-entropy as one operation, in chunks: the scores of a chunk live only while its loss and its
//! gradients are computed (as Liger's fused linear cross-entropy does), so `[tokens, vocabulary]` never exists.
//!
//! Shapes: L counted targets, D hidden size, V vocabulary, c a chunk's targets.

use tch::{Kind, Tensor};

use crate::tape::{Custom, CustomGrads, Needs};

/// Scores held at once: 16 MiB of float32.
const CHUNK_ELEMENTS: i64 = 1 << 22;

/// Reads hidden states `[L, D]`, writes the sum of the cross-entropies times `scale`, a float64 scalar. Scores and
/// probabilities are float32. The gradients are made in the forward, when one is to follow.
pub struct LinearCrossEntropy {
    head_VD: Tensor,
    labels_L: Tensor,
    scale: f64,
    chunk: i64,
}

impl LinearCrossEntropy {
    /// `labels_L` are int64, all counted.
    pub fn new(head_VD: Tensor, labels_L: Tensor, scale: f64) -> LinearCrossEntropy {
        let chunk = (CHUNK_ELEMENTS / head_VD.size()[0]).max(1);
        LinearCrossEntropy { head_VD, labels_L, scale, chunk }
    }
}

impl Custom for LinearCrossEntropy {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let hidden_LD = &reads[0];
        let wanted = |of: fn(&Needs) -> bool| needs.is_some_and(of);
        let of_hidden = wanted(|needs| needs.reads[0]).then(|| hidden_LD.empty_like());
        let of_head = wanted(|needs| needs.params).then(|| self.head_VD.zeros_like().to_kind(Kind::Float));
        let mut loss = Tensor::zeros([], (Kind::Double, hidden_LD.device()));
        let num_targets = self.labels_L.size()[0];
        for start in (0..num_targets).step_by(self.chunk as usize) {
            let len = self.chunk.min(num_targets - start);
            let hidden_cD = hidden_LD.narrow(0, start, len);
            let labels_c1 = self.labels_L.narrow(0, start, len).unsqueeze(1);
            let mut scores_cV = hidden_cD.linear(&self.head_VD, None::<Tensor>).to_kind(Kind::Float);
            let norm_c1 = scores_cV.logsumexp(1i64, true);
            loss += (&norm_c1 - scores_cV.gather(1, &labels_c1, false)).sum(Kind::Double);
            if of_hidden.is_none() && of_head.is_none() {
                continue;
            }
            // The scores' gradient: probabilities, less one at the label.
            scores_cV -= norm_c1;
            let less_one = Tensor::full([len, 1], -1.0, (Kind::Float, hidden_LD.device()));
            let scores_cV = scores_cV.exp_().scatter_add_(1, &labels_c1, &less_one).g_mul_scalar_(self.scale);
            let scores_cV = scores_cV.to_kind(hidden_LD.kind());
            if let Some(of_hidden) = &of_hidden {
                of_hidden.narrow(0, start, len).copy_(&scores_cV.matmul(&self.head_VD));
            }
            if let Some(of_head) = &of_head {
                let _ = of_head.shallow_clone().g_add_(&scores_cV.tr().matmul(&hidden_cD));
            }
        }
        let saved = needs.map_or(Vec::new(), |_| of_hidden.into_iter().chain(of_head).collect());
        (vec![loss * self.scale], saved)
    }

    fn backward(&self, saved: Vec<Tensor>, grads: &[Option<Tensor>], needs: &Needs) -> CustomGrads {
        let gradient = grads[0].as_ref().expect("a loss has one output").double_value(&[]);
        let mut saved = saved.into_iter();
        let mut scaled = |wanted: bool| {
            let tensor = saved.next().filter(|_| wanted);
            tensor.map(|mut tensor| if gradient == 1.0 { tensor } else { tensor.g_mul_scalar_(gradient) })
        };
        let of_hidden = if needs.reads[0] { scaled(true) } else { None };
        (vec![of_hidden], vec![scaled(needs.params)])
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::LinearCrossEntropy;
    use crate::native::grad;
    use crate::tape::{Custom, Needs};

    #[test]
    fn chunks_equal_the_plain_loss_and_its_gradients() {
        tch::manual_seed(1);
        let random = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (hidden, head) = (random([7, 5]).set_requires_grad(true), random([11, 5]).set_requires_grad(true));
        let labels = Tensor::from_slice(&[0i64, 10, 3, 3, 7, 1, 2]);
        let plain = hidden.linear(&head, None::<Tensor>).cross_entropy_loss::<Tensor>(
            &labels,
            None,
            tch::Reduction::Sum,
            -100,
            0.0,
        ) * 0.25;
        let expected = grad(&[&plain], &[&Tensor::from(1f32)], &[&hidden, &head]).unwrap();
        let _guard = tch::no_grad_guard();
        for chunk in [1, 3, 7, 100] {
            let mut fused = LinearCrossEntropy::new(head.detach(), labels.shallow_clone(), 0.25);
            fused.chunk = chunk;
            let needs = Needs { reads: vec![true], params: true };
            let (outputs, saved) = fused.forward(&[hidden.detach()], Some(&needs));
            assert!((outputs[0].double_value(&[]) - plain.double_value(&[])).abs() < 1e-5);
            let (of_hidden, of_head) = fused.backward(saved, &[Some(Tensor::from(2.0))], &needs);
            for (found, expected) in [&of_hidden[0], &of_head[0]].into_iter().zip(&expected) {
                let expected = expected.as_ref().unwrap() * 2.0;
                assert!(found.as_ref().unwrap().allclose(&expected, 1e-4, 1e-6, false));
            }
        }
    }

    #[test]
    fn no_targets_is_no_loss() {
        let head = Tensor::ones([11, 5], (Kind::Float, Device::Cpu));
        let fused = LinearCrossEntropy::new(head, Tensor::from_slice::<i64>(&[]), 1.0);
        let (outputs, _) = fused.forward(&[Tensor::zeros([0, 5], (Kind::Float, Device::Cpu))], None);
        assert_eq!(outputs[0].double_value(&[]), 0.0);
    }
}
