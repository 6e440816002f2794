//! An engine's connections: events to its actor, and parcels over its edges.

use super::{EngineError, PeerLost, Recorder, fault};
use crate::message::{ActorId, EdgeLoad, Event, Role, StepId, Timings, UnitId};
use crate::transport::{Edge, Parcel, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Connections of an engine, owned by the host and lent to the engine at every call.
pub struct Ports {
    me: ActorId,
    events: flume::Sender<Event>,
    edges: BTreeMap<ActorId, Box<dyn Edge>>,
    unsent: BTreeMap<ActorId, VecDeque<Parcel>>,
    /// Encoders that have left, or to which the edge is broken: nothing is sent to them or accepted from them.
    gone: BTreeSet<ActorId>,
    /// Parcels that an engine sends to itself: no edge, no credit.
    own: VecDeque<Parcel>,
    /// The unit that this encoder works on, as reported.
    at: Option<UnitId>,
    /// Signals that such a message has left the process.
    acked: Option<flume::Receiver<()>>,
    /// Reset by the engine at the end of each step.
    pub timings: Timings,
    /// Trace data for observers.
    pub trace: Recorder,
}

impl Ports {
    /// Creates ports: `events` goes to the actor of `me`; `edges` are keyed by the peer that they lead to.
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

    /// Adds the acknowledgment channel of an engine in its own process: `acked` signals, once per reported unit, that the report
    /// has been sent.
    #[must_use]
    pub fn with_acks(self, acked: Option<flume::Receiver<()>>) -> Self {
        Self { acked, ..self }
    }

    /// Returns the actor that these ports belong to.
    pub fn me(&self) -> ActorId {
        self.me
    }

    /// Sends an event to the scheduler. Waits if the queue is full; events to an actor that is gone are dropped.
    pub fn emit(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Tells the scheduler which unit this encoder begins, or that it waits. When this returns, the message has left the process:
    /// whatever the unit then does to the process, the scheduler knows.
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

    /// Returns a sender for a thread that reports its work to the scheduler. The thread must end before the engine's.
    pub fn events(&self) -> flume::Sender<Event> {
        self.events.clone()
    }

    /// Sends recorded trace data if it is due, as [`Ports::emit_trace`] does.
    pub(super) fn emit_due_trace(&mut self) {
        if self.trace.is_due() {
            self.emit_trace();
        }
    }

    /// Sends recorded trace data. It does not wait for a busy scheduler.
    pub(super) fn emit_trace(&mut self) {
        let edges = self.loads();
        let Some(trace) = self.trace.take(edges) else { return };
        if let Err(flume::TrySendError::Full(Event::Trace(trace))) = self.events.try_send(Event::Trace(trace)) {
            self.trace.lose(trace.spans.len() as u64 + trace.num_lost);
        }
    }

    /// Returns the load of each edge.
    pub fn loads(&mut self) -> Vec<EdgeLoad> {
        let unsent = |to: &ActorId| self.unsent.get(to).map_or(0, VecDeque::len) as u32;
        let load = |(to, edge): (&ActorId, &mut Box<dyn Edge>)| {
            let (in_flight, credit) = edge.load();
            EdgeLoad { to: *to, in_flight: in_flight as u64, credit: credit as u64, num_unsent: unsent(to) }
        };
        self.edges.iter_mut().map(load).collect()
    }

    /// Sends a parcel now, or as soon as the edge has credit, in order. A parcel to the engine itself comes back at once.
    ///
    /// # Errors
    /// Fails if there is no such edge, its receiver is gone, or the parcel exceeds the edge's whole credit.
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

    /// Adds an edge to `to`, which has joined.
    pub fn connect(&mut self, to: ActorId, edge: Box<dyn Edge>) {
        self.edges.insert(to, edge);
    }

    /// Returns whether this is an encoder that has left or was lost.
    pub fn is_gone(&self, peer: ActorId) -> bool {
        self.gone.contains(&peer)
    }

    /// Handles a broken edge to or from an encoder: tells the scheduler, which decides what follows.
    pub fn lose(&mut self, peer: ActorId, reason: String) {
        if !self.is_gone(peer) {
            self.leave(peer);
            self.emit(Event::Lost { peer, reason });
        }
    }

    /// Removes an encoder that is no longer a member of its pool.
    pub fn leave(&mut self, peer: ActorId) {
        self.gone.insert(peer);
        self.edges.remove(&peer);
        self.unsent.remove(&peer);
    }

    /// Returns the next parcel that the engine has sent to itself.
    pub fn take_own(&mut self) -> Option<Parcel> {
        self.own.pop_front()
    }

    /// Sends parcels that waited for credit, as far as possible.
    ///
    /// # Errors
    /// Fails like [`Ports::send`].
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let waiting: Vec<ActorId> =
            self.unsent.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&to, _)| to).collect();
        waiting.into_iter().try_for_each(|to| self.flush_to(to))
    }

    /// Returns the number of parcels that wait for credit.
    pub fn num_unsent(&self) -> usize {
        self.unsent.values().map(VecDeque::len).sum()
    }

    /// Returns the number of parcels of steps up to this one that wait for credit. Parcels sent ahead may wait until this step
    /// ends.
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
                        let reason = format!("it no longer receives the {}", refused.parcel.header.kind);
                        if to.role == Role::Encoder {
                            self.lose(to, reason);
                            return Ok(());
                        }
                        return Err(PeerLost { peer: to, reason }.into());
                    }
                    why => return Err(format!("edge {me} → {to}, {}: {why}", refused.parcel.header.kind).into()),
                }
            }
        }
        Ok(())
    }
}
