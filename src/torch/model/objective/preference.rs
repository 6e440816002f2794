//! Objectives of pairs of answers to one prompt, of which people prefer the first: DPO and its kin. A pair is two documents of
//! a packed row, end to end.
//!
//! Shapes: L counted targets, P pairs. Log-probabilities are sums over the counted tokens of an answer.

use tch::{IndexOp, Kind, Tensor};

use super::kto::Kto;
use super::measures::{Measures, NUM_MEASURES};
use crate::device::upload;

/// The function that turns the preference of the chosen answer into a loss. With Δ = β · (log-ratio of the chosen − log-ratio of the
/// rejected answer), a log-ratio being the log-probability of the model minus that of the reference:
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PreferenceLoss {
    /// DPO (Rafailov et al. 2023): −(1 − ε)·ln σ(Δ) − ε·ln σ(−Δ), ε being the share of labels that are wrong.
    Sigmoid { label_smoothing: f64 },
    /// Robust DPO (Chowdhury et al. 2024): DPO's loss, of which wrong labels change no mean; ε is below 1/2.
    Robust { label_smoothing: f64 },
    /// SLiC's hinge (Zhao et al. 2023): max(0, 1 − Δ).
    Hinge,
    /// IPO (Azar et al. 2023), with log-ratios by token as its authors have it: (difference − 1 / 2β)².
    Ipo,
    /// APO (D'Oosterlinck et al. 2024), where chosen answers are better than the model's: (1 − σ(β·chosen)) + σ(β·rejected).
    ApoZero,
    /// The same where chosen answers are worse than the model's: σ(β·chosen) + (1 − σ(Δ)).
    ApoDown,
    /// ORPO (Hong et al. 2024), without a reference: −β·ln σ(log odds ratio of mean log-probabilities), beside the negative
    /// log-likelihood of the chosen answer.
    Orpo,
    /// SimPO (Meng et al. 2024), without a reference: −ln σ(β · difference of mean log-probabilities − γ).
    Simpo { gamma: f64 },
    /// KTO (Ethayarajh et al. 2024), of single answers and not of pairs: see [`super::kto`].
    Kto(Kto),
}

/// The objective of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    pub loss: PreferenceLoss,
    pub beta: f64,
    /// Weight of the chosen answer's mean negative log-likelihood beside the loss (RPO's α; 1 in ORPO).
    pub nll_weight: f64,
    /// Answers of a group, of KTO; 1 of pairs.
    pub group_size: u32,
}

/// The pairs of a packed row.
#[derive(Clone, Debug)]
pub struct Pairs {
    objective: Preference,
    /// The number of the answer of each counted target: pair `p` has the answers `2p`, chosen, and `2p + 1`.
    answers: Vec<i64>,
    num_pairs: i64,
    /// 1 for a pair of two answers with targets, else 0: it has lost the features of an item.
    counts: Vec<f32>,
}

impl PreferenceLoss {
    /// Returns whether the loss reads log-probabilities of a reference model.
    pub fn needs_reference(self) -> bool {
        !matches!(self, PreferenceLoss::Orpo | PreferenceLoss::Simpo { .. })
    }
}

impl Pairs {
    /// Returns the pairs of a row whose documents end at `cu_seqlens` and whose tokens have these `labels`, -100 where they do not count.
    /// A row of one document has none.
    pub fn new(objective: Preference, cu_seqlens: &[usize], labels: &[i64]) -> Pairs {
        let num_pairs = (cu_seqlens.len() - 1) / 2;
        let documents = cu_seqlens.windows(2).take(2 * num_pairs).enumerate();
        let mut answers = Vec::new();
        let mut lens = vec![0usize; 2 * num_pairs];
        for (number, ends) in documents {
            lens[number] = labels[ends[0]..ends[1]].iter().filter(|label| **label >= 0).count();
            answers.extend(std::iter::repeat_n(number as i64, lens[number]));
        }
        let counts = lens.chunks(2).map(|two| f32::from(u8::from(two[0] > 0 && two[1] > 0))).collect();
        Pairs { objective, answers, num_pairs: num_pairs as i64, counts }
    }

