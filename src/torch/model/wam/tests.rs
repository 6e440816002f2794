//! Tests of FastWAM beside the comparison with the reference (`tests/parity.rs`), on fixtures that `tests/oracle/make_fastwam.py` makes.
//! `LOONGFORGE_POLICIES` names another folder of fixtures.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::config::{Of, rule};
use super::fixture::{Fixture, Shows};
use super::noise::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::fixture::{self, error};
use crate::model::foundation::{FoundationFamily, FoundationModel};
use crate::model::objective::FlowSettings;
use crate::model::policy::checks;
use crate::nn::SegmentRules;
use crate::params::{GradBuffer, ParamStore};
use crate::tape::Policy;

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("policies", &["fastwam"]), |folder| Fixture::read(folder, Kind::Float))
}

fn first() -> Fixture {
    fixtures().swap_remove(0).1
}

/// Samples alone; and frames behind the first, where there are some, change nothing of actions.
#[test]
fn actions_depend_on_their_own_first_frame() {
    for (name, fixture) in fixtures() {
        let act = |samples: &[usize], shows| fixture.act(samples, shows).unwrap();
        let found = act(&fixture.all(), Shows::FirstFrame);
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|at| act(&[at], Shows::FirstFrame)).collect();
        assert!(error(&Tensor::cat(&alone, 0), &found) < 5e-6, "{name}");
        assert!(error(&act(&fixture.all(), Shows::All), &found) < 5e-6, "{name}");
        let [masked, whole] =
            [Shows::MaskedFrames, Shows::All].map(|it| fixture.loss(&fixture.all(), it, Policy::Keep).0);
        assert_ne!(masked, whole, "{name}");
    }
}

/// The loss of actions has no gradient of what only frames behind the first go through, and that of frames none of actions' stream.
#[test]
fn neither_loss_reaches_what_only_the_other_goes_through() {
    let mut fixture = first();
    let norm = |fixture: &Fixture, grads: &GradBuffer, of: &str| -> f64 {
        let ids = fixture.params.trained_ids().filter(|id| fixture.params.spec(*id).name.contains(of));
        ids.map(|id| grads.view(id).norm().double_value(&[])).sum()
    };
    let last = fixture.config.num_layers() - 1;
    let only_frames = format!("layers.{last}.blocks.video.ffn");
    fixture.config.video_flow.weight = 0.0;
    let (_, grads) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    assert_eq!(norm(&fixture, &grads, &only_frames), 0.0);
    assert!(norm(&fixture, &grads, "layers.0.blocks.video.ffn") > 0.0, "actions see the first frame");
    fixture.config.video_flow.weight = 1.0;
    fixture.config.action_flow.weight = 0.0;
    let (_, grads) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    assert!(norm(&fixture, &grads, &only_frames) > 0.0);
    assert_eq!(norm(&fixture, &grads, ".blocks.action.") + norm(&fixture, &grads, "mixtures.action."), 0.0);
    fixture.config.freezes_video = true;
    let frozen = fixture.family().specs().into_iter().filter(|spec| spec.role == crate::params::Role::Frozen);
    assert!(frozen.map(|spec| spec.name).all(|name| fixture.config.is_of_video(&name)));
}

/// Noise belongs to seed, sample and purpose: what else is in a pack changes nothing.
#[test]
fn noise_belongs_to_seed_sample_and_purpose() {
    let fixture = first();
    let loss = |seed: u64, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let family = fixture.family().with_flow(FlowSettings { seed, ..FlowSettings::default() }).unwrap();
        let model = family.build(&fixture.params, Policy::Keep);
        let batch = checks::changed(fixture.batch(samples, Shows::All), change);
        let (loss, grads) = fixture.run(model.record(&batch), &fixture.features(samples, Shows::All));
        (loss, grads.flat().norm().double_value(&[]))
    };
    checks::noise_is_of_seed_sample_and_purpose(&loss);
    let model = fixture.model(Policy::Keep);
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    assert_eq!(fixture.run(tape, &[]).0, 0.0);
}

/// Two draws of actions, beside one of frames, are each alone with an even share of the loss of actions.
#[test]
fn draws_of_actions_share_their_frames_and_the_loss_evenly() {
    for (name, mut fixture) in fixtures() {
        let (all, own) = (fixture.all(), fixture.noise(&fixture.all()));
        let noise = |actions: Tensor, action_times: Vec<f32>| {
            let (frames, frame_times) = (own.frames.shallow_clone(), own.frame_times.clone());
            Noise { frames, actions, frame_times, action_times }
        };
        let shape = [all.len() as i64, 1, fixture.config.horizon, fixture.config.action_dim];
        let draws = [own.actions.view(shape), own.actions.flip([0]).view(shape)];
        let [first, second] = [own.action_times.clone(), own.action_times.iter().rev().copied().collect()];
        let times = first.iter().zip(&second).flat_map(|(first, second)| [*first, *second]).collect();
        let both = noise(Tensor::cat(&draws, 1).flatten(0, 2), times);
        let mut run = |num_draws: u32, noise: &Noise| {
            fixture.config.options.noise_draws = num_draws;
            let tape = fixture.model(Policy::Keep).record_with(&fixture.batch(&all, Shows::All), noise);
            fixture.run(tape, &fixture.features(&all, Shows::All))
        };
        let (whole, grads) = run(2, &both);
        let [first, second] = [(&draws[0], first), (&draws[1], second)]
            .map(|(actions, times)| run(1, &noise(actions.flatten(0, 2), times)));
        assert!((first.0 / second.0 - 1.0).abs() > 1e-4, "{name}: the draws differ");
        assert!((2.0 * whole / (first.0 + second.0) - 1.0).abs() < 1e-6, "{name}");
        assert!(error(grads.flat(), &((first.1.flat() + second.1.flat()) / 2.0)) < 1e-5, "{name}");
    }
}

