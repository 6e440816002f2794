//! `watch.profile`: what the operators of a few steps took, as a trace and a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use loongforge_core::config::RunConfig;
use loongforge_core::message::{ActorId, StepId};
use tch::Device;

use crate::native::{Profile, Profiler, Spent, is_dry_run};

/// The longest ones in the table.
const ROWS: usize = 40;

/// Records some steps of an actor, with everything that its process does meanwhile. A process with several actors records
/// once: those steps of the first one that comes to them.
pub struct StepProfile {
    me: ActorId,
    device: Device,
    folder: PathBuf,
    /// The first step, from 0, and the one after the last.
    steps: (u64, u64),
    running: Option<Profiler>,
}

impl StepProfile {
    /// `None` without the key. `first_step`: where the run begins or goes on.
    pub fn new(config: &RunConfig, me: ActorId, device: Device, first_step: StepId) -> Option<StepProfile> {
        let profile = config.watch.profile.as_ref().filter(|_| !is_dry_run())?;
        let first = profile.first - 1;
        if first <= first_step.0 {
            tracing::warn!(
                "`watch.profile.first` is {}, and this start of the run begins with step {}: nothing is recorded",
                profile.first,
                first_step.0 + 1
            );
            return None;
        }
        let folder = config.run.dir.join("profile");
        Some(StepProfile { me, device, folder, steps: (first, first + profile.steps), running: None })
    }

    /// `step` is applied. A profile that cannot be made is a warning: the run goes on.
    pub fn after(&mut self, step: StepId) {
        let next = step.0 + 1;
        let done = if next == self.steps.0 {
            self.start()
        } else if next == self.steps.1 {
            self.running.take().map_or(Ok(()), |running| self.write(running))
        } else {
            Ok(())
        };
        if let Err(error) = done {
            tracing::warn!("{}: no profile of steps was made: {error}", self.me);
        }
    }

    fn start(&mut self) -> Result<(), String> {
        self.wait();
        self.running = Profiler::start(self.device.is_cuda()).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn write(&self, running: Profiler) -> Result<(), String> {
        self.wait();
        let name = format!("{}-step-{}", self.me.to_string().replace('/', "-"), self.steps.0 + 1);
        let [trace, table] = ["json", "txt"].map(|ending| self.folder.join(format!("{name}.{ending}")));
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        fs::create_dir_all(&self.folder).map_err(|error| failed(&self.folder, error))?;
        let profile = running.stop(&trace).map_err(|error| error.to_string())?;
        fs::write(&table, self.table(&profile)).map_err(|error| failed(&table, error))?;
        tracing::info!("profile {} and {}", table.display(), trace.display());
        Ok(())
    }

    /// Until the GPU has done what was asked of it.
    fn wait(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    fn table(&self, profile: &Profile) -> String {
        let (first, end) = self.steps;
        let mut text =
            format!("Steps {} to {end} of {}, with all that its process did meanwhile.\n", first + 1, self.me);
        if !profile.kernels.is_empty() {
            text += &rows("kernels and copies of GPUs", &profile.kernels, true);
        }
        text + &rows("operators of all threads, each with those that it calls", &profile.operators, false)
    }
}

/// `is_exclusive`: no time is counted twice, so that each has a share of all.
fn rows(title: &str, spent: &BTreeMap<String, Spent>, is_exclusive: bool) -> String {
    let mut rows: Vec<(&String, &Spent)> = spent.iter().collect();
    rows.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.nanoseconds));
    let all: u64 = spent.values().map(|spent| spent.nanoseconds).sum();
    let mut text =
        format!("\n{title}\n{:>10} {:>12} {:>7}  name\n", "calls", "ms", if is_exclusive { "share" } else { "" });
    for (name, spent) in rows.into_iter().take(ROWS) {
        let (ms, share) = (spent.nanoseconds as f64 / 1e6, 100.0 * spent.nanoseconds as f64 / all.max(1) as f64);
        let share = if is_exclusive { format!("{share:.1}%") } else { String::new() };
        let _ = writeln!(text, "{:>10} {ms:>12.3} {share:>7}  {name}", spent.calls);
    }
    text
}
