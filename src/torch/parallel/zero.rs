//! Moving the slices of parameters and gradients that replicas share out (ZeRO; Rajbhandari et al. 2020).
//!
//! Parameters of the units that a tape is about to read are gathered, those of the next one while this one computes;
//! they are freed when the tape has left them. Gradients of a unit are summed over the ranks when the backward has left
//! it, while it computes the next; each rank keeps its slice of the sum. All of it is deterministic, and the same on
//! every rank: the order of the units decides the order of the collectives. Tapes that run in turns have units in common:
//! what one has asked for stays until that one has come to it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tch::Tensor;

use crate::comm::{ProcessGroup, Started};
use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::{FlatParam, GradBuffer, ParamId, ParamStore, Unsharder, ZeroStage};

/// The [`Unsharder`] of a store that is shared out over a group.
pub struct Zero {
    group: Rc<ProcessGroup>,
    /// The group of the ranks with the same experts, where those are spread.
    of_experts: Rc<ProcessGroup>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Units whose parameters are here, or on their way.
    here: BTreeMap<usize, Option<Started>>,
    /// The units that are here or on their way, but to which the tape that asked for them has yet to come.
    awaited: BTreeSet<usize>,
    /// Units whose gradients are being computed.
    open: Vec<usize>,
    /// The units whose gradients are being summed, with this rank's slice of the sum to be.
    summed: Vec<(usize, Tensor, Started)>,
}

impl Zero {
    /// Makes the unsharder of a store that the ranks of `group` share out, in their order; the ranks of `of_experts` share out those
    /// experts that are spread over ranks.
    pub fn new(group: Rc<ProcessGroup>, of_experts: Rc<ProcessGroup>) -> Zero {
        Zero { group, of_experts, state: RefCell::default() }
    }

    /// Returns the group that shares a unit out.
    pub fn group_of(&self, unit: &FlatParam) -> &ProcessGroup {
        if unit.is_of_experts() { &self.of_experts } else { &self.group }
    }

    /// Brings all of a store that is in slices, in memory that is there.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn gather(&self, units: &[&FlatParam]) -> Result<(), NativeError> {
        let started = units.iter().map(|unit| self.group_of(unit).start_all_gather_into(unit.whole(), unit.own()));
        started.collect::<Vec<_>>().into_iter().try_for_each(|started| started?.wait())
    }

    fn bring(&self, params: &ParamStore, now: &[usize], next: &[usize], state: &mut State) -> Result<(), NativeError> {
        for &unit in now {
            self.start(params, unit, state)?;
        }
        for &unit in now {
            state.awaited.remove(&unit);
            if let Some(started) = state.here.get_mut(&unit).and_then(Option::take) {
                started.wait()?;
            }
        }
        for unit in state.here.keys().copied().collect::<Vec<_>>() {
            if !now.contains(&unit) && !next.contains(&unit) && !state.awaited.contains(&unit) {
                state.here.remove(&unit).flatten().map_or(Ok(()), Started::wait)?;
                params.units()[unit].release();
            }
        }
        state.awaited.extend(next.iter().filter(|unit| !now.contains(unit)));
        next.iter().try_for_each(|&unit| self.start(params, unit, state))
    }

    fn start(&self, params: &ParamStore, unit: usize, state: &mut State) -> Result<(), NativeError> {
        if let std::collections::btree_map::Entry::Vacant(place) = state.here.entry(unit) {
            let unit = &params.units()[unit];
            if unit.is_apart() {
                unit.allocate();
                place.insert(Some(self.group_of(unit).start_all_gather_into(unit.whole(), unit.own())?));
            }
        }
        Ok(())
    }

    /// Begins to sum the units that are open and not in `kept`, once those before are done.
    fn sum(
        &self,
        params: &ParamStore,
        kept: &[usize],
        grads: &mut GradBuffer,
        state: &mut State,
    ) -> Result<(), NativeError> {
        let (kept, left): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut state.open).into_iter().partition(|unit| kept.contains(unit));
        state.open = kept;
        if left.is_empty() {
            return Ok(());
        }
        settle(params, grads, state)?;
        for unit in left {
            let whole = grads.whole(unit);
            let group = self.group_of(&params.units()[unit]);
            let empty = || whole.new_empty([params.units()[unit].own_range().1], (whole.kind(), whole.device()));
            let sum = allocated_for(Purpose::Buffers, empty);
            let started = group.start_reduce_scatter_sum_into(&sum, whole)?;
            state.summed.push((unit, sum, started));
        }
        Ok(())
    }
}

