//! Samples without a data set: lengths and pictures by a law, or measured ones again and again.

use super::random::Random;
use crate::message::{Grid, ItemMeta, SampleId, SampleMeta, Tower};
use serde::Deserialize;
use std::str::FromStr;

/// Describes where a simulation's samples come from: a pure function of the position. Id and owner are set by who asks.
pub trait Samples: Sync {
    fn sample(&self, position: u64) -> SampleMeta;
}

/// A few measured samples, over and over.
pub struct Measured(Vec<SampleMeta>);

impl Measured {
    /// `None` of no samples.
    pub fn new(samples: Vec<SampleMeta>) -> Option<Self> {
        (!samples.is_empty()).then_some(Self(samples))
    }

    /// Returns the number of samples before they repeat.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Always returns false: a law has at least one sample.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Samples for Measured {
    fn sample(&self, position: u64) -> SampleMeta {
        self.0[(position % self.0.len() as u64) as usize].clone()
    }
}

/// Says how long samples are and what pictures they have.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Dialogues without pictures: log-normal, median 400 tokens, one in a hundred above 4,000.
    Sft,
    /// Lengths like those of instruction data with pictures: 150 tokens of text in the median, and one to four pictures
    /// of 16 × 16 to 64 × 64 patches in seven of eight samples.
    Vlm,
    /// Pareto of exponent 1.1 from 200 tokens on, cut at the pack's length, and a video of 8 to 64 frames in one of eight.
    LongTail,
    Histogram(Histogram),
}

/// A law as a file: values with their weights, drawn independently.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Tokens of text in a sample.
    pub tokens: Vec<(u32, f64)>,
    /// Pictures in a sample; none where left out.
    #[serde(default)]
    pub images: Vec<(u32, f64)>,
    /// Patches of a picture.
    #[serde(default)]
    pub patches: Vec<(u32, f64)>,
}

#[derive(Debug, thiserror::Error)]
pub enum LawError {
    #[error(
        "unknown law `{0}`, expected sft, vlm, longtail, or a JSON file with {{\"tokens\": [[length, weight], …]}}"
    )]
    Unknown(String),
    #[error("{key}: {problem}")]
    Histogram { key: &'static str, problem: String },
    #[error("not a histogram: {0}")]
    Json(#[from] serde_json::Error),
}

impl FromStr for Law {
    type Err = LawError;

    fn from_str(name: &str) -> Result<Self, LawError> {
        match name {
            "sft" => Ok(Self::Sft),
            "vlm" => Ok(Self::Vlm),
            "longtail" => Ok(Self::LongTail),
            _ => Err(LawError::Unknown(name.to_owned())),
        }
    }
}

impl Law {
    /// Reads a histogram from JSON.
    ///
    /// # Errors
    /// The text is not of that form, or the weights are all 0.
    pub fn from_json(text: &str) -> Result<Self, LawError> {
        let histogram: Histogram = serde_json::from_str(text)?;
        let wrong = |key, problem: &str| Err(LawError::Histogram { key, problem: problem.to_owned() });
        let parts = [("tokens", &histogram.tokens), ("images", &histogram.images), ("patches", &histogram.patches)];
        for (key, entries) in parts {
            if entries.iter().any(|&(_, weight)| !(weight >= 0.0 && weight.is_finite())) {
                return wrong(key, "a weight must be a number of at least 0");
            }
            let needed = key == "tokens" || (key == "patches" && histogram.images.iter().any(|&(count, _)| count > 0));
            if needed && entries.iter().map(|&(_, weight)| weight).sum::<f64>() <= 0.0 {
                return wrong(key, "no entry has a weight above 0");
            }
        }
        Ok(Self::Histogram(histogram))
    }

    /// Samples of it that fit a pack of `max_tokens`.
    pub fn samples(self, seed: u64, max_tokens: usize) -> LawSamples {
        LawSamples { law: self, seed, max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX).max(2) }
    }
}

/// Samples by a law.
pub struct LawSamples {
    law: Law,
    seed: u64,
    max_tokens: u32,
}

/// Patches of one feature: pictures are merged 2 × 2.
const PATCHES_PER_FEATURE: u32 = 4;
/// Two frames make one row of patches in time.
const FRAMES_PER_PATCH: u64 = 2;