    /// Returns the number of pairs that count.
    pub fn num_counted(&self) -> f64 {
        self.counts.iter().map(|count| f64::from(*count)).sum()
    }

    /// Returns whether the log-probabilities of a reference model are needed: not without pairs, as in what a rank computes to take
    /// part.
    pub fn needs_reference(&self) -> bool {
        self.num_pairs > 0 && self.objective.loss.needs_reference()
    }

    /// Returns the loss, a float64 scalar: the sum over pairs, times `scale`; and the measures ([`Measures`]), without a
    /// gradient. `losses_L` are the cross-entropies of the counted targets, float32; `reference` has the log-probabilities of the
    /// answers by the reference model, each the sum of a row of `[2P, 2]`, float32, where there is one.
    pub fn loss(&self, losses_L: &Tensor, reference: Option<&Tensor>, scale: f64) -> [Tensor; 2] {
        let (device, pairs) = (losses_L.device(), self.num_pairs);
        if pairs == 0 {
            let zero = losses_L.sum(Kind::Double) * 0.0;
            return [zero, Tensor::zeros([NUM_MEASURES], (Kind::Double, device))];
        }
        let at_L = upload(&Tensor::from_slice(&self.answers), device);
        let sum = |of_L: &Tensor| {
            let zeros = Tensor::zeros([2 * pairs], (Kind::Double, device));
            zeros.index_add(0, &at_L, &of_L.to_kind(Kind::Double)).view([pairs, 2])
        };
        let logp_P2 = sum(&-losses_L);
        let len_P2 = sum(&losses_L.detach().ones_like()).clamp_min(1.0);
        let mean_P2 = &logp_P2 / &len_P2;
        let ratio_P2 = match reference {
            Some(reference) => &logp_P2 - reference.detach().sum_dim_intlist(-1, false, Kind::Double).view([pairs, 2]),
            None => logp_P2.shallow_clone(),
        };
        let counts_P = upload(&Tensor::from_slice(&self.counts).to_kind(Kind::Double), device);
        // A pair that does not count may have a reference of zeros, and nothing of it may reach the sum.
        let counted = |of_P: Tensor| (of_P * &counts_P).sum(Kind::Double);
        let loss = counted(self.each(&ratio_P2, &mean_P2, &len_P2)) * scale;
        let rewards_P2 = (match self.objective.loss.needs_reference() {
            true => ratio_P2.detach(),
            false => mean_P2.detach(),
        }) * self.objective.beta;
        let (reward, logp_P2) = ([0, 1].map(|answer| rewards_P2.i((.., answer))), logp_P2.detach());
        let num_pairs = counts_P.sum(Kind::Double);
        let measures = Measures {
            answers: num_pairs.shallow_clone(),
            right: counted(reward[0].gt_tensor(&reward[1]).to_kind(Kind::Double)),
            rewards: [counted(reward[0].shallow_clone()), counted(reward[1].shallow_clone())],
            logps: [counted(logp_P2.i((.., 0))), counted(logp_P2.i((.., 1)))],
            counts: [num_pairs.shallow_clone(), num_pairs.shallow_clone()],
            divergence: num_pairs.zeros_like(),
        };
        [loss, measures.stacked()]
    }