/// Waits for sums and keeps their slices.
fn settle(params: &ParamStore, grads: &mut GradBuffer, state: &mut State) -> Result<(), NativeError> {
    for (unit, sum, started) in state.summed.drain(..) {
        started.wait()?;
        grads.close(unit, params.units()[unit].own_range().0, &sum);
    }
    Ok(())
}

/// Returns the units of these parameters, ascending.
fn units(params: &ParamStore, ids: &[ParamId]) -> Vec<usize> {
    let mut units: Vec<usize> = ids.iter().filter_map(|id| params.unit_of(*id)).collect();
    units.sort_unstable();
    units.dedup();
    units
}

impl Unsharder for Zero {
    fn enter(
        &self,
        params: &ParamStore,
        now: &[ParamId],
        next: &[ParamId],
        grads: Option<&mut GradBuffer>,
    ) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        let (shared, mut state) = (params.sharding().shared, self.state.borrow_mut());
        let (now, next) = (units(params, now), units(params, next));
        if shared == ZeroStage::Parameters {
            self.bring(params, &now, &next, &mut state)?;
        }
        let Some(grads) = grads.filter(|_| shared >= ZeroStage::Gradients) else { return Ok(()) };
        self.sum(params, &[&now[..], &next].concat(), grads, &mut state)?;
        for unit in now.into_iter().filter(|unit| params.units()[*unit].is_trained()) {
            if state.summed.iter().any(|(summed, ..)| *summed == unit) {
                settle(params, grads, &mut state)?;
            }
            if !grads.is_open(unit) {
                grads.open(unit);
                state.open.push(unit);
            }
        }
        Ok(())
    }

    fn leave(&self, params: &ParamStore, grads: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        let (shared, mut state) = (params.sharding().shared, self.state.borrow_mut());
        if shared == ZeroStage::Parameters {
            state.awaited.clear();
            self.bring(params, &[], &[], &mut state)?;
        }
        let Some(grads) = grads.filter(|_| shared >= ZeroStage::Gradients) else { return Ok(()) };
        self.sum(params, &[], grads, &mut state)?;
        settle(params, grads, &mut state)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use loongforge_core::config::Layout;
    use tch::{Device, Kind, Tensor};

    use super::Zero;
    use crate::comm::{Mesh, witness};
    use crate::params::{Init, ParamSpec, ParamStore, Sharding, ZeroStage};
    use crate::tape::{Execution, Policy, Slot, Tape, Turn, backward_in_turns, forward_in_turns};

    /// Returns three layers on one of two ranks that share all out.
    fn params(mesh: &Mesh) -> Rc<ParamStore> {
        let spec = |layer: usize| ParamSpec::new(format!("layers.{layer}.w"), &[8, 8], Init::Normal(0.5));
        let sharding = Sharding::new(ZeroStage::Parameters, mesh.data.rank(), 2);
        let params = ParamStore::shared_out((0..3).map(spec).collect(), Kind::Float, Device::Cpu, sharding);
        params.init_random(1);
        params.set_unsharder(Rc::new(Zero::new(mesh.data.clone(), mesh.expert_data.clone())));
        Rc::new(params)
    }

    /// Returns a micro-batch, of which rows go to experts and back behind each layer where these are spread; and its end.
    fn begin(params: &Rc<ParamStore>, mesh: &Rc<Mesh>) -> (Turn, Slot) {
        let mut tape = Tape::new();
        let (input, counts) = (tape.input(false), tape.input(false));
        let mut x = input;
        for layer in 0..3 {
            let id = params.id(&format!("layers.{layer}.w"));
            let w = params.leaf(id).shallow_clone();
            let forward = move |reads: &[Tensor]| {
                witness::note(format!("layer {layer}"));
                vec![reads[0].matmul(&w)]
            };
            x = tape.run(format!("{layer}"), &[id], Policy::Recompute, &[x], 1, forward)[0];
            if mesh.ep.world() > 1 {
                let all = tape.all_counts(counts);
                let [rows, _] = tape.to_experts(x, all);
                x = tape.from_experts(rows, all);
            }
        }
        let inputs =
            vec![(input, Tensor::ones([2, 8], (Kind::Float, Device::Cpu))), (counts, Tensor::from_slice(&[1i64, 1]))];
        let run = Execution::new(Rc::new(tape), params.clone(), inputs).with_mesh(mesh.clone());
        (Turn { run, dropout: None }, x)
    }

    /// Returns the events, forward and backward, of so many micro-batches in turns.
    fn seen(mesh: &Rc<Mesh>, num: usize) -> [Vec<String>; 2] {
        let params = params(mesh);
        let (mut turns, ends): (Vec<Turn>, Vec<Slot>) = (0..num).map(|_| begin(&params, mesh)).unzip();
        witness::take();
        forward_in_turns(&params, &mut turns).unwrap();
        let forward = witness::take();
        for (turn, end) in turns.iter_mut().zip(ends) {
            turn.run.seed(end, Tensor::ones([2, 8], (Kind::Float, Device::Cpu)));
        }
        backward_in_turns(&params, &mut turns, Some(&mut params.new_grad()), |_, _| Ok(())).unwrap();
        [forward, witness::take()]
    }

    fn on_ranks<T: Send>(ep: usize, body: impl Fn(Rc<Mesh>) -> T + Sync) -> [T; 2] {
        let folder = tempfile::tempdir().unwrap();
        let (path, body, layout) = (&folder.path().join("store"), &body, Layout { ep, ..Layout::replicas(2) });
        let join = move |rank| Rc::new(Mesh::join(path, "pool", layout, rank, Duration::from_secs(60)).unwrap());
        std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || body(join(rank)))).map(|rank| rank.join().unwrap())
        })
    }

    #[test]
    fn the_next_layer_and_the_former_sum_are_on_their_way_while_a_layer_computes() {
        for [forward, backward] in on_ranks(1, |mesh| seen(&mesh, 1)) {
            assert_eq!(
                forward.join(", "),
                "start all_gather, wait all_gather, start all_gather, layer 0, \
                 wait all_gather, start all_gather, layer 1, wait all_gather, layer 2"
            );
            assert_eq!(
                backward.join(", "),
                "start all_gather, layer 2, wait all_gather, start all_gather, start reduce_scatter, layer 1, \
                 wait all_gather, wait reduce_scatter, start reduce_scatter, layer 0, \
                 wait reduce_scatter, start reduce_scatter, wait reduce_scatter"
            );
        }
    }

    #[test]
    fn tapes_in_turns_gather_and_sum_units_once_for_all() {
        let counts = on_ranks(2, |mesh| {
            [1, 2].map(|num| {
                let seen = seen(&mesh, num).concat();
                let count = |what: &str| seen.iter().filter(|seen| *seen == what).count();
                // Without those of the counts of rows.
                [count("start all_gather") - 3 * num, count("start reduce_scatter")]
            })
        });
        // Forward three, backward two, since the last one is still there. Whoever comes to the end first gives the first
        // layer up.
        assert_eq!(counts, [[[5, 3], [6, 4]]; 2]);
    }
}
