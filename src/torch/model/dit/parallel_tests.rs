//! Stages of blocks, and ranks that share blocks, against one process.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use loongforge_core::config::{ContextAttention, Layout};
use tch::{Device, Kind, Tensor};

use super::tests::{Fixture, Found, error, folders};
use crate::comm::Mesh;
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::foundation::{FoundationFamily, FoundationModel, VelocityTape};
use crate::model::objective::FlowSettings;
use crate::model::stage::Stage;
use crate::model::towers::with_values;
use crate::params::{ParallelRank, ParamStore};
use crate::tape::{ContextShard, Execution, Policy};

const TOLERANCE: f64 = 1e-4;

fn alone(fixture: &Fixture) -> Found {
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    fixture.run(&fixture.model(Policy::Keep), &all)
}

/// A rank that has one micro-batch fewer than the others computes a filler, whatever its transformer reads beside latents.
#[test]
fn fillers_of_all_transformers_count_for_nothing() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let model = fixture.model(Policy::Keep);
        let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
        let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
        run.forward().unwrap();
        let loss = tape.loss.unwrap();
        run.seed(loss, Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        let norm = grads.flat().norm().double_value(&[]);
        assert_eq!((run.value(loss).double_value(&[]), norm), (0.0, 0.0), "{}", fixture.name);
    }
}

/// One stage's values go to the next, and its gradients come back.
#[test]
fn stages_compute_what_the_whole_does() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let expected = alone(&fixture);
        let stages = Stage::all(vec![0..1, 1..fixture.family.num_layers()]);
        let num_specs: usize = stages.iter().map(|stage| fixture.family.stage_specs(stage).len()).sum();
        assert_eq!(num_specs, fixture.family.specs().len(), "a parameter is of one stage");
        let mut runs: Vec<(Execution, _)> = Vec::new();
        for stage in &stages {
            let model = fixture.family.stage_model(stage, &fixture.params, Policy::Recompute);
            let tape = model.recorder().record_with(&fixture.batch(&all), fixture.noise());
            let mut inputs = with_values(&tape.features, &fixture.features(&all));
            if let Some((before, outbound)) = runs.last() {
                let outbound: &Vec<crate::tape::Boundary> = outbound;
                assert_eq!(tape.inbound.len(), outbound.len());
                for (there, here) in outbound.iter().zip(&tape.inbound) {
                    let value = before.value(there.slot);
                    assert_eq!((value.size(), value.kind()), (here.shape.clone(), here.kind));
                    inputs.push((here.slot, value.detach()));
                }
            }
            let mut run = Execution::new(tape.tape, fixture.params.clone(), inputs);
            run.forward().unwrap();
            if let Some(loss) = tape.loss {
                assert!((run.value(loss).double_value(&[]) / expected.loss - 1.0).abs() < 1e-6, "{}", fixture.name);
                run.seed(loss, Tensor::from(1f64));
            }
            runs.push((run, if stage.is_last { tape.inbound } else { tape.outbound }));
        }
        let mut grads = fixture.params.new_grad();
        let (mut last, inbound) = runs.pop().unwrap();
        let (mut first, outbound) = runs.pop().unwrap();
        last.backward(Some(&mut grads)).unwrap();
        for (there, here) in outbound.iter().zip(&inbound) {
            if let Some(grad) = last.input_grad(here.slot).filter(|_| here.requires_grad) {
                first.seed(there.slot, grad);
            }
        }
        first.backward(Some(&mut grads)).unwrap();
        assert!(error(grads.flat(), expected.grads.flat()) < 1e-6, "{}", fixture.name);
    }
}

/// One stage's values go to the next where samples are made.
#[test]
fn stages_tell_the_velocity_of_the_whole() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let mut before: Vec<Tensor> = Vec::new();
        for stage in Stage::all(vec![0..1, 1..fixture.family.num_layers()]) {
            let model = fixture.family.stage_model(&stage, &fixture.params, Policy::Recompute);
            let recorded = model.record_velocity(&fixture.batch(&all), &fixture.noised(&all)).unwrap();
            let VelocityTape { tape, features, inbound, outbound, velocity, .. } = recorded;
            let mut inputs = with_values(&features, &fixture.features(&all));
            assert_eq!(inbound.len(), before.len());
            inputs.extend(inbound.iter().map(|boundary| boundary.slot).zip(before));
            let mut run = Execution::forward_only(tape, fixture.params.clone(), inputs);
            run.forward().unwrap();
            before = outbound.iter().map(|boundary| run.value(boundary.slot).copy()).collect();
            assert_eq!(velocity.is_some(), stage.is_last);
            if let Some(velocity) = velocity {
                assert!(error(run.value(velocity), &fixture.velocity(&all)) < 1e-6, "{}", fixture.name);
            }
        }
    }
}

/// The results of one of two ranks.
struct OnRank {
    loss: f64,
    /// The velocity of its tokens, and which of all these are.
    velocity: (Tensor, Option<Vec<i64>>),
    /// The name of each parameter, whether the rank has all of it, and its gradient.
    params: Vec<(String, bool, Tensor)>,
    /// Gradients of features, by input.
    features: Vec<Option<Tensor>>,
}

