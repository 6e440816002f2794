//! This benchmark measures the overhead of coordinating a pool of encoders (B4): calibrated sleeps replace computing, so 32
//! encoders run on two cores. `cargo bench -p loongforge-actors --bench pool_scaling [-- MOST]`
//!
//! Every encoder has as many samples a step (weak scaling); service times vary with the picture and by 5 % at random. Rates are
//! of patches, since the samples of a short run are dearer or cheaper than those of a long one. The foundation takes 0.8 times
//! as long as the encoders do, pack by pack. *ahead* works on the steps that follow while the
//! foundation computes (frozen encoders); *within a step* begins a step when the one before is committed;
//! *batch-synchronous* has the foundation wait besides until the whole batch is encoded, as frameworks do that go through
//! their pools one after the other. All are the same program. *slow* has one encoder in four ten times slower; its ideal
//! is 3.1 quarters of the rate.

#[path = "../tests/actors/fake/mod.rs"]
mod fake;

use fake::{Script, engine, spec};
use loongforge_actors::{Assignment, EngineFactory, Observer, Publisher, RunSpec, StopOn, run_in_process};
use loongforge_core::config::{BadSamples, SavePoints};
use loongforge_core::message::SkippedSample;
use loongforge_core::schedule::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Samples of a step for each encoder; some 13 patches each.
const SAMPLES: usize = 12;
/// The time of a patch.
const PACE: Duration = Duration::from_micros(500);
const STEPS: u64 = 60;
/// Steps that are not timed: the run's beginning, and the end, for which nobody works ahead.
const SKIPPED: usize = 10;

#[derive(Clone, Copy, PartialEq)]
enum Schedule {
    Ahead,
    WithinStep,
    BatchSynchronous,
}

/// The times at which steps ended, with their packs.
struct Clock(Arc<Mutex<Vec<(Instant, usize)>>>);

impl Observer for Clock {
    fn step(&mut self, summary: &StepSummary) {
        self.0.lock().expect("nobody panics").push((Instant::now(), summary.num_packs));
    }

    fn bad(&mut self, _: &[SkippedSample]) {}

    fn publisher(&mut self) -> Publisher {
        Box::new(|draft| Ok(draft.dir.clone()))
    }
}

/// Patches of the samples of these steps, in their order.
fn patches(steps: std::ops::Range<usize>, samples_per_step: usize) -> u64 {
    let good = (0..).filter(|&position| !fake::is_bad(position)).map(|position| fake::sample(position, 1));
    let timed = good.skip(steps.start * samples_per_step).take(steps.len() * samples_per_step);
    timed.flat_map(|sample| sample.items).map(|item| item.grid.num_cells() as u64).sum()
}

/// Patches a second, and packs of a step. `pause`: of the foundation, for a pack.
fn run(encoders: u32, schedule: Schedule, paces: Vec<Duration>, pause: Duration) -> (f64, usize) {
    let prefetch_steps = if schedule == Schedule::Ahead { 4 } else { 0 };
    let dir = tempfile::tempdir().expect("a folder");
    let pools = PoolSizes::of_roles(1, encoders, 1);
    let base = spec(&pools, STEPS);
    let mut plan = PlanSpec {
        pack: PackLimits::tokens(256),
        credits: EdgeCredits { pixels: 1 << 24, tokens: 1 << 24, features: 1 << 24 },
        ..base.plan.clone()
    };
    plan.encoders.iter_mut().for_each(|pool| pool.num_lanes = pool.replicas);
    let coordinator = CoordinatorSpec {
        plan,
        save_points: SavePoints { every_steps: 0, at_end: true },
        global_batch_size: SAMPLES * encoders as usize,
        bad_samples: BadSamples { max_fraction: 1.0, max_consecutive: 1000 },
        too_long: Default::default(),
        prefetch_steps,
        encoders: fake::rules(&pools, true, false),
        fixed_lanes: false,
        ..base
    };
    let times = Arc::new(Mutex::new(Vec::new()));
    let (_sender, stop) = flume::bounded(1);
    let spec = RunSpec {
        queue: 64,
        stop: StopOn::Channel(stop),
        lease: Duration::from_secs(60),
        ..fake::run_spec(dir.path(), coordinator)
    };
    let whole_steps = schedule == Schedule::BatchSynchronous;
    let script = Script { frozen: true, paces, pause, jitter: 0.05, whole_steps, ..Script::default() };
    let make_engine = |assignment: Assignment| -> EngineFactory {
        let script = script.clone();
        Box::new(move || Ok(engine(assignment.me, assignment.pools.data, &script)))
    };
    run_in_process(spec, make_engine, Box::new(Clock(times.clone()))).expect("nothing fails");
    let times = times.lock().expect("nobody panics");
    let timed = &times[SKIPPED..times.len() - SKIPPED];
    let patches = patches(SKIPPED + 1..times.len() - SKIPPED, SAMPLES * encoders as usize);
    (patches as f64 / (timed[timed.len() - 1].0 - timed[0].0).as_secs_f64(), timed[0].1)
}

fn rate(encoders: u32, schedule: Schedule, paces: Vec<Duration>) -> f64 {
    let equal = vec![PACE; encoders as usize];
    let (alone, packs) = run(encoders, Schedule::Ahead, equal, Duration::ZERO);
    // Some 13 patches a sample.
    let step = 13.0 * SAMPLES as f64 * f64::from(encoders) / alone;
    run(encoders, schedule, paces, Duration::from_secs_f64(0.8 * step / packs as f64)).0
}

fn main() {
    // Cargo adds `--bench`.
    let most = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(32);
    let equal = |encoders: u32| vec![PACE; encoders as usize];
    let one = rate(1, Schedule::Ahead, equal(1));
    println!("1 encoder: {one:.0} patches/s, of {:.0} that it could at most", PACE.as_secs_f64().recip());
    for encoders in [2, 4, 8, 16, 32, 64, 128].into_iter().filter(|&encoders| encoders <= most) {
        let [ahead, within, synchronous] = [Schedule::Ahead, Schedule::WithinStep, Schedule::BatchSynchronous]
            .map(|schedule| rate(encoders, schedule, equal(encoders)));
        println!(
            "{encoders} encoders: ahead {ahead:.0} patches/s, {:.3} of {encoders} times one; within a step {within:.0}, {:.2} x; batch-synchronous {synchronous:.0}, {:.2} x",
            ahead / (one * f64::from(encoders)),
            ahead / within,
            ahead / synchronous,
        );
    }
    for encoders in [4, 16] {
        let paces = (0..encoders).map(|index| if index % 4 == 1 { 10 * PACE } else { PACE }).collect();
        let [all, slow] = [equal(encoders), paces].map(|paces| rate(encoders, Schedule::Ahead, paces));
        println!("{encoders} encoders, every fourth ten times slower: {:.3} of the rate (ideal 0.775)", slow / all);
    }
}
