//! Rows that go through a pipeline in chunks, against whole rows.

use super::layout_tests::{ADAMW, CPU, Course, assert_equal, begin, compute, mesh, micro_batch, on_ranks};
use super::stages::{Filled, Stages};
use crate::comm::{Mesh, ProcessGroup};
use crate::model::{FoundationModel, FoundationTape, MicroBatch, ModelConfig, Stage};
use crate::native::MemoryWatch;
use crate::parallel::pipeline::{PipelineRun, Recorded};
use crate::params::{Init, LinearModule, LoraConfig, Masks, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};
use crate::train::{Lanes, TrainState};
use loongforge_core::schedule::{Pass, Pipeline};
use serde_json::{Value, json};
use std::rc::Rc;
use tch::{Device, Tensor};

/// Returns a small Qwen3 with these numbers.
fn model(changes: Value) -> ModelConfig {
    let mut config: Value = serde_json::from_str(include_str!("../tests/fixtures/qwen3-seed1/config.json")).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config["layer_types"] = json!(vec!["full_attention"; config["num_hidden_layers"].as_u64().unwrap() as usize]);
    ModelConfig::from_hf(&config).unwrap()
}

fn pool(params: ParamStore, group: ProcessGroup) -> TrainState {
    params.init_random(3);
    TrainState::new(Rc::new(params), group, Lanes::PerReplica, Some(ADAMW)).unwrap()
}

/// A rank of a pipeline with chunks.
struct Rank {
    mesh: Rc<Mesh>,
    pipeline: Pipeline,
    model: Box<dyn FoundationModel>,
    pool: TrainState,
}

impl Rank {
    fn new(config: &ModelConfig, mesh: Rc<Mesh>, policy: Policy) -> Rank {
        let pipeline = Pipeline { ranks: mesh.pp.world(), virtual_stages: 1 };
        let family = &config.foundation;
        let stage = Stage::all(pipeline.layers(family.num_layers()).unwrap()).swap_remove(mesh.pp.rank());
        let params = ParamStore::new(family.stage_specs(&stage), CPU.0, CPU.1);
        let pool = pool(params, ProcessGroup::single()).with_stages(mesh.pp.clone(), &family.shared_by_stages());
        let model = family.build_stage(&stage, pool.params(), policy);
        Rank { mesh, pipeline, model, pool }
    }

    /// Returns the loss; `seen` is told of the run after every task.
    fn step(&mut self, rows: &[MicroBatch], chunk: usize, mut seen: impl FnMut(&PipelineRun, Pass)) -> f64 {
        let cut: Vec<Vec<MicroBatch>> = rows.iter().map(|row| self.model.pieces(row, chunk).unwrap()).collect();
        let counts: Vec<usize> = cut.iter().map(Vec::len).collect();
        let lens: Vec<usize> =
            rows.iter().zip(&counts).flat_map(|(row, n)| vec![row.num_tokens() as usize; *n]).collect();
        let pieces: Vec<MicroBatch> = cut.into_iter().flatten().collect();
        let mut run = PipelineRun::new(self.mesh.clone(), self.pipeline, &counts);
        let (params, mut sum) = (self.pool.params().clone(), 0.0);
        while let Some(task) = run.next() {
            if task.pass == Pass::Forward {
                let record = self.model.record(&pieces[task.micro_batch]);
                let FoundationTape { tape, inbound, outbound, loss, key_values, .. } = record;
                let row_tokens = lens[task.micro_batch];
                let inputs = Vec::new();
                let recorded =
                    Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout: None };
                let read = |_, run: &Execution| sum += loss.map_or(0.0, |loss| run.value(loss).double_value(&[]));
                run.forward(&params, vec![recorded], begin(&params), read).unwrap();
            } else {
                let lane = self.pool.own_lane();
                run.backward(&params, self.pool.lane(lane), None).unwrap();
            }
            seen(&run, task.pass);
        }
        run.finish().unwrap();
        sum
    }
}

fn rows(step: i64) -> Vec<MicroBatch> {
    let lens = [&[25usize, 3, 12][..], &[6], &[2, 30, 9]];
    lens.into_iter().enumerate().map(|(index, lens)| micro_batch(lens, step * 10 + index as i64, 64, 3)).collect()
}

#[test]
fn chunks_equal_whole_rows() {
    let config = model(json!({"num_hidden_layers": 4}));
    let family = &config.foundation;
    let mut alone = pool(ParamStore::new(family.specs(), CPU.0, CPU.1), ProcessGroup::single());
    let model = family.build(alone.params(), Policy::Keep);
    let mut expected = Course::default();
    for step in 0..5 {
        let loss = rows(step).iter().map(|row| compute(model.as_ref(), &mut alone, row)).sum();
        expected.end_step(&mut alone, loss);
    }
    for (ranks, chunk) in [(1, 7), (2, 8), (2, 100), (4, 5)] {
        let courses = on_ranks(ranks, |path, rank| {
            let mut rank = Rank::new(&config, mesh(path, 1, ranks, rank), Policy::Keep);
            let mut course = Course::default();
            for step in 0..5 {
                let loss = rank.step(&rows(step), chunk, |_, _| {});
                course.end_step(&mut rank.pool, loss);
            }
            course
        });
        let mut found = Course { losses: vec![0.0; 5], ..Course::default() };
        for course in courses {
            found.losses.iter_mut().zip(&course.losses).for_each(|(sum, loss)| *sum += loss);
            found.norms = course.norms;
            found.weights.extend(course.weights);
            found.grads.extend(course.grads);
        }
        assert_equal(&found, &expected, 1e-5, &format!("chunks of {chunk} on {ranks} stages"));
    }
}

