//! The loss of tokens behind prompts beside that of actions, on fixtures that `tests/oracle/make_answers.py` has added answers to.

use tch::Tensor;

use super::Fixture;
use crate::model::fixture::Found;
use crate::model::policy::fixture::answers::{is_of_expert, options};
use crate::params::ParamId;
use crate::tape::Policy;

/// Returns all fixtures with answers, insulated.
fn fixtures() -> Vec<(String, Fixture)> {
    let with = |(name, fixture): (String, Fixture)| Some((name, fixture.with_answers(options((true, 1.0, 1.0)))?));
    let found: Vec<_> = super::fixtures().into_iter().filter_map(with).collect();
    assert!(!found.is_empty(), "no fixture has answers");
    found
}

/// Returns the parameters, and those of the tower, with the gradient of each.
fn grads<'a>(fixture: &'a Fixture, found: &'a Found) -> impl Iterator<Item = (String, Tensor)> + 'a {
    fixture.parts().trained(found).flat_map(|(params, grads)| {
        let grad = move |id: ParamId| (params.spec(id).name.clone(), grads.view(id).shallow_clone());
        params.trained_ids().map(grad)
    })
}

/// With insulation, the flow's gradient of every tensor of the prefix is exactly 0, and so is the tokens' gradient of every tensor of the
/// action expert: neither loss moves a bit of what the other trains.
#[test]
fn neither_loss_reaches_what_the_other_trains() {
    for (_, fixture) in fixtures() {
        let run = |flow, tokens| fixture.run_with(options((true, flow, tokens)), Policy::Keep);
        let [both, without_flow, other_weights] = [run(1.0, 1.0), run(0.0, 1.0), run(1.0, 3.0)];
        let mut counts = [0, 0];
        let all = grads(&fixture, &both).zip(grads(&fixture, &without_flow)).zip(grads(&fixture, &other_weights));
        for (((name, both), (_, without_flow)), (_, other_weights)) in all {
            let is_expert = is_of_expert(&name);
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
    for (name, mut fixture) in fixtures() {
        // A weight that rounds away: what is left is the flow's.
        let flow = options((true, 1.0, 1e-30));
        let own = fixture.run_with(flow, Policy::Keep).loss;
        let last = fixture.answers[1].last_mut().unwrap();
        *last = (*last + 1) % (fixture.config.vocab_size - 1);
        assert_eq!(own, fixture.run_with(flow, Policy::Keep).loss, "{name}");
        let model = fixture.family(options((true, 1.0, 1.0))).model(&fixture.params, Policy::Keep);
        let mut batch = fixture.batch(&fixture.all());
        let mut rows = batch.samples.to_vec();
        rows.iter_mut().for_each(|row| row.num_targets = 0);
        batch.samples = rows.into();
        let found = fixture.run_tape(model.record_with(&batch, &fixture.noise(&fixture.all())), &fixture.all());
        assert_eq!((found.loss, found.grads.flat().norm().double_value(&[])), (0.0, 0.0));
    }
}
