//! Tests of policies of two streams beside the comparison with the reference (`tests/parity.rs`), on fixtures that
//! `tests/oracle/make_policies.py` makes. `LOONGFORGE_POLICIES` names another folder of fixtures.

mod answers;
mod mistakes;

use std::rc::Rc;

use loongforge_core::message::SampleId;
use tch::{Device, Kind, Tensor};

use super::config::{PolicyOptions, StateToken};
use super::fixture::Fixture;
use super::noise::Noise;
use super::robot::RobotPolicy;
use super::{TimeUse, checks};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::fixture::{self, Found, error};
use crate::model::foundation::FoundationFamily;
use crate::model::objective::{FlowSettings, NoisePurpose};
use crate::params::{ParamStore, Role};
use crate::tape::Policy;

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("policies", &["pi0", "smolvla"]), |folder| Fixture::read(folder, Kind::Float))
}

fn first() -> Fixture {
    fixtures().swap_remove(0).1
}

#[test]
fn actions_of_samples_are_what_they_are_alone() {
    for (name, fixture) in fixtures() {
        let act = |samples: &[usize]| fixture.act(samples, None).unwrap();
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|sample| act(&[sample])).collect();
        assert!(error(&act(&fixture.all()), &Tensor::cat(&alone, 0)) < 1e-6, "{name}");
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

/// The flow's gradient of everything before the actions' stream is exactly nothing, and that of the stream is what it was.
#[test]
fn insulated_gradients_end_at_the_prefix() {
    for (name, fixture) in fixtures() {
        let [free, insulated] =
            [false, true].map(|insulate| fixture.run(&fixture.model(Policy::Keep, insulate), &fixture.all()));
        assert_eq!(free.loss, insulated.loss, "{name}");
        assert_eq!(insulated.of_tower.flat().abs().max().double_value(&[]), 0.0, "{name}");
        if fixture.config.frozen.prefix {
            continue;
        }
        let mut counts = [0, 0];
        for id in fixture.params.trained_ids() {
            let name = &fixture.params.spec(id).name;
            let [free, insulated] = [&free, &insulated].map(|found| found.grads.view(id).shallow_clone());
            if fixture.config.is_of_prefix(name) {
                assert_eq!(insulated.abs().max().double_value(&[]), 0.0, "{name}");
                let unread = format!("layers.{}.self_attn.q_proj", fixture.config.text.depth - 1);
                assert!(name.contains(&unread) || free.abs().max().double_value(&[]) > 0.0, "{name}");
                counts[0] += 1;
            } else {
                assert_eq!(free, insulated, "{name}");
                counts[1] += 1;
            }
        }
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    }
}

/// A map of states that alone learns in the prefix, and the actions' stream, have the gradients that they have where those of all tokens
/// are computed beside them, and activations may be kept or computed again.
#[test]
fn states_that_learn_alone_have_the_gradients_that_they_have_beside_tokens() {
    let has_states = |fixture: &Fixture| fixture.config.state == StateToken::PrefixLevel;
    let mut fixture = fixtures().into_iter().map(|(_, fixture)| fixture).find(has_states).unwrap();
    fixture.config.frozen.prefix = true;
    let params = ParamStore::new(fixture.family(PolicyOptions::default()).specs(), Kind::Float, Device::Cpu);
    for id in params.ids() {
        params.set(id, &fixture.params.value(fixture.params.id(&params.spec(id).name)));
    }
    fixture.params = Rc::new(params);
    let run = |policy, feature_grads| {
        let batch = MicroBatch { feature_grads, ..fixture.batch(&fixture.all()) };
        let tape = fixture.model(policy, false).record_with(&batch, &fixture.noise(&fixture.all()));
        fixture.run_tape(tape, &fixture.all())
    };
    let beside = run(Policy::Keep, true);
    for policy in [Policy::Keep, Policy::Recompute] {
        let alone = run(policy, false);
        assert!((alone.loss / beside.loss - 1.0).abs() < 1e-6);
        let mut names = Vec::new();
        for id in fixture.params.trained_ids() {
            let [alone, beside] = [&alone, &beside].map(|found| found.grads.view(id).shallow_clone());
            names.push(fixture.params.spec(id).name.clone());
            assert!(error(&alone, &beside) < 1e-5, "{names:?}");
        }
        let of_prefix: Vec<_> = names.iter().filter(|name| fixture.config.is_of_prefix(name)).collect();
        assert!(of_prefix.len() == 2 && of_prefix.iter().all(|name| name.contains("state_proj")), "{of_prefix:?}");
    }
    assert_eq!(run(Policy::Keep, false).of_tower.flat().abs().max().double_value(&[]), 0.0);
}

/// Several draws are as many samples of one draw each, with an even share of the loss.
#[test]
fn draws_have_an_even_share_of_their_sample() {
    for (name, fixture) in fixtures() {
        let whole = fixture.run(&fixture.model(Policy::Keep, false), &fixture.all());
        let single = fixture.family(PolicyOptions::default()).model(&fixture.params, Policy::Keep);
        let num_draws = fixture.num_draws();
        let noise = fixture.noise(&fixture.all());
        let draw = |number: i64| {
            let pick = |x: &Tensor| checks::draw_of(x, fixture.samples.len(), num_draws, number);
            let own = Noise { noise: pick(&noise.noise), times: pick(&noise.times), delays: Vec::new() };
            fixture.run_tape(single.record_with(&fixture.batch(&fixture.all()), &own), &fixture.all())
        };
        checks::draws_share_evenly(&name, &whole, num_draws, draw);
    }
}

/// Noise and time belong to seed, sample and purpose; a sample that lost an item, and a filler, count for nothing.
#[test]
fn samples_have_their_own_noise_and_count_by_their_targets() {
    let fixture = first();
    let settings = |seed| FlowSettings { seed, ..FlowSettings::default() };
    let loss = |seed: u64, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let model = fixture.family(PolicyOptions { noise_draws: 2, ..PolicyOptions::default() });
        let model = model.with_flow(settings(seed)).unwrap().build(&fixture.params, Policy::Keep);
        let batch = checks::changed(fixture.batch(samples), change);
        let found = fixture.run_tape(model.record(&batch), samples);
        checks::loss_and_norm(&found)
    };
    checks::noise_is_of_seed_sample_and_purpose(&loss);
    let model = fixture.model(Policy::Keep, false);
    checks::filler_has_no_loss(&model, &fixture.params);
}

