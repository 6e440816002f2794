//! Saving 1.2 GB of state against writing the same bytes, in one run; and how long steps wait for it.
//!
//! `cargo bench -p loongforge-torch --bench save [-- FOLDER]`; FOLDER is on the disk to measure. In turns: *raw* writes and
//! syncs as many bytes in as many files, *waited for* is a save as with `checkpoint.async: false`, and *beside* is one in
//! the background: the snapshot, which a step waits for; the copy, which the optimizer waits for where it takes longer than
//! forward and backward; and writing, hashes included.

use loongforge_core::message::ActorId;
use loongforge_core::numbers::median;
use loongforge_torch::comm::ProcessGroup;
use loongforge_torch::params::{Init, ParamSpec, ParamStore};
use loongforge_torch::train::hf::{Shards, Snapshot, Target};
use loongforge_torch::train::{AdamWConfig, Export, Lanes, TrainState, save_state};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tch::{Device, Kind};

const ROUNDS: usize = 5;
const CHUNK: usize = 8 << 20;
/// Parameters; with two moments 12 bytes each.
const LAYERS: usize = 25;
const WIDTH: i64 = 2000;

fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let made = work();
    (start.elapsed().as_secs_f64(), made)
}

fn raw(folder: &Path, sizes: &[usize], memory: &[u8]) {
    for (index, size) in sizes.iter().enumerate() {
        let mut file = File::create(folder.join(format!("raw-{index}"))).unwrap();
        memory[..*size].chunks(CHUNK).for_each(|chunk| file.write_all(chunk).unwrap());
        file.sync_all().unwrap();
    }
}

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let folder = tempfile::tempdir_in(named.unwrap_or_else(std::env::temp_dir)).unwrap();
    let specs = (0..if quick() { 2 } else { LAYERS })
        .map(|layer| ParamSpec::new(format!("layers.{layer}.weight"), &[WIDTH, WIDTH], Init::Zeros));
    let params = Rc::new(ParamStore::new(specs.collect(), Kind::Float, Device::Cpu));
    params.init_random(1);
    let adamw = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
    let pool = TrainState::new(params, ProcessGroup::single(), Lanes::PerReplica, Some(adamw)).unwrap();
    let export = Export::Weights(Shards::single());
    let save = |to: Target<'_>| save_state(&pool, to, &export, "foundation").unwrap();

    let mut buffers = Vec::new();
    let [mut raws, mut waited, mut taken, mut copied, mut written] = [const { Vec::new() }; 5];
    let mut bytes = 0;
    for round in 0..=ROUNDS {
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        let snapshot = RefCell::new(Snapshot::new(buffers, &pool.lasting()));
        let (take, files) = seconds(|| save(Target::Memory(&snapshot)));
        let mut snapshot = snapshot.into_inner();
        snapshot.describe(&files);
        let (copy, ()) = seconds(|| snapshot.copy());
        let stop = AtomicBool::new(false);
        let (write, files) = seconds(|| snapshot.write(folder.path(), ActorId::foundation(0), &stop).unwrap());
        buffers = snapshot.into_buffers();
        let sizes: Vec<usize> = files.iter().map(|file| file.bytes as usize).collect();
        bytes = sizes.iter().sum();
        let longest = buffers.iter().max_by_key(|buffer| buffer.len()).expect("there are files");
        let (unbuffered, ()) = seconds(|| raw(folder.path(), &sizes, longest));
        let (all, same) = seconds(|| save(Target::Folder(folder.path())));
        assert_eq!(same, files, "the same files, and hashes");
        // The first one pays for fresh memory.
        if round == 0 {
            println!("first: snapshot {:.1} ms, copy {:.0} ms", take * 1e3, copy * 1e3);
            continue;
        }
        for (times, time) in [&mut raws, &mut waited, &mut taken, &mut copied, &mut written]
            .into_iter()
            .zip([unbuffered, all, take, copy, write])
        {
            times.push(time);
        }
    }
    let [raw, waited, take, copy, write] = [raws, waited, taken, copied, written].map(|mut times| median(&mut times));
    let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
    println!("{:.2} GB, {ROUNDS} rounds, {} cores", bytes as f64 / 1e9, std::thread::available_parallelism().unwrap());
    println!("raw {:.2} GB/s, waited for {:.2} GB/s ({:.2} of raw)", speed(raw), speed(waited), raw / waited);
    println!(
        "beside: written at {:.2} GB/s ({:.2} of raw), with the copy {:.2} of raw",
        speed(write),
        raw / write,
        raw / (write + copy)
    );
    println!(
        "steps wait {:.2} ms ({:.3} % of a save that is waited for), the optimizer at most {:.0} ms more ({:.1} %)",
        take * 1e3,
        100.0 * take / waited,
        copy * 1e3,
        100.0 * copy / waited
    );
}
