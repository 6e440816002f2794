//! Foundations that wait for a pack are not woken by each of its parcels: of tens of thousands of parcels in a step most
//! change nothing but what is missing. They are read when something happens to the rank, as of the times at which they came.

use super::edges::{CargoKind, Parcel};
use super::simulation::Simulation;

impl Simulation<'_> {
    /// Takes note of a parcel that was sent to a patient rank and is there at its time.
    pub(super) fn expect(&mut self, parcel: &Parcel) {
        let planned = self.steps.get_mut(parcel.step);
        let pack = match parcel.kind {
            CargoKind::Features => planned.units[parcel.index as usize].pack,
            _ => parcel.index,
        };
        let pack = &mut planned.packs[pack as usize];
        pack.to_be_sent -= 1;
        pack.last_arrival = pack.last_arrival.max(parcel.time);
    }

    /// Returns when a rank that does nothing is to look at its parcels.
    pub(super) fn look_at(&self, rank: u32) -> Option<f64> {
        let state = &self.ranks[rank as usize];
        // Where parcels wait for credit, the time matters at which another one's is given back.
        if !state.patient || state.num_awaited > 0 {
            return state.inbox.next_time();
        }
        let next = &self.stages[state.stage? as usize];
        let planned = self.steps.find(state.version)?;
        let pack = next.next_forward(planned.packs_of_replica.of(next.replica))?;
        let is_sent = planned.packs[pack as usize].to_be_sent == 0;
        (is_sent && !planned.is_whole(pack)).then(|| planned.packs[pack as usize].last_arrival)
    }

    /// Does what a patient rank would have done whenever a parcel came before now, if it does nothing.
    pub(super) fn catch_up(&mut self, rank: u32) {
        let now = self.clock.now();
        let state = &self.ranks[rank as usize];
        if !state.patient || state.job.is_some() {
            return;
        }
        while let Some(time) = self.ranks[rank as usize].inbox.next_time().filter(|time| *time < now) {
            self.read_mail(rank, time);
            self.account(rank, self.waits_for(rank), time);
        }
    }
}
