//! The input of one step's plan.

use crate::message::SampleMeta;
use serde::{Deserialize, Serialize};

/// One global batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Batch {
    /// Samples to pack within the step, in order of position.
    Samples(Vec<SampleMeta>),
    /// Packs of a packed stream, in order: each is one micro-batch as it is.
    Packs(Vec<Vec<SampleMeta>>),
}

impl Batch {
    /// Returns the samples, pack by pack.
    pub fn samples(&self) -> impl Iterator<Item = &SampleMeta> {
        let (samples, packs): (&[SampleMeta], &[Vec<SampleMeta>]) = match self {
            Self::Samples(samples) => (samples, &[]),
            Self::Packs(packs) => (&[], packs),
        };
        samples.iter().chain(packs.iter().flatten())
    }

    /// Returns mutable references to the samples of all packs, in order.
    pub(super) fn samples_mut(&mut self) -> Vec<&mut SampleMeta> {
        match self {
            Self::Samples(samples) => samples.iter_mut().collect(),
            Self::Packs(packs) => packs.iter_mut().flatten().collect(),
        }
    }
}
