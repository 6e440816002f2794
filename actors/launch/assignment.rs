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
    /// Checkpoint to begin from.
    pub resume: Option<PathBuf>,
    /// Folder through which the members of a pool find each other; empty at the start of a run and gone after it.
    pub rendezvous: PathBuf,
    /// Tells how all actors compute products.
    pub products: Products,
    /// Its pool has no encoders: it loads no tower and reads features from the pool's `cache_dir`.
    pub reads: bool,
}
