//! Episodes of a LeRobot data set, as a config names them: numbers from 0 and ranges.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::area::text_or_number;
use crate::text::plural;

/// Episodes that follow one another: `7`, `0-99`, or up to the last one of the set `100-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeRange {
    first: u32,
    /// `None`: the last one of the set.
    last: Option<u32>,
}

/// The forms of a range, for error messages.
pub(super) const EPISODES: &str = "expected the number of an episode, from 0, or a range such as `0-99` or `100-`";

impl EpisodeRange {
    /// Every episode of a set.
    pub const ALL: Self = Self { first: 0, last: None };

    /// Returns the first episode that both ranges hold.
    pub fn common(self, other: Self) -> Option<u32> {
        let first = self.first.max(other.first);
        let holds = |range: Self| range.last.is_none_or(|last| first <= last);
        (holds(self) && holds(other)).then_some(first)
    }

    /// Returns these episodes of a set of `count`, as numbers from the first to the one behind the last. A range without an end
    /// may begin behind the last episode, and is empty then.
    ///
    /// # Errors
    /// The reason: the set has fewer episodes.
    pub fn within(self, count: usize) -> Result<Range<usize>, String> {
        let first = self.first as usize;
        let end = self.last.map_or(count, |last| last as usize + 1);
        match first <= end && end <= count {
            true => Ok(first..end),
            false => Err(format!(
                "`episodes`: {self} is not in this set, which has {count} {}, numbered from 0",
                plural("episode", count as u64)
            )),
        }
    }

    /// Returns the same episodes in as few ranges as there can be, ascending.
    pub fn joined(ranges: &[Self]) -> Vec<Self> {
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|range| (range.first, range.last.unwrap_or(u32::MAX)));
        let mut joined: Vec<Self> = Vec::new();
        for range in sorted {
            match joined.last_mut() {
                Some(before) if before.last.is_none_or(|last| range.first <= last.saturating_add(1)) => {
                    before.last = before.last.zip(range.last).map(|(one, other)| one.max(other));
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

impl FromStr for EpisodeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Rust also reads `+7`.
        let number = |text: &str| text.trim().parse().ok().filter(|_: &u32| !text.contains('+'));
        let range = match text.split_once('-') {
            None => number(text).map(|one| Self { first: one, last: Some(one) }),
            Some((first, "")) => number(first).map(|first| Self { first, last: None }),
            Some((first, last)) => {
                number(first).zip(number(last)).map(|(first, last)| Self { first, last: Some(last) })
            }
        };
        let range = range.ok_or(EPISODES)?;
        match range.last.is_some_and(|last| last < range.first) {
            true => Err("expected a range that begins with the smaller number".to_owned()),
            false => Ok(range),
        }
    }
}

impl fmt::Display for EpisodeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Some(last) if last == self.first => write!(f, "{last}"),
            Some(last) => write!(f, "{}-{last}", self.first),
            None => write!(f, "{}-", self.first),
        }
    }
}

text_or_number!(EpisodeRange, "episodes", "integer");

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<EpisodeRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ranges_read_back_what_they_write() {
        for text in ["7", "0-99", "100-", "0"] {
            assert_eq!(text.parse::<EpisodeRange>().unwrap().to_string(), text);
        }
        assert_eq!("3-3".parse::<EpisodeRange>().unwrap().to_string(), "3");
        let read: Vec<EpisodeRange> = serde_json::from_str(r#"[3, "5-8", "9"]"#).unwrap();
        assert_eq!(read, ranges(&["3", "5-8", "9"]));
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["3","5-8","9"]"#);
        for text in ["", "-", "-3", "a", "1.5", "+3", "1-+3", "1-2-3", "99999999999"] {
            assert!(text.parse::<EpisodeRange>().unwrap_err().contains("0-99"), "{text}");
        }
        assert!("5-3".parse::<EpisodeRange>().unwrap_err().contains("smaller number"));
    }

    #[test]
    fn ranges_lie_within_a_set() {
        let within = |text: &str, count| text.parse::<EpisodeRange>().unwrap().within(count);
        for (text, episodes) in [("0-4", 0..5), ("4", 4..5), ("2-", 2..5), ("5-", 5..5)] {
            assert_eq!(within(text, 5), Ok(episodes), "{text}");
        }
        for text in ["5", "0-5", "6-", "4294967295"] {
            let error = within(text, 5).unwrap_err();
            assert!(error.contains(&format!("{text} is not in this set, which has 5 episodes")), "{error}");
        }
    }

    #[test]
    fn ranges_have_episodes_in_common() {
        let common = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse::<EpisodeRange>().unwrap());
            assert_eq!(one.common(other), other.common(one));
            one.common(other)
        };
        assert_eq!([common("0-4", "3-9"), common("7", "5-"), common("2-", "9-")], [Some(3), Some(7), Some(9)]);
        assert_eq!([common("0-4", "5-9"), common("7", "8-")], [None, None]);
        assert_eq!(EpisodeRange::ALL.to_string(), "0-");
    }

    #[test]
    fn ranges_are_joined_in_order() {
        let joined = |texts: &[&str]| {
            let joined = EpisodeRange::joined(&ranges(texts));
            joined.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(joined(&["7", "0-3", "4", "6"]), "0-4, 6-7");
        assert_eq!(joined(&["0-9", "2-3", "20-", "30"]), "0-9, 20-");
        assert_eq!(joined(&[]), "");
    }
}
