//! Closed forms, lower bounds, conservation, and that it is the real coordinator that plans.

use super::*;
use crate::config::{BadSamples, Placement, SavePoints, Schedule};
use crate::message::{Grid, ItemMeta, PoolName, SampleId, SampleMeta, StepId, Tower, TowerSet};
use crate::schedule::{
    Batch, ByTower, CoordinatorSpec, CostModel, EdgeCredits, EncoderPlanSpec, EncoderPoolSpec, FoundationPlanSpec,
    LearningRate, ModelShape, PackLimits, PlanSpec, PoolSize, PoolSizes, SchedulerState, plan_step,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Returns a run of `steps` of samples of which `per_pack` fill a pack of 100 tokens.
pub(super) fn spec(data: u32, encoder: u32, foundation: u32, steps: u64, batch: usize) -> SimSpec {
    let plan = PlanSpec {
        sigma: None,
        pack: PackLimits::tokens(100),
        learning_rate: LearningRate {
            peak: 0.1,
            min: 0.0,
            schedule: Schedule::Linear,
            warmup_steps: 2,
            decay_steps: 1,
            steps,
        },
        foundations: vec![FoundationPlanSpec::only(foundation, CostModel::decoder(64))],
        encoders: vec![EncoderPlanSpec::new(
            PoolName::ENCODER,
            [Tower::Vision].into_iter().collect(),
            encoder.max(1),
            encoder.max(1),
        )],
        colocated: false,
        shape: ModelShape {
            towers: [Tower::Vision].into_iter().collect(),
            hidden_size: 64,
            even_length: 12 * 64,
            bytes_per_patch: ByTower::all(4),
            bytes_per_feature: ByTower::all(8),
            flow: None,
        },
        credits: EdgeCredits { pixels: 1 << 20, tokens: 1 << 20, features: 1 << 20 },
    };
    let coordinator = CoordinatorSpec {
        pools: PoolSizes::of_roles(data, encoder, foundation),
        plan,
        first_step: StepId(0),
        state: SchedulerState::default(),
        is_kept: true,
        steps,
        global_batch_size: batch,
        look_ahead: None,
        fitted: false,
        prefetch_steps: 2,
        clip_grad: 1.0,
        max_nonfinite: 3,
        bad_samples: BadSamples { max_fraction: 0.5, max_consecutive: 20 },
        too_long: Default::default(),
        checkpoint_dir: "checkpoints".into(),
        save_points: SavePoints { every_steps: 0, at_end: true },
        max_save_failures: 5,
        snapshots: None,
        encoders: vec![EncoderPoolSpec {
            name: PoolName::ENCODER,
            elastic: true,
            trained: true,
            cached: false,
            reads: false,
        }],
        fixed_lanes: true,
        evaluation: None,
    };
    let costs = Costs {
        encoder: RoleCosts { per_token: 1e-3, ..RoleCosts::default() },
        foundation: RoleCosts { per_token: 1e-3, ..RoleCosts::default() },
        ..Costs::default()
    };
    let (cluster, threads) = (Cluster::default(), BTreeMap::new());
    SimSpec { coordinator, costs, cluster, threads, colocated_trained: true, warm_up: 2, drawn_steps: 1 }
}

/// Every sample alike: of so many tokens, with one picture of so many patches where that is not 0.
struct Alike {
    tokens: u32,
    patches: u32,
}

impl Samples for Alike {
    fn sample(&self, position: u64) -> SampleMeta {
        let grid = Grid { t: 1, h: 1, w: self.patches };
        let items = if self.patches > 0 {
            vec![ItemMeta { tower: Tower::Vision, grid, num_features: self.patches / 4 }]
        } else {
            Vec::new()
        };
        let (num_tokens, num_targets) = (self.tokens, 1);
        SampleMeta { items, ..SampleMeta::of_tokens(SampleId(position), num_tokens, num_targets) }
    }
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 1e-9, "{found}, not {wanted}");
}

#[test]
fn text_alone_takes_as_long_as_its_packs() {
    // 4 packs of 100 tokens, a millisecond a token, over 1, 2 and 4 replicas.
    for (replicas, seconds) in [(1, 0.4), (2, 0.2), (4, 0.1)] {
        let mut spec = spec(1, 0, replicas, 6, 8);
        spec.costs.foundation.per_step = 0.05;
        let report = simulate(&spec, &Alike { tokens: 50, patches: 0 }).unwrap();
        near(report.mean_step(), seconds + 0.05);
        near(report.bound().seconds, seconds + 0.05);
        near(report.pool(PoolName::FOUNDATION).unwrap().busy, 1.0);
        assert_eq!((report.steps.len(), report.tokens, report.samples), (4, 4 * 400, 4 * 8));
    }
}