/// Returns the loss and the gradient of a row with adapters that drop half of their inputs, in chunks of so many tokens; 0: whole.
fn with_dropout(chunk_tokens: usize) -> (f64, Tensor) {
    let config = model(json!({}));
    let lora = LoraConfig { r: 2, alpha: 4.0, dropout: 0.5, use_rslora: false, use_dora: false };
    let base = config.foundation.specs();
    let adapters = base.iter().filter_map(LinearModule::of).flat_map(|module| lora.specs(&module));
    let adapters: Vec<ParamSpec> = adapters.map(|spec| ParamSpec { init: Init::Normal(0.3), ..spec }).collect();
    let specs = base.into_iter().map(ParamSpec::frozen).chain(adapters).collect();
    let params = Rc::new(ParamStore::new(specs, CPU.0, CPU.1));
    params.init_random(3);
    let (mesh, pipeline) = (Rc::new(Mesh::single()), Pipeline { ranks: 1, virtual_stages: 1 });
    let models = vec![config.foundation.build(&params, Policy::Recompute)];
    let stages = Stages::new(mesh.clone(), pipeline, models, chunk_tokens);
    let row = Filled { batch: micro_batch(&[25, 3, 12], 1, 64, 1), features: Vec::new() };
    let chunks = stages.chunks(row, &params).unwrap();
    let mut run = PipelineRun::new(mesh, pipeline, &[chunks.len()]);
    let (mut grads, mut sum) = (params.new_grad(), 0.0);
    while let Some(task) = run.next() {
        if task.pass == Pass::Backward {
            run.backward(&params, Some(&mut grads), None).unwrap();
            continue;
        }
        let batch = &chunks[task.micro_batch].batch;
        let FoundationTape { tape, inbound, outbound, loss, key_values, .. } = stages.any().record(batch);
        let rows = stages.dropout_rows(task.stage, task.micro_batch, batch, Device::Cpu);
        let (inputs, row_tokens, dropout) = (Vec::new(), 40, Some(Masks::new(5, rows)));
        let recorded = Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout };
        let read = |_, run: &Execution| sum += loss.map_or(0.0, |loss| run.value(loss).double_value(&[]));
        run.forward(&params, vec![recorded], begin(&params), read).unwrap();
    }
    run.finish().unwrap();
    (sum, grads.flat().copy())
}

#[test]
fn chunks_drop_what_whole_rows_drop() {
    let (loss, grads) = with_dropout(0);
    for chunk_tokens in [7, 16, 100] {
        let (found, of_chunks) = with_dropout(chunk_tokens);
        assert!((found / loss - 1.0).abs() < 1e-5, "chunks of {chunk_tokens}: loss {found}, expected {loss}");
        let error = ((&of_chunks - &grads).norm() / grads.norm()).double_value(&[]);
        assert!(error < 1e-4, "chunks of {chunk_tokens}: the gradient is off by {error}");
    }
}

/// Returns the bytes of activations after all forwards, and the most at once, without the pool of keys and values.
fn activations(num_chunks: usize, chunk: usize) -> (i64, i64) {
    let config = model(json!({
        "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 256, "num_key_value_heads": 1,
    }));
    let mut rank = Rank::new(&config, Rc::new(Mesh::single()), Policy::Recompute);
    let row = micro_batch(&[num_chunks * chunk], 1, 64, 1);
    let mut watch = MemoryWatch::start();
    let before = watch.current();
    let (mut kept, mut most) = (0, 0);
    rank.step(&[row], chunk, |run, pass| {
        let pool = run.num_pool_bytes() as i64;
        if pass == Pass::Forward {
            kept = watch.current() - before - pool;
        }
        most = most.max(watch.peak() - before - pool);
        watch.reset_peak();
    });
    (kept, most)
}

#[test]
fn activations_stay_as_the_row_grows() {
    let chunk = 64;
    let (few, many) = (activations(4, chunk), activations(32, chunk));
    println!("{few:?} with 4 chunks, {many:?} with 32");
    // Tokens, positions and their tables are all that is left of a chunk.
    let of_tokens = (32 - 4) * chunk as i64 * 400;
    assert!(many.0 - few.0 <= of_tokens, "{} bytes kept with 4 chunks, {} with 32", few.0, many.0);
    // What one layer attends to, and which of it, while it is computed.
    let of_keys = (32 - 4) * chunk as i64 * 2000;
    assert!(many.1 - few.1 <= of_keys, "{} bytes at most with 4 chunks, {} with 32", few.1, many.1);
}
