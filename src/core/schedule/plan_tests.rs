//! Properties of whole plans.

use super::*;
use crate::config::Schedule;
use crate::message::{Grid, ItemId, ItemMeta, PoolName, Tower};
use crate::schedule::{ByTower, CostModel, EdgeCredits, EncoderPlanSpec, LearningRate, ModelShape, PackLimits};
use proptest::prelude::*;

fn spec() -> PlanSpec {
    PlanSpec {
        sigma: None,
        pack: PackLimits::tokens(64),
        learning_rate: LearningRate {
            peak: 1e-3,
            min: 0.0,
            schedule: Schedule::Cosine,
            warmup_steps: 2,
            decay_steps: 1,
            steps: 10,
        },
        foundations: vec![FoundationPlanSpec::only(1, CostModel::decoder(8))],
        encoders: vec![EncoderPlanSpec::new(PoolName::ENCODER, [Tower::Vision].into_iter().collect(), 1, 4)],
        colocated: false,
        shape: ModelShape {
            towers: [Tower::Vision].into_iter().collect(),
            hidden_size: 8,
            even_length: 12 * 8,
            bytes_per_patch: ByTower::all(16),
            bytes_per_feature: ByTower::all(32),
            flow: None,
        },
        credits: EdgeCredits { pixels: 1 << 30, tokens: 1 << 30, features: 1 << 30 },
    }
}

pub(in crate::schedule) fn of_encoders(replicas: u32, num_lanes: u32) -> PlanSpec {
    let encoders =
        vec![EncoderPlanSpec::new(PoolName::ENCODER, [Tower::Vision].into_iter().collect(), replicas, num_lanes)];
    PlanSpec { encoders, ..spec() }
}

fn plan(spec: &PlanSpec, step: StepId, samples: &[SampleMeta], cursor: SampleId) -> Result<StepPlan, PlanError> {
    plan_step(spec, step, Batch::Samples(samples.to_vec()), cursor)
}

fn sample(id: u64, num_tokens: u32, grids: &[(u32, u32)]) -> SampleMeta {
    let item =
        |&(h, w)| ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h, w }, num_features: (h * w).div_ceil(4) };
    let items = grids.iter().map(item).collect();
    let (owner, num_targets) = ((id % 2) as u32, num_tokens / 2);
    SampleMeta { owner, items, ..SampleMeta::of_tokens(SampleId(id), num_tokens, num_targets) }
}

fn samples() -> impl Strategy<Value = Vec<SampleMeta>> {
    let grids = prop::collection::vec((1_u32..5, 1_u32..5), 0..4);
    prop::collection::vec((2_u32..=64, grids), 1..20).prop_map(|rows| {
        rows.iter().enumerate().map(|(index, (tokens, grids))| sample(3 * index as u64, *tokens, grids)).collect()
    })
}

proptest! {
    #[test]
    fn everything_is_planned_once_in_order(
        samples in samples(),
        foundation_replicas in 1_u32..4,
        num_lanes in 1_u32..6,
    ) {
        let spec = of_replicas(foundation_replicas, of_encoders(1, num_lanes));
        let plan = super::tests::plan(&spec, StepId(3), &samples, SampleId(99)).unwrap();

        let mut ids: Vec<SampleId> = plan.packs.iter().flat_map(|pack| pack.samples.iter().map(|s| s.id)).collect();
        for pack in &plan.packs {
            prop_assert!(pack.samples.is_sorted_by_key(|sample| sample.id));
            prop_assert!(pack.num_tokens() <= 64 && pack.replica.index < foundation_replicas);
            let units: Vec<_> = plan.units_of(pack.id).collect();
            let from_units: Vec<_> = units.iter().flat_map(|unit| unit.items.iter().copied()).collect();
            prop_assert_eq!(from_units, pack.items().collect::<Vec<_>>());
            prop_assert!(units.len() <= num_lanes as usize);
            prop_assert!(units.iter().all(|unit| !unit.items.is_empty() && unit.replica == pack.replica));
            let lanes: std::collections::BTreeSet<_> = units.iter().map(|unit| unit.lane).collect();
            prop_assert_eq!(lanes.len(), units.len());
        }
        ids.sort_unstable();
        prop_assert_eq!(ids, samples.iter().map(|sample| sample.id).collect::<Vec<_>>());
        prop_assert!(plan.packs.iter().enumerate().all(|(index, pack)| pack.id.index as usize == index));
        prop_assert!(plan.units.iter().enumerate().all(|(index, unit)| unit.id.index as usize == index));
        prop_assert!(plan.units.is_sorted_by_key(|unit| unit.pack));
        prop_assert_eq!(plan.num_items(), samples.iter().map(|sample| sample.items.len()).sum::<usize>());
        let counts: Vec<usize> = (0..foundation_replicas).map(|replica| plan.packs_of(Replica::foundation(replica)).count()).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= plan.packs.len().div_ceil(foundation_replicas as usize));
    }

    #[test]
    fn the_number_of_encoders_changes_nothing_but_who_encodes(samples in samples(), encoders in 1_u32..6) {
        let one = plan(&spec(), StepId(0), &samples, SampleId(99)).unwrap();
        let many = of_encoders(encoders, 4);
        let mut plan = super::tests::plan(&many, StepId(0), &samples, SampleId(99)).unwrap();
        for unit in &mut plan.units {
            prop_assert_eq!(unit.encoder, Replica::encoder(unit.lane.0 % encoders));
            unit.encoder = Replica::encoder(0);
        }
        prop_assert_eq!(plan, one);
    }

    #[test]
    fn lanes_carry_alike(samples in samples()) {
        let plan = super::tests::plan(&spec(), StepId(0), &samples, SampleId(99)).unwrap();
        let mut patches = [0; 4];
        let mut heaviest = 0;
        for unit in &plan.units {
            patches[unit.lane.0 as usize] += unit.num_cells();
            heaviest = heaviest.max(unit.num_cells());
        }
        // A unit goes to the lightest lane that its pack has not used, so lanes drift apart by a few units at most.
        prop_assert!(patches.iter().max().unwrap() - patches.iter().min().unwrap() <= 3 * heaviest, "{patches:?}");
    }
}