#[test]
fn one_encoder_and_one_foundation_are_a_pipeline() {
    // 4 packs of one picture each. An encoder needs e forward and 2e backward a picture, the foundation f a pack.
    let patches = 48;
    let (e, f) = (0.016, 0.1);
    let spec = spec(1, 1, 1, 6, 4);
    let report = simulate(&spec, &Alike { tokens: 100, patches }).unwrap();
    // The foundation is slower: first picture, all packs, last backward.
    near(report.mean_step(), e + 4.0 * f + 2.0 * e);
    let foundation = report.pool(PoolName::FOUNDATION).unwrap();
    near(foundation.busy, 0.4 / 0.448);
    near(foundation.share(Activity::WaitFeatures), 0.016 / 0.448);
    near(foundation.share(Activity::WaitCommit), 0.032 / 0.448);
    near(report.pool(PoolName::ENCODER).unwrap().share(Activity::WaitGradients), (0.448 - 4.0 * 3.0 * e) / 0.448);

    // A frozen encoder works ahead: it is never waited for.
    let report = simulate(&spec.with_training(false), &Alike { tokens: 100, patches }).unwrap();
    near(report.mean_step(), 4.0 * f);
}

/// Every sample has a picture and a recording of 48 rows each, in a pack of its own.
struct SeenAndHeard;

impl Samples for SeenAndHeard {
    fn sample(&self, position: u64) -> SampleMeta {
        let grid = Grid { t: 1, h: 1, w: 48 };
        let item = |tower| ItemMeta { tower, grid, num_features: 12 };
        SampleMeta {
            items: [Tower::Vision, Tower::Audio].map(item).to_vec(),
            ..Alike { tokens: 100, patches: 0 }.sample(position)
        }
    }
}

#[test]
fn towers_cost_what_they_cost_and_an_encoder_pays_for_those_that_it_holds() {
    // 4 packs. A recording takes three times as long as a picture, which takes 48 ms forward and backward.
    let costs = |per_token: f64, per_step: f64| RoleCosts { per_token, per_step, ..RoleCosts::default() };
    let mut together = spec(1, 1, 1, 6, 4);
    together.costs.towers = [(Tower::Audio, costs(3e-3, 0.5))].into();
    together.costs.encoder.per_step = 0.25;
    let towers = [Tower::Vision, Tower::Audio];
    let set = |towers: &[Tower]| towers.iter().copied().collect::<TowerSet>();
    together.coordinator.plan.encoders[0].towers = set(&towers);
    together.coordinator.plan.shape.towers = set(&towers);
    let held = |towers: &[Tower]| together.costs.held(set(towers)).0;
    assert_eq!([held(&[Tower::Vision]), held(&[Tower::Audio]), held(&towers), held(&[])], [0.25, 0.5, 0.75, 0.25]);
    // Whoever is done with its step begins the next one: equally long ones, so that no step has a part of another.
    together.costs.encoder.per_step = 0.5;
    let report = simulate(&together, &SeenAndHeard).unwrap();
    let pool = report.pool(PoolName::ENCODER).unwrap();
    near(pool.busy * report.mean_step(), 4.0 * 4.0 * 0.048 + 1.0);

    let mut apart = together.clone();
    let audio: PoolName = "audio".parse().unwrap();
    apart.coordinator.plan.encoders = vec![
        EncoderPlanSpec::new(PoolName::ENCODER, set(&[Tower::Vision]), 1, 1),
        EncoderPlanSpec::new(audio, set(&[Tower::Audio]), 1, 1),
    ];
    apart.coordinator.pools.encoders.push(PoolSize { name: audio, actors: 1 });
    apart.coordinator.encoders.push(EncoderPoolSpec {
        name: audio,
        elastic: false,
        trained: true,
        cached: false,
        reads: false,
    });
    let report = simulate(&apart, &SeenAndHeard).unwrap();
    let busy = |name: PoolName| report.pool(name).unwrap().busy * report.mean_step();
    near(busy(PoolName::ENCODER), 4.0 * 0.048 + 0.5);
    near(busy(audio), 4.0 * 3.0 * 0.048 + 0.5);
}

