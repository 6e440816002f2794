//! Executing a tape, one operation at a time, forward and then backward.

mod compute;
mod saved;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use saved::Saved;
use tch::Tensor;

use super::exchange::Moving;
use super::memory::{Measured, Memory, TapePlan};
use super::record::{Operation, Slot, Tape};
use super::transfers::Transfers;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::params::{GradBuffer, ParamId, ParamStore};

/// One for each of a list of values or parameters; `None` where there is none.
type Gradients = Vec<Option<Tensor>>;

/// One run of a tape over one micro-batch.
///
/// Values and graphs are freed as soon as nothing on the tape needs them. Runs on the thread that made it, with
/// autograd enabled there (the default).
///
/// ```
/// use loongforge_torch::params::ParamStore;
/// use loongforge_torch::tape::{Execution, Policy, Tape};
/// use std::rc::Rc;
/// use tch::{Device, Kind, Tensor};
///
/// let mut tape = Tape::new();
/// let x = tape.input(true);
/// let squares = tape.run("square", &[], Policy::Recompute, &[x], 1, |read| vec![&read[0] * &read[0]])[0];
/// let y = tape.add(x, squares);
///
/// let params = Rc::new(ParamStore::new(Vec::new(), Kind::Float, Device::Cpu));
/// let mut run = Execution::new(Rc::new(tape), params, vec![(x, Tensor::from_slice(&[1f32, 2.0, 3.0]))]);
/// run.forward()?;
/// assert_eq!(run.value(y), &Tensor::from_slice(&[2f32, 6.0, 12.0]));
///
/// run.seed(y, Tensor::ones([3], (Kind::Float, Device::Cpu)));
/// run.backward(None)?;
/// assert_eq!(run.input_grad(x).unwrap(), Tensor::from_slice(&[3f32, 5.0, 7.0]));
/// # Ok::<(), loongforge_torch::native::NativeError>(())
/// ```
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
    /// The memory plan, where one says what each operation leaves, instead of its policy.
    memory: Option<Memory>,
    forward_only: bool,
    /// True if rows that set out to other ranks are waited for in the next step, and not in the same.
    pub(super) defers: bool,
    /// The rows on their way to other ranks, and the slot of which they are the value or the gradient.
    pub(super) on_the_way: RefCell<Option<(Slot, Moving)>>,
    /// The first operation that reads a parameter.
    first_reader: OnceCell<BTreeMap<ParamId, usize>>,
}

impl Execution {
    /// Makes an execution of a tape. `inputs` have the shapes that the tape's operations read; they may also be given later, by
    /// [`Execution::set_input`], as long as it is before an operation reads them.
    pub fn new(tape: Rc<Tape>, params: Rc<ParamStore>, inputs: Vec<(Slot, Tensor)>) -> Execution {
        let mut needs_grad = vec![false; tape.num_slots as usize];
        for &(slot, requires_grad) in &tape.inputs {
            needs_grad[slot.index()] = requires_grad;
        }
        for operation in &tape.operations {
            let needed =
                trains(&params, &operation.params) || operation.reads.iter().any(|slot| needs_grad[slot.index()]);
            let flows = |slot: &Slot| needed || tape.flowing.contains(slot);
            operation.writes.iter().for_each(|slot| needs_grad[slot.index()] = flows(slot));
        }
        Execution::with(tape, params, needs_grad, inputs)
    }

    /// Works like [`Execution::new`] for evaluation and frozen pools, without a backward: nothing is kept for one. Inputs have the same
    /// shapes.
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

    /// Executes the tape among the ranks of this mesh; without it the rank is alone.
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

    /// Returns, for an execution under a plan or one that is measured, what every operation took, the most bytes that were held at once,
    /// and whether times were taken.
    pub fn memory(&self) -> Option<(&[Measured], u64, bool)> {
        self.memory.as_ref().map(|memory| (memory.measured.as_slice(), memory.peak(), memory.is_measuring()))
    }

    /// Returns the number of bytes of activations that are held now, under a plan.
    pub fn held_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Memory::bytes)
    }

    /// Returns whether the backward has left every operation that reads one of these parameters.
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

    /// Gives an input its value, of the shape that the operations that read it expect.
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
        if !operation.params.is_empty() {
            let next = tape.operations[self.next_forward + 1..].iter().find(|next| !next.params.is_empty());
            self.params.enter(&operation.params, next.map_or(&[], |next| &next.params), None)?;
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
            self.params.leave(None)?;
        }
        Ok(true)
    }

    /// Runs the operations that are left.
    ///
    /// # Errors
    /// Fails as [`Execution::forward_step`] does.
    pub fn forward(&mut self) -> Result<(), NativeError> {
        while self.forward_step()? {}
        Ok(())
    }

    /// Returns the value of an input, of a slot that is still to be read, or of one that is kept, in the shape that its operation gives
    /// it. Panics otherwise.
    pub fn value(&self, slot: Slot) -> &Tensor {
        self.values[slot.index()].as_ref().unwrap_or_else(|| panic!("{slot:?} has no value now"))
    }

    /// Gives a gradient to an output (or to any slot), of the shape of the slot's value; several add up.
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
        let (tape, params) = (self.tape.clone(), self.params.clone());
        let operation = &tape.operations[index];
        // Whether a gradient flows here or not: the other ranks may have one.
        if !operation.params.is_empty() {
            let next = tape.operations[..index].iter().rfind(|next| !next.params.is_empty());
            let next = next.map_or(&[][..], |next| &next.params);
            params.enter(&operation.params, next, grads.as_deref_mut())?;
        }
        self.backward_of(operation, index, grads.as_deref_mut())?;
        if index == 0 {
            params.leave(grads)?;
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
    ///
    /// # Errors
    /// An operator or a collective failed.
    pub fn backward(&mut self, mut grads: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        while self.backward_step(grads.as_deref_mut())? {}
        Ok(())
    }

    /// Returns the gradient of an input, in the input's shape, after `backward`. `None` where nothing that was seeded depends on it.
    pub fn input_grad(&self, slot: Slot) -> Option<Tensor> {
        self.grads[slot.index()].as_ref().map(Tensor::shallow_clone)
    }

    /// Works like [`Execution::input_grad`], in the same shape, and removes the gradient.
    pub fn take_grad(&mut self, slot: Slot) -> Option<Tensor> {
        self.grads[slot.index()].take()
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

/// Returns whether a gradient of some of these parameters is to be computed.
fn trains(params: &ParamStore, ids: &[ParamId]) -> bool {
    ids.iter().any(|id| params.leaf(*id).requires_grad())
}
