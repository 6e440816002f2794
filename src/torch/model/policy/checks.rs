//! Checks that hold for every policy, whatever its network, and that the tests of all of them share.

use std::rc::Rc;

use loongforge_core::message::SampleId;
use tch::{Device, Tensor};

use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::fixture::{Comparison, Comparisons, Found, ReferenceFixture, error};
use crate::model::foundation::FoundationModel;
use crate::model::objective::NoisePurpose;
use crate::params::{ParamId, ParamStore};
use crate::tape::Execution;

/// A policy's loss, and the norm of its gradients, of these samples of a fixture: by the seed of the run, with a change of each
/// sample's row.
pub type LossOf<'a> = dyn Fn(u64, &[usize], &dyn Fn(&mut SampleRow)) -> (f64, f64) + 'a;

/// Checks that samples in one pack have the losses and gradients that they have alone.
pub fn packed_is_as_alone(name: &str, together: &Found, apart: &[Found]) {
    let loss: f64 = apart.iter().map(|found| found.loss).sum();
    assert!((together.loss / loss - 1.0).abs() < 1e-6, "{name}");
    for of in
        [|found: &Found| found.grads.flat().shallow_clone(), |found: &Found| found.of_tower.flat().shallow_clone()]
    {
        let sum = apart.iter().map(of).reduce(|a, b| a + b).unwrap();
        assert!(error(&of(together), &sum) < 1e-5, "{name}");
    }
}

/// Checks that several draws of noise have an even share of the loss and of its gradients: `draw` runs one of them alone.
pub fn draws_share_evenly(name: &str, whole: &Found, num_draws: i64, draw: impl Fn(i64) -> Found) {
    let draws: Vec<Found> = (0..num_draws).map(draw).collect();
    let mean = draws.iter().map(|found| found.loss).sum::<f64>() / num_draws as f64;
    assert!((whole.loss / mean - 1.0).abs() < 1e-6, "{name}");
    let sum = draws.iter().map(|found| found.grads.flat().shallow_clone()).reduce(|a, b| a + b).unwrap();
    assert!(error(whole.grads.flat(), &(sum / num_draws as f64)) < 1e-5, "{name}");
}

/// Checks that noise and time of a sample depend on seed, sample and purpose alone, and that a sample without targets has neither
/// loss nor gradient. The fixture has samples 0, 1 and 2.
pub fn noise_is_of_seed_sample_and_purpose(loss: &LossOf<'_>) {
    let own = loss(3, &[1], &|_| {});
    let together = loss(3, &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1));
    assert!((own.0 / together.0 - 1.0).abs() < 1e-6, "{own:?} {together:?}");
    assert_ne!(own.0, loss(4, &[1], &|_| {}).0);
    assert_ne!(own.0, loss(3, &[1], &|row| row.purpose = NoisePurpose::Evaluation(0)).0);
    assert_ne!(own.0, loss(3, &[1], &|row| row.id = SampleId(9)).0);
    assert_eq!(loss(3, &[1], &|row| row.num_targets = 0), (0.0, 0.0));
}

/// Checks that a filler, which a rank without a pack computes, has no loss.
pub fn filler_has_no_loss(model: &dyn FoundationModel, params: &Rc<ParamStore>) {
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    let mut run = Execution::new(tape.tape, params.clone(), Vec::new());
    run.forward().unwrap();
    assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
}

/// Returns the batch with a change of each sample's row.
pub fn changed(mut batch: MicroBatch, change: &dyn Fn(&mut SampleRow)) -> MicroBatch {
    let mut rows = batch.samples.to_vec();
    rows.iter_mut().for_each(change);
    batch.samples = rows.into();
    batch
}

/// Returns the loss and the norm of all gradients.
pub fn loss_and_norm(found: &Found) -> (f64, f64) {
    (found.loss, found.grads.flat().norm().double_value(&[]))
}

/// Returns the rows `[S * R, …]` of draw `number` of `x` `[S * D * R, …]`, in which the draws of each of `num_samples` samples are side
/// by side.
pub fn draw_of(x: &Tensor, num_samples: usize, num_draws: i64, number: i64) -> Tensor {
    let by_draw = x.unflatten(0, [num_samples as i64, num_draws, -1]);
    by_draw.select(1, number).flatten(0, 1).contiguous()
}

/// A mistake by its name, and how it is made in a fixture; false where the fixture has no place for it.
pub type Mistake<F> = (&'static str, fn(&mut F) -> bool);

/// By how many times its tolerance a mistake has to move something.
const FAR: f64 = 10.0;

/// Checks that a fixture is like the reference as it is, and far from it with each of these mistakes, which code could make and which
/// weights, samples or settings make here. A mistake that a fixture has no place for returns false.
pub fn mistakes_are_far_from_the_reference<F: ReferenceFixture>(
    name: &str,
    open: impl Fn() -> F,
    mistakes: &[Mistake<F>],
) {
    assert!(worst(&open()) <= 1.0, "{name}");
    for (mistake, make) in mistakes {
        let mut fixture = open();
        let off = if make(&mut fixture) { worst(&fixture) } else { f64::INFINITY };
        assert!(off > FAR, "{name}, {mistake}: {off} times the tolerance");
    }
}

/// Returns how far the worst of what a fixture compares is from the reference, as a share of what is tolerated.
fn worst(fixture: &dyn ReferenceFixture) -> f64 {
    let mut with = Comparisons::default();
    fixture.compare(&mut with);
    let off = |one: &Comparison| {
        let off = (&one.found - &one.expected).abs().max().double_value(&[]);
        if off.is_nan() { f64::INFINITY } else { off / (one.share * one.scale).max(f64::MIN_POSITIVE) }
    };
    with.all.iter().map(off).fold(0.0, f64::max)
}

/// Changes the parameters whose names have this part.
pub fn change(params: &ParamStore, part: &str, with: impl Fn(&Tensor) -> Tensor) {
    let ids: Vec<ParamId> = params.ids().filter(|id| params.spec(*id).name.contains(part)).collect();
    assert!(!ids.is_empty(), "no parameter has {part}");
    for id in ids {
        params.set(id, &with(&params.value(id)));
    }
}

/// Exchanges two of the parts that these parameters have along an axis.
pub fn exchange(params: &ParamStore, part: &str, axis: i64, (num_parts, [left, right]): (i64, [usize; 2])) {
    change(params, part, |value| {
        let mut parts = value.chunk(num_parts, axis);
        parts.swap(left, right);
        Tensor::cat(&parts, axis)
    });
}
