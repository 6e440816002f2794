//! One operation of a tape, forward and backward, with what it leaves in memory in between.

use super::saved::Saved;
use super::{Execution, Gradients, trains};
use crate::native::{NativeError, SavedTensors, grad_into};
use crate::params::{GradBuffer, ParamId};
use crate::tape::across;
use crate::tape::held::Source;
use crate::tape::memory::Memory;
use crate::tape::record::{Action, Needs, Operation, ParamGrads, Policy};
use tch::Tensor;

impl Execution {
    /// Works like `compute`, with what is left in `memory`.
    pub(super) fn compute_within(
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

    /// Computes an operation of what it `reads`; returns what it writes, and what its backward needs under `policy`.
    /// `backward`: there is one.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub(super) fn compute(
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

    /// Returns the gradients of an operation's reads and parameters; of the latter, what was not added to `sums` at once. `sums` is
    /// `None` where those of the parameters are not wanted.
    pub(super) fn differentiate(
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

    /// Works like `differentiate`, with what was left in `memory`.
    pub(super) fn differentiate_within(
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

    /// Returns the values as leaves of a new graph; integers have no gradients.
    fn leaves(&self, operation: &Operation, values: &[Tensor]) -> Vec<Tensor> {
        let needed = operation.reads.iter().map(|slot| self.needs_grad[slot.index()]);
        values.iter().zip(needed).map(|(value, needed)| leaf(value, needed)).collect()
    }

    /// Returns which of an operation's inputs need a gradient, and whether its parameters do where gradients are `wanted`.
    pub(super) fn needs(&self, operation: &Operation, wanted: bool) -> Needs {
        let reads = operation.reads.iter().map(|slot| self.needs_grad[slot.index()]).collect();
        Needs { reads, params: wanted && trains(&self.params, &operation.params) }
    }
}

fn leaf(value: &Tensor, needed: bool) -> Tensor {
    value.detach().set_requires_grad(needed && value.is_floating_point())
}

/// Returns the gradients of what the tape itself does between segments.
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
            let mut zeros = Tensor::zeros(shape, (gradient.kind(), gradient.device()));
            vec![Some(zeros.index_copy_(0, rows, &gradient))]
        }
        _ => vec![Some(gradient.shallow_clone()), Some(gradient)],
    }
}
