//! Frozen weights that are held as float8 or on the host, under adapters: the same bits as weights that were rounded before
//! and lie on the device.

use super::layout_tests::{ADAMW, Course, assert_equal, compute, join, micro_batch, model, on_ranks, together};
use super::trained::trained;
use crate::comm::ProcessGroup;
use crate::model::TreeNames;
use crate::native::MemoryWatch;
use crate::parallel::FrozenWeights;
use crate::params::{Held, ParamStore, Rounding, Sharding, ZeroStage};
use crate::tape::{Policy, Transfers};
use crate::train::hf::Shards;
use crate::train::{Export, has_adapter};
use crate::train::{Lanes, TrainState, load_state, save_state};
use loongforge_core::config::{FrozenPrecision, Lora, Part};
use std::rc::Rc;
use tch::{Device, Kind};

const DENSE: &str = include_str!("../tests/fixtures/qwen3-seed1/config.json");
const MOE: &str = include_str!("../tests/fixtures/qwen3_moe-seed1/config.json");
const PLAIN: Held = rounded(Rounding::None);
const FLOAT8: Held = rounded(Rounding::Float8);
const ROUNDINGS: [(Rounding, FrozenPrecision); 4] = [
    (Rounding::Float8, FrozenPrecision::Fp8E4m3fn),
    (Rounding::Nf4, FrozenPrecision::Nf4),
    (Rounding::Nf4Double, FrozenPrecision::Nf4Double),
    (Rounding::Int8, FrozenPrecision::Int8),
];

const fn rounded(rounding: Rounding) -> Held {
    Held { rounding, on_host: false }
}

fn params(config: &str, kind: Kind, held: Held, sharding: Sharding) -> Rc<ParamStore> {
    let frozen_precision = ROUNDINGS.iter().find(|known| known.0 == held.rounding).map(|known| known.1);
    let lora = Some(Lora { use_dora: Some(config == DENSE), ..Lora::default() });
    let part = Part { lora, frozen_precision, ..Part::default() };
    let model = model(config);
    let mut specs = trained(model.foundation.specs(), &TreeNames::default(), |_| ("model.foundation", &part)).unwrap();
    specs.iter_mut().filter(|spec| spec.is_frozen_map()).for_each(|spec| spec.held.on_host = held.on_host);
    let params = ParamStore::shared_out(specs, kind, Device::Cpu, sharding);
    FrozenWeights::attach(&params, Some(Rc::new(Transfers::new(Device::Cpu, None).unwrap())));
    params.init_random(3);
    Rc::new(params)
}

/// Returns a pool whose base has the values that `rounding` leaves, however it is held.
fn pool_of(
    rounding: Rounding,
    config: &str,
    kind: Kind,
    held: Held,
    group: ProcessGroup,
    shared: ZeroStage,
) -> TrainState {
    let sharding = Sharding::new(shared, group.rank(), group.world());
    let found = params(config, kind, held, sharding);
    let rounded = params(config, kind, rounded(rounding), Sharding::none());
    for id in found.ids().filter(|id| found.spec(*id).is_frozen_map() && held.rounding == Rounding::None) {
        found.set(id, &rounded.value(rounded.id(&found.spec(id).name)));
    }
    let pool = TrainState::new(found, group, Lanes::PerReplica, Some(ADAMW)).unwrap();
    pool.init_magnitudes().unwrap();
    pool
}

/// Works like [`pool_of`] for values of float8.
fn pool(config: &str, kind: Kind, held: Held, group: ProcessGroup, shared: ZeroStage) -> TrainState {
    pool_of(Rounding::Float8, config, kind, held, group, shared)
}

fn train(config: &str, pool: &mut TrainState, policy: Policy, steps: std::ops::Range<i64>) -> Course {
    let model = model(config).foundation.build(pool.params(), policy);
    let (rank, mut course) = (pool.rank(), Course::default());
    for step in steps {
        let batch = micro_batch(&[5 + rank, 9, 3], step * 10 + rank as i64, 64, 2);
        let loss = compute(model.as_ref(), pool, &batch);
        course.end_step(pool, loss);
    }
    course
}

#[test]
fn adapters_learn_beside_it_what_they_learn_beside_a_base_that_was_rounded() {
    for (config, name) in [(DENSE, "dense"), (MOE, "experts")] {
        for (kind, policy) in [(Kind::Float, Policy::Keep), (Kind::BFloat16, Policy::Recompute)] {
            let alone = |held| {
                let mut pool = pool(config, kind, held, ProcessGroup::single(), ZeroStage::Nothing);
                assert!(has_adapter(pool.params()) && pool.params().frozen_units().is_empty() == (held == PLAIN));
                train(config, &mut pool, policy, 0..3)
            };
            let expected = alone(PLAIN);
            for held in [FLOAT8, Held { on_host: true, ..PLAIN }, Held { on_host: true, ..FLOAT8 }] {
                assert_equal(&alone(held), &expected, 0.0, &format!("{name}, {kind:?}, {held:?}"));
            }
        }
    }
}