/// Times of actions have waves of another number than those of frames, where the config says so.
#[test]
fn each_stream_has_waves_of_its_own() {
    let mut fixture = first();
    fixture.config.action.freq_dim += 4;
    let params = Rc::new(ParamStore::new(fixture.family().specs(), Kind::Float, Device::Cpu));
    for id in params.ids() {
        let spec = params.spec(id);
        let own = fixture.params.get(&spec.name);
        let zeros = Tensor::zeros(spec.shape.as_slice(), (Kind::Float, Device::Cpu));
        params.set(id, if own.size() == spec.shape { &own } else { &zeros });
    }
    fixture.params = params;
    let (loss, _) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    let actions = fixture.act(&fixture.all(), Shows::FirstFrame).unwrap();
    assert!(loss.is_finite() && actions.isfinite().all().int64_value(&[]) == 1);
}

const FIRST_SEES_ALL: SegmentRules<Of> = SegmentRules(&[
    rule(Of::First, Of::First),
    rule(Of::First, Of::Frames),
    rule(Of::Frames, Of::First),
    rule(Of::Frames, Of::Frames),
    rule(Of::Actions, Of::First),
    rule(Of::Actions, Of::Actions),
]);
const ACTIONS_SEE_FRAMES: SegmentRules<Of> = SegmentRules(&[
    rule(Of::First, Of::First),
    rule(Of::Frames, Of::First),
    rule(Of::Frames, Of::Frames),
    rule(Of::Actions, Of::First),
    rule(Of::Actions, Of::Frames),
    rule(Of::Actions, Of::Actions),
]);
const FRAMES_SEE_NO_FIRST: SegmentRules<Of> = SegmentRules(&[
    rule(Of::First, Of::First),
    rule(Of::Frames, Of::Frames),
    rule(Of::Actions, Of::First),
    rule(Of::Actions, Of::Actions),
]);
const ACTIONS_SEE_NO_ACTIONS: SegmentRules<Of> = SegmentRules(&[
    rule(Of::First, Of::First),
    rule(Of::Frames, Of::First),
    rule(Of::Frames, Of::Frames),
    rule(Of::Actions, Of::First),
]);

fn with_rules(fixture: &mut Fixture, rules: SegmentRules<Of>) -> bool {
    fixture.config.rules = rules;
    true
}

fn reversed(fixture: &mut Fixture, time: &str) -> bool {
    let time = fixture.inputs.get_mut(time).unwrap();
    *time = 1.0 - &*time;
    true
}

/// Scale and shift exchanged in the six modulations of a stream's blocks.
fn modulated_otherwise(fixture: &mut Fixture, stream: &str) -> bool {
    checks::exchange(&fixture.params, &format!(".blocks.{stream}.modulation"), 1, (6, [0, 1]));
    checks::exchange(&fixture.params, &format!("mixtures.{stream}.time_projection.1."), 0, (6, [0, 1]));
    true
}

/// Masks, the times' convention and weights, and orders of modulations.
#[test]
fn mistakes_are_far_from_the_reference() {
    let mistakes: &[checks::Mistake<Fixture>] = &[
        ("the first frame sees all", |it| with_rules(it, FIRST_SEES_ALL)),
        ("actions see all frames", |it| with_rules(it, ACTIONS_SEE_FRAMES)),
        ("frames do not see the first", |it| with_rules(it, FRAMES_SEE_NO_FIRST)),
        ("actions do not see each other", |it| with_rules(it, ACTIONS_SEE_NO_ACTIONS)),
        ("time from noise to frames", |it| reversed(it, "video_time")),
        ("time from noise to actions", |it| reversed(it, "action_time")),
        ("the velocity from noise to frames", |it| {
            checks::change(&it.params, "mixtures.video.head.head.", |value| value * -1.0);
            true
        }),
        ("the velocity from noise to actions", |it| {
            checks::change(&it.params, "mixtures.action.head.", |value| value * -1.0);
            true
        }),
        ("shift and scale exchanged in blocks of frames", |it| modulated_otherwise(it, "video")),
        ("shift and scale exchanged in blocks of actions", |it| modulated_otherwise(it, "action")),
        ("shift and scale exchanged in the head", |it| {
            checks::exchange(&it.params, "mixtures.video.head.modulation", 1, (2, [0, 1]));
            true
        }),
        ("weights of frames without the shift of their times", |it| {
            std::mem::replace(&mut it.config.video_flow.train_shift, 1.0) != 1.0
        }),
        ("weights of actions without the shift of their times", |it| {
            std::mem::replace(&mut it.config.action_flow.train_shift, 1.0) != 1.0
        }),
        ("padded actions count", |it| {
            it.samples.iter_mut().for_each(|sample| sample.inside = i64::MAX);
            true
        }),
    ];
    for at in 0..fixtures().len() {
        let (name, _) = fixtures().swap_remove(at);
        checks::mistakes_are_far_from_the_reference(&name, || fixtures().swap_remove(at).1, mistakes);
    }
}
