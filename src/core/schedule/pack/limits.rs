//! Capacity limits of a pack, and the size of a sample.

use crate::config::{Pack, RunConfig};
use crate::message::{SampleId, SampleMeta, Tower};
use serde::{Deserialize, Serialize};

/// Capacity limits of one pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackLimits {
    pub max_tokens: usize,
    pub max_samples: usize,
    /// Maximum number of media items; the name is that of the config, and frames of a video do not count as images.
    pub max_images: usize,
    /// Maximum number of media tokens, out of `max_tokens`.
    pub max_visual_tokens: usize,
}

/// Size of a sample, or of several samples together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleSize {
    pub tokens: u32,
    pub images: u32,
    pub visual_tokens: u32,
}

/// A sample that does not fit even in an empty pack. It is never split: the caller decides what to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sample {sample} has {amount} {what}, but a pack holds only {limit}; raise `{key}`")]
pub struct TooLarge {
    pub sample: SampleId,
    pub amount: u32,
    pub limit: usize,
    what: &'static str,
    key: &'static str,
}

impl PackLimits {
    /// Returns limits on tokens only.
    pub fn tokens(max_tokens: usize) -> Self {
        let most = usize::MAX;
        Self { max_tokens, max_samples: most, max_images: most, max_visual_tokens: most }
    }

    /// Returns the limits that `data.pack` sets, for packs of any number of samples.
    pub fn of(pack: &Pack) -> Self {
        let [max_images, max_visual_tokens] =
            [pack.max_images, pack.max_visual_tokens].map(|limit| limit.unwrap_or(usize::MAX));
        Self { max_images, max_visual_tokens, ..Self::tokens(pack.max_tokens) }
    }

    /// Returns the limits of the packs that a run trains on.
    pub fn of_run(config: &RunConfig) -> Self {
        let max_samples = config.train.micro_batch_size.unwrap_or(usize::MAX);
        Self { max_samples, ..Self::of(&config.data.pack) }
    }

    /// # Errors
    /// Fails if the sample exceeds a limit by itself.
    pub fn check(&self, sample: SampleId, size: SampleSize) -> Result<(), TooLarge> {
        let of = [
            (size.tokens, self.max_tokens, "tokens", "data.pack.max_tokens"),
            (size.images, self.max_images, "images", "data.pack.max_images"),
            (size.visual_tokens, self.max_visual_tokens, "visual tokens", "data.pack.max_visual_tokens"),
        ];
        match of.into_iter().find(|&(amount, limit, ..)| amount as usize > limit) {
            Some((amount, limit, what, key)) => Err(TooLarge { sample, amount, limit, what, key }),
            None => Ok(()),
        }
    }
}

impl SampleSize {
    /// Returns the size of a sample. Answers that a reference model reads do not count as media.
    pub fn of(sample: &SampleMeta) -> Self {
        let media = || sample.items.iter().filter(|item| item.tower != Tower::Reference);
        let visual_tokens = media().map(|item| item.num_features).sum();
        Self { tokens: sample.num_tokens, images: media().count() as u32, visual_tokens }
    }

    /// Returns whether a pack can hold it.
    pub(super) fn fits(self, limits: &PackLimits) -> bool {
        Load::default().with(self).fits(limits)
    }
}

/// Current content of a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub tokens: usize,
    pub images: usize,
    pub visual_tokens: usize,
    pub samples: usize,
}

impl Load {
    /// Returns the load with one more sample of this size.
    pub fn with(self, size: SampleSize) -> Self {
        self.with_copies(size, 1)
    }

    /// Returns the load with this many more samples of this size.
    pub fn with_copies(self, size: SampleSize, copies: usize) -> Self {
        Self {
            tokens: self.tokens + copies * size.tokens as usize,
            images: self.images + copies * size.images as usize,
            visual_tokens: self.visual_tokens + copies * size.visual_tokens as usize,
            samples: self.samples + copies,
        }
    }

    /// Returns whether a pack can hold it.
    pub fn fits(&self, limits: &PackLimits) -> bool {
        self.tokens <= limits.max_tokens
            && self.images <= limits.max_images
            && self.visual_tokens <= limits.max_visual_tokens
            && self.samples <= limits.max_samples.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemMeta};

    #[test]
    fn answers_for_a_reference_are_no_pictures() {
        let item = |tower, num_features| ItemMeta { tower, grid: Grid { t: 1, h: 2, w: 2 }, num_features };
        let items = vec![item(Tower::Vision, 4), item(Tower::Reference, 1), item(Tower::Reference, 1)];
        let sample = SampleMeta { items, ..SampleMeta::of_tokens(SampleId(0), 20, 3) };
        assert_eq!(SampleSize::of(&sample), SampleSize { tokens: 20, images: 1, visual_tokens: 4 });
    }
}
