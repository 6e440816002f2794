//! The units of a step as an encoder has them.

use crate::engine::assembler::Assembler;
use crate::engine::buffer::take_over;
use crate::tape::{Execution, Slot};
use loongforge_core::message::{ActorId, Grid, SampleId, StepId, StepPlan, Tower, TowerSet, Unit};
use loongforge_core::transport::MAX_PARCELS;
use std::collections::BTreeMap;
use tch::Tensor;

pub(super) struct Step {
    pub(super) id: StepId,
    pub(super) units: Vec<UnitWork>,
    /// Units of the step have moved between encoders: nothing of it keeps credit, so that none waits behind another.
    pub(super) is_regrouped: bool,
    /// True if the step's items may keep credit until their backward.
    pub(super) fits: bool,
}

impl Step {
    /// Returns how many units wait for gradients at once: all that are trained may be out before the first comes back.
    pub(super) fn num_trained(&self) -> usize {
        self.units.iter().filter(|work| work.trains).count()
    }
}

/// The credit of the edges that items come over.
pub(super) struct ItemCredit {
    pub(super) bytes: usize,
    /// Bytes of a row of items, by tower.
    pub(super) row_bytes: BTreeMap<Tower, usize>,
}

impl ItemCredit {
    /// Returns whether all of these units' items may be on their edges at once.
    pub(super) fn fits(&self, units: &[UnitWork]) -> bool {
        let items = units.iter().flat_map(|work| &work.unit.items);
        let bytes = items.map(|item| item.meta.grid.num_cells() * self.row_bytes[&item.meta.tower]);
        units.len() <= MAX_PARCELS && bytes.sum::<usize>() <= self.bytes
    }
}

pub(super) struct UnitWork {
    pub(super) unit: Unit,
    /// The actor that reads its features.
    pub(super) reader: ActorId,
    pub(super) pixels: Assembler,
    /// The values of the items that the unit's backward reads again, as received.
    pub(super) read_again: Option<Tensor>,
    pub(super) phase: Phase,
    /// Gradients are to come; not in an evaluation, nor where the tower is frozen.
    pub(super) trains: bool,
}

impl UnitWork {
    /// Waits for the items of a unit, and sends what is made of them to its replica's leader, which returns gradients of the features of
    /// `trained` towers.
    pub(super) fn new(unit: &Unit, plan: &StepPlan, trained: TowerSet) -> Self {
        let pixels = Assembler::new(unit.items.iter().map(|item| item.owner));
        let trains = !plan.purpose.is_evaluation() && trained.contains(unit.tower());
        let reader = plan.leader(unit.replica);
        Self { pixels, read_again: None, reader, unit: unit.clone(), phase: Phase::Waiting, trains }
    }

    /// Returns the sizes of its items.
    pub(super) fn grids(&self) -> Vec<Grid> {
        self.unit.items.iter().map(|item| item.meta.grid).collect()
    }

    /// Returns the sample of each of its items.
    pub(super) fn samples(&self) -> Vec<SampleId> {
        self.unit.items.iter().map(|item| item.id.sample).collect()
    }

    /// Gives the credit of all that it holds back.
    pub(super) fn take_over(&self) {
        take_over(self.pixels.tensors().chain(&self.read_again));
        if let Phase::Returned { grads, .. } = &self.phase {
            take_over(grads);
        }
    }
}

pub(super) enum Phase {
    Waiting,
    /// The unit's features were sent, and their gradients are to come; `run` is what a backward needs.
    Sent {
        run: (Execution, Vec<Slot>),
    },
    Returned {
        run: (Execution, Vec<Slot>),
        grads: Vec<Tensor>,
    },
    Done,
}
