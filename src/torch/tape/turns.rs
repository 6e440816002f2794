//! Executions in turns: while rows of one are on their way to the experts of other ranks, another computes.
//!
//! The tapes alone decide what is begun when, and those of ranks that meet have the same operations among ranks in
//! the same order: so all of them start the same collectives in the same order. Each execution computes what it does alone.

use tch::Tensor;

use super::across::Crossed;
use super::execution::Execution;
use super::record::Slot;
use crate::native::NativeError;
use crate::params::{GradBuffer, Masks, ParamStore};

/// One of several executions.
pub struct Turn {
    pub run: Execution,
    /// The masks for [`ParamStore::set_dropout`].
    pub dropout: Option<Masks>,
}

impl Execution {
    /// Returns whether rows are on their way, for which the next step waits.
    fn is_waiting(&self) -> bool {
        self.on_the_way.borrow().is_some()
    }

    /// Returns the value of rows for `slot`; `None` where they are on their way.
    pub(super) fn settle(&self, slot: Slot, crossed: Crossed) -> Result<Option<Tensor>, NativeError> {
        match crossed {
            Crossed::Here(tensor) => Ok(Some(tensor)),
            Crossed::Moving(moving) if self.defers => {
                self.on_the_way.replace(Some((slot, moving)));
                Ok(None)
            }
            Crossed::Moving(moving) => moving.wait().map(Some),
        }
    }
}

/// Runs all that is left of the forwards.
///
/// # Errors
/// Fails as [`Execution::forward_step`] does.
pub fn forward_in_turns(params: &ParamStore, turns: &mut [Turn]) -> Result<(), NativeError> {
    in_turns(params, turns, |turns, at| turns[at].run.forward_step())
}

/// Runs all that is left of the backwards; `after` is told after each step of them and of the sums so far.
///
/// # Errors
/// Fails as [`Execution::backward_step`] does, and as `after` does.
pub fn backward_in_turns(
    params: &ParamStore,
    turns: &mut [Turn],
    mut grads: Option<&mut GradBuffer>,
    mut after: impl FnMut(&mut [Turn], Option<&GradBuffer>) -> Result<(), NativeError>,
) -> Result<(), NativeError> {
    in_turns(params, turns, |turns, at| {
        let more = turns[at].run.backward_step(grads.as_deref_mut())?;
        after(turns, grads.as_deref())?;
        Ok(more)
    })
}

