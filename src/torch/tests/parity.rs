//! Every committed fixture through our models, within the tolerance. More folders can be given in
//! `LOONGFORGE_FIXTURES`, separated by colons; each holds fixtures.

use loongforge_torch::train::parity::parity;
use std::path::{Path, PathBuf};

fn fixtures(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("fixture.json").is_file());
    found.sort();
    found
}

#[test]
fn every_fixture_is_within_the_tolerance() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")];
    if let Some(more) = std::env::var_os("LOONGFORGE_FIXTURES") {
        folders.extend(std::env::split_paths(&more));
    }
    let fixtures: Vec<PathBuf> = folders.iter().flat_map(|folder| fixtures(folder)).collect();
    assert!(!fixtures.is_empty(), "no fixtures");
    let mut failed = Vec::new();
    for fixture in fixtures {
        let report = parity(&fixture);
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
