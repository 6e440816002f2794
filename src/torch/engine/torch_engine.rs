//! Commands, parcels and steps of an actor that computes with libtorch.

use super::encoder::EncoderPart;
use super::foundation::FoundationPart;
use crate::train::hf::{MAX_SHARD_SIZE, Shards};
use crate::train::{Export, Pool, save_state};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::{ActorId, Command, Event, SavedFile, StepId, StepReport, Version};
use loongforge_core::transport::{Parcel, ParcelKind};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

/// What the pools write into a checkpoint, besides their state.
#[derive(Clone, Debug)]
pub struct Exports {
    pub encoder: Export,
    pub foundation: Export,
}

impl Exports {
    /// All weights, in Hugging Face's shards, first the encoder's, for pools that need so many files: the foundation so many
    /// for each of its stages, of which this is `part`.
    pub fn weights(encoder: usize, foundation: &[usize], part: usize) -> Self {
        let total = encoder + foundation.iter().sum::<usize>();
        let shards = |first, count| Export::Weights(Shards { first, count, total, max_size: MAX_SHARD_SIZE });
        let before = encoder + foundation[..part].iter().sum::<usize>();
        Self { encoder: shards(1, encoder), foundation: shards(1 + before, foundation[part]) }
    }
}

/// An encoder, a foundation, or both in one actor.
///
/// Stop: drops everything at once, since a step that was not applied leaves no trace. A peer that is gone is an error.
pub struct TorchEngine {
    encoder: Option<EncoderPart>,
    foundation: Option<FoundationPart>,
    exports: Exports,
    /// Steps that were applied or aborted: the step that is computed now.
    version: Version,
    planned: VecDeque<StepId>,
    /// Parcels of steps whose plan is still on its way here: peers may have had theirs earlier. Their credit bounds them.
    early: Vec<(ActorId, Parcel)>,
    /// The first planned step is reduced and waits for its commit.
    reduced: bool,
}

impl TorchEngine {
    /// `first_step` is 0, or where a checkpoint was taken.
    pub fn new(
        encoder: Option<EncoderPart>,
        foundation: Option<FoundationPart>,
        exports: Exports,
        first_step: StepId,
    ) -> Self {
        let version = Version(first_step.0);
        Self { encoder, foundation, exports, version, planned: VecDeque::new(), early: Vec::new(), reduced: false }
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut Pool> {
        let encoder = self.encoder.iter_mut().map(|part| &mut part.pool);
        encoder.chain(self.foundation.iter_mut().map(|part| &mut part.pool))
    }

    fn is_finished(&self) -> bool {
        self.encoder.as_ref().is_none_or(EncoderPart::is_finished)
            && self.foundation.as_ref().is_none_or(FoundationPart::is_finished)
    }

    fn reduce(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        // The loss before the collectives: reading it waits for the device's packs, and for nobody else's.
        let start = Instant::now();
        let loss = self.foundation.as_ref().map_or(0.0, FoundationPart::loss);
        if self.foundation.is_some() {
            ports.timings.packs += start.elapsed().as_secs_f64();
        }
        let mut grad_square_sum = 0.0;
        // Encoder first on every replica: collectives of two groups in two orders would wait for each other.
        for pool in self.pools() {
            grad_square_sum += pool.reduce()?;
        }
        self.reduced = true;
        let timings = std::mem::take(&mut ports.timings);
        let routing = self.foundation.as_mut().map_or(Ok(None), FoundationPart::reduce_routing)?;
        ports.emit(Event::Reduced(StepReport { step, loss, grad_square_sum, routing, timings }));
        Ok(())
    }

    fn finish_step(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        if self.planned.pop_front() != Some(step) {
            return Err(format!("step {step} was ended out of turn").into());
        }
        if let Some(part) = &mut self.encoder {
            part.finish_step();
        }
        if let Some(part) = &mut self.foundation {
            part.finish_step();
        }
        self.reduced = false;
        self.version = Version(step.0 + 1);
        ports.emit(Event::Applied { step });
        Ok(())
    }

    fn save(&self, dir: &Path) -> Result<Vec<SavedFile>, EngineError> {
        let mut files = Vec::new();
        let encoder = self.encoder.as_ref().map(|part| (&part.pool, &self.exports.encoder, "encoder"));
        let foundation = self.foundation.as_ref().map(|part| (&part.pool, &self.exports.foundation, "foundation"));
        for (pool, export, name) in encoder.into_iter().chain(foundation) {
            files.extend(save_state(pool, dir, export, name)?);
        }
        Ok(files)
    }
}

impl Engine for TorchEngine {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => {
                self.planned.push_back(plan.step);
                if let Some(part) = &mut self.encoder {
                    part.plan(&plan);
                }
                if let Some(part) = &mut self.foundation {
                    part.plan(&plan);
                }
                let early = std::mem::take(&mut self.early);
                early.into_iter().try_for_each(|(from, parcel)| self.arrive(from, parcel, ports))
            }
            Command::Commit(commit) => {
                for pool in self.pools() {
                    pool.commit(commit.clip_scale, commit.learning_rate)?;
                }
                self.foundation.iter().for_each(FoundationPart::balance);
                self.finish_step(commit.step, ports)
            }
            Command::Abort { step } => {
                self.pools().for_each(Pool::abort);
                self.finish_step(step, ports)
            }
            Command::Save { step, dir } => {
                let files = self.save(&dir)?;
                ports.emit(Event::Saved { step, files });
                Ok(())
            }
            Command::Read { .. } | Command::ReadAgain { .. } | Command::Stop => {
                Err(format!("{command:?} is nothing for {}", ports.me()).into())
            }
        }
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _ports: &mut Ports) -> Result<(), EngineError> {
        let kind = parcel.header.kind;
        let next_plan = self.planned.back().map_or(self.version.0, |step| step.0 + 1);
        if kind.step().0 >= next_plan {
            self.early.push((from, parcel));
            return Ok(());
        }
        let for_encoder = matches!(kind, ParcelKind::Pixels(_) | ParcelKind::Gradient(_) | ParcelKind::NoGradient(_));
        match (&mut self.encoder, &mut self.foundation) {
            (Some(part), _) if for_encoder => part.arrive(from, parcel),
            (_, Some(part)) if !for_encoder => part.arrive(from, parcel),
            _ => Err(format!("{from} sent {kind:?} to the wrong actor").into()),
        }
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        let version = self.version;
        let start = Instant::now();
        if let Some(part) = &mut self.encoder
            && part.work(version, ports)? == Progress::Busy
        {
            ports.timings.units += start.elapsed().as_secs_f64();
            return Ok(Progress::Busy);
        }
        // Where ranks meet within a micro-batch, what others wait for is encoded before this thread waits for them.
        let encoded = self.encoder.as_ref().is_none_or(EncoderPart::has_encoded);
        if let Some(part) = &mut self.foundation
            && (encoded || !part.meets_others())
            && part.work(version, ports)? == Progress::Busy
        {
            ports.timings.packs += start.elapsed().as_secs_f64();
            return Ok(Progress::Busy);
        }
        match self.planned.front() {
            // A collective blocks this thread: whatever peers wait for in this step must be on its way first. What a
            // frozen encoder has made for later steps may wait: its credit comes back in those steps.
            Some(&step) if !self.reduced && self.is_finished() && ports.num_unsent_until(step) == 0 => {
                self.reduce(step, ports)?;
                Ok(Progress::Busy)
            }
            _ => Ok(Progress::Idle),
        }
    }
}
