use std::rc::Rc;

use loongforge_core::message::SampleId;
use tch::{Device, Kind, Tensor};

use super::{Drawn, Flow, FlowTarget, NoisePurpose, TimeSampler, TimeWeight};
use crate::native::grad;
use crate::params::{Init, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy, Slot, Tape};

const PI0: TimeSampler = TimeSampler::Beta { alpha: 1.5, beta: 1.0, scale: 0.999, offset: 0.001 };

fn flow(time: TimeSampler) -> Flow {
    Flow { time, target: FlowTarget::Velocity, weight: TimeWeight::Even }
}

/// The times of this many samples.
fn times(sampler: &TimeSampler, count: u64) -> Vec<f64> {
    let flow = flow(sampler.clone());
    (0..count).map(|at| flow.draw(7, SampleId(at), NoisePurpose::Training, &[1]).time).collect()
}

fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64)
}

/// Means and variances of the distributions, and shares of times above 0.9 by their densities.
#[test]
fn times_have_the_statistics_of_their_distribution() {
    let shifted = |shift, of: TimeSampler| TimeSampler::Shift { shift, of: Box::new(of) };
    let beta = |alpha, beta| TimeSampler::Beta { alpha, beta, scale: 1.0, offset: 0.0 };
    let of_beta = |a: f64, b: f64| (a / (a + b), a * b / ((a + b).powi(2) * (a + b + 1.0)));
    let (mean, variance) = of_beta(1.5, 1.0);
    // The mean of 5u / (1 + 4u) is (5 / 4) (1 − ln 5 / 4), its second moment (25 / 16) (1 − ln 5 / 2 + 1 / 5).
    let shift_mean = 1.25 * (1.0 - 5f64.ln() / 4.0);
    let shift_variance = 25.0 / 16.0 * (1.2 - 5f64.ln() / 2.0) - shift_mean * shift_mean;
    for (sampler, (mean, variance), above) in [
        (TimeSampler::Uniform, (0.5, 1.0 / 12.0), 0.1),
        (PI0, (0.001 + 0.999 * mean, 0.998_001 * variance), 1.0 - (0.899f64 / 0.999).powf(1.5)),
        (beta(2.0, 5.0), of_beta(2.0, 5.0), 5.5e-5),
        (beta(0.7, 0.4), of_beta(0.7, 0.4), 0.331_779),
        (beta(1.0, 3.0), of_beta(1.0, 3.0), 1e-3),
        (shifted(5.0, TimeSampler::Uniform), (shift_mean, shift_variance), 1.0 - 0.9 / (5.0 - 4.0 * 0.9)),
        // By symmetry; the variance of a logistic normal has no closed form, this one is by quadrature.
        (TimeSampler::LogitNormal { mean: 0.0, std: 1.0 }, (0.5, 0.043_379), 0.014_01),
    ] {
        let found = times(&sampler, 20_000);
        assert!(found.iter().all(|time| *time > 0.0 && *time < 1.0), "{sampler:?}");
        let (found_mean, found_variance) = moments(&found);
        // Four deviations of a mean of 20,000.
        let tolerance = 4.0 * (variance / 20_000.0).sqrt();
        assert!((found_mean - mean).abs() < tolerance, "{sampler:?}: mean {found_mean} of {mean}");
        assert!((found_variance / variance - 1.0).abs() < 0.05, "{sampler:?}: {found_variance} of {variance}");
        let share = found.iter().filter(|time| **time > 0.9).count() as f64 / 20_000.0;
        assert!((share - above).abs() < 4.0 * (above / 20_000.0).sqrt() + 1e-4, "{sampler:?}: {share} of {above}");
    }
}

#[test]
fn weights_are_those_of_their_formulas() {
    let mean = |weight: TimeWeight| (1..=1000).map(|at| weight.at(f64::from(at) / 1000.0)).sum::<f64>() / 1000.0;
    assert!((mean(TimeWeight::Bell) - 1.0).abs() < 1e-9 && TimeWeight::Bell.at(1.0).abs() < 1e-12);
    assert!((mean(TimeWeight::CosMap) - 1.0).abs() < 1e-3);
    assert!((TimeWeight::CosMap.at(0.5) - 4.0 / std::f64::consts::PI).abs() < 1e-12);
    let capped = TimeWeight::MinSnr { gamma: 5.0 };
    assert!((capped.at(0.1) - 0.05).abs() < 1e-12 && (capped.at(0.8) - 0.04).abs() < 1e-12);
}

