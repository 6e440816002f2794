//! Measures the cost of decoding in other processes: the same JPEG file in this process and in a decode worker, in turns.
//! `cargo bench -p loongforge --bench sandbox`

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use loongforge::core::data::{InProcess, Limits, MediaDecoder};
use loongforge::sandbox::Sandbox;
use std::time::{Duration, Instant};

const SPELL: Duration = Duration::from_secs(4);

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    let sandbox = Sandbox::new(env!("CARGO_BIN_EXE_loongforge"), |warning| println!("{warning}"));
    let begin = Instant::now();
    sandbox.picture(&jpeg(16, 16), &Limits::NONE).expect("a JPEG file");
    println!("the first picture, with the start of a worker: {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    let sizes = [(64, 64), (224, 224), (640, 480), (1920, 1080), (4000, 3000)];
    let (sizes, spell) = if quick() { (&sizes[..1], Duration::ZERO) } else { (&sizes[..], SPELL) };
    for &(width, height) in sizes {
        let file = jpeg(width, height);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        while begin.elapsed() < spell || ours.len() < 20 {
            ours.push(micros(&InProcess, &file));
            theirs.push(micros(&sandbox, &file));
        }
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        // The fastest twentieth is what nobody disturbed.
        let [fast, usual] = [20, 2].map(|part| (ours[ours.len() / part], theirs[theirs.len() / part]));
        let rate =
            |(here, there): (f64, f64)| format!("{here:.0} µs here, {there:.0} in a worker ({:.3})", here / there);
        println!("{width}×{height}, {} kB: median {}; fast {}", file.len() / 1000, rate(usual), rate(fast));
    }
}

fn micros(decoder: &dyn MediaDecoder, file: &[u8]) -> f64 {
    let begin = Instant::now();
    decoder.picture(file, &Limits::NONE).expect("a JPEG file");
    begin.elapsed().as_secs_f64() * 1e6
}

/// Waves with some noise: compresses about as a photograph does.
fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let mut state = 1u32;
    let picture = RgbImage::from_fn(width, height, |x, y| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = (state >> 28) as f32;
        let wave = |a: f32, b: f32| 110.0 + 90.0 * (x as f32 / a).sin() * (y as f32 / b).cos() + noise;
        Rgb([wave(37.0, 23.0), wave(61.0, 41.0), wave(19.0, 53.0)].map(|value| value as u8))
    });
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, 90).encode_image(&picture).expect("a JPEG file");
    bytes
}
