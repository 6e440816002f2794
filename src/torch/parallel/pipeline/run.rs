//! One step of one rank of a pipeline: its tasks in order, each between the messages that it takes and sends.
//!
//! Sends do not wait, so nobody waits in a circle whatever the schedule is; a send is settled when its receiver has been heard of again
//! after taking it. The tasks in flight are those that the schedule has begun and not ended.

use std::collections::BTreeMap;
use std::rc::Rc;

use loongforge_core::schedule::{Pass, Pipeline, Task};
use tch::Tensor;

use crate::comm::{Mesh, Started};
use crate::native::NativeError;
use crate::params::{GradBuffer, Masks, ParamId, ParamStore};
use crate::tape::{Boundary, Execution, KeyValues, Slot, Tape, Turn, backward_in_turns, forward_in_turns};

use super::key_values::KeyValuePool;

/// The most tensors that cross a boundary.
const MAX_TENSORS: usize = 64;

/// A micro-batch as a stage recorded it.
pub struct Recorded {
    pub tape: Rc<Tape>,
    /// Values of inputs that do not come from the stage before, such as features.
    pub inputs: Vec<(Slot, Tensor)>,
    pub inbound: Vec<Boundary>,
    pub outbound: Vec<Boundary>,
    /// The slot of the loss to differentiate; only the last stage has it.
    pub loss: Option<Slot>,
    /// The keys and values of a chunk of a row.
    pub key_values: Vec<KeyValues>,
    /// Tokens of the whole row.
    pub row_tokens: usize,
    /// The masks of the micro-batch's dropout; see [`ParamStore::set_dropout`].
    pub dropout: Option<Masks>,
}

/// Told after every operation of a backward: the sums so far, and whether of some parameters nothing more comes from it.
pub type Passed<'a> = dyn FnMut(&GradBuffer, &dyn Fn(&[ParamId]) -> bool) -> Result<(), NativeError> + 'a;

/// A step of this rank.
pub struct PipelineRun {
    mesh: Rc<Mesh>,
    pipeline: Pipeline,
    tasks: Vec<Task>,
    next: usize,
    /// The place of each task in the schedule of its rank.
    places: BTreeMap<Task, usize>,
    live: BTreeMap<(usize, usize), Live>,
    /// The sequence of each micro-batch.
    sequences: Vec<usize>,
    /// Keys and values of the sequences' chunks.
    pools: BTreeMap<usize, KeyValuePool>,
    sent: Vec<Sent>,
    /// True if two micro-batches at a time are computed in turns.
    in_pairs: bool,
    /// True if there are no backwards, and nothing is kept for them.
    forward_only: bool,
}

/// The state that a forward leaves for its backward.
struct Live {
    inbound: Vec<Boundary>,
    outbound: Vec<Boundary>,
    loss: Option<Slot>,
    dropout: Option<Masks>,
    kept: Kept,
}

enum Kept {
    Graphs(Box<Execution>),
    /// A chunk is computed again.
    Chunk(Chunk),
}

/// The tape and inputs of a chunk of a row, beside the keys and values before it.
struct Chunk {
    tape: Rc<Tape>,
    inputs: Vec<(Slot, Tensor)>,
    key_values: Vec<KeyValues>,
    row_tokens: usize,
}

/// A forward that has its inputs and is not done.
struct Begun {
    task: Task,
    inbound: Vec<Boundary>,
    outbound: Vec<Boundary>,
    loss: Option<Slot>,
    chunk: Option<Chunk>,
}

struct Sent {
    to: usize,
    /// The receiver's task that takes it.
    taken_at: usize,
    started: Started,
}

impl PipelineRun {
    /// Makes a run along the pipeline of `mesh`; `chunks` as in [`Pipeline::schedule`].
    pub fn new(mesh: Rc<Mesh>, pipeline: Pipeline, chunks: &[usize]) -> PipelineRun {
        assert_eq!(mesh.pp.world(), pipeline.ranks, "ranks of a pipeline");
        let schedules: Vec<Vec<Task>> = (0..pipeline.ranks).map(|rank| pipeline.schedule(rank, chunks)).collect();
        let places = schedules.iter().flat_map(|tasks| tasks.iter().enumerate()).map(|(place, task)| (*task, place));
        let places = places.collect();
        let tasks = schedules[mesh.pp.rank()].clone();
        let sequences = chunks.iter().enumerate().flat_map(|(sequence, count)| vec![sequence; *count]).collect();
        PipelineRun {
            mesh,
            pipeline,
            tasks,
            next: 0,
            places,
            live: BTreeMap::new(),
            sequences,
            pools: BTreeMap::new(),
            sent: Vec::new(),
            in_pairs: false,
            forward_only: false,
        }
    }

