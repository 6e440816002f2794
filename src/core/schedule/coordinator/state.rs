//! The scheduler state in a checkpoint.

use super::{Evaluated, Ledger, PoisonItem};
use crate::config::Products;
use crate::message::{PoolName, SampleId};
use crate::schedule::Fit;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;

/// Position of the data stream, fitted costs, and how matrix products are computed. In a checkpoint's manifest it is text without
/// empty fields; in a journal it is exact.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerState {
    /// First position of the data stream that was not taken.
    pub cursor: SampleId,
    /// Positions before it that are in no step yet, ascending: `data.pack.mode: stream` holds samples back. As text they are
    /// ranges, `5 9-12`.
    pub held: Vec<SampleId>,
    /// The ledger of the steps so far.
    pub ledger: Ledger,
    /// The fitted costs, with `scheduler.balance: fitted`.
    pub costs: Option<FittedCosts>,
    /// Items that encoders died on in earlier lives of the run. They are not stored in a checkpoint: samples before it are not read
    /// again.
    pub poison_items: Vec<PoisonItem>,
    /// Results of evaluations.
    pub evaluated: Evaluated,
    /// The way in which every actor of the run computes matrix products; `auto`: each as its processor does it faster.
    pub products: Products,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SchedulerState")]
struct Text {
    cursor: SampleId,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "to_ranges",
        deserialize_with = "from_ranges"
    )]
    held: Vec<SampleId>,
    #[serde(default, skip_serializing_if = "Ledger::is_empty")]
    ledger: Ledger,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    costs: Option<FittedCosts>,
    #[serde(default, rename = "killers", skip_serializing_if = "Vec::is_empty")]
    poison_items: Vec<PoisonItem>,
    #[serde(default, skip_serializing_if = "Evaluated::is_empty")]
    evaluated: Evaluated,
    #[serde(default, skip_serializing_if = "is_auto")]
    products: Products,
}

fn is_auto(products: &Products) -> bool {
    *products == Products::Auto
}

impl Serialize for SchedulerState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Text::serialize(self, serializer);
        }
        (self.cursor, &self.held, self.ledger, &self.costs, &self.poison_items, &self.evaluated, self.products)
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SchedulerState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Text::deserialize(deserializer);
        }
        let (cursor, held, ledger, costs, poison_items, evaluated, products) = Deserialize::deserialize(deserializer)?;
        Ok(Self { cursor, held, ledger, costs, poison_items, evaluated, products })
    }
}

/// Cost models of the pools, fitted during the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FittedCosts(pub BTreeMap<PoolName, Fit>);

impl SchedulerState {
    /// Returns the state at a position of the stream, with nothing held back and nothing fitted.
    pub fn at(cursor: SampleId) -> Self {
        Self { cursor, ..Self::default() }
    }
}

fn to_ranges<S: Serializer>(ids: &[SampleId], serializer: S) -> Result<S::Ok, S::Error> {
    let ranges = ids.chunk_by(|one, next| one.0 + 1 == next.0).map(|run| match run {
        [only] => only.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    serializer.serialize_str(&ranges.collect::<Vec<_>>().join(" "))
}

fn from_ranges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SampleId>, D::Error> {
    /// The most ids that are read, more than any run holds back.
    const MOST: usize = 1 << 24;
    let text = String::deserialize(deserializer)?;
    let mut ids: Vec<SampleId> = Vec::new();
    for word in text.split_whitespace() {
        let wrong =
            || de::Error::custom(format!("`{word}` must be a position or range that follows the previous ones"));
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let first: u64 = first.parse().map_err(|_| wrong())?;
        let last: u64 = last.parse().map_err(|_| wrong())?;
        let ascends = first <= last && ids.last().is_none_or(|before| before.0 < first);
        if !ascends || (last - first) as usize >= MOST - ids.len() {
            return Err(wrong());
        }
        ids.extend((first..=last).map(SampleId));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};
    use proptest::prelude::*;

    fn state(ids: &[u64]) -> SchedulerState {
        SchedulerState { held: ids.iter().copied().map(SampleId).collect(), ..SchedulerState::at(SampleId(99)) }
    }

    #[test]
    fn held_positions_are_written_short_and_wrong_ones_refused() {
        let text = serde_json::to_string(&state(&[5, 9, 10, 11, 20])).unwrap();
        assert_eq!(text, r#"{"cursor":99,"held":"5 9-11 20"}"#);
        assert_eq!(serde_json::to_string(&state(&[])).unwrap(), r#"{"cursor":99}"#);
        for held in ["a", "3-1", "5 5", "7 6", "1-", "-", "0-99999999999"] {
            let text = format!(r#"{{"cursor":1,"held":"{held}"}}"#);
            assert!(serde_json::from_str::<SchedulerState>(&text).is_err(), "{held}");
        }
    }

    proptest! {
        #[test]
        fn a_state_comes_back_as_it_was(ids in prop::collection::btree_set(0_u64..200, 0..100)) {
            let products = if ids.len() % 2 == 0 { Products::Auto } else { Products::Tiled };
            let state = SchedulerState { products, ..state(&ids.into_iter().collect::<Vec<_>>()) };
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(&serde_json::from_str::<SchedulerState>(&text).unwrap(), &state);
            prop_assert_eq!(decode::<SchedulerState>(&encode(&state).unwrap()).unwrap(), state);
        }
    }
}
