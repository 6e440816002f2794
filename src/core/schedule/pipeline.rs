//! Pipeline schedules as data: which tasks each rank of a pipeline computes, in order.
//!
//! One schedule for all: warm-up forwards, then one forward and one backward in turns, then the remaining backwards (1F1B;
//! Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters"). With several virtual stages, a rank
//! alternates between its ranges of layers, for as many micro-batches as there are ranks (interleaved). If one sequence is
//! processed in chunks (ChunkPipe), its chunks are micro-batches that go forward in order and backward in reverse, since later
//! chunks attend to earlier ones.
//!
//! Sends never wait for their receiver; receives wait. Each message is the result of one task, received by the neighbor's task of
//! the same micro-batch and pass.

use std::ops::Range;

/// A pipeline: its ranks, and the ranges of layers that each holds. Layers are assigned round-robin: rank `r` holds stages
/// `r`, `r + ranks`, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    pub ranks: usize,
    pub virtual_stages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    Forward,
    Backward,
}

/// One pass of one micro-batch through one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    pub pass: Pass,
    pub micro_batch: usize,
    /// Stage number over all ranks.
    pub stage: usize,
}

impl Task {
    /// Returns the task of another stage that must be done first and sends its result here.
    pub fn after(&self, pipeline: &Pipeline) -> Option<Task> {
        let stage = match self.pass {
            Pass::Forward => self.stage.checked_sub(1)?,
            Pass::Backward => Some(self.stage + 1).filter(|stage| *stage < pipeline.stages())?,
        };
        Some(Task { stage, ..*self })
    }

    /// Returns the task that receives the result.
    pub fn before(&self, pipeline: &Pipeline) -> Option<Task> {
        let stage = match self.pass {
            Pass::Forward => Some(self.stage + 1).filter(|stage| *stage < pipeline.stages())?,
            Pass::Backward => self.stage.checked_sub(1)?,
        };
        Some(Task { stage, ..*self })
    }
}

impl Pipeline {
    /// Returns the number of stages of all ranks together, virtual ones included.
    pub fn stages(&self) -> usize {
        self.ranks * self.virtual_stages
    }

