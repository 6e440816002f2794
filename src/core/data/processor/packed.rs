//! Samples of whatever content; packs, of which only the pixels are left to do.

use std::path::Path;

use super::Processor;
use super::answered::check_pack;
use super::options::Pairs;
use super::room::Features;
use super::samples::trained;
use crate::data::audio::{AudioSource, SoundChanges};
use crate::data::error::DataError;
use crate::data::locator::Locator;
use crate::data::media::VideoSource;
use crate::data::packed::{PackedKind, PackedMedia, PackedSample};
use crate::data::sample::{IGNORE_INDEX, Sample};
use crate::data::source::Content;
use crate::data::source::MediaSource;
use crate::message::SampleId;

impl Processor {
    /// Makes a training sample. Files are relative to `base`.
    pub(in crate::data) fn sample_of(&self, id: SampleId, content: &Content, base: &Path) -> Result<Sample, DataError> {
        match content {
            Content::Messages(conversation) => self.training_sample(id, conversation, base),
            Content::Pair(pair) => self.pair_sample(id, pair, base),
            Content::Labeled(answer) => match self.pairs {
                Pairs::Grouped { .. } => self.group_sample(id, std::slice::from_ref(answer), base),
                _ => self.training_sample(id, &answer.conversation, base),
            },
            Content::Group(answers) => self.group_sample(id, answers, base),
            Content::Text(piece) => self.text_sample(id, piece),
            Content::Tokens(piece) => self.token_sample(id, piece),
            Content::Packed(pack) => self.packed_sample(id, pack),
            Content::Captioned(_) => {
                let reason = "is a picture or clip with a caption, from which diffusion models learn; this model predicts tokens";
                Err(DataError::Line(reason.to_owned()))
            }
            Content::Step(_) => {
                let reason = "is a frame of an episode, from which robot policies learn; this model predicts tokens";
                Err(DataError::Line(reason.to_owned()))
            }
        }
    }

    /// Makes a pack as one sample of several documents.
    ///
    /// # Errors
    /// It is longer than the run's packs, or was packed for another model or other limits of pictures.
    pub fn packed_sample(&self, id: SampleId, pack: &PackedSample) -> Result<Sample, DataError> {
        if self.weighs_samples {
            let reason = "is a pack made ahead of time, whose samples train.loss_weighting cannot tell apart: name \
                          the unpacked data";
            return Err(DataError::Line(reason.to_owned()));
        }
        let num_features: usize = pack.items.iter().map(|item| item.num_features as usize).sum();
        let mut counts = Features::default();
        let towers = pack.input_ids.iter().filter_map(|&token| self.towers.of(i64::from(token)));
        towers.for_each(|tower| *counts.of_tower(tower) += 1);
        let num_placeholders = counts.total();
        self.room.check_length(pack.num_tokens() - num_placeholders, counts)?;
        if num_placeholders != num_features {
            return Err(DataError::Line(format!(
                "the pack has {num_features} features but {num_placeholders} placeholders of this model: pack the \
                 data for it"
            )));
        }
        let sources: Vec<MediaSource> = pack.media.iter().map(PackedMedia::source).collect();
        let has_sound = sources.iter().any(|source| matches!(source, MediaSource::Audio(_)));
        let changes_lengths = |changes: &SoundChanges| changes.change_lengths();
        if has_sound && trained(id).is_some() && self.loader.changes.as_ref().is_some_and(changes_lengths) {
            let reason = "is a pack made ahead of time, in which recordings keep their lengths: set data.audio.augment.speed to 0";
            return Err(DataError::Line(reason.to_owned()));
        }
        self.expect_tokens(pack)?;
        let expansions = self.load(&sources, Path::new(""), trained(id))?;
        let media = expansions.into_iter().flat_map(|expansion| expansion.media).collect();
        let widen = |ids: &[i32]| ids.iter().map(|&id| i64::from(id)).collect();
        let mut sample = Sample::new(id, widen(&pack.input_ids), pack.all_position_ids(), widen(&pack.targets), media);
        if self.encoder_decoder.is_some() {
            check_pack(&pack.lens, &sample.position_ids, &sample.targets)?;
        }
        if sample.meta.items != pack.items {
            return Err(DataError::Line(
                "the pictures and videos of the pack have other sizes with this model and these limits: pack the \
                 data for them"
                    .to_owned(),
            ));
        }
        sample.num_sources = pack.media.len();
        if pack.lens.len() > 1 {
            sample.meta.documents.clone_from(&pack.lens);
        }
        Ok(sample)
    }

    /// # Errors
    /// The model lacks one of a pack's tokens.
    fn expect_tokens(&self, pack: &PackedSample) -> Result<(), DataError> {
        let rows = self.tokenizer.vocab_size();
        let targets = pack.targets.iter().map(|&target| i64::from(target)).filter(|&target| target != IGNORE_INDEX);
        let mut tokens = pack.input_ids.iter().map(|&token| i64::from(token)).chain(targets);
        match tokens.find(|&token| !(0..rows).contains(&token) && self.towers.of(token).is_none()) {
            Some(token) => {
                Err(DataError::Line(format!("the pack has the token {token}, but the model has {rows} tokens")))
            }
            None => Ok(()),
        }
    }
}

impl PackedMedia {
    fn source(&self) -> MediaSource {
        let mut locators = self.files.iter().map(|(name, bytes)| Locator::bytes(name.clone(), bytes.clone()));
        match self.kind {
            PackedKind::Image => MediaSource::Image(locators.next().unwrap_or_else(|| Locator::bytes("", *b""))),
            PackedKind::Audio { segment } => {
                let locator = locators.next().unwrap_or_else(|| Locator::bytes("", *b""));
                MediaSource::Audio(AudioSource { locator, segment })
            }
            PackedKind::Context => {
                let text = self.files.first().map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned());
                MediaSource::Context(text.unwrap_or_default())
            }
            PackedKind::Video { fps } => MediaSource::Video(VideoSource { locators: locators.collect(), fps }),
        }
    }
}
