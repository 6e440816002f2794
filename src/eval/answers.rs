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
        let asked = 0..self.max_samples.min(dataset.len() as u64);
        let mut questions = asked.map(|index| (index, dataset.prompt(index)));
        let (mut answers, mut bad) = (Vec::new(), Vec::new());
        loop {
            let batch = next_batch(&mut questions, self.batch_size.max(1), &mut bad);
            if batch.is_empty() {
                break;
            }
            let samples: Vec<_> = batch.iter().map(|(_, sample)| sample).collect();
            let given = reader.answer(&samples, self.max_new_tokens, None)?;
            for ((index, _), answer) in batch.iter().zip(given) {
                let exchange = dataset.exchange(*index)?;
                let answer = ScoredAnswer::new(exchange.question.clone(), answer, exchange.answer.clone());
                tell(&exchange, &answer)?;
                answers.push(answer);
            }
        }
        ensure!(!answers.is_empty(), "no line of {} can be used as a question", dataset.place_name(0));
        Ok((answers, bad))
    }
}

/// Reads the next questions until `size` can be used; pictures of more would take much memory. The reasons why others cannot be used go
/// to `bad`.
fn next_batch<T, E>(
    questions: &mut impl Iterator<Item = (u64, Result<T, E>)>,
    size: usize,
    bad: &mut Vec<E>,
) -> Vec<(u64, T)> {
    let mut batch = Vec::new();
    while batch.len() < size
        && let Some((index, question)) = questions.next()
    {
        match question {
            Ok(question) => batch.push((index, question)),
            Err(error) => bad.push(error),
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::next_batch;

    #[test]
    fn no_more_questions_are_read_than_are_answered_together() {
        let question = |index: u64| (index, if index == 1 { Err("no picture") } else { Ok(10 * index) });
        let (mut questions, mut bad) = ((0..6).map(question), Vec::new());
        assert_eq!(next_batch(&mut questions, 2, &mut bad), [(0, 0), (2, 20)]);
        assert_eq!(questions.size_hint().0, 3, "the others are read later");
        assert_eq!(next_batch(&mut questions, 2, &mut bad), [(3, 30), (4, 40)]);
        assert_eq!(next_batch(&mut questions, 2, &mut bad), [(5, 50)]);
        assert!(next_batch(&mut questions, 2, &mut bad).is_empty());
        assert_eq!(bad, ["no picture"]);
    }
}
