//! Encoders of different speeds: who gets what.

use super::*;
use crate::message::{Grid, ItemId, ItemMeta, Lane, PackId, Replica, SampleId, StepId, Tower, UnitId, UnitItem};
use crate::schedule::plan::tests::of_encoders;

const LANES: u32 = 16;

fn spec() -> PlanSpec {
    of_encoders(4, LANES)
}

/// Plans 32 units of 1 to 9 patches on 16 lanes, planned for `workers` in turns.
fn plan(step: u64, workers: &[u32]) -> StepPlan {
    let unit = |index: u32| {
        let grid = Grid { t: 1, h: 1, w: 1 + (index * 7 + step as u32) % 9 };
        let id = ItemId { sample: SampleId(u64::from(index)), index: 0 };
        Unit {
            id: UnitId { step: StepId(step), index },
            lane: Lane(index % LANES),
            encoder: Replica::encoder(workers[index as usize % workers.len()]),
            pack: PackId { step: StepId(step), index: 0 },
            replica: Replica::foundation(0),
            items: vec![UnitItem { id, owner: 0, meta: ItemMeta { tower: Tower::Vision, grid, num_features: 1 } }],
        }
    };
    StepPlan {
        step: StepId(step),
        purpose: Default::default(),
        cursor: SampleId(0),
        learning_rate: 0.0,
        num_targets: 1,
        replica_ranks: BTreeMap::new(),
        packs: Vec::new(),
        units: (0..32).map(unit).collect(),
    }
}

fn refs(plan: &StepPlan) -> Vec<&Unit> {
    plan.units.iter().collect()
}

/// Returns the patches that each encoder was given in the last of `steps`, where encoder `i` needs `paces[i]` seconds a patch.
fn run(speeds: &mut Speeds, paces: &[f64], fixed_lanes: bool, steps: std::ops::Range<u64>) -> Vec<f64> {
    let (spec, workers) = (spec(), (0..paces.len() as u32).collect::<Vec<_>>());
    let mut given = vec![0.0; paces.len()];
    for step in steps {
        let mut plan = plan(step, &workers);
        if let Some(encoders) = speeds.share_out(&spec, &refs(&plan), &workers, fixed_lanes) {
            plan.units.iter_mut().zip(encoders).for_each(|(unit, encoder)| unit.encoder.index = encoder);
        }
        given = vec![0.0; paces.len()];
        plan.units.iter().for_each(|unit| given[unit.encoder.index as usize] += unit.num_cells() as f64);
        let timings = |(index, pace): (usize, &f64)| {
            (ActorId::encoder(index as u32), Timings { units: pace * given[index], ..Timings::default() })
        };
        let timings: Vec<_> = paces.iter().enumerate().map(timings).collect();
        speeds.observe(&spec, &plan, &timings);
    }
    given
}

#[test]
fn encoders_that_are_about_equal_are_taken_for_equal() {
    let mut speeds = Speeds::new(PoolName::ENCODER);
    run(&mut speeds, &[0.010, 0.013, 0.009, 0.018], false, 0..20);
    assert_eq!(speeds.stragglers(), []);
    assert_eq!(speeds.share_out(&spec(), &refs(&plan(20, &[0, 1, 2, 3])), &[0, 1, 2, 3], false), None);
    // Ten times as slow, and yet too quick to matter.
    let mut speeds = Speeds::new(PoolName::ENCODER);
    run(&mut speeds, &[1e-6, 1e-5, 1e-6, 1e-6], false, 20..40);
    assert_eq!(speeds.stragglers(), []);
}

#[test]
fn a_slow_encoder_costs_its_share() {
    // One of four may cost a quarter and a tenth of what four equal ones do: 0.65 of their rate. Whole lanes are coarser.
    for (fixed_lanes, bound) in [(false, 1.0 / 0.65), (true, 1.0 / 0.55)] {
        let mut speeds = Speeds::new(PoolName::ENCODER);
        let paces = [0.01, 0.01, 0.1, 0.01];
        run(&mut speeds, &paces, fixed_lanes, 0..2);
        assert_eq!(speeds.stragglers(), [], "one slow step says little");
        let (mut most, mut ideal) = (0.0, 0.0);
        for step in 2..25 {
            let given = run(&mut speeds, &paces, fixed_lanes, step..step + 1);
            if step >= 5 {
                most += given.iter().zip(paces).map(|(patches, pace)| patches * pace).fold(0.0, f64::max);
                ideal += given.iter().sum::<f64>() * 0.01 / 4.0;
            }
        }
        let found = speeds.stragglers();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].actor, ActorId::encoder(2));
        assert!((found[0].times_slower - 10.0).abs() < 0.5, "{found:?}");
        assert!(most <= bound * ideal, "{most} s, {ideal} s with four; fixed lanes: {fixed_lanes}");
    }
}

#[test]
fn lanes_stay_together_where_they_are_fixed() {
    let mut speeds = Speeds::new(PoolName::ENCODER);
    let workers = [0, 1, 2, 3];
    run(&mut speeds, &[0.01, 0.05, 0.01, 0.01], true, 0..6);
    let plan = plan(6, &workers);
    let encoders = speeds.share_out(&spec(), &refs(&plan), &workers, true).unwrap();
    let mut owner = BTreeMap::new();
    for (unit, encoder) in plan.units.iter().zip(encoders) {
        assert_eq!(*owner.entry(unit.lane).or_insert(encoder), encoder, "{:?}", unit.lane);
    }
    assert_eq!(owner.len(), LANES as usize);
}

#[test]
fn one_that_is_quick_again_is_given_as_much_as_the_others() {
    let mut speeds = Speeds::new(PoolName::ENCODER);
    let slow = run(&mut speeds, &[0.01, 0.01, 0.01, 0.1], false, 0..10);
    assert!(slow[3] < 0.15 * slow.iter().sum::<f64>(), "{slow:?}");
    let quick = run(&mut speeds, &[0.01; 4], false, 10..60);
    assert_eq!(speeds.stragglers(), []);
    assert!(quick[3] > 0.2 * quick.iter().sum::<f64>(), "{quick:?}");
    // Who has left is forgotten.
    run(&mut speeds, &[0.01, 0.1, 0.01, 0.01], false, 60..70);
    assert_eq!(speeds.stragglers().len(), 1);
    run(&mut speeds, &[0.01], false, 70..71);
    assert_eq!(speeds.share_out(&spec(), &refs(&plan(71, &[0])), &[0], false), None);
}

#[test]
fn what_came_from_a_cache_says_nothing() {
    let mut speeds = Speeds::new(PoolName::ENCODER);
    let timings =
        |index, units, cached_items| (ActorId::encoder(index), Timings { units, cached_items, ..Timings::default() });
    for step in 0..10 {
        speeds.observe(&spec(), &plan(step, &[0, 1]), &[timings(0, 0.001, 9), timings(1, 1.0, 0)]);
    }
    assert_eq!(speeds.stragglers(), []);
}
