//! Parcels between ranks: sent when there is credit, one after the other, and read by who is free.

use super::actors::Stage;
use super::edges::{CargoKind, Load, Parcel};
use super::event::SimEvent;
use super::rank::Rank;
use super::simulation::Simulation;
use super::step::Step;

impl Simulation<'_> {
    /// Sends now, or when there is credit.
    pub(super) fn send(&mut self, parcel: Parcel) {
        if self.has_credit(&parcel) {
            return self.depart(parcel);
        }
        self.catch_up(parcel.to);
        if self.has_credit(&parcel) {
            return self.depart(parcel);
        }
        self.edges.wait(parcel);
        self.ranks[parcel.from as usize].add_unsent(parcel.step);
        self.ranks[parcel.to as usize].num_awaited += 1;
        self.wake(parcel.to);
    }

    fn has_credit(&self, parcel: &Parcel) -> bool {
        let on_edge = || on_edge(parcel, &self.ranks, &self.stages, self.steps.iter());
        let to_receiver = self.ranks[parcel.to as usize].loads[parcel.kind as usize];
        self.edges.has_credit(parcel, to_receiver, on_edge)
    }

    fn depart(&mut self, parcel: Parcel) {
        let parcel = Parcel { time: self.transfer(parcel.from, parcel.bytes as f64), ..parcel };
        let receiver = &mut self.ranks[parcel.to as usize];
        receiver.loads[parcel.kind as usize].add(parcel.bytes);
        receiver.inbox.post(parcel);
        if receiver.patient {
            self.expect(&parcel);
        }
        self.wake(parcel.to);
    }

    /// Has a rank that does nothing woken when the next parcel is there that matters.
    pub(super) fn wake(&mut self, rank: u32) {
        let state = &self.ranks[rank as usize];
        if state.job.is_none()
            && let Some(time) = self.look_at(rank)
            && time < state.wake
        {
            self.ranks[rank as usize].wake = time;
            self.clock.at(time, SimEvent::Mail(rank));
        }
    }

    /// Returns when something that leaves a rank now is there: parcels leave one after the other.
    pub(super) fn transfer(&mut self, from: u32, bytes: f64) -> f64 {
        let state = &mut self.ranks[from as usize];
        state.egress = state.egress.max(self.clock.now()) + bytes / self.spec.cluster.bandwidth;
        state.egress + self.spec.cluster.latency + self.spec.costs.latency
    }

    /// A rank is woken. One that has begun a job since looks at its mail afterwards.
    pub(super) fn mail(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.wake <= self.clock.now() {
            state.wake = f64::INFINITY;
            if state.job.is_none() {
                self.catch_up(rank);
                self.read_mail(rank, self.clock.now());
                self.choose(rank);
            }
        }
    }

    /// Takes the parcels that are there at a time.
    pub(super) fn read_mail(&mut self, rank: u32, now: f64) {
        while let Some(parcel) = self.ranks[rank as usize].inbox.read(now) {
            match parcel.kind {
                CargoKind::Pixels => self.pixels_arrive(&parcel),
                CargoKind::Tokens => self.tokens_arrive(&parcel),
                CargoKind::Features => self.features_arrive(parcel.step, parcel.index),
                CargoKind::Gradient => self.unit_returns(parcel.step, parcel.index),
            }
            // The foundation holds features until it is done with them; everything else is copied out of the mail.
            if parcel.kind != CargoKind::Features {
                self.give_back(&parcel);
            }
        }
    }

    /// Gives the credit of a parcel back that is in no mail any more.
    pub(super) fn give_back(&mut self, parcel: &Parcel) {
        self.ranks[parcel.to as usize].loads[parcel.kind as usize].remove(parcel.bytes);
        if !self.edges.waits(parcel) {
            return;
        }
        let on_edge = on_edge(parcel, &self.ranks, &self.stages, self.steps.iter());
        for next in self.edges.release(self.clock.now(), parcel, on_edge) {
            self.ranks[next.to as usize].num_awaited -= 1;
            self.depart(next);
            if self.ranks[next.from as usize].take_unsent(next.step) {
                self.choose(next.from);
            }
        }
    }
}

/// Returns the load in flight from one rank to another: parcels on their way, and features that a foundation still holds.
fn on_edge<'a>(
    &Parcel { kind, from, to, .. }: &Parcel,
    ranks: &[Rank],
    stages: &[Stage],
    steps: impl IntoIterator<Item = &'a Step>,
) -> Load {
    let receiver = &ranks[to as usize];
    let mut load = Load::default();
    let on_their_way = receiver.inbox.unread().iter().filter(|parcel| parcel.kind == kind && parcel.from == from);
    on_their_way.for_each(|parcel| load.add(parcel.bytes));
    if kind == CargoKind::Features
        && let (Some(encoder), Some(stage)) = (ranks[from as usize].encoder, receiver.stage)
    {
        let replica = stages[stage as usize].replica;
        let units = steps.into_iter().flat_map(|step| step.units_of_replica(replica));
        let held = units.filter(|unit| unit.held && unit.encoder == encoder);
        held.for_each(|unit| load.add(unit.feature_bytes));
    }
    load
}
