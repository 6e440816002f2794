//! The places of the rows of a micro-batch's samples on both sides. A sample is a question and then the tokens before those of its
//! answer; where the answer begins, positions restart. A sample without an answer has the token before the first one.

use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use tch::{Device, Tensor};

use super::encoder::Sequences;
use crate::nn::{CrossAttention, DocumentKeys, Mask};

/// Samples of a row, on the host.
pub struct AnsweredSamples<'a> {
    /// `[T]`.
    pub ids: &'a [i64],
    /// `[T]`; they restart with a sample and with its answer.
    pub positions: &'a [f32],
    /// `[T]`; -100 where nothing counts.
    pub targets: &'a [i64],
    /// `[0, …, T]`.
    pub cu_seqlens: &'a [usize],
    /// The tokens that features replace.
    pub feature_rows: Vec<i64>,
}

/// The ids, attentions and labels of a micro-batch that all layers read beside their rows.
pub(super) struct Layout {
    /// The ids of all tokens, those that are added to samples without an answer behind the others.
    pub ids: Tensor,
    pub questions: Rc<Sequences>,
    pub answers: Rc<Sequences>,
    pub crossing: Rc<CrossAttention>,
    /// The rows of answers whose targets count, and these.
    pub counted: Rc<Tensor>,
    pub labels: Vec<i64>,
}

impl Layout {
    /// Finds the rows of samples.
    pub fn new(samples: &AnsweredSamples<'_>, start_token: i64, device: Device) -> Layout {
        let AnsweredSamples { ids, positions, targets, cu_seqlens, .. } = *samples;
        let mut ids = ids.to_vec();
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        let (mut question_ends, mut answer_ends, mut keys) = (vec![0], vec![0], Vec::new());
        let (mut counted, mut labels) = (Vec::new(), Vec::new());
        for ends in cu_seqlens.windows(2) {
            let (start, end) = (ends[0], ends[1]);
            let border = (start + 1..end).find(|at| positions[*at] == 0.0).unwrap_or(end);
            questions.extend(start as i64..border as i64);
            keys.push(DocumentKeys {
                rows: question_ends[question_ends.len() - 1] as i64..questions.len() as i64,
                extra: None,
            });
            question_ends.push(questions.len());
            for (at, target) in (border..end).zip(&targets[border..end]) {
                if *target != IGNORE_INDEX {
                    counted.push(answers.len() as i64);
                    labels.push(*target);
                }
                answers.push(at as i64);
            }
            if border == end {
                answers.push(ids.len() as i64);
                ids.push(start_token);
            }
            answer_ends.push(answers.len());
        }
        Layout {
            ids: Tensor::from_slice(&ids).to_device(device),
            crossing: Rc::new(CrossAttention::new(&answer_ends, &keys, questions.len() as i64, device)),
            questions: Rc::new(Sequences::new(&questions, &question_ends, Mask::Full, device)),
            answers: Rc::new(Sequences::new(&answers, &answer_ends, Mask::Causal, device)),
            counted: Rc::new(Tensor::from_slice(&counted).to_device(device)),
            labels,
        }
    }
}
