//! An engine's connections: events up to its actor, parcels out over its edges.

use super::{EngineError, PeerLost, Recorder, fault};
use crate::message::{ActorId, EdgeLoad, Event, Role, StepId, Timings, UnitId};
use crate::transport::{Edge, Parcel, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Owned by the host, lent to the engine at every call.
pub struct Ports {
    me: ActorId,
    events: flume::Sender<Event>,
    edges: BTreeMap<ActorId, Box<dyn Edge>>,
    unsent: BTreeMap<ActorId, VecDeque<Parcel>>,
    /// Encoders that have left, or to which the edge is broken: nothing is sent to them, nothing taken from them.
    gone: BTreeSet<ActorId>,
    /// Parcels from an engine's one part to its other part: no edge, no credit.
    own: VecDeque<Parcel>,
    /// The unit that this encoder is at, as it has told.
    at: Option<UnitId>,
    /// Tells where it is said that such a word has left the process.
    acked: Option<flume::Receiver<()>>,
    /// Reset by the engine at the end of each step.
    pub timings: Timings,
    /// Tells who did what when, for whoever watches.
    pub trace: Recorder,
}

impl Ports {
    /// `events` goes to the actor of `me`; `edges` by the peer that they lead to.
    pub fn new(me: ActorId, events: flume::Sender<Event>, edges: BTreeMap<ActorId, Box<dyn Edge>>) -> Self {
        Self {
            me,
            events,
            edges,
            unsent: BTreeMap::new(),
            gone: BTreeSet::new(),
            own: VecDeque::new(),
            at: None,
            acked: None,
            timings: Timings::default(),
            trace: Recorder::default(),
        }
    }

    /// Adds the channel of an engine in a process of its own: `acked` says once for each unit that it was told of that the word of
    /// it is out.
    #[must_use]
    pub fn with_acks(self, acked: Option<flume::Receiver<()>>) -> Self {
        Self { acked, ..self }
    }

    pub fn me(&self) -> ActorId {
        self.me
    }

    /// Tells the scheduler. Waits where its queue is full; an actor that is gone needs no events.
    pub fn emit(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Tells the scheduler which unit this encoder begins, or that it waits. When this returns the word has left the
    /// process: whatever the unit does to it then, it is known.
    pub fn at(&mut self, unit: Option<UnitId>) {
        if std::mem::replace(&mut self.at, unit) == unit {
            return;
        }
        self.emit(Event::At { unit });
        if let Some(acked) = self.acked.as_ref().filter(|_| unit.is_some()) {
            // Nobody who could tell: the scheduler is gone.
            let _ = acked.recv();
        }
    }

    /// For a thread that tells the scheduler of its work. It must end before the engine's does.
    pub fn events(&self) -> flume::Sender<Event> {
        self.events.clone()
    }

    /// Tells whoever watches what was recorded, if it is time to. A scheduler that is busy is not waited for.
    pub(super) fn emit_trace(&mut self, at_once: bool) {
        if !at_once && !self.trace.is_due() {
            return;
        }
        let edges = self.loads();
        let Some(trace) = self.trace.take(edges) else { return };
        if let Err(flume::TrySendError::Full(Event::Trace(trace))) = self.events.try_send(Event::Trace(trace)) {
            self.trace.lose(trace.spans.len() as u64 + trace.num_lost);
        }
    }

    /// Tells what is on the way over each edge.
    pub fn loads(&mut self) -> Vec<EdgeLoad> {
        let unsent = |to: &ActorId| self.unsent.get(to).map_or(0, VecDeque::len) as u32;
        let load = |(to, edge): (&ActorId, &mut Box<dyn Edge>)| {
            let (in_flight, credit) = edge.load();
            EdgeLoad { to: *to, in_flight: in_flight as u64, credit: credit as u64, num_unsent: unsent(to) }
        };
        self.edges.iter_mut().map(load).collect()
    }

    /// Sends now, or as soon as the edge has credit, in order. What an engine sends to itself comes back at once.
    ///
    /// # Errors
    /// There is no such edge, its receiver is gone, or the parcel exceeds the edge's whole credit.
    pub fn send(&mut self, to: ActorId, parcel: Parcel) -> Result<(), EngineError> {
        if to == self.me {
            self.own.push_back(parcel);
            return Ok(());
        }
        if self.is_gone(to) {
            return Ok(());
        }
        fault::point(self.me, "before_send");
        self.unsent.entry(to).or_default().push_back(parcel);
        self.flush_to(to)?;
        fault::point(self.me, "after_send");
        Ok(())
    }

    /// From now on there is an edge to `to`, who has joined.
    pub fn connect(&mut self, to: ActorId, edge: Box<dyn Edge>) {
        self.edges.insert(to, edge);
    }

    /// Returns whether it is an encoder that has left or was lost.
    pub fn is_gone(&self, peer: ActorId) -> bool {
        self.gone.contains(&peer)
    }

    /// The edge to or from an encoder is broken: tells the scheduler, who decides what follows.
    pub fn lose(&mut self, peer: ActorId, reason: String) {
        if !self.is_gone(peer) {
            self.leave(peer);
            self.emit(Event::Lost { peer, reason });
        }
    }

    /// An encoder is no member of its pool any more.
    pub fn leave(&mut self, peer: ActorId) {
        self.gone.insert(peer);
        self.edges.remove(&peer);
        self.unsent.remove(&peer);
    }

    /// The next parcel that the engine has sent to itself.
    pub fn take_own(&mut self) -> Option<Parcel> {
        self.own.pop_front()
    }

    /// Tries what waits for credit.
    ///
    /// # Errors
    /// As [`Ports::send`].
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let waiting: Vec<ActorId> =
            self.unsent.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&to, _)| to).collect();
        waiting.into_iter().try_for_each(|to| self.flush_to(to))
    }

    /// Parcels that wait for credit.
    pub fn num_unsent(&self) -> usize {
        self.unsent.values().map(VecDeque::len).sum()
    }

    /// Parcels of steps up to this one that wait for credit. Those that were sent ahead may wait until this step ends.
    pub fn num_unsent_until(&self, step: StepId) -> usize {
        self.unsent.values().flatten().filter(|parcel| parcel.header.kind.step() <= step).count()
    }

    fn flush_to(&mut self, to: ActorId) -> Result<(), EngineError> {
        let me = self.me;
        let edge = self.edges.get_mut(&to).ok_or_else(|| format!("{me} has no edge to {to}"))?;
        let queue = self.unsent.entry(to).or_default();
        while let Some(parcel) = queue.pop_front() {
            if let Err(refused) = edge.try_send(parcel) {
                match refused.why {
                    Refusal::NoCredit => {
                        queue.push_front(refused.parcel);
                        return Ok(());
                    }
                    Refusal::Closed => {
                        let reason = format!("it takes no {:?}", refused.parcel.header.kind);
                        if to.role == Role::Encoder {
                            self.lose(to, reason);
                            return Ok(());
                        }
                        return Err(PeerLost { peer: to, reason }.into());
                    }
                    why => return Err(format!("edge {me} → {to}, {:?}: {why}", refused.parcel.header.kind).into()),
                }
            }
        }
        Ok(())
    }
}
