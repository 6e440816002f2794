//! Makes packs and shows a progress bar.

use loongforge_actors::launch::is_takeover;
use loongforge_core::data::tools::{PackJob, PackProgress, Packed, Share};
use loongforge_core::data::{DataError, Dataset};
use loongforge_core::engine::fault;
use loongforge_core::observe::{Bar, Console, safe};
use std::path::Path;

/// The packs, and the first sample that is bad.
pub struct Packing {
    pub packed: Packed,
    pub first_bad: Option<String>,
}

impl Packing {
    /// Makes the packs of a share on `jobs` threads.
    ///
    /// # Errors
    /// Fails as [`PackJob::run`] does.
    pub fn run(
        job: &PackJob,
        dataset: &Dataset,
        out: &Path,
        share: Share,
        jobs: usize,
        console: &Console,
    ) -> Result<Self, DataError> {
        let (mut bar, mut first_bad): (Option<Bar>, Option<String>) = (None, None);
        let packed = job.run(dataset, out, share, jobs, |progress| {
            let (bad, point) = match progress {
                PackProgress::Measures(total) => {
                    bar = Some(Bar::start(console, "measured", total));
                    return;
                }
                PackProgress::Writes(total) => {
                    bar = Some(Bar::start(console, "packs", total));
                    return;
                }
                PackProgress::Measured(bad) => (bad, "pack_measured"),
                PackProgress::Written(bad) => (bad, "pack_written"),
            };
            // One that follows another comes to the same points again.
            if !is_takeover() {
                fault::of_packs(point);
            }
            let bad = bad.filter(|bad| !bad.too_long).map(|bad| safe(&bad.to_string()));
            if let Some(bar) = &bar {
                bar.tick();
                bad.iter().for_each(|bad| bar.say(format!("bad: {bad}")));
            }
            if first_bad.is_none() {
                first_bad = bad;
            }
        })?;
        Ok(Self { packed, first_bad })
    }
}
