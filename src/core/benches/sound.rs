//! Measures how fast one core makes samples, and log-mel frames of 128 bins, of files of sound.
//! `cargo bench -p loongforge-core --bench sound [-- FILE …]`; `benches/sound.py` measures soundfile and transformers on the same files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use loongforge_core::config::AudioLimits;
use loongforge_core::data::audio::{LogMel, Segment, decode_sound, wav};

const RATE: u32 = 16_000;
const NUM_MELS: usize = 128;
const SECONDS: usize = 30;

fn main() {
    let spell = Duration::from_millis(if std::env::var_os("LOONGFORGE_QUICK").is_some() { 20 } else { 1000 });
    let folder = tempfile::tempdir().expect("a folder");
    let mut files: Vec<PathBuf> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).map(PathBuf::from).collect();
    if files.is_empty() {
        files.push(folder.path().join("sine.wav"));
        let turn = std::f32::consts::TAU * 440.0 / RATE as f32;
        let sine: Vec<f32> = (0..SECONDS * RATE as usize).map(|at| 0.5 * (turn * at as f32).sin()).collect();
        std::fs::write(&files[0], wav(&sine, 1, RATE)).expect("a file");
    }
    let limits = AudioLimits { min_seconds: 0.0, max_seconds: 3600.0, max_tokens: None };
    let log_mel = LogMel::new((400, 160, NUM_MELS), RATE);
    for file in files {
        let decode = || {
            let bytes = std::fs::read(&file).expect("a file");
            decode_sound(&bytes, RATE, &limits, Segment::WHOLE).expect("a file of sound")
        };
        let frames = |samples: &[f32]| log_mel.frames(samples, samples.len(), samples.len() / 160).values.len();
        let samples = decode();
        let seconds = samples.len() as f64 / f64::from(RATE);
        println!("{} {seconds:.1} s", file.display());
        report("decode", seconds, spell, || decode().len());
        report("log-mel", seconds, spell, || frames(&samples));
        report("both", seconds, spell, || frames(&decode()));
    }
}

/// Prints the best of three spells, in seconds of sound a second.
fn report(name: &str, seconds: f64, spell: Duration, call: impl Fn() -> usize) {
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        let (start, mut calls, mut sum) = (Instant::now(), 0, 0);
        while start.elapsed() < spell {
            sum += call();
            calls += 1;
        }
        assert!(sum > 0);
        best = best.max(f64::from(calls) * seconds / start.elapsed().as_secs_f64());
    }
    println!("{name:24} {best:8.0} s of sound a second");
}
