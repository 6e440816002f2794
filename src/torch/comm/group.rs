//! A process group: collectives among the ranks of one pool, and nothing at all where there is one rank.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tch::{Device, Tensor};

use crate::native::{Group, NativeError, Pending, is_dry_run};

/// Returns, for a path between machines, the store and the key in it, and this machine's address.
fn between_hosts(path: &Path) -> Option<(PathBuf, String)> {
    let mut parts = path.strip_prefix("tcp").ok()?.components();
    let mut next = || Some(parts.next()?.as_os_str().to_owned());
    let (host, port, mine) = (next()?, next()?, next()?);
    Some((Path::new("tcp").join(host).join(port).join(parts.as_path()), mine.into_string().ok()?))
}

/// A member of a group. All ranks call the same collectives in the same order; one that is missing is an error after
/// the group's timeout, one that has ended is an error at once.
///
/// Tensors in host memory go over Gloo, those on GPUs over NCCL. What goes from one rank to another alone, under a tag, NCCL
/// cannot send without waiting for its receiver: it goes over Gloo, through host memory.
pub struct ProcessGroup {
    rank: usize,
    world: usize,
    gloo: Option<Group>,
    nccl: Option<Group>,
}

/// Says which way a tensor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// There is nobody else, or this is a dry run.
    Nowhere,
    Gloo,
    Nccl,
    /// Over Gloo, by way of host memory.
    Staged,
}

impl Route {
    fn of(world: usize, device: Device, has_nccl: bool, to_one: bool) -> Route {
        match device {
            _ if world == 1 || is_dry_run() => Route::Nowhere,
            Device::Cpu => Route::Gloo,
            _ if has_nccl && !to_one => Route::Nccl,
            _ => Route::Staged,
        }
    }
}

impl ProcessGroup {
    /// The group of one: every collective is the identity.
    pub fn single() -> ProcessGroup {
        ProcessGroup { rank: 0, world: 1, gloo: None, nccl: None }
    }

    /// Rank `rank` of `world` in a dry run: the others are not there, and what they would send has no values.
    pub fn dry(rank: usize, world: usize) -> ProcessGroup {
        assert!(is_dry_run() && rank < world, "rank {rank} of {world} in a dry run");
        ProcessGroup { rank, world, gloo: None, nccl: None }
    }

    /// Joins `world` ranks that name the same `store_path` and `name`. The path is a file of this run on this machine,
    /// made by the first to come (one that an earlier run has left behind must be removed first); or, between machines,
    /// `tcp/HOST/PORT/MINE/KEY`: where the run's store listens, and this machine's address as the others reach it.
    pub fn gloo(
        store_path: &Path,
        name: &str,
        rank: usize,
        world: usize,
        timeout: Duration,
    ) -> Result<ProcessGroup, NativeError> {
        ProcessGroup::join(store_path, name, rank, world, timeout, Device::Cpu)
    }

    /// Works like [`ProcessGroup::gloo`], of tensors in host memory and on `device`, which is this rank's own.
    pub fn join(
        store_path: &Path,
        name: &str,
        rank: usize,
        world: usize,
        timeout: Duration,
        device: Device,
    ) -> Result<ProcessGroup, NativeError> {
        assert!(rank < world, "rank {rank} of {world}");
        if world == 1 {
            return Ok(ProcessGroup::single());
        }
        let (store, host) = between_hosts(store_path).unwrap_or_else(|| (store_path.to_owned(), "127.0.0.1".into()));
        let gloo = Some(Group::gloo(&store, name, &host, rank, world, timeout)?);
        let over_nccl = || Group::nccl(&store, &format!("{name}.nccl"), rank, world, timeout);
        let nccl = device.is_cuda().then(over_nccl).transpose()?;
        Ok(ProcessGroup { rank, world, gloo, nccl })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// In place: the sum over ranks of a contiguous tensor.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.start_all_reduce_sum(tensor)?.wait()
    }

