//! Ranks that compute a step together and have micro-batches of another kind each: some with pictures, others without.

use super::layout_tests::{ADAMW, CPU, micro_batch, model, on_ranks};
use crate::comm::Mesh;
use crate::model::{FeatureInput, INPUT_IDS, Kto, MicroBatch, Preference, PreferenceLoss};
use crate::params::{ParallelRank, ParamStore, Sharding, ZeroStage};
use crate::tape::{ContextShard, Execution, Policy, Slot};
use crate::train::{Lanes, TrainState};
use loongforge_core::config::{ContextAttention, Layout};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Tensor};

const DENSE: &str = include_str!("../tests/fixtures/qwen3-seed1/config.json");
const ERNIE: &str = include_str!("../tests/fixtures/ernie4.5_vl-seed1/config.json");
const QWEN: &str = include_str!("../tests/fixtures/qwen3_vl_moe-seed1/config.json");

fn join(path: &Path, layout: Layout, rank: usize) -> Rc<Mesh> {
    Rc::new(Mesh::join(path, "pool", layout, rank, Duration::from_secs(60)).unwrap())
}

/// Returns one of two micro-batches, of which the first alone has tokens of pictures: the marks of a begin and an end.
fn marked(number: usize) -> MicroBatch {
    let batch = micro_batch(&[6 + number, 9], number as i64, 58, 2);
    if number == 0 {
        batch.columns.get(INPUT_IDS).narrow(0, 2, 2).copy_(&Tensor::from_slice(&[60i64, 61]));
    }
    batch
}

/// Returns the loss of these micro-batches on a rank, and the squared norm of the pool's gradient.
fn step(mesh: &Rc<Mesh>, numbers: &[usize]) -> [f64; 2] {
    step_of(mesh, numbers, ZeroStage::Nothing, |_| false)
}

/// Works like `step` where replicas share out what `shared` says, and parameters are frozen whose names `is_frozen` finds.
fn step_of(mesh: &Rc<Mesh>, numbers: &[usize], shared: ZeroStage, is_frozen: fn(&str) -> bool) -> [f64; 2] {
    let (place, whole) = (ParallelRank::of(mesh, false), model(ERNIE).foundation);
    let family = if place.is_whole() { whole } else { whole.divided(&place).unwrap() };
    let specs = family.specs().into_iter().map(|spec| if is_frozen(&spec.name) { spec.frozen() } else { spec });
    let params = ParamStore::shared_out(specs.collect(), CPU.0, CPU.1, Sharding::among(shared, mesh));
    params.init_random(3);
    let pool = TrainState::new(Rc::new(params), mesh.data.clone(), Lanes::PerReplica, Some(ADAMW)).unwrap();
    let mut pool = pool.split_among(mesh.clone());
    let model = family.build(pool.params(), Policy::Keep);
    let mut sum = 0.0;
    for number in numbers {
        let mut batch = marked(*number);
        if mesh.cp.world() > 1 {
            let (ranks, rank, attention) = (mesh.cp.world(), mesh.cp.rank(), ContextAttention::Ring);
            let row = ContextShard::new(&batch.cu_seqlens, ranks, rank, attention, Device::Cpu);
            batch = batch.share(Rc::new(row), Vec::new());
        }
        let record = model.record(&batch);
        let loss = record.loss.unwrap();
        // Ranks that share a row have tensors of features also where these have no rows.
        let none = |(slots, input): (&Vec<Slot>, &FeatureInput)| {
            let width = input.width;
            slots.iter().map(|slot| (*slot, Tensor::zeros([0, width], CPU))).collect::<Vec<_>>()
        };
        let inputs = record.features.iter().zip(model.inputs()).flat_map(none).collect();
        let mut run = Execution::new(record.tape, pool.params().clone(), inputs).with_mesh(mesh.clone());
        run.forward().unwrap();
        sum += run.value(loss).double_value(&[]);
        run.seed(loss, Tensor::from(1.0));
        let lane = pool.own_lane();
        run.backward(pool.lane(lane)).unwrap();
    }
    [sum, pool.reduce().unwrap()]
}

fn assert_near(found: &[[f64; 2]], expected: [f64; 2]) {
    let loss: f64 = found.iter().map(|rank| rank[0]).sum();
    assert!((loss / expected[0] - 1.0).abs() < 1e-5, "loss {loss}, expected {}", expected[0]);
    for [_, squares] in found {
        assert!((squares / expected[1] - 1.0).abs() < 1e-4, "squared norm {squares}, expected {}", expected[1]);
    }
}

#[test]
fn a_rank_without_pictures_sends_rows_to_both_sets_of_experts() {
    let expected = step(&Rc::new(Mesh::single()), &[0, 1]);
    let layout = Layout { ep: 2, ..Layout::replicas(2) };
    assert_near(&on_ranks(2, |path, rank| step(&join(path, layout, rank), &[rank])), expected);
}

#[test]
fn ranks_that_share_a_row_balance_both_sets_of_experts() {
    let expected = step(&Rc::new(Mesh::single()), &[0]);
    let layout = Layout { cp: 2, ..Layout::default() };
    assert_near(&on_ranks(2, |path, rank| step(&join(path, layout, rank), &[0])), expected);
}