#[test]
fn packs_with_less_than_a_batch_costs_are_not_cut_but_shared_out() {
    let samples: Vec<SampleMeta> = (0..8).map(|id| sample(id, 60, &[(4, 4), (4, 4), (4, 4), (4, 4)])).collect();
    let lanes = |batch| {
        let mut spec = spec();
        spec.encoders[0].cost = CostModel::rows().with_batch(batch);
        let plan = super::tests::plan(&spec, StepId(0), &samples, SampleId(8)).unwrap();
        plan.units.iter().map(|unit| unit.lane.0).collect::<Vec<u32>>()
    };
    assert_eq!((lanes(0).len(), lanes(8).len()), (32, 32));
    let whole = lanes(64);
    assert_eq!(whole.len(), 8, "a unit a pack");
    assert!((0..4).all(|lane| whole.iter().filter(|&&of| of == lane).count() == 2), "{whole:?}");
}

#[test]
fn text_comes_first_and_last() {
    let samples = [sample(0, 60, &[(2, 2)]), sample(1, 60, &[]), sample(2, 60, &[(2, 2)]), sample(3, 60, &[])];
    let plan = super::tests::plan(&spec(), StepId(0), &samples, SampleId(4)).unwrap();
    let order: Vec<u64> = plan.packs.iter().map(|pack| pack.samples[0].id.0).collect();
    assert_eq!(order, [1, 0, 2, 3]);
}

fn of_replicas(replicas: u32, spec: PlanSpec) -> PlanSpec {
    PlanSpec { foundations: vec![FoundationPlanSpec::only(replicas, CostModel::decoder(8))], ..spec }
}

/// Samples go to the pool of their route: a pack has samples of one pool, and each pool's are shared out among its replicas.
#[test]
fn samples_go_to_the_foundation_pool_of_their_route() {
    let pool = |name: &str, routes, replicas| FoundationPlanSpec {
        pool: name.parse().unwrap(),
        routes,
        ..FoundationPlanSpec::only(replicas, CostModel::decoder(8))
    };
    let spec = PlanSpec { foundations: vec![pool("high", 900..1000, 2), pool("low", 0..900, 1)], ..spec() };
    let routed = |id, route| SampleMeta { route, ..sample(id, 20, &[(2, 2)]) };
    let samples = [0, 950, 899, 900, 999, 10, 970].into_iter().zip(0..).map(|(route, id)| routed(id, route));
    let samples: Vec<SampleMeta> = samples.collect();
    let batches = [
        Batch::Samples(samples.clone()),
        Batch::Packs(vec![vec![samples[0].clone(), samples[2].clone()], vec![samples[1].clone()]]),
    ];
    for batch in batches {
        let num_samples = batch.samples().count();
        let plan = plan_step(&spec, StepId(0), batch, SampleId(7)).unwrap();
        assert_eq!(plan.packs.iter().map(|pack| pack.samples.len()).sum::<usize>(), num_samples);
        for pack in &plan.packs {
            let is_low = pack.replica.pool.as_str() == "low";
            assert!(pack.samples.iter().all(|sample| (sample.route < 900) == is_low), "{pack:?}");
            assert!(plan.units_of(pack.id).all(|unit| unit.replica == pack.replica));
        }
        assert!(plan.packs.iter().enumerate().all(|(at, pack)| pack.id.index as usize == at));
    }
    let alone = plan_step(&spec, StepId(0), Batch::Samples(vec![routed(0, 5)]), SampleId(1)).unwrap();
    assert_eq!(alone.packs.len(), 1, "a pool without samples has no packs");
    let lost = plan_step(&spec, StepId(0), Batch::Samples(vec![routed(3, 1000)]), SampleId(1)).unwrap_err();
    assert_eq!(lost.to_string(), "sample 3 has route 1000, but no foundation pool computes samples of that route");
}

