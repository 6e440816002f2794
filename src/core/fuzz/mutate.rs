//! The targets with inputs that are always the same: the seeds, what once went wrong, and both mutated.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TARGETS, Target};
use crate::rng::Rng;

/// Mutated inputs of each target; the fuzzer tries millions.
const NUM_INPUTS: u64 = 400;
const MAX_BYTES: usize = 1 << 16;
/// Numbers on which parsers trip.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

#[test]
fn animations() {
    try_out("animation");
}

#[test]
fn configs() {
    try_out("config");
    try_out("overrides");
}

#[test]
fn frames() {
    try_out("frames");
}

#[test]
fn images() {
    try_out("image");
}

#[test]
fn messages() {
    try_out("messages");
}

#[test]
fn packs() {
    try_out("npy");
    try_out("packed");
}

#[test]
fn requests() {
    try_out("request");
}

#[test]
fn sounds() {
    try_out("sound");
}

#[test]
fn sources() {
    try_out("archive");
    try_out("arrow");
    try_out("hub_card");
    try_out("index");
    try_out("json");
    try_out("parquet");
    try_out("sheet");
}

#[test]
fn states() {
    try_out("state");
}

#[test]
fn templates() {
    try_out("template");
}

#[test]
fn tokenizers() {
    try_out("tiktoken");
    try_out("tokenizer");
}

#[test]
fn videos() {
    try_out("video");
}

#[test]
fn every_target_is_in_the_fuzzers_folder_and_has_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        assert!(folder.join(format!("targets/{}.rs", target.name)).exists(), "{}", target.name);
        assert!(!(target.seeds)().is_empty(), "{}", target.name);
    }
}

/// Writes the seeds as files for the fuzzer: `FUZZ_SEEDS=fuzz/corpus cargo test -p loongforge-core seeds_for_the_fuzzer`.
#[test]
fn seeds_for_the_fuzzer() {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else { return };
    for target in TARGETS {
        let folder = Path::new(&folder).join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for (index, seed) in inputs(target).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{index}")), seed).unwrap();
        }
    }
}

/// Reads the seeds and what is kept in `regressions/NAME/`.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = (target.seeds)();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions").join(target.name);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    inputs.extend(files.iter().map(|path| std::fs::read(path).unwrap()));
    inputs
}

fn try_out(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let inputs = inputs(target);
    inputs.iter().for_each(|input| (target.run)(input));
    let mut rng = Rng::new(&[name.bytes().map(u64::from).sum()]);
    for _ in 0..NUM_INPUTS {
        (target.run)(&mutated(&inputs, &mut rng));
    }
}

/// Runs every target on new inputs: `LOONGFORGE_FUZZ=SEED:SECONDS`, the seed in hexadecimal, the seconds of all targets
/// together. An input that fails is written to `target/fuzz-failures/NAME`.
#[test]
#[ignore = "cargo xtask ci"]
fn fuzz_for_a_while() {
    let wanted = std::env::var("LOONGFORGE_FUZZ").expect("LOONGFORGE_FUZZ=SEED:SECONDS");
    let (seed, seconds) = wanted.split_once(':').expect("LOONGFORGE_FUZZ=SEED:SECONDS");
    let seed = u64::from_str_radix(seed, 16).expect("the seed is hexadecimal");
    let each = Duration::from_secs_f64(seconds.parse::<f64>().expect("seconds") / TARGETS.len() as f64);
    for (number, target) in TARGETS.iter().enumerate() {
        let (begun, inputs, mut count) = (Instant::now(), inputs(target), 0);
        let mut rng = Rng::new(&[seed, number as u64]);
        while begun.elapsed() < each {
            let input = mutated(&inputs, &mut rng);
            if let Err(panic) = std::panic::catch_unwind(|| (target.run)(&input)) {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz-failures");
                std::fs::create_dir_all(&folder).unwrap();
                let file = folder.join(target.name);
                std::fs::write(&file, &input).unwrap();
                println!("{}: input {count} of seed {seed:x} fails; it is in {}", target.name, file.display());
                std::panic::resume_unwind(panic);
            }
            count += 1;
        }
        println!("{}: {count} inputs", target.name);
    }
}

/// Makes one of the inputs after one to four mutations.
fn mutated(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng| &inputs[rng.below(inputs.len() as u64) as usize];
    let mut bytes = pick(rng).clone();
    for _ in 0..=rng.below(4) {
        mutate(&mut bytes, pick(rng).clone(), rng);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

/// Mutates bytes as fuzzers do: flips, edges, cuts, doublings, splices.
fn mutate(bytes: &mut Vec<u8>, other: Vec<u8>, rng: &mut Rng) {
    let place = |rng: &mut Rng, len: usize| rng.below(len as u64 + 1) as usize;
    let (at, len) = (place(rng, bytes.len()), bytes.len());
    let end = at + place(rng, (len - at).min(64));
    match rng.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let piece = bytes[at..end].repeat(1 + rng.below(4) as usize);
            bytes.splice(at..at, piece);
        }
        3 => {
            let from = place(rng, other.len());
            let to = from + place(rng, (other.len() - from).min(200));
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        4 => {
            let edge = EDGES[rng.below(EDGES.len() as u64) as usize];
            let width = 1 << rng.below(4);
            let edge: Vec<u8> = match rng.below(3) {
                0 => edge.to_be_bytes()[8 - width..].to_vec(),
                1 => edge.to_le_bytes()[..width].to_vec(),
                _ => edge.to_string().into_bytes(),
            };
            let end = (at + edge.len()).min(len);
            bytes.splice(at..end, edge);
        }
        _ if at < len => bytes[at] ^= 1 << rng.below(8),
        _ => bytes.push(rng.below(256) as u8),
    }
}
