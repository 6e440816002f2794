//! One step of one rank of a pipeline: its tasks in order, each between the messages that it takes and sends.
//!
//! Sends do not wait, so nobody waits in a circle whatever the schedule is; a send is settled when its receiver has been
//! heard of again after taking it. What is in flight is what the schedule has begun and not ended.

use std::collections::BTreeMap;
use std::rc::Rc;

use loongforge_core::schedule::{Pass, Pipeline, Task};
use tch::Tensor;

use crate::comm::{Mesh, Started};
use crate::native::NativeError;
use crate::nn::{GradBuffer, ParamStore};
use crate::tape::{Boundary, Execution, KeyValues, Slot, Tape};

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
    /// What to differentiate; of the last stage.
    pub loss: Option<Slot>,
    /// Of a chunk of a row.
    pub key_values: Vec<KeyValues>,
    /// Tokens of the whole row.
    pub row_tokens: usize,
    /// Of the micro-batch's dropout; see [`ParamStore::set_dropout`].
    pub dropout: Option<u64>,
}

/// A step of this rank.
pub struct PipelineRun {
    mesh: Rc<Mesh>,
    pipeline: Pipeline,
    tasks: Vec<Task>,
    next: usize,
    /// Where every rank has each of its tasks.
    places: BTreeMap<Task, usize>,
    live: BTreeMap<(usize, usize), Live>,
    /// The sequence of each micro-batch.
    sequences: Vec<usize>,
    /// Keys and values of the sequences' chunks.
    pools: BTreeMap<usize, KeyValuePool>,
    sent: Vec<Sent>,
}

/// What a forward leaves for its backward.
struct Live {
    inbound: Vec<Boundary>,
    outbound: Vec<Boundary>,
    loss: Option<Slot>,
    dropout: Option<u64>,
    kept: Kept,
}

enum Kept {
    Graphs(Box<Execution>),
    /// Of a chunk: its inputs, from which it is computed again.
    Inputs {
        tape: Rc<Tape>,
        inputs: Vec<(Slot, Tensor)>,
        key_values: Vec<KeyValues>,
    },
}

struct Sent {
    to: usize,
    /// The receiver's task that takes it.
    taken_at: usize,
    started: Started,
}

impl PipelineRun {
    /// Along the pipeline of `mesh`; `chunks` as in [`Pipeline::schedule`].
    pub fn new(mesh: Rc<Mesh>, pipeline: Pipeline, chunks: &[usize]) -> PipelineRun {
        assert_eq!(mesh.pp.world(), pipeline.ranks, "ranks of a pipeline");
        let schedules: Vec<Vec<Task>> = (0..pipeline.ranks).map(|rank| pipeline.schedule(rank, chunks)).collect();
        let places = schedules.iter().flat_map(|tasks| tasks.iter().enumerate()).map(|(place, task)| (*task, place));
        let places = places.collect();
        let tasks = schedules[mesh.pp.rank()].clone();
        let sequences = chunks.iter().enumerate().flat_map(|(sequence, count)| vec![sequence; *count]).collect();
        let (live, pools, sent) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        PipelineRun { mesh, pipeline, tasks, next: 0, places, live, sequences, pools, sent }
    }

    /// What comes next; `None` at the step's end.
    pub fn next(&self) -> Option<Task> {
        self.tasks.get(self.next).copied()
    }

    /// The most micro-batches between their forward and the end of their backward at once.
    pub fn most_alive(&self) -> usize {
        let (mut alive, mut most) = (0usize, 0);
        for task in &self.tasks {
            alive = if task.pass == Pass::Forward { alive + 1 } else { alive - 1 };
            most = most.max(alive);
        }
        most
    }

    /// Does the next task, a forward. `begin` makes its execution, but those of chunks; outputs and what is kept can be
    /// read of the one that `seen` is given.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    ///
    /// # Panics
    /// The next task is no forward.
    pub fn forward<E: From<NativeError>>(
        &mut self,
        params: &Rc<ParamStore>,
        recorded: Recorded,
        begin: impl FnOnce(Rc<Tape>, Vec<(Slot, Tensor)>) -> Result<Execution, E>,
        seen: impl FnOnce(&Execution),
    ) -> Result<(), E> {
        let task = self.begin(Pass::Forward);
        let Recorded { tape, mut inputs, inbound, outbound, loss, key_values, row_tokens, dropout } = recorded;
        params.set_dropout(dropout);
        let received = self.receive(task, &inbound, params)?;
        inputs.extend(inbound.iter().map(|boundary| boundary.slot).zip(received));
        let (run, kept) = if key_values.is_empty() {
            let mut run = Box::new(begin(tape, inputs)?.with_mesh(self.mesh.clone()));
            run.forward()?;
            (None, Kept::Graphs(run))
        } else {
            let pool = self.pools.entry(self.sequences[task.micro_batch]).or_default();
            let clones = inputs.iter().map(|(slot, value)| (*slot, value.shallow_clone()));
            let all = clones.chain(pool.past(&key_values)).collect();
            let mut run = Execution::forward_only(tape.clone(), params.clone(), all).with_mesh(self.mesh.clone());
            run.forward()?;
            pool.push(&run, &key_values, row_tokens as i64);
            (Some(run), Kept::Inputs { tape, inputs, key_values })
        };
        let run = match (&run, &kept) {
            (Some(run), _) => run,
            (None, Kept::Graphs(run)) => run,
            (None, Kept::Inputs { .. }) => unreachable!("a chunk's run is here"),
        };
        let values = outbound.iter().map(|boundary| run.value(boundary.slot).shallow_clone()).collect();
        self.send(task, values)?;
        seen(run);
        self.live.insert((task.micro_batch, task.stage), Live { inbound, outbound, loss, dropout, kept });
        Ok(())
    }

