//! KTO (Ethayarajh et al. 2024): single answers that people call good or bad. With r an answer's log-ratio (the log-probability
//! of the model minus that of the reference), a good one costs `1 − σ(β·(r − z))` and a bad one `1 − σ(β·(z − r))`. The reference
//! point z estimates the divergence of the model from the reference: the mean log-ratio of answers that follow other prompts, or 0
//! where that is below. It gets no gradient.
//!
//! TRL takes the mean over a micro-batch, in which each prompt has the answer to the one before it. Here a sample is a group of
//! answers, with these mismatched ones as further documents, and z belongs to the group: so it depends on no packing and no layout.
//!
//! Shapes: L counted targets, N documents of a row, M answers of all its groups, G groups.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::measures::{Measures, NUM_MEASURES};
use crate::device::upload;

/// Weights of the losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kto {
    pub desirable_weight: f64,
    pub undesirable_weight: f64,
}

/// The groups of a packed row.
#[derive(Clone, Debug)]
pub struct Groups {
    weights: Kto,
    beta: f64,
    /// The number of the document of each counted target.
    documents: Vec<i64>,
    num_documents: i64,
    groups: Vec<Group>,
}

/// A group that counts: as many documents of its answers as of mismatched ones behind them.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    /// The documents of its answers.
    answers: Range<usize>,
    /// True for the answers that are good.
    is_good: Vec<bool>,
}

impl Groups {
    /// Returns the groups of a row whose documents end at `cu_seqlens` and whose tokens have these `labels`, -100 where they do not
    /// count. `samples` are the tokens of each group, and `good` has as many numbers for each, 1 of a good answer, in the order of its
    /// answers. A group with a document without targets has lost the features of an item, and does not count.
    pub fn new(
        weights: Kto,
        beta: f64,
        cu_seqlens: &[usize],
        labels: &[i64],
        samples: &[usize],
        good: &[i64],
    ) -> Groups {
        let lens =
            cu_seqlens.windows(2).map(|ends| labels[ends[0]..ends[1]].iter().filter(|label| **label >= 0).count());
        let lens: Vec<usize> = lens.collect();
        let documents = lens.iter().zip(0i64..).flat_map(|(len, number)| std::iter::repeat_n(number, *len)).collect();
        let per_group = good.len() / samples.len().max(1);
        let (mut begin, mut groups, mut first) = (0, Vec::new(), 0);
        for (number, tokens) in samples.iter().enumerate() {
            let end = begin + tokens;
            let count = cu_seqlens.iter().filter(|at| **at > begin && **at <= end).count();
            let own = first..first + count / 2;
            // A sample of one document, such as that of a dry run, is no group.
            if count > 1 && lens[first..first + count].iter().all(|len| *len > 0) {
                let labels = good[number * per_group..].iter().take(own.len());
                groups.push(Group { is_good: labels.map(|label| *label > 0).collect(), answers: own });
            }
            (begin, first) = (end, first + count);
        }
        Groups { weights, beta, documents, num_documents: lens.len() as i64, groups }
    }

    /// Answers that count.
    pub fn num_counted(&self) -> f64 {
        self.groups.iter().map(|group| group.answers.len()).sum::<usize>() as f64
    }