/// A parameter that nothing reads is stored and not trained, so that weight decay leaves it alone as the reference does.
#[test]
fn parameters_without_a_gradient_are_frozen() {
    for (_, fixture) in fixtures() {
        let frozen: Vec<String> = fixture
            .params
            .ids()
            .map(|id| fixture.params.spec(id))
            .filter(|spec| spec.role == Role::Frozen)
            .map(|spec| spec.name.clone())
            .collect();
        let text = fixture.config.text_prefix();
        let last = format!("{text}layers.{}.", fixture.config.text.depth - 1);
        let is_last = |name: &String| name.starts_with(&last) || *name == format!("{text}norm.weight");
        let parts = fixture.config.frozen;
        if parts.prefix {
            assert!(frozen.iter().all(|name| fixture.config.is_of_prefix(name)), "{frozen:?}");
        } else {
            // lerobot freezes all of SmolVLA's last layer.
            let expected = if parts.last_layer { 10 } else { 6 };
            assert!(frozen.len() == expected && frozen.iter().all(is_last), "{frozen:?}");
        }
        assert!(frozen.iter().all(|name| !fixture.expected.contains_key(&format!("grad/{name}"))));
        assert_eq!(fixture.config.has_condition(), fixture.config.time == TimeUse::Norms);
    }
}

