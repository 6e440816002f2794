//! Tests of X-VLA beside the comparison with the reference (`tests/parity.rs`), on fixtures that `tests/oracle/make_xvla.py` makes.
//! `LOONGFORGE_POLICIES` names another folder of fixtures.

use tch::{Kind, Tensor};

use super::fixture::Fixture;
use crate::model::batch::SampleRow;
use crate::model::fixture::{self, Found, error};
use crate::model::foundation::FoundationFamily;
use crate::model::objective::{FlowSettings, LossKind};
use crate::model::policy::checks;
use crate::model::policy::{Noise, PolicyOptions, RobotPolicy};
use crate::tape::Policy;

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
        checks::packed_is_as_alone(&name, &together, &apart);
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
        let pick = |x: &Tensor| checks::draw_of(x, fixture.all().len(), num_draws, number);
        let own = Noise { noise: pick(&noise.noise), times: pick(&noise.times), delays: Vec::new() };
        fixture.run_tape(single.record_with(&fixture.batch(&fixture.all()), &own), &fixture.all(), Policy::Keep)
    };
    checks::draws_share_evenly("xvla", &whole, num_draws, draw);
}

/// Noise and time belong to seed, sample and purpose; a sample that lost an item, and a filler, count for nothing.
#[test]
fn samples_have_their_own_noise_and_count_by_their_targets() {
    let fixture = first();
    let settings = |seed, kind| FlowSettings { seed, kind, ..FlowSettings::default() };
    let loss = |settings: FlowSettings, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let model = fixture.family(PolicyOptions { noise_draws: 2, ..PolicyOptions::default() });
        let model = model.with_flow(settings).unwrap().build(&fixture.params, Policy::Keep);
        let batch = checks::changed(fixture.batch(samples), change);
        let found = fixture.run_tape(model.record(&batch), samples, Policy::Keep);
        checks::loss_and_norm(&found)
    };
    let mse = LossKind::Mse;
    checks::noise_is_of_seed_sample_and_purpose(&|seed, samples, change| loss(settings(seed, mse), samples, change));
    let [own, huber] = [mse, LossKind::Huber { delta: 0.1 }].map(|kind| loss(settings(3, kind), &[1], &|_| {}).0);
    assert_ne!(own, huber);
    let model = fixture.model(Policy::Keep, false);
    checks::filler_has_no_loss(&model, &fixture.params);
}

/// The time's convention, norms, domains, positions and the order of pictures.
#[test]
fn mistakes_are_far_from_the_reference() {
    let mistakes: &[checks::Mistake<Fixture>] = &[
        ("time from noise to actions", |it| {
            let time = it.inputs.get_mut("time").unwrap();
            *time = 1.0 - &*time;
            true
        }),
        ("the negative of actions", |it| {
            checks::change(&it.params, ".action_decoder.", |value: &Tensor| value * -1.0);
            true
        }),
        ("maps and prompts of another domain", |it| {
            let (most, domain) = (it.config.num_domains, it.inputs.get_mut("domain").unwrap());
            *domain = (&*domain + 1i64).remainder(most);
            true
        }),
        ("no soft prompts", |it| {
            checks::change(&it.params, ".soft_prompt_hub.", Tensor::zeros_like);
            true
        }),
        ("rows without positions", |it| {
            checks::change(&it.params, ".pos_emb", Tensor::zeros_like);
            true
        }),
        ("the first picture beside the prompt, and another with it", |it| {
            let images = it.inputs.get_mut("images").unwrap();
            *images = images.flip([1]);
            true
        }),
        ("norms of a block exchanged", |it| {
            for part in ["weight", "bias"] {
                let name = |norm: &str| format!("{}{norm}.{part}", it.config.block_prefix(0));
                let ids = ["norm1", "norm2"].map(|norm| it.params.id(&name(norm)));
                let [first, second] = ids.map(|id| it.params.value(id).copy());
                it.params.set(ids[0], &second);
                it.params.set(ids[1], &first);
            }
            true
        }),
    ];
    for at in 0..fixtures().len() {
        let (name, _) = fixtures().swap_remove(at);
        checks::mistakes_are_far_from_the_reference(&name, || fixtures().swap_remove(at).1, mistakes);
    }
}
