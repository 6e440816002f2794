//! A policy in two parts beside the whole one, on fixtures that `tests/oracle/make_groot.py` makes.

use std::collections::BTreeMap;
use std::rc::Rc;

use loongforge_core::message::{Grid, PicturedText, Tower};
use tch::{Device, Kind, Tensor};

use super::split;
use crate::model::batch::MicroBatch;
use crate::model::columns::{INPUT_IDS, POSITION_IDS};
use crate::model::fixture::{self, Parts, error};
use crate::model::foundation::FoundationFamily;
use crate::model::groot::GrootConfig;
use crate::model::groot::fixture::Fixture;
use crate::model::policy::{Denoising, Observed, PolicyFamily, PolicyOptions, RobotPolicy, checks};
use crate::model::towers::{ModelTower, Towers};
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::Policy;

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("policies", &["groot"]), |folder| Fixture::read(folder, Kind::Float))
}

/// Returns the policy, and its language model as a tower.
fn apart(fixture: &Fixture) -> (GrootConfig, ModelTower) {
    let placeholders = fixture.config.input.placeholders.clone();
    let vision = ModelTower { tower: Tower::Vision, family: fixture.tower.clone(), placeholders };
    split(&fixture.config, &Towers::new(vec![vision])).unwrap()
}

/// Makes parameters with the fixture's weights.
fn store(fixture: &Fixture, specs: Vec<ParamSpec>) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    for id in params.ids() {
        let name = &params.spec(id).name;
        let whole = [&fixture.params, &fixture.of_tower].into_iter().find(|it| it.find(name).is_some()).unwrap();
        params.set(id, &whole.value(whole.id(name)));
    }
    Rc::new(params)
}

/// Returns what the tower is given of these samples, and the sizes of their items.
fn items(fixture: &Fixture, samples: &[usize]) -> (Tensor, Vec<Grid>) {
    let item = |sample: &usize| {
        let (columns, _) = fixture.columns(&[*sample]);
        let ids = Vec::<i64>::try_from(columns.get(INPUT_IDS)).unwrap();
        let positions = columns.get(POSITION_IDS).to_kind(Kind::Float).flatten(0, -1);
        let (pixels, grids) = fixture.pixels(&[*sample]);
        let patches = Vec::<f32>::try_from(pixels.to_kind(Kind::Float).flatten(0, -1)).unwrap();
        PicturedText { ids, positions: Vec::try_from(positions).unwrap(), grids }.item(&[&patches])
    };
    let (grids, values): (Vec<Grid>, Vec<Vec<f32>>) = samples.iter().map(item).unzip();
    (Tensor::from_slice(&values.concat()).view([-1, 1]), grids)
}

/// Returns the gradients of both stores by name.
fn gradients(of: [(&Rc<ParamStore>, &GradBuffer); 2]) -> BTreeMap<String, Tensor> {
    let own = |(params, grads): (&Rc<ParamStore>, &GradBuffer)| {
        let of = |id| (params.spec(id).name.clone(), grads.view(id).copy());
        params.trained_ids().map(of).collect::<Vec<_>>()
    };
    of.into_iter().flat_map(own).collect()
}

#[test]
fn a_policy_in_two_parts_has_the_loss_the_gradients_and_the_actions_of_the_whole() {
    for (name, fixture) in fixtures() {
        let all = fixture.all();
        let (config, tower) = apart(&fixture);
        let noise = fixture.noise(&all);
        let noise_draws = (noise.times.len() / all.len()) as u32;
        let options = PolicyOptions { noise_draws, ..PolicyOptions::default() };
        let family = PolicyFamily::new(config.clone()).with_options(options);
        let (params, of_tower) = (store(&fixture, family.specs()), store(&fixture, tower.family.specs()));
        assert!(params.names().all(|name| name.contains("action_head.")), "{name}");
        let parts = Parts { params: &params, tower: &*tower.family, of_tower: &of_tower, trains_tower: true };
        let batch = fixture.batch(&all);
        let batch = MicroBatch { num_features: vec![batch.num_tokens()], ..batch };
        let model = family.model(&params, Policy::Keep);
        let found = parts.run(model.record_with(&batch, &noise), items(&fixture, &all), Policy::Recompute);
        let whole = fixture.model(Policy::Keep).record_with(&fixture.batch(&all), &noise);
        let whole = fixture.run_tape(whole, &all);
        assert!((found.loss / whole.loss - 1.0).abs() < 5e-6, "{name}: {} {}", found.loss, whole.loss);

        let own = gradients([(&params, &found.grads), (&of_tower, &found.of_tower)]);
        let expected = gradients([(&fixture.params, &whole.grads), (&fixture.of_tower, &whole.of_tower)]);
        assert!(own.keys().eq(expected.keys()), "{name}");
        let largest = |grad: &Tensor| grad.abs().max().double_value(&[]);
        let most = expected.values().map(largest).fold(0.0, f64::max);
        for (of, grad) in &own {
            let off = largest(&(grad - &expected[of]));
            assert!(off < 2e-5 * most, "{name} {of}: {off} of {most}");
        }

        let (columns, ends) = fixture.columns(&all);
        let features = parts.features(items(&fixture, &all));
        let start = fixture.of("start", &all);
        let from = start.flatten(0, 1);
        let acted = config.acting(&params).act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &features },
            Denoising { noise: &from, num_steps: config.num_steps as usize, given: None },
        );
        let acted = acted.unwrap().view(start.size().as_slice());
        assert!(error(&acted, &fixture.act(&all).unwrap()) < 1e-5, "{name}");
        checks::filler_has_no_loss(&model, &params);
    }
}

/// A frozen language model wants no gradient of its features, and gets none.
#[test]
fn features_of_a_frozen_language_model_have_no_gradient() {
    let fixture = fixtures().swap_remove(0).1;
    let (config, tower) = apart(&fixture);
    let family = PolicyFamily::new(config);
    let (params, of_tower) = (store(&fixture, family.specs()), store(&fixture, tower.family.specs()));
    let parts = Parts { params: &params, tower: &*tower.family, of_tower: &of_tower, trains_tower: false };
    let batch = fixture.batch(&[0, 1]);
    let batch = MicroBatch { num_features: vec![batch.num_tokens()], feature_grads: false, ..batch };
    let model = family.model(&params, Policy::Keep);
    let noise = model.draw(&batch);
    let found = parts.run(model.record_with(&batch, &noise), items(&fixture, &[0, 1]), Policy::Keep);
    assert!(found.loss > 0.0 && found.grads.flat().abs().max().double_value(&[]) > 0.0);
    assert_eq!(found.of_tower.flat().abs().max().double_value(&[]), 0.0);
}
