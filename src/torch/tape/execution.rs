//! Executing a tape, one operation at a time, forward and then backward.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tch::Tensor;

use super::across;
use super::exchange::Moving;
use super::held::Source;
use super::memory::{Measured, Memory, TapePlan};
use super::record::{Action, Needs, Operation, ParamGrads, Policy, Slot, Tape};
use super::transfers::Transfers;
use crate::comm::Mesh;
use crate::native::{NativeError, SavedTensors, grad_into};
use crate::nn::{GradBuffer, ParamId, ParamStore};

/// What an operation has left for its backward.
enum Saved {
    Graph {
        inputs: Vec<Tensor>,
        outputs: Vec<Tensor>,
    },
    Inputs(Vec<Tensor>),
    Custom(Vec<Tensor>),
    /// The shape of the rows that some were taken from.
    Shape(Vec<i64>),
    Across(Vec<Tensor>),
    Nothing,
}

impl Saved {
    /// What can be taken away: the tensors that `graph` saved, or those that are listed here.
    fn take(&mut self, graph: Option<SavedTensors>) -> Option<Source> {
        self.drop_values();
        match self {
            Saved::Graph { .. } => graph.map(Source::Graph),
            Saved::Inputs(list) | Saved::Custom(list) | Saved::Across(list) => {
                Some(Source::List(std::mem::take(list).into_iter().map(Some).collect()))
            }
            Saved::Shape(_) | Saved::Nothing => None,
        }
    }

    fn put_back(&mut self, source: Source) {
        if let (Saved::Inputs(to) | Saved::Custom(to) | Saved::Across(to), Source::List(list)) = (self, source) {
            *to = list.into_iter().map(|tensor| tensor.expect("it is back")).collect();
        }
    }

    /// Leaves of a graph its edges alone: the values that its backward reads are in its list.
    fn drop_values(&mut self) {
        let Saved::Graph { inputs, outputs } = self else { return };
        let _guard = tch::no_grad_guard();
        for tensor in inputs.iter_mut().chain(outputs) {
            let nothing = Tensor::empty([0], (tensor.kind(), tensor.device()));
            tensor.set_data(&nothing);
        }
    }
}

/// One for each of a list of values or parameters; `None` where there is none.
type Gradients = Vec<Option<Tensor>>;

/// One run of a tape over one micro-batch.
///
/// Values and graphs are freed as soon as nothing on the tape needs them. Runs on the thread that made it, with
/// autograd enabled there (the default).
pub struct Execution {
    tape: Rc<Tape>,
    params: Rc<ParamStore>,
    values: Vec<Option<Tensor>>,
    grads: Vec<Option<Tensor>>,
    /// Slots through which a gradient must flow.
    needs_grad: Vec<bool>,
    /// Forward readers that are still to come, and one more for slots that are kept.
    readers: Vec<usize>,
    saved: Vec<Option<Saved>>,
    /// The ranks with whom the layers are shared.
    mesh: Rc<Mesh>,
    next_forward: usize,
    /// Operations before this one have not run backward.
    next_backward: usize,
    /// Where a plan says what each operation leaves, instead of its policy.
    memory: Option<Memory>,
    forward_only: bool,
    /// Whether rows that set out to other ranks are waited for in the next step, and not in the same.
    pub(super) defers: bool,
    /// Such rows, and the slot of which they are the value or the gradient.
    pub(super) on_the_way: RefCell<Option<(Slot, Moving)>>,
    /// The first operation that reads a parameter.
    first_reader: OnceCell<BTreeMap<ParamId, usize>>,
}

impl Execution {
    /// Inputs may also be given later, by `set_input`, as long as it is before an operation reads them.
    pub fn new(tape: Rc<Tape>, params: Rc<ParamStore>, inputs: Vec<(Slot, Tensor)>) -> Execution {
        let mut needs_grad = vec![false; tape.num_slots as usize];
        for &(slot, requires_grad) in &tape.inputs {
            needs_grad[slot.index()] = requires_grad;
        }
        for operation in &tape.operations {
            let needed =
                trains(&params, &operation.params) || operation.reads.iter().any(|slot| needs_grad[slot.index()]);
            operation.writes.iter().for_each(|slot| needs_grad[slot.index()] = needed);
        }
        Execution::with(tape, params, needs_grad, inputs)
    }

