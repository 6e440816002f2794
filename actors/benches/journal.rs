//! This benchmark measures the cost of the scheduler's journal without processes: bytes and microseconds per step, the time that the
//! next scheduler takes to read it, and the cost of a step that is forced to the disk. `cargo bench -p loongforge-actors
//! --bench journal [-- DIR]`
//!
//! Engines that take no time answer everything at once, encoders with a word before each unit, as they do.

#[path = "../tests/actors/fake/mod.rs"]
mod fake;

use loongforge_actors::effect::Effect;
use loongforge_actors::journal::{Journal, Record};
use loongforge_actors::launch::JournalSpec;
use loongforge_actors::scheduler::Scheduler;
use loongforge_actors::{Observer, Publisher};
use loongforge_core::config::{BadSamples, SavePoints};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Name, pools, samples and steps. The first are those of the quick start.
const SIZES: [(&str, [u32; 3], usize, u64); 2] =
    [("1 + 1 actors, 32 samples", [1, 1, 1], 32, 4000), ("64 + 8 actors, 2048 samples", [4, 64, 8], 2048, 100)];

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

struct Nobody;

impl Observer for Nobody {
    fn step(&mut self, _: &StepSummary) {}

    fn bad(&mut self, _: &[SkippedSample]) {}

    fn publisher(&mut self) -> Publisher {
        Box::new(|draft| Ok(draft.dir.clone()))
    }
}

fn main() {
    let dir = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = tempfile::tempdir_in(dir.as_deref().unwrap_or(".")).expect("a folder");
    let path = folder.path().join("journal");
    for &(name, [data, encoders, foundations], samples, steps) in if quick() { &SIZES[..1] } else { &SIZES[..] } {
        let pools = PoolSizes::of_roles(data, encoders, foundations);
        let steps = if quick() { 100 } else { steps };
        let of = |cut_after| conduct(spec(&pools, samples, steps), &path, cut_after);
        let forced = of(u64::MAX);
        let (again, whole) = (read(spec(&pools, samples, steps), &path), size(&path));
        println!("{name}");
        println!("  kept whole: {:.0} bytes and {forced:.0} µs a step", whole / steps as f64);
        println!("  100 000 steps are read again in {:.1} s", again * 1e5 / steps as f64);
        let cut = of(1 << 16);
        println!("  cut: {cut:.0} µs a step, {:.0} KiB of {:.0} at its end", size(&path) / 1024.0, whole / 1024.0);
        of(JournalSpec::CUT_AFTER);
        let again = read(spec(&pools, samples, steps), &path);
        println!("  as a run cuts it, {:.0} KiB are read again in {:.0} ms", size(&path) / 1024.0, again * 1e3);
    }
    let mut journal = Journal::create(&path).expect("nobody writes it");
    let mut times: Vec<f64> = (0..300).map(|life| force(&mut journal, life)).collect();
    times.sort_by(f64::total_cmp);
    println!("to force one record to the disk: {:.0} µs; one in a hundred {:.0} µs", times[150], times[297]);
}

fn size(path: &Path) -> f64 {
    std::fs::metadata(path).expect("it was written").len() as f64
}

fn force(journal: &mut Journal, life: u64) -> f64 {
    journal.append(&Record::Life(life));
    let start = Instant::now();
    journal.sync();
    start.elapsed().as_secs_f64() * 1e6
}

fn spec(pools: &PoolSizes, samples: usize, steps: u64) -> CoordinatorSpec {
    let base = fake::spec(pools, steps);
    let mut plan = PlanSpec {
        pack: PackLimits::tokens(384),
        credits: EdgeCredits { pixels: 1 << 30, tokens: 1 << 30, features: 1 << 30 },
        ..base.plan.clone()
    };
    plan.encoders.iter_mut().for_each(|pool| pool.num_lanes = pool.replicas);
    CoordinatorSpec {
        plan,
        global_batch_size: samples,
        save_points: SavePoints { every_steps: 0, at_end: true },
        encoders: fake::rules(pools, true, true),
        bad_samples: BadSamples { max_fraction: 1.0, max_consecutive: 1000 },
        too_long: Default::default(),
        ..base
    }
}

