//! The run's stream of samples by position. Reads files when asked; holds offsets only.

use std::path::{Path, PathBuf};

use super::error::{BadSample, DataError};
use super::locator::Locator;
use super::processor::Processor;
use super::sample::Sample;
use super::source::{Content, Mixture, Source};
use crate::config::{Data, Phase, TrainFile};
use crate::message::{self, SampleId};

/// An endless stream: position → sample, always the same for the same files, configuration and seed.
/// It may be shared by threads.
pub struct Dataset {
    processor: Processor,
    sources: Vec<Source>,
    mixture: Mixture,
}

impl Dataset {
    /// Opens and indexes the files of `data.train`.
    pub fn open(data: &Data, processor: Processor, seed: u64) -> Result<Self, DataError> {
        let num_tokens = |text: &str| processor.tokenizer().encode(text).map_or(text.len(), |tokens| tokens.len());
        let (window, index_dir) = (data.shuffle_window, data.index_dir.as_deref());
        let open =
            |file| Source::open_with(file, processor.phase(), data.pack.max_tokens, &num_tokens, window, index_dir);
        let sources: Vec<Source> = data.train.iter().map(open).collect::<Result<_, _>>()?;
        if sources.is_empty() {
            return Err(DataError::NoSource);
        }
        if sources.iter().any(Source::is_conversation) {
            processor.expect_template()?;
        }
        let orders = sources.iter().zip(&data.train).map(|(source, file)| (source.order(), file.weight));
        Ok(Self { mixture: Mixture::of_orders(orders.collect(), seed, data.shuffle), processor, sources })
    }

    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Samples in all files together, which is what `train.epochs` calls an epoch.
    pub fn len(&self) -> usize {
        self.sources.iter().map(Source::len).sum()
    }

    /// Always false: empty files are refused.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What messages call each data set, and its samples.
    pub(super) fn sources(&self) -> impl Iterator<Item = (PathBuf, u64)> {
        self.sources.iter().map(|source| (source.name().to_owned(), source.len() as u64))
    }

    /// A sentence of each folder that has files which are not read.
    pub fn left_out(&self) -> Vec<&str> {
        self.sources.iter().flat_map(Source::left_out).map(String::as_str).collect()
    }

    /// Sample `index` of data set `source`, in the order of its files.
    pub(super) fn sample_of(&self, source: usize, index: u64) -> Result<Sample, BadSample> {
        let source = &self.sources[source];
        let content = source.read(index as usize)?;
        let sample = self.processor.sample_of(SampleId(index), &content, source.base());
        sample.map_err(|error| source.refused(index as usize, &error))
    }

    /// The sample at a position, counted over all epochs.
    pub fn sample(&self, position: u64) -> Result<Sample, BadSample> {
        let (content, base) = self.content(position)?;
        let sample = self.processor.sample_of(SampleId(position), &content, base);
        let place = self.mixture.place(position);
        sample.map_err(|error| self.sources[place.source].refused(place.index as usize, &error))
    }

    /// What the sample at a position is made from, and what its files are relative to.
    pub(super) fn content(&self, position: u64) -> Result<(Content, &Path), BadSample> {
        let place = self.mixture.place(position);
        let source = &self.sources[place.source];
        Ok((source.read(place.index as usize)?, source.base()))
    }

    /// File and line of the sample at a position.
    pub fn place_name(&self, position: u64) -> String {
        let place = self.bad(position, String::new());
        format!("{}:{}", place.file.display(), place.at)
    }

    /// The sample at a position, and why it cannot be used.
    pub(super) fn bad(&self, position: u64, reason: String) -> BadSample {
        let place = self.mixture.place(position);
        self.sources[place.source].bad(place.index as usize, reason)
    }
}

/// A question of a file in the `messages` format, with the answer that is expected.
#[derive(Clone, Debug)]
pub struct Question {
    /// What generation starts from.
    pub prompt: Sample,
    pub answer: String,
    /// Its pictures; files are resolved.
    pub images: Vec<Locator>,
}

/// The questions of a file, in its order: what a model is evaluated on.
pub struct Questions {
    source: Source,
}

impl Questions {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = TrainFile::new(path);
        Ok(Self { source: Source::open(&file, Phase::Sft, usize::MAX, str::len)? })
    }

    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Always false: an empty file is refused.
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// The question `index`: the turns before the last assistant turn.
    pub fn read(&self, index: usize, processor: &Processor) -> Result<Question, BadSample> {
        let Content::Messages(conversation) = self.source.read(index)? else {
            return Err(self.source.bad(index, "is no conversation: there is no answer to compare with".to_owned()));
        };
        let ask = || {
            let (question, answer) = conversation
                .split_answer()
                .ok_or_else(|| DataError::Line("no assistant turn: no answer to compare with".to_owned()))?;
            let prompt = processor.prompt(SampleId(index as u64), &question, self.source.base())?;
            let images = question.images().cloned().collect();
            Ok(Question { prompt, answer, images })
        };
        ask().map_err(|error: DataError| self.source.bad(index, error.to_string()))
    }
}

