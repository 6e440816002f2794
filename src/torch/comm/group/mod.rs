//! A process group: collectives among the ranks of one pool, and nothing at all where there is one rank.

mod started;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use tch::{Device, Tensor};

pub use started::Started;

use crate::device::gpu_number;
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
/// Tensors in host memory go over Gloo, those on GPUs over NCCL, or over Gloo through host memory where ranks share a GPU. What goes
/// from one rank to another alone, under a tag, NCCL cannot send without waiting for its receiver: it goes over Gloo, through
/// host memory.
pub struct ProcessGroup {
    rank: usize,
    world: usize,
    gloo: Option<Group>,
    nccl: Option<Group>,
}

/// Says which way a tensor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The tensor goes nowhere: there is no other rank, or this is a dry run.
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
    /// Returns the group of one: every collective is the identity.
    pub fn single() -> ProcessGroup {
        ProcessGroup { rank: 0, world: 1, gloo: None, nccl: None }
    }

    /// Returns rank `rank` of `world` in a dry run: the others are not there, and what they would send has no values.
    pub fn dry(rank: usize, world: usize) -> ProcessGroup {
        assert!(is_dry_run() && rank < world, "rank {rank} of {world} in a dry run");
        ProcessGroup { rank, world, gloo: None, nccl: None }
    }

    /// Joins `world` ranks that name the same `store_path` and `name`. The path is a file of this run on this machine,
    /// made by the first to come (one that an earlier run has left behind must be removed first); or, between machines,
    /// `tcp/HOST/PORT/MINE/KEY`: where the run's store listens, and this machine's address as the others reach it.
    ///
    /// # Errors
    /// A rank did not come in time, or cannot be reached.
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
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::gloo`] does, and where ranks have devices of different kinds or NCCL is not available.
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
        let mut group = ProcessGroup { rank, world, gloo, nccl: None };
        group.check_devices(name, device)?;
        if let Device::Cuda(index) = device {
            // NCCL refuses two ranks of one GPU.
            if group.are_distinct(gpu_number(index).unwrap_or(rank as u64))? {
                group.nccl = Some(Group::nccl(&store, &format!("{name}.nccl"), rank, world, timeout)?);
            } else {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    tracing::warn!("ranks share a GPU: their collectives go through host memory, which is slow")
                });
            }
        }
        Ok(group)
    }

    /// Refuses ranks on CPUs beside others on GPUs, whose collectives would wait for ranks that never call them.
    fn check_devices(&self, name: &str, device: Device) -> Result<(), NativeError> {
        let on_gpu = i64::from(matches!(device, Device::Cuda(_)));
        let all = self.all_gather_flat(&Tensor::from_slice(&[on_gpu]))?.view([-1]);
        let all = Vec::<i64>::try_from(all).expect("a row of integers");
        if all.iter().all(|other| *other == on_gpu) {
            return Ok(());
        }
        // No host has a longer name.
        let mut place = [0u8; 128];
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let device = if let Device::Cuda(index) = device { format!("cuda:{index}") } else { "the CPU".to_owned() };
        let text = format!("{device} of host {}", host.trim());
        place.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
        let places = self.all_gather(&Tensor::from_slice(&place))?;
        let first_of = |kind: i64| {
            let rank = all.iter().position(|other| *other == kind).expect("there are ranks of both kinds");
            let bytes = Vec::<u8>::try_from(&places[rank]).expect("a row of bytes");
            let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
            format!("rank {rank} is on {text} ({} in all)", all.iter().filter(|other| **other == kind).count())
        };
        let message = format!(
            "its ranks must all be on GPUs or all on CPUs, but {} and {}; with `device: auto` each host chooses for \
             itself: set `device` (or that of the pool) to cpu, or to cuda on hosts that all have GPUs",
            first_of(1),
            first_of(0)
        );
        Err(NativeError::Join { group: name.to_owned(), rank: self.rank, world: self.world, message })
    }

    /// Returns whether every rank's number is another.
    fn are_distinct(&self, number: u64) -> Result<bool, NativeError> {
        let all = self.all_gather_flat(&Tensor::from_slice(&[number as i64]))?.view([-1]);
        let all = Vec::<i64>::try_from(all).expect("a row of integers");
        Ok(all.iter().collect::<BTreeSet<_>>().len() == all.len())
    }

    /// Returns this process's place in the group, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks of the group.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Sums a contiguous tensor of any shape over the ranks, in place.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.start_all_reduce_sum(tensor)?.wait()
    }

    /// Works like [`ProcessGroup::all_reduce_sum`], and returns while the sum is on its way. The tensor is not to be touched before it
    /// was waited for.
    ///
    /// # Errors
    /// The collective cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
    pub fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Started, NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.all_reduce_sum(tensor))
    }

    /// Takes the greatest of each element of a contiguous tensor of any shape over the ranks, in place.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn all_reduce_max(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.all_reduce_max(tensor))?.wait()
    }

    /// Returns the ranks' tensors, all of one shape and type, which may be any, in the order of the ranks.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>, NativeError> {
        Ok(self.all_gather_flat(tensor)?.unbind(0))
    }

    /// Works like `all_gather`, as one tensor `[world, shape…]`.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn all_gather_flat(&self, tensor: &Tensor) -> Result<Tensor, NativeError> {
        let mut shape = vec![self.world as i64];
        shape.extend(tensor.size());
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        self.start_all_gather_into(&output, &tensor.contiguous())?.wait()?;
        Ok(output)
    }

    /// Begins to gather the ranks' `tensor`s, all of one number of elements, one after the other in `output`, which has `world` times the
    /// elements; both are contiguous and of any shape. Neither is to be touched before it was waited for; `tensor` may be this rank's
    /// part of `output`.
    ///
    /// # Errors
    /// The collective cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
    pub fn start_all_gather_into(&self, output: &Tensor, tensor: &Tensor) -> Result<Started, NativeError> {
        if self.world == 1 || is_dry_run() {
            // In a dry run all ranks have what this one has: as many rows for each expert, for instance.
            let len = tensor.numel() as i64;
            output.view([self.world as i64, len]).copy_(&tensor.view([1, len]));
        }
        self.start(&output.view([-1]), &tensor.view([-1]), Group::all_gather)
    }

    /// Returns this rank's part `[rows / world, …]` of the sum of the ranks' tensors `[rows, …]`. Panics where `rows` is no multiple of
    /// `world`.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn reduce_scatter_sum(&self, tensor: &Tensor) -> Result<Tensor, NativeError> {
        let mut shape = tensor.size();
        assert_eq!(shape[0] % self.world as i64, 0, "{shape:?} over {} ranks", self.world);
        shape[0] /= self.world as i64;
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        self.start_reduce_scatter_sum_into(&output, &tensor.contiguous())?.wait()?;
        Ok(output)
    }

    /// Works like [`ProcessGroup::reduce_scatter_sum`] into `output`, which has a `world`-th of the elements of `tensor`; both are
    /// contiguous, of any shape, and not to be touched before it was waited for.
    ///
    /// # Errors
    /// The collective cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
    pub fn start_reduce_scatter_sum_into(&self, output: &Tensor, tensor: &Tensor) -> Result<Started, NativeError> {
        if self.world == 1 {
            output.view([-1]).copy_(&tensor.view([-1]));
        }
        self.start(&output.view([-1]), &tensor.view([-1]), Group::reduce_scatter_sum)
    }

    /// Sends `sent[r]` rows of `tensor` `[rows, …]` to each rank `r`, in the order of the ranks, and returns the rows that they send
    /// here, `taken[r]` of each. Panics where there is not one count a rank.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn all_to_all(&self, tensor: &Tensor, sent: &[i64], taken: &[i64]) -> Result<Tensor, NativeError> {
        let (output, started) = self.start_all_to_all(tensor, sent, taken)?;
        started.wait()?;
        Ok(output)
    }

    /// Works like [`ProcessGroup::all_to_all`], and returns while the rows are on their way. The output `[sum of taken, …]` is not to be
    /// read before it was waited for.
    ///
    /// # Errors
    /// The collective cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
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

    /// Copies the values of rank `root` into the other ranks' tensors, in place. The tensor may have any shape.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), NativeError> {
        self.start(tensor, tensor, |group, tensor, _| group.broadcast(tensor, root))?.wait()
    }

    /// Begins to send a contiguous tensor of any shape to rank `to`, which receives it under the same `tag`. It is not to be changed
    /// before it was waited for, and that may be after the peer has received it.
    ///
    /// # Errors
    /// The transfer cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
    pub fn start_send(&self, tensor: &Tensor, to: usize, tag: i32) -> Result<Started, NativeError> {
        let Some(gloo) = &self.gloo else { return Ok(Started::done()) };
        match self.route(tensor, true) {
            // The shim holds what is sent.
            Route::Staged => gloo.send(&tensor.to_device(Device::Cpu), to, tag),
            _ => gloo.send(tensor, to, tag),
        }
        .map(Started::of)
    }

    /// Begins to receive into a contiguous tensor, of the kind and number of elements that rank `from` sends under this `tag`.
    ///
    /// # Errors
    /// The transfer cannot begin; a rank that is gone or does not come in time is an error of [`Started::wait`].
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
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::all_reduce_sum`] does.
    pub fn barrier(&self) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.barrier()?.wait())
    }

    /// Returns when every rank is here, where collectives go over NCCL: a rank that has ended is an error at once before they begin,
    /// which NCCL notices after the timeout alone. Over Gloo they notice it themselves, and nobody waits here.
    ///
    /// # Errors
    /// Fails as [`ProcessGroup::barrier`] does.
    pub fn meet(&self) -> Result<(), NativeError> {
        if self.nccl.is_some() { self.barrier() } else { Ok(()) }
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

#[cfg(test)]
#[path = "../../../../tests/support/must.rs"]
mod must;