/// Measures a whole run, in microseconds a step.
fn conduct(spec: CoordinatorSpec, path: &Path, cut_after: u64) -> f64 {
    let (pools, steps) = (spec.pools.clone(), spec.steps);
    let journal = Rc::new(RefCell::new(Journal::create(path).expect("nobody writes it")));
    let mut scheduler = Scheduler::new(Coordinator::new(spec), Box::new(Nobody)).with_journal(Some(journal), cut_after);
    let mut inputs: VecDeque<Input> = pools.actors().map(|actor| Input::Event(actor, Event::Ready)).collect();
    let start = Instant::now();
    while let Some(input) = inputs.pop_front() {
        for effect in scheduler.on(input) {
            match effect {
                Effect::Send(actor, command) => {
                    let said = answers(actor, command, pools.data);
                    inputs.extend(said.into_iter().map(|event| Input::Event(actor, event)));
                }
                Effect::Publish(draft) => inputs.push_back(Input::Published(draft.step, draft.to)),
                Effect::Finished(result) => drop(result.expect("nothing fails")),
                other => panic!("{other:?} in a run in which nothing happens"),
            }
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / steps as f64
}

/// Seconds until a coordinator knows all that is in the journal.
fn read(spec: CoordinatorSpec, path: &Path) -> f64 {
    let start = Instant::now();
    let (_, records) = Journal::open(path).expect("it was written");
    let restored = records.iter().rev().find_map(|record| match record {
        Record::Snapshot(snapshot) => Some(Coordinator::restore(&snapshot.coordinator, None).expect("it is whole")),
        _ => None,
    });
    let mut coordinator = restored.unwrap_or_else(|| Coordinator::new(spec));
    for record in records {
        if let Record::Input(input) = record {
            coordinator.on(input);
        }
    }
    start.elapsed().as_secs_f64()
}

/// Returns an engine's answers to a command, at once.
fn answers(me: ActorId, command: Command, num_data: u32) -> Vec<Event> {
    let timings = Timings { busy: 0.0512, idle: 0.0213, units: 0.0402, packs: 0.0312, ..Timings::default() };
    let report = |step, epoch| {
        let grad_square_sum = 1.25;
        let loss = if me.role == Role::Foundation { 1.5 } else { 0.0 };
        Event::Reduced(StepReport { step, epoch, loss, grad_square_sum, timings, ..StepReport::default() })
    };
    match (me.role, command) {
        (Role::Data, Command::Read { from, until }) => {
            let mine = (from.0..until.0).filter(|position| position % u64::from(num_data) == u64::from(me.index));
            let (bad, good): (Vec<u64>, Vec<u64>) = mine.partition(|&position| fake::is_bad(position));
            let bad = bad.into_iter().map(|position| SkippedSample {
                id: SampleId(position),
                source: format!("train.jsonl:{position}"),
                reason: "torn".into(),
                too_long: false,
            });
            let samples = good.into_iter().map(|position| fake::sample(position, num_data)).collect();
            vec![Event::Measured { samples, bad: bad.collect() }]
        }
        (Role::Encoder, Command::Plan(plan)) => {
            let units = plan.units.iter().filter(|unit| unit.encoder == Replica::new(me.pool, me.index));
            let at = units.flat_map(|unit| [Event::At { unit: Some(unit.id) }, Event::At { unit: None }]);
            at.chain([Event::Finished { step: plan.step, epoch: Epoch(0) }]).collect()
        }
        (Role::Encoder, Command::Reduce { step, epoch }) => vec![report(step, epoch)],
        (Role::Foundation, Command::Plan(plan)) => vec![report(plan.step, Epoch(0))],
        (_, Command::Commit(Commit { step, .. }) | Command::Abort { step }) if me.role != Role::Data => {
            vec![Event::Applied { step }]
        }
        (_, Command::Save { step, to, .. }) => vec![Event::Saved { step, to, files: Vec::new() }],
        (_, Command::Stop) => vec![Event::Stopped],
        _ => Vec::new(),
    }
}