#[test]
fn noise_is_normal_and_belongs_to_seed_sample_and_purpose() {
    let flow = flow(TimeSampler::Uniform);
    let draw = |seed, sample, purpose, rows| {
        let Drawn { noise, time } = flow.draw(seed, SampleId(sample), purpose, &[rows, 3]);
        (Vec::<f32>::try_from(noise.flatten(0, 1)).unwrap(), time)
    };
    let (noise, time) = draw(1, 5, NoisePurpose::Training, 20_000);
    let (mean, variance) = moments(&noise.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    // A shorter sample has the first of the same numbers, and the same time.
    assert_eq!(draw(1, 5, NoisePurpose::Training, 4), (noise[..12].to_vec(), time));
    let others = [
        draw(2, 5, NoisePurpose::Training, 4),
        draw(1, 6, NoisePurpose::Training, 4),
        draw(1, 5, NoisePurpose::Evaluation(0), 4),
        draw(1, 5, NoisePurpose::Evaluation(1), 4),
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(other.0[0] != noise[0] && other.1 != time);
        assert!(others[..at].iter().all(|earlier| earlier != other));
    }
}

/// The loss and the gradient of a prediction by the tape.
fn step(flow: &Flow, samples: &[Tensor], drawn: &[Drawn], predicted: &Tensor) -> (f64, Tensor) {
    let mut tape = Tape::new();
    let slot = tape.input(true);
    let loss = flow.record(&mut tape, "flow", slot, &flow.batch(samples, drawn), 0.25);
    let params = Rc::new(ParamStore::new(Vec::new(), Kind::Float, Device::Cpu));
    let mut run = Execution::new(Rc::new(tape), params, vec![(slot, predicted.detach())]);
    run.forward().unwrap();
    run.seed(loss, Tensor::from(2.0));
    run.backward(None).unwrap();
    (run.value(loss).double_value(&[]), run.input_grad(slot).unwrap())
}

/// By the definition and autograd, for both targets; and what a sample gives does not depend on those beside it.
#[test]
fn loss_and_gradient_equal_the_definition_whatever_else_is_in_the_batch() {
    tch::manual_seed(3);
    let sizes = [3i64, 1, 5];
    let random = |rows: i64| Tensor::randn([rows, 4], (Kind::Float, Device::Cpu));
    let samples = sizes.map(random);
    let predicted = random(9);
    for target in [FlowTarget::Velocity, FlowTarget::Sample] {
        let flow = Flow { time: PI0, target, weight: TimeWeight::CosMap };
        let draw = |at: usize| flow.draw(1, SampleId(at as u64), NoisePurpose::Training, &[sizes[at], 4]);
        let leaf = predicted.detach().set_requires_grad(true);
        let (mut expected, mut start) = (Tensor::from(0f32), 0);
        for (at, x) in samples.iter().enumerate() {
            let Drawn { noise, time } = draw(at);
            let wanted = if target == FlowTarget::Velocity { noise - x } else { x.shallow_clone() };
            let error = leaf.narrow(0, start, sizes[at]) - wanted;
            expected += error.square().mean(Kind::Float) * TimeWeight::CosMap.at(time) * 0.25;
            start += sizes[at];
        }
        let of_leaf = grad(&[&expected], &[&Tensor::from(2f32)], &[&leaf]).unwrap().remove(0).unwrap();
        let (loss, found) = step(&flow, &samples, &[draw(0), draw(1), draw(2)], &predicted);
        assert!((loss / expected.double_value(&[]) - 1.0).abs() < 1e-5);
        assert!(found.allclose(&of_leaf, 1e-5, 1e-7, false));
        let mut start = 0;
        for at in 0..3 {
            let own = predicted.narrow(0, start, sizes[at]);
            let (_, alone) = step(&flow, &[samples[at].shallow_clone()], &[draw(at)], &own);
            assert_eq!(alone, found.narrow(0, start, sizes[at]), "sample {at}");
            start += sizes[at];
        }
    }
}

/// A velocity of one number, by two layers.
struct Network {
    params: Rc<ParamStore>,
}

impl Network {
    const WIDTH: i64 = 48;

    fn new() -> Network {
        let spec = |name: &str, shape: [i64; 2]| {
            ParamSpec::new(name.to_owned(), &shape, Init::Normal((2.0 / shape[1] as f64).sqrt()))
        };
        let specs =
            vec![spec("a", [Self::WIDTH, 3]), spec("b", [Self::WIDTH, Self::WIDTH]), spec("c", [1, Self::WIDTH])];
        let params = Rc::new(ParamStore::new(specs, Kind::Float, Device::Cpu));
        params.init_random(2);
        Network { params }
    }

    fn weights(&self) -> [Tensor; 3] {
        ["a", "b", "c"].map(|name| self.params.get(name))
    }

    fn forward(weights: &[Tensor; 3], x: &Tensor, time: &Tensor) -> Tensor {
        let joined = Tensor::cat(&[x, &time.unsqueeze(1), &x.ones_like()], 1);
        let hidden = joined.linear(&weights[0], None::<Tensor>).silu();
        hidden.linear(&weights[1], None::<Tensor>).silu().linear(&weights[2], None::<Tensor>)
    }

    fn record(&self, tape: &mut Tape, x: Slot, time: &Tensor) -> Slot {
        let (weights, time) = (self.weights(), time.shallow_clone());
        let ids = ["a", "b", "c"].map(|name| self.params.id(name));
        let forward = move |reads: &[Tensor]| vec![Self::forward(&weights, &reads[0], &time)];
        tape.run("network", &ids, Policy::Keep, &[x], 1, forward)[0]
    }

    /// The shares of 2,000 noises that come near −1 and near 1.
    fn reached(&self, flow: &Flow) -> [f64; 2] {
        let _no_grad = tch::no_grad_guard();
        let noise = flow.draw(9, SampleId(0), NoisePurpose::Evaluation(0), &[2000, 1]).noise;
        let weights = self.weights();
        let predict = |x: &Tensor, time: f64| {
            let time = Tensor::full([x.size()[0]], time, (Kind::Float, Device::Cpu));
            Self::forward(&weights, x, &time)
        };
        let found = flow.integrate(&noise, 30, predict);
        [-1.0, 1.0]
            .map(|point: f64| (&found - point).abs().lt(0.3).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]))
    }
}