/// Runs steps of each until it waits or is at its end, then of the next.
fn in_turns(
    params: &ParamStore,
    turns: &mut [Turn],
    mut step: impl FnMut(&mut [Turn], usize) -> Result<bool, NativeError>,
) -> Result<(), NativeError> {
    let mut open: Vec<usize> = (0..turns.len()).collect();
    if turns.len() > 1 {
        turns.iter_mut().for_each(|turn| turn.run.defers = true);
    }
    while !open.is_empty() {
        let mut left = Vec::new();
        for at in open {
            params.set_dropout(turns[at].dropout.clone());
            let mut more = step(turns, at)?;
            while more && !turns[at].run.is_waiting() {
                more = step(turns, at)?;
            }
            left.extend(more.then_some(at));
        }
        open = left;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::rc::Rc;
    use std::time::Duration;

    use loongforge_core::config::Layout;
    use tch::{Device, Kind, Tensor};

    use super::{Turn, backward_in_turns, forward_in_turns};
    use crate::comm::{Mesh, witness};
    use crate::params::{Init, ParamSpec, ParamStore};
    use crate::tape::{Execution, MemoryPlanner, Policy, Slot, Tape};

    const LAYERS: usize = 2;
    /// Rows of each rank for each expert, by micro-batch.
    const COUNTS: [[[i64; 4]; 2]; 2] = [[[2, 1, 0, 3], [0, 4, 1, 1]], [[1, 1, 1, 1], [5, 0, 0, 0]]];

    fn params() -> Rc<ParamStore> {
        let layer = |layer: usize| {
            ["attend", "experts"].map(|what| ParamSpec::new(format!("{layer}.{what}"), &[3, 3], Init::Normal(0.5)))
        };
        let params = ParamStore::new((0..LAYERS).flat_map(layer).collect(), Kind::Double, Device::Cpu);
        params.init_random(2);
        Rc::new(params)
    }

    /// Returns a micro-batch that is about to go forward; what it computes it notes by its name.
    fn begin(
        params: &Rc<ParamStore>,
        mesh: &Rc<Mesh>,
        micro_batch: usize,
        planner: Option<&mut MemoryPlanner>,
    ) -> (Execution, Slot) {
        let mut tape = Tape::new();
        let (input, counts) = (tape.input(true), tape.input(false));
        let run = |tape: &mut Tape, layer: usize, what: &'static str, x: Slot| {
            let id = params.id(&format!("{layer}.{what}"));
            let (w, name) = (params.leaf(id).shallow_clone(), ["A", "B"][micro_batch]);
            let forward = move |reads: &[Tensor]| {
                witness::note(format!("{name} {what}"));
                vec![reads[0].matmul(&w).tanh()]
            };
            tape.run(what, &[id], Policy::Recompute, &[x], 1, forward)[0]
        };
        let mut x = input;
        for layer in 0..LAYERS {
            let h = run(&mut tape, layer, "attend", x);
            let all = tape.all_counts(counts);
            let [rows, _] = tape.to_experts(h, all);
            let done = run(&mut tape, layer, "experts", rows);
            let back = tape.from_experts(done, all);
            x = tape.add(x, back);
        }
        let own = COUNTS[micro_batch][mesh.ep.rank()];
        let rows = own.iter().sum::<i64>();
        let value = Tensor::arange(rows * 3, (Kind::Double, Device::Cpu)).view([rows, 3]);
        let value = (value * 0.7 + mesh.ep.rank() as f64 + micro_batch as f64).sin();
        let inputs = vec![(input, value), (counts, Tensor::from_slice(&own))];
        let (tape, params) = (Rc::new(tape), params.clone());
        let run = match planner {
            Some(planner) => planner.execution(tape, params, inputs, rows, 2).unwrap_or_else(|error| panic!("{error}")),
            None => Execution::new(tape, params, inputs),
        };
        (run.with_mesh(mesh.clone()), x)
    }

    /// Returns the outputs, gradients of inputs and of parameters, and what happened forward and backward.
    fn step(
        mesh: &Rc<Mesh>,
        groups: &[&[usize]],
        mut planner: Option<&mut MemoryPlanner>,
    ) -> (Vec<Tensor>, [Vec<String>; 2]) {
        let params = params();
        let (mut grads, mut found, mut seen) = (params.new_grad(), Vec::new(), [Vec::new(), Vec::new()]);
        witness::take();
        for group in groups {
            let begin = |at: &usize| begin(&params, mesh, *at, planner.as_deref_mut());
            let (runs, ends): (Vec<_>, Vec<_>) = group.iter().map(begin).unzip();
            let mut turns: Vec<Turn> = runs.into_iter().map(|run| Turn { run, dropout: None }).collect();
            forward_in_turns(&params, &mut turns).unwrap();
            seen[0].extend(witness::take());
            for (turn, end) in turns.iter_mut().zip(ends) {
                let output = turn.run.value(end).shallow_clone();
                turn.run.seed(end, output.cos());
                found.push(output);
            }
            backward_in_turns(&params, &mut turns, Some(&mut grads), |_, _| Ok(())).unwrap();
            seen[1].extend(witness::take());
            found.extend(turns.iter().map(|turn| turn.run.input_grad(turn.run.tape().inputs[0].0).unwrap()));
            if let Some(planner) = &mut planner {
                let rows = |turn: &Turn| turn.run.input_grad(turn.run.tape().inputs[0].0).unwrap().size()[0];
                turns.iter().for_each(|turn| planner.learn(&turn.run, rows(turn)));
            }
        }
        found.sort_by_key(|tensor| tensor.numel());
        found.push(grads.flat().copy());
        let rows = |seen: Vec<String>| -> Vec<String> {
            let of_rows = seen.into_iter().filter(|what| !what.ends_with("all_gather"));
            of_rows.map(|what| what.replace(" all_to_all", "")).collect()
        };
        (found, seen.map(rows))
    }

    fn on_rank(path: &Path, rank: usize) {
        let layout = Layout { ep: 2, ..Layout::replicas(2) };
        let mesh = Rc::new(Mesh::join(path, "pool", layout, rank, Duration::from_secs(60)).unwrap());
        let (apart, _) = step(&mesh, &[&[0], &[1]], None);
        let (found, [forward, backward]) = step(&mesh, &[&[0, 1]], None);
        assert_eq!(found, apart, "the same bits");
        // Measured first and planned then.
        let mut planner = MemoryPlanner::new(1 << 20, None);
        for step_number in 0..3 {
            assert_eq!(step(&mesh, &[&[0, 1]], Some(&mut planner)).0, apart, "within a budget, step {step_number}");
        }

        // Rows that set out are waited for when the other micro-batch has computed, and has rows on the way itself.
        let turn = |what: &str| ["A", "B"].map(|name| format!("wait,{name} {what},start")).join(",");
        let layer = [turn("attend"), turn("experts")].join(",");
        let first = format!("A attend,start,B attend,start,{}", turn("experts"));
        assert_eq!(forward.join(","), format!("{first},{layer},wait,wait"));
        let last = "wait,A attend,wait,B attend";
        let middle = [turn("experts"), turn("attend"), turn("experts")].join(",");
        assert_eq!(backward.join(","), format!("start,start,{middle},{last}"));
    }

    #[test]
    fn one_computes_while_rows_of_the_other_are_on_their_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("store");
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || on_rank(path, rank)));
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    }
}