    /// Returns the rank that holds a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// Returns the stages of a rank, in the order of the layers.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (rank..self.stages()).step_by(self.ranks)
    }

    /// Returns the layers of each stage: the same number in all, or one more in the first ones. `None` if there are fewer layers
    /// than stages.
    pub fn layers(&self, num_layers: usize) -> Option<Vec<Range<usize>>> {
        let (each, rest) = (num_layers / self.stages(), num_layers % self.stages());
        let first = |stage: usize| stage * each + stage.min(rest);
        (each > 0).then(|| (0..self.stages()).map(|stage| first(stage)..first(stage + 1)).collect())
    }

    /// Returns the tasks of `rank` for sequences with these numbers of chunks, with all micro-batches numbered in order. Whole
    /// packs are sequences of one chunk.
    ///
    /// # Panics
    /// Chunks in an interleaved pipeline.
    pub fn schedule(&self, rank: usize, chunks: &[usize]) -> Vec<Task> {
        let (forward, backward) = match self.virtual_stages {
            1 => self.in_order(rank, chunks),
            _ => {
                assert!(chunks.iter().all(|chunks| *chunks == 1), "chunks in an interleaved pipeline");
                self.interleaved(rank, chunks.len())
            }
        };
        // A backward may come when its own forward is done: so many more forwards than backwards before it.
        let place = |task: &Task| {
            forward.iter().position(|other| (other.micro_batch, other.stage) == (task.micro_batch, task.stage))
        };
        let ahead = backward
            .iter()
            .enumerate()
            .map(|(index, task)| place(task).expect("a forward for every backward").saturating_sub(index));
        let others = (self.ranks - rank - 1) * self.virtual_stages.min(2);
        let warm_up = (others + ahead.max().unwrap_or(0)).min(forward.len());
        let mut tasks = forward[..warm_up].to_vec();
        let mut backward = backward.into_iter();
        for &task in &forward[warm_up..] {
            tasks.push(task);
            tasks.extend(backward.next());
        }
        tasks.extend(backward);
        tasks
    }

    /// Returns the tasks of one rank, without a pipeline, that alternates between two micro-batches.
    pub fn pairs(&self, num_micro_batches: usize) -> Vec<Task> {
        let firsts = (0..num_micro_batches).step_by(2);
        let pair = |first: usize| {
            let both = first..num_micro_batches.min(first + 2);
            let tasks = |pass| both.clone().map(move |micro_batch| Task { pass, micro_batch, stage: 0 });
            tasks(Pass::Forward).chain(tasks(Pass::Backward)).collect::<Vec<_>>()
        };
        firsts.flat_map(pair).collect()
    }

    fn in_order(&self, rank: usize, chunks: &[usize]) -> (Vec<Task>, Vec<Task>) {
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let task = |pass, micro_batch| Task { pass, micro_batch, stage: rank };
        for &count in chunks {
            let first = forward.len();
            forward.extend((first..first + count).map(|index| task(Pass::Forward, index)));
            backward.extend((first..first + count).rev().map(|index| task(Pass::Backward, index)));
        }
        (forward, backward)
    }

    fn interleaved(&self, rank: usize, num_micro_batches: usize) -> (Vec<Task>, Vec<Task>) {
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < num_micro_batches {
            // A group smaller than the pipeline would leave ranks waiting in turns: the last one takes the rest.
            let left = num_micro_batches - first;
            let end = if left < 2 * self.ranks { num_micro_batches } else { first + self.ranks };
            for stage in self.stages_of(rank) {
                forward.extend((first..end).map(|micro_batch| Task { pass: Pass::Forward, micro_batch, stage }));
            }
            for stage in self.stages_of(rank).collect::<Vec<_>>().into_iter().rev() {
                backward.extend((first..end).map(|micro_batch| Task { pass: Pass::Backward, micro_batch, stage }));
            }
            first = end;
        }
        (forward, backward)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Pass, Pipeline, Task};

    /// The result of a simulated run of a schedule.
    struct Course {
        /// The time with forwards of time 1 and backwards of 2, on every rank.
        time: u64,
        busy: Vec<u64>,
        /// The most micro-batches that each rank has begun and not ended.
        in_flight: Vec<usize>,
    }

    /// Executes all ranks; panics where they wait for each other, or a task comes before what it depends on.
    fn simulate(pipeline: Pipeline, chunks: &[usize]) -> Course {
        let schedules: Vec<Vec<Task>> = (0..pipeline.ranks).map(|rank| pipeline.schedule(rank, chunks)).collect();
        let mut done: BTreeMap<Task, u64> = BTreeMap::new();
        let (mut next, mut clock) = (vec![0; pipeline.ranks], vec![0u64; pipeline.ranks]);
        let (mut busy, mut in_flight) = (vec![0; pipeline.ranks], vec![0; pipeline.ranks]);
        let mut live = vec![BTreeSet::new(); pipeline.ranks];
        loop {
            let mut moved = false;
            for rank in 0..pipeline.ranks {
                while let Some(&task) = schedules[rank].get(next[rank]) {
                    assert_eq!(pipeline.rank_of(task.stage), rank);
                    let ready = match task.after(&pipeline) {
                        Some(other) => match done.get(&other) {
                            Some(time) => *time,
                            None => break,
                        },
                        None => 0,
                    };
                    let key = (task.micro_batch, task.stage);
                    if task.pass == Pass::Backward {
                        assert!(live[rank].remove(&key), "{task:?} before its forward");
                    } else {
                        assert!(live[rank].insert(key));
                    }
                    in_flight[rank] = in_flight[rank].max(live[rank].len());
                    let cost = if task.pass == Pass::Forward { 1 } else { 2 };
                    clock[rank] = clock[rank].max(ready) + cost;
                    busy[rank] += cost;
                    assert!(done.insert(task, clock[rank]).is_none(), "{task:?} twice");
                    next[rank] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for rank in 0..pipeline.ranks {
            assert_eq!(next[rank], schedules[rank].len(), "rank {rank} of {pipeline:?} with {chunks:?} waits forever");
        }
        let num = chunks.iter().sum::<usize>() * pipeline.stages();
        assert_eq!(done.len(), 2 * num, "every pass once");
        Course { time: clock.into_iter().max().unwrap(), busy, in_flight }
    }

    #[test]
    fn nobody_waits_forever_and_the_order_holds() {
        for ranks in 1..=6 {
            for virtual_stages in 1..=4 {
                for num in 1..=14 {
                    simulate(Pipeline { ranks, virtual_stages }, &vec![1; num]);
                }
            }
            for chunks in [&[4][..], &[1, 5, 2], &[3, 1, 1, 1, 7], &[2; 5], &[32]] {
                simulate(Pipeline { ranks, virtual_stages: 1 }, chunks);
            }
        }
    }

    #[test]
    fn the_bubble_is_that_of_the_formula() {
        for (ranks, virtual_stages, num) in [(2, 1, 8), (4, 1, 8), (4, 1, 4), (2, 2, 4), (4, 2, 8), (4, 3, 16)] {
            let course = simulate(Pipeline { ranks, virtual_stages }, &vec![1; num]);
            let (work, bubble) = (3 * num * virtual_stages, 3 * (ranks - 1));
            assert!(course.busy.iter().all(|busy| *busy == work as u64));
            assert_eq!(course.time, (work + bubble) as u64, "{ranks} ranks, {virtual_stages} virtual, {num}");
        }
    }

    #[test]
    fn what_is_in_flight_does_not_grow_with_the_step() {
        for num in [8, 32] {
            assert_eq!(simulate(Pipeline { ranks: 4, virtual_stages: 1 }, &vec![1; num]).in_flight, [4, 3, 2, 1]);
            let interleaved = simulate(Pipeline { ranks: 4, virtual_stages: 2 }, &vec![1; num]);
            assert_eq!(interleaved.in_flight, [11, 9, 7, 5]);
        }
        // All chunks of a sequence, whose inputs alone are kept.
        assert_eq!(simulate(Pipeline { ranks: 2, virtual_stages: 1 }, &[4; 6]).in_flight, [5, 4]);
    }

    #[test]
    fn chunks_go_back_in_reverse() {
        let tasks = Pipeline { ranks: 1, virtual_stages: 1 }.schedule(0, &[2, 3]);
        let order: Vec<(Pass, usize)> = tasks.iter().map(|task| (task.pass, task.micro_batch)).collect();
        let of = |pass, wanted: &[usize]| {
            let found: Vec<usize> = order.iter().filter(|(found, _)| *found == pass).map(|(_, at)| *at).collect();
            assert_eq!(found, wanted);
        };
        of(Pass::Forward, &[0, 1, 2, 3, 4]);
        of(Pass::Backward, &[1, 0, 4, 3, 2]);
    }

    #[test]
    fn pairs_go_forward_and_then_backward() {
        let tasks = Pipeline { ranks: 1, virtual_stages: 1 }.pairs(3);
        let order: Vec<(Pass, usize)> = tasks.iter().map(|task| (task.pass, task.micro_batch)).collect();
        use Pass::{Backward, Forward};
        assert_eq!(order, [(Forward, 0), (Forward, 1), (Backward, 0), (Backward, 1), (Forward, 2), (Backward, 2)]);
    }

    #[test]
    fn layers_are_dealt_evenly_in_order() {
        let pipeline = Pipeline { ranks: 2, virtual_stages: 2 };
        assert_eq!(pipeline.layers(10), Some(vec![0..3, 3..6, 6..8, 8..10]));
        assert_eq!((pipeline.layers(4), pipeline.layers(3)), (Some(vec![0..1, 1..2, 2..3, 3..4]), None));
        assert_eq!((pipeline.stages_of(1).collect::<Vec<_>>(), pipeline.rank_of(2)), (vec![1, 3], 0));
    }
}