    /// Returns the loss of each pair `[P]`, of log-ratios, mean log-probabilities and lengths `[P, 2]`.
    fn each(&self, ratio_P2: &Tensor, mean_P2: &Tensor, len_P2: &Tensor) -> Tensor {
        let Preference { loss, beta, nll_weight, group_size: _ } = self.objective;
        let difference = |x_P2: &Tensor| x_P2.i((.., 0)) - x_P2.i((.., 1));
        let delta_P = difference(ratio_P2) * beta;
        let smoothed = |epsilon: f64, sign: f64| {
            let (right, wrong) = (delta_P.log_sigmoid(), (-&delta_P).log_sigmoid());
            -(right * (1.0 - epsilon) + wrong * (sign * epsilon))
        };
        let of_pair = match loss {
            PreferenceLoss::Sigmoid { label_smoothing } => smoothed(label_smoothing, 1.0),
            PreferenceLoss::Robust { label_smoothing } => {
                smoothed(label_smoothing, -1.0) / (1.0 - 2.0 * label_smoothing)
            }
            PreferenceLoss::Hinge => (-delta_P + 1.0).relu(),
            PreferenceLoss::Ipo => (difference(&(ratio_P2 / len_P2)) - 0.5 / beta).square(),
            PreferenceLoss::ApoZero => {
                let [chosen, rejected] = [0, 1].map(|answer| (ratio_P2.i((.., answer)) * beta).sigmoid());
                1.0 - chosen + rejected
            }
            PreferenceLoss::ApoDown => (ratio_P2.i((.., 0)) * beta).sigmoid() + 1.0 - delta_P.sigmoid(),
            PreferenceLoss::Orpo => {
                // ln(1 − p), of p just below 1 too.
                let log_rest_P2 = (-mean_P2.clamp_max(-1e-12).expm1()).log();
                (difference(mean_P2) - difference(&log_rest_P2)).log_sigmoid() * -beta
            }
            PreferenceLoss::Simpo { gamma } => -(difference(mean_P2) * beta - gamma).log_sigmoid(),
            PreferenceLoss::Kto(_) => unreachable!("answers of KTO are in groups, not in pairs"),
        };
        if nll_weight == 0.0 { of_pair } else { of_pair - mean_P2.i((.., 0)) * nll_weight }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    const BETA: f64 = 0.3;
    /// Log-probabilities of the tokens of two pairs, each chosen answer before the rejected one.
    const TOKENS: [&[f64]; 4] = [&[-0.7, -1.9, -0.2], &[-1.1, -2.3], &[-3.0], &[-0.4, -0.9, -1.6, -0.1]];
    /// Log-probabilities of the answers by the reference model. The hinge is flat at the first pair.
    const REFERENCE: [f64; 4] = [-5.0, -1.9, -2.2, -3.4];

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// Returns the loss of a pair as TRL's trainers write it: SimPO is its CPOTrainer's, ORPO its ORPOTrainer's, others its DPOTrainer's.
    fn of_pair(loss: PreferenceLoss, nll_weight: f64, tokens: [&[f64]; 2], reference: [f64; 2]) -> f64 {
        let sums = tokens.map(|answer| answer.iter().sum::<f64>());
        let lens = tokens.map(|answer| answer.len() as f64);
        let (mean_chosen, mean_rejected) = (sums[0] / lens[0], sums[1] / lens[1]);
        let (chosen, rejected) = (sums[0] - reference[0], sums[1] - reference[1]);
        let delta = chosen - rejected;
        let log_sigmoid = |x: f64| sigmoid(x).ln();
        let of_pair = match loss {
            PreferenceLoss::Sigmoid { label_smoothing } => {
                -log_sigmoid(BETA * delta) * (1.0 - label_smoothing) - log_sigmoid(-BETA * delta) * label_smoothing
            }
            PreferenceLoss::Robust { label_smoothing } => {
                let wrong = log_sigmoid(-BETA * delta) * label_smoothing;
                (-log_sigmoid(BETA * delta) * (1.0 - label_smoothing) + wrong) / (1.0 - 2.0 * label_smoothing)
            }
            PreferenceLoss::Hinge => (1.0 - BETA * delta).max(0.0),
            PreferenceLoss::Ipo => (chosen / lens[0] - rejected / lens[1] - 1.0 / (2.0 * BETA)).powi(2),
            PreferenceLoss::ApoZero => 1.0 - sigmoid(BETA * chosen) + sigmoid(BETA * rejected),
            PreferenceLoss::ApoDown => sigmoid(BETA * chosen) + 1.0 - sigmoid(BETA * delta),
            PreferenceLoss::Orpo => {
                let log_rest = |mean: f64| (-mean.exp()).ln_1p();
                let log_odds = (mean_chosen - mean_rejected) - (log_rest(mean_chosen) - log_rest(mean_rejected));
                -BETA * log_sigmoid(log_odds)
            }
            PreferenceLoss::Simpo { gamma } => -log_sigmoid(BETA * (mean_chosen - mean_rejected - gamma / BETA)),
            PreferenceLoss::Kto(_) => unreachable!("it has no pairs"),
        };
        of_pair - nll_weight * mean_chosen
    }

    /// Compares with central differences in float64.
    #[test]
    fn gradients_of_each_loss_are_those_of_its_formula() {
        let (mut cu_seqlens, mut labels) = (vec![0], Vec::new());
        for answer in TOKENS {
            labels.push(-100);
            labels.extend(std::iter::repeat_n(7, answer.len()));
            cu_seqlens.push(labels.len());
        }
        let zeros = Tensor::zeros([4], (Kind::Double, Device::Cpu));
        let reference = Tensor::stack(&[Tensor::from_slice(&REFERENCE), zeros], 1);
        let (scale, step, logps) = (0.5, 1e-5, TOKENS.concat());
        for (loss, nll_weight) in [
            (PreferenceLoss::Sigmoid { label_smoothing: 0.0 }, 0.0),
            (PreferenceLoss::Sigmoid { label_smoothing: 0.1 }, 0.7),
            (PreferenceLoss::Robust { label_smoothing: 0.1 }, 0.0),
            (PreferenceLoss::Hinge, 0.0),
            (PreferenceLoss::Ipo, 0.0),
            (PreferenceLoss::ApoZero, 0.0),
            (PreferenceLoss::ApoDown, 0.0),
            (PreferenceLoss::Orpo, 1.0),
            (PreferenceLoss::Simpo { gamma: 0.5 }, 0.0),
        ] {
            let formula = |logps: &[f64]| {
                let mut rest = logps;
                let answers = TOKENS.map(|answer| {
                    let (own, others) = rest.split_at(answer.len());
                    rest = others;
                    own
                });
                let pair = |at: usize| {
                    of_pair(loss, nll_weight, [answers[at], answers[at + 1]], [REFERENCE[at], REFERENCE[at + 1]])
                };
                (pair(0) + pair(2)) * scale
            };
            let objective = Preference { loss, beta: BETA, nll_weight, group_size: 1 };
            let pairs = Pairs::new(objective, &cu_seqlens, &labels);
            let losses: Vec<f64> = logps.iter().map(|logp| -logp).collect();
            let losses_L = Tensor::from_slice(&losses).set_requires_grad(true);
            let [found, _] = pairs.loss(&losses_L, pairs.needs_reference().then_some(&reference), scale);
            assert!((found.double_value(&[]) - formula(&logps)).abs() < 1e-12, "{loss:?}: {found:?}");
            found.backward();
            let grad: Vec<f64> = losses_L.grad().try_into().unwrap();
            for (at, of_loss) in grad.iter().enumerate() {
                let moved = |by: f64| {
                    let mut logps = logps.clone();
                    logps[at] += by;
                    formula(&logps)
                };
                let slope = (moved(step) - moved(-step)) / (2.0 * step);
                assert!((of_loss + slope).abs() < 1e-8, "{loss:?}, token {at}: {of_loss} and {slope}");
            }
            assert!(grad.iter().any(|of_loss| of_loss.abs() > 1e-3), "{loss:?}: {grad:?}");
        }
    }
}
