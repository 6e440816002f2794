//! Bringing frozen weights that are rounded or lie on the host to where a tape reads them.
//!
//! Weights of the units that a tape is about to read get memory and their values; those of the next one that lies on the
//! host are on their way meanwhile. They are freed when the tape has left them. No rank waits for another one here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tch::Kind;

use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::{FrozenUnit, GradBuffer, ParamId, ParamStore, Unsharder};
use crate::tape::{Transfer, Transfers};

/// The [`Unsharder`] of a store's frozen units.
pub struct FrozenWeights {
    /// The copies of units from the host, where some lie there.
    transfers: Option<Rc<Transfers>>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Units whose weights are here.
    here: BTreeSet<usize>,
    /// The units that are on their way from the host.
    coming: BTreeMap<usize, Transfer>,
    /// Units to which the tape that asked for them has yet to come.
    awaited: BTreeSet<usize>,
}

impl FrozenWeights {
    /// Has the frozen units of a store brought whenever a tape reads them. `transfers` is for those on the host.
    ///
    /// # Panics
    /// Some lie on the host, and there are no transfers.
    pub fn attach(params: &ParamStore, transfers: Option<Rc<Transfers>>) {
        let units = params.frozen_units();
        assert!(transfers.is_some() || units.iter().all(|unit| !unit.held().on_host), "who copies from the host");
        if !units.is_empty() {
            params.set_frozen_unsharder(Rc::new(FrozenWeights { transfers, state: RefCell::default() }));
        }
    }

    /// Begins to copy a unit that lies on the host: rounded values as they are, other weights to where they are read.
    fn start(&self, units: &[FrozenUnit], index: usize, state: &mut State) -> Result<(), NativeError> {
        let unit = &units[index];
        let Some(transfers) = self.transfers.as_ref().filter(|_| unit.held().on_host) else { return Ok(()) };
        if state.here.contains(&index) || state.coming.contains_key(&index) {
            return Ok(());
        }
        let bytes = unit.values().view_dtype(Kind::Uint8);
        let transfer = match unit.held().rounding.is_some() {
            true => allocated_for(Purpose::Buffers, || transfers.to_device(bytes, false))?,
            false => {
                unit.allocate();
                transfers.copy(bytes, unit.whole().view_dtype(Kind::Uint8))?
            }
        };
        state.coming.insert(index, transfer);
        Ok(())
    }

    fn bring(&self, units: &[FrozenUnit], index: usize, state: &mut State) -> Result<(), NativeError> {
        self.start(units, index, state)?;
        if !state.here.insert(index) {
            return Ok(());
        }
        let unit = &units[index];
        let come = state.coming.remove(&index).map(Transfer::wait).transpose()?.map(|(_, to)| to);
        if unit.held().rounding.is_some() {
            let come = come.map(|bytes| bytes.view_dtype(unit.values().kind()));
            unit.allocate();
            unit.fill(come.as_ref().unwrap_or(unit.values()));
        }
        Ok(())
    }

    fn settle(&self, units: &[FrozenUnit], now: &[usize], next: &[usize]) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let is_used = |unit: &usize| now.contains(unit) || next.contains(unit) || state.awaited.contains(unit);
        let (used, left): (BTreeSet<usize>, BTreeSet<usize>) = state.here.iter().partition(|unit| is_used(unit));
        let given_up: Vec<usize> = state.coming.keys().copied().filter(|unit| !is_used(unit)).collect();
        for unit in given_up {
            // A copy must not go on into memory that is freed.
            state.coming.remove(&unit).map(Transfer::wait).transpose()?;
            units[unit].release();
        }
        left.into_iter().for_each(|unit| units[unit].release());
        state.here = used;
        for unit in now {
            state.awaited.remove(unit);
            self.bring(units, *unit, state)?;
        }
        state.awaited.extend(next.iter().filter(|unit| !now.contains(unit)));
        next.iter().try_for_each(|unit| self.start(units, *unit, state))
    }
}

