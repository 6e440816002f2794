//! Choosing a token by chance, as transformers' `TemperatureLogitsWarper`, `TopKLogitsWarper`, `TopPLogitsWarper` and
//! `MinPLogitsWarper`, in this order, and a draw from what is left; and before them the biases of tokens (transformers'
//! `SequenceBiasLogitsProcessor`), `RepetitionPenaltyLogitsProcessor` and the penalties of OpenAI's interface, as vLLM orders them.
//!
//! Shapes: B sequences, V vocabulary.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use crate::nn::prefix_sums;
use crate::params::uniform;

/// The lowest temperature at which scores are divided; at a lower one they would be infinite, and only the best tokens are left.
const COLDEST: f64 = 1e-30;

/// Describes which tokens may come, and from where the draw begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Above 0; small ones come near the most likely token.
    pub temperature: f64,
    /// The number of most likely tokens that are kept; 0: all.
    pub top_k: i64,
    /// The sum of the probabilities of the most likely tokens that are kept; 1: all.
    pub top_p: f64,
    /// The smallest probability that is kept, as a share of that of the most likely token; 0: all.
    pub min_p: f64,
    pub seed: u64,
}

impl Sampling {
    /// Returns a token for each row of `scores` `[B, V]`: `[B]`, int64. Sequence, `step` and seed decide the draw.
    pub fn choose(&self, scores: &Tensor, step: usize) -> Tensor {
        let (num_sequences, vocab_size) = (scores.size()[0], scores.size()[1]);
        let kept = if self.top_k > 0 { self.top_k.min(vocab_size) } else { vocab_size };
        let (best_BK, tokens_BK) = scores.to_kind(Kind::Float).topk(kept, -1, true, true);
        // Less the best one, which changes no probability and is finite at every temperature.
        let best_BK = (&best_BK - best_BK.narrow(1, 0, 1)) / self.temperature.max(COLDEST);
        let probabilities_BK = best_BK.softmax(-1, Kind::Double);
        // A token stays while those before it have not reached top_p, so the first one always does.
        let before_BK = prefix_sums(&probabilities_BK) - &probabilities_BK;
        let is_likely_BK = probabilities_BK.ge_tensor(&(probabilities_BK.narrow(1, 0, 1) * self.min_p.min(1.0)));
        let probabilities_BK = probabilities_BK * before_BK.lt(self.top_p.max(f64::MIN_POSITIVE)) * is_likely_BK;
        let sums_BK = prefix_sums(&probabilities_BK);
        let drawn: Vec<f64> =
            (0..num_sequences as u64).map(|sequence| uniform(self.seed, &format!("{step}"), sequence)).collect();
        let total_B1 = sums_BK.narrow(1, kept - 1, 1);
        let drawn_B1 = Tensor::from_slice(&drawn).to_device(scores.device()).unsqueeze(1) * total_B1;
        let chosen_B1 = sums_BK.ge_tensor(&drawn_B1).to_kind(Kind::Int64).argmax(-1, true);
        tokens_BK.gather(1, &chosen_B1, false).squeeze_dim(1)
    }
}

/// Scores `[V]` of which those of the tokens `seen` are divided by `penalty` where they are above 0, else multiplied by it.
pub(super) fn penalize(scores_V: &Tensor, seen: &[i64], penalty: f64) -> Tensor {
    let places = Tensor::from_slice(seen).to_device(scores_V.device());
    let scores_V = scores_V.to_kind(Kind::Float);
    let seen_N = scores_V.index_select(0, &places);
    let penalized_N = (&seen_N * penalty).where_self(&seen_N.lt(0.0), &(&seen_N / penalty));
    scores_V.index_copy(0, &places, &penalized_N)
}

/// Scores `[V]` of which each of a token that was `written` loses `presence`, and `frequency` for every time that it was.
pub(super) fn discount(scores_V: &Tensor, written: &BTreeMap<i64, u32>, presence: f64, frequency: f64) -> Tensor {
    let loss = |times: u32| -(presence + frequency * f64::from(times));
    add(scores_V, written.iter().map(|(&token, &times)| (token, loss(times))))
}

/// Scores `[V]` to which the `biases` of tokens are added.
pub(super) fn favor(scores_V: &Tensor, biases: &BTreeMap<i64, f64>) -> Tensor {
    add(scores_V, biases.iter().map(|(&token, &bias)| (token, bias)))
}

