//! Collectives of three ranks, one thread each, and what NCCL needs.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use tch::{Device, Tensor};

use super::{ProcessGroup, Route, must};
use crate::native::{Group, NCCL_SYMBOLS, StoreServer};

/// Runs one thread a rank: a group does not mind whether ranks are threads or processes.
fn on_ranks<T: Send>(world: usize, path: &Path, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let body = &body;
                let join = move || ProcessGroup::gloo(path, "pool", rank, world, Duration::from_secs(30)).unwrap();
                scope.spawn(move || body(join()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn three_ranks_sum_gather_and_broadcast() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(3, &folder.path().join("store"), |group| {
        let mine = Tensor::from_slice(&[group.rank() as f32, 10.0]);
        let gathered = group.all_gather(&mine).unwrap();
        for (rank, tensor) in gathered.iter().enumerate() {
            assert_eq!(tensor, &Tensor::from_slice(&[rank as f32, 10.0]));
        }
        let from_two = mine.copy();
        group.broadcast(&from_two, 2).unwrap();
        assert_eq!(from_two, Tensor::from_slice(&[2f32, 10.0]));
        group.all_reduce_sum(&mine).unwrap();
        assert_eq!(mine, Tensor::from_slice(&[3f32, 30.0]));
        group.barrier().unwrap();
    });
}

#[test]
fn ranks_that_share_a_gpu_are_found() {
    for (numbers, distinct) in [([1, 2, 3], true), ([1, u64::MAX, 1], false)] {
        let folder = tempfile::tempdir().unwrap();
        let found =
            on_ranks(3, &folder.path().join("store"), |group| group.are_distinct(numbers[group.rank()]).unwrap());
        assert_eq!(found, [distinct; 3], "{numbers:?}");
    }
}

#[test]
fn ranks_on_cpus_and_gpus_are_refused_by_name() {
    let on = |devices: [Device; 3]| {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(3, &folder.path().join("store"), |group| {
            let checked = group.check_devices("pool", devices[group.rank()]);
            checked.err().map(|error| error.to_string())
        })
    };
    let gpu = Device::Cuda(1);
    for like in [[Device::Cpu; 3], [gpu, Device::Cuda(0), gpu]] {
        assert!(on(like).iter().all(Option::is_none), "{like:?}");
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let place = |text: &str, number: usize| format!("{text} of host {} ({number} in all)", host.trim());
    let places = [place("rank 1 is on cuda:1", 1), place("rank 0 is on the CPU", 2)];
    for error in on([Device::Cpu, gpu, Device::Cpu]) {
        let error = error.unwrap();
        assert!(places.iter().all(|place| error.contains(place)), "{error}");
    }
}

#[test]
fn ranks_of_several_groups_meet_through_one_store() {
    let store = StoreServer::start("127.0.0.1", 0).unwrap();
    for (key, world) in [("encoder-1", 2), ("encoder-2", 3)] {
        let path = format!("tcp/127.0.0.1/{}/127.0.0.1/{key}", store.port());
        on_ranks(world, Path::new(&path), |group| {
            let mine = Tensor::from_slice(&[1.0_f32]);
            group.all_reduce_sum(&mine).unwrap();
            assert_eq!(mine, Tensor::from_slice(&[world as f32]));
        });
    }
}

#[test]
fn three_ranks_scatter_exchange_and_pass_on() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(3, &folder.path().join("store"), |group| {
        let rank = group.rank() as i64;
        let ints = |values: &[i64]| Tensor::from_slice(values);
        let part = group.reduce_scatter_sum(&ints(&[rank, 1, 10, 20, 30, 40]).view([3, 2])).unwrap();
        assert_eq!(part, [ints(&[3, 3]), ints(&[30, 60]), ints(&[90, 120])][rank as usize].view([1, 2]));
        let most = ints(&[rank, -rank]);
        group.all_reduce_max(&most).unwrap();
        assert_eq!(most, ints(&[2, 0]));

        // Rank r sends r rows to rank 0, r + 1 to rank 1, none to rank 2.
        let rows = Tensor::full([2 * rank + 1, 2], rank, (tch::Kind::Int64, tch::Device::Cpu));
        let taken = [vec![0, 1, 2], vec![1, 2, 3], vec![0, 0, 0]][rank as usize].clone();
        let found = group.all_to_all(&rows, &[rank, rank + 1, 0], &taken).unwrap();
        let expected: Vec<i64> = (0..3).flat_map(|from| vec![from; 2 * taken[from as usize] as usize]).collect();
        assert_eq!(found, ints(&expected).view([-1, 2]));

        // Round the ring, both on their way at once.
        let (mine, before) = (ints(&[rank, 7]), ints(&[0, 0]));
        let sent = group.start_send(&mine, (group.rank() + 1) % 3, 5).unwrap();
        let received = group.start_recv(&before, (group.rank() + 2) % 3, 5).unwrap();
        received.wait().unwrap();
        sent.wait().unwrap();
        assert_eq!(before, ints(&[(rank + 2) % 3, 7]));
    });
}

#[test]
fn a_rank_that_never_comes_is_an_error_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let joined = ProcessGroup::gloo(&folder.path().join("store"), "pool", 0, 2, Duration::from_millis(300));
    assert!(joined.err().unwrap().to_string().contains("rank 0 of 2 could not join"));
}

/// They meet in their collectives; were this a barrier, the first rank would wait for the second one, which never calls it.
#[test]
fn ranks_without_nccl_do_not_meet_before_a_collective() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, &folder.path().join("store"), |group| {
        if group.rank() == 0 {
            group.meet().unwrap();
        }
        group.all_reduce_sum(&Tensor::from_slice(&[1f32])).unwrap();
    });
    ProcessGroup::single().meet().unwrap();
}

