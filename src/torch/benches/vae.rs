//! Times how long the encoder of Wan 2.1's and Qwen-Image's autoencoder takes for a picture or a clip, in float32.
//! `benches/vae.py` times diffusers.
//!
//! `cargo bench -p loongforge-torch --bench vae -- THREADS [SIDE | SIDExFRAMES]…`

use std::rc::Rc;
use std::time::Instant;

use loongforge_core::message::Grid;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::model::{EncoderFamily, LatentPatch, VaeConfig, VaeLatents};
use loongforge_torch::params::ParamStore;
use loongforge_torch::tape::{Execution, Policy};
use tch::{Device, Kind, Tensor};

const ROUNDS: usize = 5;

fn main() {
    let quick = std::env::var_os("LOONGFORGE_QUICK").is_some();
    // cargo adds a flag of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let number = |word: &str| word.parse::<u32>().unwrap_or_else(|_| panic!("a number, not {word}"));
    set_intra_op_threads(words.first().map_or(1, |word| number(word)) as usize);
    let size = |word: &String| {
        let (side, frames) = word.split_once('x').unwrap_or((word, "1"));
        [number(frames), number(side), number(side)]
    };
    let sizes: Vec<[u32; 3]> = match words.get(1..) {
        Some(sizes) if !sizes.is_empty() && !quick => sizes.iter().map(size).collect(),
        _ => vec![[1, 32, 32], [5, 32, 32]],
    };
    let vae = VaeConfig {
        prefix: "vae.".into(),
        base: if quick { [8, 8] } else { [96, 96] },
        multipliers: vec![1, 2, 4, 4],
        latent_channels: 16,
        num_blocks: 2,
        halves_time: vec![false, true, true],
        has_shortcuts: false,
        pixel_channels: 3,
        patch: 1,
        mean: vec![0.0; 16],
        std: vec![1.0; 16],
    };
    let family = VaeLatents { vae, patch: LatentPatch([1, 2, 2]), deviations: false };
    let params = Rc::new(ParamStore::new(family.specs(), Kind::Float, Device::Cpu));
    for id in params.ids() {
        let shape = &params.spec(id).shape;
        let inputs: i64 = shape[1..].iter().product();
        params.set(id, &(Tensor::randn(shape.as_slice(), (Kind::Float, Device::Cpu)) / (inputs as f64).sqrt()));
    }
    let model = family.build(&params, Policy::Keep);
    println!("frames x rows x columns: seconds, {ROUNDS} rounds");
    for [t, h, w] in sizes {
        let pixels = Tensor::rand([i64::from(t * h * w), 3], (Kind::Float, Device::Cpu)) * 2 - 1;
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                let tape = model.record(&[Grid { t, h, w }]);
                let inputs = vec![(tape.pixels, pixels.shallow_clone())];
                let mut run = Execution::forward_only(tape.tape, params.clone(), inputs);
                run.forward().expect("one rank");
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{t} x {h} x {w}: {:.3} to {:.3}, median {:.3}", times[0], times[ROUNDS - 1], times[ROUNDS / 2]);
    }
}
