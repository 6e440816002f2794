//! Measures the cost of scheduling: planning alone, and the whole coordinator driven by events as fast as it takes them.
//! `cargo bench -p loongforge-core --bench schedule -- [STEP_MS]`; shares are of a step of STEP_MS milliseconds.

use loongforge_core::config::{self, RunConfig};
use loongforge_core::data::digits::{Digits, MODEL, compose, write_model};
use loongforge_core::data::{Dataset, Processor, ProcessorOptions};
use loongforge_core::message::{
    ActorId, Command, Commit, Epoch, Event, Role, SampleId, SampleMeta, StepId, StepReport, Timings,
};
use loongforge_core::schedule::{
    Batch, ByTower, Coordinator, CoordinatorSpec, Input, ModelShape, Output, PlanSpec, plan_step,
};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// A quick-start step on two cores, roughly; `benches/step_time.py` measures it.
const STEP_MS: f64 = 70.0;
/// Samples, and replicas of each of the two pools.
const SIZES: [(usize, u32); 3] = [(32, 1), (512, 8), (8192, 64)];
const ROUNDS: usize = 5;
const PLANS: u64 = 40;
const STEPS: u64 = 500;

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    // Cargo adds `--bench`.
    let step_ms = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(STEP_MS);
    let show = |what: &str, mut rounds: Vec<f64>| {
        rounds.sort_by(f64::total_cmp);
        let [least, median, most] = [0, rounds.len() / 2, rounds.len() - 1].map(|at| rounds[at]);
        let share = median / (step_ms * 1e3) * 100.0;
        println!("{what:36} {median:8.1} µs ({least:.1} to {most:.1})  {share:7.3} % of {step_ms} ms");
    };
    let (sizes, rounds, steps) = if quick() { (&SIZES[..1], 1, 20) } else { (&SIZES[..], ROUNDS, STEPS) };
    let num_samples = sizes.iter().map(|(samples, _)| *samples).max().unwrap_or(0);
    let folder = tempfile::tempdir().expect("a folder");
    write_model(&folder.path().join("model"), &MODEL).expect("the quick start's model");
    compose(&folder.path().join("digits"), &Digits { seed: 1, num_train: num_samples, num_held_out: 1 })
        .expect("pictures");
    let mut config = quick_start(folder.path());
    let samples = measure(&config, num_samples);
    let spec = CoordinatorSpec::new(&config, shape(), None);
    let what = format!("coordinator, {} samples, 1 + 1", spec.global_batch_size);
    show(&what, (0..rounds).map(|_| coordinate(&spec, &samples, steps)).collect());
    for &(num_samples, replicas) in sizes {
        config.pools.encoder.replicas = replicas as usize;
        config.pools.foundation.replicas = replicas as usize;
        let spec = PlanSpec::new(&config, shape());
        let what = format!("plan_step, {num_samples} samples, {replicas} + {replicas}");
        show(&what, (0..rounds).map(|_| plan(&spec, &samples[..num_samples])).collect());
    }
}

/// Microseconds of one plan.
fn plan(spec: &PlanSpec, samples: &[SampleMeta]) -> f64 {
    let mut batches: Vec<Batch> = (0..PLANS).map(|_| Batch::Samples(samples.to_vec())).collect();
    let start = Instant::now();
    for step in 0..PLANS {
        let batch = batches.pop().expect("a batch for each plan");
        let plan = plan_step(spec, StepId(step), batch, SampleId(samples.len() as u64)).expect("a plan");
        assert_eq!(plan.num_items(), samples.len());
    }
    start.elapsed().as_secs_f64() * 1e6 / PLANS as f64
}

/// Microseconds a step inside `Coordinator::on`, everything included: intake, plans, decisions, summaries.
fn coordinate(spec: &CoordinatorSpec, samples: &[SampleMeta], steps: u64) -> f64 {
    let spec = CoordinatorSpec { steps, ..spec.clone() };
    let mut inputs: VecDeque<Input> = spec.pools.actors().map(|actor| Input::Event(actor, Event::Ready)).collect();
    let mut coordinator = Coordinator::new(spec);
    let mut engines = Engines { samples, planned: BTreeMap::new() };
    let (mut inside, mut num_steps) = (Duration::ZERO, 0);
    while let Some(input) = inputs.pop_front() {
        let start = Instant::now();
        let outputs = coordinator.on(input);
        inside += start.elapsed();
        for output in outputs {
            match output {
                Output::Send(actor, command) => {
                    let events = engines.answers(actor, command);
                    inputs.extend(events.into_iter().map(|event| Input::Event(actor, event)));
                }
                Output::Step(_) => num_steps += 1,
                Output::Publish(draft) => inputs.push_back(Input::Published(draft.step, draft.to)),
                Output::Finished(result) => drop(result.expect("a run without failures")),
                _ => {}
            }
        }
    }
    assert_eq!(num_steps, steps, "every step is summed up");
    inside.as_secs_f64() * 1e6 / steps as f64
}

