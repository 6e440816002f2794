//! An encoder of one's own whose features are not what the foundation takes.

use crate::fixture::Fixture;
use loongforge::compose::{
    Composition, EncoderFamily, EncoderModel, EncoderTape, Grid, Init, ParamSpec, ParamStore, Policy, Tape, Tensor,
};
use std::rc::Rc;

/// A linear map from a block of patches to `outputs` features of this width.
#[derive(Debug)]
struct Linear {
    width: i64,
    outputs: usize,
}

impl EncoderFamily for Linear {
    fn specs(&self) -> Vec<ParamSpec> {
        vec![ParamSpec::new("map", &[self.width, 4 * 3 * 2 * 8 * 8], Init::Normal(0.1))]
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let (map, id, outputs) = (params.get("map"), params.id("map"), self.outputs);
        Box::new(move |_: &[Grid]| {
            let (mut tape, map) = (Tape::new(), map.shallow_clone());
            let pixels = tape.input(false);
            let outputs = tape.run("map", &[id], policy, &[pixels], outputs, move |read| {
                let features = read[0].view([-1, map.size()[1]]).linear(&map, None::<&Tensor>);
                (0..outputs).map(|_| features.shallow_clone()).collect()
            });
            EncoderTape { tape: Rc::new(tape), pixels, outputs }
        })
    }

    fn num_outputs(&self) -> usize {
        self.outputs
    }

    fn patch_dim(&self) -> i64 {
        3 * 2 * 8 * 8
    }

    fn num_features(&self, grid: Grid) -> usize {
        grid.num_cells() / 4
    }
}

/// Returns how a run of the fixture with this encoder ends.
fn run(encoder: Linear) -> Result<(), String> {
    let fixture = Fixture::new();
    let root = fixture.path("").display().to_string();
    let yaml = fixture.read("run.yaml").replace("path: ", &format!("path: {root}/"));
    let yaml = yaml.replace("dir: run", &format!("dir: {root}/run"));
    let yaml = yaml.replace("load: model", &format!("load: {root}/model"));
    let run = Composition::from_yaml(&yaml).unwrap().encoder(encoder);
    run.run_with(|_| {}).map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn features_of_another_shape_end_the_run() {
    assert_eq!(run(Linear { width: 48, outputs: 2 }), Ok(()));
    for (width, outputs) in [(40, 2), (48, 1), (48, 3)] {
        let error = run(Linear { width, outputs }).unwrap_err();
        for word in ["encoder/0: ", "foundation/0 rejected its data", "expected 2 tensors of [", ", 48]"] {
            assert!(error.contains(word), "{word:?} is not in {error}");
        }
    }
}

#[test]
fn a_config_in_code_is_checked_like_any_other() {
    let error = Composition::from_yaml("run: { nam: x }").err().unwrap().to_string();
    assert!(error.contains("unknown key `run.nam`") && error.contains("missing required key `train.steps`"), "{error}");
}