    /// Does the next task, a backward, adding parameters' gradients to `grads`. Returns the execution, of which the
    /// gradients of inputs can be read.
    ///
    /// # Errors
    /// As [`PipelineRun::forward`].
    ///
    /// # Panics
    /// The next task is no backward.
    pub fn backward(
        &mut self,
        params: &Rc<ParamStore>,
        grads: Option<&mut GradBuffer>,
    ) -> Result<Execution, NativeError> {
        let task = self.begin(Pass::Backward);
        let live = self.live.remove(&(task.micro_batch, task.stage)).expect("a forward came before");
        let Live { inbound, outbound, loss, dropout, kept } = live;
        params.set_dropout(dropout);
        let with_grad = |boundaries: Vec<Boundary>| -> Vec<Boundary> {
            boundaries.into_iter().filter(|boundary| boundary.requires_grad).collect()
        };
        let outbound = with_grad(outbound);
        let (mut run, key_values) = match kept {
            Kept::Graphs(run) => (*run, Vec::new()),
            Kept::Inputs { tape, mut inputs, key_values } => {
                let pool = self.pools.get_mut(&self.sequences[task.micro_batch]).expect("the pool of a chunk");
                let grads = pool.pop();
                inputs.extend(pool.past(&key_values));
                let mut run = Execution::new(tape, params.clone(), inputs).with_mesh(self.mesh.clone());
                run.forward()?;
                for (layer, grads) in key_values.iter().zip(grads) {
                    let grads = layer.own.into_iter().zip(grads.into_iter().flatten());
                    grads.for_each(|(slot, grad)| run.seed(slot, grad));
                }
                (run, key_values)
            }
        };
        for (boundary, grad) in outbound.iter().zip(self.receive(task, &outbound, params)?) {
            run.seed(boundary.slot, grad);
        }
        if let Some(loss) = loss {
            run.seed(loss, Tensor::ones_like(run.value(loss)));
        }
        if key_values.is_empty() {
            run.backward(grads)?;
        } else {
            self.backward_chunk(self.sequences[task.micro_batch], &mut run, &key_values, grads)?;
        }
        let grad_of = |boundary: Boundary| {
            let zeros = || Tensor::zeros(&boundary.shape, (boundary.kind, params.flat().device()));
            run.input_grad(boundary.slot).unwrap_or_else(zeros).to_kind(boundary.kind)
        };
        let grads = with_grad(inbound).into_iter().map(grad_of).collect();
        self.send(task, grads)?;
        Ok(run)
    }

    /// Gradients of earlier keys and values go to their pool as soon as a layer has them.
    fn backward_chunk(
        &mut self,
        sequence: usize,
        run: &mut Execution,
        key_values: &[KeyValues],
        mut grads: Option<&mut GradBuffer>,
    ) -> Result<(), NativeError> {
        let pool = self.pools.get_mut(&sequence).expect("the pool of a chunk");
        while run.backward_step(grads.as_deref_mut())? {
            pool.take_grads(run, key_values);
        }
        if pool.is_empty() {
            self.pools.remove(&sequence);
        }
        Ok(())
    }

    /// Waits until all that was sent has been taken.
    ///
    /// # Errors
    /// As [`PipelineRun::forward`].
    pub fn finish(&mut self) -> Result<(), NativeError> {
        assert!(self.next().is_none() && self.live.is_empty(), "a step that is not done");
        self.sent.drain(..).try_for_each(|sent| sent.started.wait())
    }

    fn begin(&mut self, pass: Pass) -> Task {
        let task = self.next().filter(|task| task.pass == pass).expect("the schedule's order");
        self.next += 1;
        task
    }

    /// Bytes of keys and values that later chunks attend to.
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

    /// Of tensor `index` of what `task` sends.
    fn tag(&self, task: Task, index: usize) -> i32 {
        assert!(index < MAX_TENSORS, "tensors of a boundary");
        let number = task.micro_batch * self.pipeline.stages() + task.stage;
        ((number * 2 + usize::from(task.pass == Pass::Backward)) * MAX_TENSORS + index) as i32
    }
}
