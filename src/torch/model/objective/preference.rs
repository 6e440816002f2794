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