#[test]
fn replicas_take_turns_and_cost_alike() {
    let samples: Vec<_> = [60, 40, 60, 40].iter().zip(0..).map(|(&tokens, id)| sample(id, tokens, &[])).collect();
    let plan = super::tests::plan(&of_replicas(2, spec()), StepId(0), &samples, SampleId(4)).unwrap();
    let replicas: Vec<u32> = plan.packs.iter().map(|pack| pack.replica.index).collect();
    assert_eq!(replicas, [0, 1, 0, 1]);
    let tokens = |replica| plan.packs_of(Replica::foundation(replica)).map(Pack::num_tokens).sum::<usize>();
    assert_eq!((tokens(0), tokens(1)), (100, 100));
}

#[test]
fn the_replica_of_a_long_sample_is_given_less_beside_it() {
    let tokens = std::iter::once(60).chain(std::iter::repeat_n(10, 20));
    let samples: Vec<_> = tokens.zip(0..).map(|(tokens, id)| sample(id, tokens, &[])).collect();
    let spec = of_replicas(2, spec());
    let plan = super::tests::plan(&spec, StepId(0), &samples, SampleId(21)).unwrap();
    let cost = |replica| {
        plan.packs_of(Replica::foundation(replica))
            .flat_map(|pack| &pack.samples)
            .map(|sample| spec.sample_cost(sample))
            .sum::<u64>()
    };
    // Whole packs of like cost would be 9,360 + 2 · 4,240 = 17,840 against 3 · 4,240.
    let mut costs = [cost(0), cost(1)];
    costs.sort_unstable();
    assert_eq!(costs, [14 * 1_060, 9_360 + 6 * 1_060]);
    assert_eq!([0, 1].map(|replica| plan.packs_of(Replica::foundation(replica)).count()), [3, 3]);
}

#[test]
fn what_does_not_fit_is_named() {
    let text =
        |spec: &PlanSpec, samples: &[SampleMeta]| plan(spec, StepId(0), samples, SampleId(9)).unwrap_err().to_string();
    assert!(text(&spec(), &[sample(7, 65, &[])]).contains("sample 7 has 65 tokens"));
    assert!(text(&spec(), &[sample(7, 1, &[])]).contains("samples 7 to 7"));
    let few = PlanSpec { pack: PackLimits { max_images: 1, ..spec().pack }, ..spec() };
    assert!(text(&few, &[sample(7, 20, &[(2, 2), (2, 2)])]).contains("sample 7 has 2 images, but a pack holds only 1"));

    let mut small = spec();
    small.credits.features = 100;
    let error = text(&small, &[sample(5, 20, &[(4, 4)])]);
    assert_eq!(
        error,
        "128 bytes must be in flight at once from encoder/0 to foundation/0 for sample(s) 5, but the edge's credit is 100; \
         raise `edges.features.credit` or lower `data.pack.max_tokens`"
    );
    // What is sent is counted by the tower that takes it: the widest of another one is not that of all.
    let narrow = |tower: Tower| {
        let (mut patch, mut feature) = (ByTower::all(16), ByTower::all(32));
        for other in Tower::ALL.into_iter().filter(|other| *other != tower) {
            patch.raise(other, 1 << 20);
            feature.raise(other, 1 << 20);
        }
        let shape = ModelShape { bytes_per_patch: patch, bytes_per_feature: feature, ..spec().shape };
        let credits = EdgeCredits { pixels: 1 << 10, tokens: 1 << 10, features: 1 << 10 };
        plan(&PlanSpec { shape, credits, ..spec() }, StepId(0), &[sample(5, 20, &[(4, 4)])], SampleId(9))
    };
    assert!(narrow(Tower::Vision).is_ok() && narrow(Tower::Vae).is_err());
    // Inside one actor nothing is sent.
    small.colocated = true;
    assert!(plan(&small, StepId(0), &[sample(5, 20, &[(4, 4)])], SampleId(9)).is_ok());
    let mut small = spec();
    small.credits.pixels = 100;
    assert!(text(&small, &[sample(5, 20, &[(4, 4)])]).contains("`edges.pixels.credit`"));
    small = spec();
    small.credits.tokens = 100;
    assert!(text(&small, &[sample(5, 20, &[])]).contains("`edges.tokens.credit`"));
}

#[test]
fn items_keep_their_owner_and_place() {
    let plan = super::tests::plan(&spec(), StepId(0), &[sample(5, 20, &[(2, 2), (4, 4)])], SampleId(9)).unwrap();
    let items: Vec<_> = plan.units.iter().flat_map(|unit| &unit.items).map(|item| (item.id, item.owner)).collect();
    let id = |index| ItemId { sample: SampleId(5), index };
    assert_eq!(items, [(id(0), 1), (id(1), 1)]);
}
