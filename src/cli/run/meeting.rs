//! Composes a run, and says where its processes meet.

use super::args::RunArgs;
use crate::cli::decode_worker::decoder;
use crate::model::error::FolderError;
use crate::run::compose::Composition;
use loongforge_actors::Meeting;
use loongforge_actors::launch::net::Security;
use loongforge_core::config::{Address, Loaded, RunConfig};
use sha2::{Digest, Sha256};

pub(super) fn compose(config: &RunConfig) -> Result<Composition, FolderError> {
    let decoder = decoder(config.security.sandbox, |warning| tracing::warn!("{warning}"));
    Ok(Composition::unsettled(config.clone())?.decoder(decoder))
}

/// Returns where the processes of the run meet, and how.
pub(super) fn meeting(args: &RunArgs, loaded: &Loaded, address: Address, security: Security) -> Meeting {
    Meeting {
        address,
        security,
        config: fingerprint(loaded),
        timeout: loaded.config.scheduler.join_timeout.duration(),
        shared_memory: !args.part.no_shared_memory,
        store: None,
        journal: None,
    }
}

/// Processes whose configs differ must not train together.
pub(super) fn fingerprint(loaded: &Loaded) -> String {
    let hash = Sha256::digest(loaded.composed.to_string());
    loongforge_core::text::hex(&hash[..8])
}
