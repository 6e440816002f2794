//! Pairs of answers as samples: two documents, the chosen one first, and for each what a reference model reads.

use std::path::Path;

use super::Processor;
use super::assemble::Features;
use super::options::Pairs;
use crate::data::error::DataError;
use crate::data::sample::{Media, Sample};
use crate::data::source::Pair;
use crate::message::{Grid, SampleId, Tower};

impl Processor {
    /// A sample of both answers, end to end, which counts once in the loss. Files are relative to `base`.
    ///
    /// # Errors
    /// One of them cannot be used, or together they are too long.
    pub fn pair_sample(&self, id: SampleId, pair: &Pair, base: &Path) -> Result<Sample, DataError> {
        let [chosen, rejected] = pair.answers();
        let of = |answer: &str, conversation| {
            let sample = self.training_sample(id, conversation, base);
            sample.map_err(|error| DataError::Answer { answer: answer.to_owned(), source: Box::new(error) })
        };
        let answers = [of("chosen", chosen)?, of("rejected", rejected)?];
        let lens = answers.each_ref().map(|answer| answer.meta.num_tokens);
        self.check_length(lens.iter().map(|len| *len as usize).sum(), Features::default())?;
        let mut media: Vec<Media> = answers.iter().flat_map(|answer| answer.media.clone()).collect();
        if self.pairs == (Pairs::Learned { reference: true }) {
            media.extend(answers.iter().map(reference_item));
        }
        let mut sample = joined(id, &answers, media);
        sample.meta.num_targets = 1;
        Ok(sample)
    }
}

/// A sample of these documents, end to end.
pub(super) fn joined(id: SampleId, documents: &[Sample], media: Vec<Media>) -> Sample {
    let [ids, targets] = [|it: &Sample| it.input_ids.clone(), |it: &Sample| it.targets.clone()]
        .map(|column: fn(&Sample) -> Vec<i64>| documents.iter().flat_map(column).collect::<Vec<i64>>());
    let axis = |axis: usize| {
        let of = move |document: &Sample| {
            let len = document.input_ids.len();
            document.position_ids[axis * len..(axis + 1) * len].to_vec()
        };
        documents.iter().flat_map(of).collect::<Vec<f32>>()
    };
    let positions = (0..3).flat_map(axis).collect();
    let mut sample = Sample::new(id, ids, positions, targets, media);
    sample.meta.documents = documents.iter().map(|document| document.meta.num_tokens).collect();
    sample.num_sources = documents.iter().map(|document| document.num_sources).sum();
    sample
}

/// The rows that a reference model reads of an answer: the id of each token, and the token to predict there or -1.
pub(super) fn reference_item(answer: &Sample) -> Media {
    let rows = answer.input_ids.iter().zip(&answer.targets);
    let pixels = rows.flat_map(|(id, target)| [*id as f32, (*target).max(-1) as f32]).collect();
    let grid = Grid { t: answer.meta.num_tokens, h: 1, w: 1 };
    Media { tower: Tower::Reference, grid, num_features: 1, pixels }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::config::Phase;
    use crate::data::processor::ProcessorOptions;
    use crate::data::source::Conversation;

    fn processor(reference: bool, max_tokens: usize) -> Processor {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/preference/model");
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let pairs = Pairs::Learned { reference };
        let options = ProcessorOptions { pairs, max_tokens, learned: Phase::Sft.into(), ..ProcessorOptions::default() };
        Processor::open(&folder, &config, &options).unwrap()
    }

    fn pair(chosen: &str, rejected: &str) -> Pair {
        let conversation = |answer: &str| {
            let turns = json!([{"role": "user", "content": "ab"}, {"role": "assistant", "content": answer}]);
            Conversation::parse(&json!({ "messages": turns }).to_string()).unwrap()
        };
        Pair { chosen: conversation(chosen), rejected: conversation(rejected) }
    }

    #[test]
    fn both_answers_are_documents_of_one_sample_that_counts_once() {
        let (processor, pair) = (processor(true, 100), pair("cde", "f"));
        let sample = processor.pair_sample(SampleId(3), &pair, Path::new("")).unwrap();
        let alone = |conversation| processor.training_sample(SampleId(3), conversation, Path::new("")).unwrap();
        let [chosen, rejected] = pair.answers().map(alone);
        assert_eq!(sample.input_ids, [chosen.input_ids.clone(), rejected.input_ids].concat());
        assert_eq!(sample.targets, [chosen.targets, rejected.targets.clone()].concat());
        let positions: Vec<f32> = (0..9).chain(0..7).map(|at| at as f32).collect();
        assert_eq!(sample.position_ids, positions.repeat(3));
        assert_eq!((&sample.meta.documents[..], sample.meta.num_tokens), (&[9, 7][..], 16));
        assert_eq!((sample.meta.num_targets, sample.meta.items.len()), (1, 2));
        let item = &sample.media[1];
        assert_eq!((item.tower, item.grid.t, item.num_features), (Tower::Reference, 7, 1));
        let values: Vec<f32> = rejected.targets.iter().map(|target| (*target).max(-1) as f32).collect();
        assert_eq!(item.pixels.iter().skip(1).step_by(2).copied().collect::<Vec<f32>>(), values);
        assert!(values.contains(&-1.0) && values.iter().filter(|value| **value >= 0.0).count() == 2);
    }

    #[test]
    fn without_a_reference_there_is_nothing_for_it_and_long_pairs_are_too_long() {
        let sample = processor(false, 100).pair_sample(SampleId(0), &pair("c", "d"), Path::new("")).unwrap();
        assert!(sample.media.is_empty() && sample.meta.items.is_empty());
        let long = |chosen: &str| processor(false, 15).pair_sample(SampleId(0), &pair(chosen, "d"), Path::new(""));
        // Together, and one of them alone.
        for chosen in ["cccccc", "cccccccccccccccccc"] {
            assert!(long(chosen).unwrap_err().is_too_long(), "{chosen}");
        }
        let empty = processor(false, 100).pair_sample(SampleId(0), &pair("c", ""), Path::new("")).unwrap_err();
        assert!(!empty.is_too_long() && empty.to_string().contains("the rejected answer"), "{empty}");
    }
}
