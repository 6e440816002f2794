//! Executions of one pool, under its budget for activations where it has one.

use crate::native::NativeError;
use crate::params::ParamStore;
use crate::tape::{Execution, MemoryPlanner, Slot, Tape, Transfers};
use loongforge_core::config::{Memory, Size};
use loongforge_core::engine::EngineError;
use std::rc::Rc;
use tch::{Device, Tensor};

/// A budget that one micro-batch does not keep to, however much of it is recomputed.
#[derive(Debug, thiserror::Error)]
#[error("`{key}`: {why}, for {rows} rows; raise it, or make micro-batches smaller")]
pub struct OverBudget {
    key: &'static str,
    why: String,
    rows: i64,
}

/// Begins the executions of a pool and learns from them.
#[derive(Default)]
pub struct Activations(Option<Planned>);

struct Planned {
    planner: MemoryPlanner,
    key: &'static str,
}

impl Activations {
    /// Makes the memory of the pool whose budget is under `key`; `None`: all is kept, or as its model says.
    ///
    /// # Errors
    /// The device has no stream for the transfers.
    pub fn new(
        memory: &Memory,
        key: &'static str,
        budget: Option<Size>,
        device: Device,
    ) -> Result<Activations, NativeError> {
        let Some(budget) = budget else { return Ok(Activations(None)) };
        let throttle = memory.throttle.map(|rate| rate.bytes() as f64);
        let transfers = memory.offload.then(|| Transfers::new(device, throttle).map(Rc::new)).transpose()?;
        Ok(Activations(Some(Planned { planner: MemoryPlanner::new(budget.bytes(), transfers), key })))
    }

    /// Makes an execution for `rows` rows, with `alive` executions between their forward and the end of their backward at once.
    ///
    /// # Errors
    /// The budget is too small.
    pub(super) fn begin(
        &mut self,
        tape: Rc<Tape>,
        params: Rc<ParamStore>,
        inputs: Vec<(Slot, Tensor)>,
        rows: i64,
        alive: usize,
    ) -> Result<Execution, EngineError> {
        let Some(planned) = &mut self.0 else { return Ok(Execution::new(tape, params, inputs)) };
        let key = planned.key;
        planned.planner.execution(tape, params, inputs, rows, alive as u64).map_err(|error| {
            let of = if alive > 1 { format!(" of each of {alive} units in flight") } else { String::new() };
            OverBudget { key, why: format!("{error}{of}"), rows }.into()
        })
    }

    /// Learns from an execution of `rows` rows how much memory such need.
    pub(super) fn learn(&mut self, run: &Execution, rows: i64) {
        if let Some(planned) = &mut self.0 {
            planned.planner.learn(run, rows);
        }
    }
}
