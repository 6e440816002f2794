//! Pairs of answers as samples: two documents, the chosen one first, and for each what a reference model reads.

use std::path::Path;

use super::Processor;
use super::options::Pairs;
use crate::data::error::DataError;
use crate::data::sample::{Media, Sample};
use crate::data::source::Pair;
use crate::message::{Grid, PicturedAnswer, PicturedText, SampleId, Tower};

impl Processor {
    /// Makes a sample of both answers, end to end, which counts once in the loss. Files are relative to `base`.
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
        self.room.check_joined(&answers)?;
        if answers[0].input_ids == answers[1].input_ids && answers[0].targets == answers[1].targets {
            self.equal_answers.add();
        }
        let mut media: Vec<Media> = answers.iter().flat_map(|answer| answer.media.clone()).collect();
        if self.pairs == (Pairs::Learned { reference: true }) {
            media.extend(answers.iter().map(|answer| self.reference_item(answer)));
        }
        let mut sample = joined(id, &answers, media);
        sample.meta.num_targets = 1;
        Ok(sample)
    }

    /// Makes the item that a reference model reads of an answer: the id of each token, and the token to predict there or -1; where the
    /// model sees pictures, also positions and the pictures themselves, since the reference has towers of its own.
    pub(super) fn reference_item(&self, answer: &Sample) -> Media {
        let targets = answer.targets.iter().map(|target| (*target).max(-1));
        let (grid, pixels) = match self.towers.vision {
            None => {
                let rows = answer.input_ids.iter().zip(targets);
                let grid = Grid { t: answer.meta.num_tokens, h: 1, w: 1 };
                (grid, rows.flat_map(|(id, target)| [*id as f32, target as f32]).collect())
            }
            Some(_) => {
                let pictures = || answer.media.iter().filter(|item| item.tower == Tower::Vision);
                let text = PicturedText {
                    ids: answer.input_ids.clone(),
                    positions: answer.position_ids.clone(),
                    grids: pictures().map(|item| item.grid).collect(),
                };
                let patches: Vec<&[f32]> = pictures().map(|item| item.pixels.as_slice()).collect();
                PicturedAnswer { text, targets: targets.collect() }.item(&patches)
            }
        };
        Media { tower: Tower::Reference, grid, num_features: 1, pixels }
    }
}

/// Makes a sample of these documents, end to end.
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

    #[test]
    fn pairs_of_equal_answers_are_counted() {
        let processor = processor(false, 100);
        for (chosen, rejected) in [("c", "d"), ("c", "c"), ("d", "d")] {
            processor.pair_sample(SampleId(0), &pair(chosen, rejected), Path::new("")).unwrap();
        }
        assert_eq!(processor.notes(), ["pairs whose answers are equal, so that neither is preferred: 2"]);
    }

    #[test]
    fn a_reference_that_sees_reads_an_answer_with_its_pictures() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/preference_pictures");
        let folder = base.join("model");
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let sample = |picture: &str, max_images: usize| {
            let pairs = Pairs::Learned { reference: true };
            let learned = Phase::Sft.into();
            let options = ProcessorOptions { pairs, learned, max_images, ..ProcessorOptions::default() };
            let conversation = |answer: &str| {
                let turns = json!([{"role": "user", "content": "a<image>b"}, {"role": "assistant", "content": answer}]);
                Conversation::parse(&json!({ "messages": turns, "images": [picture] }).to_string()).unwrap()
            };
            let pair = Pair { chosen: conversation("cde"), rejected: conversation("f") };
            let processor = Processor::open(&folder, &config, &options).unwrap();
            processor.pair_sample(SampleId(0), &pair, &base)
        };
        let found = sample("pictures/0.png", 2).unwrap();
        let towers: Vec<Tower> = found.meta.items.iter().map(|item| item.tower).collect();
        assert_eq!(towers, [Tower::Vision, Tower::Vision, Tower::Reference, Tower::Reference]);
        let (own, item) = (&found.media[1], &found.media[3]);
        let [first, second] = [0, 1].map(|document| found.meta.documents[document] as usize);
        let len = PicturedAnswer::len_of_head([item.pixels[0], item.pixels[1]]);
        let PicturedAnswer { text, targets } = PicturedAnswer::of_head(&item.pixels[..len]).unwrap();
        assert_eq!((text.ids.as_slice(), text.grids), (&found.input_ids[first..], vec![own.grid]));
        let rows: Vec<f32> =
            found.position_ids.chunks(first + second).flat_map(|axis| axis[first..].to_vec()).collect();
        assert_eq!(text.positions, rows);
        assert_eq!(targets, found.targets[first..].iter().map(|target| (*target).max(-1)).collect::<Vec<_>>());
        assert_eq!((&item.pixels[len..][..own.pixels.len()], item.grid.h), (own.pixels.as_slice(), second as u32));
        // By these values the reference's results are kept.
        let other = &sample("pictures/4.png", 2).unwrap().media[3];
        assert_eq!((other.grid, &other.pixels[..len]), (item.grid, &item.pixels[..len]));
        assert_ne!(other.pixels, item.pixels);
        let error = sample("pictures/0.png", 1).unwrap_err().to_string();
        assert!(error.contains("data.pack.max_images"), "both answers share a pack: {error}");
    }
}
