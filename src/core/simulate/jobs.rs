//! The jobs of ranks: which is next, how long it lasts, and where the time goes.

use super::Activity;
use super::event::SimEvent;
use super::rank::{Job, Rank};
use super::simulation::{Pool, Simulation};
use super::step::Step;
use crate::message::{Event, Role, StepId, StepReport, Timings};

impl Simulation<'_> {
    /// Begins what a rank has to do next, if it is free; otherwise notes what it waits for.
    pub(super) fn choose(&mut self, rank: u32) {
        let state = &self.ranks[rank as usize];
        if state.job.is_some() {
            return;
        }
        self.catch_up(rank);
        let state = &self.ranks[rank as usize];
        let (encoder, stage) = (state.encoder, state.stage);
        if let (Some(encoder), None) = (encoder, stage)
            && !self.encoders[encoder as usize].is_trained
        {
            self.report_sent(rank, encoder);
        }
        let state = &self.ranks[rank as usize];
        if encoder.is_none() && stage.is_none() {
            if !self.choose_data(rank) {
                self.account(rank, self.data_waits_for(rank), self.clock.now());
            }
            return;
        }
        if state.commit {
            let mut seconds = stage.map_or(0.0, |_| self.spec.costs.foundation.per_step / f64::from(self.num_stages));
            if let Some(encoder) = encoder.map(|encoder| &self.encoders[encoder as usize]).filter(|it| it.is_trained) {
                seconds += encoder.per_step;
            }
            self.start(rank, Job::Optimizer, seconds);
        } else if encoder.is_some_and(|encoder| self.choose_encoder(rank, encoder))
            || stage.is_some_and(|stage| self.choose_stage(rank, stage))
        {
        } else if self.is_finished(rank) {
            self.join(rank);
        } else {
            self.account(rank, self.waits_for(rank), self.clock.now());
        }
        self.wake(rank);
    }

    /// Returns the activity of an engine that has nothing to do: what it waits for.
    pub(super) fn waits_for(&self, rank: u32) -> Activity {
        let state = &self.ranks[rank as usize];
        let own = || {
            let of_stage = state.stage.and_then(|stage| self.stage_waits_for(rank, stage));
            of_stage.or_else(|| state.encoder.and_then(|encoder| self.encoder_waits_for(rank, encoder)))
        };
        match state {
            Rank { reduced, reported, version, .. } if *reduced || reported > version => Activity::WaitCommit,
            Rank { joined: true, .. } => Activity::WaitPeers,
            _ => match own() {
                Some(waits) => waits,
                None if state.has_unsent(state.version) => Activity::WaitCredit,
                None => Activity::WaitSamples,
            },
        }
    }

    /// Returns whether a rank has nothing left of its step and has not said so.
    pub(super) fn is_finished(&self, rank: u32) -> bool {
        let state = &self.ranks[rank as usize];
        let is_trained = state.encoder.is_some_and(|encoder| self.encoders[encoder as usize].is_trained);
        let joins = !state.joined && !state.has_unsent(state.version) && (state.stage.is_some() || is_trained);
        let Some(step) = self.steps.find(state.version).filter(|_| joins) else {
            return false;
        };
        state.encoder.is_none_or(|encoder| step.units_open[encoder as usize] == 0)
            && state.stage.is_none_or(|stage| self.stage_is_finished(stage, state.version))
    }

    /// Lets a rank wait for its pool to sum gradients; the last one begins the sum.
    pub(super) fn join(&mut self, rank: u32) {
        self.ranks[rank as usize].joined = true;
        let pool = self.pool_of(rank);
        self.account(rank, Activity::WaitPeers, self.clock.now());
        let Pool { ranks, num_joined, seconds } = &mut self.pools[pool];
        *num_joined += 1;
        if *num_joined == ranks.len() {
            *num_joined = 0;
            let ranks = std::mem::take(ranks);
            self.clock.at(self.clock.now() + *seconds, SimEvent::Reduced(pool as u32));
            for &rank in &ranks {
                self.catch_up(rank);
                self.account(rank, Activity::Reduce, self.clock.now());
                self.ranks[rank as usize].job = Some(Job::Reduce);
            }
            self.pools[pool].ranks = ranks;
        }
    }

    /// Returns the pool that this rank reduces with.
    fn pool_of(&self, rank: u32) -> usize {
        let Rank { stage, actor, .. } = &self.ranks[rank as usize];
        let foundations = &self.spec.coordinator.pools.foundations;
        match stage {
            None => self.spec.encoders().position(|(pool, _)| pool == actor.pool).unwrap_or(0),
            Some(_) => {
                let place = foundations.iter().position(|pool| pool.name == actor.pool).unwrap_or(0);
                self.pools.len() - foundations.len() + place
            }
        }
    }

    /// A frozen encoder reports the steps of which it has sent everything: it has nothing to reduce, and waits for nobody.
    fn report_sent(&mut self, rank: u32, encoder: u32) {
        loop {
            let state = &self.ranks[rank as usize];
            let step = state.reported;
            let is_sent = |planned: &Step| planned.units_to_encode[encoder as usize] == 0 && !state.has_unsent(step);
            if !self.steps.find(step).is_some_and(is_sent) {
                return;
            }
            self.ranks[rank as usize].reported += 1;
            self.report(rank, StepId(step));
        }
    }

    /// Tells the scheduler, once for each actor.
    pub(super) fn report_reduced(&mut self, rank: u32) {
        let Rank { stage, version, .. } = self.ranks[rank as usize];
        if stage.is_none_or(|stage| self.stages[stage as usize].stage == 0) {
            self.report(rank, StepId(version));
        }
    }

    fn report(&mut self, rank: u32, step: StepId) {
        let Rank { actor, times, .. } = &self.ranks[rank as usize];
        let actor = *actor;
        let sum = |counts: fn(Activity) -> bool| -> f64 {
            Activity::ALL.into_iter().zip(times).filter(|&(what, _)| counts(what)).map(|(_, time)| time).sum()
        };
        let timings = Timings {
            busy: sum(Activity::is_busy),
            idle: 0.0,
            units: sum(|what| matches!(what, Activity::Encode | Activity::EncoderBackward)),
            packs: sum(|what| matches!(what, Activity::Pack | Activity::Forward | Activity::Backward)),
            ..Timings::default()
        };
        let loss = if actor.role == Role::Foundation { 1.0 } else { 0.0 };
        let report = StepReport { step, loss, grad_square_sum: loss, timings, ..StepReport::default() };
        self.tell(actor, Event::Reduced(report));
    }

    /// Begins a job of so many seconds on a free rank. Always returns true.
    pub(super) fn start(&mut self, rank: u32, job: Job, seconds: f64) -> bool {
        let seconds = seconds * self.noise.factor();
        let now = self.clock.now();
        self.account(rank, job.activity(), now);
        let state = &mut self.ranks[rank as usize];
        state.job = Some(job);
        match &mut self.cores {
            Some(cores) => {
                let (time, stamp) = cores.start(now, rank, state.threads, seconds);
                self.clock.at(time, SimEvent::Cores(stamp));
            }
            None => self.clock.at(now + seconds, SimEvent::Done(rank)),
        }
        true
    }

    /// Ends what a rank was doing, and lets follow what waited for it.
    pub(super) fn finish(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let job = state.job.take().expect("only what began ends");
        let stage = state.stage.unwrap_or(u32::MAX);
        // The next activity overwrites this one at the same instant.
        self.account(rank, Activity::WaitCommit, self.clock.now());
        match job {
            Job::Read => self.has_read(rank),
            Job::Send { step, count } => self.has_sent(rank, step, count as usize),
            Job::Encode { step, unit } => self.has_encoded(rank, step, unit),
            Job::EncoderBackward { step, unit } => self.has_gone_back(step, unit),
            Job::Pack { step, pack } => self.has_computed(rank, stage, step, pack),
            Job::Forward { step, pack } => self.has_gone_forward(rank, stage, step, pack),
            Job::Backward { step, pack } => self.has_come_back(rank, stage, step, pack),
            Job::Reduce => unreachable!("a reduction ends for a whole pool"),
            Job::Optimizer => self.has_applied(rank),
        }
        self.read_mail(rank, self.clock.now());
        self.choose(rank);
    }

    /// Ends the step of a rank, which may begin with the next one.
    pub(super) fn has_applied(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let step = StepId(state.version);
        state.version += 1;
        (state.joined, state.reduced, state.commit) = (false, false, false);
        let (actor, stage) = (state.actor, state.stage);
        if let Some(stage) = stage {
            self.stage_ends_step(stage);
        }
        let (first, last) = self.ranks_of(actor);
        if (first..last).all(|rank| self.ranks[rank as usize].version > step.0) {
            self.tell(actor, Event::Applied { step });
        }
    }

    /// Books the time of what a rank did until `now` and goes over to what it does next.
    pub(super) fn account(&mut self, rank: u32, next: Activity, now: f64) {
        let state = &mut self.ranks[rank as usize];
        if now > state.since {
            state.times[state.doing as usize] += now - state.since;
            self.recorder.span(rank, state, now);
        }
        (state.doing, state.since) = (next, now);
    }
}
