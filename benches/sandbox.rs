//! What decoding in other processes costs: the same JPEG file in this process and in a decode worker, in turns.
//! `cargo bench -p loongforge --bench sandbox`

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use loongforge::core::data::{Decoder, InProcess, Limits};
use loongforge::sandbox::Sandbox;
use std::time::{Duration, Instant};

const SPELL: Duration = Duration::from_millis(500);
const SPELLS: usize = 12;

fn main() {
    let sandbox = Sandbox::new(env!("CARGO_BIN_EXE_loongforge"), |warning| println!("{warning}"));
    let begin = Instant::now();
    let first = sandbox.picture(&jpeg(16, 16), &Limits::NONE);
    first.expect("a JPEG file");
    println!("the first picture, with the start of a worker: {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    for (width, height) in [(64, 64), (224, 224), (640, 480), (1920, 1080), (4000, 3000)] {
        let file = jpeg(width, height);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..SPELLS {
            ours.push(spell(&InProcess, &file));
            theirs.push(spell(&sandbox, &file));
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!(
            "{width}×{height}, {} kB: {:.0} µs here, {:.0} µs in a worker, {:.3} of the rate",
            file.len() / 1000,
            ours * 1e6,
            theirs * 1e6,
            ours / theirs
        );
    }
}

/// Seconds a picture.
fn spell(decoder: &dyn Decoder, file: &[u8]) -> f64 {
    let (begin, mut num) = (Instant::now(), 0);
    while begin.elapsed() < SPELL {
        decoder.picture(file, &Limits::NONE).expect("a JPEG file");
        num += 1;
    }
    begin.elapsed().as_secs_f64() / f64::from(num)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
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
