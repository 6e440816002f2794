use std::rc::Rc;

use loongforge_core::message::SampleId;
use tch::{Device, Kind, Tensor};

use super::{LossKind, NoisePurpose, TimeWeight, noise};
use crate::native::grad;
use crate::params::ParamStore;
use crate::tape::{Execution, Tape};

#[test]
fn weights_are_those_of_their_formulas() {
    let mean = |weight: TimeWeight| (1..=1000).map(|at| weight.at(f64::from(at) / 1000.0)).sum::<f64>() / 1000.0;
    assert!((mean(TimeWeight::Bell) - 1.0).abs() < 1e-9 && TimeWeight::Bell.at(1.0).abs() < 1e-12);
    assert!((mean(TimeWeight::CosMap) - 1.0).abs() < 1e-3);
    assert!((TimeWeight::CosMap.at(0.5) - 4.0 / std::f64::consts::PI).abs() < 1e-12);
    assert_eq!((TimeWeight::Even.at(0.3), TimeWeight::SigmaSqrt.at(0.25)), (1.0, 16.0));
    assert_eq!(TimeWeight::Linear { slope: 2.0 }.at(0.25), 1.5);
    let capped = TimeWeight::MinSnr { gamma: 5.0 };
    assert!((capped.at(0.1) - 0.05).abs() < 1e-12 && (capped.at(0.8) - 0.04).abs() < 1e-12);
}

#[test]
fn noise_is_normal_and_belongs_to_seed_sample_and_purpose() {
    let draw = |seed, sample, purpose, rows| {
        Vec::<f32>::try_from(noise(seed, SampleId(sample), purpose, &[rows, 3]).flatten(0, 1)).unwrap()
    };
    let own = draw(1, 5, NoisePurpose::Training, 20_000);
    let moment = |power| own.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / own.len() as f64;
    let (mean, variance) = (moment(1), moment(2) - moment(1).powi(2));
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    // A shorter sample has the first of the same numbers.
    assert_eq!(draw(1, 5, NoisePurpose::Training, 4), own[..12]);
    let others = [
        draw(2, 5, NoisePurpose::Training, 4),
        draw(1, 6, NoisePurpose::Training, 4),
        draw(1, 5, NoisePurpose::Evaluation(0), 4),
        draw(1, 5, NoisePurpose::Evaluation(1), 4),
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(other[0] != own[0] && others[..at].iter().all(|earlier| earlier != other));
    }
}

/// The gradients of predictions and of targets are those that autograd finds for the definition.
#[test]
fn losses_and_gradients_equal_the_definition() {
    tch::manual_seed(3);
    let random = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
    let (predicted, target, weight) = (random([9, 4]), random([9, 4]), random([9, 1]).abs());
    for (kind, by_torch) in [
        (LossKind::Mse, (|p, t| p.mse_loss(t, tch::Reduction::None)) as fn(&Tensor, &Tensor) -> Tensor),
        (LossKind::Huber { delta: 0.7 }, |p, t| p.huber_loss(t, tch::Reduction::None, 0.7)),
        (LossKind::SmoothL1 { beta: 0.7 }, |p, t| p.smooth_l1_loss(t, tch::Reduction::None, 0.7)),
        (LossKind::PseudoHuber { delta: 0.7 }, |p, t| ((((p - t) / 0.7).square() + 1).sqrt() - 1) * 0.49),
    ] {
        let leaves = [&predicted, &target].map(|x| x.detach().copy().set_requires_grad(true));
        let expected = (by_torch(&leaves[0], &leaves[1]) * &weight).sum(Kind::Float) * 0.25;
        let wanted = grad(&[&expected], &[&Tensor::from(2f32)], &[&leaves[0], &leaves[1]]).unwrap();

        let mut tape = Tape::new();
        let slots = [tape.input(true), tape.input(true)];
        let loss = kind.record(&mut tape, slots[0], slots[1], weight.shallow_clone(), 0.25);
        let params = Rc::new(ParamStore::new(Vec::new(), Kind::Float, Device::Cpu));
        let inputs = vec![(slots[0], predicted.detach()), (slots[1], target.detach())];
        let mut run = Execution::new(Rc::new(tape), params, inputs);
        run.forward().unwrap();
        run.seed(loss, Tensor::from(2.0));
        run.backward(None).unwrap();
        let found = run.value(loss).double_value(&[]);
        assert!((found / expected.double_value(&[]) - 1.0).abs() < 1e-5, "{kind:?}: {found}");
        for (slot, wanted) in slots.into_iter().zip(wanted) {
            let found = run.input_grad(slot).unwrap();
            assert!(found.allclose(&wanted.unwrap(), 1e-5, 1e-6, false), "{kind:?}");
        }
    }
}
