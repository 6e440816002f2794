//! Tests of GR00T beside the comparison with the reference (`tests/parity.rs`), on fixtures that `tests/oracle/make_groot.py` makes.
//! `LOONGFORGE_POLICIES` names another folder of fixtures.

use tch::{Kind, Tensor};

use super::fixture::Fixture;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::fixture::{self, error};
use crate::model::foundation::FoundationFamily;
use crate::model::objective::FlowSettings;
use crate::model::policy::checks;
use crate::model::policy::{Denoising, Observed, PolicyFamily, PolicyOptions, RobotPolicy};
use crate::tape::Policy;

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("policies", &["groot"]), |folder| Fixture::read(folder, Kind::Float))
}

fn first() -> Fixture {
    fixtures().swap_remove(0).1
}

#[test]
fn actions_of_samples_are_what_they_are_alone() {
    for (name, fixture) in fixtures() {
        let act = |samples: &[usize]| fixture.act(samples).unwrap();
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|sample| act(&[sample])).collect();
        assert!(error(&act(&fixture.all()), &Tensor::cat(&alone, 0)) < 1e-6, "{name}");
    }
}

/// Noise, times, hidden states and masks belong to seed, sample and purpose; a sample that lost an item, and a filler, count for
/// nothing; evaluations drop nothing.
#[test]
fn samples_have_their_own_draws_and_count_by_their_targets() {
    let mut fixture = first();
    (fixture.config.context.dropout, fixture.config.actions.dropout) = (0.2, 0.2);
    let loss = |seed: u64, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let settings = FlowSettings { seed, ..FlowSettings::default() };
        let model = fixture.family(2).with_flow(settings).unwrap().build(&fixture.params, Policy::Recompute);
        let batch = checks::changed(fixture.batch(samples), change);
        let found = fixture.run_tape(model.record(&batch), samples);
        checks::loss_and_norm(&found)
    };
    checks::noise_is_of_seed_sample_and_purpose(&loss);
    let [own, together] =
        [loss(3, &[1], &|_| {}), loss(3, &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1))];
    assert!((own.1 / together.1 - 1.0).abs() < 1e-5, "{own:?} {together:?}");
    let model = fixture.model(Policy::Keep);
    checks::filler_has_no_loss(&model, &fixture.params);
    let held_out = model.draw(&MicroBatch { evaluates: true, ..fixture.batch(&[0, 1]) });
    assert!(held_out.keeps.is_none() && held_out.dropout.iter().all(Option::is_none));
    let trained = model.draw(&fixture.batch(&[0, 1]));
    assert!(trained.keeps.is_some() && trained.dropout.iter().all(Option::is_some));
}

#[test]
fn frozen_transformers_drop_nothing() {
    let mut fixture = first();
    (fixture.config.context.dropout, fixture.config.actions.dropout) = (0.2, 0.2);
    let mut dropping = |vlln: bool, diffusion_model: bool| {
        (fixture.config.tuned.vlln, fixture.config.tuned.diffusion_model) = (vlln, diffusion_model);
        fixture.model(Policy::Keep).draw(&fixture.batch(&[0])).dropout.map(|keys| keys.is_some())
    };
    assert_eq!(dropping(true, true), [true, true]);
    assert_eq!(dropping(false, true), [false, true]);
    assert_eq!(dropping(true, false), [true, false]);
}

/// Each kind of dropout changes what is learned, and without it nothing does.
#[test]
fn dropout_reaches_both_transformers() {
    let fixture = first();
    let loss = |context: f64, actions: f64, keys: bool| {
        let mut config = fixture.config.clone();
        (config.context.dropout, config.actions.dropout) = (context, actions);
        let options = PolicyOptions::default();
        let family = PolicyFamily::new(config).with_options(options);
        let model = family.model(&fixture.params, Policy::Keep);
        let mut noise = model.draw(&fixture.batch(&[0]));
        if !keys {
            noise.dropout = [None, None];
        }
        fixture.run_tape(model.record_with(&fixture.batch(&[0]), &noise), &[0]).loss
    };
    let without = loss(0.0, 0.0, true);
    assert_eq!(without, loss(0.5, 0.5, false));
    let (context, actions) = (loss(0.5, 0.0, true), loss(0.0, 0.5, true));
    assert!(actions != without && actions != context, "{without} {context} {actions}");
    assert_eq!(context != without, fixture.config.context.num_layers > 0);
}

