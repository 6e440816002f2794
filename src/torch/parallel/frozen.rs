//! Bringing frozen weights that are held as float8 or on the host to where a tape reads them.
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
    /// Where some lie on the host.
    transfers: Option<Rc<Transfers>>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Units whose weights are here.
    here: BTreeSet<usize>,
    /// Those that are on their way from the host.
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

    /// Begins to copy a unit that lies on the host: float8 as it is, other weights to where they are read.
    fn start(&self, units: &[FrozenUnit], index: usize, state: &mut State) -> Result<(), NativeError> {
        let unit = &units[index];
        let Some(transfers) = self.transfers.as_ref().filter(|_| unit.held().on_host) else { return Ok(()) };
        if state.here.contains(&index) || state.coming.contains_key(&index) {
            return Ok(());
        }
        let bytes = unit.values().view_dtype(Kind::Uint8);
        let transfer = match unit.held().fp8 {
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
        if unit.held().fp8 {
            let come = come.map(|bytes| bytes.view_dtype(Kind::Float8e4m3fn));
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

/// The frozen units of these parameters, ascending.
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
