//! The files that a run's samples come from, so that a resumed run notices when they are others.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::open::find;
use super::shard::Shard;
use crate::config::{Data, EpisodeRange, Select, TrainFile};
use crate::data::error::DataError;

/// The files of every data set, in order. Pictures that records name are not among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub sets: Vec<Vec<Stamp>>,
    /// `data.val_size`: the part of the files that is not trained on.
    #[serde(default)]
    pub val_size: f64,
    /// `episodes` of the data sets that have it, by their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub episodes: BTreeMap<usize, String>,
    /// `max_samples` of the data sets that have it, with what `select` says, by their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<usize, String>,
    /// The settings and files that decide the packs that were made before the first step; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packs: Option<String>,
}

/// One file or object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub name: String,
    pub size: u64,
    /// Time of change, or the store's ETag.
    pub tag: String,
}

/// A file that is another than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub name: String,
    pub what: String,
}

/// Returns the fingerprint of the files that `data.train` names now.
///
/// # Errors
/// A file is missing or cannot be reached.
pub fn fingerprint(data: &Data) -> Result<Fingerprint, DataError> {
    let stamp = |Shard { name, size, tag }: Shard| Stamp { name, size, tag };
    let set = |file| Ok(find(file)?.shards.into_iter().map(stamp).collect());
    let sets = data.train.iter().map(set).collect::<Result<_, _>>()?;
    let ranges = |(at, file): (usize, &TrainFile)| Some((at, listed(file.episodes.as_ref()?)));
    let episodes = data.train.iter().enumerate().filter_map(ranges).collect();
    let limit = |(at, file): (usize, &TrainFile)| Some((at, limited(file.max_samples?, file.select)));
    let limits = data.train.iter().enumerate().filter_map(limit).collect();
    Ok(Fingerprint { sets, val_size: data.val_size, episodes, limits, packs: None })
}

fn limited(most: u64, select: Select) -> String {
    match select {
        Select::First => most.to_string(),
        Select::Random => format!("{most} with `select: random`"),
    }
}

/// Returns the same text for the same episodes, however they are listed.
fn listed(ranges: &[EpisodeRange]) -> String {
    let joined: Vec<String> = EpisodeRange::joined(ranges).iter().map(ToString::to_string).collect();
    joined.join(", ")
}

