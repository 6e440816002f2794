//! Parcels between ranks: sent when there is credit, one after the other, and read by who is free.

use super::edges::{Kind, Parcel};
use super::world::{Happening, World};

impl World<'_> {
    /// Sends now, or when there is credit.
    pub(super) fn send(&mut self, parcel: Parcel) {
        if self.edges.send(parcel) {
            self.depart(parcel);
        } else {
            self.ranks[parcel.from as usize].add_unsent(parcel.step);
        }
    }

    pub(super) fn depart(&mut self, parcel: Parcel) {
        let time = self.transfer(parcel.from, parcel.bytes as f64);
        self.ranks[parcel.to as usize].post(time, parcel);
        self.wake(parcel.to);
    }

    /// Has a rank that does nothing woken when the next parcel is there.
    pub(super) fn wake(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let Some(&(time, _)) = state.inbox.front() else { return };
        if state.job.is_none() && time < state.wake {
            state.wake = time;
            self.clock.at(time, Happening::Mail(rank));
        }
    }

    /// When something that leaves a rank now is there: parcels leave one after the other.
    pub(super) fn transfer(&mut self, from: u32, bytes: f64) -> f64 {
        let state = &mut self.ranks[from as usize];
        state.egress = state.egress.max(self.clock.now()) + bytes / self.spec.cluster.bandwidth;
        state.egress + self.spec.cluster.latency + self.costs.latency
    }

    /// A rank is woken. One that has begun a job since looks at its mail afterwards.
    pub(super) fn mail(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.wake <= self.clock.now() {
            state.wake = f64::INFINITY;
            if state.job.is_none() {
                self.read_mail(rank);
                self.choose(rank);
            }
        }
    }

    /// Takes what is there.
    pub(super) fn read_mail(&mut self, rank: u32) {
        let now = self.clock.now();
        while let Some((_, parcel)) = self.ranks[rank as usize].inbox.pop_front_if(|(time, _)| *time <= now) {
            match parcel.kind {
                Kind::Pixels => self.pixels_arrive(&parcel),
                Kind::Tokens => self.tokens_arrive(&parcel),
                Kind::Features => self.features_arrive(parcel.step, parcel.index),
                Kind::Gradient => self.unit_returns(parcel.step, parcel.index),
            }
            // The foundation holds features until it is done with them; everything else is copied out of the mail.
            if parcel.kind != Kind::Features {
                self.give_back(parcel.kind, parcel.from, parcel.to, parcel.bytes);
            }
        }
    }

    pub(super) fn give_back(&mut self, kind: Kind, from: u32, to: u32, bytes: u64) {
        for parcel in self.edges.give_back(self.clock.now(), kind, from, to, bytes) {
            self.depart(parcel);
            if self.ranks[from as usize].take_unsent(parcel.step) {
                self.choose(from);
            }
        }
    }
}