fn on_rank(folder: &Path, store: &Path, layout: Layout, rank: usize) -> OnRank {
    let fixture = Fixture::read(folder);
    let mesh = Rc::new(Mesh::join(store, "pool", layout, rank, Duration::from_secs(60)).unwrap());
    let family = fixture.family.divided(&ParallelRank::of(&mesh, false)).unwrap();
    family.check_context(layout.cp, ContextAttention::Ulysses).unwrap();
    let params = Rc::new(ParamStore::new(family.specs(), Kind::Float, Device::Cpu));
    for id in params.ids() {
        let (spec, whole) = (params.spec(id), fixture.params.get(&params.spec(id).name).detach());
        params.set(id, &spec.shard.as_ref().map_or(whole.shallow_clone(), |shard| shard.take(&whole)));
    }
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    let mut batch = fixture.batch(&all);
    if layout.cp > 1 {
        let (ends, context) = (&batch.cu_seqlens, ContextAttention::Ulysses);
        let row = Rc::new(ContextShard::new(ends, layout.cp, mesh.place().cp, context, Device::Cpu));
        let features = batch.num_features.iter().map(|rows| (0..*rows).collect()).collect();
        batch = batch.share(row, features);
    }
    let model = family.build(&params, Policy::Recompute);
    let told = model.record_velocity(&batch, &fixture.noised(&all)).unwrap();
    let inputs = with_values(&told.features, &fixture.features(&all));
    let mut run = Execution::forward_only(told.tape, params.clone(), inputs).with_mesh(mesh.clone());
    run.forward().unwrap();
    let velocity = (run.value(told.velocity.unwrap()).copy(), told.own);
    let tape = model.record(&batch);
    let inputs = with_values(&tape.features, &fixture.features(&all));
    let mut run = Execution::new(tape.tape, params.clone(), inputs).with_mesh(mesh);
    run.forward().unwrap();
    let loss = run.value(tape.loss.unwrap()).double_value(&[]);
    run.seed(tape.loss.unwrap(), Tensor::from(1f64));
    let mut grads = params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    let of = |id| {
        let spec = params.spec(id);
        (spec.name.clone(), spec.shape == spec.whole_shape(), grads.view(id).copy())
    };
    let features = tape.features.iter().map(|slots| slots.first().and_then(|slot| run.input_grad(*slot))).collect();
    OnRank { loss, velocity, params: params.ids().map(of).collect(), features }
}

/// Ranks have half of the heads each, or some of the tokens of each sample, in uneven parts.
#[test]
fn two_ranks_compute_what_one_does() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let tape = fixture.model(Policy::Keep).record(&fixture.batch(&all));
        let mut run =
            Execution::new(tape.tape, fixture.params.clone(), with_values(&tape.features, &fixture.features(&all)));
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        for layout in [Layout { tp: 2, ..Layout::default() }, Layout { cp: 2, ..Layout::default() }] {
            let store = tempfile::tempdir().unwrap();
            let place = &store.path().join("store");
            let ranks: Vec<OnRank> = std::thread::scope(|scope| {
                let ranks = [0, 1].map(|rank| {
                    let folder = &folder;
                    scope.spawn(move || on_rank(folder, place, layout, rank))
                });
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            let what = format!("{} {layout:?}", fixture.name);
            let whole = fixture.velocity(&all);
            let gathered = whole.zeros_like();
            for (rows, own) in ranks.iter().map(|rank| &rank.velocity) {
                let everything: Vec<i64> = (0..whole.size()[0]).collect();
                let own = Tensor::from_slice(own.as_ref().unwrap_or(&everything));
                let _ = gathered.shallow_clone().index_copy_(0, &own, rows);
            }
            assert!(error(&gathered, &whole) < 1e-5, "{what}");
            let most = grads.flat().abs().max().double_value(&[]);
            for (number, (name, is_whole, own)) in ranks[0].params.iter().enumerate() {
                let expected = grads.view(fixture.params.id(name));
                let (other_name, _, other) = &ranks[1].params[number];
                assert_eq!(name, other_name);
                // The one dimension that is cut.
                let dim = (0..own.dim() as i64).find(|dim| own.size()[*dim as usize] != expected.size()[*dim as usize]);
                let found = if *is_whole { own + other } else { Tensor::cat(&[own, other], dim.unwrap()) };
                let difference = (found - expected).abs().max().double_value(&[]);
                let scale = expected.abs().max().double_value(&[]).max(0.02 * most);
                assert!(difference / scale < TOLERANCE, "{what} {name}: {difference} of {scale}");
            }
            if layout.tp > 1 {
                for found in &ranks {
                    assert!((found.loss / loss - 1.0).abs() < 1e-6, "{what}: {} of {loss}", found.loss);
                }
                continue;
            }
            let sum = ranks[0].loss + ranks[1].loss;
            assert!(ranks.iter().all(|found| found.loss > 0.1 * loss), "{what}: each has some of the tokens");
            assert!((sum / loss - 1.0).abs() < 1e-6, "{what}: {sum} of {loss}");
            for (input, slots) in tape.features.iter().enumerate() {
                let Some(expected) = slots.first().and_then(|slot| run.input_grad(*slot)) else { continue };
                let [one, other] = [0, 1].map(|rank: usize| ranks[rank].features[input].as_ref().unwrap());
                assert!(error(&(one + other), &expected) < TOLERANCE, "{what} input {input}");
            }
        }
    }
}