impl Fingerprint {
    /// Returns the first file in which `now` differs.
    pub fn difference(&self, now: &Self) -> Option<Difference> {
        let differs = |name: &str, what: String| Some(Difference { name: name.to_owned(), what });
        if self.val_size != now.val_size {
            return differs("data.val_size", format!("is {}, but was {}", now.val_size, self.val_size));
        }
        // Other episodes may be in other files; that of a set which is gone is told below.
        let of_part = [("episodes", &self.episodes, &now.episodes), ("max_samples", &self.limits, &now.limits)];
        for (key, old, new) in of_part {
            let changed = (0..self.sets.len().min(now.sets.len())).find(|at| old.get(at) != new.get(at));
            if let Some(at) = changed {
                let [new, old] = [new, old].map(|of| of.get(&at).map_or("all", String::as_str));
                return differs(&format!("data.train.{at}.{key}"), format!("is {new:.80}, but was {old:.80}"));
            }
        }
        for at in 0..self.sets.len().max(now.sets.len()) {
            let (Some(old), Some(new)) = (self.sets.get(at), now.sets.get(at)) else {
                let (old, new) = (self.sets.len(), now.sets.len());
                return differs("data.train", format!("has {new} entries, but the run began with {old}"));
            };
            for at in 0..old.len().max(new.len()) {
                match (old.get(at), new.get(at)) {
                    (Some(old), Some(new)) if old == new => {}
                    (Some(old), Some(new)) if old.name != new.name => {
                        return differs(&new.name, format!("is now where the run had {}", old.name));
                    }
                    (Some(old), Some(new)) if old.size != new.size => {
                        return differs(&new.name, format!("has {} bytes, but had {}", new.size, old.size));
                    }
                    (Some(_), Some(new)) => return differs(&new.name, "was modified since".to_owned()),
                    (None, Some(new)) => return differs(&new.name, "was added".to_owned()),
                    (Some(old), None) => return differs(&old.name, "was removed".to_owned()),
                    (None, None) => {}
                }
            }
        }
        match (&self.packs, &now.packs) {
            (None, None) => None,
            (Some(old), Some(new)) if old == new => None,
            (None, Some(_)) => differs("data.pack.mode", "is offline, but was not".to_owned()),
            (Some(_), None) => differs("data.pack.mode", "is not offline, but was".to_owned()),
            (Some(_), Some(_)) => {
                let what = "would differ: a setting of `data`, `train.learn`, `train.phase`, \
                            `train.micro_batch_size`, `run.seed` or the model changed";
                differs("the packs", what.to_owned())
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_other_file_is_named() {
        let stamp = |name: &str, size, tag: &str| Stamp { name: name.into(), size, tag: tag.into() };
        let of = |set: &[Stamp]| Fingerprint { sets: vec![set.to_vec()], ..Fingerprint::default() };
        let (a, b) = (stamp("a", 1, "x"), stamp("b", 2, "y"));
        let old = of(&[a.clone(), b.clone()]);
        assert_eq!(old.difference(&old), None);
        for (new, text) in [
            (of(&[a.clone(), stamp("b", 3, "y")]), "b has 3 bytes, but had 2"),
            (of(&[a.clone(), stamp("b", 2, "z")]), "b was modified since"),
            (of(std::slice::from_ref(&a)), "b was removed"),
            (of(&[a.clone(), b.clone(), stamp("c", 1, "")]), "c was added"),
            (of(&[b.clone(), a.clone()]), "b is now where the run had a"),
            (Fingerprint::default(), "data.train has 0 entries, but the run began with 1"),
        ] {
            assert_eq!(old.difference(&new).unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_episodes_are_told_by_the_key_and_the_same_ones_are_not() {
        let of = |ranges: &[&str]| {
            let ranges: Vec<EpisodeRange> = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let episodes = (!ranges.is_empty()).then(|| (0, listed(&ranges))).into_iter().collect();
            Fingerprint { sets: vec![Vec::new()], episodes, ..Fingerprint::default() }
        };
        let said = |old: &[&str], new: &[&str]| of(old).difference(&of(new)).map(|difference| difference.to_string());
        assert_eq!(said(&["0-4", "7"], &["7", "0", "1-4"]), None);
        assert_eq!(said(&["0-4"], &["0-5"]).unwrap(), "data.train.0.episodes is 0-5, but was 0-4");
        assert_eq!(said(&[], &["3-"]).unwrap(), "data.train.0.episodes is 3-, but was all");
        // Fingerprints of runs that chose no episodes stay the same.
        let json = serde_json::to_value(of(&[])).unwrap();
        assert!(json.get("episodes").is_none());
        assert_eq!(serde_json::from_value::<Fingerprint>(json).unwrap(), of(&[]));
    }

    #[test]
    fn another_limit_of_samples_is_told_by_the_key() {
        let of = |limit: Option<(u64, Select)>| {
            let limits = limit.map(|(most, select)| (0, limited(most, select))).into_iter().collect();
            Fingerprint { sets: vec![Vec::new()], limits, ..Fingerprint::default() }
        };
        let said = |old, new| of(old).difference(&of(new)).map(|difference| difference.to_string());
        let [first, random] = [Select::First, Select::Random].map(|select| Some((500, select)));
        assert_eq!(said(random, random), None);
        assert_eq!(said(None, first).unwrap(), "data.train.0.max_samples is 500, but was all");
        assert_eq!(said(first, random).unwrap(), "data.train.0.max_samples is 500 with `select: random`, but was 500");
        assert!(serde_json::to_value(of(None)).unwrap().get("limits").is_none());
    }

    #[test]
    fn other_packs_are_told_by_what_decides_them() {
        let of = |packs: Option<&str>| Fingerprint { packs: packs.map(str::to_owned), ..Fingerprint::default() };
        let said = |old, new| of(old).difference(&of(new)).map(|difference| difference.to_string());
        assert_eq!(said(Some("a"), Some("a")), None);
        assert_eq!(said(None, Some("a")).unwrap(), "data.pack.mode is offline, but was not");
        assert_eq!(said(Some("a"), None).unwrap(), "data.pack.mode is not offline, but was");
        let text = said(Some("a"), Some("b")).unwrap();
        assert_eq!(
            text,
            "the packs would differ: a setting of `data`, `train.learn`, `train.phase`, `train.micro_batch_size`, \
             `run.seed` or the model changed"
        );
    }
}
