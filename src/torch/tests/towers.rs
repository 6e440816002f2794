//! Vision towers and projectors on videos and on pictures of other sizes than their own: features, and gradients of all
//! parameters, as the references give them. `tests/oracle/make_towers.py` makes the folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::message::Grid;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::ParamStore;
use loongforge_torch::tape::{Execution, Policy};
use tch::{Device, Kind, Tensor};

/// The tolerance, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 1e-4;
/// The share of the norm of all gradients below which a value is zero but for rounding.
const ROUNDING: f64 = 1e-8;

fn folders() -> Vec<PathBuf> {
    let towers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/towers");
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

fn check(folder: &Path, policy: Policy) {
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let model = ModelConfig::from_hf(&config).unwrap();
    let family = &model.towers.iter().next().unwrap().family;
    let [weights, inputs, expected] =
        ["model", "inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
    let params = Rc::new(ParamStore::new(family.specs(), Kind::Float, Device::Cpu));
    let names: Vec<&str> = params.names().collect();
    assert_eq!(names.len(), weights.len(), "{names:?} and {:?}", weights.keys());
    params.ids().for_each(|id| params.set(id, &weights[&params.spec(id).name]));

    let sizes: Vec<i64> = Vec::try_from(inputs["sizes"].flatten(0, -1)).unwrap();
    let grids: Vec<Grid> =
        sizes.chunks(3).map(|side| Grid { t: side[0] as u32, h: side[1] as u32, w: side[2] as u32 }).collect();
    let tape = family.build(&params, policy).record(&grids);
    let mut run = Execution::new(tape.tape, params.clone(), vec![(tape.pixels, inputs["patches"].shallow_clone())]);
    run.forward().unwrap();
    for (number, output) in tape.outputs.iter().enumerate() {
        let found = run.value(*output);
        assert!(error(found, &expected[&format!("features/{number}")]) < TOLERANCE, "features {number}");
        let num_features: usize = grids.iter().map(|grid| family.num_features(*grid)).sum();
        assert_eq!(found.size()[0], num_features as i64);
        run.seed(*output, inputs[&format!("seeds/{number}")].shallow_clone());
    }
    let mut grads = params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    let norm = |name: &str| expected[&format!("grad_norm/{name}")].double_value(&[]);
    let rounding = ROUNDING * names.iter().map(|name| norm(name).powi(2)).sum::<f64>().sqrt();
    for id in params.ids() {
        let (name, found) = (&params.spec(id).name, grads.view(id));
        let found_norm = found.norm().double_value(&[]);
        // Not `max`, which drops a NaN.
        if !(norm(name) <= rounding && found_norm <= rounding) {
            assert!((found_norm / norm(name) - 1.0).abs() < TOLERANCE, "gradient of {name}");
            if let Some(expected) = expected.get(&format!("grad/{name}")) {
                assert!(error(found, expected) < TOLERANCE, "gradient of {name}");
            }
        }
    }
}

#[test]
fn towers_give_the_references_features_and_gradients() {
    for folder in folders() {
        println!("{}", folder.display());
        check(&folder, Policy::Keep);
    }
}

#[test]
fn what_is_computed_again_is_the_same() {
    folders().iter().for_each(|folder| check(folder, Policy::Recompute));
}
