//! Groups of labeled answers as samples: the documents of all answers, and behind them as many in which each prompt is followed by
//! the answer to the prompt before it. By these the loss estimates how far the model is from its reference.

use std::path::Path;

use super::Processor;
use super::options::Pairs;
use super::pairs::joined;
use crate::data::column::{ColumnValues, SampleColumn};
use crate::data::error::DataError;
use crate::data::sample::{Media, Sample};
use crate::data::source::Labeled;
use crate::message::SampleId;

/// The column of a group's labels: 1 for a good answer, 0 for a bad one or none.
pub const LABELS: &str = "labels";

impl Processor {
    /// Makes a sample of these answers, which counts once for each of them in the loss. Files are relative to `base`.
    ///
    /// # Errors
    /// One of them cannot be used, or together they are too long.
    pub fn group_sample(&self, id: SampleId, answers: &[Labeled], base: &Path) -> Result<Sample, DataError> {
        let count = answers.len();
        let own = answers.iter().map(|answer| answer.conversation.clone());
        let mixed = (0..count).map(|at| answers[at].with_answer_of(&answers[(at + count - 1) % count]));
        let mut documents = Vec::with_capacity(2 * count);
        for (number, conversation) in own.chain(mixed).enumerate() {
            let sample = self.training_sample(id, &conversation, base).map_err(|error| DataError::Answer {
                answer: format!("group's #{}", number % count + 1),
                source: Box::new(error),
            })?;
            documents.push(sample);
        }
        self.room.check_joined(&documents)?;
        let pictures = documents.iter().flat_map(|document| document.media.iter().cloned());
        let for_reference = documents.iter().map(|document| self.reference_item(document));
        let media: Vec<Media> = pictures.chain(for_reference).collect();
        let mut sample = joined(id, &documents, media);
        sample.meta.num_targets = count as u32;
        let size = match self.pairs {
            Pairs::Grouped { size } => size.max(count),
            _ => count,
        };
        let labels = (0..size).map(|at| i64::from(answers.get(at).is_some_and(|answer| answer.is_good)));
        let values = ColumnValues::I64(labels.collect());
        let column =
            SampleColumn { name: LABELS.to_owned(), before: Vec::new(), rows: size, after: Vec::new(), values };
        Ok(sample.with_columns(vec![column]))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::config::Phase;
    use crate::data::processor::ProcessorOptions;
    use crate::data::source::{Conversation, Turn};

    fn processor(max_tokens: usize) -> Processor {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/preference/model");
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let pairs = Pairs::Grouped { size: 3 };
        let options = ProcessorOptions { pairs, max_tokens, learned: Phase::Sft.into(), ..ProcessorOptions::default() };
        Processor::open(&folder, &config, &options).unwrap()
    }

    fn labeled(prompt: &str, answer: &str, is_good: bool) -> Labeled {
        let turns = vec![Turn::text("user", prompt), Turn::text("assistant", answer)];
        Labeled { conversation: Conversation::text(turns), is_good }
    }

    #[test]
    fn answers_come_first_and_mismatched_ones_behind_them() {
        let processor = processor(200);
        let answers = [labeled("a", "bcd", true), labeled("efg", "h", false)];
        let sample = processor.group_sample(SampleId(3), &answers, Path::new("")).unwrap();
        let alone = |prompt: &str, answer: &str| {
            processor.training_sample(SampleId(3), &labeled(prompt, answer, true).conversation, Path::new("")).unwrap()
        };
        let expected = [alone("a", "bcd"), alone("efg", "h"), alone("a", "h"), alone("efg", "bcd")];
        assert_eq!(sample.input_ids, expected.each_ref().map(|it| it.input_ids.clone()).concat());
        assert_eq!(sample.targets, expected.each_ref().map(|it| it.targets.clone()).concat());
        assert_eq!(sample.meta.documents, expected.each_ref().map(|it| it.meta.num_tokens));
        assert_eq!((sample.meta.num_targets, sample.meta.items.len()), (2, 4));
        let labels = &sample.columns[0];
        assert_eq!((labels.rows, &labels.values), (3, &ColumnValues::I64(vec![1, 0, 0])), "a short group is filled up");
    }

    #[test]
    fn an_answer_that_cannot_be_used_is_named_and_long_groups_are_too_long() {
        let wrong = |answers: &[Labeled], max_tokens| {
            processor(max_tokens).group_sample(SampleId(0), answers, Path::new("")).unwrap_err()
        };
        let answers = [labeled("a", "b", true), labeled("c", "", false)];
        let error = wrong(&answers, 200);
        assert!(!error.is_too_long() && error.to_string().contains("group's #2"), "{error}");
        assert!(wrong(&[labeled("a", "b", true), labeled("c", "dd", false)], 20).is_too_long());
    }
}