    /// Works like `all_reduce_sum`, on its way when it returns. The tensor is not to be touched before it was waited
    /// for.
    pub fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Started, NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.all_reduce_sum(tensor))
    }

    /// In place: the greatest over ranks of a contiguous tensor.
    pub fn all_reduce_max(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.all_reduce_max(tensor))?.wait()
    }

    /// The ranks' tensors, all of one shape, in the order of the ranks.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>, NativeError> {
        Ok(self.all_gather_flat(tensor)?.unbind(0))
    }

    /// Works like `all_gather`, as one tensor `[world, shape…]`.
    pub fn all_gather_flat(&self, tensor: &Tensor) -> Result<Tensor, NativeError> {
        let mut shape = vec![self.world as i64];
        shape.extend(tensor.size());
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        self.start_all_gather_into(&output, &tensor.contiguous())?.wait()?;
        Ok(output)
    }

    /// The ranks' `tensor`s, all of one size, one after the other in `output`: contiguous, `world` times the elements.
    /// Neither is to be touched before it was waited for; the tensor may be this rank's part of the output.
    pub fn start_all_gather_into(&self, output: &Tensor, tensor: &Tensor) -> Result<Started, NativeError> {
        if self.world == 1 || is_dry_run() {
            // In a dry run all ranks have what this one has: as many rows for each expert, for instance.
            let len = tensor.numel() as i64;
            output.view([self.world as i64, len]).copy_(&tensor.view([1, len]));
        }
        self.start(&output.view([-1]), &tensor.view([-1]), Group::all_gather)
    }

    /// This rank's part, of `world` along the first dimension, of the sum of the ranks' tensors. Panics where that
    /// dimension is no multiple of the ranks.
    pub fn reduce_scatter_sum(&self, tensor: &Tensor) -> Result<Tensor, NativeError> {
        let mut shape = tensor.size();
        assert_eq!(shape[0] % self.world as i64, 0, "{shape:?} over {} ranks", self.world);
        shape[0] /= self.world as i64;
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        self.start_reduce_scatter_sum_into(&output, &tensor.contiguous())?.wait()?;
        Ok(output)
    }

    /// Works like `reduce_scatter_sum` into a tensor; both are contiguous, and not to be touched before it was waited
    /// for.
    pub fn start_reduce_scatter_sum_into(&self, output: &Tensor, tensor: &Tensor) -> Result<Started, NativeError> {
        if self.world == 1 {
            output.view([-1]).copy_(&tensor.view([-1]));
        }
        self.start(&output.view([-1]), &tensor.view([-1]), Group::reduce_scatter_sum)
    }

    /// Sends `sent[r]` rows of `tensor` to each rank `r`, in the order of the ranks, and returns the rows that they send
    /// here, `taken[r]` of each. Panics where there is not one count a rank.
    pub fn all_to_all(&self, tensor: &Tensor, sent: &[i64], taken: &[i64]) -> Result<Tensor, NativeError> {
        let (output, started) = self.start_all_to_all(tensor, sent, taken)?;
        started.wait()?;
        Ok(output)
    }

    /// Works like `all_to_all`, on its way when it returns. The output is not to be read before it was waited for.
    pub fn start_all_to_all(
        &self,
        tensor: &Tensor,
        sent: &[i64],
        taken: &[i64],
    ) -> Result<(Tensor, Started), NativeError> {
        if self.world == 1 {
            return Ok((tensor.shallow_clone(), Started::done()));
        }
        let mut shape = tensor.size();
        shape[0] = taken.iter().sum();
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        let exchange = |group: &Group, output: &Tensor, input: &Tensor| group.all_to_all(output, input, taken, sent);
        let started = self.start(&output, &tensor.contiguous(), exchange)?;
        Ok((output, started))
    }

    /// In place: the values of rank `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.broadcast(tensor, root))?.wait()
    }

    /// A contiguous tensor to rank `to`, which receives it under the same `tag`. It is not to be changed before it was
    /// waited for, and that may be after the peer has received it.
    pub fn start_send(&self, tensor: &Tensor, to: usize, tag: i32) -> Result<Started, NativeError> {
        let Some(gloo) = &self.gloo else { return Ok(Started::done()) };
        match self.route(tensor, true) {
            // The shim holds what is sent.
            Route::Staged => gloo.send(&tensor.to_device(Device::Cpu), to, tag),
            _ => gloo.send(tensor, to, tag),
        }
        .map(Started::of)
    }

    /// Into a contiguous tensor, of the kind and size that rank `from` sends under this `tag`.
    pub fn start_recv(&self, tensor: &Tensor, from: usize, tag: i32) -> Result<Started, NativeError> {
        if is_dry_run() {
            // Integers may be indices.
            let _ = tensor.shallow_clone().zero_();
        }
        let Some(gloo) = &self.gloo else { return Ok(Started::done()) };
        match self.route(tensor, true) {
            Route::Staged => {
                let host = Tensor::empty(tensor.size(), (tensor.kind(), Device::Cpu));
                Ok(Started::of(gloo.recv(&host, from, tag)?).into(host, tensor))
            }
            _ => gloo.recv(tensor, from, tag).map(Started::of),
        }
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.barrier()?.wait())
    }

    fn route(&self, tensor: &Tensor, to_one: bool) -> Route {
        Route::of(self.world, tensor.device(), self.nccl.is_some(), to_one)
    }

    /// `begin`: of a group, of what it writes, and what it reads, which may be the same.
    fn start(
        &self,
        output: &Tensor,
        input: &Tensor,
        begin: impl FnOnce(&Group, &Tensor, &Tensor) -> Result<Pending, NativeError>,
    ) -> Result<Started, NativeError> {
        match (self.route(output, false), &self.gloo, &self.nccl) {
            (Route::Gloo, Some(gloo), _) => begin(gloo, output, input).map(Started::of),
            (Route::Nccl, _, Some(nccl)) => begin(nccl, output, input).map(Started::of),
            (Route::Staged, Some(gloo), _) => {
                let host_input = input.to_device(Device::Cpu);
                let host = match output.data_ptr() == input.data_ptr() && output.numel() == input.numel() {
                    true => host_input.shallow_clone(),
                    false => Tensor::empty(output.size(), (output.kind(), Device::Cpu)),
                };
                Ok(Started::of(begin(gloo, &host, &host_input)?).into(host, output))
            }
            _ => Ok(Started::done()),
        }
    }
}

/// A collective on its way; of a group of one, one that is done.
#[must_use]
pub struct Started {
    pending: Option<Pending>,
    /// Holds what comes by way of host memory, and where it goes.
    staged: Option<(Tensor, Tensor)>,
}

impl Started {
    fn done() -> Started {
        Started { pending: None, staged: None }
    }

    fn of(pending: Pending) -> Started {
        #[cfg(test)]
        super::witness::note(format!("start {}", pending.operation()));
        Started { pending: Some(pending), staged: None }
    }

    fn into(self, host: Tensor, target: &Tensor) -> Started {
        Started { staged: Some((host, target.shallow_clone())), ..self }
    }

    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn wait(self) -> Result<(), NativeError> {
        #[cfg(test)]
        self.pending.iter().for_each(|pending| super::witness::note(format!("wait {}", pending.operation())));
        self.pending.map_or(Ok(()), Pending::wait)?;
        if let Some((host, mut target)) = self.staged {
            let _no_grad = tch::no_grad_guard();
            target.copy_(&host);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../../tests/support/must.rs"]
mod must;

#[cfg(test)]
mod tests {
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
}