    /// Computes two micro-batches at a time in turns: see [`forward_in_turns`].
    ///
    /// # Panics
    /// There are several stages.
    #[must_use]
    pub fn in_pairs(self) -> PipelineRun {
        assert_eq!(self.pipeline.stages(), 1, "pairs of micro-batches in a pipeline");
        let tasks = self.pipeline.pairs(self.sequences.len());
        PipelineRun { tasks, in_pairs: true, ..self }
    }

    /// Computes the forwards alone, in the order of the schedule.
    #[must_use]
    pub fn forward_only(self) -> PipelineRun {
        let tasks = self.tasks.into_iter().filter(|task| task.pass == Pass::Forward).collect();
        PipelineRun { tasks, forward_only: true, ..self }
    }

    /// Returns the tasks that are left.
    pub fn left(&self) -> &[Task] {
        &self.tasks[self.next..]
    }

    /// Returns the next task; `None` at the step's end.
    pub fn next(&self) -> Option<Task> {
        self.tasks.get(self.next).copied()
    }

    /// Returns the tasks that come next in turns with each other: one task, but where micro-batches go in pairs. None at the step's end.
    pub fn together(&self) -> &[Task] {
        let left = &self.tasks[self.next..];
        let most = left.len().min(if self.in_pairs { 2 } else { 1 });
        let len = left[..most].iter().take_while(|task| task.pass == left[0].pass).count();
        &left[..len]
    }

    /// Returns whether what comes next is the end.
    pub fn is_last(&self) -> bool {
        self.next + self.together().len() == self.tasks.len()
    }

    /// Returns the most micro-batches between their forward and the end of their backward at once.
    pub fn most_alive(&self) -> usize {
        let (mut alive, mut most) = (0usize, 0);
        for task in &self.tasks {
            alive = if task.pass == Pass::Forward { alive + 1 } else { alive - 1 };
            most = most.max(alive);
        }
        most
    }

    /// Computes the forwards that come next together. `begin` makes the execution of each micro-batch, except for chunks; `seen` is given
    /// each execution after its forward and can read its outputs and kept slots. Both are told the number of the micro-batch among them.
    /// Inputs have the shapes that their tape reads.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    ///
    /// # Panics
    /// The next task is no forward, or there are not as many.
    pub fn forward<E: From<NativeError>>(
        &mut self,
        params: &Rc<ParamStore>,
        recorded: Vec<Recorded>,
        mut begin: impl FnMut(usize, Rc<Tape>, Vec<(Slot, Tensor)>) -> Result<Execution, E>,
        mut seen: impl FnMut(usize, &Execution),
    ) -> Result<(), E> {
        assert_eq!(recorded.len(), self.together().len(), "micro-batches that are computed together");
        let (mut turns, mut begun) = (Vec::new(), Vec::new());
        for (index, recorded) in recorded.into_iter().enumerate() {
            let (turn, forward) = self.begin_forward(params, recorded, |tape, inputs| begin(index, tape, inputs))?;
            turns.push(turn);
            begun.push(forward);
        }
        forward_in_turns(params, &mut turns)?;
        for (index, (turn, forward)) in turns.into_iter().zip(begun).enumerate() {
            let value = |boundary: &Boundary| turn.run.value(boundary.slot).shallow_clone();
            self.send(forward.task, forward.outbound.iter().map(value).collect())?;
            seen(index, &turn.run);
            self.end_forward(turn, forward);
        }
        Ok(())
    }