#[test]
fn encoders_use_the_cores_of_their_own_pool() {
    let mut own = spec(1, 2, 1, 6, 4);
    own.cluster.cores = Some(2.0);
    let mut all = own.clone();
    all.cluster.encoder_threads = 2.0;
    let simulated = |spec: &SimSpec| {
        let report = simulate(spec, &Alike { tokens: 100, patches: 48 }).unwrap();
        let cores = report.bounds.iter().find(|bound| bound.what == "cores").unwrap();
        (report.seconds(), cores.seconds)
    };
    let few = simulated(&own);
    own.threads = [(PoolName::ENCODER, 2.0)].into();
    assert_eq!(simulated(&own), simulated(&all));
    own.threads = [(PoolName::FOUNDATION, 2.0)].into();
    assert_eq!(simulated(&own), few);
    let many = simulated(&all);
    assert!(few.0 < many.0 && few.1 < many.1, "{few:?}, {many:?}");
}

#[test]
fn an_encoder_that_is_slower_is_the_bound() {
    let mut spec = SimSpec { warm_up: 0, ..spec(1, 1, 1, 6, 4) }.with_training(false);
    spec.costs.encoder.per_token = 0.1;
    // Forwards of 1.6 s each, one after the other, over all steps; behind the last one, or the last two, come their packs.
    let samples = Alike { tokens: 100, patches: 48 };
    let report = simulate(&spec, &samples).unwrap();
    near(report.seconds(), 6.0 * 4.0 * 1.6 + 0.1);
    assert_eq!(report.bound().what, "encoders");
    near(report.bound().seconds, 4.0 * 1.6);
    // Two encoders halve it.
    let two = spec.with_pools(Placement::Separate, 2, 1, None);
    near(simulate(&two, &samples).unwrap().seconds(), 6.0 * 4.0 * 0.8 + 2.0 * 0.1);
}

#[test]
fn a_colocated_encoder_takes_turns_with_its_foundation() {
    let spec = spec(1, 1, 1, 6, 4).with_pools(Placement::Colocated, 1, 1, None);
    let report = simulate(&spec, &Alike { tokens: 100, patches: 48 }).unwrap();
    near(report.mean_step(), 4.0 * (0.1 + 0.048));
    assert!(report.pool(PoolName::ENCODER).is_none());
    near(report.pool(PoolName::FOUNDATION).unwrap().busy, 1.0);
    near(report.bound().seconds, report.mean_step());
}

#[test]
fn stages_idle_as_1f1b_says() {
    for (stages, packs) in [(2, 4), (4, 4), (4, 8), (4, 2), (8, 32)] {
        let mut spec = spec(1, 0, 1, 5, packs);
        spec.cluster.stages = stages;
        let report = simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap();
        let (p, m) = (f64::from(stages), packs as f64);
        // Slots of a stage: m packs, and p − 1 to fill and to drain.
        near(report.mean_step(), (m + p - 1.0) * 0.1 / p);
        let bubble = (p - 1.0) / (m + p - 1.0);
        near(report.ideal_bubble, bubble);
        near(1.0 - report.pool(PoolName::FOUNDATION).unwrap().busy, bubble);
    }
}

#[test]
fn hidden_states_take_their_time_from_stage_to_stage() {
    let mut spec = spec(1, 0, 1, 5, 1);
    spec.cluster = Cluster { stages: 2, bytes_per_hidden: 10.0, bandwidth: 1e5, latency: 0.002, ..spec.cluster };
    let report = simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap();
    // There and back: 1000 bytes at 100 kB/s, and the latency.
    near(report.mean_step(), 0.1 + 2.0 * (0.01 + 0.002));
}

#[test]
fn actors_share_cores() {
    // Two replicas' packs on one core take as long as one replica's with both.
    let mut spec = spec(1, 0, 2, 6, 4);
    spec.cluster.cores = Some(1.0);
    let report = simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap();
    near(report.mean_step(), 0.4);
    assert_eq!(report.bound().what, "cores");
    spec.cluster.cores = Some(2.0);
    near(simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap().mean_step(), 0.2);
}

