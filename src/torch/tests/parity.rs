//! Every committed fixture through our models, within the tolerance. More folders can be given in
//! `LOONGFORGE_FIXTURES`, separated by colons; each holds fixtures.

use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::train::parity::{drift, parity};
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

fn fixtures(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("fixture.json").is_file());
    found.sort();
    assert!(!found.is_empty(), "{} holds no fixtures", folder.display());
    found
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn all_fixtures() -> Vec<PathBuf> {
    let committed = ["fixtures", "policies", "florence"];
    let mut folders: Vec<PathBuf> = committed.iter().map(|name| tests().join(name)).collect();
    if let Some(more) = std::env::var_os("LOONGFORGE_FIXTURES") {
        folders.extend(std::env::split_paths(&more));
    }
    folders.iter().flat_map(|folder| fixtures(folder)).collect()
}

#[test]
fn every_fixture_is_within_the_tolerance() {
    let mut failed = Vec::new();
    for fixture in all_fixtures() {
        let report = parity(&fixture, Device::Cpu);
        match &report {
            Ok(report) => println!("{}\n{report}", fixture.display()),
            Err(error) => println!("{}\n  FAILED {error}", fixture.display()),
        }
        if !report.is_ok_and(|report| report.is_ok()) {
            failed.push(fixture);
        }
    }
    assert!(failed.is_empty(), "outside the tolerance: {failed:?}");
}