    /// Returns whether the log-probabilities of the reference model are needed: not without groups that count.
    pub fn needs_reference(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Works like [`Pairs::loss`](super::Pairs::loss) over answers; `reference` has the log-probability of each document.
    /// `losses_L` is `[L]`, `reference` `[documents, 2]`; returns a scalar and `[measures]`. Panics where a reference is needed, and
    /// there is none.
    pub fn loss(&self, losses_L: &Tensor, reference: Option<&Tensor>, scale: f64) -> [Tensor; 2] {
        let device = losses_L.device();
        if self.groups.is_empty() {
            return [losses_L.sum(Kind::Double) * 0.0, Tensor::zeros([NUM_MEASURES], (Kind::Double, device))];
        }
        let reference = reference.expect("KTO has a reference model");
        let at_L = upload(&Tensor::from_slice(&self.documents), device);
        let zeros = Tensor::zeros([self.num_documents], (Kind::Double, device));
        let logp_N = zeros.index_add(0, &at_L, &(-losses_L).to_kind(Kind::Double));
        let ratio_N = &logp_N - reference.detach().sum_dim_intlist(-1, false, Kind::Double).view([-1]);
        let index = |numbers: Vec<i64>| upload(&Tensor::from_slice(&numbers), device);
        let answers = || self.groups.iter().flat_map(|group| group.answers.clone());
        let answers_M = index(answers().map(|document| document as i64).collect());
        let count = |group: &Group| group.answers.len();
        let mixed = self.groups.iter().flat_map(|group| (group.answers.end..).take(count(group)));
        let mixed_M = index(mixed.map(|document| document as i64).collect());
        let of = self.groups.iter().enumerate().flat_map(|(number, group)| vec![number as i64; count(group)]);
        let groups_M = index(of.collect());
        let lens: Vec<f64> = self.groups.iter().map(|group| count(group) as f64).collect();
        let lens_G = upload(&Tensor::from_slice(&lens), device);
        let sums_G = lens_G.zeros_like().index_add(0, &groups_M, &ratio_N.detach().index_select(0, &mixed_M));
        let z_M = (sums_G / lens_G).clamp_min(0.0).index_select(0, &groups_M);
        let good: Vec<f64> =
            self.groups.iter().flat_map(|group| &group.is_good).map(|good| f64::from(u8::from(*good))).collect();
        let good_M = upload(&Tensor::from_slice(&good), device);
        let bad_M = 1.0 - &good_M;
        let ratio_M = ratio_N.index_select(0, &answers_M);
        // 1 of a good answer, -1 of a bad one.
        let value_M = (&ratio_M - &z_M) * (&good_M - &bad_M) * self.beta;
        let weight_M = &good_M * self.weights.desirable_weight + &bad_M * self.weights.undesirable_weight;
        let cost_M: Tensor = (1.0 - value_M.sigmoid()) * weight_M;
        let loss = cost_M.sum(Kind::Double) * scale;
        let (reward_M, logp_M) = (ratio_M.detach() * self.beta, logp_N.detach().index_select(0, &answers_M));
        let kinds = [&good_M, &bad_M];
        let of_kinds = |x_M: &Tensor| kinds.map(|kind_M| (x_M * kind_M).sum(Kind::Double));
        let measures = Measures {
            answers: good_M.ones_like().sum(Kind::Double),
            right: value_M.detach().gt(0.0).to_kind(Kind::Double).sum(Kind::Double),
            rewards: of_kinds(&reward_M),
            logps: of_kinds(&logp_M),
            counts: kinds.map(|kind_M| kind_M.sum(Kind::Double)),
            divergence: z_M.sum(Kind::Double),
        };
        [loss, measures.stacked()]
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::{Groups, Kto};

    const WEIGHTS: Kto = Kto { desirable_weight: 1.5, undesirable_weight: 0.5 };

    /// Returns two groups, of two answers and of one, with a token that counts in each document.
    fn groups(labels: &[i64]) -> Groups {
        Groups::new(WEIGHTS, 0.3, &[0, 2, 4, 6, 8, 10, 12], labels, &[8, 4], &[1, 0, 0, 0])
    }

    fn row(counted: &[bool]) -> Vec<i64> {
        counted.iter().flat_map(|counts| [-100, if *counts { 7 } else { -100 }]).collect()
    }

    #[test]
    fn good_and_bad_answers_are_weighed_against_the_mismatched_ones_of_their_group() {
        let groups = groups(&row(&[true; 6]));
        let logp = [-1.0, -2.0, -3.0, -2.5, -4.0, -6.0];
        let reference = [-1.5, -1.0, -3.5, -3.5, -3.0, -5.0];
        let losses = Tensor::from_slice(&logp.map(|logp: f32| -logp)).set_requires_grad(true);
        let two = Tensor::stack(
            &[Tensor::from_slice(&reference.map(|x: f32| x)), Tensor::zeros([6], (Kind::Float, tch::Device::Cpu))],
            1,
        );
        let [loss, measures] = groups.loss(&losses, Some(&two), 0.25);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        // Log-ratios: 0.5 good, -1 bad; mismatched 0.5 and 1, so z is 0.75. Then -1 bad, mismatched -1, so z is 0.
        let expected = [
            1.5 * (1.0 - sigmoid(0.3 * (0.5 - 0.75))),
            0.5 * (1.0 - sigmoid(0.3 * (0.75 + 1.0))),
            0.5 * (1.0 - sigmoid(0.3)),
        ];
        let found = loss.double_value(&[]);
        assert!((found - 0.25 * expected.iter().sum::<f64>()).abs() < 1e-9, "{found}");
        let measures: Vec<f64> = measures.try_into().unwrap();
        let expected = [3.0, 2.0, 0.15, -0.6, -1.0, -6.0, 1.0, 2.0, 1.5];
        assert!(measures.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{measures:?}");
        loss.backward();
        let grad: Vec<f64> = losses.grad().to_kind(Kind::Double).try_into().unwrap();
        assert!(grad[0] > 0.0 && grad[1] < 0.0 && grad[4] < 0.0, "{grad:?}");
        assert_eq!((grad[2], grad[3], grad[5]), (0.0, 0.0, 0.0), "the reference point gets no gradient");
        assert_eq!(groups.num_counted(), 3.0);
    }

    /// Compares with central differences in float64 of TRL's formula.
    #[test]
    fn gradients_are_those_of_the_formula_at_a_fixed_reference_point() {
        let logp = [-1.0, -2.0, -3.0, -2.5, -4.0, -6.0];
        let reference = [-1.5, -1.0, -3.5, -3.5, -3.0, -5.0];
        let losses = Tensor::from_slice(&logp.map(|logp: f64| -logp)).set_requires_grad(true);
        let zeros = Tensor::zeros([6], (Kind::Double, tch::Device::Cpu));
        let two = Tensor::stack(&[Tensor::from_slice(&reference), zeros], 1);
        let [loss, _] = groups(&row(&[true; 6])).loss(&losses, Some(&two), 0.25);
        loss.backward();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        // The reference points are 0.75 and 0; the other documents are mismatched answers.
        let cost = |document: usize, logp: f64| {
            let ratio = logp - reference[document];
            match document {
                0 => 1.5 * (1.0 - sigmoid(0.3 * (ratio - 0.75))),
                1 => 0.5 * (1.0 - sigmoid(0.3 * (0.75 - ratio))),
                4 => 0.5 * (1.0 - sigmoid(0.3 * (0.0 - ratio))),
                _ => 0.0,
            }
        };
        let grad: Vec<f64> = losses.grad().try_into().unwrap();
        for (document, of_loss) in grad.iter().enumerate() {
            let at = |by: f64| 0.25 * cost(document, logp[document] + by);
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((of_loss + slope).abs() < 1e-9, "document {document}: {of_loss} and {slope}");
        }
    }

    #[test]
    fn a_group_without_a_document_counts_for_nothing() {
        let groups = groups(&row(&[true, true, true, false, true, true]));
        assert_eq!(groups.num_counted(), 1.0);
        let losses = Tensor::ones([5], (Kind::Float, tch::Device::Cpu));
        let reference = Tensor::zeros([6, 2], (Kind::Float, tch::Device::Cpu));
        let [_, measures] = groups.loss(&losses, Some(&reference), 1.0);
        assert_eq!(measures.double_value(&[0]), 1.0);
        let none = Groups::new(WEIGHTS, 0.3, &[0, 1], &[-100], &[], &[]);
        assert!(groups.needs_reference() && !none.needs_reference());
        let [loss, _] = none.loss(&losses.narrow(0, 0, 0), None, 1.0);
        assert_eq!(loss.double_value(&[]), 0.0);
    }
}
