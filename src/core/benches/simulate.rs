//! Describes how fast a run is simulated: many ranks, every step planned by the real coordinator.
//! `cargo bench -p loongforge-core --bench simulate -- [STEPS]`

use loongforge_core::config::{BadSamples, SavePoints, Schedule};
use loongforge_core::message::{PoolName, StepId, Tower};
use loongforge_core::schedule::{
    ByTower, CoordinatorSpec, CostModel, EdgeCredits, EncoderPlanSpec, EncoderPoolSpec, FoundationPlanSpec,
    LearningRate, ModelShape, PackLimits, PlanSpec, PoolSizes, SchedulerState,
};
use loongforge_core::simulate::{Cluster, Costs, DataCosts, Law, Measured, RoleCosts, Samples, SimSpec, simulate};
use std::collections::BTreeMap;
use std::time::Instant;

const STEPS: u64 = 1000;
const WARM_UP: u64 = 2;
/// Samples that are drawn; longer runs go round.
const NUM_SAMPLES: u64 = 40_000;
const MAX_TOKENS: usize = 8192;

/// The run that is simulated: 4,096 ranks in all. Ranks of a tensor-parallel group do the same at the same time: they are one.
struct Shape {
    name: &'static str,
    encoders: u32,
    replicas: u32,
    stages: u32,
    batch: usize,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "512 encoders + 56 replicas x 8 stages x 8 tensor-parallel",
        encoders: 512,
        replicas: 56,
        stages: 8,
        batch: 4096,
    },
    Shape { name: "1,024 encoders + 3,072 replicas", encoders: 1024, replicas: 3072, stages: 1, batch: 12_288 },
    Shape { name: "512 encoders + 448 replicas x 8 stages", encoders: 512, replicas: 448, stages: 8, batch: 14_336 },
];

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    // Cargo adds `--bench`.
    let steps = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(STEPS);
    let law = Law::Vlm.samples(1, MAX_TOKENS);
    let samples = Measured::new((0..NUM_SAMPLES).map(|position| law.sample(position)).collect()).expect("samples");
    for shape in if quick() { &SHAPES[..1] } else { &SHAPES[..] } {
        let spec = spec(shape, steps);
        let (start, before) = (Instant::now(), processor_seconds());
        let report = simulate(&spec, &samples).expect("a run without failures");
        let seconds = start.elapsed().as_secs_f64();
        let processor = processor_seconds() - before;
        let busy = |role| report.pool(role).map_or(0.0, |pool| pool.busy * 100.0);
        let per_step = (steps - WARM_UP) as f64;
        println!(
            "{}: {steps} steps in {seconds:.2} s, {:.2} ms a step, {:.2} of a processor; {:.0} samples, {:.0} packs, {:.0} units a step; \
             simulated step {:.3} s, encoders {:.0} % and foundation {:.0} % busy",
            shape.name,
            seconds * 1e3 / steps as f64,
            processor * 1e3 / steps as f64,
            report.samples as f64 / per_step,
            report.packs as f64 / per_step,
            report.units as f64 / per_step,
            report.mean_step(),
            busy(PoolName::ENCODER),
            busy(PoolName::FOUNDATION),
        );
    }
}

/// Returns the processor time of this process in seconds; 0 where the system does not tell.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // User and system time in hundredths of a second, the 12th and 13th word after the program's name.
    let words = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    words.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn spec(shape: &Shape, steps: u64) -> SimSpec {
    let coordinator = coordinator(shape, steps);
    let (costs, cluster) = (costs(), cluster(shape));
    let threads = BTreeMap::new();
    SimSpec { coordinator, costs, cluster, threads, colocated_trained: true, warm_up: WARM_UP, drawn_steps: 0 }
}

fn coordinator(shape: &Shape, steps: u64) -> CoordinatorSpec {
    CoordinatorSpec {
        pools: PoolSizes::of_roles(64, shape.encoders, shape.replicas),
        plan: plan(shape, steps),
        first_step: StepId(0),
        state: SchedulerState::default(),
        is_kept: true,
        look_ahead: None,
        fitted: false,
        steps,
        global_batch_size: shape.batch,
        prefetch_steps: 2,
        clip_grad: 1.0,
        max_nonfinite: 3,
        bad_samples: BadSamples { max_fraction: 0.01, max_consecutive: 100 },
        too_long: Default::default(),
        checkpoint_dir: "checkpoints".into(),
        save_points: SavePoints { every_steps: 0, at_end: true },
        max_save_failures: 5,
        snapshots: None,
        encoders: vec![EncoderPoolSpec {
            name: PoolName::ENCODER,
            elastic: false,
            trained: true,
            cached: false,
            reads: false,
        }],
        fixed_lanes: true,
        evaluation: None,
    }
}

fn plan(shape: &Shape, steps: u64) -> PlanSpec {
    PlanSpec {
        sigma: None,
        pack: PackLimits::tokens(MAX_TOKENS),
        learning_rate: LearningRate {
            peak: 1e-5,
            min: 0.0,
            schedule: Schedule::Cosine,
            warmup_steps: 10,
            decay_steps: 1,
            steps,
        },
        foundations: vec![FoundationPlanSpec::only(shape.replicas, CostModel::decoder(4096))],
        encoders: vec![EncoderPlanSpec::new(
            PoolName::ENCODER,
            [Tower::Vision].into_iter().collect(),
            shape.encoders,
            shape.encoders,
        )],
        colocated: false,
        shape: ModelShape {
            towers: [Tower::Vision].into_iter().collect(),
            hidden_size: 4096,
            even_length: 12 * 4096,
            bytes_per_patch: ByTower::all(6144),
            bytes_per_feature: ByTower::all(32_768),
            flow: None,
        },
        credits: EdgeCredits { pixels: 256 << 20, tokens: 16 << 20, features: 512 << 20 },
    }
}

fn costs() -> Costs {
    // A tower of 0.6 B and a language model of 8 B parameters on devices of 4e14 FLOP/s.
    Costs {
        data: DataCosts { per_sample: 1e-4, per_patch: 1e-7, per_byte: 1e-11 },
        encoder: RoleCosts {
            per_token: 9e-6,
            per_square: 1e-9,
            per_step: 0.002,
            gradient_bytes: 2.4e9,
            ..RoleCosts::default()
        },
        foundation: RoleCosts {
            per_token: 1.2e-4,
            per_square: 2e-9,
            per_step: 0.02,
            gradient_bytes: 3.2e10,
            ..RoleCosts::default()
        },
        ..Costs::default()
    }
}

fn cluster(shape: &Shape) -> Cluster {
    Cluster {
        control_latency: 2e-4,
        latency: 2e-5,
        bandwidth: 4e10,
        reduce_bandwidth: 2e11,
        stages: shape.stages,
        bytes_per_hidden: 8192.0,
        jitter: 0.02,
        ..Cluster::default()
    }
}