#[test]
fn bf16_drifts_no_further_than_the_reference_does() {
    // Operators of this size are slower on several threads, on which the test above runs them.
    set_intra_op_threads(1);
    let mut failed = Vec::new();
    for fixture in all_fixtures() {
        let drift = drift(&fixture, Kind::BFloat16, Device::Cpu);
        let drift = drift.unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
        println!("{}\n{drift}", fixture.display());
        if !drift.is_ok() {
            failed.push((fixture, drift));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Returns a copy of a fixture whose reference has other tensors.
fn changed(fixture: &Path, change: impl Fn(&mut Vec<(String, Tensor)>)) -> tempfile::TempDir {
    changed_in(fixture, "expected", change)
}

/// Returns a copy of a fixture with other tensors in one of its files.
fn changed_in(fixture: &Path, file: &str, change: impl Fn(&mut Vec<(String, Tensor)>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join(format!("{file}.safetensors"));
    let mut tensors = Tensor::read_safetensors(&path).unwrap();
    change(&mut tensors);
    Tensor::write_safetensors(&tensors, path).unwrap();
    folder
}

/// A loss, a gradient and sampled actions that are a little off, and a gradient that is missing, fail and are named, in each kind of
/// fixture without columns of tokens; a folder that lacks a tensor is no fixture.
#[test]
fn a_policy_that_is_off_fails() {
    set_intra_op_threads(1);
    let policies = ["pi05-seed1", "groot-seed1", "xvla-auto-seed1", "fastwam-seed1", "fast-seed1"];
    let policies = policies.map(|name| format!("policies/{name}"));
    for name in policies.iter().map(String::as_str).chain(["florence/florence2-seed1"]) {
        let fixture = tests().join(name);
        let grad = Tensor::read_safetensors(fixture.join("expected.safetensors")).unwrap().into_iter();
        let grad = grad.filter(|(name, _)| name.starts_with("grad/"));
        let largest = |x: &Tensor| x.abs().max().double_value(&[]);
        let (grad, _) = grad.max_by(|a, b| largest(&a.1).total_cmp(&largest(&b.1))).unwrap();
        let sampled = ["sampled", "written", "scores.0"];
        for (key, row) in [("loss", "loss"), (grad.as_str(), "gradients"), ("sampled", "")] {
            let is_changed = |found: &str| found == key || (key == "sampled" && sampled.contains(&found));
            let folder = changed(&fixture, |expected| {
                let (_, value) = expected.iter_mut().find(|(found, _)| is_changed(found)).unwrap();
                *value = match value.kind() {
                    Kind::Int64 => &*value + 1,
                    _ => &*value * 1.001,
                };
            });
            let report = parity(folder.path(), Device::Cpu).unwrap();
            assert!(!report.is_ok(), "{name}: {key}\n{report}");
            let failed = report.rows.iter().find(|found| found.excess > 1.0).unwrap();
            assert!(row.is_empty() || failed.quantity == row, "{name}: {key}\n{report}");
        }
        let folder = changed(&fixture, |expected| expected.retain(|(found, _)| *found != grad));
        let report = parity(folder.path(), Device::Cpu).unwrap();
        assert!(report.problems[0].contains("the reference has no gradient of"), "{name}\n{report}");
        let folder = changed(&fixture, |expected| expected.retain(|(found, _)| *found != "loss"));
        let error = parity(folder.path(), Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("expected.safetensors has no loss: is it a fixture that make_"), "{error}");
    }
}

/// The loss and the gradients of answers behind prompts are compared as well.
#[test]
fn answers_that_are_off_fail() {
    let fixture = tests().join("policies/pi05-seed1");
    let answers = Tensor::read_safetensors(fixture.join("answers.safetensors")).unwrap();
    let largest = |x: &Tensor| x.abs().max().double_value(&[]);
    let grads = answers.iter().filter(|(name, _)| name.starts_with("grad/"));
    let (grad, _) = grads.max_by(|a, b| largest(&a.1).total_cmp(&largest(&b.1))).unwrap();
    for (key, row) in [("loss", "loss of both"), (grad.as_str(), "gradients of both")] {
        let folder = changed_in(&fixture, "answers", |answers| {
            let (_, value) = answers.iter_mut().find(|(found, _)| found == key).unwrap();
            *value = &*value * 1.001;
        });
        let report = parity(folder.path(), Device::Cpu).unwrap();
        let failed: Vec<_> = report.rows.iter().filter(|found| found.excess > 1.0).collect();
        assert!(!failed.is_empty() && failed.iter().all(|found| found.quantity == row), "{key}\n{report}");
    }
    let folder = changed_in(&fixture, "answers", |answers| answers.retain(|(found, _)| *found != grad.as_str()));
    assert!(!parity(folder.path(), Device::Cpu).unwrap().is_ok(), "without {grad}");
    let folder = changed_in(&fixture, "answers", |answers| answers.retain(|(found, _)| found != "lens"));
    let report = parity(folder.path(), Device::Cpu).unwrap();
    assert!(report.problems[0].contains("answers.safetensors lacks lens or answers"), "{report}");
}

/// A tensor of another shape, and one that is missing, are errors that name file and tensor.
#[test]
fn tensors_of_another_shape_are_named() {
    let policies = ["pi05-seed1", "groot-seed1", "xvla-auto-seed1", "fastwam-seed1", "fast-seed1", "smolvla-seed1"];
    let policies = policies.map(|name| format!("policies/{name}"));
    let error = |folder: tempfile::TempDir| parity(folder.path(), Device::Cpu).unwrap_err().to_string();
    for name in policies.iter().map(String::as_str).chain(["florence/florence2-seed1"]) {
        let fixture = tests().join(name);
        for at in [0, 20] {
            let found = error(changed_in(&fixture, "model", |model| {
                model.sort_by(|a, b| a.0.cmp(&b.0));
                model[at].1 = Tensor::zeros([3, 1, 2, 7], (Kind::Float, Device::Cpu));
            }));
            assert!(found.contains("model.safetensors: ") && found.contains("that of the model is"), "{name}: {found}");
        }
    }
    for (name, tensor) in [("groot-seed1", "pixels_0"), ("groot-seed1", "noise"), ("pi05-seed1", "images")] {
        let fixture = tests().join("policies").join(name);
        let found = error(changed_in(&fixture, "inputs", |inputs| {
            let (_, value) = inputs.iter_mut().find(|(found, _)| found == tensor).unwrap();
            *value = Tensor::zeros([1, 1], (Kind::Float, Device::Cpu));
        }));
        assert!(found.contains("inputs.safetensors: ") && found.contains(tensor), "{name}: {found}");
    }
    let fixture = tests().join("policies/groot-seed1");
    let last = Tensor::read_safetensors(fixture.join("inputs.safetensors")).unwrap().into_iter();
    let last = last.map(|(name, _)| name).filter(|name| name.starts_with("pixels_")).max().unwrap();
    let found = error(changed_in(&fixture, "inputs", |inputs| inputs.retain(|(name, _)| *name != last)));
    assert!(found.contains(&format!("inputs.safetensors has no {last}")), "{found}");
}
