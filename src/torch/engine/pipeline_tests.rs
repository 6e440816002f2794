//! Pipelines against one process.

use super::layout_tests::{ADAMW, CPU, Course, assert_equal, begin, mesh, micro_batch, on_ranks};
use crate::comm::{Mesh, ProcessGroup};
use crate::model::{Balance, FoundationModel, FoundationTape, INPUT_IDS, MicroBatch, ModelConfig, Stage, TARGETS};
use crate::parallel::pipeline::{PipelineRun, Recorded};
use crate::params::{ParamStore, Sharding, ZeroStage};
use crate::tape::{Execution, Policy, Slot};
use crate::train::{Lanes, TrainState};
use loongforge_core::message::{Tower, TowerSet};
use loongforge_core::schedule::{Pass, Pipeline};
use serde_json::{Value, json};
use std::rc::Rc;
use tch::Tensor;

const STEPS: i64 = 5;

/// Returns a fixture's model with so many layers.
fn model(config: &str, num_layers: usize) -> ModelConfig {
    let mut config: Value = serde_json::from_str(config).unwrap();
    let text = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    text["num_hidden_layers"] = json!(num_layers);
    if text.get("layer_types").is_some() {
        text["layer_types"] = json!(vec!["full_attention"; num_layers]);
    }
    ModelConfig::from_hf(&config).unwrap()
}

fn dense() -> ModelConfig {
    model(include_str!("../tests/fixtures/qwen3-seed1/config.json"), 5)
}

/// Returns a model with losses over all layers' routers.
fn moe() -> ModelConfig {
    let mut config = model(include_str!("../tests/fixtures/qwen3_moe-seed1/config.json"), 4);
    let balance = Balance { aux_loss_coef: 0.1, z_loss_coef: 0.01, bias_update_rate: 0.0 };
    config.edit_decoder(|decoder| decoder.balance = balance).unwrap();
    config
}

/// Returns a model with features of DeepStack for the first layers.
fn vlm() -> ModelConfig {
    model(include_str!("../tests/fixtures/qwen3_vl-seed1/config.json"), 4)
}

fn batches(config: &ModelConfig, step: i64, count: usize) -> Vec<MicroBatch> {
    let vocab = config.decoder().unwrap().vocab_size.min(64);
    let placeholder = config.inputs().first().map(|input| input.placeholders[0]);
    let batch = |index: usize| {
        let mut batch = micro_batch(&[6 + index, 9, 3], step * 10 + index as i64, vocab, count);
        // Every other micro-batch has a picture.
        if let Some(placeholder) = placeholder.filter(|_| index.is_multiple_of(2)) {
            batch.num_features = vec![4];
            batch.feature_grads = true;
            let _ = batch.columns.get(INPUT_IDS).narrow(0, 1, 4).fill_(placeholder);
            let _ = batch.columns.get(TARGETS).narrow(0, 0, 5).fill_(-100);
        }
        batch
    };
    (0..count).map(batch).collect()
}

/// Returns the features of a micro-batch, one for each level.
fn features(batch: &MicroBatch, level: usize, width: i64) -> Tensor {
    let len = batch.num_features[0] * width;
    ((Tensor::arange(len, CPU) + level as i64 * 7) * 0.31).sin().view([batch.num_features[0], width])
}

fn pool(params: ParamStore, group: impl Into<Rc<ProcessGroup>>) -> TrainState {
    params.init_random(3);
    TrainState::new(Rc::new(params), group, Lanes::PerReplica, Some(ADAMW)).unwrap()
}

/// One process; what it computed and the features' gradients of the last step.
fn alone(config: &ModelConfig, count: usize) -> (Course, Vec<Tensor>) {
    let params = ParamStore::new(config.foundation.specs(), CPU.0, CPU.1);
    let mut pool = pool(params, ProcessGroup::single());
    let model = config.foundation.build(pool.params(), Policy::Keep);
    let (mut course, mut of_features) = (Course::default(), Vec::new());
    for step in 0..STEPS {
        let mut sum = 0.0;
        of_features.clear();
        for batch in batches(config, step, count) {
            let record = model.record(&batch);
            let levels = record.features.iter().flatten().enumerate();
            let inputs = levels.map(|(level, slot)| (*slot, features(&batch, level, config.foundation.shape().width)));
            let mut run = Execution::new(record.tape, pool.params().clone(), inputs.collect());
            run.forward().unwrap();
            sum += run.value(record.loss.unwrap()).double_value(&[]);
            run.seed(record.loss.unwrap(), Tensor::from(1.0));
            let lane = pool.own_lane();
            run.backward(pool.lane(lane)).unwrap();
            of_features.extend(record.features.iter().flatten().map(|slot| run.input_grad(*slot).unwrap()));
        }
        course.end_step(&mut pool, sum);
    }
    (course, of_features)
}