    /// For evaluation and frozen pools: nothing is kept for a backward, and there is none.
    pub fn forward_only(tape: Rc<Tape>, params: Rc<ParamStore>, inputs: Vec<(Slot, Tensor)>) -> Execution {
        let needs_grad = vec![false; tape.num_slots as usize];
        Execution { forward_only: true, ..Execution::with(tape, params, needs_grad, inputs) }
    }

    fn with(tape: Rc<Tape>, params: Rc<ParamStore>, needs_grad: Vec<bool>, inputs: Vec<(Slot, Tensor)>) -> Execution {
        let num_slots = needs_grad.len();
        let mut readers = vec![0; num_slots];
        tape.operations.iter().flat_map(|operation| &operation.reads).for_each(|slot| readers[slot.index()] += 1);
        tape.kept.iter().for_each(|slot| readers[slot.index()] += 1);
        let mut execution = Execution {
            values: (0..num_slots).map(|_| None).collect(),
            grads: (0..num_slots).map(|_| None).collect(),
            saved: tape.operations.iter().map(|_| None).collect(),
            tape,
            params,
            needs_grad,
            readers,
            mesh: Rc::new(Mesh::single()),
            next_forward: 0,
            next_backward: 0,
            memory: None,
            forward_only: false,
            defers: false,
            on_the_way: RefCell::default(),
            first_reader: OnceCell::new(),
        };
        inputs.into_iter().for_each(|(slot, value)| execution.set_input(slot, value));
        execution
    }

    /// Among the ranks of this mesh; without it the rank is alone.
    #[must_use]
    pub fn with_mesh(self, mesh: Rc<Mesh>) -> Execution {
        Execution { mesh, ..self }
    }

    /// Follows a plan. Call it before the forward.
    pub fn planned(mut self, plan: Rc<TapePlan>, transfers: Option<Rc<Transfers>>) -> Execution {
        assert_eq!(plan.operations.len(), self.tape.len(), "a plan of another tape");
        self.memory = Some(Memory::planned(plan, transfers));
        self
    }

    /// Holds as little as it can and measures what every operation takes. Call it before the forward.
    pub fn measured_within(mut self, budget: u64, transfers: Option<Rc<Transfers>>) -> Execution {
        self.memory = Some(Memory::measuring(self.tape.len(), budget, transfers));
        self
    }

    /// Under a plan or measured: what every operation took, the most bytes that were held at once, and whether times
    /// were taken.
    pub fn memory(&self) -> Option<(&[Measured], u64, bool)> {
        self.memory.as_ref().map(|memory| (memory.measured.as_slice(), memory.peak(), memory.is_measuring()))
    }

