//! State off the device: the bits of a course, its checkpoints, and the copies across a bus.

use super::hf::Shards;
use super::moments::num_blocks;
use super::offload::{Offload, Tier};
use super::offloaded_step::{Change, MomentsOf, step_in_chunks};
use super::optimizer_tests::{MUON, numbers, pool_with, step};
use super::{Export, OptimizerMethod, TrainState, load_state, save_state};
use crate::comm::ProcessGroup;
use crate::device::set_intra_op_threads;
use crate::native::{AdamWStep, MOMENT_BLOCK, MemoryWatch, Purpose, QuantizedMoment, adamw, adamw_8bit};
use crate::params::ZeroStage;
use crate::tape::Transfers;
use std::path::Path;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const METHODS: [OptimizerMethod; 3] = [OptimizerMethod::AdamW, OptimizerMethod::AdamW8bit, OptimizerMethod::Muon(MUON)];

fn alone(kind: Kind, method: OptimizerMethod, offload: Option<Offload>) -> TrainState {
    pool_with(kind, ProcessGroup::single(), ZeroStage::Nothing, method, offload)
}

fn save(pool: &TrainState, folder: &Path) {
    save_state(pool, folder, &Export::Weights(Shards::single()), "pool").unwrap();
}

/// Returns all places, and parts of the state that are there; the last one as if the pool's device were no CPU.
fn places(folder: &Path) -> Vec<(Offload, bool)> {
    let host = |fraction| Offload { to: Tier::Host, fraction };
    let disk = |fraction| Offload { to: Tier::Disk(folder.to_owned()), fraction };
    vec![(host(1.0), false), (disk(1.0), false), (disk(0.6), false), (host(1.0), true), (host(0.6), true)]
}

fn placed(kind: Kind, method: OptimizerMethod, (offload, across): &(Offload, bool)) -> TrainState {
    let mut pool = alone(kind, method, Some(offload.clone()));
    if *across {
        pool.optimizer_mut().unwrap().transfers = Some(Transfers::new(Device::Cpu, None).unwrap());
    }
    pool
}

#[test]
fn no_bit_changes_and_checkpoints_are_the_same_both_ways() {
    let files = tempfile::tempdir().unwrap();
    for method in METHODS {
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut plain = alone(kind, method, None);
            (0..3).for_each(|round| step(&mut plain, round));
            let (at_3, saved) = (numbers(&plain), tempfile::tempdir().unwrap());
            save(&plain, saved.path());
            step(&mut plain, 3);
            let at_4 = numbers(&plain);
            for place in places(files.path()) {
                let mut pool = placed(kind, method, &place);
                assert!(pool.offloaded_bytes() > 0, "{place:?}");
                (0..3).for_each(|round| step(&mut pool, round));
                assert_eq!(numbers(&pool), at_3, "{method:?} {kind:?} {place:?}");
                let folder = tempfile::tempdir().unwrap();
                save(&pool, folder.path());
                let read = |folder: &Path| std::fs::read(folder.join("optimizer-pool.safetensors")).unwrap();
                assert!(read(folder.path()) == read(saved.path()), "{method:?} {kind:?} {place:?}: files");
                // With the checkpoint of a run without, and without it of a run with.
                let mut taken = placed(kind, method, &place);
                load_state(&mut taken, saved.path(), "pool", true).unwrap();
                let mut given = alone(kind, method, None);
                load_state(&mut given, folder.path(), "pool", true).unwrap();
                for pool in [&mut pool, &mut taken, &mut given] {
                    step(pool, 3);
                    assert_eq!(numbers(pool), at_4, "{method:?} {kind:?} {place:?}: resumed");
                }
            }
        }
    }
}

#[test]
fn replicas_that_share_state_out_may_have_it_away() {
    let files = tempfile::tempdir().unwrap();
    for (method, shared) in METHODS.into_iter().zip([ZeroStage::State, ZeroStage::Gradients, ZeroStage::Parameters]) {
        let mut one = alone(Kind::BFloat16, method, None);
        (0..3).for_each(|round| step(&mut one, round));
        let folder = tempfile::tempdir().unwrap();
        let rank = |rank: usize| {
            set_intra_op_threads(1);
            let group =
                ProcessGroup::gloo(&folder.path().join("store"), "pool", rank, 2, Duration::from_secs(60)).unwrap();
            // Ranks need not have it in the same place.
            let (to, fraction) = if rank == 0 { (Tier::Disk(files.path().to_owned()), 0.5) } else { (Tier::Host, 1.0) };
            let offload = Some(Offload { to, fraction });
            let mut pool = pool_with(Kind::BFloat16, group, shared, method, offload);
            (0..3).for_each(|round| step(&mut pool, round));
            save(&pool, folder.path());
            numbers(&pool)
        };
        let found = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|index| scope.spawn(move || rank(index)));
            ranks.map(|rank| rank.join().unwrap())
        });
        assert!(found.iter().all(|found| *found == numbers(&one)), "{method:?}, {shared:?}");
        let mut resumed = alone(Kind::BFloat16, method, None);
        load_state(&mut resumed, folder.path(), "pool", true).unwrap();
        assert_eq!(numbers(&resumed), numbers(&one), "{method:?}, {shared:?}");
    }
}

