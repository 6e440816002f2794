//! A wrong bit anywhere in a checkpoint is found before a run goes on from it, and its file is named.

use crate::fixture::{CHECKPOINT, Fixture};
use crate::soak::{self, Cell};
use std::fs;
use std::path::PathBuf;

const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Flips one bit of a file of the checkpoint. Returns the path and the contents that were there.
fn flip_bit(fixture: &Fixture, (file, bit): &(String, usize)) -> (PathBuf, Vec<u8>) {
    let path = fixture.path(CHECKPOINT).join(file);
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[bit / 8] ^= 1 << (bit % 8);
    fs::write(&path, flipped).unwrap();
    (path, whole)
}

/// Flips one bit of a file, resumes and verifies, and flips it back.
fn is_found(fixture: &Fixture, flip: &(String, usize)) -> Result<Cell, String> {
    let ((path, whole), file) = (flip_bit(fixture, flip), &flip.0);
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

/// Makes a run whose checkpoint has adapters of the language model and of the tower, and the projector itself; and a config of another run
/// that goes on from them.
fn adapted() -> Fixture {
    let fixture = Fixture::trained();
    fixture.copy(CHECKPOINT, "base");
    let loads = "model: { load: model, weights: random }";
    let lora = "foundation: { lora: { r: 4, alpha_pattern: { down_proj: 3.5 } } }, image_encoder: { lora: { r: 2 } }";
    fixture.edit("run.yaml", loads, &format!("model: {{ load: base, weights: load, {lora} }}"));
    fixture.succeeds(&["run", "run.yaml", "--overwrite"]);
    let again = ["foundation", "image_encoder", "image_projector"]
        .map(|part| format!("{part}: {{ lora: {{ adapter: {CHECKPOINT} }} }}"))
        .join(", ");
    fixture.write("again.yaml", fixture.read("run.yaml").replace(lora, &again).replace("dir: run", "dir: again"));
    fixture.succeeds(&["check", "again.yaml"]);
    fixture
}

/// Works like [`is_found`] for a file of adapters, from which no other run begins either.
fn is_found_in_adapters(fixture: &Fixture, flip: &(String, usize)) -> Result<Cell, String> {
    let cell = is_found(fixture, flip)?;
    let (path, whole) = flip_bit(fixture, flip);
    let checked = fixture.start(&["check", "again.yaml"]);
    fs::write(&path, whole).unwrap();
    match checked.code {
        2 if checked.err.contains(&flip.0) => Ok(cell),
        code => Err(format!("check: {code}: {}", checked.err)),
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

/// Adapters are small, and other programs write them too: those of a run are compared with its manifest wherever a run reads them.
#[test]
fn a_wrong_bit_in_adapters_is_found_and_named() {
    let fixture = adapted();
    let files = files(&fixture);
    for name in ADAPTER_FILES {
        let size = files.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("{files:?}")).1;
        // The lowest bit near the end: of a number, or of a letter in a name.
        let found = is_found_in_adapters(&fixture, &(name.to_owned(), (size - 12) * 8));
        found.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
#[ignore = "soak"]
fn soak_bit_flips() {
    let (whole, adapted) = (Fixture::trained(), adapted());
    let mut cells = Vec::new();
    let of_adapters = files(&adapted).into_iter().filter(|(file, _)| ADAPTER_FILES.contains(&file.as_str()));
    for (is_whole, (file, size)) in
        files(&whole).into_iter().map(|file| (true, file)).chain(of_adapters.map(|file| (false, file)))
    {
        // The first and the last bit, and some between them.
        for nth in 0..16 {
            let bit = (size * 8 - 1) * nth / 15;
            cells.push((format!("{file}, bit {bit}"), (is_whole, (file.clone(), bit))));
        }
    }
    soak::run("bit_flips", &cells, |(is_whole, flip)| match is_whole {
        true => is_found(&whole, flip),
        false => is_found_in_adapters(&adapted, flip),
    });
}