/// The experts of pictures are all that a layer has of frozen parameters, or of trained ones.
#[test]
fn a_rank_without_pictures_brings_the_parameters_of_their_experts() {
    let of_pictures = |name: &str| name.contains("_from_");
    let others = |name: &str| !name.contains("_from_");
    for is_frozen in [of_pictures as fn(&str) -> bool, others] {
        let expected = step_of(&Rc::new(Mesh::single()), &[0, 1], ZeroStage::Nothing, is_frozen);
        assert!(expected[1] > 0.0);
        for shared in [ZeroStage::Gradients, ZeroStage::Parameters] {
            let rank =
                |path: &Path, rank: usize| step_of(&join(path, Layout::replicas(2), rank), &[rank], shared, is_frozen);
            assert_near(&on_ranks(2, rank), expected);
        }
    }
}

/// Returns the gradients of the features of these micro-batches, of which the first alone has a picture; the decoder is frozen.
fn of_features(mesh: &Rc<Mesh>, numbers: &[usize]) -> Vec<Tensor> {
    let (place, whole) = (ParallelRank::of(mesh, false), model(QWEN).foundation);
    let family = if place.is_whole() { whole } else { whole.divided(&place).unwrap() };
    let params = Rc::new(ParamStore::new(family.specs(), CPU.0, CPU.1));
    params.init_random(3);
    params.set_trainable(false);
    let model = family.build(&params, Policy::Keep);
    let mut found = Vec::new();
    for number in numbers {
        let mut batch = micro_batch(&[6 + number, 9], *number as i64, 58, 2);
        batch.feature_grads = true;
        if *number == 0 {
            batch.columns.get(INPUT_IDS).narrow(0, 1, 4).copy_(&Tensor::from_slice(&[58i64; 4]));
            batch.num_features = vec![4];
        }
        let record = model.record(&batch);
        let slots: Vec<Slot> = record.features.concat();
        let value = |level: usize| ((Tensor::arange(4 * 24, CPU) + level as i64 * 7) * 0.31).sin().view([4, 24]);
        let inputs = slots.iter().enumerate().map(|(level, slot)| (*slot, value(level))).collect();
        let mut run = Execution::new(record.tape, params.clone(), inputs).with_mesh(mesh.clone());
        run.forward().unwrap();
        run.seed(record.loss.unwrap(), Tensor::from(1.0));
        run.backward(None).unwrap();
        found.extend(slots.iter().map(|slot| run.input_grad(*slot).unwrap()));
    }
    found
}

#[test]
fn a_rank_without_features_passes_gradients_on_through_frozen_experts() {
    let expected = of_features(&Rc::new(Mesh::single()), &[0, 1]);
    assert!(!expected.is_empty());
    let layout = Layout { ep: 2, ..Layout::replicas(2) };
    let ranks = on_ranks(2, |path, rank| of_features(&join(path, layout, rank), &[rank]));
    assert_eq!((ranks[0].len(), ranks[1].len()), (expected.len(), 0));
    for (found, expected) in ranks[0].iter().zip(&expected) {
        let error = (found - expected).abs().max().double_value(&[]);
        assert!(error <= 1e-5 * expected.abs().max().double_value(&[]), "gradient of features is off by {error}");
    }
}

#[test]
fn a_rank_without_a_pack_needs_nothing_of_the_reference_model() {
    let kto = Kto { desirable_weight: 1.0, undesirable_weight: 1.0 };
    for loss in [PreferenceLoss::Sigmoid { label_smoothing: 0.0 }, PreferenceLoss::Kto(kto)] {
        let preference = Preference { loss, beta: 0.1, nll_weight: 0.0, group_size: 2 };
        let family = model(DENSE).foundation.with_preference(preference).unwrap();
        let params = Rc::new(ParamStore::new(family.specs(), CPU.0, CPU.1));
        params.init_random(3);
        let model = family.build(&params, Policy::Keep);
        let record = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
        let (end, mut grads) = (record.loss.unwrap(), params.new_grad());
        let mut run = Execution::new(record.tape, params.clone(), vec![]);
        run.forward().unwrap();
        run.seed(end, Tensor::from(1.0));
        run.backward(Some(&mut grads)).unwrap();
        assert_eq!(run.value(end).double_value(&[]), 0.0, "{loss:?}");
        assert_eq!(grads.flat().abs().max().double_value(&[]), 0.0, "{loss:?}");
    }
}

/// Where maps read a rank's own tokens, their masks are those of a process that has all tokens.
#[test]
fn ranks_that_split_tokens_outside_of_regions_number_their_own() {
    let of_rank = |tp_rank: usize| -> Vec<i64> {
        let place = ParallelRank { tp: 2, tp_rank, sequence: true, ..ParallelRank::default() };
        let family = model(DENSE).foundation.divided(&place).unwrap();
        let params = ParamStore::new(family.specs(), CPU.0, CPU.1);
        let model = family.build(&params, Policy::Keep);
        let rows = model.dropout_rows(&micro_batch(&[4, 3], 1, 64, 1));
        rows.iter().flat_map(|rows| Vec::<i64>::try_from(rows).unwrap()).collect()
    };
    assert_eq!([of_rank(0), of_rank(1)], [vec![0, 1, 2], vec![3, 4, 5, 6]]);
}
