//! Tells which fixture a folder has.

use std::path::Path;

use tch::Kind;

use super::fixture::{FixtureError, ReferenceFixture, json};
use super::{bart, groot, policy, wam, xvla};

/// Returns the fixture of a robot policy or of Florence-2 in `folder`, with parameters of `kind`; `None`: one of another model.
///
/// # Errors
/// A file of the fixture cannot be read, or lacks something.
pub fn open_fixture(folder: &Path, kind: Kind) -> Result<Option<Box<dyn ReferenceFixture>>, FixtureError> {
    let config = json(&folder.join("config.json"))?;
    let of = |key: &str| config[key].as_str().unwrap_or_default();
    Ok(Some(match (of("type"), of("model_type")) {
        ("pi0" | "pi05" | "smolvla", _) => Box::new(policy::fixture::Fixture::read(folder, kind)?),
        ("pi0_fast", _) => Box::new(policy::writing_fixture::Fixture::read(folder, kind)?),
        ("xvla", _) => Box::new(xvla::fixture::Fixture::read(folder, kind)?),
        ("fastwam", _) => Box::new(wam::fixture::Fixture::read(folder, kind)?),
        (_, "Gr00tN1d6" | "Gr00tN1d7") => Box::new(groot::fixture::Fixture::read(folder, kind)?),
        (_, "florence2") => Box::new(bart::fixture::Fixture::read(folder, kind)?),
        _ => return Ok(None),
    }))
}
