//! The room of a pack: how many tokens and items it holds, and how many a sample takes.

use crate::data::error::DataError;
use crate::data::media::Expansion;
use crate::data::sample::Sample;
use crate::message::Tower;

/// Features of a sample, by tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// Features of pictures and videos.
    pub images: usize,
    pub audio: usize,
    /// Features of texts for a text tower.
    pub texts: usize,
    /// Features of latents.
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

    /// Returns the number of features of all towers.
    pub fn total(self) -> usize {
        self.images + self.audio + self.texts + self.latents
    }
}

/// The most that a sample may have: it shares a pack with others.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackRoom {
    pub max_tokens: usize,
    pub max_images: usize,
    pub max_visual_tokens: usize,
}

impl PackRoom {
    /// # Errors
    /// The sample is longer than a pack.
    pub fn check_length(&self, num_text_tokens: usize, counts: Features) -> Result<(), DataError> {
        let (num_image_tokens, num_audio_tokens) = (counts.images, counts.audio);
        let (num_tokens, max_tokens) = (num_text_tokens + counts.total(), self.max_tokens);
        match num_tokens > max_tokens {
            true => Err(DataError::TooLong { num_tokens, num_image_tokens, num_audio_tokens, max_tokens }),
            false => Ok(()),
        }
    }

    /// # Errors
    /// Documents that share a pack are longer than it together, or have more media items, or more tokens of them, than it holds.
    pub fn check_joined(&self, documents: &[Sample]) -> Result<(), DataError> {
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
    pub fn check_media(&self, num_items: usize, counts: Features) -> Result<(), DataError> {
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
