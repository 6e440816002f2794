//! Executing a tape, one operation at a time, forward and then backward.

use std::rc::Rc;

use tch::Tensor;

use super::across;
use super::record::{Action, Needs, Operation, ParamGrads, Policy, Slot, Tape};
use crate::comm::Mesh;
use crate::native::{NativeError, grad_into};
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
        Execution::with(tape, params, needs_grad, inputs)
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
        };
        inputs.into_iter().for_each(|(slot, value)| execution.set_input(slot, value));
        execution
    }

    /// Among the ranks of this mesh; without it the rank is alone.
    #[must_use]
    pub fn with_mesh(self, mesh: Rc<Mesh>) -> Execution {
        Execution { mesh, ..self }
    }

    pub fn set_input(&mut self, slot: Slot, value: Tensor) {
        assert!(self.tape.inputs.iter().any(|(input, _)| *input == slot), "{slot:?} is not an input");
        self.values[slot.index()] = Some(value.detach());
    }

    /// Runs the next operation. False when none is left.
    ///
    /// # Errors
    /// A collective failed: a rank is gone or did not come in time.
    pub fn forward_step(&mut self) -> Result<bool, NativeError> {
        let tape = self.tape.clone();
        let Some(operation) = tape.operations.get(self.next_forward) else {
            return Ok(false);
        };
        let reads: Vec<Tensor> = operation.reads.iter().map(|slot| self.value(*slot).shallow_clone()).collect();
        for slot in &operation.reads {
            self.readers[slot.index()] -= 1;
            if self.readers[slot.index()] == 0 {
                self.values[slot.index()] = None;
            }
        }
        let backward = operation.writes.iter().any(|slot| self.needs_grad[slot.index()]);
        let (outputs, saved) = self.compute(operation, reads, backward)?;
        assert_eq!(outputs.len(), operation.writes.len(), "outputs of {}", operation.name);
        for (slot, output) in operation.writes.iter().zip(outputs) {
            self.values[slot.index()] = Some(output);
        }
        self.saved[self.next_forward] = Some(saved);
        self.next_forward += 1;
        self.next_backward = self.next_forward;
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
    pub fn backward_step(&mut self, grads: Option<&mut GradBuffer>) -> Result<bool, NativeError> {
        let Some(index) = self.next_backward.checked_sub(1) else {
            return Ok(false);
        };
        self.next_backward = index;
        let tape = self.tape.clone();
        let operation = &tape.operations[index];
        let received: Vec<Option<Tensor>> =
            operation.writes.iter().map(|slot| self.grads[slot.index()].take()).collect();
        let saved = self.saved[index].take();
        let counts = !operation.once || self.mesh.tp.rank() == 0;
        let wanted = counts && grads.is_some() && trains(&self.params, &operation.params);
        let flows = wanted || operation.reads.iter().any(|slot| self.needs_grad[slot.index()]);
        let Some(saved) = saved.filter(|_| flows && received.iter().any(Option::is_some)) else {
            return Ok(true);
        };
        let sums = grads.as_deref().filter(|_| wanted);
        let (of_reads, of_params) = self.differentiate(operation, saved, received, sums)?;
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
        Ok(true)
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

    fn compute(
        &self,
        operation: &Operation,
        reads: Vec<Tensor>,
        backward: bool,
    ) -> Result<(Vec<Tensor>, Saved), NativeError> {
        if let (Action::Segment { forward, policy: Policy::Keep }, true) = (&operation.action, backward) {
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
            Action::Custom(custom) => {
                let needs = backward.then(|| self.needs(operation, true));
                let (outputs, saved) = custom.forward(&reads, needs.as_ref());
                (outputs, Saved::Custom(saved))
            }
            Action::Add => (vec![&reads[0] + &reads[1]], Saved::Nothing),
            Action::AddRows(rows) => (vec![reads[0].index_add(0, rows, &reads[1])], Saved::Nothing),
            Action::PutRows(rows) => (vec![reads[0].index_copy(0, rows, &reads[1])], Saved::Nothing),
            Action::TakeRows(rows) => (vec![reads[0].index_select(0, rows)], Saved::Shape(reads[0].size())),
            Action::Across(across) => {
                let (values, saved) = across::forward(*across, &self.mesh, &reads)?;
                (values, Saved::Across(saved))
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
            (Action::Segment { .. }, Saved::Graph { inputs, outputs }) => (inputs, outputs),
            (Action::Segment { forward, .. }, Saved::Inputs(values)) => {
                let inputs = self.leaves(operation, &values);
                drop(values);
                let outputs = forward(&inputs);
                (inputs, outputs)
            }
            (Action::Custom(custom), Saved::Custom(saved)) => {
                let _guard = tch::no_grad_guard();
                let needs = self.needs(operation, sums.is_some());
                let params = sums.map(|buffer| ParamGrads { buffer, ids: &operation.params });
                return Ok((custom.backward(saved, &received, &needs, params.as_ref()), Vec::new()));
            }
            (Action::Across(across), Saved::Across(saved)) => {
                let _guard = tch::no_grad_guard();
                return Ok((across::backward(*across, &self.mesh, &saved, &received)?, Vec::new()));
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
