//! What holds of X-VLA beside the reference's numbers (`tests/parity.rs`), on fixtures that `tests/oracle/make_xvla.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use loongforge_core::message::SampleId;
use tch::{Device, Kind, Tensor};

use super::fixture::Fixture;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::fixture::{self, Found, error};
use crate::model::foundation::{FoundationFamily, FoundationModel};
use crate::model::objective::{FlowSettings, LossKind, NoisePurpose};
use crate::model::policy::{Noise, PolicyOptions, RobotPolicy};
use crate::tape::{Execution, Policy};

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("policies", &["xvla"]), |folder| Fixture::read(folder, Kind::Float))
}

fn first() -> Fixture {
    fixtures().swap_remove(0).1
}

#[test]
fn actions_of_samples_are_what_they_are_alone() {
    for (name, fixture) in fixtures() {
        let act = |samples: &[usize]| fixture.act(samples).unwrap();
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|sample| act(&[sample])).collect();
        assert!(error(&act(&fixture.all()), &Tensor::cat(&alone, 0)) < 1e-5, "{name}");
    }
}

/// Losses, and gradients of all parameters, of samples alone and in any order.
#[test]
fn packed_samples_are_what_they_are_alone() {
    for (name, fixture) in fixtures() {
        let model = fixture.model(Policy::Keep, false);
        let order: Vec<usize> = fixture.all().into_iter().rev().collect();
        let together = fixture.run(&model, &order);
        let apart: Vec<Found> = order.iter().map(|sample| fixture.run(&model, &[*sample])).collect();
        let loss: f64 = apart.iter().map(|found| found.loss).sum();
        assert!((together.loss / loss - 1.0).abs() < 1e-6, "{name}");
        for of in
            [|found: &Found| found.grads.flat().shallow_clone(), |found: &Found| found.of_tower.flat().shallow_clone()]
        {
            let sum = apart.iter().map(of).reduce(|a, b| a + b).unwrap();
            assert!(error(&of(&together), &sum) < 1e-5, "{name}");
        }
    }
}

/// The gradient of everything that Florence-2 computes with is exactly nothing, and that of the transformer is what it was.
#[test]
fn insulated_gradients_end_at_the_transformer() {
    let fixture = first();
    let [free, insulated] =
        [false, true].map(|insulate| fixture.run(&fixture.model(Policy::Keep, insulate), &fixture.all()));
    assert_eq!(free.loss, insulated.loss);
    assert_eq!(insulated.of_tower.flat().abs().max().double_value(&[]), 0.0);
    let mut counts = [0, 0];
    for id in fixture.params.trained_ids() {
        let name = &fixture.params.spec(id).name;
        let [free, insulated] = [&free, &insulated].map(|found| found.grads.view(id).shallow_clone());
        match fixture.config.is_of_prefix(name) {
            true => assert_eq!(insulated.abs().max().double_value(&[]), 0.0, "{name}"),
            false => assert_eq!(free, insulated, "{name}"),
        }
        counts[usize::from(fixture.config.is_of_prefix(name))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

/// Several draws are as many samples of one draw each, with an even share of the loss.
#[test]
fn draws_have_an_even_share_of_their_sample() {
    let fixture = first();
    let whole = fixture.run(&fixture.model(Policy::Keep, false), &fixture.all());
    let single = fixture.family(PolicyOptions::default()).model(&fixture.params, Policy::Keep);
    let num_draws = fixture.num_draws();
    let noise = fixture.noise(&fixture.all());
    let draw = |number: i64| {
        let pick = |x: &Tensor| {
            let by_draw = x.unflatten(0, [fixture.all().len() as i64, num_draws, -1]);
            by_draw.select(1, number).flatten(0, 1).contiguous()
        };
        let own = Noise { noise: pick(&noise.noise), times: pick(&noise.times), delays: Vec::new() };
        fixture.run_tape(single.record_with(&fixture.batch(&fixture.all()), &own), &fixture.all(), Policy::Keep)
    };
    let draws: Vec<Found> = (0..num_draws).map(draw).collect();
    let mean = draws.iter().map(|found| found.loss).sum::<f64>() / num_draws as f64;
    assert!((whole.loss / mean - 1.0).abs() < 1e-6);
    let sum = draws.iter().map(|found| found.grads.flat().shallow_clone()).reduce(|a, b| a + b).unwrap();
    assert!(error(whole.grads.flat(), &(sum / num_draws as f64)) < 1e-5);
}

/// Noise and time belong to seed, sample and purpose; a sample that lost an item, and a filler, count for nothing.
#[test]
fn samples_have_their_own_noise_and_count_by_their_targets() {
    let fixture = first();
    let settings = |seed, kind| FlowSettings { seed, kind, ..FlowSettings::default() };
    let loss = |settings: FlowSettings, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let model = fixture.family(PolicyOptions { noise_draws: 2, ..PolicyOptions::default() });
        let model = model.with_flow(settings).unwrap().build(&fixture.params, Policy::Keep);
        let mut batch = fixture.batch(samples);
        let mut rows = batch.samples.to_vec();
        rows.iter_mut().for_each(change);
        batch.samples = rows.into();
        let found = fixture.run_tape(model.record(&batch), samples, Policy::Keep);
        (found.loss, found.grads.flat().norm().double_value(&[]))
    };
    let mse = LossKind::Mse;
    let own = loss(settings(3, mse), &[1], &|_| {});
    let together = loss(settings(3, mse), &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1));
    assert!((own.0 / together.0 - 1.0).abs() < 1e-6, "{own:?} {together:?}");
    assert_ne!(own.0, loss(settings(4, mse), &[1], &|_| {}).0);
    assert_ne!(own.0, loss(settings(3, LossKind::Huber { delta: 0.1 }), &[1], &|_| {}).0);
    assert_ne!(own.0, loss(settings(3, mse), &[1], &|row| row.purpose = NoisePurpose::Evaluation(0)).0);
    assert_ne!(own.0, loss(settings(3, mse), &[1], &|row| row.id = SampleId(9)).0);
    assert_eq!(loss(settings(3, mse), &[1], &|row| row.num_targets = 0), (0.0, 0.0));
    let model = fixture.model(Policy::Keep, false);
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
    run.forward().unwrap();
    assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
}
