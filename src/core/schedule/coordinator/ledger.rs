//! The samples that a run has trained on, as one hash: two runs with equal ledgers had the same samples in the same steps, with
//! none lost and none duplicated.

use crate::message::{SampleId, StepId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// A hash chain over the steps of a run, each with the positions of its samples. It detects mistakes, not forgeries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger(u64);

impl Ledger {
    /// Returns the chain with one more step; `samples` ascend.
    pub fn after(self, step: StepId, samples: &[SampleId]) -> Self {
        // FNV-1a, 64 bits, over little-endian words.
        let words = [step.0, samples.len() as u64].into_iter().chain(samples.iter().map(|sample| sample.0));
        let bytes = words.flat_map(u64::to_le_bytes);
        Self(bytes.fold(self.0 ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }

    /// Returns whether there is no step yet.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_samples_and_their_order_count() {
        let ids = |ids: &[u64]| ids.iter().copied().map(SampleId).collect::<Vec<_>>();
        let one = Ledger::default().after(StepId(0), &ids(&[1, 2]));
        let others = [
            Ledger::default().after(StepId(1), &ids(&[1, 2])),
            Ledger::default().after(StepId(0), &ids(&[1, 3])),
            Ledger::default().after(StepId(0), &ids(&[1])).after(StepId(0), &ids(&[2])),
            one.after(StepId(0), &ids(&[1, 2])),
        ];
        assert!(others.iter().all(|other| *other != one));
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), one);
    }
}
