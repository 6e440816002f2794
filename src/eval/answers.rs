//! A data set's questions, answered greedily.

use crate::eval::generator::Reader;
use anyhow::{Result, ensure};
use loongforge_core::data::{BadSample, Dataset, Exchange};
use loongforge_core::observe::ScoredAnswer;

/// Says which questions are answered, and how.
pub struct Asking {
    /// The first so many questions.
    pub max_samples: u64,
    /// Questions that are answered together.
    pub batch_size: usize,
    pub max_new_tokens: usize,
}

impl Asking {
    /// Answers the questions of `dataset` in order, without those that cannot be used, which are returned; `tell` hears of
    /// each answer.
    ///
    /// # Errors
    /// No question can be used. `tell` fails. The model made tokens that are no text.
    pub fn run(
        &self,
        reader: &Reader,
        dataset: &Dataset,
        mut tell: impl FnMut(&Exchange, &ScoredAnswer) -> Result<()>,
    ) -> Result<(Vec<ScoredAnswer>, Vec<BadSample>)> {
        let (mut prompts, mut bad) = (Vec::new(), Vec::new());
        for index in 0..self.max_samples.min(dataset.len() as u64) {
            match dataset.prompt(index) {
                Ok(prompt) => prompts.push((index, prompt)),
                Err(error) => bad.push(error),
            }
        }
        ensure!(!prompts.is_empty(), "no line of {} can be used as a question", dataset.place_name(0));
        let mut answers = Vec::new();
        for batch in prompts.chunks(self.batch_size.max(1)) {
            let samples: Vec<_> = batch.iter().map(|(_, sample)| sample).collect();
            let given = reader.answer(&samples, self.max_new_tokens, None)?;
            for ((index, _), answer) in batch.iter().zip(given) {
                let exchange = dataset.exchange(*index)?;
                let (prompt, expected) = (exchange.question.clone(), exchange.answer.clone());
                let answer = ScoredAnswer { correct: answer == expected, prompt, answer, expected };
                tell(&exchange, &answer)?;
                answers.push(answer);
            }
        }
        Ok((answers, bad))
    }
}