/// Scores `[V]` to which the `changes` of tokens are added.
fn add(scores_V: &Tensor, changes: impl Iterator<Item = (i64, f64)>) -> Tensor {
    let scores_V = scores_V.to_kind(Kind::Float);
    let (places, changes): (Vec<i64>, Vec<f32>) = changes.map(|(token, change)| (token, change as f32)).unzip();
    if places.is_empty() {
        return scores_V;
    }
    let [places, changes] = [Tensor::from_slice(&places), Tensor::from_slice(&changes)];
    scores_V.index_add(0, &places.to_device(scores_V.device()), &changes.to_device(scores_V.device()))
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::{Sampling, discount, favor, penalize};

    fn counts(sampling: Sampling) -> [usize; 4] {
        let scores = Tensor::from_slice(&[0.4f32, 0.1, 0.3, 0.2]).log().view([1, 4]);
        let mut counts = [0; 4];
        for step in 0..4000 {
            counts[sampling.choose(&scores, step).int64_value(&[0]) as usize] += 1;
        }
        counts
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3 };
        for (count, expected) in counts(all.clone()).into_iter().zip([1600, 400, 1200, 800]) {
            assert!((count as i64 - expected).abs() < 150, "{count} of {expected}");
        }
        let two = counts(Sampling { top_k: 2, ..all.clone() });
        assert!(two[1] + two[3] == 0 && two[0].abs_diff(4000 * 4 / 7) < 150, "{two:?}");
        // 0.4 and 0.3 do not reach 0.75: the third is in as well.
        let three = counts(Sampling { top_p: 0.75, ..all.clone() });
        assert!(three[1] == 0 && three[3].abs_diff(4000 * 2 / 9) < 150, "{three:?}");
        // Of 0.4 0.2 is more than 0.4 times as much, and 0.1 is less.
        let likely = counts(Sampling { min_p: 0.4, ..all.clone() });
        assert!(likely[1] == 0 && likely[3].abs_diff(4000 * 2 / 9) < 150, "{likely:?}");
        for temperature in [0.01, 1e-40, f64::MIN_POSITIVE] {
            assert_eq!(counts(Sampling { temperature, ..all.clone() })[0], 4000, "{temperature}");
        }
    }

    /// The values are those of transformers' `RepetitionPenaltyLogitsProcessor(2.0)` on `[[1, -1, 3, 0]]` after `[[0, 1, 0]]`.
    #[test]
    fn tokens_that_were_there_are_less_likely() {
        let penalized = penalize(&Tensor::from_slice(&[1.0f32, -1.0, 3.0, 0.0]), &[0, 1, 0], 2.0);
        assert_eq!(Vec::<f32>::try_from(penalized).unwrap(), [0.5, -2.0, 3.0, 0.0]);
    }

    /// OpenAI's formula: a score less the number of times by the frequency's penalty, and less that of presence if there is one.
    #[test]
    fn written_tokens_lose_for_being_there_and_for_every_time() {
        let scores = Tensor::from_slice(&[1.0f32, -1.0, 3.0, 0.0]);
        let found = |written: &[(i64, u32)]| {
            let written = written.iter().copied().collect();
            Vec::<f32>::try_from(discount(&scores, &written, 0.5, 0.25)).unwrap()
        };
        assert_eq!(found(&[(2, 3), (0, 1)]), [0.25, -1.0, 1.75, 0.0]);
        assert_eq!(found(&[]), [1.0, -1.0, 3.0, 0.0]);
    }

    /// transformers' `SequenceBiasLogitsProcessor` adds the same to sequences of one token.
    #[test]
    fn a_bias_is_added_to_the_score_of_its_token() {
        let scores = Tensor::from_slice(&[1.0f32, -1.0, 3.0, 0.0]);
        let found =
            |biases: &[(i64, f64)]| Vec::<f32>::try_from(favor(&scores, &biases.iter().copied().collect())).unwrap();
        assert_eq!(found(&[(1, 2.5), (2, -100.0)]), [1.0, 1.5, -97.0, 0.0]);
        assert_eq!(found(&[]), [1.0, -1.0, 3.0, 0.0]);
    }
}
