//! Describes how long a checkpoint takes from one layout to the next: 1.2 GB of parameters and optimizer state, of
//! which ZeRO ranks own slices, saved by 2 ranks, loaded and saved by 3, loaded by 1; against a plain read and write of
//! as many bytes.
//!
//! `cargo bench -p loongforge-torch --bench reshard [-- FOLDER]`; FOLDER is on the disk to measure. Ranks are threads, files
//! are in the page cache when they are read.

use loongforge_torch::comm::ProcessGroup;
use loongforge_torch::params::{Init, ParamSpec, ParamStore, Sharding, ZeroStage};
use loongforge_torch::train::hf::Shards;
use loongforge_torch::train::{AdamWConfig, Export, Lanes, TrainState, load_state, save_state};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tch::{Device, Kind};

const ROUNDS: usize = 3;
const CHUNK: usize = 8 << 20;
/// Parameters; with two moments 12 bytes each.
const LAYERS: usize = 25;
const WIDTH: i64 = 2000;
const PATIENCE: Duration = Duration::from_secs(600);

/// Seconds of loading (0 without a folder to load), of saving, and bytes that were written.
struct Took {
    load: f64,
    save: f64,
    bytes: u64,
}

/// All ranks of `world` load what is in `from`, and save it to `to`.
fn ranks(world: usize, from: Option<&Path>, to: &Path) -> Took {
    let store = tempfile::tempdir().unwrap();
    let rank = |rank: usize| {
        let group = Rc::new(ProcessGroup::gloo(&store.path().join("store"), "data", rank, world, PATIENCE).unwrap());
        let spec = |layer| ParamSpec::new(format!("layers.{layer}.weight"), &[WIDTH, WIDTH], Init::Zeros);
        let sharding = Sharding::new(if world == 1 { ZeroStage::Nothing } else { ZeroStage::State }, rank, world);
        let specs = (0..if quick() { 2 } else { LAYERS }).map(spec).collect();
        let params = Rc::new(ParamStore::shared_out(specs, Kind::Float, Device::Cpu, sharding));
        let adamw = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
        let mut pool = TrainState::new(params.clone(), group.clone(), Lanes::PerReplica, Some(adamw)).unwrap();
        group.barrier().unwrap();
        let start = Instant::now();
        match from {
            Some(folder) => load_state(&mut pool, folder, "foundation", true).unwrap(),
            None => params.init_random(1),
        }
        group.barrier().unwrap();
        let load = from.map_or(0.0, |_| start.elapsed().as_secs_f64());
        let start = Instant::now();
        let files = save_state(&pool, to, &Export::Weights(Shards::single()), "foundation").unwrap();
        group.barrier().unwrap();
        Took { load, save: start.elapsed().as_secs_f64(), bytes: files.iter().map(|file| file.bytes).sum() }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..world).map(|nth| scope.spawn(move || rank(nth))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).max_by_key(|took| took.bytes).unwrap()
    })
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

/// Returns seconds of reading the files of a folder, and of writing and syncing as many bytes.
fn raw(folder: &Path, beside: &Path) -> [f64; 2] {
    let mut buffer = vec![0; CHUNK];
    let start = Instant::now();
    let mut sizes = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let (mut file, mut size) = (File::open(entry.unwrap().path()).unwrap(), 0);
        while let len @ 1.. = file.read(&mut buffer).unwrap() {
            size += len;
        }
        sizes.push(size);
    }
    let read = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for (index, size) in sizes.into_iter().enumerate() {
        let mut file = File::create(beside.join(index.to_string())).unwrap();
        (0..size).step_by(CHUNK).for_each(|at| file.write_all(&buffer[..CHUNK.min(size - at)]).unwrap());
        file.sync_all().unwrap();
    }
    [read, start.elapsed().as_secs_f64()]
}

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let folder = tempfile::tempdir_in(named.unwrap_or_else(std::env::temp_dir)).unwrap();
    println!("{} cores; seconds", std::thread::available_parallelism().unwrap());
    for _ in 0..ROUNDS {
        let [two, three, one, other] = [2, 3, 1, 0].map(|ranks| folder.path().join(ranks.to_string()));
        [&two, &three, &one, &other].into_iter().for_each(|path| fs::create_dir_all(path).unwrap());
        let saved = ranks(2, None, &two);
        let [read, write] = raw(&two, &other);
        let by_three = ranks(3, Some(&two), &three);
        let by_one = ranks(1, Some(&three), &one);
        assert!(files(&two) == files(&three) && files(&three) == files(&one), "the same files");
        println!(
            "{:.2} GB: raw read {read:.2}, write {write:.2}; 2 ranks save {:.2}; 3 load {:.2} and save {:.2}; 1 loads {:.2} and saves {:.2}",
            saved.bytes as f64 / 1e9,
            saved.save,
            by_three.load,
            by_three.save,
            by_one.load,
            by_one.save
        );
        fs::remove_dir_all(&other).unwrap();
    }
}