    /// Receives what a micro-batch needs, and makes its execution.
    fn begin_forward<E: From<NativeError>>(
        &mut self,
        params: &Rc<ParamStore>,
        recorded: Recorded,
        begin: impl FnOnce(Rc<Tape>, Vec<(Slot, Tensor)>) -> Result<Execution, E>,
    ) -> Result<(Turn, Begun), E> {
        let task = self.begin(Pass::Forward);
        let Recorded { tape, mut inputs, inbound, outbound, loss, key_values, row_tokens, dropout } = recorded;
        params.set_dropout(dropout.clone());
        let received = self.receive(task, &inbound, params)?;
        inputs.extend(inbound.iter().map(|boundary| boundary.slot).zip(received));
        let (run, chunk) = if key_values.is_empty() {
            (begin(tape, inputs)?, None)
        } else {
            let clones = inputs.iter().map(|(slot, value)| (*slot, value.shallow_clone()));
            let all = clones.chain(self.pool_of(task).past(&key_values)).collect();
            let run = Execution::forward_only(tape.clone(), params.clone(), all);
            (run, Some(Chunk { tape, inputs, key_values, row_tokens }))
        };
        let turn = Turn { run: run.with_mesh(self.mesh.clone()), dropout };
        Ok((turn, Begun { task, inbound, outbound, loss, chunk }))
    }

    /// Keeps of a forward what its backward needs, and of a chunk the keys and values for the chunks after it.
    fn end_forward(&mut self, turn: Turn, begun: Begun) {
        let Begun { task, inbound, outbound, loss, chunk } = begun;
        let Turn { run, dropout } = turn;
        if let Some(Chunk { key_values, row_tokens, .. }) = &chunk {
            self.pool_of(task).push(&run, key_values, *row_tokens as i64);
        }
        if self.forward_only {
            let sequence = self.sequences[task.micro_batch];
            if self.left().iter().all(|task| self.sequences[task.micro_batch] != sequence) {
                self.pools.remove(&sequence);
            }
            return;
        }
        let kept = chunk.map_or_else(|| Kept::Graphs(Box::new(run)), Kept::Chunk);
        self.live.insert((task.micro_batch, task.stage), Live { inbound, outbound, loss, dropout, kept });
    }

    /// Returns the keys and values of the sequence that a task belongs to.
    fn pool_of(&mut self, task: Task) -> &mut KeyValuePool {
        self.pools.entry(self.sequences[task.micro_batch]).or_default()
    }

    /// Does the tasks that come next together, backwards, adding parameters' gradients to `grads`; `passed` is told of them
    /// meanwhile. Returns the executions, of which the gradients of inputs can be read.
    ///
    /// # Errors
    /// Fails as [`PipelineRun::forward`] does, and as `passed` does.
    ///
    /// # Panics
    /// The next task is no backward.
    pub fn backward(
        &mut self,
        params: &Rc<ParamStore>,
        grads: Option<&mut GradBuffer>,
        mut passed: Option<&mut Passed<'_>>,
    ) -> Result<Vec<Execution>, NativeError> {
        let (mut turns, mut ends, mut chunk) = (Vec::new(), Vec::new(), None);
        for _ in 0..self.together().len() {
            let task = self.begin(Pass::Backward);
            let live = self.live.remove(&(task.micro_batch, task.stage)).expect("a forward came before");
            let Live { inbound, outbound, loss, dropout, kept } = live;
            params.set_dropout(dropout.clone());
            let outbound = with_grad(outbound);
            let mut run = match kept {
                Kept::Graphs(run) => *run,
                Kept::Chunk(Chunk { tape, mut inputs, key_values, .. }) => {
                    let sequence = self.sequences[task.micro_batch];
                    let pool = self.pools.get_mut(&sequence).expect("the pool of a chunk");
                    let grads = pool.pop();
                    inputs.extend(pool.past(&key_values));
                    let mut run = Execution::new(tape, params.clone(), inputs).with_mesh(self.mesh.clone());
                    run.forward()?;
                    for (layer, grads) in key_values.iter().zip(grads) {
                        let grads = layer.own.into_iter().zip(grads.into_iter().flatten());
                        grads.for_each(|(slot, grad)| run.seed(slot, grad));
                    }
                    chunk = Some((sequence, key_values));
                    run
                }
            };
            for (boundary, grad) in outbound.iter().zip(self.receive(task, &outbound, params)?) {
                run.seed(boundary.slot, grad);
            }
            if let Some(loss) = loss {
                run.seed(loss, Tensor::ones_like(run.value(loss)));
            }
            turns.push(Turn { run, dropout });
            ends.push((task, inbound));
        }
        let pools = &mut self.pools;
        backward_in_turns(params, &mut turns, grads, |turns, grads| {
            // Gradients of earlier keys and values go to their pool as soon as a layer has them.
            if let Some((sequence, key_values)) = &chunk {
                let pool = pools.get_mut(sequence).expect("the pool of a chunk");
                pool.take_grads(&mut turns[0].run, key_values);
            }
            match (&mut passed, grads) {
                (Some(passed), Some(grads)) => passed(grads, &|ids| turns.iter().all(|turn| turn.run.is_past(ids))),
                _ => Ok(()),
            }
        })?;
        if let Some((sequence, _)) = chunk.filter(|(sequence, _)| self.pools[sequence].is_empty()) {
            self.pools.remove(&sequence);
        }
        for (turn, (task, inbound)) in turns.iter().zip(ends) {
            let grad_of = |boundary: Boundary| {
                let zeros = || Tensor::zeros(&boundary.shape, (boundary.kind, params.flat().device()));
                turn.run.input_grad(boundary.slot).unwrap_or_else(zeros).to_kind(boundary.kind)
            };
            self.send(task, with_grad(inbound).into_iter().map(grad_of).collect())?;
        }
        Ok(turns.into_iter().map(|turn| turn.run).collect())
    }