    /// Bytes of activations that are held now, under a plan.
    pub fn held_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Memory::bytes)
    }

    /// Whether the backward has left every operation that reads one of these parameters.
    pub fn is_past(&self, ids: &[ParamId]) -> bool {
        let first = self.first_reader.get_or_init(|| {
            let backward = self.tape.operations.iter().enumerate().rev();
            backward.flat_map(|(index, operation)| operation.params.iter().map(move |id| (*id, index))).collect()
        });
        ids.iter().all(|id| first.get(id).is_none_or(|first| *first >= self.next_backward))
    }

    pub(super) fn tape(&self) -> &Tape {
        &self.tape
    }

    pub fn set_input(&mut self, slot: Slot, value: Tensor) {
        assert!(self.tape.inputs.iter().any(|(input, _)| *input == slot), "{slot:?} is not an input");
        self.values[slot.index()] = Some(value.detach());
    }

    /// Runs the next operation. False when none is left.
    ///
    /// # Errors
    /// A collective or a transfer failed: a rank is gone or did not come in time.
    pub fn forward_step(&mut self) -> Result<bool, NativeError> {
        if let Some((slot, moving)) = self.on_the_way.take() {
            self.values[slot.index()] = Some(moving.wait()?);
            return Ok(true);
        }
        let tape = self.tape.clone();
        let Some(operation) = tape.operations.get(self.next_forward) else {
            return Ok(false);
        };
        if let Some(keeper) = self.params.keeper().filter(|_| !operation.params.is_empty()) {
            let next = tape.operations[self.next_forward + 1..].iter().find(|next| !next.params.is_empty());
            keeper.enter(&self.params, &operation.params, next.map_or(&[], |next| &next.params), None)?;
        }
        let reads: Vec<Tensor> = operation.reads.iter().map(|slot| self.value(*slot).shallow_clone()).collect();
        for slot in &operation.reads {
            self.readers[slot.index()] -= 1;
            if self.readers[slot.index()] == 0 {
                self.values[slot.index()] = None;
            }
        }
        let backward = operation.writes.iter().any(|slot| self.needs_grad[slot.index()]);
        let (outputs, saved) = match self.memory.take() {
            Some(mut memory) => {
                let computed = self.compute_within(self.next_forward, operation, reads, backward, &mut memory);
                self.memory = Some(memory);
                computed?
            }
            None => self.compute(operation, operation.policy(), reads, backward)?,
        };
        assert_eq!(outputs.len(), operation.writes.len(), "outputs of {}", operation.name);
        for (slot, output) in operation.writes.iter().zip(outputs) {
            self.values[slot.index()] = Some(output);
        }
        self.saved[self.next_forward] = Some(saved);
        self.next_forward += 1;
        self.next_backward = self.next_forward;
        // Else the backward begins with what is there.
        if self.forward_only && self.next_forward == tape.operations.len() {
            self.params.keeper().map_or(Ok(()), |keeper| keeper.leave(&self.params, None))?;
        }
        Ok(true)
    }

    /// Runs the operations that are left.
    ///
    /// # Errors
    /// As [`Execution::forward_step`].
    pub fn forward(&mut self) -> Result<(), NativeError> {
        while self.forward_step()? {}
        Ok(())
    }

    /// The value of an input, of a slot that is still to be read, or of one that is kept. Panics otherwise.
    pub fn value(&self, slot: Slot) -> &Tensor {
        self.values[slot.index()].as_ref().unwrap_or_else(|| panic!("{slot:?} has no value now"))
    }

    /// Gives a gradient to an output (or to any slot); several add up.
    pub fn seed(&mut self, slot: Slot, grad: Tensor) {
        self.accumulate(slot, grad);
    }

    /// Runs the backward of the last operation that has not had it, adding parameters' gradients to `grads` (or
    /// computing only those of the inputs where it is `None`). False when none is left.
    ///
    /// # Errors
    /// The backward failed, or another rank is gone or did not come in time.
    pub fn backward_step(&mut self, mut grads: Option<&mut GradBuffer>) -> Result<bool, NativeError> {
        if let Some((slot, moving)) = self.on_the_way.take() {
            self.accumulate(slot, moving.wait()?);
            return Ok(true);
        }
        let Some(index) = self.next_backward.checked_sub(1) else {
            return Ok(false);
        };
        self.next_backward = index;
        let (tape, keeper) = (self.tape.clone(), self.params.keeper());
        let operation = &tape.operations[index];
        // Whether a gradient flows here or not: the other ranks may have one.
        if let Some(keeper) = keeper.as_ref().filter(|_| !operation.params.is_empty()) {
            let next = tape.operations[..index].iter().rfind(|next| !next.params.is_empty());
            let next = next.map_or(&[][..], |next| &next.params);
            keeper.enter(&self.params, &operation.params, next, grads.as_deref_mut())?;
        }
        self.backward_of(operation, index, grads.as_deref_mut())?;
        if let Some(keeper) = keeper.filter(|_| index == 0) {
            keeper.leave(&self.params, grads)?;
        }
        Ok(true)
    }

    fn backward_of(
        &mut self,
        operation: &Operation,
        index: usize,
        grads: Option<&mut GradBuffer>,
    ) -> Result<(), NativeError> {
        let received: Vec<Option<Tensor>> =
            operation.writes.iter().map(|slot| self.grads[slot.index()].take()).collect();
        let saved = self.saved[index].take();
        let counts = !operation.once || self.mesh.tp.rank() == 0;
        let wanted = counts && grads.is_some() && trains(&self.params, &operation.params);
        let flows = wanted || operation.reads.iter().any(|slot| self.needs_grad[slot.index()]);
        let mut memory = self.memory.take();
        let saved = saved.filter(|_| flows && received.iter().any(Option::is_some));
        if let Some(memory) = &mut memory {
            if saved.is_none() {
                memory.drop_held(index)?;
            }
            memory.fetch(index)?;
        }
        let Some(saved) = saved else {
            self.memory = memory;
            return Ok(());
        };
        let sums = grads.as_deref().filter(|_| wanted);
        let found = match &mut memory {
            Some(memory) => self.differentiate_within(index, saved, received, sums, memory),
            None => self.differentiate(operation, saved, received, sums),
        };
        self.memory = memory;
        let (of_reads, of_params) = found?;
        for (slot, found) in operation.reads.iter().zip(of_reads) {
            if let Some(found) = found.filter(|_| self.needs_grad[slot.index()]) {
                self.accumulate(*slot, found);
            }
        }
        if let Some(buffer) = grads {
            for (id, found) in operation.params.iter().zip(of_params) {
                if let Some(found) = found {
                    buffer.add(*id, &found);
                }
            }
        }
        Ok(())
    }

    /// Runs the backward of every operation that has not had it.
    pub fn backward(&mut self, mut grads: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        while self.backward_step(grads.as_deref_mut())? {}
        Ok(())
    }

    /// The gradient of an input, after `backward`. `None` where nothing that was seeded depends on it.
    pub fn input_grad(&self, slot: Slot) -> Option<Tensor> {
        self.grads[slot.index()].as_ref().map(Tensor::shallow_clone)
    }

    /// As [`Execution::input_grad`], which is then no longer here.
    pub fn take_grad(&mut self, slot: Slot) -> Option<Tensor> {
        self.grads[slot.index()].take()
    }

    /// As `compute`, with what is left in `memory`.
    fn compute_within(
        &self,
        index: usize,
        operation: &Operation,
        reads: Vec<Tensor>,
        backward: bool,
        memory: &mut Memory,
    ) -> Result<(Vec<Tensor>, Saved), NativeError> {
        let device = self.params.flat().device();
        let is_segment = matches!(operation.action, Action::Segment { .. });
        if !backward || !is_segment && !matches!(operation.action, Action::Custom(_)) {
            memory.fix(index);
        }
        let policy = if memory.recomputes(index) { Policy::Recompute } else { Policy::Keep };
        memory.prepare(index, &reads)?;
        let start = memory.clock(device);
        let mut slots: Vec<Tensor> = reads.iter().map(Tensor::shallow_clone).collect();
        let compute = || self.compute(operation, policy, reads, backward);
        let ((outputs, mut saved), graph) = match backward && is_segment && policy == Policy::Keep {
            true => {
                let (computed, graph) = SavedTensors::of(compute);
                (computed?, Some(graph))
            }
            false => (compute()?, None),
        };
        if let (Some(start), Some(end)) = (start, memory.clock(device)) {
            memory.measured[index].forward = (end - start).as_secs_f64();
        }
        slots.extend(outputs.iter().map(Tensor::shallow_clone));
        if backward && let Some(source) = saved.take(graph) {
            memory.hold(index, source, &slots)?;
        }
        Ok((outputs, saved))
    }

    fn compute(
        &self,
        operation: &Operation,
        policy: Policy,
        reads: Vec<Tensor>,
        backward: bool,
    ) -> Result<(Vec<Tensor>, Saved), NativeError> {
        if let (Action::Segment { forward, .. }, Policy::Keep, true) = (&operation.action, policy, backward) {
            let inputs = self.leaves(operation, &reads);
            let outputs = forward(&inputs);
            return Ok((outputs.iter().map(Tensor::detach).collect(), Saved::Graph { inputs, outputs }));
        }
        let _guard = tch::no_grad_guard();
        Ok(match &operation.action {
            Action::Segment { forward, .. } => {
                let outputs = forward(&reads);
                (outputs, if backward { Saved::Inputs(reads) } else { Saved::Nothing })
            }
            Action::Custom(custom) if backward && policy == Policy::Recompute => {
                (custom.forward(&reads, None).0, Saved::Inputs(reads))
            }
            Action::Custom(custom) => {
                let needs = backward.then(|| self.needs(operation, true));
                let (outputs, saved) = custom.forward(&reads, needs.as_ref());
                (outputs, Saved::Custom(saved))
            }
            Action::Add => (vec![&reads[0] + &reads[1]], Saved::Nothing),
            Action::AddRows(rows) => (vec![reads[0].index_add(0, rows, &reads[1])], Saved::Nothing),
            Action::PutRows(rows) => (vec![reads[0].index_copy(0, rows, &reads[1])], Saved::Nothing),
            Action::TakeRows(rows) => (vec![reads[0].index_select(0, rows)], Saved::Shape(reads[0].size())),
            Action::Exchange(exchange) => {
                let needs = backward.then(|| self.needs(operation, false));
                let (outputs, saved) = exchange.forward(&self.mesh, &reads, needs.as_ref())?;
                (outputs, Saved::Custom(saved))
            }
            Action::Across(across) => {
                let (first, others, saved) = across::forward(*across, &self.mesh, &reads)?;
                // In the place of rows that are not there yet.
                let nothing = || Tensor::empty([0], (reads[0].kind(), reads[0].device()));
                let first = self.settle(operation.writes[0], first)?.unwrap_or_else(nothing);
                (std::iter::once(first).chain(others).collect(), Saved::Across(saved))
            }
        })
    }

    /// Gradients of an operation's reads and parameters; of the latter, what was not added to `sums` at once. `sums` is
    /// `None` where those of the parameters are not wanted.
    fn differentiate(
        &self,
        operation: &Operation,
        saved: Saved,
        received: Vec<Option<Tensor>>,
        sums: Option<&GradBuffer>,
    ) -> Result<(Gradients, Gradients), NativeError> {
        let (inputs, outputs) = match (&operation.action, saved) {
            (_, Saved::Inputs(values)) => {
                return self.differentiate(operation, self.again(operation, values), received, sums);
            }
            (Action::Segment { .. }, Saved::Graph { inputs, outputs }) => (inputs, outputs),
            (Action::Custom(custom), Saved::Custom(saved)) => {
                let _guard = tch::no_grad_guard();
                let needs = self.needs(operation, sums.is_some());
                let params = sums.map(|buffer| ParamGrads { buffer, ids: &operation.params });
                return Ok((custom.backward(saved, &received, &needs, params.as_ref()), Vec::new()));
            }
            (Action::Exchange(exchange), Saved::Custom(saved)) => {
                let _guard = tch::no_grad_guard();
                let needs = self.needs(operation, false);
                return Ok((exchange.backward(&self.mesh, saved, &received, &needs)?, Vec::new()));
            }
            (Action::Across(across), Saved::Across(saved)) => {
                let _guard = tch::no_grad_guard();
                let found = across::backward(*across, &self.mesh, &saved, &received)?;
                let slot = operation.reads[0];
                let found = found.filter(|_| self.needs_grad[slot.index()]);
                let found = found.map_or(Ok(None), |found| self.settle(slot, found))?;
                return Ok((vec![found], Vec::new()));
            }
            (action, saved) => {
                let _guard = tch::no_grad_guard();
                return Ok((between(action, saved, received), Vec::new()));
            }
        };
        let (mut y, mut dy) = (Vec::new(), Vec::new());
        for (output, gradient) in outputs.iter().zip(&received) {
            // Integers, and what was computed without autograd, pass no gradient on.
            if let Some(gradient) = gradient.as_ref().filter(|_| output.requires_grad()) {
                y.push(output);
                dy.push(gradient);
            }
        }
        let leaf = |id: &ParamId| {
            let leaf = Some(self.params.leaf(*id)).filter(|leaf| leaf.requires_grad())?;
            Some((leaf, Some(sums?.view(*id))))
        };
        let of_inputs = inputs.iter().filter(|input| input.requires_grad()).map(|input| (input, None));
        let x: Vec<_> = of_inputs.chain(operation.params.iter().filter_map(leaf)).collect();
        let mut found = if y.is_empty() { vec![] } else { grad_into(&y, &dy, &x)? }.into_iter();
        let of_reads = inputs.iter().map(|input| if input.requires_grad() { found.next().flatten() } else { None });
        let of_reads = of_reads.collect();
        let of_params = operation.params.iter().map(|id| leaf(id).and_then(|_| found.next().flatten())).collect();
        Ok((of_reads, of_params))
    }

    /// As `differentiate`, with what was left in `memory`.
    fn differentiate_within(
        &self,
        index: usize,
        mut saved: Saved,
        received: Vec<Option<Tensor>>,
        sums: Option<&GradBuffer>,
        memory: &mut Memory,
    ) -> Result<(Gradients, Gradients), NativeError> {
        let (operation, device) = (&self.tape.operations[index], self.params.flat().device());
        if let Some(source) = memory.take(index)? {
            saved.put_back(source);
        }
        let start = memory.clock(device);
        let mut again = 0.0;
        if let Saved::Inputs(values) = saved {
            memory.prepare_again(index)?;
            let slots: Vec<Tensor> = values.iter().map(Tensor::shallow_clone).collect();
            let graph;
            (saved, graph) = SavedTensors::of(|| self.again(operation, values));
            match &mut saved {
                Saved::Custom(list) => {
                    let list = list.iter().map(|tensor| Some(tensor.shallow_clone())).collect();
                    memory.recomputed(index, Source::List(list), &slots)
                }
                saved => {
                    saved.drop_values();
                    memory.recomputed(index, Source::Graph(graph), &slots)
                }
            }
            again = match (start, memory.clock(device)) {
                (Some(start), Some(end)) => (end - start).as_secs_f64(),
                _ => 0.0,
            };
        }
        let found = self.differentiate(operation, saved, received, sums);
        if let (Some(start), Some(end)) = (start, memory.clock(device)) {
            memory.measured[index].backward = (end - start).as_secs_f64() - again;
        }
        memory.release(index);
        found
    }

    /// Computes an operation again from its inputs, now with what its backward reads.
    fn again(&self, operation: &Operation, values: Vec<Tensor>) -> Saved {
        match &operation.action {
            Action::Segment { forward, .. } => {
                let inputs = self.leaves(operation, &values);
                drop(values);
                let outputs = forward(&inputs);
                Saved::Graph { inputs, outputs }
            }
            Action::Custom(custom) => {
                let _guard = tch::no_grad_guard();
                Saved::Custom(custom.forward(&values, Some(&self.needs(operation, true))).1)
            }
            _ => unreachable!("the tape's own operations keep no inputs"),
        }
    }

    /// The values as leaves of a new graph; integers have no gradients.
    fn leaves(&self, operation: &Operation, values: &[Tensor]) -> Vec<Tensor> {
        let needed = operation.reads.iter().map(|slot| self.needs_grad[slot.index()]);
        values.iter().zip(needed).map(|(value, needed)| leaf(value, needed)).collect()
    }

    fn needs(&self, operation: &Operation, wanted: bool) -> Needs {
        let reads = operation.reads.iter().map(|slot| self.needs_grad[slot.index()]).collect();
        Needs { reads, params: wanted && trains(&self.params, &operation.params) }
    }

    fn accumulate(&mut self, slot: Slot, gradient: Tensor) {
        let _guard = tch::no_grad_guard();
        let sum = match self.grads[slot.index()].take() {
            Some(former) => former + gradient,
            None => gradient,
        };
        self.grads[slot.index()] = Some(sum);
    }
}

