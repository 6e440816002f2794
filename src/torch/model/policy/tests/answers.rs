//! The loss of tokens behind prompts beside that of actions, on fixtures that `tests/oracle/make_answers.py` has added answers to: what
//! lerobot's language model makes of these, and the flow's numbers as they are without them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tch::Tensor;

use super::fixture::{Fixture, folders};
use super::{OF_GRADIENTS, TOLERANCE};
use crate::model::policy::PolicyOptions;
use crate::model::policy::fixtures::Found;
use crate::params::ParamId;
use crate::tape::Policy;

type Tensors = BTreeMap<String, Tensor>;

fn options(insulate: bool, flow_weight: f64, token_weight: f64) -> PolicyOptions {
    PolicyOptions { noise_draws: 2, insulate, flow_weight, token_weight, ..PolicyOptions::default() }
}

/// All fixtures with answers, as these options have them.
fn fixtures(options: PolicyOptions) -> Vec<(Fixture, Tensors)> {
    let found = |folder: &PathBuf| Fixture::read(folder).with_answers(folder, options);
    let found: Vec<_> = folders().iter().filter_map(found).collect();
    assert!(!found.is_empty(), "no fixture has answers");
    found
}

fn run(fixture: &Fixture, options: PolicyOptions, policy: Policy) -> Found {
    fixture.run(&fixture.family(options).model(&fixture.params, policy), &fixture.all())
}

/// The parameters, and those of the tower, with the gradient of each.
fn grads<'a>(fixture: &'a Fixture, found: &'a Found) -> impl Iterator<Item = (String, Vec<String>, Tensor)> + 'a {
    let both = [(&fixture.params, &found.grads), (&fixture.of_tower, &found.of_tower)];
    both.into_iter().flat_map(|(params, grads)| {
        params.trained_ids().map(move |id: ParamId| {
            let spec = params.spec(id);
            let names = spec.pieces.iter().map(|piece| format!("grad/{}", piece.name)).collect();
            (spec.name.clone(), names, grads.view(id).shallow_clone())
        })
    })
}

/// A parameter has the gradient of one loss under insulation, else the sum of both; nothing that the tokens train is left out.
#[test]
fn both_losses_and_all_gradients_are_lerobots() {
    for (insulate, flow_weight, token_weight) in [(true, 1.0, 1.0), (true, 0.5, 2.0), (false, 0.5, 2.0)] {
        let options = options(insulate, flow_weight, token_weight);
        for (fixture, answers) in fixtures(options) {
            let of = |from: &Tensors| from["loss"].double_value(&[]);
            let expected = flow_weight * of(&fixture.expected) + token_weight * of(&answers);
            for policy in [Policy::Keep, Policy::Recompute] {
                let found = run(&fixture, options, policy);
                let off = (found.loss / expected - 1.0).abs();
                let (mut largest, mut used) = ((0f64, String::new()), 0);
                let of_grads = answers.iter().filter(|(name, _)| name.starts_with("grad/"));
                let most = of_grads.map(|(_, it)| it.abs().max().double_value(&[])).fold(0f64, f64::max);
                for (name, names, grad) in grads(&fixture, &found) {
                    let of_prefix =
                        !name.contains("gemma_expert") && !name.contains("action_") && !name.contains("time_");
                    let part = |from: &Tensors, weight: f64| {
                        let found = names.iter().find_map(|name| from.get(name))?;
                        Some(found.view(grad.size().as_slice()) * weight)
                    };
                    let of_tokens = part(&answers, token_weight);
                    used += usize::from(of_tokens.is_some());
                    let of_flow = part(&fixture.expected, flow_weight).filter(|_| !(insulate && of_prefix));
                    let sum = of_tokens.into_iter().chain(of_flow).reduce(|a, b| a + b);
                    let sum = sum.unwrap_or_else(|| panic!("the reference has no gradient of {name}"));
                    let off = (grad - &sum).abs().max().double_value(&[]);
                    let off = off / sum.abs().max().double_value(&[]).max(1e-3 * most);
                    if off.is_nan() || off > largest.0 {
                        largest = (off, name);
                    }
                }
                println!("{}: {insulate} loss {off:.1e}, gradients {:.1e} ({})", fixture.name, largest.0, largest.1);
                assert!(off < TOLERANCE && largest.0 < OF_GRADIENTS, "{}: {largest:?}", fixture.name);
                assert_eq!(used, answers.keys().filter(|name| is_own(name, &answers)).count(), "{}", fixture.name);
            }
        }
    }
}

/// Whether a gradient of the reference is that of a parameter; head and table are one, and may be there twice.
fn is_own(name: &str, answers: &Tensors) -> bool {
    let is_twice = name.contains("lm_head") && answers.keys().any(|other| other.contains("embed_tokens"));
    name.starts_with("grad/") && !is_twice
}

/// With insulation the flow's gradient of every tensor of the prefix is exactly 0, and that of the tokens of every tensor of the
/// action expert: neither loss moves a bit of what the other trains.
#[test]
fn neither_loss_reaches_what_the_other_trains() {
    for (fixture, _) in fixtures(options(true, 1.0, 1.0)) {
        let run = |flow, tokens| run(&fixture, options(true, flow, tokens), Policy::Keep);
        let [both, without_flow, other_weights] = [run(1.0, 1.0), run(0.0, 1.0), run(1.0, 3.0)];
        let mut counts = [0, 0];
        let all = grads(&fixture, &both).zip(grads(&fixture, &without_flow)).zip(grads(&fixture, &other_weights));
        for (((name, _, both), (_, _, without_flow)), (_, _, other_weights)) in all {
            let is_expert = name.contains("gemma_expert") || name.contains("action_") || name.contains("time_");
            assert!(both.abs().max().double_value(&[]) > 0.0, "{name}");
            counts[usize::from(is_expert)] += 1;
            match is_expert {
                // Of the tokens' loss alone: nothing.
                true => {
                    assert_eq!(without_flow.abs().max().double_value(&[]), 0.0, "{name}");
                    assert_eq!(both, other_weights, "{name}");
                }
                // The flow's adds nothing to it.
                false => assert_eq!(both, without_flow, "{name}"),
            }
        }
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    }
}

/// Actions see no answer, and a sample that does not count has no loss of tokens either.
#[test]
fn answers_change_nothing_but_their_loss() {
    for (mut fixture, _) in fixtures(options(true, 1.0, 1.0)) {
        // A weight that rounds away: what is left is the flow's.
        let flow = options(true, 1.0, 1e-30);
        let own = run(&fixture, flow, Policy::Keep).loss;
        let last = fixture.answers[1].last_mut().unwrap();
        *last = (*last + 1) % (fixture.config.vocab_size - 1);
        assert_eq!(own, run(&fixture, flow, Policy::Keep).loss, "{}", fixture.name);
        let model = fixture.family(options(true, 1.0, 1.0)).model(&fixture.params, Policy::Keep);
        let mut batch = fixture.batch(&fixture.all());
        let mut rows = batch.samples.to_vec();
        rows.iter_mut().for_each(|row| row.num_targets = 0);
        batch.samples = rows.into();
        let found = fixture.run_tape(model.record_with(&batch, &fixture.noise(&fixture.all())), &fixture.all());
        assert_eq!((found.loss, found.grads.flat().norm().double_value(&[])), (0.0, 0.0));
    }
}