#[test]
fn the_scheduler_is_far() {
    let mut spec = spec(1, 0, 1, 6, 1);
    spec.cluster.control_latency = 0.01;
    // Reduced, commit; then nothing: the next step is planned already.
    near(simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap().mean_step(), 0.1 + 0.02);
}

#[test]
fn a_reduction_waits_for_all_and_takes_what_a_ring_takes() {
    let mut spec = spec(1, 0, 4, 6, 4);
    spec.costs.foundation.gradient_bytes = 1e6;
    spec.cluster.reduce_bandwidth = 1e7;
    let report = simulate(&spec, &Alike { tokens: 100, patches: 0 }).unwrap();
    near(report.mean_step(), 0.1 + 1.5 * 0.1);
    near(report.pool(PoolName::FOUNDATION).unwrap().share(Activity::Reduce), 0.15 / 0.25);
}

#[test]
fn too_little_credit_makes_parcels_wait_and_none_is_an_error() {
    let samples = Alike { tokens: 100, patches: 48 };
    let mut spec = spec(1, 1, 1, 6, 4);
    // Features of 12 rows of 8 bytes: one unit at a time; the foundation holds it while it computes.
    spec.coordinator.plan.credits.features = 96;
    let tight = simulate(&spec, &samples).unwrap();
    assert!(tight.credit_waits[2] > 0.1, "{:?}", tight.credit_waits);
    spec.coordinator.plan.credits.features = 95;
    let error = simulate(&spec, &samples).unwrap_err().to_string();
    assert!(error.contains("edges.features.credit"), "{error}");
}

#[test]
fn it_is_the_coordinators_plan_that_runs() {
    let spec = SimSpec { warm_up: 0, ..spec(2, 3, 2, 4, 12) };
    let samples = Law::Vlm.samples(5, 100);
    let report = simulate(&spec, &samples).unwrap();
    let (mut packs, mut units, mut tokens) = (0, 0, 0);
    for step in 0..4 {
        let batch: Vec<SampleMeta> = (step * 12..(step + 1) * 12)
            .map(|position| SampleMeta { owner: (position % 2) as u32, ..samples.sample(position) })
            .collect();
        let batch = Batch::Samples(batch);
        let plan = plan_step(&spec.coordinator.plan, StepId(step), batch, SampleId((step + 1) * 12)).unwrap();
        packs += plan.packs.len() as u64;
        units += plan.units.len() as u64;
        tokens += plan.num_tokens() as u64;
    }
    assert_eq!((report.packs, report.units, report.tokens, report.samples), (packs, units, tokens, 48));
}

#[test]
fn alternatives_name_the_best_ratio() {
    // A picture costs as much as its pack: as many encoders as replicas.
    let mut spec = spec(1, 1, 1, 8, 24).with_training(false);
    spec.costs.encoder.per_token = 0.1 / 48.0;
    spec.costs.encoder.forward = 1.0;
    let found = alternatives(&spec, &Alike { tokens: 100, patches: 48 }, 8, None);
    assert_eq!(found.len(), 8);
    let speeds: Vec<f64> = found.iter().map(|one| one.result.as_ref().unwrap().tokens_per_second()).collect();
    assert!(speeds.is_sorted_by(|left, right| left >= right));
    // Colocated wastes nothing either.
    let best: Vec<PoolLayout> = found[..2].iter().map(|one| one.layout).collect();
    assert!(best.contains(&PoolLayout { placement: Placement::Separate, encoders: 4, foundations: 4 }), "{best:?}");
    assert!(best.contains(&PoolLayout { placement: Placement::Colocated, encoders: 8, foundations: 8 }), "{best:?}");
}