fn leaf(value: &Tensor, needed: bool) -> Tensor {
    value.detach().set_requires_grad(needed && value.is_floating_point())
}

/// Whether a gradient of some of these parameters is to be computed.
fn trains(params: &ParamStore, ids: &[ParamId]) -> bool {
    ids.iter().any(|id| params.leaf(*id).requires_grad())
}

/// Gradients of what the tape itself does between segments.
fn between(action: &Action, saved: Saved, mut received: Vec<Option<Tensor>>) -> Vec<Option<Tensor>> {
    let Some(gradient) = received.pop().flatten() else {
        return vec![None, None];
    };
    match (action, saved) {
        (Action::AddRows(rows), _) => {
            let of_values = gradient.index_select(0, rows);
            vec![Some(gradient), Some(of_values)]
        }
        (Action::PutRows(rows), _) => {
            let of_values = gradient.index_select(0, rows);
            vec![Some(gradient.index_fill(0, rows, 0.0)), Some(of_values)]
        }
        (Action::TakeRows(rows), Saved::Shape(shape)) => {
            let zeros = Tensor::zeros(shape, (gradient.kind(), gradient.device()));
            vec![Some(zeros.index_copy(0, rows, &gradient))]
        }
        _ => vec![Some(gradient.shallow_clone()), Some(gradient)],
    }
}