#[test]
fn a_fraction_is_of_whole_parameters_and_no_memory_of_the_device_is_taken() {
    let optimizer = Purpose::ALL.iter().position(|purpose| *purpose == Purpose::Optimizer).unwrap();
    let held = |offload: Option<f64>| {
        let watch = MemoryWatch::start();
        let offload = offload.map(|fraction| Offload { to: Tier::Host, fraction });
        let mut pool = alone(Kind::BFloat16, OptimizerMethod::AdamW, offload);
        step(&mut pool, 0);
        (watch.at_peak()[optimizer] as u64, pool.offloaded_bytes())
    };
    let (all, none) = held(None);
    assert_eq!((none, held(Some(1.0))), (0, (0, all)));
    let (mut former, mut seen) = (0, 0);
    for fraction in [0.001, 0.3, 0.6, 0.999] {
        let (here, away) = held(Some(fraction));
        assert_eq!(here + away, all);
        // Gaps between parameters are counted, and are not elements of theirs.
        assert!(away as f64 >= 0.99 * fraction * all as f64 && away >= former, "{fraction}: {away} of {all}");
        seen += usize::from(away > former);
        former = away;
    }
    assert!(seen > 1, "fractions differ");
}

/// Elements that do not fill their last chunk, or block, in float32 and beside masters.
#[test]
fn chunks_across_a_bus_take_the_step_of_all_at_once() {
    let len = 7 * MOMENT_BLOCK + 100;
    let numbers = |factor: f64| (Tensor::arange(len, (Kind::Float, Device::Cpu)) * factor).sin();
    let transfers = Transfers::new(Device::Cpu, None).unwrap();
    let step = AdamWStep {
        learning_rate: 1e-2,
        betas: [0.9, 0.95],
        eps: 1e-8,
        weight_decay: 0.1,
        number: 2,
        grad_scale: 0.5,
        zero_grad: false,
    };
    for in_bytes in [false, true] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let moments = || {
                let bytes = |start: i64| QuantizedMoment {
                    codes: (Tensor::arange(len, (Kind::Int64, Device::Cpu)) + start)
                        .remainder(256)
                        .to_kind(Kind::Uint8),
                    maxima: Tensor::full([num_blocks(len)], 0.5, (Kind::Float, Device::Cpu)),
                };
                if in_bytes {
                    MomentsOf::Bytes([bytes(3), bytes(90)])
                } else {
                    MomentsOf::Float([numbers(0.1), numbers(0.2).square()])
                }
            };
            let of = |moments: &MomentsOf| match moments {
                MomentsOf::Float([mean, square]) => Tensor::cat(&[mean, square], 0),
                MomentsOf::Bytes([mean, square]) => {
                    Tensor::cat(&[&mean.maxima, &mean.codes.to_kind(Kind::Float), &square.maxima], 0)
                }
            };
            let (params, grad, expected) = (numbers(1.1), numbers(0.7), moments());
            let low = (kind != Kind::Float).then(|| params.to_kind(kind));
            match &expected {
                MomentsOf::Float([mean, square]) => adamw(&params, low.as_ref(), &grad, [mean, square], &step),
                MomentsOf::Bytes(moments) => adamw_8bit(&params, low.as_ref(), &grad, moments, &step),
            }
            let (master, found, seen) = (numbers(1.1), moments(), Tensor::zeros([len], (Kind::Float, Device::Cpu)));
            let values = numbers(1.1).to_kind(kind);
            let at = |at: i64, len: i64| master.narrow(0, at, len);
            let at: Option<&dyn Fn(i64, i64) -> Tensor> = if kind == Kind::Float { None } else { Some(&at) };
            let change =
                Change { at: 0, values: values.shallow_clone(), grad: grad.shallow_clone(), moments: found, step };
            let changes = [change];
            let done = |at: i64, target: &Tensor| seen.narrow(0, at, target.numel() as i64).copy_(target);
            step_in_chunks(3 * MOMENT_BLOCK, &transfers, &changes, at, &done).unwrap();
            let what = format!("{kind:?}, in bytes: {in_bytes}");
            assert_eq!(values, low.unwrap_or_else(|| params.shallow_clone()), "{what}");
            assert_eq!((&seen, of(&changes[0].moments)), (&params, of(&expected)), "{what}");
            assert_eq!(grad, numbers(0.7), "{what}");
        }
    }
}