/// Engines that do at once what they are told, each one step after the other.
struct Engines<'a> {
    samples: &'a [SampleMeta],
    /// Steps that are planned and not ended, the first of them in work.
    planned: BTreeMap<ActorId, VecDeque<StepId>>,
}

impl Engines<'_> {
    /// Returns an engine's answers to a command.
    fn answers(&mut self, actor: ActorId, command: Command) -> Vec<Event> {
        let measure = |position: u64| {
            let sample = self.samples[position as usize % self.samples.len()].clone();
            SampleMeta { id: SampleId(position), ..sample }
        };
        match command {
            Command::Read { from, until } => {
                vec![Event::Measured { samples: (from.0..until.0).map(measure).collect(), bad: Vec::new() }]
            }
            Command::ReadAgain { .. } => unreachable!("nothing is resumed"),
            Command::Plan(_) if actor.role == Role::Data => Vec::new(),
            Command::Plan(plan) => {
                let planned = self.planned.entry(actor).or_default();
                planned.push_back(plan.step);
                if planned.len() == 1 { vec![done(actor, plan.step)] } else { Vec::new() }
            }
            Command::Reduce { step, epoch } => vec![reduced(step, epoch, 0.0)],
            Command::Commit(Commit { step, .. }) | Command::Abort { step } => {
                let planned = self.planned.entry(actor).or_default();
                planned.pop_front();
                let next = planned.front().map(|&next| done(actor, next));
                std::iter::once(Event::Applied { step }).chain(next).collect()
            }
            Command::Save { step, to, .. } => vec![Event::Saved { step, to, files: Vec::new() }],
            Command::Stop => vec![Event::Stopped],
            other => unreachable!("{other:?} is for encoders that come and go"),
        }
    }
}

/// Returns the event of an engine whose work of a step is done: an encoder waits to be told to reduce.
fn done(actor: ActorId, step: StepId) -> Event {
    match actor.role {
        Role::Encoder => Event::Finished { step, epoch: Epoch(0) },
        _ => reduced(step, Epoch(0), 1.0),
    }
}

fn reduced(step: StepId, epoch: Epoch, loss: f64) -> Event {
    let timings = Timings { busy: 0.05, idle: 0.02, ..Timings::default() };
    Event::Reduced(StepReport { step, epoch, loss, grad_square_sum: 1.0, timings, ..StepReport::default() })
}

/// Returns the quick start's settings over data in `folder`.
fn quick_start(folder: &Path) -> RunConfig {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/quickstart.yaml");
    let at = |name| folder.join(name).display().to_string();
    let overrides = [
        format!("model.load={}", at("model")),
        format!("data.train.0.path={}", at("digits/train.jsonl")),
        "eval=null".to_owned(),
    ];
    config::load(&file, &overrides, std::iter::empty()).expect("the quick start's file").config
}

/// Returns the shape of the quick start's model, in float32: patches hold two equal frames, features the levels of
/// DeepStack.
fn shape() -> ModelShape {
    let values_per_patch = 3 * 2 * MODEL.patch_size * MODEL.patch_size;
    let levels = 1 + MODEL.deepstack_visual_indexes.len();
    ModelShape {
        towers: [loongforge_core::message::Tower::Vision].into_iter().collect(),
        hidden_size: MODEL.hidden_size as u64,
        even_length: 12 * MODEL.hidden_size as u64,
        bytes_per_patch: ByTower::all(4 * values_per_patch as u64),
        bytes_per_feature: ByTower::all((4 * levels * MODEL.hidden_size) as u64),
        flow: None,
    }
}

/// Measures of the quick start's pictures, in the order in which a run reads them.
fn measure(config: &RunConfig, num_samples: usize) -> Vec<SampleMeta> {
    let model = config.model.load.as_ref().expect("it is set").as_path();
    let json = std::fs::read_to_string(model.join("config.json")).expect("it was written");
    let json = serde_json::from_str(&json).expect("JSON");
    let options = ProcessorOptions::new(&config.data, &config.train);
    let processor = Processor::open(model, &json, &options).expect("a processor");
    let dataset = Dataset::open(&config.data, processor, 1).expect("the pictures just made");
    (0..num_samples as u64).map(|position| dataset.sample(position).expect("good samples").meta).collect()
}
