//! The memory of tensors on CPUs (`cpp/arena.cpp`).

use std::process::Command;
use std::sync::Mutex;

use tch::{Device, Kind, Tensor};

use super::ffi;

const MIB: i64 = 1 << 20;

/// Returns the bytes of the blocks in use, and of the chunks that are kept though all of them is free.
fn arena_bytes() -> (i64, i64) {
    let (mut in_use, mut kept) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { ffi::lf_arena_bytes(&mut in_use, &mut kept) };
    (in_use, kept)
}

/// Runs a test of this file in a process of its own: the arena is the whole process's, and `cargo test` runs other tests beside it.
/// Returns whether this is that process, which nextest starts for each test.
fn is_alone(test: &str) -> bool {
    const CHILD: &str = "LOONGFORGE_ARENA_TEST";
    if ["NEXTEST", CHILD].iter().any(|name| std::env::var_os(name).is_some()) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &format!("native::arena_tests::{test}")]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

fn bytes(count: i64, value: i64) -> Tensor {
    Tensor::full([count], value, (Kind::Uint8, Device::Cpu))
}

/// Draws numbers below `limit`, always the same ones for a seed.
fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |limit| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    }
}

#[test]
fn blocks_of_many_threads_never_overlap_and_all_come_back() {
    if !is_alone("blocks_of_many_threads_never_overlap_and_all_come_back") {
        return;
    }
    let before = arena_bytes().0;
    // What one thread made another may free.
    let shared: Mutex<Vec<(Tensor, i64)>> = Mutex::new(Vec::new());
    let check = |(tensor, value): (Tensor, i64)| {
        assert_eq!((tensor.min().int64_value(&[]), tensor.max().int64_value(&[])), (value, value));
        assert_eq!(tensor.data_ptr() as usize % 64, 0);
    };
    let work = |seed: u64| {
        let mut draw = draws(seed);
        let mut held = Vec::new();
        for at in 0..1500 {
            // From less than the arena's smallest block to one of more than a chunk.
            let size = match draw(200) {
                0 => 33 * MIB + draw(1000) as i64,
                small => 1 + draw(1 << (6 + small % 13)) as i64,
            };
            held.push((bytes(size, (seed as i64 * 61 + at) % 251), (seed as i64 * 61 + at) % 251));
            if held.len() > 20 {
                let given = held.swap_remove(draw(20) as usize);
                let mut shared = shared.lock().unwrap();
                shared.push(given);
                let other = draw(shared.len() as u64) as usize;
                let taken = shared.swap_remove(other);
                drop(shared);
                check(taken);
            }
        }
        held.into_iter().for_each(check);
    };
    // The second round has the arenas of threads that ended.
    for round in 0..2 {
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || work(1 + round * 10 + seed));
            }
        });
        shared.lock().unwrap().drain(..).for_each(check);
        assert_eq!(arena_bytes().0, before, "all blocks are free again");
    }
}

#[test]
fn a_size_that_is_freed_is_found_again() {
    for size in [5_000, 393_216, 3 * MIB + 7, 100 * MIB] {
        let first = bytes(size, 1);
        let place = first.data_ptr();
        drop(first);
        assert_eq!(bytes(size, 2).data_ptr(), place, "{size} bytes");
    }
}

#[test]
fn a_small_tensor_that_stays_does_not_keep_the_memory_of_a_large_one() {
    if !is_alone("a_small_tensor_that_stays_does_not_keep_the_memory_of_a_large_one") {
        return;
    }
    drop(bytes(200 * MIB, 1));
    let small = bytes(10_000, 2);
    let (in_use, kept) = arena_bytes();
    assert!(kept >= 200 * MIB, "the chunk of 200 MiB is free as a whole: {kept}");
    assert!(in_use < MIB);
    drop(small);
}

#[test]
fn memory_beyond_what_is_kept_goes_back_to_the_system() {
    if !is_alone("memory_beyond_what_is_kept_goes_back_to_the_system") {
        return;
    }
    let empty = |count: i64| Tensor::empty([count * MIB], (Kind::Uint8, Device::Cpu));
    let ten = || (0..10).map(|_| empty(60)).collect::<Vec<Tensor>>();
    let large = ten();
    assert!(arena_bytes().0 >= 600 * MIB);
    drop(large);
    let (in_use, kept) = arena_bytes();
    assert!(in_use < MIB && (200 * MIB..=256 * MIB).contains(&kept), "{in_use} {kept}");
    // Beside much that is in use half as much may be kept: what was in use as each of them was freed counts.
    let held = empty(600);
    drop(ten());
    let kept = arena_bytes().1;
    assert!((300 * MIB..=420 * MIB).contains(&kept), "{kept}");
    drop(held);
}
