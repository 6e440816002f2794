//! The run's stream of samples by position. Reads files when asked; holds offsets only.

mod refusals;

use std::path::{Path, PathBuf};

use super::error::{BadSample, DataError};
use super::exchange::Exchange;
use super::lerobot::Step;
use super::maker::SampleMaker;
use super::processor::Processor;
use super::sample::Sample;
use super::source::{Content, Mixture, Source};
use super::split::Split;
use crate::config::{Data, Mix, TrainFile};
use crate::message::SampleId;

pub use refusals::PACKED_ALREADY;
use refusals::{expect_samples, expect_sources, expect_unpacked, no_labeled_answer};

/// An endless stream: position → sample, always the same for the same files, configuration and seed.
/// It may be shared by threads.
pub struct Dataset {
    maker: Box<dyn SampleMaker>,
    sources: Vec<Source>,
    split: Split,
    /// `None`: the samples that are set aside, in the order of the files.
    mixture: Option<Mixture>,
    /// Each is gone through once, and its last group may be smaller.
    is_once: bool,
    /// Prompts are those of so many samples, evenly spread; `None`: of all, one after the other.
    num_asked: Option<u64>,
}

impl Dataset {
    /// Opens and indexes the files of `data.train`, without what `data.val_size` sets aside.
    ///
    /// # Errors
    /// A file cannot be read or has no samples for `maker`, or `data.val_size` sets aside too many or none.
    pub fn open(data: &Data, maker: impl Into<Box<dyn SampleMaker>>, seed: u64) -> Result<Self, DataError> {
        let mut dataset = Self::open_held(data, maker)?;
        let (sources, split) = (&dataset.sources, &dataset.split);
        let order = |(set, source): (usize, &Source)| {
            let order = source.order_without(split.of(set));
            let share = data.share(set, order.len());
            (order, share)
        };
        let orders = sources.iter().enumerate().map(order).collect();
        dataset.mixture = Some(match data.mix {
            Mix::Sets => Mixture::of_orders(orders, seed, data.shuffle),
            Mix::Samples => Mixture::exact(orders, seed, data.shuffle),
        });
        dataset.is_once = false;
        Ok(dataset)
    }

    /// Returns the same data set, of which every record is read once: for an evaluation.
    #[must_use]
    pub fn once(self) -> Self {
        Self { is_once: true, ..self }
    }

    /// Returns the same data set with the prompts of `count` samples alone, evenly spread.
    #[must_use]
    pub fn asking(self, count: u64) -> Self {
        Self { num_asked: Some(count.min(self.len() as u64).max(1)), ..self }
    }

    /// Returns the position of the sample whose prompt has this number.
    fn asked(&self, number: u64) -> u64 {
        match self.num_asked {
            Some(count) => (u128::from(number) * self.len() as u128 / u128::from(count)) as u64,
            None => number,
        }
    }

    /// Returns the frame of an episode that a prompt is of; `None`: it is of something else, or cannot be read.
    pub fn step_asked(&self, number: u64) -> Option<Step> {
        match self.content(self.asked(number)).ok()?.0 {
            Content::Step(step) => Some(step),
            _ => None,
        }
    }

    /// Works like [`Dataset::open`] for the samples that `data.val_size` sets aside.
    ///
    /// # Errors
    /// Fails as [`Dataset::open`] does.
    pub fn open_held(data: &Data, maker: impl Into<Box<dyn SampleMaker>>) -> Result<Self, DataError> {
        let maker = maker.into();
        let num_tokens = |text: &str| maker.num_tokens(text);
        let (window, index_dir) = (data.shuffle_window, data.index_dir.as_deref());
        let open = |file: &TrainFile| {
            let file = TrainFile { format: maker.format(file.format), ..file.clone() };
            let opened = Source::open_with(&file, maker.phase(), data.pack.max_tokens, &num_tokens, window, index_dir);
            let mut source = opened?;
            source.drop_last_frames(maker.dropped_frames());
            expect_samples(source)
        };
        let sources: Vec<Source> = data.train.iter().map(open).collect::<Result<_, _>>()?;
        expect_sources(&sources)?;
        sources.iter().try_for_each(|source| maker.check(source))?;
        let lens: Vec<u64> = sources.iter().map(|source| source.len() as u64).collect();
        let episodes: Vec<Option<Vec<u64>>> = sources.iter().map(Source::episode_lens).collect();
        Ok(Self {
            split: Split::new(&lens, &episodes, data.val_size)?,
            mixture: None,
            maker,
            sources,
            is_once: true,
            num_asked: None,
        })
    }

    /// Returns the maker of its samples.
    pub fn maker(&self) -> &dyn SampleMaker {
        &*self.maker
    }

    /// Returns the maker of its samples where the model predicts tokens.
    pub fn processor(&self) -> Option<&Processor> {
        self.maker.as_chat()
    }

    /// Returns the number of samples in all files together, which is what `train.epochs` calls an epoch.
    pub fn len(&self) -> usize {
        self.num_records().div_ceil(self.maker.group_size())
    }

    fn num_records(&self) -> usize {
        let all: usize = self.sources.iter().map(Source::len).sum();
        let held = self.split.len() as usize;
        if self.mixture.is_some() { all - held } else { held }
    }

    /// Returns whether all samples are conversations, which may be asked; groups of answers are not.
    pub fn is_conversation(&self) -> bool {
        self.maker.group_size() == 1 && self.sources.iter().all(Source::is_conversation)
    }

    /// Returns whether some set has conversations, or packs, which may have been made of such.
    pub fn has_conversations(&self) -> bool {
        self.sources.iter().any(|source| source.is_conversation() || source.is_packed())
    }

