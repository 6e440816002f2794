//! The loss of held-out samples: read as in training and packed into rows in which no sample sees another, forward only.
//! Not for what a model answers.

use crate::forward::ForwardModel;
use anyhow::{Result, bail};
use loongforge_core::config::{BadSamples, Data};
use loongforge_core::data::tools::for_each_ordered;
use loongforge_core::data::{BadSample, Dataset, Sample};
use loongforge_core::observe::EvalRecord;
use loongforge_core::schedule::{PackLimits, SampleSize};
use std::time::Instant;

/// Samples after which the fraction of bad ones means something, as in a run.
const MIN_SEEN: u64 = 100;
/// Threads that read: more would hold more samples than a row needs.
const MAX_JOBS: usize = 8;

/// What is measured, and how.
pub struct Measure {
    /// Of a row.
    pub limits: PackLimits,
    /// Bad samples that end it.
    pub on_bad: BadSamples,
    /// The first so many samples; `None`: all.
    pub max_samples: Option<u64>,
    /// Threads that read.
    pub jobs: usize,
}

/// What was found of the samples that could be used; without `targets` there is no loss.
#[derive(Debug, Default)]
pub struct HeldOut {
    pub samples: u64,
    pub packs: u64,
    /// Placeholders of pictures included.
    pub tokens: u64,
    /// Tokens that count in the loss.
    pub targets: u64,
    /// Targets that the model thinks likeliest of all tokens.
    pub right: u64,
    /// The sum of the targets' cross-entropies.
    sum: f64,
    pub bad: Vec<BadSample>,
    pub seconds: f64,
}

impl HeldOut {
    /// The mean cross-entropy of a target, in nats.
    pub fn loss(&self) -> f64 {
        self.sum / self.targets as f64
    }

    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// The part of the targets that is right, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.targets as f64
    }

    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// As `eval.jsonl` has it, of a set after so many steps.
    pub fn record(&self, step: u64, set: &str) -> EvalRecord {
        EvalRecord {
            step,
            set: set.to_owned(),
            accuracy: (self.targets > 0).then(|| self.accuracy()),
            samples: self.samples,
            bad_samples: self.bad.len() as u64,
            ..EvalRecord::default()
        }
        .with_loss(self.sum, self.targets)
    }
}

impl Measure {
    /// As a run with this `data` reads and packs its samples.
    pub fn of(data: &Data) -> Self {
        let [max_images, max_visual_tokens] =
            [data.pack.max_images, data.pack.max_visual_tokens].map(|limit| limit.unwrap_or(usize::MAX));
        let limits = PackLimits { max_images, max_visual_tokens, ..PackLimits::tokens(data.pack.max_tokens) };
        let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_JOBS);
        Self { limits, on_bad: data.on_bad_sample, max_samples: None, jobs }
    }

    /// Reads the samples in the order of the file and scores them; `progress` hears of each.
    ///
    /// # Errors
    /// Too many samples are bad. A sample has no finite loss. The device failed.
    pub fn run(&self, model: &ForwardModel, dataset: &Dataset, progress: impl Fn()) -> Result<HeldOut> {
        let num_samples = self.num_samples(dataset);
        let (mut found, start) = (HeldOut::default(), Instant::now());
        let (mut row, mut size) = (Vec::new(), SampleSize::default());
        let (mut seen, mut in_a_row) = (0, 0);
        for_each_ordered(
            self.jobs,
            0..num_samples,
            |position| dataset.sample(position),
            |_, sample| {
                progress();
                seen += 1;
                let sample = match sample {
                    Ok(sample) => sample,
                    Err(bad) => {
                        in_a_row += 1;
                        found.bad.push(bad);
                        return self.judge(&found.bad, in_a_row, seen);
                    }
                };
                in_a_row = 0;
                let with = sum(size, SampleSize::of(&sample.meta));
                if !row.is_empty() && self.limits.check(sample.meta.id, with).is_err() {
                    found.add(model, dataset, &row)?;
                    row.clear();
                }
                size = if row.is_empty() { SampleSize::of(&sample.meta) } else { with };
                row.push(sample);
                Ok(())
            },
        )?;
        if !row.is_empty() {
            found.add(model, dataset, &row)?;
        }
        if !found.bad.is_empty() {
            // Those among the first samples, too.
            self.judge(&found.bad, 0, seen)?;
        }
        found.seconds = start.elapsed().as_secs_f64();
        Ok(found)
    }

    pub fn num_samples(&self, dataset: &Dataset) -> u64 {
        self.max_samples.unwrap_or(u64::MAX).min(dataset.len() as u64)
    }

    /// Whether there are too many, by the rule of a run.
    fn judge(&self, bad: &[BadSample], in_a_row: usize, seen: u64) -> Result<()> {
        let BadSamples { max_fraction, max_consecutive } = self.on_bad;
        let (count, last) = (bad.len(), &bad[bad.len() - 1]);
        if in_a_row > max_consecutive {
            bail!(
                "{in_a_row} bad samples in a row, more than `data.on_bad_sample.max_consecutive` = {max_consecutive}; \
                 the last: {last}"
            );
        }
        if seen >= MIN_SEEN && count as f64 > max_fraction * seen as f64 {
            bail!(
                "{count} of {seen} samples are bad, more than `data.on_bad_sample.max_fraction` = {max_fraction}; \
                 the last: {last}"
            );
        }
        Ok(())
    }
}

impl HeldOut {
    fn add(&mut self, model: &ForwardModel, dataset: &Dataset, row: &[Sample]) -> Result<()> {
        let scores = model.score(&row.iter().collect::<Vec<_>>())?;
        let mut losses = scores.losses.iter();
        for sample in row {
            let own = losses.by_ref().take(sample.meta.num_targets as usize);
            let sum: f64 = own.map(|loss| f64::from(*loss)).sum();
            if !sum.is_finite() {
                bail!("{}: the loss of this sample is {sum}", dataset.place_name(sample.meta.id.0));
            }
            self.sum += sum;
            self.tokens += u64::from(sample.meta.num_tokens);
            self.targets += u64::from(sample.meta.num_targets);
        }
        self.right += scores.right.iter().filter(|right| **right).count() as u64;
        self.samples += row.len() as u64;
        self.packs += 1;
        Ok(())
    }
}

fn sum(a: SampleSize, b: SampleSize) -> SampleSize {
    SampleSize {
        tokens: a.tokens.saturating_add(b.tokens),
        images: a.images.saturating_add(b.images),
        visual_tokens: a.visual_tokens.saturating_add(b.visual_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_samples_are_judged_as_in_a_run() {
        let measure = Measure {
            limits: PackLimits::tokens(1),
            on_bad: BadSamples { max_fraction: 0.01, max_consecutive: 2 },
            max_samples: None,
            jobs: 1,
        };
        let bad = |count| vec![BadSample { file: "a.jsonl".into(), at: "3".into(), reason: "why".into() }; count];
        let judge =
            |count, in_a_row, seen| measure.judge(&bad(count), in_a_row, seen).map_err(|error| error.to_string());
        assert_eq!(judge(50, 2, 99), Ok(()));
        assert_eq!(judge(1, 1, 100), Ok(()));
        let error = judge(2, 1, 100).unwrap_err();
        assert!(error.contains("2 of 100 samples are bad") && error.contains("a.jsonl:3: why"), "{error}");
        assert!(judge(3, 3, 9).unwrap_err().contains("3 bad samples in a row"));
    }
}
