//! The first samples of each data set, made as a run makes them: whether they can be used, and how many are longer than
//! a pack.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::ordered::for_each_ordered;
use crate::data::dataset::Dataset;
use crate::data::error::BadSample;
use crate::message::{ItemMeta, SampleMeta, Tower};
use crate::text::grouped;

/// Samples of each set that are looked at.
const NUM_FIRST: u64 = 100;
/// The same of a language model: no pictures are decoded, so that lengths can be told of more.
const NUM_OF_TEXT: u64 = 4096;

/// The findings about the samples of one data set.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The name of the set in messages.
    pub name: PathBuf,
    /// Samples in it.
    pub len: u64,
    /// Samples that were looked at.
    pub seen: u64,
    /// Samples that were looked at and cannot be used.
    pub bad: Vec<BadSample>,
    /// Samples that were looked at and are longer than a pack.
    pub too_long: Vec<BadSample>,
    /// Bytes of the largest picture, frame sequence or recording that was looked at, as an encoder takes it.
    pub item_bytes: usize,
    /// Bytes of the columns of tokens of the longest sample.
    pub column_bytes: usize,
    /// Tokens of the longest document of samples without pictures, clips and recordings, whose positions are not counted by tokens.
    pub document_tokens: u32,
    /// It holds, for each tower, the number of features of the largest item and of the sample with most of them.
    pub features: BTreeMap<Tower, [u64; 2]>,
}

/// Looks at the first samples of every set, and at some of all its parts where none of the first can be used.
pub fn survey(dataset: &Dataset, jobs: usize) -> Vec<Survey> {
    let most = if dataset.maker().decodes() { NUM_FIRST } else { NUM_OF_TEXT };
    let look = |(source, (name, len)): (usize, (PathBuf, u64))| {
        let mut survey = Survey { name, len, ..Survey::default() };
        survey.look(dataset, source, jobs, most.min(len), |number| number);
        if survey.num_usable() == 0 && survey.seen < len {
            // A set may be sorted by length.
            survey.look(dataset, source, jobs, NUM_FIRST, |number| number * len / NUM_FIRST);
        }
        survey
    };
    dataset.sources().enumerate().map(look).collect()
}

impl Survey {
    /// Returns the number of samples seen that are neither bad nor too long.
    pub fn num_usable(&self) -> u64 {
        self.seen - self.bad.len() as u64 - self.too_long.len() as u64
    }

    fn look(&mut self, dataset: &Dataset, source: usize, jobs: usize, num: u64, index: impl Fn(u64) -> u64 + Sync) {
        let work = |number| {
            let sample = dataset.sample_of(source, index(number))?;
            let items = sample.media.iter().map(|item| item.pixels.len() * size_of::<f32>());
            Ok::<_, BadSample>((items.max().unwrap_or(0), sample.meta))
        };
        let taken: Result<(), std::convert::Infallible> = for_each_ordered(jobs, 0..num, work, |_, sample| {
            self.seen += 1;
            match sample {
                Ok((item, meta)) => {
                    self.item_bytes = self.item_bytes.max(item);
                    self.column_bytes = self.column_bytes.max(meta.column_bytes as usize);
                    self.count_features(&meta.items);
                    self.count_tokens(&meta);
                }
                Err(long) if long.too_long => self.too_long.push(long),
                Err(bad) => self.bad.push(bad),
            }
            Ok(())
        });
        let Ok(()) = taken;
    }
}

impl Survey {
    fn count_tokens(&mut self, meta: &SampleMeta) {
        // What the reference model is given are the answers themselves.
        if meta.items.iter().all(|item| item.tower == Tower::Reference) {
            let longest = meta.document_lens().iter().copied().max().unwrap_or(0);
            self.document_tokens = self.document_tokens.max(longest);
        }
    }

    fn count_features(&mut self, items: &[ItemMeta]) {
        let towers: BTreeSet<Tower> = items.iter().map(|item| item.tower).collect();
        for tower in towers {
            let of = items.iter().filter(|item| item.tower == tower).map(|item| u64::from(item.num_features));
            let known = self.features.entry(tower).or_default();
            *known = [known[0].max(of.clone().max().unwrap_or(0)), known[1].max(of.sum())];
        }
    }
}

/// Returns `94 of 3,000 samples (3.1 %) are longer than 86 tokens`; `of` samples were looked at, `all` there are.
pub fn too_long_text(too_long: u64, of: u64, all: u64, max_tokens: usize) -> String {
    let share = 100.0 * too_long as f64 / of.max(1) as f64;
    let is = if too_long == 1 { "is" } else { "are" };
    match of == all {
        true => format!(
            "{} of {} samples ({share:.1} %) {is} longer than {max_tokens} tokens",
            grouped(too_long),
            grouped(of)
        ),
        false => format!(
            "{} of {} samples that were looked at ({share:.1} %), out of {}, {is} longer than {max_tokens} tokens",
            grouped(too_long),
            grouped(of),
            grouped(all)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, SampleId};

    #[test]
    fn documents_are_measured_where_their_positions_are_counted_by_tokens() {
        let longest = |documents: &[u32], tower: Option<Tower>| {
            let grid = Grid { t: 9, h: 1, w: 1 };
            let items = tower.into_iter().map(|tower| ItemMeta { tower, grid, num_features: 1 }).collect();
            let meta = SampleMeta::of_tokens(SampleId(0), 12, 3);
            let mut survey = Survey::default();
            survey.count_tokens(&SampleMeta { items, documents: documents.to_vec(), ..meta });
            survey.document_tokens
        };
        assert_eq!((longest(&[], None), longest(&[4, 8], None)), (12, 8));
        assert_eq!((longest(&[4, 8], Some(Tower::Reference)), longest(&[], Some(Tower::Vision))), (8, 0));
    }

    #[test]
    fn a_share_says_of_how_many_samples_it_is() {
        assert_eq!(too_long_text(94, 3000, 3000, 86), "94 of 3,000 samples (3.1 %) are longer than 86 tokens");
        let of_some = "1 of 100 samples that were looked at (1.0 %), out of 3,000, is longer than 86 tokens";
        assert_eq!(too_long_text(1, 100, 3000, 86), of_some);
    }
}