    /// Returns the number of the data set and the index in it of the sample at a position, or of the first record of its group.
    pub fn place_of(&self, position: u64) -> (usize, u64) {
        self.record(position.saturating_mul(self.maker.group_size() as u64))
    }

    /// Works like `place_of` for a record, which may be one of a group.
    fn record(&self, position: u64) -> (usize, u64) {
        match &self.mixture {
            Some(mixture) => {
                let place = mixture.place(position);
                (place.source, self.split.train(place.source, place.index))
            }
            None => self.split.held(position),
        }
    }

    fn place(&self, position: u64) -> (&Source, usize) {
        let (set, index) = self.place_of(position);
        (&self.sources[set], index as usize)
    }

    /// Always returns false: empty files are refused.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns the name of each data set in messages, and the number of its samples.
    pub(super) fn sources(&self) -> impl Iterator<Item = (PathBuf, u64)> {
        self.sources.iter().map(|source| (source.name().to_owned(), source.len() as u64))
    }

    /// Returns the name, in messages, of the first data set that holds packs.
    pub fn packed_source(&self) -> Option<&Path> {
        self.sources.iter().find(|source| source.is_packed()).map(Source::name)
    }

    /// # Errors
    /// A data set holds packs, of which no others can be made.
    pub fn expect_unpacked(&self) -> Result<(), DataError> {
        expect_unpacked(self.packed_source())
    }

    /// Returns a sentence about each folder that has files which are not read, and about each set whose records are read as lines.
    pub fn left_out(&self) -> Vec<String> {
        Source::left_out(&self.sources)
    }

    /// Makes sample `index` of data set `source`, in the order of its files; a group begins with it.
    pub(super) fn sample_of(&self, source: usize, index: u64) -> Result<Sample, BadSample> {
        let (set, source) = (source, &self.sources[source]);
        let end = (index + self.maker.group_size() as u64).min(source.len() as u64);
        let content = self.read((index..end).map(|index| (set, index)))?;
        let sample = self.maker.make(SampleId(index), &content, source.base());
        sample.map_err(|error| source.refused(index as usize, &error))
    }

    /// Makes the sample at a position, counted over all epochs.
    ///
    /// # Errors
    /// The sample cannot be used, or is too long: it is named by its place.
    pub fn sample(&self, position: u64) -> Result<Sample, BadSample> {
        let (content, base) = self.content(position)?;
        let sample = self.maker.make(SampleId(position), &content, base);
        let (source, index) = self.place(position);
        sample.map_err(|error| source.refused(index, &error))
    }

    /// Returns the content that the sample at a position is made from, and the folder that its files are relative to.
    pub(super) fn content(&self, position: u64) -> Result<(Content, &Path), BadSample> {
        let size = self.maker.group_size() as u64;
        let first = position.saturating_mul(size);
        let all = if self.is_once && size > 1 { self.num_records() as u64 } else { u64::MAX };
        let records = (first..first.saturating_add(size).min(all)).map(|position| self.record(position));
        Ok((self.read(records)?, self.place(position).0.base()))
    }

    /// Returns the record at these places, or the records as a group.
    fn read(&self, mut places: impl Iterator<Item = (usize, u64)>) -> Result<Content, BadSample> {
        let mut answers = Vec::new();
        let read = |(set, index): (usize, u64)| self.sources[set].read(index as usize);
        if self.maker.group_size() == 1 {
            return read(places.next().expect("a sample has a record"));
        }
        for place in places {
            match read(place)? {
                Content::Labeled(answer) => answers.push(*answer),
                _ => return Err(no_labeled_answer(&self.sources[place.0], place.1)),
            }
        }
        Ok(Content::Group(answers))
    }

    /// Returns a number for the choices that the visit of a position makes of its record: visits of a record with the same number have
    /// the same items.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn choice(&self, position: u64) -> Result<u64, BadSample> {
        if self.maker.group_size() > 1 {
            // No group comes twice.
            return Ok(position);
        }
        let (content, _) = self.content(position)?;
        Ok(self.maker.choice(SampleId(position), &content))
    }

    /// Returns file and line of the sample at a position.
    pub fn place_name(&self, position: u64) -> String {
        self.bad(position, String::new()).place()
    }

    /// Creates the error of the sample at a position, which cannot be used for this `reason`.
    pub(super) fn bad(&self, position: u64, reason: String) -> BadSample {
        let (source, index) = self.place(position);
        source.bad(index, reason)
    }

    /// Returns the first caption of the picture or clip at a position, or the prompt; `None`: it has none, or cannot be read.
    pub fn caption(&self, position: u64) -> Option<String> {
        match self.content(position).ok()?.0 {
            Content::Captioned(record) => record.captions.into_iter().next(),
            Content::Step(step) => step.task().ok().map(str::to_owned),
            _ => None,
        }
    }

    /// Returns the question and the answer of the conversation at a position.
    ///
    /// # Errors
    /// It cannot be read, or is no conversation that ends with an answer.
    pub fn exchange(&self, position: u64) -> Result<Exchange, BadSample> {
        Exchange::asked(self.content(position)?.0).map_err(|reason| self.bad(position, reason))
    }

    /// Returns the conversation at a position up to its last answer, as a model reads it, or the prompt of a picture.
    ///
    /// # Errors
    /// Fails as [`Dataset::exchange`] does, and if the sample cannot be rendered or decoded.
    pub fn prompt(&self, number: u64) -> Result<Sample, BadSample> {
        let position = self.asked(number);
        let (content, base) = self.content(position)?;
        self.maker.prompt(SampleId(position), content, base).map_err(|reason| self.bad(position, reason))
    }
}

#[cfg(test)]
mod tests;