    /// Waits until all that was sent has been taken.
    ///
    /// # Errors
    /// Fails as [`PipelineRun::forward`] does.
    pub fn finish(&mut self) -> Result<(), NativeError> {
        assert!(self.next().is_none() && self.live.is_empty(), "a step that is not done");
        self.sent.drain(..).try_for_each(|sent| sent.started.wait())
    }

    fn begin(&mut self, pass: Pass) -> Task {
        let task = self.next().filter(|task| task.pass == pass).expect("the schedule's order");
        self.next += 1;
        task
    }

    /// Returns the number of bytes of keys and values that later chunks attend to.
    pub fn num_pool_bytes(&self) -> usize {
        self.pools.values().map(KeyValuePool::num_bytes).sum()
    }

    fn receive(
        &mut self,
        task: Task,
        boundaries: &[Boundary],
        params: &ParamStore,
    ) -> Result<Vec<Tensor>, NativeError> {
        let Some(source) = task.after(&self.pipeline) else { return Ok(Vec::new()) };
        let from = self.pipeline.rank_of(source.stage);
        let mut values = Vec::new();
        let mut started = Vec::new();
        for (index, boundary) in boundaries.iter().enumerate() {
            let value = Tensor::empty(&boundary.shape, (boundary.kind, params.flat().device()));
            started.push(self.mesh.pp.start_recv(&value, from, self.tag(source, index))?);
            values.push(value);
        }
        started.into_iter().try_for_each(Started::wait)?;
        // The sender had taken all that it needed for this.
        let heard = self.places[&source];
        let (done, open) =
            std::mem::take(&mut self.sent).into_iter().partition(|sent| sent.to == from && sent.taken_at <= heard);
        self.sent = open;
        Vec::into_iter(done).try_for_each(|sent: Sent| sent.started.wait())?;
        Ok(values)
    }

    fn send(&mut self, task: Task, values: Vec<Tensor>) -> Result<(), NativeError> {
        let Some(target) = task.before(&self.pipeline) else { return Ok(()) };
        let (to, taken_at) = (self.pipeline.rank_of(target.stage), self.places[&target]);
        for (index, value) in values.into_iter().enumerate() {
            let started = self.mesh.pp.start_send(&value.contiguous(), to, self.tag(task, index))?;
            self.sent.push(Sent { to, taken_at, started });
        }
        Ok(())
    }

    /// Returns the tag of tensor `index` of what `task` sends.
    fn tag(&self, task: Task, index: usize) -> i32 {
        assert!(index < MAX_TENSORS, "tensors of a boundary");
        let number = task.micro_batch * self.pipeline.stages() + task.stage;
        ((number * 2 + usize::from(task.pass == Pass::Backward)) * MAX_TENSORS + index) as i32
    }
}

fn with_grad(boundaries: Vec<Boundary>) -> Vec<Boundary> {
    boundaries.into_iter().filter(|boundary| boundary.requires_grad).collect()
}
