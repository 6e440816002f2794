//! Every committed fixture through our models, within the tolerance. More folders can be given in
//! `LOONGFORGE_FIXTURES`, separated by colons; each holds fixtures.

use loongforge_torch::train::parity::{drift, parity};
use std::path::{Path, PathBuf};
use tch::{Device, Kind};

fn fixtures(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("fixture.json").is_file());
    found.sort();
    found
}

fn all_fixtures() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")];
    if let Some(more) = std::env::var_os("LOONGFORGE_FIXTURES") {
        folders.extend(std::env::split_paths(&more));
    }
    let fixtures: Vec<PathBuf> = folders.iter().flat_map(|folder| fixtures(folder)).collect();
    assert!(!fixtures.is_empty(), "no fixtures");
    fixtures
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