/// Real-time chunking: without given actions everything is what it was; given ones come out unchanged, the rest goes on from them, and
/// only the rest is learned, as much as the whole chunk was.
#[test]
fn begun_chunks_are_gone_on_with() {
    for (name, fixture) in fixtures() {
        let [horizon, action_dim] = [fixture.config.horizon, fixture.config.action_dim];
        let free = fixture.act(&fixture.all(), None).unwrap();
        let given = free.view([-1, horizon, action_dim]).narrow(1, 0, 2) + 0.25;
        let Some(rest) = fixture.act(&fixture.all(), Some(&given)) else {
            assert_eq!(fixture.config.time, TimeUse::Rows, "{name}");
            continue;
        };
        assert_eq!(rest.view([-1, horizon, action_dim]).narrow(1, 0, 2), given, "{name}");
        let behind = |x: &Tensor| x.view([-1, horizon, action_dim]).narrow(1, 2, horizon - 2);
        assert!(error(&behind(&rest), &behind(&free)) > 1e-4, "{name}: the rest depends on what is given");
        let none = fixture.act(&fixture.all(), Some(&given.narrow(1, 0, 0))).unwrap();
        // Norms of rows one by one: equal up to the order of sums.
        assert!(error(&none, &free) < 1e-6, "{name}");

        let model = fixture.model(Policy::Keep, false);
        let run = |delays: Vec<u32>| {
            let noise = Noise { delays, ..fixture.noise(&fixture.all()) };
            fixture.run_tape(model.record_with(&fixture.batch(&fixture.all()), &noise), &fixture.all())
        };
        let num_draws = fixture.samples.len() * fixture.num_draws() as usize;
        let (plain, without) = (run(Vec::new()), run(vec![0; num_draws]));
        assert!((plain.loss / without.loss - 1.0).abs() < 1e-6, "{name}");
        assert!(error(plain.grads.flat(), without.grads.flat()) < 1e-5, "{name}");
        // All but the last action: what the weights of the others are makes no difference then.
        let delays = vec![horizon as u32 - 1; num_draws];
        let last = run(delays.clone());
        let batch = fixture.batch(&fixture.all());
        let weights = batch.columns.get(super::columns::WEIGHTS).view([-1, horizon, action_dim]);
        let _ = weights.narrow(1, 0, horizon - 1).zero_();
        // Nor does the noise of given actions make any.
        let noise = Noise { delays, ..fixture.noise(&fixture.all()) };
        let _ = noise.noise.view([-1, horizon, action_dim]).narrow(1, 0, horizon - 1).fill_(7.0);
        let masked = fixture.run_tape(model.record_with(&batch, &noise), &fixture.all());
        let shares = last.loss / masked.loss;
        assert!((shares - horizon as f64).abs() < 1e-4 * horizon as f64, "{name}: {shares}");
        assert!(error(last.grads.flat(), &(masked.grads.flat() * horizon as f64)) < 1e-5, "{name}");
        assert_eq!(run(vec![horizon as u32; num_draws]).loss, 0.0, "nothing is left");
    }
}

/// Delays belong to seed and sample, take every value, and held-out samples have none.
#[test]
fn delays_are_drawn_for_each_sample() {
    let options = PolicyOptions { max_delay: 3, noise_draws: 2, ..PolicyOptions::default() };
    let row = first().rows(&[0]).remove(0);
    let rows = |purpose| (0..200).map(|id| SampleRow { id: SampleId(id), purpose, ..row.clone() }).collect::<Vec<_>>();
    let draw = |seed, purpose| {
        Noise::draw(&rows(purpose), seed, [4, 2], &loongforge_core::schedule::TimeSampler::Uniform, options).delays
    };
    let delays = draw(1, NoisePurpose::Training);
    assert_eq!((delays.len(), draw(1, NoisePurpose::Training) == delays), (400, true));
    assert_ne!(draw(2, NoisePurpose::Training), delays);
    for value in 0..=3 {
        let count = delays.iter().filter(|delay| **delay == value).count();
        assert!((60..140).contains(&count), "{value}: {count}");
    }
    assert!(draw(1, NoisePurpose::Evaluation(0)).iter().all(|delay| *delay == 0));
}
