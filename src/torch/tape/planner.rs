//! Plans for the micro-batches of one pool, from what the first ones took.
//!
//! The first micro-batches of every kind of tape are measured: all of it is computed again in the backward. Later ones,
//! larger or smaller, are taken to need bytes and seconds in proportion to their rows.

use std::collections::BTreeMap;
use std::rc::Rc;

use loongforge_core::schedule::cct::{Link, NoPlan, Operation, solve};
use tch::Tensor;

use super::execution::Execution;
use super::memory::{Measured, TapePlan};
use super::record::{Slot, Tape};
use super::transfers::Transfers;
use crate::native::is_dry_run;
use crate::params::ParamStore;

/// Micro-batches that are measured: the first touches memory for the first time.
const MEASURED: u32 = 2;

/// Sizes of micro-batches, as parts of the measured one, for which there are plans of their own.
const SIZES: i64 = 16;

/// Seconds that a transfer takes beside its bytes: handing over between threads.
const LATENCY: f64 = 50e-6;

/// Bytes a second that a dry run assumes a forward makes of what its backward reads: less than a link moves, so that moving is the better
/// choice, as it is for layers of any size on the links that there are.
const DRY_RATE: f64 = 4e9;

/// The plans of one pool on one device.
pub struct MemoryPlanner {
    budget: u64,
    transfers: Option<Rc<Transfers>>,
    profiles: BTreeMap<String, Profile>,
    peak: u64,
}

#[derive(Default)]
struct Profile {
    rows: i64,
    micro_batches: u32,
    operations: Vec<Measured>,
    /// The plans by rows, and by the number of executions that are alive at once.
    plans: BTreeMap<(i64, u64), Rc<TapePlan>>,
}

impl MemoryPlanner {
    /// Activations of all executions that are alive at once are to take at most `budget` bytes. Without `transfers`,
    /// nothing goes to the host.
    pub fn new(budget: u64, transfers: Option<Rc<Transfers>>) -> MemoryPlanner {
        MemoryPlanner { budget, transfers, profiles: BTreeMap::new(), peak: 0 }
    }

    /// Makes an execution as [`Execution::new`] does, under the plan for a micro-batch of `rows` rows of which `alive` are between their
    /// forward and the end of their backward at once. Inputs have the shapes that the tape's operations read.
    ///
    /// # Errors
    /// The budget is too small for any plan.
    pub fn execution(
        &mut self,
        tape: Rc<Tape>,
        params: Rc<ParamStore>,
        inputs: Vec<(Slot, Tensor)>,
        rows: i64,
        alive: u64,
    ) -> Result<Execution, NoPlan> {
        let (budget, transfers) = (self.budget / alive.max(1), self.transfers.clone());
        let profile = self.profiles.entry(kind_of(&tape)).or_default();
        let run = Execution::new(tape, params, inputs);
        if profile.micro_batches < MEASURED {
            return Ok(run.measured_within(budget, transfers));
        }
        let step = (profile.rows / SIZES).max(1);
        let rows = (rows + step - 1) / step * step;
        let plan = match profile.plans.get(&(rows, alive)) {
            Some(plan) => plan.clone(),
            None => {
                let operations = profile.operations_of(rows);
                let link =
                    transfers.as_ref().map(|transfers| Link { bandwidth: transfers.bandwidth(), latency: LATENCY });
                let plan = solve(&operations, budget, link.as_ref())?;
                let plan = Rc::new(TapePlan { plan, operations });
                profile.plans.insert((rows, alive), plan.clone());
                plan
            }
        };
        Ok(run.planned(plan, transfers))
    }

    /// Learns from an execution of `rows` rows that has run forward and backward.
    pub fn learn(&mut self, run: &Execution, rows: i64) {
        let Some((measured, peak, timed)) = run.memory() else { return };
        self.peak = self.peak.max(peak);
        let profile = self.profiles.entry(kind_of(run.tape())).or_default();
        if timed {
            profile.add(measured, rows);
        }
    }

    /// Returns the most bytes that one execution's activations took.
    pub fn peak(&self) -> u64 {
        self.peak
    }
}

impl Profile {
    fn add(&mut self, measured: &[Measured], rows: i64) {
        self.micro_batches += 1;
        // Nothing is computed in a dry run: its times are of nothing.
        let timed = |measured: &Measured| match is_dry_run() {
            true => {
                let forward = measured.kept as f64 / DRY_RATE;
                Measured { forward, backward: 2.0 * forward, ..*measured }
            }
            false => *measured,
        };
        let measured: Vec<Measured> = measured.iter().map(timed).collect();
        if self.operations.is_empty() {
            self.rows = rows.max(1);
            self.operations = measured;
            return;
        }
        let scale = self.rows as f64 / rows.max(1) as f64;
        for (known, new) in self.operations.iter_mut().zip(&measured) {
            known.kept = known.kept.max(scaled(new.kept, scale));
            known.inputs = known.inputs.max(scaled(new.inputs, scale));
            // The first touches memory for the first time, so the quicker is nearer to what is to come.
            known.forward = known.forward.min(new.forward * scale);
            known.backward = known.backward.min(new.backward * scale);
        }
    }

    fn operations_of(&self, rows: i64) -> Vec<Operation> {
        let scale = rows as f64 / self.rows as f64;
        let of = |measured: &Measured| Operation {
            kept: scaled(measured.kept, scale),
            inputs: scaled(measured.inputs, scale),
            forward: measured.forward * scale,
            backward: measured.backward * scale,
            fixed: measured.fixed,
        };
        self.operations.iter().map(of).collect()
    }
}

fn scaled(bytes: u64, scale: f64) -> u64 {
    (bytes as f64 * scale).ceil() as u64
}

/// Tapes of one kind have the same operations.
fn kind_of(tape: &Tape) -> String {
    tape.names().collect::<Vec<_>>().join("\n")
}
