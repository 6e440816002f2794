//! Statistics of features: minimum, maximum, mean, deviation and quantiles of each number.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use super::info::{Info, Version};
use super::jsonl::{for_each_line, of_python};
use crate::data::error::DataError;
use crate::files;
use crate::text::shell_word;

/// The file of the statistics of a whole set.
pub const STATS: &str = "meta/stats.json";
pub(super) const EPISODES_STATS: &str = "meta/episodes_stats.jsonl";

/// The statistics of one feature, `[width]` each, by name: `min`, `max`, `mean`, `std`, `count`, `q01` and other quantiles.
pub type FeatureStats = BTreeMap<String, Vec<f64>>;

/// The statistics of features, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats(pub BTreeMap<String, FeatureStats>);

impl Stats {
    /// Reads the statistics of the set in `folder`. Those of a set of version 2.1 are made of those of its episodes.
    ///
    /// # Errors
    /// Named by the file: wrong, or missing.
    pub fn read(folder: &Path, info: &Info) -> Result<Self, DataError> {
        let path = folder.join(STATS);
        if info.version == Version::V21 && !path.is_file() {
            let path = folder.join(EPISODES_STATS);
            let mut episodes = Vec::new();
            for_each_line(&path, |line| {
                episodes.push(Self::of_json(&line["stats"])?);
                Ok(())
            })?;
            return Self::joined(&episodes).map_err(|reason| DataError::file(&path, reason));
        }
        if !path.is_file() {
            return Err(DataError::file(&path, format!("is missing: {}", command(folder))));
        }
        let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
        let json = of_python(&bytes).map_err(|error| DataError::file(&path, error))?;
        Self::of_json(&json).map_err(|reason| DataError::file(&path, reason))
    }

    /// # Errors
    /// The reason: what is no number.
    pub fn of_json(json: &Json) -> Result<Self, String> {
        let features = json.as_object().ok_or("holds no statistics of features")?;
        let mut stats = BTreeMap::new();
        for (key, feature) in features {
            let named = feature.as_object().ok_or_else(|| format!("{key} has no statistics"))?;
            let mut read = FeatureStats::new();
            for (name, values) in named {
                let mut numbers = Vec::new();
                flatten(values, &mut numbers)
                    .map_err(|what| format!("{name} of {key} must have only numbers, found {what:.40}"))?;
                read.insert(name.clone(), numbers);
            }
            stats.insert(key.clone(), read);
        }
        Ok(Self(stats))
    }

    /// Statistics of parts as those of the whole, as lerobot joins them: means and quantiles weighted by the counts, the pooled
    /// variance, the least minimum and the greatest maximum.
    ///
    /// # Errors
    /// The reason: parts without a count, or of other widths.
    pub fn joined(parts: &[Self]) -> Result<Self, String> {
        let keys: std::collections::BTreeSet<&String> = parts.iter().flat_map(|part| part.0.keys()).collect();
        let join = |key: &String| {
            let parts: Vec<&FeatureStats> = parts.iter().filter_map(|part| part.0.get(key)).collect();
            join(&parts).map(|joined| (key.clone(), joined)).map_err(|reason| format!("{key}: {reason}"))
        };
        keys.into_iter().map(join).collect::<Result<_, _>>().map(Self)
    }

    /// Returns a statistic of a feature.
    pub fn get(&self, key: &str, name: &str) -> Option<&[f64]> {
        self.0.get(key)?.get(name).map(Vec::as_slice)
    }
}

/// Says which command computes the statistics of a set.
pub fn command(folder: &Path) -> String {
    format!("compute them with `loongforge data stats --write {}`", shell_word(folder))
}

fn flatten(values: &Json, numbers: &mut Vec<f64>) -> Result<(), String> {
    match values {
        Json::Array(values) => values.iter().try_for_each(|value| flatten(value, numbers)),
        Json::Number(number) => {
            numbers.push(number.as_f64().ok_or_else(|| number.to_string())?);
            Ok(())
        }
        Json::Bool(value) => {
            numbers.push(f64::from(u8::from(*value)));
            Ok(())
        }
        // What is not finite has no number in JSON.
        Json::Null => {
            numbers.push(f64::NAN);
            Ok(())
        }
        other => Err(other.to_string()),
    }
}

fn join(parts: &[&FeatureStats]) -> Result<FeatureStats, String> {
    let stat = |name: &str| {
        let values: Option<Vec<&[f64]>> = parts.iter().map(|part| part.get(name).map(Vec::as_slice)).collect();
        values.ok_or_else(|| format!("a part has no {name}"))
    };
    let (means, deviations, counts) = (stat("mean")?, stat("std")?, stat("count")?);
    let (minima, maxima) = (stat("min")?, stat("max")?);
    let width = means.first().map_or(0, |mean| mean.len());
    let all = [&means, &deviations, &minima, &maxima];
    if all.iter().any(|values| values.iter().any(|value| value.len() != width)) {
        return Err("its parts have different widths".to_owned());
    }
    let counts: Vec<f64> = counts.iter().map(|count| count.first().copied().unwrap_or_default()).collect();
    let total: f64 = counts.iter().sum();
    if total.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        return Err("its parts have no counts".to_owned());
    }
    let weighted = |values: &[&[f64]], at: usize| {
        values.iter().zip(&counts).map(|(value, count)| value[at] * count).sum::<f64>() / total
    };
    let mean: Vec<f64> = (0..width).map(|at| weighted(&means, at)).collect();
    let deviation = |at: usize| {
        let parts = means.iter().zip(&deviations).zip(&counts);
        let variance = parts.map(|((of, std), count)| (std[at].powi(2) + (of[at] - mean[at]).powi(2)) * count);
        (variance.sum::<f64>() / total).sqrt()
    };
    let fold = |values: &[&[f64]], with: fn(f64, f64) -> f64| -> Vec<f64> {
        (0..width).map(|at| values.iter().map(|value| value[at]).reduce(with).unwrap_or_default()).collect()
    };
    let mut joined = FeatureStats::from([
        ("min".to_owned(), fold(&minima, f64::min)),
        ("max".to_owned(), fold(&maxima, f64::max)),
        ("std".to_owned(), (0..width).map(deviation).collect()),
        ("count".to_owned(), vec![total]),
    ]);
    joined.insert("mean".to_owned(), mean);
    let quantiles = parts[0].keys().filter(|name| {
        name.strip_prefix('q').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit()))
    });
    for name in quantiles {
        if let Ok(values) = stat(name)
            && values.iter().all(|value| value.len() == width)
        {
            joined.insert(name.clone(), (0..width).map(|at| weighted(&values, at)).collect());
        }
    }
    Ok(joined)
}
