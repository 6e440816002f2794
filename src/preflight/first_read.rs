//! Asks whether a run would end among the first samples that it reads. Where many of those that were looked at are bad, what a data set's
//! first samples are like does not tell how soon: a run reads in an order of its own, and judges as it reads.

use loongforge_core::config::RunConfig;
use loongforge_core::data::tools::{Survey, default_jobs, for_each_ordered};
use loongforge_core::data::{BadSample, Dataset};
use loongforge_core::observe::safe;
use loongforge_core::schedule::{MIN_SEEN, Skipped};

/// Positions of the run's order that are read, at most: a fraction is judged from [`MIN_SEEN`] on.
const MOST: u64 = 2 * MIN_SEEN;

/// The number of samples that a run would read before it ends, and why it would.
#[derive(Debug, thiserror::Error)]
#[error("data.train: the run would end after the first {read} samples that it reads: {why}")]
pub struct FirstRead {
    pub read: u64,
    pub why: String,
}

/// The reason why the reading ends: the run would, or it has what it needs.
enum End {
    Refused(FirstRead),
    Enough,
}

/// Reads what the run reads first, by its own rule, where of a set more samples are bad than it allows. A run uses at least `wanted`.
///
/// # Errors
/// The run would end.
pub(super) fn expect_first_read(
    config: &RunConfig,
    dataset: &Dataset,
    found: &[Survey],
    wanted: u64,
) -> Result<(), FirstRead> {
    let limit = config.data.on_bad_sample.max_fraction;
    let is_over = |survey: &Survey| survey.bad.len() as f64 > limit * survey.seen as f64;
    // Packs that are made before a run are judged when all of them are there.
    if config.packs_first() || !found.iter().any(is_over) {
        return Ok(());
    }
    let mut skipped = Skipped::new(config.data.on_bad_sample, config.data.pack.too_long);
    let mut used = 0;
    let name = |bad: &BadSample| safe(&bad.to_string());
    let judge = |position: u64, sample: Result<(), BadSample>| {
        if used >= wanted {
            return Err(End::Enough);
        }
        let verdict = match &sample {
            Ok(()) => {
                used += 1;
                skipped.used();
                Ok(())
            }
            Err(long) if long.too_long => skipped.too_long(&name(long)),
            Err(bad) => skipped.bad(&name(bad)),
        };
        verdict.map_err(|why| End::Refused(FirstRead { read: position + 1, why }))
    };
    let work = |position| dataset.sample(position).map(drop);
    match for_each_ordered(default_jobs(), 0..MOST, work, judge) {
        Err(End::Refused(problem)) => Err(problem),
        Err(End::Enough) | Ok(()) => Ok(()),
    }
}
