//! Vision towers and projectors on videos and on pictures of other sizes than their own, and audio towers and projectors on
//! clips of unequal length, and text towers on texts of unequal length: features, and gradients of all parameters, as the
//! references give them. `tests/oracle/make_towers.py`, `make_audio_towers.py` and `make_text_towers.py` make the folders;
//! `LOONGFORGE_TOWERS` has those of another place read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::{Grid, Tower};
use loongforge_torch::model::{EncoderFamily, ModelConfig};
use loongforge_torch::params::{ParamStore, Role};
use loongforge_torch::tape::{Execution, Policy};
use tch::{Device, Kind, Tensor};

/// The tolerance, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 1e-4;
/// The share of the norm of all gradients below which a value is zero but for rounding.
const ROUNDING: f64 = 1e-8;
/// The same of audio towers, whose keys have biases without rotation in the reference: their gradient is zero in exact
/// arithmetic, and a sum over all states in the reference's own rounding.
const ROUNDING_OF_AUDIO: f64 = 1e-7;

fn folders() -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/towers");
    let towers = std::env::var_os("LOONGFORGE_TOWERS").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&towers).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "{} is empty", towers.display());
    found
}

fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let largest = expected.abs().max().double_value(&[]);
    (found - expected).abs().max().double_value(&[]) / largest
}

fn model(folder: &Path) -> ModelConfig {
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    ModelConfig::from_hf(&serde_json::from_str(&config).unwrap()).unwrap()
}

fn family(folder: &Path) -> Arc<dyn EncoderFamily> {
    model(folder).towers.iter().next().unwrap().family.clone()
}

/// Returns the kind of the fixture's tower.
fn kind(folder: &Path) -> Tower {
    model(folder).towers.iter().next().unwrap().tower
}

fn grids(table: &Tensor) -> Vec<Grid> {
    let sizes: Vec<i64> = Vec::try_from(table.flatten(0, -1)).unwrap();
    sizes.chunks(3).map(|side| Grid { t: side[0] as u32, h: side[1] as u32, w: side[2] as u32 }).collect()
}

fn params(family: &dyn EncoderFamily, folder: &Path, kind: Kind) -> Rc<ParamStore> {
    let weights = tensors(folder.join("model.safetensors"));
    let params = Rc::new(ParamStore::new(family.specs(), kind, Device::Cpu));
    let names: Vec<&str> = params.names().collect();
    assert_eq!(names.len(), weights.len(), "{names:?} and {:?}", weights.keys());
    params.ids().for_each(|id| params.set(id, &weights[&params.spec(id).name]));
    params
}

/// Returns the largest error of the features and of the gradients.
fn check(folder: &Path, policy: Policy) -> [f64; 2] {
    let family = family(folder);
    let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
    let params = params(&*family, folder, Kind::Float);
    let grids_in = grids(&inputs["sizes"]);
    let tape = family.build(&params, policy).record(&grids_in);
    let mut run = Execution::new(tape.tape, params.clone(), vec![(tape.pixels, inputs["patches"].shallow_clone())]);
    run.forward().unwrap();
    let mut largest = [0f64; 2];
    for (number, output) in tape.outputs.iter().enumerate() {
        let found = run.value(*output);
        let error = error(found, &expected[&format!("features/{number}")]);
        assert!(error < TOLERANCE, "features {number}: {error}");
        largest[0] = largest[0].max(error);
        let num_features: usize = grids_in.iter().map(|grid| family.num_features(*grid)).sum();
        assert_eq!(found.size()[0], num_features as i64);
        run.seed(*output, inputs[&format!("seeds/{number}")].shallow_clone());
    }
    if let Some(frames) = inputs.get("frames") {
        let counts: Vec<i64> = grids(frames).into_iter().map(|grid| family.num_features(grid) as i64).collect();
        assert_eq!(counts, Vec::<i64>::try_from(&expected["counts"]).unwrap());
    }
    let mut grads = params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    let norm = |name: &str| expected[&format!("grad_norm/{name}")].double_value(&[]);
    let trained: Vec<&str> = params.trained_ids().map(|id| params.spec(id).name.as_str()).collect();
    let share = if kind(folder) == Tower::Audio { ROUNDING_OF_AUDIO } else { ROUNDING };
    let rounding = share * trained.iter().map(|name| norm(name).powi(2)).sum::<f64>().sqrt();
    for id in params.ids() {
        let name = params.spec(id).name.as_str();
        if params.spec(id).role != Role::Trained {
            assert!(!expected.contains_key(&format!("grad_norm/{name}")), "{name} has a gradient");
            continue;
        }
        let found = grads.view(id);
        let found_norm = found.norm().double_value(&[]);
        // Not `max`, which drops a NaN.
        if !(norm(name) <= rounding && found_norm <= rounding) {
            assert!((found_norm / norm(name) - 1.0).abs() < TOLERANCE, "gradient of {name}");
            if let Some(expected) = expected.get(&format!("grad/{name}")) {
                let error = error(found, expected);
                assert!(error < TOLERANCE, "gradient of {name}: {error}");
                largest[1] = largest[1].max(error);
            }
        }
    }
    largest
}

#[test]
fn towers_give_the_references_features_and_gradients() {
    for folder in folders() {
        let [features, gradients] = check(&folder, Policy::Keep);
        println!("{}: features {features:.1e}, gradients {gradients:.1e}", folder.display());
    }
}

#[test]
fn what_is_computed_again_is_the_same() {
    for folder in folders() {
        check(&folder, Policy::Recompute);
    }
}

/// An item's features must not depend on what else is in the batch.
#[test]
fn an_item_alone_has_the_features_that_it_has_among_others() {
    for folder in folders() {
        let family = family(&folder);
        let (params, inputs) = (params(&*family, &folder, Kind::Float), tensors(folder.join("inputs.safetensors")));
        let together = tensors(folder.join("expected.safetensors"))["features/0"].shallow_clone();
        let (mut patch, mut feature) = (0, 0);
        for grid in grids(&inputs["sizes"]) {
            let num_features = family.num_features(grid) as i64;
            let pixels = inputs["patches"].narrow(0, patch, grid.num_cells() as i64);
            let tape = family.build(&params, Policy::Keep).record(&[grid]);
            let mut run = Execution::forward_only(tape.tape, params.clone(), vec![(tape.pixels, pixels)]);
            run.forward().unwrap();
            let error = error(run.value(tape.outputs[0]), &together.narrow(0, feature, num_features));
            assert!(error < TOLERANCE, "{} {grid:?}: {error}", folder.display());
            patch += grid.num_cells() as i64;
            feature += num_features;
        }
        assert_eq!([patch, feature], [inputs["patches"].size()[0], together.size()[0]]);
    }
}
