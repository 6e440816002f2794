//! One rank: what it is, what it does, and what it has on its way.

use super::Activity;
use super::edges::Load;
use super::inbox::Inbox;
use crate::message::ActorId;

/// Seconds of each activity.
pub(super) type Times = [f64; Activity::COUNT];

/// Says what a rank computes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Read,
    Send { step: u64, count: u32 },
    Encode { step: u64, unit: u32 },
    EncoderBackward { step: u64, unit: u32 },
    Pack { step: u64, pack: u32 },
    Forward { step: u64, pack: u32 },
    Backward { step: u64, pack: u32 },
    Reduce,
    Optimizer,
}

/// One device, or one thread of an actor: a data actor, an encoder, a stage of a foundation replica; a colocated
/// encoder shares the rank of its replica's first stage.
///
/// There are thousands of ranks: the fields that one event uses are next to each other in memory.
#[repr(C, align(64))]
pub(super) struct Rank {
    /// The time at which it is woken to look at its parcels.
    pub wake: f64,
    pub job: Option<Job>,
    /// The time at which the present activity began.
    pub since: f64,
    pub doing: Activity,
    pub joined: bool,
    pub reduced: bool,
    pub commit: bool,
    /// Parcels that make no pack whole need not wake it ([`patience`](super::patience)).
    pub patient: bool,
    /// Parcels to it that wait for credit.
    pub num_awaited: u32,
    /// The step that it computes next: those before are applied.
    pub version: u64,
    /// A frozen encoder's first step that it has not reported.
    pub reported: u64,
    /// Sending is free again at this time.
    pub egress: f64,
    pub encoder: Option<u32>,
    pub stage: Option<u32>,
    /// Parcels on their way to it. It looks at them when it is free.
    pub inbox: Inbox,
    /// Parcels that wait for credit, by their step.
    pub unsent: Vec<(u64, u32)>,
    /// The parcels in flight to it, by kind.
    pub loads: [Load; 4],
    pub times: Times,
    pub actor: ActorId,
    pub threads: f64,
}

impl Job {
    /// Returns the job's activity in reports of times.
    pub fn activity(self) -> Activity {
        match self {
            Job::Read => Activity::Read,
            Job::Send { .. } => Activity::Send,
            Job::Encode { .. } => Activity::Encode,
            Job::EncoderBackward { .. } => Activity::EncoderBackward,
            Job::Pack { .. } => Activity::Pack,
            Job::Forward { .. } => Activity::Forward,
            Job::Backward { .. } => Activity::Backward,
            Job::Reduce => Activity::Reduce,
            Job::Optimizer => Activity::Optimizer,
        }
    }
}

impl Rank {
    /// Makes a rank of an actor, with the cores that it may use.
    pub fn new(actor: ActorId, threads: f64) -> Self {
        Self {
            actor,
            encoder: None,
            stage: None,
            threads,
            job: None,
            doing: Activity::WaitSamples,
            since: 0.0,
            times: Times::default(),
            version: 0,
            reported: 0,
            joined: false,
            reduced: false,
            commit: false,
            patient: false,
            num_awaited: 0,
            unsent: Vec::new(),
            loads: Default::default(),
            egress: 0.0,
            inbox: Inbox::default(),
            wake: f64::INFINITY,
        }
    }

    /// Notes a parcel of a step that waits for credit.
    pub fn add_unsent(&mut self, step: u64) {
        match self.unsent.iter_mut().find(|(known, _)| *known == step) {
            Some((_, count)) => *count += 1,
            None => self.unsent.push((step, 1)),
        }
    }

    /// Counts an unsent parcel of a step as sent; returns true where it was the last of its step.
    pub fn take_unsent(&mut self, step: u64) -> bool {
        let at = self.unsent.iter().position(|(known, _)| *known == step).expect("a parcel that waited");
        self.unsent[at].1 -= 1;
        let is_last = self.unsent[at].1 == 0;
        if is_last {
            self.unsent.swap_remove(at);
        }
        is_last
    }

    /// Returns whether peers may still wait for what it computed in its step: what it sends ahead does not count.
    pub fn has_unsent(&self, until: u64) -> bool {
        self.unsent.iter().any(|&(step, _)| step <= until)
    }

    /// Returns whether anything waits to be sent, also what is sent ahead.
    pub fn has_any_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns its times, including that of its present activity.
    pub fn times_until(&self, now: f64) -> Times {
        let mut times = self.times;
        times[self.doing as usize] += now - self.since;
        times
    }
}
