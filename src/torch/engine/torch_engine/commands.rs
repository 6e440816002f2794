//! Takes what the scheduler orders and what peers send, and does the next piece of work.

use super::TorchEngine;
use crate::engine::encoder::EncoderWorker;
use crate::engine::foundation::FoundationWorker;
use crate::train::TrainState;
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::{ActorId, Command, Event, Role};
use loongforge_core::transport::{Parcel, ParcelKind};
use std::time::Instant;

impl Engine for TorchEngine {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => {
                self.planned.push_back(plan.clone());
                if let Some(worker) = &mut self.encoder {
                    worker.plan(&plan);
                }
                if let Some(worker) = &mut self.foundation {
                    worker.plan(&plan);
                }
                let early = std::mem::take(&mut self.early);
                early.into_iter().try_for_each(|(from, parcel)| self.arrive(from, parcel, ports))
            }
            Command::Commit(commit) => {
                self.wait_copied();
                if let Some(worker) = &mut self.encoder {
                    worker.state.commit(commit.clip_scale, commit.learning_rate * self.options.encoder_lr)?;
                }
                if let Some(worker) = &mut self.foundation {
                    worker.rank.state.commit(commit.clip_scale, commit.learning_rate)?;
                }
                self.foundation.iter().for_each(FoundationWorker::balance);
                self.finish_step(commit.step, ports)?;
                self.save_due(ports)
            }
            Command::Abort { step } => {
                if !self.evaluates() {
                    self.states().for_each(TrainState::abort);
                }
                self.finish_step(step, ports)?;
                self.settle_weights()?;
                self.save_due(ports)
            }
            Command::Save { step, to, dir } => {
                self.encoder.iter_mut().for_each(EncoderWorker::flush_cache);
                self.due.push((step, to, dir));
                self.save_due(ports)
            }
            Command::Regroup(regroup) => {
                // One that has just joined takes parameters; whoever has some may have to give up a reduction.
                self.wait_copied();
                self.regroup(&regroup, ports)
            }
            Command::Reduce { step, epoch } => self.reduce_members(step, epoch, ports),
            Command::Read { .. } | Command::ReadAgain { .. } | Command::Connect { .. } | Command::Stop => {
                Err(format!("{} cannot execute {command:?}", ports.me()).into())
            }
        }
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError> {
        let kind = parcel.header.kind;
        let next_plan = self.planned.back().map_or(self.version.0, |plan| plan.step.0 + 1);
        // Pixels of a unit that is about to be given to this encoder may be here before the word of it.
        let to_be_given = |worker: &EncoderWorker| matches!(kind, ParcelKind::Items(unit) if worker.membership.is_some() && !worker.has(unit));
        if kind.step().0 >= next_plan || self.encoder.as_ref().is_some_and(to_be_given) {
            self.early.push((from, parcel));
            return Ok(());
        }
        let for_encoder = matches!(kind, ParcelKind::Items(_) | ParcelKind::Gradient(_));
        match (&mut self.encoder, &mut self.foundation) {
            (Some(worker), _) if for_encoder => worker.arrive(from, parcel),
            (_, Some(worker)) if !for_encoder => worker.arrive(from, parcel, ports),
            _ if from.role == Role::Encoder => {
                ports.emit(Event::Refused {
                    peer: from,
                    reason: format!("{kind:?} was sent to the wrong actor"),
                    lacks: None,
                });
                Ok(())
            }
            _ => Err(format!("{from} sent {kind:?} to the wrong actor").into()),
        }
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        self.settle_weights()?;
        if let Some(step) = self.sent(ports) {
            self.report_sent(step, ports);
            return Ok(Progress::Busy);
        }
        let version = self.version;
        let start = Instant::now();
        if let Some(worker) = &mut self.encoder
            && worker.work(version, ports)? == Progress::Busy
        {
            ports.timings.units += start.elapsed().as_secs_f64();
            return Ok(Progress::Busy);
        }
        // Where ranks meet within a micro-batch, what others wait for is encoded before this thread waits for them.
        // What waits for credit could not be sent then.
        let encoded = self.encoder.as_ref().is_none_or(EncoderWorker::has_encoded);
        let first = self.planned.front().map(|plan| plan.step);
        let sent = self.encoder.is_none() || first.is_none_or(|step| ports.num_unsent_until(step) == 0);
        if let Some(worker) = &mut self.foundation
            && (!worker.meets_others() || encoded && (sent || worker.has_begun()))
            && worker.work(version, ports)? == Progress::Busy
        {
            ports.timings.packs += start.elapsed().as_secs_f64();
            return Ok(Progress::Busy);
        }
        match self.planned.front().map(|plan| plan.step).as_ref() {
            // A collective blocks this thread: whatever peers wait for in this step must be on its way first. What a
            // frozen encoder has made for later steps may wait: its credit comes back in those steps.
            Some(&step) if self.num_reported == 0 && self.is_finished() && ports.num_unsent_until(step) == 0 => {
                self.finish(step, ports)?;
                Ok(Progress::Busy)
            }
            _ => Ok(Progress::Idle),
        }
    }
}