fn recorded(record: FoundationTape, inputs: Vec<(Slot, Tensor)>) -> Recorded {
    let FoundationTape { tape, inbound, outbound, loss, key_values, .. } = record;
    Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens: 0, dropout: None }
}

/// Returns a rank of `dp` replicas of a pipeline.
fn rank_of(
    config: &ModelConfig,
    pipeline: Pipeline,
    mesh: &Rc<Mesh>,
    shared: ZeroStage,
    count: usize,
) -> (Course, Vec<Tensor>) {
    let (dp, replica) = (mesh.data.world(), mesh.data.rank());
    let family = &config.foundation;
    let stages = Stage::all(pipeline.layers(family.num_layers()).unwrap());
    let own: Vec<usize> = pipeline.stages_of(mesh.pp.rank()).collect();
    let specs = own.iter().flat_map(|stage| family.stage_specs(&stages[*stage])).collect();
    let sharding = Sharding::new(shared, replica, dp);
    let tied = family.shared_by_stages();
    let params = ParamStore::shared_out(specs, CPU.0, CPU.1, sharding);
    let mut pool = pool(params, mesh.data.clone()).with_stages(mesh.pp.clone(), &tied);
    let params = pool.params().clone();
    let models: Vec<Box<dyn FoundationModel>> =
        own.iter().map(|stage| family.build_stage(&stages[*stage], &params, Policy::Keep)).collect();
    let (mut course, mut of_features) = (Course::default(), Vec::new());
    for step in 0..STEPS {
        let mine: Vec<MicroBatch> = batches(config, step, count).into_iter().skip(replica).step_by(dp).collect();
        let mut run = PipelineRun::new(mesh.clone(), pipeline, &vec![1; mine.len()]);
        let (mut sum, mut slots) = (0.0, vec![Vec::new(); mine.len()]);
        let mut grads: Vec<Vec<Tensor>> = mine.iter().map(|_| Vec::new()).collect();
        while let Some(task) = run.next() {
            let chunk = own.iter().position(|stage| *stage == task.stage).unwrap();
            if task.pass == Pass::Forward {
                let batch = &mine[task.micro_batch];
                let record = models[chunk].record(batch);
                let levels = record.features.iter().flatten().enumerate();
                let width = config.foundation.shape().width;
                let inputs = levels.map(|(level, slot)| (*slot, features(batch, level, width))).collect();
                if stages[task.stage].is_first {
                    slots[task.micro_batch] = record.features.concat();
                }
                let loss = record.loss;
                let seen = |_, run: &Execution| sum += loss.map_or(0.0, |loss| run.value(loss).double_value(&[]));
                run.forward(&params, vec![recorded(record, inputs)], begin(&params), seen).unwrap();
            } else {
                let lane = pool.own_lane();
                let done = run.backward(&params, pool.lane(lane), None).unwrap().remove(0);
                if stages[task.stage].is_first {
                    let of_batch = slots[task.micro_batch].iter().map(|slot| done.input_grad(*slot).unwrap());
                    grads[task.micro_batch] = of_batch.collect();
                }
            }
        }
        run.finish().unwrap();
        of_features = grads.into_iter().flatten().collect();
        course.end_step(&mut pool, sum);
    }
    (course, of_features)
}

