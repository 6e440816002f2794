//! The loss of held-out samples: these are read as in training and packed into rows in which no sample sees another, forward only. The
//! answers of a model are evaluated elsewhere.

use crate::eval::forward::ForwardModel;
use anyhow::{Error, Result, bail};
use loongforge_core::config::{BadSamples, Data, TooLong};
use loongforge_core::data::tools::for_each_ordered;
use loongforge_core::data::{BadSample, Dataset, Sample};
use loongforge_core::observe::EvalRecord;
use loongforge_core::schedule::{PackLimits, SampleSize, Skipped};
use std::time::Instant;

/// Threads that read: more would hold more samples than a row needs.
const MAX_JOBS: usize = 8;

/// The settings of the measurement.
pub struct Measure {
    /// The limits of a row.
    pub limits: PackLimits,
    /// Bad samples that end it.
    pub on_bad: BadSamples,
    /// The treatment of samples that are longer than a row.
    pub too_long: TooLong,
    /// The first so many samples; `None`: all.
    pub max_samples: Option<u64>,
    /// Threads that read.
    pub jobs: usize,
}

/// The findings about the samples that could be used; without `targets` there is no loss.
#[derive(Debug, Default)]
pub struct HeldOut {
    pub samples: u64,
    pub packs: u64,
    /// Placeholders of pictures included.
    pub tokens: u64,
    /// Tokens that count in the loss.
    pub targets: u64,
    /// Targets that the model thinks likeliest of all tokens.
    pub correct: u64,
    /// The sum of the targets' cross-entropies.
    sum: f64,
    pub bad: Vec<BadSample>,
    /// Samples that are longer than a row, and were left out.
    pub too_long: u64,
    pub seconds: f64,
}

impl HeldOut {
    /// Returns the mean cross-entropy of a target, in nats.
    pub fn loss(&self) -> f64 {
        self.sum / self.targets as f64
    }

    /// Returns e to the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Returns the part of the targets that is correct, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.targets as f64
    }

    /// Returns the tokens, not only targets, that were evaluated per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Returns the record that `eval.jsonl` has of a set after so many steps.
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
    /// Makes the settings with which a run with this `data` reads and packs its samples.
    pub fn of(data: &Data) -> Self {
        let limits = PackLimits::of(&data.pack);
        let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_JOBS);
        Self { limits, on_bad: data.on_bad_sample, too_long: data.pack.too_long, max_samples: None, jobs }
    }

    /// Reads the samples in the order of the file and scores them; `progress` hears of each.
    ///
    /// # Errors
    /// Too many samples are bad. A sample has no finite loss. The device failed.
    pub fn run(&self, model: &ForwardModel, dataset: &Dataset, progress: impl Fn()) -> Result<HeldOut> {
        let num_samples = self.num_samples(dataset);
        let (mut found, start) = (HeldOut::default(), Instant::now());
        let (mut row, mut size) = (Vec::new(), SampleSize::default());
        let mut skipped = Skipped::new(self.on_bad, self.too_long);
        for_each_ordered(
            self.jobs,
            0..num_samples,
            |position| dataset.sample(position),
            |_, sample| {
                progress();
                let sample = match sample {
                    Ok(sample) => sample,
                    Err(long) if long.too_long => {
                        found.too_long += 1;
                        return skipped.too_long(&long).map_err(Error::msg);
                    }
                    Err(bad) => {
                        let verdict = skipped.bad(&bad).map_err(Error::msg);
                        found.bad.push(bad);
                        return verdict;
                    }
                };
                skipped.used();
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
        if let Some(last) = found.bad.last() {
            // Those among the first samples, too.
            skipped.fraction(last).map_err(Error::msg)?;
        }
        found.seconds = start.elapsed().as_secs_f64();
        Ok(found)
    }

    /// Returns the number of samples of a set that are measured.
    pub fn num_samples(&self, dataset: &Dataset) -> u64 {
        self.max_samples.unwrap_or(u64::MAX).min(dataset.len() as u64)
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
        self.correct += scores.correct.iter().filter(|correct| **correct).count() as u64;
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