#[test]
fn so_they_do_beside_four_and_eight_bits() {
    for (config, name) in [(DENSE, "dense"), (MOE, "experts")] {
        for (kind, policy) in [(Kind::Float, Policy::Keep), (Kind::BFloat16, Policy::Recompute)] {
            for (rounding, _) in &ROUNDINGS[1..] {
                let alone = |held| {
                    let mut pool = pool_of(*rounding, config, kind, held, ProcessGroup::single(), ZeroStage::Nothing);
                    train(config, &mut pool, policy, 0..2)
                };
                let expected = alone(PLAIN);
                for held in [rounded(*rounding), Held { rounding: *rounding, on_host: true }] {
                    assert_equal(&alone(held), &expected, 0.0, &format!("{name}, {kind:?}, {held:?}"));
                }
            }
        }
    }
}

#[test]
fn replicas_have_it_too() {
    let on = |held: Held, shared| {
        together(on_ranks(2, |path, rank| {
            let mut pool = pool(DENSE, Kind::Float, held, join(path, "pool", rank, 2), shared);
            train(DENSE, &mut pool, Policy::Keep, 0..3)
        }))
    };
    for shared in [ZeroStage::Nothing, ZeroStage::State, ZeroStage::Gradients] {
        let expected = on(PLAIN, shared);
        for held in [FLOAT8, Held { on_host: true, ..FLOAT8 }] {
            assert_equal(&on(held, shared), &expected, 0.0, &format!("{shared:?}, {held:?}"));
        }
    }
}

#[test]
fn four_bits_take_a_quarter_of_bfloat16_and_the_largest_magnitudes() {
    let frozen = |held: Held| {
        let watch = MemoryWatch::start();
        let params = params(MOE, Kind::BFloat16, held, Sharding::none());
        let shapes = params.ids().map(|id| params.spec(id)).filter(|spec| spec.is_frozen_map());
        let shapes: Vec<(i64, i64)> = shapes
            .map(|spec| {
                let width = spec.shape[spec.shape.len() - 1];
                (spec.num_elements() / width, width)
            })
            .collect();
        (watch.current(), shapes)
    };
    let (plain, shapes) = frozen(PLAIN);
    let sum = |of: fn(i64, i64) -> i64| shapes.iter().map(|&(rows, width)| of(rows, width)).sum::<i64>();
    let elements = sum(|rows, width| rows * width);
    let packed = sum(|rows, width| rows * ((width + 1) / 2));
    let blocks = sum(|rows, width| rows * ((width + 63) / 64));
    for (rounding, beside) in [(Rounding::Nf4, 4 * blocks), (Rounding::Nf4Double, blocks)] {
        let saved = plain - frozen(rounded(rounding)).0;
        let expected = 2 * elements - packed - beside;
        // Each matrix has a mean and the maximum of a group besides.
        assert!((saved - expected).abs() < elements / 30, "{rounding:?}: {saved} bytes, {expected} expected");
    }
}

#[test]
fn float8_takes_half_of_bfloat16() {
    let frozen = |held: Held| {
        let watch = MemoryWatch::start();
        let params = params(MOE, Kind::BFloat16, held, Sharding::none());
        let maps = params.ids().filter(|id| params.spec(*id).is_frozen_map());
        let (elements, rows) = maps.fold((0, 0), |(elements, rows), id| {
            let spec = params.spec(id);
            (elements + spec.num_elements(), rows + spec.num_elements() / spec.shape[spec.shape.len() - 1])
        });
        (watch.current(), elements, rows)
    };
    let ((plain, elements, rows), (float8, ..), (away, ..)) =
        (frozen(PLAIN), frozen(FLOAT8), frozen(Held { on_host: true, ..FLOAT8 }));
    // A byte less for each number, and a scale for each row.
    let near = |found: i64, expected: i64| (found - expected).abs() < elements / 100;
    assert!(near(plain - float8, elements - 4 * rows), "{plain} and {float8} bytes, {elements} numbers, {rows} rows");
    assert!(near(float8 - away, elements), "{float8} and {away} bytes");
}

#[test]
fn a_checkpoint_of_all_weights_has_what_was_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = pool(DENSE, Kind::BFloat16, FLOAT8, ProcessGroup::single(), ZeroStage::Nothing);
    train(DENSE, &mut first, Policy::Keep, 0..1);
    save_state(&first, folder.path(), &Export::Weights(Shards::single()), "foundation").unwrap();
    let mut plain = pool(DENSE, Kind::BFloat16, PLAIN, ProcessGroup::single(), ZeroStage::Nothing);
    train(DENSE, &mut plain, Policy::Keep, 0..1);
    let other = tempfile::tempdir().unwrap();
    save_state(&plain, other.path(), &Export::Weights(Shards::single()), "foundation").unwrap();
    let bytes = |folder: &tempfile::TempDir| std::fs::read(folder.path().join("model.safetensors")).unwrap();
    assert!(bytes(&folder) == bytes(&other), "the same base with the same adapters added");
    let mut rest = pool(DENSE, Kind::BFloat16, FLOAT8, ProcessGroup::single(), ZeroStage::Nothing);
    load_state(&mut rest, folder.path(), "foundation", false).unwrap();
    let [rest, expected] = [&mut rest, &mut first].map(|pool| train(DENSE, pool, Policy::Keep, 1..3));
    assert_equal(&rest, &expected, 0.0, "resumed");
}
