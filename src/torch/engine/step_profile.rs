//! `watch.profile`: records the operators of a few steps, and writes them as a trace and a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use loongforge_core::config::RunConfig;
use loongforge_core::message::{ActorId, StepId};
use tch::Device;

use crate::native::{Profile, Profiler, Spent, is_dry_run};

/// The table has so many rows, those that took longest.
const ROWS: usize = 40;

/// Records some steps of an actor, with everything that its process does meanwhile. A process with several actors records
/// once: those steps of the first one that comes to them.
pub struct StepProfile {
    me: ActorId,
    device: Device,
    folder: PathBuf,
    /// The first step, from 0, and the one after the last.
    steps: (u64, u64),
    state: State,
}

enum State {
    /// No step is applied yet.
    New,
    /// The first step is yet to come.
    Waiting,
    Recording(Profiler),
    Over,
}

impl StepProfile {
    /// Returns `None` without the key, or with a warning where the run goes on from `first_step`, after the first one to record.
    pub fn new(config: &RunConfig, me: ActorId, device: Device, first_step: StepId) -> Option<StepProfile> {
        let profile = config.watch.profile.as_ref().filter(|_| !is_dry_run())?;
        let first = profile.first - 1;
        if first <= first_step.0 {
            tracing::warn!(
                "{me}: no profile: it begins with step {}, but step {} was to be recorded first",
                first_step.0 + 1,
                first + 1
            );
            return None;
        }
        let folder = config.run.dir.join("profile");
        Some(StepProfile { me, device, folder, steps: (first, first + profile.steps), state: State::New })
    }

    /// Takes note that `step` is applied. A profile that cannot be made is a warning: the run goes on.
    pub fn after(&mut self, step: StepId) {
        let next = step.0 + 1;
        let (first, end) = self.steps;
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::New if next > first => {
                self.warn(format_args!("it joined after step {} had begun", first + 1));
                State::Over
            }
            State::New | State::Waiting if next == first => self.start(),
            State::New | State::Waiting => State::Waiting,
            State::Recording(profiler) if next == end => {
                self.write(profiler).unwrap_or_else(|error| self.warn(format_args!("{error}")));
                State::Over
            }
            state => state,
        };
    }

    fn warn(&self, why: std::fmt::Arguments<'_>) {
        tracing::warn!("{}: no profile: {why}", self.me);
    }

    fn start(&self) -> State {
        self.wait();
        // Kernels of all actors of the process, wherever this one computes.
        match Profiler::start(tch::Cuda::is_available()) {
            Ok(Some(profiler)) => State::Recording(profiler),
            // Another actor's is of the whole process.
            Ok(None) => State::Over,
            Err(error) => {
                self.warn(format_args!("{error}"));
                State::Over
            }
        }
    }

    fn write(&self, profiler: Profiler) -> Result<(), String> {
        self.wait();
        let name = format!("{}-step-{}", self.me.to_string().replace('/', "-"), self.steps.0 + 1);
        let [trace, table] = ["json", "txt"].map(|ending| self.folder.join(format!("{name}.{ending}")));
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        fs::create_dir_all(&self.folder).map_err(|error| failed(&self.folder, error))?;
        let profile = profiler.stop(&trace).map_err(|error| error.to_string())?;
        if self.device.is_cuda() && profile.kernels.is_empty() {
            tracing::warn!("{}: its profile has no kernels: libtorch could not record those of the GPU", self.me);
        }
        fs::write(&table, self.table(&profile)).map_err(|error| failed(&table, error))?;
        tracing::info!("profile {} and {}", table.display(), trace.display());
        Ok(())
    }

    /// Waits until the GPU has done what was asked of it.
    fn wait(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    fn table(&self, profile: &Profile) -> String {
        let (first, end) = self.steps;
        let mut text =
            format!("Steps {} to {end} of {}, with everything that its process did meanwhile.\n", first + 1, self.me);
        if !profile.kernels.is_empty() {
            text += &rows("kernels and copies of GPUs", &profile.kernels, true);
        }
        text + &rows("operators of all threads, each including those that it calls", &profile.operators, false)
    }
}

impl Drop for StepProfile {
    fn drop(&mut self) {
        if matches!(self.state, State::Waiting | State::Recording(_)) {
            self.warn(format_args!("it ended before step {} was applied", self.steps.1));
        }
    }
}

/// Makes one part of the table. With `is_exclusive` no time is counted twice, so that each row has a share of all.
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
