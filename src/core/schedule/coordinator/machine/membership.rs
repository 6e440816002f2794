//! Membership during the run: encoders that are refused, excluded or lost, and the epochs that follow.

use super::{Broken, Coordinator};
use crate::message::{
    ActorId, Command, Epoch, Event, PoolName, Regroup, SampleId, SkippedSample, StepId, StepPlan, UnitId,
};
use crate::schedule::coordinator::step::InFlight;
use crate::schedule::coordinator::trust::Told;
use crate::schedule::coordinator::{Doubt, Input, MAX_CRASHES, Output, PoolChange};
use crate::schedule::plan::check_credits;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Coordinator {
    /// Returns why the messages of an encoder are ignored.
    pub(super) fn refusal(&self, input: &Input) -> Option<String> {
        let Input::Event(actor, event) = input else { return None };
        let is_joining = self.joining.contains(actor);
        let is_bound = self.encoders.is_elastic(*actor) && !self.drain.has_begun();
        if !is_bound || (is_joining && *event != Event::Ready) {
            return None;
        }
        let pool = self.encoders.get(actor.pool)?;
        let told = Told {
            actor: *actor,
            pool,
            in_flight: &self.in_flight,
            is_joining,
            is_trained: pool.is_trained() && !self.evaluates(),
            current: self.current,
            next_plan: self.next_plan,
        };
        told.expect(event).err()
    }

    /// Handles a message that an encoder should not have sent; after too many it is excluded.
    pub(super) fn distrust(&mut self, actor: ActorId, why: &str) -> Result<(), Broken> {
        match self.trust.violated(actor) {
            true => {
                self.crashes.take(actor);
                self.exclude(actor, format!("{why}; it has sent too many invalid messages"))
            }
            false => Ok(()),
        }
    }

    /// Handles an actor without towers that lacks features: other members of its pool may be encoders, as long as a pool is being
    /// scaled to or from none.
    ///
    /// # Errors
    /// Fails if nobody else is left in its pool.
    pub(super) fn lacks_features(&mut self, actor: ActorId, error: String) -> Result<(), Broken> {
        if !self.encoders.is_elastic(actor) || self.encoders.of(actor).num_current() < 2 {
            return Err((actor, error));
        }
        // The items are not what ends it.
        self.crashes.take(actor);
        self.exclude(actor, error)
    }

    /// Ends the process of an actor that is not trusted or given up, and continues as if it had died.
    ///
    /// # Errors
    /// Fails if the run cannot continue without it.
    pub(super) fn exclude(&mut self, actor: ActorId, why: String) -> Result<(), Broken> {
        self.out.push(Output::Evict(actor));
        self.lose(actor, why, None)
    }

    /// Returns whether the run can continue without this actor.
    pub(super) fn may_lose(&self, actor: ActorId) -> bool {
        let begun = !self.joining.contains(&actor) && !self.drain.has_begun();
        self.encoders.is_elastic(actor) && begun
    }

    /// Handles the loss of an encoder; `peer`: the peer that it had lost before.
    pub(super) fn lose(&mut self, actor: ActorId, reason: String, peer: Option<ActorId>) -> Result<(), Broken> {
        self.drain.end(actor);
        match peer {
            // The items are not what ends it.
            Some(_) => drop(self.crashes.take(actor)),
            None => self.died(actor)?,
        }
        let pool = self.encoders.of(actor);
        let was_member = pool.lose(actor.index);
        if was_member {
            pool.lost.push((actor, reason.clone()));
        }
        // Frozen ones have the same after every step.
        let (writer, is_frozen) = (pool.writer(), !pool.is_trained());
        let is_lost = was_member && pool.is_lost();
        if is_lost && (self.saves.lacks_files_of(actor) || self.needs_encoders()) {
            self.drain.lose_with(actor, reason, peer);
            return Ok(());
        }
        self.await_no_more(actor);
        let newest = self.newest();
        let writer = (writer, !self.ends_evaluation());
        let (again, ended) = self.saves.lose(actor, is_frozen, writer, |step| is_frozen || newest == Some(step));
        ended.into_iter().try_for_each(|ended| self.save_ended(Some(ended)))?;
        // After the epoch's beginning, by which the writer knows that it is the first.
        self.advance_epochs()?;
        let again = again.into_iter().map(|(step, to, dir)| (writer.0, Command::Save { step, to, dir }));
        self.out.extend(again.filter_map(|(writer, save)| Some(Output::Send(writer?, save))));
        Ok(())
    }

    /// Closes the current step if the only actor that has not applied it is this one, which has left.
    pub(super) fn await_no_more(&mut self, actor: ActorId) {
        if self.in_flight.get_mut(&self.current).is_some_and(|in_flight| in_flight.lose(actor)) {
            self.close_step();
        }
    }

    /// Ends the run if a pool has been without encoders for too long. Where they are not needed any more, time does not matter.
    pub(super) fn grace_over(&mut self, name: PoolName, epoch: Epoch) {
        let is_needed = self.needs_encoders();
        let pool = self.encoders.get_mut(name).filter(|pool| pool.paused == Some(epoch));
        let Some(pool) = pool.filter(|_| !self.drain.has_begun()) else { return };
        if !is_needed {
            // They may be needed again, for a checkpoint that fails: time counts from then on.
            pool.paused = None;
            return;
        }
        if self.stop_requested {
            // It ends as soon as the checkpoint that is being written is in its folder, which takes no encoder.
            return;
        }
        let (actor, reason) = pool.lost.last().cloned().unwrap_or((ActorId::SCHEDULER, String::new()));
        let of_pool = if name == PoolName::ENCODER { String::new() } else { format!(" of the pool `{name}`") };
        self.drain.lose(actor, format!("{reason}; no encoder{of_pool} is left, and none has joined"));
    }

    /// Handles the request of an actor whose process is asked to stop. An encoder is removed, a frozen pool's last one when another has
    /// joined; where its trained parameters would be lost (`EncoderPool::is_ending`), and for any other actor, the run stops.
    pub(super) fn asked_to_leave(&mut self, actor: ActorId) {
        match self.encoders.is_elastic(actor) {
            true => self.encoders.of(actor).ask(actor.index),
            false => self.stop(),
        }
    }

    /// Handles an actor's report that it has lost its edge to `peer`.
    pub(super) fn lost_by(&mut self, actor: ActorId, peer: ActorId, reason: String) -> Result<(), Broken> {
        if self.drain.has_ended(peer) {
            return Ok(());
        }
        if !self.may_lose(peer) {
            self.drain.fail(actor, format!("lost {peer}: {reason}"), Some(peer));
            return Ok(());
        }
        // Most likely it has died, and its own last words are on their way.
        self.out.push(Output::Doubt(Doubt { by: actor, encoder: peer, reason }));
        Ok(())
    }

    /// Handles an actor's report that an encoder sent something wrong.
    pub(super) fn refused(
        &mut self,
        by: ActorId,
        peer: ActorId,
        reason: &str,
        lacks: Option<UnitId>,
    ) -> Result<(), Broken> {
        if self.drain.has_ended(peer) {
            return Ok(());
        }
        let why = format!("{by} rejected its data: {reason}");
        if !self.may_lose(peer) {
            return Err((peer, why));
        }
        let own = |id: UnitId| self.in_flight.get(&id.step).is_some_and(|step| step.unit_of(peer, id).is_some());
        match lacks.is_some_and(own) {
            true => {
                self.crashes.take(peer);
                self.exclude(peer, why)
            }
            false => self.distrust(peer, &why),
        }
    }

    /// Acts on a doubt, once the doubted encoder's end would be known.
    pub(super) fn doubted(&mut self, Doubt { by, encoder, reason }: Doubt) -> Result<(), Broken> {
        match self.drain.has_ended(encoder) || !self.may_lose(encoder) {
            true => Ok(()),
            false => self.exclude(encoder, format!("{by} lost the connection to it: {reason}")),
        }
    }

    /// Handles the death of an encoder, which is attributed to its current unit.
    fn died(&mut self, actor: ActorId) -> Result<(), Broken> {
        let Some(id) = self.crashes.take(actor) else { return Ok(()) };
        let Some(in_flight) = self.in_flight.get(&id.step).filter(|in_flight| !in_flight.is_decided()) else {
            return Ok(());
        };
        let Some(unit) = in_flight.unit_of(actor, id) else { return Ok(()) };
        let items = self.crashes.died_of(unit);
        self.out.push(Output::CrashedOn(items));
        let plan = in_flight.plan.clone();
        let skipped = self.skip_poison_units(&plan)?;
        self.in_flight.get_mut(&id.step).expect("it is in flight").skip(&skipped);
        Ok(())
    }

    /// Counts the samples of the plan's poison units as bad, and returns the units, which nobody is to compute. Held-out samples are
    /// reported once, and are not among the samples of the stream, which may not be bad too often.
    pub(super) fn skip_poison_units(&mut self, plan: &StepPlan) -> Result<Vec<UnitId>, Broken> {
        let units = self.crashes.poison_units(plan);
        let samples: BTreeSet<SampleId> =
            units.iter().flat_map(|unit| &unit.items).map(|item| item.id.sample).collect();
        let bad = |id| SkippedSample {
            id,
            source: format!("sample {id}"),
            reason: format!("killed {MAX_CRASHES} encoders"),
            too_long: false,
        };
        let is_of_stream = |id: SampleId| id.as_held_out().is_none();
        let is_new = |id: &SampleId| is_of_stream(*id) || self.evaluations.turned_bad(*id);
        let samples: Vec<SkippedSample> = samples.into_iter().filter(is_new).map(bad).collect();
        let mut of_stream = samples.iter().filter(|sample| is_of_stream(sample.id));
        let verdict = of_stream.try_for_each(|sample| self.intake.turned_bad(sample));
        if !samples.is_empty() {
            self.out.push(Output::Bad(samples));
        }
        verdict.map_err(|error| (ActorId::SCHEDULER, error))?;
        Ok(units.into_iter().map(|unit| unit.id).collect())
    }

    /// Begins another epoch in each pool in which one is necessary, or possible without waste.
    pub(super) fn advance_epochs(&mut self) -> Result<(), Broken> {
        if !self.joining.is_empty() {
            return Ok(());
        }
        let names: Vec<PoolName> =
            self.encoders.iter().filter(|pool| pool.is_elastic()).map(|pool| pool.name).collect();
        names.into_iter().try_for_each(|name| self.advance_epoch(name))
    }

    fn advance_epoch(&mut self, name: PoolName) -> Result<(), Broken> {
        if self.ends_evaluation() {
            // It is forgotten in a moment, and needs not be shared out anew.
            return Ok(());
        }
        let in_flight = self.in_flight.get(&self.current);
        let Some(pool) = self.encoders.get_mut(name) else { return Ok(()) };
        if pool.is_to_release() {
            pool.keep(self.saves.awaited_of(name));
        }
        let answered = |actor: ActorId| {
            let reduced = in_flight.is_some_and(|in_flight| in_flight.has_reduced(actor));
            reduced || pool.is_broken(actor.index)
        };
        let all_answered = pool.actors().all(answered);
        if !pool.is_due(all_answered) {
            return Ok(());
        }
        let step = StepId(self.current.0 + u64::from(in_flight.is_some_and(InFlight::is_decided)));
        let new = pool.begin_epoch();
        if pool.is_paused() {
            // Who comes is told then; and who has left till then.
            pool.postpone(new.left);
            let (epoch, is_told) = (pool.epoch(), pool.paused.is_some());
            if !is_told && self.needs_encoders() {
                self.encoders.get_mut(name).into_iter().for_each(|pool| pool.paused = Some(epoch));
                self.out.push(Output::Paused(name, epoch));
            }
            return Ok(());
        }
        pool.paused = None;
        if let Some(planned) = self.spec.plan.encoder_pool(name) {
            planned.replicas = pool.workers().len() as u32;
        }
        let (mut plans, mut moved) = (Vec::new(), BTreeSet::new());
        for (_, in_flight) in self.in_flight.range_mut(step..) {
            moved.extend(in_flight.share_out(&new.left, pool));
            let plan = &in_flight.plan;
            check_credits(&self.spec.plan, &plan.packs, &plan.units)
                .map_err(|error| (ActorId::SCHEDULER, format!("step {}: {error}", plan.step)))?;
            plans.push(plan.clone());
        }
        let regroup = Regroup {
            pool: name,
            epoch: pool.epoch(),
            members: pool.members().to_vec(),
            num_current: pool.num_current() as u32,
            left: new.left,
            moved,
            step,
            plans,
        };
        let lost = std::mem::take(&mut pool.lost);
        let (epoch, members) = (pool.epoch(), pool.actors().collect());
        let writer = pool.writer();
        self.send_to_all(&Command::Regroup(Arc::new(regroup)));
        if let Some(writer) = writer {
            let saves = self.saves.fill(writer).into_iter();
            self.out.extend(saves.map(|(step, to, dir)| Output::Send(writer, Command::Save { step, to, dir })));
        }
        let actors =
            |indices: &[u32]| indices.iter().map(|&index| ActorId::encoder_of(name, index)).collect::<Vec<_>>();
        let retired = actors(&new.retired);
        self.out.extend(retired.iter().map(|&actor| Output::Send(actor, Command::Stop)));
        let left = lost
            .into_iter()
            .chain(retired.into_iter().map(|actor| (actor, "released by the scheduler".to_owned())))
            .collect();
        self.out.push(Output::Pool(PoolChange { pool: name, epoch, members, joined: actors(&new.joined), left }));
        Ok(())
    }
}
