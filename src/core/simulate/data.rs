//! A data actor: reads windows of positions, and sends what plans ask for before it reads on.

use super::Activity;
use super::actors::Sending;
use super::edges::{CargoKind, Parcel};
use super::rank::Job;
use super::simulation::Simulation;
use crate::message::{ActorId, Event, SampleId, SampleMeta};

/// Jobs that a window or a plan is read or sent in: plans come in between.
const PIECES: usize = 8;

impl Simulation<'_> {
    /// Gives a data actor a window of positions to read.
    pub(super) fn told_to_read(&mut self, index: u32, from: u64, until: u64) {
        self.data[index as usize].windows.push_back((from, until));
        self.choose(index);
    }

    /// Gives a data actor a plan whose samples are to be sent.
    pub(super) fn told_to_send(&mut self, index: u32, step: u64) {
        self.data[index as usize].plans.push_back((step, 0));
        self.choose(index);
    }

    /// Begins the next job of a data actor; false: there is none.
    pub(super) fn choose_data(&mut self, index: u32) -> bool {
        let costs = self.spec.costs.data;
        if let Some(&(step, sent)) = self.data[index as usize].plans.front() {
            let sendings = &self.steps.get(step).sendings[index as usize];
            let pieces = if costs.per_byte > 0.0 { PIECES } else { 1 };
            let count = sendings.len().div_ceil(pieces).min(sendings.len() - sent);
            let bytes: u64 = sendings[sent..sent + count].iter().map(|sending| sending.bytes).sum();
            self.start(index, Job::Send { step, count: count as u32 }, bytes as f64 * costs.per_byte);
            return true;
        }
        let num_data = self.data.len() as u64;
        let Some(&(from, until)) = self.data[index as usize].windows.front() else {
            return false;
        };
        let first = from.next_multiple_of(num_data) + u64::from(index);
        let first = if first >= from + num_data { first - num_data } else { first };
        let next = self.data[index as usize].next.unwrap_or(first);
        let share = until.saturating_sub(first).div_ceil(num_data) as usize;
        let mut seconds = 0.0;
        let positions = (next..until).step_by(num_data as usize).take(share.div_ceil(PIECES));
        self.data[index as usize].measured.reserve_exact(if next == first { share } else { 0 });
        for position in positions.clone() {
            let sample = SampleMeta { id: SampleId(position), owner: index, ..self.samples.sample(position) };
            let patches: usize = sample.items.iter().map(|item| item.grid.num_cells()).sum();
            seconds += costs.per_sample + costs.per_patch * patches as f64;
            self.data[index as usize].measured.push(sample);
        }
        let count = positions.count() as u64;
        self.data[index as usize].next = Some(next + count * num_data);
        self.start(index, Job::Read, seconds);
        true
    }

    /// Ends the reading of a sample, and tells of the window that ends with it.
    pub(super) fn has_read(&mut self, index: u32) {
        let actor = &mut self.data[index as usize];
        let until = actor.windows.front().map_or(0, |&(_, until)| until);
        if actor.next.is_some_and(|next| next >= until) {
            actor.next = None;
            actor.windows.pop_front();
            let samples = std::mem::take(&mut actor.measured);
            self.tell(ActorId::data(index), Event::Measured { samples, bad: Vec::new() });
        }
    }

    /// Ends the sending of `count` parcels, which are on their way from now on.
    pub(super) fn has_sent(&mut self, index: u32, step: u64, count: usize) {
        let now = self.clock.now();
        let sent = self.data[index as usize].plans[0].1;
        for at in sent..sent + count {
            let Sending { is_pixels, index: what, to, bytes } = self.steps.get(step).sendings[index as usize][at];
            let (kind, to) = match is_pixels {
                true => (CargoKind::Pixels, self.encoder_rank(to)),
                false => (CargoKind::Tokens, self.stage_rank(to, 0)),
            };
            self.send(Parcel { kind, step, index: what, from: index, to, bytes, time: now });
        }
        let all = self.steps.get(step).sendings[index as usize].len();
        let plan = &mut self.data[index as usize].plans[0];
        plan.1 += count;
        if plan.1 == all {
            self.data[index as usize].plans.pop_front();
        }
    }

    /// Returns the activity of a data actor without a job: what it waits for.
    pub(super) fn data_waits_for(&self, rank: u32) -> Activity {
        if self.ranks[rank as usize].has_any_unsent() { Activity::WaitCredit } else { Activity::WaitCommit }
    }
}