#[test]
fn a_model_without_towers_has_one_layout() {
    let mut spec = spec(1, 0, 1, 8, 8);
    let CoordinatorSpec { plan, encoders, pools, .. } = &mut spec.coordinator;
    (plan.encoders, *encoders, pools.encoders) = (Vec::new(), Vec::new(), Vec::new());
    spec.cluster.stages = 2;
    for (devices, foundations) in [(8, &[4][..]), (32, &[16]), (1, &[])] {
        let found = alternatives(&spec, &Alike { tokens: 50, patches: 0 }, devices, None);
        let layouts: Vec<u32> = found.iter().map(|one| one.layout.foundations).collect();
        assert_eq!(layouts, foundations);
        assert!(found.iter().all(|one| one.result.is_ok() && one.layout.encoders == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every run ends, all work is done once, no step beats a bound, and the same run gives the same again.
    #[test]
    fn work_is_conserved(
        data in 1_u32..4,
        encoder in 1_u32..5,
        foundation in 1_u32..4,
        stages in 1_u32..4,
        colocated: bool,
        trained: bool,
        cores in prop::option::of(1.0_f64..6.0),
        jitter in prop::sample::select(vec![0.0, 0.2]),
        latency in 0.0_f64..0.01,
        credit in 4800_u64..6000,
        seed: u64,
    ) {
        let placement = if colocated { Placement::Colocated } else { Placement::Separate };
        let mut spec = spec(data, encoder, foundation, 7, 16).with_pools(placement, encoder, foundation, None);
        spec.coordinator.plan.pack.max_tokens = 600;
        spec.coordinator.plan.credits =
            EdgeCredits { pixels: 4 * credit, tokens: 40 * 600, features: credit };
        spec.cluster = Cluster { cores, stages, jitter, seed, latency, bandwidth: 1e7, control_latency: latency / 2.0, ..spec.cluster };
        spec.costs.data = DataCosts { per_sample: 1e-3, per_patch: 1e-6, per_byte: 1e-8 };
        spec.costs.encoder.per_step = 0.01;
        spec.warm_up = 0;
        let spec = spec.with_training(trained);
        let samples = Law::Vlm.samples(seed, 600);
        let report = simulate(&spec, &samples).unwrap();
        prop_assert_eq!(report.samples, 7 * 16);
        prop_assert_eq!(report.steps.len(), 7);
        for pool in &report.pools {
            let all: f64 = pool.shares.iter().map(|(_, share)| share).sum();
            prop_assert!((all - 1.0).abs() < 1e-6, "{}: {all}", pool.role);
        }
        if jitter == 0.0 {
            // The data actors' bound is over a longer time: they begin before the first step does.
            for bound in report.bounds.iter().filter(|bound| bound.what != "data actors") {
                prop_assert!(report.mean_step() >= bound.seconds * (1.0 - 1e-9), "{bound:?} {}", report.mean_step());
            }
            if cores.is_none() && !colocated {
                // Busy seconds are the work's.
                let work: f64 = (0..7 * 16).map(|position| f64::from(samples.sample(position).num_tokens) * 1e-3).sum();
                let pool = report.pool(PoolName::FOUNDATION).unwrap();
                let busy = pool.busy * pool.ranks as f64 * report.seconds();
                prop_assert!((busy / work - 1.0).abs() < 1e-6, "{busy} {work}");
            }
        }
        let again = simulate(&spec, &samples).unwrap();
        prop_assert_eq!(again.steps, report.steps);
        prop_assert_eq!(again.gantt, report.gantt);
    }
}

/// Samples go to two pools in turn.
struct InTurn(Alike);

impl Samples for InTurn {
    fn sample(&self, position: u64) -> SampleMeta {
        SampleMeta { route: position as u32 % 2, ..self.0.sample(position) }
    }
}

#[test]
fn two_foundation_pools_compute_at_the_same_time() {
    // 4 packs of 100 tokens for each, a millisecond a token; the pools reduce apart from each other.
    for (replicas, seconds) in [([1, 1], 0.4), ([1, 2], 0.4), ([2, 4], 0.2)] {
        let mut spec = spec(1, 0, 1, 6, 8);
        let names = [PoolName::FOUNDATION_HIGH, PoolName::FOUNDATION_LOW];
        let pools = names.into_iter().zip(replicas);
        spec.coordinator.pools.foundations = pools.map(|(name, actors)| PoolSize { name, actors }).collect();
        let pool = |(at, pool): (usize, &PoolSize)| FoundationPlanSpec {
            pool: pool.name,
            routes: at as u32..at as u32 + 1,
            ..FoundationPlanSpec::only(pool.actors, CostModel::decoder(64))
        };
        spec.coordinator.plan.foundations = spec.coordinator.pools.foundations.iter().enumerate().map(pool).collect();
        let report = simulate(&spec, &InTurn(Alike { tokens: 100, patches: 0 })).unwrap();
        near(report.mean_step(), seconds);
        for (name, replicas) in names.into_iter().zip(replicas) {
            near(report.pool(name).unwrap().busy, 0.4 / f64::from(replicas) / seconds);
        }
    }
}