/// A sample without any picture: layers that see pictures find nothing, as attention to no key does in the reference.
#[test]
fn a_sample_without_pictures_is_finite_and_alone() {
    let fixture = first();
    let (columns, ends) = fixture.columns(&[0]);
    let image = fixture.config.input.placeholders[0];
    let text = columns.map(|x, _| match x.kind() {
        Kind::Int64 if x.size() == [ends[1] as i64] => x.where_self(&x.ne(image), &Tensor::from(3i64)),
        _ => x.shallow_clone(),
    });
    let acting = fixture.config.acting(&fixture.params);
    let noise = fixture.of("start", &[0]).flatten(0, 1);
    let act = |columns: &Columns, features: &[Tensor]| {
        let from = Denoising { noise: &noise, num_steps: 2, given: None };
        acting.act(Observed { columns, cu_seqlens: &ends, features }, from).unwrap()
    };
    let found = act(&text, &[]);
    assert!(found.isfinite().all().int64_value(&[]) == 1);
    assert_ne!(found, act(&columns, &fixture.features(&[0])));
}

fn of_input(fixture: &mut Fixture, name: &str, with: impl Fn(&Tensor) -> Tensor) -> bool {
    let Some(own) = fixture.inputs.get_mut(name) else { return false };
    *own = with(own);
    true
}

/// Masks, the time's convention, orders of norms and of sinusoids, and what samples have.
#[test]
fn mistakes_are_far_from_the_reference() {
    let mistakes: &[checks::Mistake<Fixture>] = &[
        ("scale and shift exchanged in norms of layers", |it| {
            checks::exchange(&it.params, ".norm1.linear.", 0, (2, [0, 1]));
            true
        }),
        ("shift and scale exchanged in the last norm", |it| {
            checks::exchange(&it.params, ".proj_out_1.", 0, (2, [0, 1]));
            true
        }),
        ("sines before cosines in the condition", |it| {
            checks::exchange(&it.params, ".timestep_embedder.linear_1.weight", 1, (2, [0, 1]));
            true
        }),
        ("cosines before sines in rows of actions", |it| {
            checks::exchange(&it.params, ".action_encoder.W2.W", 1, (4, [2, 3]));
            true
        }),
        ("the velocity from actions to noise", |it| {
            checks::change(&it.params, ".action_decoder.layer2.", |value| value * -1.0);
            true
        }),
        ("time from actions to noise", |it| of_input(it, "time", |time| 1.0 - time)),
        ("layers of pictures see text", |it| std::mem::replace(&mut it.config.text_every, 1) != 1),
        ("states of tokens are not normed", |it| std::mem::replace(&mut it.config.norm, false)),
        ("the other side of the language model's last norm", |it| {
            it.config.last_norm = !it.config.last_norm;
            true
        }),
        ("hidden states are seen", |it| {
            it.summary.dropped.iter_mut().for_each(Vec::clear);
            true
        }),
        ("padding counts", |it| of_input(it, "weights", Tensor::ones_like)),
        ("maps of another embodiment", |it| {
            let most = it.config.num_embodiments;
            of_input(it, "embodiment", |own| (own + 1i64).remainder(most))
        }),
        ("tokens without positions", |it| of_input(it, "position_ids", Tensor::zeros_like)),
        ("actions without positions", |it| {
            checks::change(&it.params, ".position_embedding.", Tensor::zeros_like);
            it.config.max_positions.is_some()
        }),
    ];
    for at in 0..fixtures().len() {
        let (name, _) = fixtures().swap_remove(at);
        checks::mistakes_are_far_from_the_reference(&name, || fixtures().swap_remove(at).1, mistakes);
    }
}
