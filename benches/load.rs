//! Load time of a checkpoint of 1.2 GB against a raw read of the same file, in one run: page cache cold and warm.
//!
//! `cargo bench --bench load [-- FOLDER]`; FOLDER is on the disk to measure. Three readers take turns: *stream* reads
//! through one small buffer as `dd of=/dev/null` does, *copy* reads into 1.2 GB of memory that is there already, and
//! *load* is `load_weights` into parameters of the file's type. *convert* loads into float32, twice the memory.

use loongforge::core::numbers::median;
use loongforge::torch::params::{Init, ParamSpec, ParamStore};
use loongforge::torch::train::hf::{SINGLE_FILE, Shards, save_weights};
use loongforge::torch::train::load_weights;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tch::{Device, Kind};

const ROUNDS: usize = 5;
const BLOCK: usize = 4 << 20;

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

/// Returns the tensors of Qwen3-0.6B.
fn specs() -> Vec<ParamSpec> {
    let mut specs = Vec::new();
    let mut add = |name: String, shape: &[i64]| specs.push(ParamSpec::new(name, shape, Init::Zeros));
    add("model.embed_tokens.weight".into(), &[if quick() { 1000 } else { 151_936 }, 1024]);
    add("model.norm.weight".into(), &[1024]);
    for layer in 0..if quick() { 1 } else { 28 } {
        for (name, shape) in [
            ("input_layernorm", &[1024][..]),
            ("post_attention_layernorm", &[1024]),
            ("self_attn.q_norm", &[128]),
            ("self_attn.k_norm", &[128]),
            ("self_attn.q_proj", &[2048, 1024]),
            ("self_attn.k_proj", &[1024, 1024]),
            ("self_attn.v_proj", &[1024, 1024]),
            ("self_attn.o_proj", &[1024, 2048]),
            ("mlp.gate_proj", &[3072, 1024]),
            ("mlp.up_proj", &[3072, 1024]),
            ("mlp.down_proj", &[1024, 3072]),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), shape);
        }
    }
    specs
}

fn evict(path: &Path) {
    fadvise(File::open(path).unwrap(), 0, None, Advice::DontNeed).unwrap();
}

fn stream(path: &Path) {
    let (mut file, mut block) = (File::open(path).unwrap(), vec![0; BLOCK]);
    while file.read(&mut block).unwrap() > 0 {}
}

fn copy(path: &Path, memory: &mut [u8]) {
    File::open(path).unwrap().read_exact_at(memory, 0).unwrap();
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn main() {
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let folder = tempfile::tempdir_in(named.unwrap_or_else(std::env::temp_dir)).unwrap();
    let path = folder.path().join(SINGLE_FILE);
    let params = ParamStore::new(specs(), Kind::BFloat16, Device::Cpu);
    params.init_random(1);
    let file = save_weights(&params, folder.path(), &Shards::single()).unwrap().remove(0);
    let mut memory = vec![1u8; file.bytes as usize];
    let wide = ParamStore::new(specs(), Kind::Float, Device::Cpu);
    println!(
        "{:.2} GB, {} rounds, {} cores",
        file.bytes as f64 / 1e9,
        ROUNDS,
        std::thread::available_parallelism().unwrap()
    );
    for cold in [true, false] {
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let mut measure = |index: usize, work: &mut dyn FnMut()| {
                if cold {
                    evict(&path);
                }
                times[index].push(seconds(work));
            };
            measure(0, &mut || stream(&path));
            measure(1, &mut || copy(&path, &mut memory));
            measure(2, &mut || load_weights(&params, folder.path()).unwrap());
            measure(3, &mut || load_weights(&wide, folder.path()).unwrap());
        }
        let [raw, copied, loaded, converted] = times.map(|mut times| median(&mut times));
        let speed = |seconds: f64| file.bytes as f64 / seconds / 1e9;
        println!(
            "{}: stream {:.2} GB/s, copy {:.2} GB/s, load {:.2} GB/s ({:.2} of stream, {:.2} of copy), convert {:.2} GB/s",
            if cold { "cold" } else { "warm" },
            speed(raw),
            speed(copied),
            speed(loaded),
            raw / loaded,
            copied / loaded,
            speed(converted),
        );
    }
}