/// Returns the frozen units of these parameters, ascending.
fn units(params: &ParamStore, ids: &[ParamId]) -> Vec<usize> {
    let found: BTreeSet<usize> = ids.iter().filter_map(|id| params.frozen_unit_of(*id)).collect();
    found.into_iter().collect()
}

impl Unsharder for FrozenWeights {
    fn enter(
        &self,
        params: &ParamStore,
        now: &[ParamId],
        next: &[ParamId],
        _: Option<&mut GradBuffer>,
    ) -> Result<(), NativeError> {
        self.settle(params.frozen_units(), &units(params, now), &units(params, next))
    }

    fn leave(&self, params: &ParamStore, _: Option<&mut GradBuffer>) -> Result<(), NativeError> {
        self.state.borrow_mut().awaited.clear();
        self.settle(params.frozen_units(), &[], &[])
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tch::{Device, Kind, Tensor};

    use super::FrozenWeights;
    use crate::native::{MemoryWatch, Purpose};
    use crate::params::{Held, Init, ParamSpec, ParamStore, Rounding};
    use crate::tape::{Execution, Policy, Slot, Tape, Transfers, Turn, backward_in_turns, forward_in_turns};

    const LAYERS: usize = 4;
    const WIDTH: i64 = 64;

    /// Returns the layers of a frozen matrix and a trained vector.
    fn store(kind: Kind, held: impl Fn(usize) -> Held) -> Rc<ParamStore> {
        let specs = |layer: usize| {
            let w = ParamSpec::new(format!("layers.{layer}.w"), &[WIDTH, WIDTH], Init::Normal(0.2)).frozen();
            let b = ParamSpec::new(format!("layers.{layer}.b"), &[WIDTH], Init::Normal(0.2));
            [ParamSpec { is_linear: true, held: held(layer), ..w }, b]
        };
        let params = ParamStore::new((0..LAYERS).flat_map(specs).collect(), kind, Device::Cpu);
        FrozenWeights::attach(&params, Some(Rc::new(Transfers::new(Device::Cpu, None).unwrap())));
        params.init_random(1);
        Rc::new(params)
    }

    fn begin(params: &Rc<ParamStore>, policy: Policy, seed: i64) -> (Turn, Slot) {
        let mut tape = Tape::new();
        let input = tape.input(true);
        let mut x = input;
        for layer in 0..LAYERS {
            let ids = ["w", "b"].map(|name| params.id(&format!("layers.{layer}.{name}")));
            let [w, b] = ids.map(|id| params.leaf(id).shallow_clone());
            let forward = move |reads: &[Tensor]| vec![(reads[0].matmul(&w.tr()) + &b).tanh()];
            x = tape.run(format!("{layer}"), &ids, policy, &[x], 1, forward)[0];
        }
        let kind = params.flat().kind();
        let rows = (Tensor::arange(3 * WIDTH, (Kind::Float, Device::Cpu)) * 0.37 + seed).sin();
        let inputs = vec![(input, rows.view([3, WIDTH]).to_kind(kind))];
        (Turn { run: Execution::new(Rc::new(tape), params.clone(), inputs), dropout: None }, x)
    }

    /// Returns the outputs and gradients of two micro-batches, one after the other or in turns.
    fn run(params: &Rc<ParamStore>, policy: Policy, in_turns: bool) -> Vec<Tensor> {
        let mut grads = params.new_grad();
        let mut found = Vec::new();
        let (mut turns, ends): (Vec<Turn>, Vec<Slot>) = (0..2).map(|seed| begin(params, policy, seed)).unzip();
        let mut all: Vec<&mut [Turn]> = if in_turns { vec![&mut turns[..]] } else { turns.chunks_mut(1).collect() };
        for (turns, ends) in all.iter_mut().zip(ends.chunks(if in_turns { 2 } else { 1 })) {
            forward_in_turns(params, turns).unwrap();
            for (turn, end) in turns.iter_mut().zip(ends) {
                let value = turn.run.value(*end).copy();
                turn.run.seed(*end, value.ones_like());
                found.push(value);
            }
            backward_in_turns(params, turns, Some(&mut grads), |_, _| Ok(())).unwrap();
        }
        found.push(grads.flat().copy());
        found
    }

    #[test]
    fn weights_that_are_held_in_another_way_compute_the_same() {
        type HeldOf = fn(usize) -> Held;
        let ways: [(&str, HeldOf); 8] = [
            ("on the host", |_| Held { on_host: true, ..Held::default() }),
            ("every other one", |layer| Held { on_host: layer % 2 == 1, ..Held::default() }),
            ("float8", |_| Held { rounding: Rounding::Float8, on_host: false }),
            ("both", |layer| Held { rounding: Rounding::Float8, on_host: layer > 0 }),
            ("nf4", |_| Held { rounding: Rounding::Nf4, on_host: false }),
            ("nf4 on the host", |layer| Held { rounding: Rounding::Nf4, on_host: layer > 0 }),
            ("nf4 twice", |layer| Held { rounding: Rounding::Nf4Double, on_host: layer == 1 }),
            ("int8", |layer| Held { rounding: Rounding::Int8, on_host: layer == 2 }),
        ];
        for (kind, policy) in [(Kind::Float, Policy::Keep), (Kind::BFloat16, Policy::Recompute)] {
            for (name, held) in ways {
                let [params, plain] = [store(kind, held), store(kind, |_| Held::default())];
                // The same numbers, rounded before.
                plain.ids().for_each(|id| plain.set(id, &params.value(params.id(&plain.spec(id).name))));
                for in_turns in [false, true] {
                    let expected = run(&plain, policy, in_turns);
                    // Twice: what was brought once comes back.
                    for _ in 0..2 {
                        assert_eq!(run(&params, policy, in_turns), expected, "{name}, {kind:?}, in turns: {in_turns}");
                    }
                }
            }
        }
    }

    #[test]
    fn two_layers_are_on_the_device_at_once_and_none_afterwards() {
        let layer = WIDTH * WIDTH * 2;
        let parameters = Purpose::ALL.iter().position(|purpose| *purpose == Purpose::Parameters).unwrap();
        let buffers = Purpose::ALL.iter().position(|purpose| *purpose == Purpose::Buffers).unwrap();
        let plain = (LAYERS as i64) * layer;
        let scales = LAYERS as i64 * WIDTH * 4;
        for (held, at_rest, in_use) in [
            (Held { on_host: true, ..Held::default() }, 0, 2 * layer),
            (Held { rounding: Rounding::Float8, on_host: false }, plain / 2 + scales, layer),
            (Held { rounding: Rounding::Float8, on_host: true }, scales, layer + layer / 2),
            // A row is a block.
            (Held { rounding: Rounding::Nf4, on_host: false }, plain / 4 + scales, layer),
            (Held { rounding: Rounding::Nf4, on_host: true }, scales, layer + layer / 4),
            (Held { rounding: Rounding::Int8, on_host: true }, scales, layer + layer / 2),
        ] {
            let mut watch = MemoryWatch::start();
            let params = store(Kind::BFloat16, |_| held);
            let vectors = LAYERS as i64 * WIDTH * 2;
            let before = watch.current();
            assert!((before - at_rest - vectors).abs() < 64, "{held:?}: {before}");
            let (mut turn, _) = begin(&params, Policy::Recompute, 0);
            watch.reset_peak();
            let mut most = [0; 2];
            while turn.run.forward_step().unwrap() {
                most = [0, 1].map(|at| most[at].max(watch.at_peak()[[parameters, buffers][at]]));
                watch.reset_peak();
            }
            assert_eq!(most, [at_rest + vectors, in_use], "{held:?}");
            drop(turn);
            params.leave(None).unwrap();
            assert_eq!(watch.current(), before, "{held:?}");
        }
    }
}
