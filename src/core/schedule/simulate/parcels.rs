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
        let sent = &mut self.ranks[parcel.from as usize].sent;
        sent.push_back((time, parcel));
        if sent.len() == 1 {
            self.clock.at(time, Happening::Arrive(parcel.from));
        }
    }

    /// When something that leaves a rank now is there: parcels leave one after the other.
    pub(super) fn transfer(&mut self, from: u32, bytes: f64) -> f64 {
        let state = &mut self.ranks[from as usize];
        state.egress = state.egress.max(self.clock.now()) + bytes / self.spec.cluster.bandwidth;
        state.egress + self.spec.cluster.latency + self.costs.latency
    }

    pub(super) fn arrive(&mut self, parcel: Parcel) {
        match parcel.kind {
            Kind::Pixels => self.pixels_arrive(&parcel),
            Kind::Tokens => self.tokens_arrive(&parcel),
            Kind::Features => self.features_arrive(parcel.step, parcel.index),
            Kind::Gradient => self.unit_returns(parcel.step, parcel.index),
        }
        // The foundation holds features until it is done with them; everything else is copied out of the mail.
        if parcel.kind != Kind::Features {
            let state = &mut self.ranks[parcel.to as usize];
            if state.job.is_some() {
                state.unread.push((parcel.kind, parcel.from, parcel.bytes));
            } else {
                self.give_back(parcel.kind, parcel.from, parcel.to, parcel.bytes);
            }
        }
        self.choose(parcel.to);
    }

    pub(super) fn read_mail(&mut self, rank: u32) {
        let unread = std::mem::take(&mut self.ranks[rank as usize].unread);
        for (kind, from, bytes) in unread {
            self.give_back(kind, from, rank, bytes);
        }
    }

    pub(super) fn give_back(&mut self, kind: Kind, from: u32, to: u32, bytes: u64) {
        let mut sent = Vec::new();
        self.edges.give_back(self.clock.now(), kind, from, to, bytes, &mut sent);
        for parcel in sent {
            self.depart(parcel);
            if self.ranks[from as usize].take_unsent(parcel.step) {
                self.choose(from);
            }
        }
    }
}
