//! Tokens, positions and targets of a sample, put together.

use super::Processor;
use super::answered::answered;
use crate::data::error::DataError;
use crate::data::media::{Expansion, Run};
use crate::data::positions::Span;
use crate::data::sample::{IGNORE_INDEX, Sample};
use crate::data::tokenizer::Token;
use crate::message::{SampleId, Tower};

/// Features of a sample, by tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// Those of pictures and videos.
    pub images: usize,
    pub audio: usize,
    /// Those of texts for a text tower.
    pub texts: usize,
    /// Those of latents.
    pub latents: usize,
}

impl Features {
    /// Counts the features of what these expansions have.
    pub fn of(expansions: &[Expansion]) -> Self {
        let mut counts = Self::default();
        for item in expansions.iter().flat_map(|expansion| &expansion.media) {
            *counts.of_tower(item.tower) += item.num_features;
        }
        counts
    }

    /// Returns the count of a tower, to be added to.
    pub fn of_tower(&mut self, tower: Tower) -> &mut usize {
        match tower {
            Tower::Vision => &mut self.images,
            Tower::Audio => &mut self.audio,
            Tower::Text => &mut self.texts,
            // No placeholders stand for these.
            Tower::Vae | Tower::Reference => &mut self.latents,
        }
    }

    /// Those of all towers.
    fn total(self) -> usize {
        self.images + self.audio + self.texts + self.latents
    }
}

impl Processor {
    /// Repeats the placeholders, one token of each run, and numbers the positions.
    pub(super) fn assemble(
        &self,
        id: SampleId,
        tokens: &[Token],
        learned: &[bool],
        runs: &[Run],
        expansions: Vec<Expansion>,
    ) -> Result<Sample, DataError> {
        self.towers.check_placeholders(tokens, runs)?;
        let counts = Features::of(&expansions);
        let num_features = counts.total();
        debug_assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), num_features);
        self.check_length(tokens.len() - runs.len(), counts)?;

        let num_items = expansions.iter().map(|expansion| expansion.media.len()).sum();
        self.check_media(num_items, counts)?;

        let num_tokens = tokens.len() - runs.len() + num_features;
        let (mut input_ids, mut counted) = (Vec::with_capacity(num_tokens), Vec::with_capacity(num_tokens));
        let (mut spans, mut runs, mut num_text) = (Vec::new(), runs.iter(), 0);
        for (token, &learned) in tokens.iter().zip(learned) {
            let run = self.towers.of(token.id).and_then(|_| runs.next());
            let count = run.map_or(1, |run| run.len());
            if self.has_prefixes && run.is_some() && counted.contains(&true) {
                return Err(DataError::Line(
                    "a picture stands behind what is learned; this model sees pictures before it alone".to_owned(),
                ));
            }
            input_ids.extend(std::iter::repeat_n(token.id, count));
            counted.extend(std::iter::repeat_n(learned && run.is_none(), count));
            match run {
                None => num_text += 1,
                Some(&run) => spans.extend([Span::Text(std::mem::take(&mut num_text)), Span::Run(run)]),
            }
        }
        spans.push(Span::Text(num_text));
        let (input_ids, position_ids, targets) = match &self.encoder_decoder {
            Some(rules) => answered(rules, &input_ids, &counted)?,
            None => {
                let next = (1..=num_tokens)
                    .map(|next| if next < num_tokens && counted[next] { input_ids[next] } else { IGNORE_INDEX });
                let targets = next.collect();
                (input_ids, self.positions.ids(&spans), targets)
            }
        };
        let num_sources = expansions.len();
        let media = expansions.into_iter().flat_map(|expansion| expansion.media).collect();
        let sample = Sample::new(id, input_ids, position_ids, targets, media);
        Ok(Sample { num_sources, ..sample })
    }

    /// # Errors
    /// The sample is longer than a pack.
    pub(super) fn check_length(&self, num_text_tokens: usize, counts: Features) -> Result<(), DataError> {
        let (num_image_tokens, num_audio_tokens) = (counts.images, counts.audio);
        let (num_tokens, max_tokens) = (num_text_tokens + counts.total(), self.max_tokens);
        match num_tokens > max_tokens {
            true => Err(DataError::TooLong { num_tokens, num_image_tokens, num_audio_tokens, max_tokens }),
            false => Ok(()),
        }
    }

    /// # Errors
    /// Documents that share a pack are longer than it together, or have more media items, or more tokens of them, than it holds.
    pub(super) fn check_joined(&self, documents: &[Sample]) -> Result<(), DataError> {
        let (mut counts, mut num_items) = (Features::default(), 0);
        for item in documents.iter().flat_map(|document| &document.media) {
            *counts.of_tower(item.tower) += item.num_features;
            num_items += 1;
        }
        let num_tokens: usize = documents.iter().map(|document| document.input_ids.len()).sum();
        self.check_length(num_tokens.saturating_sub(counts.total()), counts)?;
        self.check_media(num_items, counts)
    }

    /// # Errors
    /// The sample has more media items, or more tokens of them, than a pack holds.
    fn check_media(&self, num_items: usize, counts: Features) -> Result<(), DataError> {
        let [items, tokens] = match counts {
            Features { audio: 0, texts: 0, .. } => ["pictures and videos", "tokens of images"],
            Features { texts: 0, .. } => ["pictures, videos and recordings", "tokens of images and audio"],
            _ => ["pictures, videos, recordings and texts of a tower", "tokens of features"],
        };
        let limits = [
            (num_items, self.max_images, items, "max_images"),
            (counts.total(), self.max_visual_tokens, tokens, "max_visual_tokens"),
        ];
        match limits.into_iter().find(|(count, limit, ..)| count > limit) {
            Some((count, limit, what, key)) => Err(DataError::PackLimit { count, what, key, limit }),
            None => Ok(()),
        }
    }
}
