//! Mistakes that code of policies of two streams could make, each of which is far from the reference.

use tch::Tensor;

use super::{Fixture, fixtures};
use crate::model::policy::{StateToken, TimeUse, checks};

/// Parts of what a condition makes of norms exchanged, in a policy that has such norms.
fn conditioned_otherwise(fixture: &mut Fixture, parts: [usize; 2]) -> bool {
    let is_here = fixture.config.time == TimeUse::Norms;
    if is_here {
        checks::exchange(&fixture.params, ".dense.", 0, (3, parts));
    }
    is_here
}

/// Masks, levels, the time's convention, norms, orders of sinusoids, and what samples lack.
#[test]
fn mistakes_are_far_from_the_reference() {
    let mistakes: &[checks::Mistake<Fixture>] = &[
        ("scale and shift exchanged in norms", |it| conditioned_otherwise(it, [0, 1])),
        ("scale and gate exchanged in norms", |it| conditioned_otherwise(it, [0, 2])),
        ("norms without the one beside their weights, or with one", |it| {
            it.config.norm.zero_centered = !it.config.norm.zero_centered;
            true
        }),
        ("sines and cosines of times exchanged", |it| {
            match it.config.time {
                TimeUse::Norms => checks::exchange(&it.params, "model.time_mlp_in.weight", 1, (2, [0, 1])),
                TimeUse::Rows => checks::exchange(&it.params, "model.action_time_mlp_in.weight", 1, (4, [2, 3])),
            }
            true
        }),
        ("time from noise to actions", |it| {
            let time = it.inputs.get_mut("time").unwrap();
            *time = 1.0 - &*time;
            true
        }),
        ("the velocity from noise to actions", |it| {
            checks::change(&it.params, "action_out_proj.", |value: &Tensor| value * -1.0);
            true
        }),
        ("actions see those after them, or do not", |it| {
            it.config.causal_actions = !it.config.causal_actions;
            it.config.joint_every > 0
        }),
        ("pictures and the prompt see the state", |it| {
            let is_here = it.config.state == StateToken::PrefixLevel;
            if is_here {
                it.config.state = StateToken::Prefix;
            }
            is_here
        }),
        ("pictures have another factor", |it| {
            it.config.scaled_pictures = !it.config.scaled_pictures;
            true
        }),
        ("padding of prompts is seen", |it| {
            let len = it.inputs["tokens"].size()[1];
            let is_here = it.samples.iter().any(|sample| sample.prompt < len);
            it.samples.iter_mut().for_each(|sample| sample.prompt = len);
            is_here
        }),
        ("missing cameras are seen", |it| {
            let all: Vec<i64> = (0..it.inputs["images"].size()[0]).collect();
            let is_here = it.samples.iter().any(|sample| sample.cameras != all);
            it.samples.iter_mut().for_each(|sample| sample.cameras.clone_from(&all));
            is_here
        }),
        ("padding of actions counts", |it| {
            let all = it.config.action_dim;
            std::mem::replace(&mut it.action_dim, all) != all
        }),
        ("actions after an episode count", |it| {
            let is_here = it.samples.iter().any(|sample| sample.inside.is_some());
            it.samples.iter_mut().for_each(|sample| sample.inside = None);
            is_here
        }),
    ];
    for at in 0..fixtures().len() {
        let (name, _) = fixtures().swap_remove(at);
        checks::mistakes_are_far_from_the_reference(&name, || fixtures().swap_remove(at).1, mistakes);
    }
}
