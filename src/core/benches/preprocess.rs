//! Measures how fast one core makes pixels, and the patches of Qwen-VL's encoders, of JPEG files.
//! `cargo bench -p loongforge-core --bench preprocess [-- FILE.jpg …]`; `benches/preprocess.py` measures transformers on the same files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use loongforge_core::data::digits::{MODEL, write_model};
use loongforge_core::data::{Limits, Processor, ProcessorOptions, open_rgb};
use serde_json::{Value, json};

/// Returns the time for which a rate is measured; with `LOONGFORGE_QUICK=1` next to nothing, to see that it runs.
fn spell() -> Duration {
    Duration::from_millis(if std::env::var_os("LOONGFORGE_QUICK").is_some() { 20 } else { 2000 })
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files: Vec<PathBuf> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).map(PathBuf::from).collect();
    if files.is_empty() {
        files.push(folder.path().join("waves.jpg"));
        write_jpeg(&files[0]);
    }
    for file in files {
        let picture = open_rgb(&file, &Limits::NONE).expect("a JPEG file");
        let (width, height) = picture.dimensions();
        println!("{} {width}×{height}", file.display());
        report("decode", || open_rgb(&file, &Limits::NONE).expect("a JPEG file").as_raw()[0] as usize);
        for (family, patch_size) in [("qwen2_5_vl", 14), ("qwen3_vl", 16)] {
            let processor = processor(folder.path(), family, patch_size);
            let media = processor.media_processor().expect("a vision model");
            let patches = |picture: &RgbImage| media.image(picture).expect("a picture").media[0].pixels.len();
            report(&format!("{family} preprocess"), || patches(&picture));
            report(&format!("{family} both"), || patches(&open_rgb(&file, &Limits::NONE).expect("a JPEG file")));
        }
    }
}

/// Prints the best of three spells, in calls a second.
fn report(name: &str, call: impl Fn() -> usize) {
    let (mut best, spell) = (0.0_f64, spell());
    for _ in 0..3 {
        let (start, mut calls, mut sum) = (Instant::now(), 0, 0);
        while start.elapsed() < spell {
            sum += call();
            calls += 1;
        }
        assert!(sum > 0);
        best = best.max(f64::from(calls) / start.elapsed().as_secs_f64());
    }
    println!("{name:24} {best:8.0} a second");
}

/// Returns the processor of a family: the quick start's model with that family's patches.
fn processor(folder: &Path, family: &str, patch_size: usize) -> Processor {
    let dir = folder.join(family);
    write_model(&dir, &MODEL).expect("the quick start's model");
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = dir.join(name);
        let text = std::fs::read_to_string(&path).expect("it was written");
        let mut json: Value = serde_json::from_str(&text).expect("JSON");
        change(&mut json);
        std::fs::write(&path, json.to_string()).expect("a file");
        json
    };
    edit("preprocessor_config.json", &|json| {
        json["patch_size"] = json!(patch_size);
        json["size"] = json!({ "shortest_edge": 3136, "longest_edge": 12_845_056 });
    });
    let config = edit("config.json", &|json| {
        json["vision_config"]["patch_size"] = json!(patch_size);
        json["vision_config"]["model_type"] = json!(family);
    });
    Processor::open(&dir, &config, &ProcessorOptions::default()).expect("a processor")
}

/// Waves and edges with some noise, 640×480: compresses about as a photograph does.
fn write_jpeg(path: &Path) {
    let mut state = 1u32;
    let picture = RgbImage::from_fn(640, 480, |x, y| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = (state >> 28) as f32;
        let wave = |a: f32, b: f32| 110.0 + 90.0 * (x as f32 / a).sin() * (y as f32 / b).cos() + noise;
        let edge = if (x / 61 + y / 47) % 3 == 0 { 30.0 } else { 0.0 };
        Rgb([wave(37.0, 23.0) + edge, wave(61.0, 41.0), wave(19.0, 53.0) - edge].map(|value| value as u8))
    });
    let file = std::fs::File::create(path).expect("a file");
    JpegEncoder::new_with_quality(file, 90).encode_image(&picture).expect("a JPEG file");
}
