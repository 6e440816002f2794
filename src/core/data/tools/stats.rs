//! Describes how long samples are and what is in them: histograms, quantiles, and how packs of several sizes would be
//! filled.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::input::Inputs;
use super::ordered::for_each_ordered;
use super::sound;
use crate::data::decoder::MediaDecoder;
use crate::data::error::{BadSample, DataError};
use crate::data::maker::SampleMaker;
use crate::data::source::Captioned;
use crate::data::source::Content;
use crate::data::source::{MediaSource, Part};
use crate::message::{SampleId, Tower};
use crate::schedule::{PackLimits, pack_lengths};

/// Numbers by how often they come: memory goes by how many different ones there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Counts `value` once more.
    pub fn add(&mut self, value: u64) {
        *self.0.entry(value).or_default() += 1;
    }

    /// Returns the number of values that were added.
    pub fn len(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns whether no number was added.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum of all numbers that were added.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|(value, count)| value * count).sum()
    }

    /// Returns the largest number that was added; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.0.keys().next_back().copied().unwrap_or_default()
    }

    /// Returns the mean of all numbers that were added; 0 if there is none.
    pub fn mean(&self) -> f64 {
        self.sum() as f64 / self.len().max(1) as f64
    }

    /// Returns the smallest number that at least this part of all do not exceed.
    pub fn quantile(&self, part: f64) -> u64 {
        let rank = ((part * self.len() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (&value, &count) in &self.0 {
            seen += count;
            if seen >= rank {
                return value;
            }
        }
        0
    }

    /// Returns lowest number, highest number and count of up to `num` bins of equal width, from the smallest number to the largest.
    pub fn bins(&self, num: u64) -> Vec<(u64, u64, u64)> {
        let Some((&min, _)) = self.0.first_key_value() else { return Vec::new() };
        let width = (self.max() - min + 1).div_ceil(num.max(1));
        let num = (self.max() - min) / width + 1;
        let bin = |index| {
            let (low, high) = (min + index * width, min + (index + 1) * width - 1);
            (low, high, self.0.range(low..=high).map(|(_, count)| count).sum())
        };
        (0..num).map(bin).collect()
    }

    fn to_json(&self) -> Json {
        json!({
            "count": self.len(), "sum": self.sum(), "min": self.quantile(0.0), "mean": self.mean(),
            "p50": self.quantile(0.5), "p90": self.quantile(0.9), "p99": self.quantile(0.99), "max": self.max(),
            "bins": self.bins(20),
        })
    }
}

/// The counts over samples.
#[derive(Clone, Debug, Default)]
pub struct SampleStats {
    pub bad: Vec<BadSample>,
    /// Samples that are longer than the processor takes; they are in no histogram.
    pub too_long: u64,
    /// The histograms, by name, in the order in which they are shown; those of tokens only with a model.
    pub histograms: Vec<(&'static str, Histogram)>,
}

/// Packs of one size, as they would be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub max_tokens: usize,
    pub packs: u64,
    /// Part of the packs' room that holds tokens.
    pub fill: f64,
    /// Samples that are longer than such a pack.
    pub too_long: u64,
}

const TOKENS: &str = "tokens";

/// Counts every sample; `progress` is told of each, in order. With a maker samples are made as a run makes them.
pub fn stats(
    inputs: &Inputs,
    maker: Option<&dyn SampleMaker>,
    jobs: usize,
    mut progress: impl FnMut(u64, Option<&BadSample>),
) -> SampleStats {
    let work = |index| {
        let (content, base) = inputs.read(index)?;
        count(&content, base, maker, inputs.decoder()).map_err(|error| inputs.refused(index, &error))
    };
    let mut stats = SampleStats::default();
    let taken: Result<(), std::convert::Infallible> =
        for_each_ordered(jobs, 0..inputs.len(), work, |index, counts: Result<Vec<(&'static str, u64)>, BadSample>| {
            progress(index, counts.as_ref().err());
            match counts {
                Ok(counts) => counts.into_iter().for_each(|(name, value)| stats.histogram(name).add(value)),
                Err(long) if long.too_long => stats.too_long += 1,
                Err(bad) => stats.bad.push(bad),
            }
            Ok(())
        });
    let Ok(()) = taken;
    stats
}

fn count(
    content: &Content,
    base: &Path,
    maker: Option<&dyn SampleMaker>,
    decoder: &dyn MediaDecoder,
) -> Result<Vec<(&'static str, u64)>, DataError> {
    let mut counts = match content {
        Content::Messages(conversation) => {
            let media =
                |wanted: fn(&MediaSource) -> bool| conversation.media.iter().filter(|item| wanted(item)).count();
            let parts = conversation.turns.iter().flat_map(|turn| &turn.parts);
            let characters = parts.map(|part| if let Part::Text { text } = part { text.chars().count() } else { 0 });
            let seconds_of = |source: &MediaSource| match source {
                MediaSource::Audio(audio) => Some(sound::seconds(audio, base, decoder)),
                MediaSource::Image(_) | MediaSource::Video(_) | MediaSource::Context(_) => None,
            };
            let seconds: f64 = conversation.media.iter().filter_map(seconds_of).sum::<Result<f64, _>>()?;
            vec![
                ("turns", conversation.turns.len()),
                ("characters", characters.sum()),
                ("images", media(|item| matches!(item, MediaSource::Image(_)))),
                ("videos", media(|item| matches!(item, MediaSource::Video(_)))),
                ("recordings", media(|item| matches!(item, MediaSource::Audio(_)))),
                ("milliseconds of sound", (seconds * 1e3).round() as usize),
                ("contexts", media(|item| matches!(item, MediaSource::Context(_)))),
            ]
        }
        Content::Pair(pair) => {
            let turns = pair.answers().into_iter().flat_map(|answer| &answer.turns);
            let characters: usize = turns.map(|turn| turn.joined_text().chars().count()).sum();
            vec![
                ("turns", pair.chosen.turns.len()),
                ("characters", characters),
                ("images", pair.chosen.images().count()),
            ]
        }
        Content::Tokens(piece) => vec![(TOKENS, piece.ids.len())],
        Content::Labeled(answer) => {
            let turns = &answer.conversation.turns;
            vec![
                ("turns", turns.len()),
                ("characters", turns.iter().map(|turn| turn.joined_text().chars().count()).sum()),
                ("good", usize::from(answer.is_good)),
            ]
        }
        Content::Group(answers) => vec![("answers", answers.len())],
        Content::Text(piece) => vec![("characters", piece.text.chars().count())],
        Content::Captioned(captioned) => of_captioned(captioned),
        Content::Step(step) => {
            vec![("characters", step.task()?.chars().count()), ("images", step.set().info().cameras().count())]
        }
        Content::Packed(pack) => vec![("documents", pack.lens.len()), (TOKENS, pack.num_tokens())],
    };
    if let Some(maker) = maker {
        let sample = maker.make(SampleId(0), content, base)?;
        let of = |tower: Tower| {
            let items = sample.media.iter().filter(|item| item.tower == tower);
            items.map(|item| item.num_features).sum::<usize>()
        };
        let ([visual, heard, read, ..], meta) = (Tower::ALL.map(of), &sample.meta);
        counts.retain(|(name, _)| *name != TOKENS);
        counts.push((TOKENS, meta.num_tokens as usize));
        match meta.target {
            Some(target) => counts.extend([("frames of latents", target.grid.t as usize), ("context tokens", read)]),
            None => counts.extend([
                ("text tokens", meta.num_tokens as usize - visual - heard - read),
                ("visual tokens", visual),
                ("audio tokens", heard),
                ("context tokens", read),
                ("supervised tokens", meta.num_targets as usize),
            ]),
        }
    }
    Ok(counts.into_iter().map(|(name, value)| (name, value as u64)).collect())
}

fn of_captioned(captioned: &Captioned) -> Vec<(&'static str, usize)> {
    let visuals = captioned.target.iter().chain(&captioned.references);
    let (clips, pictures): (Vec<_>, Vec<_>) = visuals.partition(|source| matches!(source, MediaSource::Video(_)));
    vec![
        ("characters", captioned.captions[0].chars().count()),
        ("images", pictures.len()),
        ("videos", clips.len()),
        ("references", captioned.references.len()),
    ]
}

impl SampleStats {
    fn histogram(&mut self, name: &'static str) -> &mut Histogram {
        let at = self.histograms.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            self.histograms.push((name, Histogram::default()));
            self.histograms.len() - 1
        });
        &mut self.histograms[at].1
    }

    /// Packs of these sizes, by the tokens of samples; nothing where tokens were not counted.
    pub fn packs(&self, sizes: &[usize]) -> Vec<Expected> {
        let Some((_, tokens)) = self.histograms.iter().find(|(name, _)| *name == TOKENS) else { return Vec::new() };
        sizes.iter().map(|&max_tokens| expect(tokens, max_tokens)).collect()
    }

    /// Returns everything as JSON, with packs of these sizes in tokens.
    pub fn to_json(&self, sizes: &[usize]) -> Json {
        let histograms = self.histograms.iter().map(|(name, histogram)| (name.replace(' ', "_"), histogram.to_json()));
        let packs = self.packs(sizes).into_iter().map(|Expected { max_tokens, packs, fill, too_long }| {
            json!({ "max_tokens": max_tokens, "packs": packs, "fill": fill, "too_long": too_long })
        });
        json!({
            "samples": self.histograms.first().map_or(0, |(_, histogram)| histogram.len()),
            "bad": self.bad.len(),
            "too_long": self.too_long,
            "histograms": histograms.collect::<serde_json::Map<_, _>>(),
            "packs": packs.collect::<Vec<_>>(),
        })
    }
}

