//! Data sets that no run can train on, and records that are no sample of theirs.

use std::path::Path;

use crate::data::error::{BadSample, DataError};
use crate::data::source::Source;

/// The reason why packs are not made of a data set that holds packs.
pub const PACKED_ALREADY: &str =
    "is already packed, but packs are made of samples: leave it out, or train on it as it is with data.pack.mode step";

/// # Errors
/// The data set has no samples.
pub(super) fn expect_samples(source: Source) -> Result<Source, DataError> {
    match source.is_empty() {
        true => Err(DataError::Empty { path: source.name().to_owned() }),
        false => Ok(source),
    }
}

/// # Errors
/// There is no data set.
pub(super) fn expect_sources(sources: &[Source]) -> Result<(), DataError> {
    if sources.is_empty() { Err(DataError::NoSource) } else { Ok(()) }
}

/// # Errors
/// The data set of this name holds packs, of which no others can be made.
pub(super) fn expect_unpacked(packed: Option<&Path>) -> Result<(), DataError> {
    packed.map_or(Ok(()), |name| Err(DataError::file(name, PACKED_ALREADY)))
}

/// Returns the refusal of a record that is one of a group of answers, and has no label.
pub(super) fn no_labeled_answer(source: &Source, index: u64) -> BadSample {
    source.bad(index as usize, "is not a labeled answer".to_owned())
}