/// A network learns −1 for one of four samples and 1 for the others: from noise its velocity leads to the two points, as
/// often as they are, and to nothing before it was trained.
#[test]
fn a_network_learns_two_points() {
    const BATCH: u64 = 256;
    let flow = flow(TimeSampler::Uniform);
    let network = Network::new();
    let [before_low, before_high] = network.reached(&flow);
    let mut grads = network.params.new_grad();
    let [mean, square] = [(); 2].map(|()| grads.flat().zeros_like());
    let mut losses = Vec::new();
    for number in 0..400u64 {
        let ids = number * BATCH..(number + 1) * BATCH;
        let samples: Vec<Tensor> =
            ids.clone().map(|id| Tensor::from_slice(&[if id % 4 == 0 { -1f32 } else { 1.0 }]).view([1, 1])).collect();
        let drawn: Vec<Drawn> = ids.map(|id| flow.draw(1, SampleId(id), NoisePurpose::Training, &[1, 1])).collect();
        let batch = flow.batch(&samples, &drawn);
        let mut tape = Tape::new();
        let x = tape.input(false);
        let predicted = network.record(&mut tape, x, &batch.time);
        let loss = flow.record(&mut tape, "flow", predicted, &batch, 1.0 / BATCH as f64);
        let mut run = Execution::new(Rc::new(tape), network.params.clone(), vec![(x, batch.noised)]);
        run.forward().unwrap();
        run.seed(loss, Tensor::from(1.0));
        grads.zero();
        run.backward(Some(&mut grads)).unwrap();
        losses.push(run.value(loss).double_value(&[]));
        // Adam.
        let _no_grad = tch::no_grad_guard();
        let grad = grads.flat();
        let _ = mean.shallow_clone().lerp_(grad, 0.1);
        let _ = square.shallow_clone().lerp_(&grad.square(), 0.01);
        let corrected = 1.0 - 0.99f64.powi(number as i32 + 1);
        let _ = network.params.flat().shallow_clone().g_sub_(&(&mean / ((&square / corrected).sqrt() + 1e-8) * 0.01));
    }
    let average = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (average(&losses[..10]), average(&losses[350..]));
    let [low, high] = network.reached(&flow);
    println!("loss {first:.3} to {last:.3}; -1: {before_low:.3} to {low:.3}, 1: {before_high:.3} to {high:.3}");
    assert!(last < 0.5 * first, "{first} to {last}");
    assert!(before_low + before_high < 0.6, "{before_low} {before_high}");
    assert!(low + high > 0.9 && (low - 0.25).abs() < 0.06, "{low} {high}");
}
