//! Makes samples of records: the seam between files and models.

use std::path::Path;

use super::error::DataError;
use super::exchange::Exchange;
use super::policy::PolicyMaker;
use super::processor::{Pairs, Processor};
use super::sample::Sample;
use super::source::{Content, Source};
use crate::config::{Format, Phase};
use crate::message::SampleId;

/// Makes samples of records, for one model. It is shared by threads, and no sample changes it.
pub trait SampleMaker: Send + Sync {
    /// A sample to learn from. Files of the record are relative to `base`. A sample of a run has its position as id, so that
    /// what is chosen for a visit belongs to that.
    ///
    /// # Errors
    /// The record cannot be used for this model; the sample is skipped.
    fn make(&self, id: SampleId, record: &Content, base: &Path) -> Result<Sample, DataError>;

    /// Makes a sample that asks: a conversation before its last answer, or a prompt with its conditions.
    ///
    /// # Errors
    /// The reason: nothing is asked in it, or as [`SampleMaker::make`].
    fn prompt(&self, id: SampleId, record: Content, base: &Path) -> Result<Sample, String>;

    /// Returns a number for the choices that the visit `id` makes of a record: visits with the same number make the same items.
    fn choice(&self, _id: SampleId, _record: &Content) -> u64 {
        0
    }

    /// Returns the format in which files are read for which a config has `format`.
    fn format(&self, format: Format) -> Format {
        format
    }

    /// Checks that samples can be made of this set at all.
    ///
    /// # Errors
    /// The set's records have another kind.
    fn check(&self, source: &Source) -> Result<(), DataError>;

    /// Records that make one sample together.
    fn group_size(&self) -> usize {
        1
    }

    /// Returns the phase, which decides what counts in the loss of texts.
    fn phase(&self) -> Phase;

    /// Returns the number of tokens of a text.
    fn num_tokens(&self, text: &str) -> usize;

    /// Returns whether pictures are decoded, so that a sample takes long.
    fn decodes(&self) -> bool;

    /// Returns notes for the user about the samples so far, each with its count.
    fn notes(&self) -> Vec<String>;

    /// Returns notes for the user about the data, before a sample is made.
    fn of_data(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the number of frames at the end of an episode that begin no sample.
    fn dropped_frames(&self) -> usize {
        0
    }

    /// Returns the maker of a model that predicts tokens.
    fn as_chat(&self) -> Option<&Processor> {
        None
    }

    /// Returns the maker of a robot policy.
    fn as_policy(&self) -> Option<&PolicyMaker> {
        None
    }
}

impl From<Processor> for Box<dyn SampleMaker> {
    fn from(processor: Processor) -> Self {
        Box::new(processor)
    }
}

impl SampleMaker for Processor {
    fn make(&self, id: SampleId, record: &Content, base: &Path) -> Result<Sample, DataError> {
        self.sample_of(id, record, base)
    }

    fn prompt(&self, id: SampleId, record: Content, base: &Path) -> Result<Sample, String> {
        let (_, asked) = Exchange::of(record)?;
        Processor::prompt(self, id, &asked, base).map_err(|error| error.to_string())
    }

    fn check(&self, source: &Source) -> Result<(), DataError> {
        if source.is_captioned() {
            let reason = "has pictures or clips with captions, from which diffusion models learn; this model predicts tokens: write \
                 `messages` that say <image> where a picture stands, or set the file's `format: text` to learn the texts alone";
            return Err(DataError::file(source.name(), reason));
        }
        if source.set().is_some() {
            let reason = "has episodes of robots, from which robot policies learn; this model predicts tokens";
            return Err(DataError::file(source.name(), reason));
        }
        let reason = match (self.pairs, source.is_pairs(), source.is_labeled()) {
            (Pairs::Refused, true, _) => {
                "has pairs of answers, one of them preferred: set `train.preference` to learn from them"
            }
            (Pairs::Refused, _, true) => {
                "has answers with a label, good or bad: set `train.preference.loss` to kto to learn from both, or the file's \
                 `format`, such as messages, to learn from all as they are"
            }
            (Pairs::Learned { .. }, false, _) => {
                "has no pairs of answers, from which `train.preference` learns: its records need `chosen` and `rejected` \
                 (where only its first record lacks them, set the file's `format: pairs`)"
            }
            (Pairs::Grouped { .. }, _, false) => {
                "has no labeled answers, from which `train.preference.loss: kto` learns: its records need `label` or `kto_tag`, \
                 true or false, beside a prompt and its answer (where only its first record lacks them, set the file's \
                 `format: labeled`)"
            }
            _ => "",
        };
        let reason = match self.encoder_decoder() {
            Some(_) if source.is_text() => {
                "has texts, but this model has an encoder of prompts and a decoder of answers: its records need \
                 `messages`, or a prompt and an answer"
            }
            _ => reason,
        };
        if !reason.is_empty() {
            return Err(DataError::file(source.name(), reason));
        }
        if self.encoder_decoder().is_some() && self.phase() != Phase::Sft {
            let reason =
                "this model has an encoder of prompts and a decoder of answers, which can be trained only with sft";
            return Err(DataError::file(Path::new("train.phase"), reason));
        }
        if source.is_conversation() {
            self.expect_template()?;
        }
        Ok(())
    }

    fn group_size(&self) -> usize {
        match self.pairs {
            Pairs::Grouped { size } => size,
            _ => 1,
        }
    }

    fn phase(&self) -> Phase {
        Processor::phase(self)
    }

    fn num_tokens(&self, text: &str) -> usize {
        self.tokenizer().encode(text).map_or(text.len(), |tokens| tokens.len())
    }

    fn decodes(&self) -> bool {
        self.media_processor().is_some()
    }

    fn notes(&self) -> Vec<String> {
        Processor::notes(self)
    }

    fn as_chat(&self) -> Option<&Processor> {
        Some(self)
    }
}
