//! Measures how fast one thread decodes a LeRobot set's videos at random: frames a second, each asked for alone.
//! `cargo bench -p loongforge-core --bench frames -- SET CAMERA ORDER`; ORDER is a file with an episode and a frame a line.
//! `benches/frames.py` measures lerobot's decoders on the same frames.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use image::RgbImage;
use loongforge_core::data::lerobot::{Set, Step};
use loongforge_core::data::{InProcess, Limits};

/// The share of the frames that comes before the clock starts: files are opened, and decoders made.
const WARM: usize = 8;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [set, camera, order] = &words[..] else {
        println!("usage: frames SET CAMERA ORDER");
        return;
    };
    let set = Arc::new(Set::open(Path::new(set)).expect("a LeRobot set"));
    let order = std::fs::read_to_string(order).expect("a file with an episode and a frame a line");
    let place = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<usize>().expect("a number"));
        (numbers.next().expect("an episode"), numbers.next().expect("a frame"))
    };
    let steps: Vec<_> = order.lines().map(place).map(|(at, frame)| set.step(at, frame).expect("a frame")).collect();
    let frame = |step: &Step| step.pictures(camera, &[0], &InProcess, &Limits::NONE).expect("a frame").remove(0);
    let (warm, counted) = steps.split_at(steps.len() / WARM);
    let frames: Vec<RgbImage> = warm.iter().map(frame).collect();
    let begin = Instant::now();
    counted.iter().for_each(|step| drop(black_box(frame(step))));
    let rate = counted.len() as f64 / begin.elapsed().as_secs_f64();
    let bytes = || frames.iter().flat_map(|frame| frame.as_raw());
    let mean = bytes().map(|&value| u64::from(value)).sum::<u64>() as f64 / bytes().count() as f64;
    println!("{{\"frames_a_second\": {rate:.1}, \"mean_of_bytes\": {mean:.3}}}");
}