#[test]
fn host_memory_goes_over_gloo_and_gpus_over_nccl() {
    let route = |world, device, has_nccl, to_one| Route::of(world, device, has_nccl, to_one);
    let gpu = Device::Cuda(1);
    for device in [Device::Cpu, gpu] {
        assert_eq!(route(1, device, true, false), Route::Nowhere);
    }
    for (has_nccl, to_one) in [(false, false), (true, false), (true, true)] {
        assert_eq!(route(2, Device::Cpu, has_nccl, to_one), Route::Gloo);
    }
    assert_eq!(route(2, gpu, true, false), Route::Nccl);
    assert_eq!(route(2, gpu, true, true), Route::Staged);
    assert_eq!(route(2, gpu, false, false), Route::Staged);
}

/// Returns whether a library of ELF's 64 bits has all these names among those that it gives or needs.
fn has_names(path: &Path, names: &[&CStr]) -> bool {
    let mut file = File::open(path).unwrap();
    let mut read = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        bytes
    };
    let number = |bytes: &[u8], at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let header = read(0, 64);
    let (at, size, count) = (number(&header, 40, 8), number(&header, 58, 2), number(&header, 60, 2));
    let sections = read(at, (size * count) as usize);
    let section = |index: u64| &sections[(index * size) as usize..][..size as usize];
    // The table of dynamic symbols tells where their names are.
    let symbols = (0..count).map(section).find(|section| number(section, 4, 4) == 11).unwrap();
    let strings = section(number(symbols, 40, 4));
    let strings = read(number(strings, 24, 8), number(strings, 32, 8) as usize);
    names.iter().all(|name| strings.split(|byte| *byte == 0).any(|found| found == name.to_bytes()))
}

#[test]
fn nccl_is_there_by_the_names_that_it_is_asked_for_by() {
    let beside = || crate::device::library_folder();
    let Some(path) = beside().map(|folder| folder.join("libtorch_cuda.so")).filter(|path| path.exists()) else {
        let folder = crate::device::LIBRARY_FOLDER;
        return must::skip("libtorch_cuda", format!("there is no libtorch_cuda.so; name its folder in {folder}"));
    };
    assert!(has_names(&path, &NCCL_SYMBOLS), "{} has other constructors", path.display());
    assert!(!has_names(&path, &[c"_ZN4c10d16ProcessGroupNCCL7OptionsC1Ev"]), "any name is found");
    if crate::device::load_cuda().is_ok() {
        return must::skip("no-gpu", "with a GPU, groups of several ranks need several");
    }
    // Without a GPU the constructor itself refuses, which tells that it was reached.
    let folder = tempfile::tempdir().unwrap();
    let made = Group::nccl(&folder.path().join("store"), "pool", 0, 2, Duration::from_secs(5));
    let error = made.err().unwrap().to_string();
    assert!(error.contains("GPU"), "{error}");
}

/// Otherwise a thread of NCCL's backend throws where a collective fails, and the process ends.
#[test]
fn nccl_leaves_failures_to_the_thread_that_waits() {
    assert_eq!(std::env::var("TORCH_NCCL_BLOCKING_WAIT").as_deref(), Ok("1"));
}

#[test]
fn without_cuda_nccl_is_a_clean_error() {
    let folder = tempfile::tempdir().unwrap();
    let joined =
        ProcessGroup::join(&folder.path().join("store"), "pool", 0, 2, Duration::from_millis(300), Device::Cuda(0));
    assert!(joined.err().unwrap().to_string().contains("rank 0 of 2 could not join"));
}

#[test]
fn one_rank_needs_nobody() {
    let group = ProcessGroup::gloo(Path::new("/nonexistent/store"), "pool", 0, 1, Duration::ZERO).unwrap();
    let tensor = Tensor::from_slice(&[1f32, 2.0]);
    group.all_reduce_sum(&tensor).unwrap();
    assert_eq!(group.all_gather(&tensor).unwrap()[0], Tensor::from_slice(&[1f32, 2.0]));
}