/// Returns the loss of the fixture's samples with masks, and the gradients of all parameters: of one process, or of a rank that has some of
/// the tokens of each sample and meets the other one in a store.
fn masked(folder: &Path, rank: Option<(&Path, usize)>) -> (f64, Tensor) {
    let fixture = Fixture::read(folder);
    let family = fixture.family.with_flow(FlowSettings { masks: true, ..FlowSettings::default() }).unwrap();
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    let mut batch = fixture.batch(&all);
    let weights = Tensor::arange(batch.num_tokens(), (Kind::Float, Device::Cpu)).remainder(3.0) / 2.0;
    batch.columns = Columns::new(&family.columns().into(), vec![weights]);
    let layout = Layout { cp: 2, ..Layout::default() };
    let mesh = rank.map(|(store, rank): (&Path, usize)| {
        Rc::new(Mesh::join(store, "pool", layout, rank, Duration::from_secs(60)).unwrap())
    });
    if let Some(mesh) = &mesh {
        let (ends, context) = (&batch.cu_seqlens, ContextAttention::Ulysses);
        let row = Rc::new(ContextShard::new(ends, layout.cp, mesh.place().cp, context, Device::Cpu));
        let features = batch.num_features.iter().map(|rows| (0..*rows).collect()).collect();
        batch = batch.share(row, features);
    }
    let tape = family.build(&fixture.params, Policy::Keep).record(&batch);
    let inputs = with_values(&tape.features, &fixture.features(&all));
    let mut run = Execution::new(tape.tape, fixture.params.clone(), inputs);
    if let Some(mesh) = mesh {
        run = run.with_mesh(mesh);
    }
    run.forward().unwrap();
    let loss = tape.loss.unwrap();
    run.seed(loss, Tensor::from(1f64));
    let mut grads = fixture.params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    (run.value(loss).double_value(&[]), grads.flat().copy())
}

/// A token's weight is a share of those of its whole sample, also where another rank has the other tokens.
#[test]
fn ranks_that_share_tokens_divide_the_loss_by_whole_masks() {
    for folder in folders() {
        let (loss, grads) = masked(&folder, None);
        let store = tempfile::tempdir().unwrap();
        let place = &store.path().join("store");
        let ranks: Vec<(f64, Tensor)> = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                let folder = &folder;
                scope.spawn(move || masked(folder, Some((place.as_path(), rank))))
            });
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let sum = ranks[0].0 + ranks[1].0;
        assert!((sum / loss - 1.0).abs() < 1e-6, "{}: {sum} of {loss}", folder.display());
        assert!(error(&(&ranks[0].1 + &ranks[1].1), &grads) < TOLERANCE, "{}", folder.display());
    }
}

/// The numbers of rows by which ranks drop what one process does.
#[test]
fn rows_of_ranks_are_numbered_among_those_of_all() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let (model, batch) = (fixture.model(Policy::Keep), fixture.batch(&all));
        assert!(model.dropout_rows(&batch).is_empty(), "{}", fixture.name);
        let of_rank = |rank: usize| -> Vec<Vec<i64>> {
            let row = ContextShard::new(&batch.cu_seqlens, 2, rank, ContextAttention::Ulysses, Device::Cpu);
            let features = batch.num_features.iter().map(|rows| (0..*rows).collect()).collect();
            let rows = model.dropout_rows(&batch.share(Rc::new(row), features));
            rows.iter().map(|rows| Vec::try_from(rows).unwrap()).collect()
        };
        let [first, second] = [0, 1].map(of_rank);
        assert!(!first.is_empty() && first.len() == second.len(), "{}", fixture.name);
        for (first, second) in first.into_iter().zip(second) {
            let mut both = [first, second].concat();
            both.sort_unstable();
            assert_eq!(both, (0..both.len() as i64).collect::<Vec<_>>(), "{}", fixture.name);
        }
    }
}

#[test]
fn heads_that_ranks_cannot_share_are_named() {
    let fixture = Fixture::read(&folders()[0]);
    let refused = |ranks, context| fixture.family.check_context(ranks, context).unwrap_err().to_string();
    assert!(refused(2, ContextAttention::Ring).contains("context_attention to ulysses"));
    assert!(refused(5, ContextAttention::Ulysses).contains("context_parallel x tensor_parallel=5"));
}

#[test]
fn layouts_that_diffusion_transformers_do_not_have_are_refused_with_the_reason() {
    let fixture = Fixture::read(&folders()[0]);
    let place = ParallelRank { tp: 2, sequence: true, ..ParallelRank::default() };
    let error = fixture.family.divided(&place).err().unwrap().to_string();
    assert!(error.contains("sequence_parallel") && error.contains("context_attention=ulysses"), "{error}");
    assert!(fixture.family.needs_whole_rows().is_some_and(|what| what.contains("attend to later")));
}
