//! A run's training samples together with its held-out samples: positions of the data stream, and evaluation streams.

use super::SampleSource;
use crate::data::{Dataset, Sample};
use crate::message::{SampleId, SkippedSample};

/// Training samples, and the sets evaluated during the run. Set `k` has the streams `2k`, its samples, and `2k + 1`, its
/// conversations up to the last answer, or the prompts from which pictures and clips are generated.
pub struct WithHeldOut {
    pub train: Dataset,
    pub sets: Vec<Dataset>,
}

impl WithHeldOut {
    /// Returns the streams of set `set`: samples, and prompts.
    pub fn streams(set: usize) -> [u16; 2] {
        [2 * set as u16, 2 * set as u16 + 1]
    }
}

impl SampleSource for WithHeldOut {
    /// Reads the sample at a position of the data stream, or of a held-out stream.
    fn sample(&self, id: SampleId) -> Result<Sample, SkippedSample> {
        let Some((stream, index)) = id.as_held_out() else {
            return self.train.sample(id.0).map_err(|bad| bad.into_message(id));
        };
        let set = &self.sets[usize::from(stream / 2)];
        let found = if stream % 2 == 0 { set.sample(index) } else { set.prompt(index) };
        let mut sample = found.map_err(|bad| bad.into_message(id))?;
        sample.meta.id = id;
        Ok(sample)
    }
}
