//! One actor's place in a run.

use loongforge_core::config::Products;
use loongforge_core::message::ActorId;
use loongforge_core::schedule::PoolSizes;
use std::path::PathBuf;

/// One actor's place in a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Assignment {
    pub me: ActorId,
    pub pools: PoolSizes,
    /// Checkpoint to start from.
    pub resume: Option<PathBuf>,
    /// Rendezvous folder of the members of a pool; empty at the start of a run and removed after it.
    pub rendezvous: PathBuf,
    /// The way in which all actors compute matrix products.
    pub products: Products,
    /// True if its pool has no encoders: it loads no tower and reads features from the pool's `cache_dir`.
    pub reads: bool,
}
