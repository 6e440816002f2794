//! A foundation replica: its packs in plan order, each as soon as it is whole, through pipeline stages in 1F1B order.
//!
//! A stage first computes as many forwards as there are stages after it, then one forward and one backward in turn,
//! then the backwards that are left (PipeDream-Flush; Narayanan et al. 2021): `p` stages idle `(p − 1) / (m + p − 1)` of
//! `m` equal packs' time.

use super::Activity;
use super::actors::Stage;
use super::edges::{CargoKind, Parcel};
use super::event::SimEvent;
use super::rank::Job;
use super::simulation::Simulation;

impl Simulation<'_> {
    /// Takes tokens of a pack.
    pub(super) fn tokens_arrive(&mut self, parcel: &Parcel) {
        self.steps.get_mut(parcel.step).packs[parcel.index as usize].tokens_missing -= 1;
    }

    /// Takes the features of a unit.
    pub(super) fn features_arrive(&mut self, step: u64, unit: u32) {
        let planned = self.steps.get_mut(step);
        let unit = &mut planned.units[unit as usize];
        unit.held = true;
        planned.packs[unit.pack as usize].features_missing -= 1;
    }

    /// Begins the next job of a stage; false: there is none, or not yet.
    pub(super) fn choose_stage(&mut self, rank: u32, stage: u32) -> bool {
        let step = self.ranks[rank as usize].version;
        let Some(planned) = self.steps.find(step) else {
            return false;
        };
        let state = self.stages[stage as usize];
        let packs = planned.packs_of_replica.of(state.replica);
        let costs = self.spec.costs.foundation;
        let pack_of = |count: u64| packs[(count - state.before) as usize];
        let cost_of = |pack: u32| planned.packs[pack as usize].seconds / f64::from(self.num_stages);
        let end = state.before + packs.len() as u64;
        if self.num_stages == 1 {
            if state.forwards == end || !planned.is_whole(pack_of(state.forwards)) {
                return false;
            }
            let pack = pack_of(state.forwards);
            let seconds = cost_of(pack);
            self.start(rank, Job::Pack { step, pack }, seconds);
            return true;
        }
        if state.goes_forward(end, self.num_stages) {
            let pack = pack_of(state.forwards);
            let is_there = if state.stage == 0 { planned.is_whole(pack) } else { state.passed_on > state.forwards };
            let seconds = cost_of(pack) * costs.forward;
            return is_there && self.start(rank, Job::Forward { step, pack }, seconds);
        }
        if state.backwards == end {
            return false;
        }
        let pack = pack_of(state.backwards);
        let is_last = state.stage + 1 == self.num_stages;
        let is_there = if is_last { state.forwards > state.backwards } else { state.given_back > state.backwards };
        let seconds = cost_of(pack) * (1.0 - costs.forward);
        is_there && self.start(rank, Job::Backward { step, pack }, seconds)
    }

    /// Ends the forward and the backward of a pack in a replica without a pipeline.
    pub(super) fn has_computed(&mut self, rank: u32, stage: u32, step: u64, pack: u32) {
        let state = &mut self.stages[stage as usize];
        (state.forwards, state.backwards) = (state.forwards + 1, state.backwards + 1);
        self.let_go(rank, step, pack);
        self.return_units(rank, step, pack);
    }

    /// Ends the forward of a pack in a stage, which hands it on.
    pub(super) fn has_gone_forward(&mut self, rank: u32, stage: u32, step: u64, pack: u32) {
        let state = &mut self.stages[stage as usize];
        state.forwards += 1;
        let (is_first, is_last) = (state.stage == 0, state.stage + 1 == self.num_stages);
        if is_first {
            self.let_go(rank, step, pack);
        }
        if !is_last {
            self.pass(rank, step, pack, SimEvent::Forward(rank + 1));
        }
    }

    /// Ends the backward of a pack in a stage, which hands it back, or its units' gradients to encoders.
    pub(super) fn has_come_back(&mut self, rank: u32, stage: u32, step: u64, pack: u32) {
        let state = &mut self.stages[stage as usize];
        state.backwards += 1;
        match state.stage {
            0 => self.return_units(rank, step, pack),
            _ => self.pass(rank, step, pack, SimEvent::Back(rank - 1)),
        }
    }

    /// Sends hidden states or their gradients to the stage beside, whose `arrival` follows.
    fn pass(&mut self, from: u32, step: u64, pack: u32, arrival: SimEvent) {
        let tokens = f64::from(self.steps.get(step).packs[pack as usize].num_tokens);
        let time = self.transfer(from, tokens * self.spec.cluster.bytes_per_hidden);
        self.clock.at(time, arrival);
    }

    /// Takes hidden states from the stage before.
    pub(super) fn hidden_states_arrive(&mut self, rank: u32) {
        self.stage_of(rank).passed_on += 1;
        self.choose(rank);
    }

    /// Takes gradients of hidden states from the stage after.
    pub(super) fn gradients_come_back(&mut self, rank: u32) {
        self.stage_of(rank).given_back += 1;
        self.choose(rank);
    }

    fn stage_of(&mut self, rank: u32) -> &mut Stage {
        let stage = self.ranks[rank as usize].stage.expect("a stage beside it sent this");
        &mut self.stages[stage as usize]
    }

    /// Gives the credit of a pack's features back. A replica in stages has them in its hidden states after the first
    /// stage's forward: if they were held until its backward, 1F1B would need the credit of several packs.
    fn let_go(&mut self, rank: u32, step: u64, pack: u32) {
        for unit in self.units_of(step, pack) {
            self.steps.get_mut(step).units[unit as usize].held = false;
            let (from, bytes) = self.features_of(step, unit);
            if from != rank {
                let time = self.clock.now();
                self.give_back(&Parcel { kind: CargoKind::Features, step, index: unit, from, to: rank, bytes, time });
            }
        }
    }

    /// Sends gradients of a pack's features to trained encoders.
    fn return_units(&mut self, rank: u32, step: u64, pack: u32) {
        let time = self.clock.now();
        for index in self.units_of(step, pack) {
            let (to, features) = self.features_of(step, index);
            if !self.encoders[self.steps.get(step).units[index as usize].encoder as usize].is_trained {
                continue;
            }
            if to == rank {
                self.unit_returns(step, index);
                continue;
            }
            self.send(Parcel { kind: CargoKind::Gradient, step, index, from: rank, to, bytes: features, time });
        }
    }

    fn units_of(&self, step: u64, pack: u32) -> std::ops::Range<u32> {
        let pack = &self.steps.get(step).packs[pack as usize];
        pack.first_unit..pack.first_unit + pack.num_units
    }

    /// Returns a unit's encoder's rank, and its features' bytes.
    fn features_of(&self, step: u64, unit: u32) -> (u32, u64) {
        let unit = &self.steps.get(step).units[unit as usize];
        (self.encoder_rank(unit.encoder), unit.feature_bytes)
    }

    /// Returns whether a stage has computed all packs of the step that it is in.
    pub(super) fn stage_is_finished(&self, stage: u32, step: u64) -> bool {
        let state = &self.stages[stage as usize];
        let end = self.steps.get(step).packs_of_replica.of(state.replica).len() as u64 + state.before;
        state.backwards == end
    }

    /// Ends a step of a stage.
    pub(super) fn stage_ends_step(&mut self, stage: u32) {
        let state = &mut self.stages[stage as usize];
        state.before = state.backwards;
    }

    /// `None`: not for anything of its own.
    pub(super) fn stage_waits_for(&self, rank: u32, stage: u32) -> Option<Activity> {
        let planned = self.steps.find(self.ranks[rank as usize].version)?;
        let state = &self.stages[stage as usize];
        let packs = planned.packs_of_replica.of(state.replica);
        let end = state.before + packs.len() as u64;
        if state.backwards == end {
            return None;
        }
        if state.stage == 0 && state.goes_forward(end, self.num_stages) {
            let pack = packs[(state.forwards - state.before) as usize] as usize;
            let tokens = planned.packs[pack].tokens_missing > 0;
            return Some(if tokens { Activity::WaitSamples } else { Activity::WaitFeatures });
        }
        Some(Activity::WaitStage)
    }
}
