//! A wrong bit anywhere in a checkpoint is found before a run goes on from it, and its file is named.

use crate::fixture::{CHECKPOINT, Fixture};
use crate::soak::{self, Cell};
use std::fs;

/// Flips one bit of a file, resumes and verifies, and flips it back.
fn is_found(fixture: &Fixture, (file, bit): &(String, usize)) -> Result<Cell, String> {
    let path = fixture.path(CHECKPOINT).join(file);
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[bit / 8] ^= 1 << (bit % 8);
    fs::write(&path, flipped).unwrap();
    let before = fixture.contents("run");
    let resumed = fixture.start(&["run", "run.yaml", "--resume", "train.steps=3"]);
    let verified = fixture.start(&["checkpoint", "verify", CHECKPOINT]);
    let is_same = fixture.contents("run") == before;
    fs::write(&path, whole).unwrap();
    match (resumed.code, verified.code) {
        (1, 2) if resumed.err.contains(file) && verified.err.contains(file) && is_same => {
            Ok(Cell::Passed(String::new()))
        }
        codes => Err(format!("{codes:?}: {}{}", resumed.err, verified.err)),
    }
}

/// Names and sizes of a checkpoint's files.
fn files(fixture: &Fixture) -> Vec<(String, usize)> {
    let entries = fs::read_dir(fixture.path(CHECKPOINT)).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len() as usize))
        .collect();
    files.sort();
    files
}

#[test]
fn a_wrong_bit_is_found_and_named_unless_it_is_trusted() {
    let fixture = Fixture::trained();
    let files = files(&fixture);
    let size = |name: &str| files.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("{files:?}")).1;
    for name in ["config.json", "MANIFEST.json", "model-00002-of-00002.safetensors", "optimizer-foundation.safetensors"]
    {
        // The lowest bit of a number near the end: it changes the losses of a resumed run, and nothing else.
        is_found(&fixture, &(name.to_owned(), (size(name) - 400) * 8)).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    let path = fixture.path(CHECKPOINT).join("optimizer-foundation.safetensors");
    let mut flipped = fs::read(&path).unwrap();
    let place = flipped.len() - 400;
    flipped[place] ^= 1;
    fs::write(&path, flipped).unwrap();
    let more = ["run", "run.yaml", "--resume", "train.steps=3"];
    fixture.fails(&more, 1, &["optimizer-foundation.safetensors", "--trust", "--resume=PATH"]);
    fixture.succeeds(&[&more[..], &["--trust"]].concat());
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    let fixture = Fixture::trained();
    for (file, number) in
        [("model-00002-of-00002.safetensors", f32::NAN), ("optimizer-encoder.safetensors", f32::INFINITY)]
    {
        let path = fixture.path(CHECKPOINT).join(file);
        let whole = fs::read(&path).unwrap();
        let (mut bytes, header) = (whole.clone(), u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize);
        let tensors: serde_json::Value = serde_json::from_slice(&whole[8..8 + header]).unwrap();
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&number.to_le_bytes());
        let ends_last = |info: &serde_json::Value| info["data_offsets"][1] == (whole.len() - 8 - header) as u64;
        let (name, _) = tensors.as_object().unwrap().iter().find(|(_, info)| ends_last(info)).unwrap();
        fs::write(&path, bytes).unwrap();
        let how_many = if number.is_nan() { "1 NaN, 0 infinite" } else { "0 NaN, 1 infinite" };
        fixture.fails(&["checkpoint", "verify", CHECKPOINT], 2, &["values: 1 of ", &format!("{name}: {how_many}")]);
        fs::write(&path, whole).unwrap();
    }
    let said = fixture.succeeds(&["checkpoint", "verify", CHECKPOINT]);
    assert!(said.out.contains("values: all numbers of "), "{}", said.out);
}

#[test]
#[ignore = "soak"]
fn soak_bit_flips() {
    let fixture = Fixture::trained();
    let mut cells = Vec::new();
    for (file, size) in files(&fixture) {
        // The first and the last bit, and some between them.
        for nth in 0..16 {
            let bit = (size * 8 - 1) * nth / 15;
            cells.push((format!("{file}, bit {bit}"), (file.clone(), bit)));
        }
    }
    soak::run("bit_flips", &cells, |flip| is_found(&fixture, flip));
}