fn check(config: fn() -> ModelConfig, pipeline: Pipeline, dp: usize, shared: ZeroStage, count: usize, what: &str) {
    let (expected, of_features) = alone(&config(), count);
    let ranks = on_ranks(dp * pipeline.ranks, |path, rank| {
        rank_of(&config(), pipeline, &mesh(path, dp, pipeline.ranks, rank), shared, count)
    });
    let mut found = Course { losses: vec![0.0; STEPS as usize], ..Course::default() };
    let mut grads = Vec::new();
    for (rank, (course, of_rank)) in ranks.into_iter().enumerate() {
        found.losses.iter_mut().zip(&course.losses).for_each(|(sum, loss)| *sum += loss);
        found.norms = course.norms;
        // A tied table is in two stages and the same in both.
        for (name, tensor) in course.weights {
            if let Some(other) = found.weights.insert(name.clone(), tensor.copy()) {
                assert_eq!(other, tensor, "{what}: {name} differs between ranks");
            }
        }
        found.grads.extend(course.grads);
        if rank == 0 {
            grads = of_rank;
        }
    }
    assert_equal(&found, &expected, 1e-5, what);
    if dp == 1 {
        assert_eq!(grads.len(), of_features.len());
        for (found, expected) in grads.iter().zip(&of_features) {
            let error = (found - expected).abs().max().double_value(&[]);
            assert!(error <= 1e-5 * expected.abs().max().double_value(&[]), "{what}: gradient of features {error}");
        }
    }
}

fn ranks(ranks: usize) -> Pipeline {
    Pipeline { ranks, virtual_stages: 1 }
}

#[test]
fn stages_of_a_dense_model_equal_one_process() {
    check(dense, ranks(2), 1, ZeroStage::Nothing, 4, "dense, 2 stages");
    check(dense, ranks(4), 1, ZeroStage::Nothing, 3, "dense, 4 stages");
}

#[test]
fn routers_losses_go_over_all_stages() {
    check(moe, ranks(2), 1, ZeroStage::Nothing, 3, "moe, 2 stages");
    check(moe, ranks(4), 1, ZeroStage::Nothing, 2, "moe, 4 stages");
}

#[test]
fn deepstack_goes_on_to_later_stages() {
    check(vlm, ranks(2), 1, ZeroStage::Nothing, 4, "vlm, 2 stages");
    check(vlm, ranks(4), 1, ZeroStage::Nothing, 4, "vlm, 4 stages");
}

#[test]
fn interleaved_stages_equal_one_process() {
    let pipeline = Pipeline { ranks: 2, virtual_stages: 2 };
    check(dense, pipeline, 1, ZeroStage::Nothing, 4, "dense, interleaved");
    check(vlm, pipeline, 1, ZeroStage::Nothing, 5, "vlm, interleaved");
}

#[test]
fn replicas_of_a_pipeline_equal_one_process_whatever_they_share_out() {
    for shared in [ZeroStage::Nothing, ZeroStage::State, ZeroStage::Parameters] {
        check(dense, ranks(2), 2, shared, 4, &format!("dense, 2 replicas of 2 stages, {shared:?}"));
    }
    check(moe, ranks(2), 2, ZeroStage::Gradients, 4, "moe, 2 replicas of 2 stages");
}

/// No gradient is computed of features that nobody waits for, and the gradients of parameters keep their bits.
#[test]
fn constant_features_change_no_gradient_of_a_parameter() {
    let config = vlm();
    let computed = |constant_features: TowerSet| {
        let params = ParamStore::new(config.foundation.specs(), CPU.0, CPU.1);
        let mut pool = pool(params, ProcessGroup::single());
        let model = config.foundation.build(pool.params(), Policy::Keep);
        let batch = MicroBatch { constant_features, ..batches(&config, 0, 1).remove(0) };
        let record = model.record(&batch);
        let levels = record.features.iter().flatten().enumerate();
        let inputs = levels.map(|(level, slot)| (*slot, features(&batch, level, config.foundation.shape().width)));
        let mut run = Execution::new(record.tape, pool.params().clone(), inputs.collect());
        run.forward().unwrap();
        run.seed(record.loss.unwrap(), Tensor::from(1.0));
        let lane = pool.own_lane();
        run.backward(pool.lane(lane)).unwrap();
        let num_given = record.features.iter().flatten().filter(|slot| run.input_grad(**slot).is_some()).count();
        let mut course = Course::default();
        course.end_step(&mut pool, 0.0);
        (course.grads, num_given)
    };
    let (expected, num_levels) = computed(TowerSet::default());
    let (found, num_given) = computed([Tower::Vision].into_iter().collect());
    assert!(num_levels > 1 && num_given == 0, "{num_levels} and {num_given}");
    assert!(found == expected, "other gradients of parameters");
}