impl Samples for LawSamples {
    fn sample(&self, position: u64) -> SampleMeta {
        let mut random = Random::new(&[self.seed, position]);
        let mut items: Vec<Grid> = Vec::new();
        let text = match &self.law {
            Law::Sft => random.log_normal(400.0, 1.0),
            Law::Vlm => {
                if random.below(8) > 0 {
                    // One picture is the usual; squares of even sides.
                    let count = 1 + random.below(2) * random.below(4);
                    items.extend((0..count).map(|_| {
                        let [h, w] = std::array::from_fn(|_| 16 + 2 * random.below(25) as u32);
                        Grid { t: 1, h, w }
                    }));
                }
                random.log_normal(150.0, 0.8)
            }
            Law::LongTail => {
                if random.below(8) == 0 {
                    let frames = 8 + random.below(57);
                    items.push(Grid { t: frames.div_ceil(FRAMES_PER_PATCH) as u32, h: 16, w: 28 });
                }
                200.0 * (1.0 - random.uniform()).powf(-1.0 / 1.1)
            }
            Law::Histogram(histogram) => {
                let count = random.weighted(&histogram.images).unwrap_or(0);
                items.extend((0..count).map(|_| {
                    let patches = random.weighted(&histogram.patches).unwrap_or(0).max(1);
                    Grid { t: 1, h: 2, w: patches.div_ceil(2) }
                }));
                f64::from(random.weighted(&histogram.tokens).unwrap_or(1))
            }
        };
        self.make(position, text, items)
    }
}

impl LawSamples {
    /// Makes a sample that fits: text is cut first, then pictures that do not fit are left out.
    fn make(&self, position: u64, text: f64, items: Vec<Grid>) -> SampleMeta {
        let mut kept = Vec::new();
        let mut room = self.max_tokens - 2;
        for grid in items {
            let num_features = (grid.num_cells() as u32).div_ceil(PATCHES_PER_FEATURE);
            if num_features <= room {
                room -= num_features;
                kept.push(ItemMeta { tower: Tower::Vision, grid, num_features });
            }
        }
        let text = (text.min(f64::from(u32::MAX)) as u32).clamp(2, room + 2);
        let features: u32 = kept.iter().map(|item| item.num_features).sum();
        SampleMeta { items: kept, ..SampleMeta::of_tokens(SampleId(position), text + features, text.div_ceil(2)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fit_a_pack_and_belong_to_their_position() {
        for law in [Law::Sft, Law::Vlm, Law::LongTail] {
            let samples = law.samples(7, 2048);
            for position in 0..500 {
                let sample = samples.sample(position);
                assert!((2..=2048).contains(&sample.num_tokens) && sample.num_targets > 0);
                let features: u32 = sample.items.iter().map(|item| item.num_features).sum();
                assert!(features < sample.num_tokens);
                assert_eq!(sample, samples.sample(position));
            }
        }
    }

    #[test]
    fn the_median_is_as_said() {
        let samples = Law::Sft.samples(1, 1 << 20);
        let mut lengths: Vec<u32> = (0..4001).map(|position| samples.sample(position).num_tokens).collect();
        lengths.sort_unstable();
        assert!((370..430).contains(&lengths[2000]), "{}", lengths[2000]);
    }

    #[test]
    fn a_histogram_gives_what_is_in_it() {
        let law = Law::from_json(r#"{"tokens": [[10, 1], [20, 3]], "images": [[0, 1], [1, 1]], "patches": [[64, 1]]}"#);
        let samples = law.unwrap().samples(3, 1000);
        let all: Vec<SampleMeta> = (0..4000).map(|position| samples.sample(position)).collect();
        let text = |sample: &SampleMeta| sample.num_tokens - 16 * sample.items.len() as u32;
        let long = all.iter().filter(|sample| text(sample) == 20).count();
        assert!(all.iter().all(|sample| [10, 20].contains(&text(sample))) && (2900..3100).contains(&long), "{long}");
    }

    #[test]
    fn a_histogram_without_weight_names_the_key() {
        for (text, key) in [
            (r#"{"tokens": []}"#, "tokens"),
            (r#"{"tokens": [[3, 1]], "images": [[1, 1]]}"#, "patches"),
            (r#"{"tokens": [[3, -1]]}"#, "tokens"),
            (r#"{"lengths": [[3, 1]]}"#, "unknown field `lengths`"),
        ] {
            assert!(Law::from_json(text).unwrap_err().to_string().contains(key), "{text}");
        }
        assert!("sfd".parse::<Law>().unwrap_err().to_string().contains("longtail"));
    }
}
