//! A process group: collectives among the ranks of one pool, and nothing at all where there is one rank.

use std::path::Path;
use std::time::Duration;

use tch::Tensor;

use crate::native::{Gloo, NativeError, Pending};

/// A member of a group. All ranks call the same collectives in the same order; one that is missing is an error after
/// the group's timeout, one that has ended is an error at once.
pub struct ProcessGroup {
    rank: usize,
    world: usize,
    gloo: Option<Gloo>,
}

impl ProcessGroup {
    /// The group of one: every collective is the identity.
    pub fn single() -> ProcessGroup {
        ProcessGroup { rank: 0, world: 1, gloo: None }
    }

    /// Joins `world` ranks of this machine that name the same `store_path` (a file of this run, made by the first to
    /// come) and `name`. A file that an earlier run has left behind must be removed first.
    pub fn gloo(
        store_path: &Path,
        name: &str,
        rank: usize,
        world: usize,
        timeout: Duration,
    ) -> Result<ProcessGroup, NativeError> {
        assert!(rank < world, "rank {rank} of {world}");
        if world == 1 {
            return Ok(ProcessGroup::single());
        }
        let gloo = Gloo::join(store_path, name, "127.0.0.1", rank, world, timeout)?;
        Ok(ProcessGroup { rank, world, gloo: Some(gloo) })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// In place: the sum over ranks of a contiguous tensor.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.all_reduce_sum(tensor)?.wait())
    }

    /// As `all_reduce_sum`, on its way when it returns. The tensor is not to be touched before it was waited for.
    pub fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Started, NativeError> {
        self.start(|gloo| gloo.all_reduce_sum(tensor))
    }

    /// In place: the greatest over ranks of a contiguous tensor.
    pub fn all_reduce_max(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.all_reduce_max(tensor)?.wait())
    }

    /// The ranks' tensors, all of one shape, in the order of the ranks.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>, NativeError> {
        Ok(self.all_gather_flat(tensor)?.unbind(0))
    }

    /// As `all_gather`, as one tensor `[world, shape…]`.
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
        if self.gloo.is_none() {
            output.view([-1]).copy_(&tensor.view([-1]));
        }
        self.start(|gloo| gloo.all_gather(&output.view([-1]), &tensor.view([-1])))
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

    /// As `reduce_scatter_sum` into a tensor; both are contiguous, and not to be touched before it was waited for.
    pub fn start_reduce_scatter_sum_into(&self, output: &Tensor, tensor: &Tensor) -> Result<Started, NativeError> {
        if self.gloo.is_none() {
            output.view([-1]).copy_(&tensor.view([-1]));
        }
        self.start(|gloo| gloo.reduce_scatter_sum(&output.view([-1]), &tensor.view([-1])))
    }

    /// Sends `sent[r]` rows of `tensor` to each rank `r`, in the order of the ranks, and returns the rows that they send
    /// here, `taken[r]` of each. Panics where there is not one count a rank.
    pub fn all_to_all(&self, tensor: &Tensor, sent: &[i64], taken: &[i64]) -> Result<Tensor, NativeError> {
        let (output, started) = self.start_all_to_all(tensor, sent, taken)?;
        started.wait()?;
        Ok(output)
    }

    /// As `all_to_all`, on its way when it returns. The output is not to be read before it was waited for.
    pub fn start_all_to_all(
        &self,
        tensor: &Tensor,
        sent: &[i64],
        taken: &[i64],
    ) -> Result<(Tensor, Started), NativeError> {
        if self.gloo.is_none() {
            return Ok((tensor.shallow_clone(), Started(None)));
        }
        let mut shape = tensor.size();
        shape[0] = taken.iter().sum();
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        let input = tensor.contiguous();
        let started = self.start(|gloo| gloo.all_to_all(&output, &input, taken, sent))?;
        Ok((output, started))
    }

    /// In place: the values of rank `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.broadcast(tensor, root)?.wait())
    }

    /// A contiguous tensor to rank `to`, which receives it under the same `tag`. It is not to be changed before it was
    /// waited for, and that may be after the peer has received it.
    pub fn start_send(&self, tensor: &Tensor, to: usize, tag: i32) -> Result<Started, NativeError> {
        self.start(|gloo| gloo.send(tensor, to, tag))
    }

    /// Into a contiguous tensor, of the kind and size that rank `from` sends under this `tag`.
    pub fn start_recv(&self, tensor: &Tensor, from: usize, tag: i32) -> Result<Started, NativeError> {
        self.start(|gloo| gloo.recv(tensor, from, tag))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.barrier()?.wait())
    }

    fn start(&self, begin: impl FnOnce(&Gloo) -> Result<Pending, NativeError>) -> Result<Started, NativeError> {
        self.gloo.as_ref().map(begin).transpose().map(Started)
    }
}

/// A collective on its way; of a group of one, one that is done.
#[must_use]
pub struct Started(Option<Pending>);

impl Started {
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn wait(self) -> Result<(), NativeError> {
        self.0.map_or(Ok(()), Pending::wait)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tch::Tensor;

    use super::ProcessGroup;

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
    fn one_rank_needs_nobody() {
        let group = ProcessGroup::gloo(Path::new("/nonexistent/store"), "pool", 0, 1, Duration::ZERO).unwrap();
        let tensor = Tensor::from_slice(&[1f32, 2.0]);
        group.all_reduce_sum(&tensor).unwrap();
        assert_eq!(group.all_gather(&tensor).unwrap()[0], Tensor::from_slice(&[1f32, 2.0]));
    }
}