impl BadSample {
    /// As it is told to the scheduler.
    pub fn into_message(self, id: SampleId) -> message::BadSample {
        message::BadSample {
            id,
            source: format!("{}:{}", self.file.display(), self.at),
            reason: self.reason,
            too_long: self.too_long,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Format, ImageLimits, Pack, Template};
    use crate::data::digits::{Digits, MODEL, compose, write_model};
    use crate::data::processor::ProcessorOptions;
    use crate::data::tokenizer::read_json;

    fn data(files: &[(PathBuf, f64)]) -> Data {
        let train = files.iter().map(|(path, weight)| TrainFile { weight: *weight, ..TrainFile::new(path.as_path()) });
        Data {
            train: train.collect(),
            shuffle: true,
            shuffle_window: 16,
            index_dir: None,
            on_change: Default::default(),
            pack: Pack { max_tokens: 200, ..Default::default() },
            image: ImageLimits::default(),
            video: Default::default(),
            template: Template::FromModel,
            template_kwargs: Default::default(),
            on_bad_sample: Default::default(),
        }
    }

    fn open(data: &Data, phase: Phase, model: &Path, seed: u64) -> Result<Dataset, DataError> {
        let config = read_json(&model.join("config.json"))?;
        Dataset::open(data, Processor::open(model, &config, &ProcessorOptions::new(data, phase))?, seed)
    }

    #[test]
    fn a_position_is_always_the_same_sample_and_bad_lines_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (model, digits) = (folder.path().join("model"), folder.path().join("digits"));
        write_model(&model, &MODEL).unwrap();
        compose(&digits, &Digits { seed: 2, num_train: 6, num_held_out: 3 }).unwrap();
        let text = folder.path().join("text.jsonl");
        let good = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        std::fs::write(&text, format!("{good}\nno json\n{good}\n")).unwrap();
        std::fs::write(digits.join("images/train/000/000004.png"), b"\x89PNG\r\n\x1a\nbroken").unwrap();

        let config = data(&[(digits.join("train.jsonl"), 3.0), (text.clone(), 1.0)]);
        let dataset = open(&config, Phase::Sft, &model, 5).unwrap();
        let again = open(&config, Phase::Sft, &model, 5).unwrap();
        assert_eq!(dataset.len(), 9);
        let mut bad = BTreeMap::new();
        let mut with_images = 0;
        for position in (0..200).rev() {
            let sample = dataset.sample(position);
            assert_eq!(sample, again.sample(position));
            match sample {
                Ok(sample) => {
                    assert_eq!(sample.meta.id, SampleId(position));
                    assert_eq!(sample.meta.items.len(), sample.media.len());
                    with_images += sample.media.len();
                }
                Err(error) => *bad.entry((error.file.clone(), error.at.clone())).or_insert(0) += 1,
            }
        }
        assert!((100..160).contains(&with_images), "{with_images}");
        assert_eq!(
            bad.keys().cloned().collect::<Vec<_>>(),
            [(digits.join("train.jsonl"), "5".to_owned()), (text, "2".to_owned())]
        );
        assert_ne!(
            (0..20).map(|p| open(&config, Phase::Sft, &model, 6).unwrap().sample(p).ok()).collect::<Vec<_>>(),
            (0..20).map(|p| dataset.sample(p).ok()).collect::<Vec<_>>()
        );

        let questions = Questions::open(&digits.join("held_out.jsonl")).unwrap();
        let question = questions.read(2, dataset.processor()).unwrap();
        assert!(
            std::path::Path::new(question.images[0].name()).exists()
                && question.answer.chars().all(|c| c.is_ascii_digit())
        );
        assert_eq!(question.prompt.meta.num_targets, 0);
    }

    #[test]
    fn wrong_sources_are_named() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let error = |config: &Data| open(config, Phase::Sft, folder.path(), 0).err().unwrap().to_string();
        assert!(error(&data(&[])).contains("no data source"));
        assert!(error(&data(&[("gone.jsonl".into(), 1.0)])).contains("gone.jsonl"));
        assert!(error(&data(&[("a.jsonl".into(), 0.0)])).contains("weight 0"));
        let error = BadSample { file: "a.jsonl".into(), at: "3".into(), reason: "x".into(), too_long: false };
        assert_eq!(error.to_string(), "a.jsonl:3: x");
        assert_eq!(error.into_message(SampleId(1)).source, "a.jsonl:3");
    }

    #[test]
    fn texts_are_learnt_whole_and_end() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        write_model(&model, &MODEL).unwrap();
        std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\"text\": \"hello\"}\n").unwrap();
        let mut config = data(&[(path.clone(), 1.0)]);
        config.train[0].format = Format::Text;
        assert!(open(&config, Phase::Sft, &model, 0).err().unwrap().to_string().contains("data.template"));
        let sample = open(&config, Phase::Pretrain, &model, 0).unwrap().sample(0).unwrap();
        let eos = 256 + 2;
        assert_eq!(sample.input_ids, [104, 101, 108, 108, 111, eos]);
        assert_eq!(sample.targets, [101, 108, 108, 111, eos, -100]);
        config.train[0].format = Format::Messages;
        assert!(open(&config, Phase::Midtrain, &model, 0).err().unwrap().to_string().contains("data.template"));
    }
}
