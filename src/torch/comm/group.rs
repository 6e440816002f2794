//! A process group: collectives among the ranks of one pool, and nothing at all where there is one rank.

use std::path::Path;
use std::time::Duration;

use tch::Tensor;

use crate::native::{Gloo, NativeError};

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
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.all_reduce_sum(tensor))
    }

    /// The ranks' tensors, all of one shape, in the order of the ranks.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>, NativeError> {
        Ok(self.all_gather_flat(tensor)?.unbind(0))
    }

    /// As `all_gather`, as one tensor `[world, shape…]`.
    pub fn all_gather_flat(&self, tensor: &Tensor) -> Result<Tensor, NativeError> {
        let Some(gloo) = &self.gloo else {
            return Ok(tensor.unsqueeze(0));
        };
        let mut shape = vec![self.world as i64];
        shape.extend(tensor.size());
        let output = Tensor::empty(shape, (tensor.kind(), tensor.device()));
        gloo.all_gather(&output.view([-1]), &tensor.contiguous().view([-1]))?;
        Ok(output)
    }

    /// In place: the values of rank `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), |gloo| gloo.broadcast(tensor, root))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), NativeError> {
        self.gloo.as_ref().map_or(Ok(()), Gloo::barrier)
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
