//! Describes how well given answers are predicted: forward only, without gradients.

use std::rc::Rc;

use tch::Tensor;

use super::layout::AnsweredSamples;
use super::network::EncoderDecoder;
use super::record::Recorded;
use crate::model::decoder::TokenScores;
use crate::model::towers::with_values;
use crate::native::NativeError;
use crate::params::ParamStore;
use crate::tape::{Execution, Tape};

impl EncoderDecoder {
    /// Scores of the targets of a row of samples. `features` are what the tower has made of the row's pictures, `[N, D]`; empty
    /// without pictures. `params` are what it was made from.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn score(
        &self,
        params: &Rc<ParamStore>,
        samples: &AnsweredSamples<'_>,
        features: &[Tensor],
    ) -> Result<TokenScores, NativeError> {
        let _no_grad = tch::no_grad_guard();
        let mut tape = Tape::new();
        let Recorded { features: slots, hidden, labels } = self.record_states(&mut tape, samples, false);
        tape.keep(hidden);
        let taken = features.iter().map(|feature| feature.to_device(self.device).to_kind(self.kind)).collect();
        let mut run = Execution::forward_only(Rc::new(tape), params.clone(), with_values(&slots, &[taken]));
        run.forward()?;
        let (losses_L, predicted_L) = self.cross_entropy().of_each(run.value(hidden), &labels);
        let predicted = Vec::<i64>::try_from(predicted_L).expect("a row of tokens");
        Ok(TokenScores {
            losses: Vec::try_from(losses_L).expect("a row of numbers"),
            correct: predicted.iter().zip(&labels).map(|(one, other)| one == other).collect(),
        })
    }
}