fn expect(tokens: &Histogram, max_tokens: usize) -> Expected {
    let lengths = tokens.0.iter().flat_map(|(&value, &count)| (0..count).map(move |_| value as u32));
    let lengths: Vec<u32> = lengths.collect();
    let packs = pack_lengths(&lengths, PackLimits::tokens(max_tokens));
    let sum: u64 = packs.num_tokens.iter().map(|&num| u64::from(num)).sum();
    let (num_packs, too_long) = (packs.num_packs() as u64, packs.too_large.len() as u64);
    let fill = if num_packs == 0 { 0.0 } else { sum as f64 / (num_packs * max_tokens as u64) as f64 };
    Expected { max_tokens, packs: num_packs, fill, too_long }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bins_are_of_the_numbers() {
        let mut histogram = Histogram::default();
        (1..=100).rev().for_each(|value| histogram.add(value));
        let quantiles = [0.0, 0.5, 0.9, 0.99, 1.0].map(|part| histogram.quantile(part));
        assert_eq!(quantiles, [1, 50, 90, 99, 100]);
        assert_eq!((histogram.len(), histogram.sum(), histogram.max(), histogram.mean()), (100, 5050, 100, 50.5));
        let bins = histogram.bins(10);
        assert_eq!((bins.len(), bins[0], bins[9]), (10, (1, 10, 10), (91, 100, 10)));
        histogram.add(1000);
        assert_eq!(histogram.bins(7).iter().map(|bin| bin.2).sum::<u64>(), 101);
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().bins(5)), (0, vec![]));
    }

    #[test]
    fn packs_are_expected_of_what_fits() {
        let mut tokens = Histogram::default();
        [60, 60, 40, 40, 500].into_iter().for_each(|value| tokens.add(value));
        let stats = SampleStats { bad: Vec::new(), too_long: 0, histograms: vec![(TOKENS, tokens)] };
        let expected = Expected { max_tokens: 100, packs: 2, fill: 1.0, too_long: 1 };
        assert_eq!(stats.packs(&[100]), [expected]);
        assert_eq!(stats.to_json(&[100])["packs"][0]["too_long"], 1);
        assert_eq!(SampleStats::default().packs(&[100]), []);
    }
}
