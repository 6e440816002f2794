//! Composes a run, and says where its processes meet.

use super::args::RunArgs;
use crate::cli::decode_worker::decoder;
use crate::model::error::FolderError;
use crate::run::compose::Composition;
use loongforge_actors::Meeting;
use loongforge_actors::launch::net::Security;
use loongforge_core::config::{Address, Loaded, RunConfig};
use loongforge_core::text::hex;
use serde_json::Value;
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

/// Identifies a config: processes whose configs differ must not train together. Behind the hash of the whole config are those of its
/// keys, two levels deep, by which a refusal names the keys that differ.
pub(super) fn fingerprint(loaded: &Loaded) -> String {
    let mut text = hash(&loaded.composed, 8);
    for (key, value) in loaded.composed.as_object().into_iter().flatten() {
        let Some(below) = value.as_object() else {
            text.push_str(&format!(" {key}={}", hash(value, 4)));
            continue;
        };
        for (name, value) in below {
            text.push_str(&format!(" {key}.{name}={}", hash(value, 4)));
        }
    }
    text
}

/// Returns the first bytes of a value's SHA-256 in hexadecimal digits.
fn hash(value: &Value, len: usize) -> String {
    hex(&Sha256::digest(value.to_string())[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;

    #[test]
    fn fingerprints_of_two_configs_differ_in_the_keys_that_differ() {
        let yaml = include_str!("../../../configs/sft_text.yaml");
        let mut loaded = load_text(yaml).unwrap_or_else(|report| panic!("{report}"));
        let before = fingerprint(&loaded);
        loaded.composed["train"]["lr"] = 7.into();
        let after = fingerprint(&loaded);
        let differing = before.split(' ').zip(after.split(' ')).skip(1).filter(|(one, other)| one != other);
        let names: Vec<&str> = differing.filter_map(|(one, _)| one.split('=').next()).collect();
        assert_eq!(names, ["train.lr"]);
        assert!(before.len() < 32 << 10 && before[..16] != after[..16]);
    }
}
