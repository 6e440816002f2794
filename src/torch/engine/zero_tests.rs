//! ZeRO against plain data parallelism and one process.

use super::layout_tests::{ADAMW, CPU, Course, assert_equal, compute, join, micro_batch, model, on_ranks, together};
use crate::comm::ProcessGroup;
use crate::model::{MicroBatch, token_columns};
use crate::native::MemoryWatch;
use crate::params::{ParamStore, Sharding, ZeroStage};
use crate::tape::Policy;
use crate::train::hf::Shards;
use crate::train::{Export, Lanes, TrainState, load_state, save_state};
use std::path::Path;
use std::rc::Rc;
use tch::{Device, Kind};

const DENSE: &str = include_str!("../tests/fixtures/qwen3-seed1/config.json");
const MOE: &str = include_str!("../tests/fixtures/qwen3_moe-seed1/config.json");
const LEVELS: [ZeroStage; 4] = [ZeroStage::Nothing, ZeroStage::State, ZeroStage::Gradients, ZeroStage::Parameters];

fn pool(config: &str, kind: Kind, group: ProcessGroup, shared: ZeroStage) -> TrainState {
    let sharding = Sharding::new(shared, group.rank(), group.world());
    let params = ParamStore::shared_out(model(config).foundation.specs(), kind, Device::Cpu, sharding);
    params.init_random(3);
    TrainState::new(Rc::new(params), group, Lanes::PerReplica, Some(ADAMW)).unwrap()
}

/// Runs steps of which this rank computes every `world`-th of `num_micro_batches` micro-batches.
fn train(
    config: &str,
    pool: &mut TrainState,
    world: usize,
    num_micro_batches: usize,
    steps: std::ops::Range<i64>,
) -> Course {
    let model = model(config).foundation.build(pool.params(), Policy::Keep);
    let (rank, mut course) = (pool.rank(), Course::default());
    for step in steps {
        let of_step = |index| match index < num_micro_batches {
            true => micro_batch(&[5 + index, 9, 3], step * 10 + index as i64, 64, num_micro_batches),
            false => MicroBatch::filler(&token_columns().into(), Device::Cpu),
        };
        let mine = (rank..num_micro_batches.next_multiple_of(world)).step_by(world).map(of_step);
        let loss = mine.collect::<Vec<_>>().iter().map(|batch| compute(model.as_ref(), pool, batch)).sum();
        course.end_step(pool, loss);
    }
    course
}

fn on(config: &str, world: usize, shared: ZeroStage, num_micro_batches: usize) -> Course {
    together(on_ranks(world, |path, rank| {
        let mut pool = pool(config, CPU.0, join(path, "pool", rank, world), shared);
        train(config, &mut pool, world, num_micro_batches, 0..5)
    }))
}

#[test]
fn every_level_equals_data_parallelism() {
    for (config, name) in [(DENSE, "dense"), (MOE, "moe")] {
        let ddp = on(config, 2, ZeroStage::Nothing, 2);
        for shared in [ZeroStage::State, ZeroStage::Gradients, ZeroStage::Parameters] {
            // Two terms in either order: the same bits, but where a table that is the head's too is summed in two goes.
            let tolerance = if shared == ZeroStage::State { 0.0 } else { 1e-6 };
            assert_equal(&on(config, 2, shared, 2), &ddp, tolerance, &format!("{name}, {shared:?}"));
        }
    }
}

#[test]
fn every_level_on_three_ranks_equals_one_process() {
    let mut alone = pool(DENSE, CPU.0, ProcessGroup::single(), ZeroStage::Nothing);
    let expected = train(DENSE, &mut alone, 1, 6, 0..5);
    for shared in LEVELS {
        assert_equal(&on(DENSE, 3, shared, 6), &expected, 2e-5, &format!("{shared:?}"));
    }
}

#[test]
fn what_a_rank_holds_falls_with_the_number_of_ranks() {
    let held = |world: usize, shared| {
        let bytes = on_ranks(world, |path, rank| {
            let group = join(path, "pool", rank, world);
            group.barrier().unwrap();
            let watch = MemoryWatch::start();
            let pool = pool(DENSE, CPU.0, group, shared);
            (watch.current(), pool.params().units().len() as i64)
        });
        bytes[0]
    };
    let (whole, _) = held(1, ZeroStage::Nothing);
    // Of the four: values, sums of gradients and two moments.
    for (shared, parts) in [(ZeroStage::State, 2), (ZeroStage::Gradients, 3), (ZeroStage::Parameters, 4)] {
        for world in [2, 4] {
            let (bytes, num_units) = held(world, shared);
            let expected = whole / 4 * (4 - parts) + whole / 4 * parts / world as i64;
            // Units are padded.
            let padding = num_units * 16 * world as i64 * 4 * 4;
            assert!((bytes - expected).abs() <= padding, "{shared:?} on {world}: {bytes}, {expected} expected");
        }
    }
}

#[test]
fn a_checkpoint_of_any_number_of_ranks_goes_on_on_any_other() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let folder = tempfile::tempdir().unwrap();
        let save = |path: &Path, rank: usize, world: usize| {
            let group = join(path, "pool", rank, world);
            let mut pool = pool(DENSE, kind, group, ZeroStage::Parameters).with_ema(Some(0.9)).unwrap();
            train(DENSE, &mut pool, world, 6, 0..2);
            save_state(&pool, folder.path(), &Export::Weights(Shards::single()), "foundation").unwrap().len()
        };
        assert_eq!(on_ranks(3, |path, rank| save(path, rank, 3)), [2, 0, 0]);
        let go_on = |world: usize, shared: ZeroStage| {
            together(on_ranks(world, |path, rank| {
                let mut pool = pool(DENSE, kind, join(path, "pool", rank, world), shared).with_ema(Some(0.9)).unwrap();
                load_state(&mut pool, folder.path(), "foundation", true).unwrap();
                // The same sums of one micro-batch, whoever has it.
                let mut course = train(DENSE, &mut pool, world, 1, 2..3);
                course.add_averages(&mut pool);
                course
            }))
        };
        let expected = go_on(1, ZeroStage::Nothing);
        for (world, shared) in [(2, ZeroStage::State), (3, ZeroStage::Gradients), (2, ZeroStage::Parameters)] {
            let found = go_on(world, shared);
            assert_equal(&found, &expected, 1e-6, &format!("{kind:?}, {shared:?} on {world}"));
        }
    }
}
