//! The results of making features ahead.

use crate::preflight::WeightsProblem;
use loongforge_core::data::DataError;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{PoolName, SkippedSample, Tower};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The reasons why features cannot be made ahead.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("no encoder pool has a folder for features: set one, as in `pools.{0}.cache_dir=features`")]
    NoFolder(PoolName),
    #[error("the model has no tower that encodes: there is nothing to encode")]
    NoTowers,
    #[error("{0}")]
    Refused(EngineError),
    #[error(transparent)]
    Weights(#[from] WeightsProblem),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("encoder of the pool `{pool}`: {source}")]
    Encoder { pool: PoolName, source: EngineError },
    #[error("all samples are bad; the first: {0}")]
    AllBad(SkippedSample),
}

/// The items of one tower that were encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TowerTotals {
    /// Different items.
    pub items: u64,
    /// The items whose features were there.
    pub found: u64,
    /// Bytes of the features that were made.
    pub bytes: u64,
    pub folder: PathBuf,
}

/// The items and visits of all towers.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    pub towers: BTreeMap<Tower, TowerTotals>,
    /// Visits of samples of training, and of held-out samples and prompts.
    pub visits: [u64; 2],
    pub bad: Vec<SkippedSample>,
}
