//! Commands, parcels and steps of an actor that computes with libtorch.

use super::elastic::Membership;
use super::encoder::EncoderPart;
use super::foundation::FoundationPart;
use super::saver::{Saver, Task};
use crate::native::MemoryWatch;
use crate::train::hf::{CarriedTensors, FilesOf, MAX_SHARD_SIZE, Shards, Snapshot, Target};
use crate::train::{Export, StateError, TrainState, save_state};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress, error_chain, fault};
use loongforge_core::message::{
    Activity, ActorId, Command, Epoch, Event, MemoryReport, PoolName, Regroup, Role, SaveTo, SavedFile, StepId,
    StepPlan, StepReport, Timings, Version,
};
use loongforge_core::transport::{Parcel, ParcelKind};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Holds what the pools write into a checkpoint, besides their state.
#[derive(Clone, Debug)]
pub struct Exports {
    /// Holds what the encoder pool of this actor writes.
    pub encoder: Export,
    pub foundation: Export,
    /// The files of weights of all pools, by what they hold.
    totals: Vec<(FilesOf, usize)>,
    /// Holds what is neither's and is taken along, where this actor writes it.
    carried: Vec<(Arc<CarriedTensors>, Shards)>,
}

impl Exports {
    /// All weights, in Hugging Face's shards, first the encoder pools', for pools that need so many files: `own` is the
    /// number of the actor's encoder pool. The foundation needs so many for each of its stages, of which this is `part`.
    pub fn weights(encoders: (&[usize], usize), foundation: &[usize], part: usize) -> Self {
        let (of, max_size) = (FilesOf::Whole, MAX_SHARD_SIZE);
        let [encoder, foundation] =
            numbered(Shards { of, first: 1, count: 0, total: 0, max_size }, encoders, foundation, part);
        Self { totals: vec![(of, encoder.total)], ..Self::new(Export::Weights(encoder), Export::Weights(foundation)) }
    }

    /// Works like [`Exports::weights`] for a diffusion model: `counts` has what each of its networks needs.
    pub(super) fn networks(counts: Vec<(FilesOf, [Vec<usize>; 2])>, own: usize, part: usize) -> Self {
        let (mut encoders, mut foundations, mut totals) = (Vec::new(), Vec::new(), Vec::new());
        for (of, [encoder, foundation]) in counts {
            let empty = Shards { of, first: 1, count: 0, total: 0, max_size: MAX_SHARD_SIZE };
            let [encoder, foundation] = numbered(empty, (&encoder, own), &foundation, part);
            totals.push((of, encoder.total));
            encoders.extend((encoder.count > 0).then_some(encoder));
            foundations.extend((foundation.count > 0).then_some(foundation));
        }
        Self { totals, ..Self::new(Export::Networks(encoders), Export::Networks(foundations)) }
    }

    pub(super) fn new(encoder: Export, foundation: Export) -> Self {
        Self { encoder, foundation, totals: Vec::new(), carried: Vec::new() }
    }

    /// The same with files of these tensors behind those of the pools, which this actor writes where `writes` is true.
    #[must_use]
    pub(super) fn carrying(mut self, of: FilesOf, tensors: CarriedTensors, writes: bool) -> Self {
        let count = tensors.num_files();
        let Some((_, before)) = self.totals.iter_mut().find(|(other, _)| *other == of) else { return self };
        let (first, total) = (*before + 1, *before + count);
        *before = total;
        let shards = self.encoder.shards_mut().iter_mut().chain(self.foundation.shards_mut());
        shards.filter(|shards| shards.of == of).for_each(|shards| shards.total = total);
        if writes {
            let shards = Shards { of, first, count, total, max_size: MAX_SHARD_SIZE };
            self.carried.push((Arc::new(tensors), shards));
        }
        self
    }
}

/// The shards of an encoder pool and of a stage of the foundation, where pools need so many files.
fn numbered(empty: Shards, (encoders, own): (&[usize], usize), foundation: &[usize], part: usize) -> [Shards; 2] {
    let all = encoders.iter().sum::<usize>();
    let total = all + foundation.iter().sum::<usize>();
    let (own_before, before) = (encoders[..own].iter().sum::<usize>(), foundation[..part].iter().sum::<usize>());
    let count = encoders.get(own).copied().unwrap_or(0);
    [(1 + own_before, count), (1 + all + before, foundation[part])].map(|(first, count)| Shards {
        first,
        count,
        total,
        ..empty
    })
}

/// An encoder, a foundation, or both in one actor.
///
/// Stop: drops everything at once, since a step that was not applied leaves no trace. A peer that is gone is an error.
pub struct TorchEngine {
    encoder: Option<EncoderPart>,
    foundation: Option<FoundationPart>,
    exports: Exports,
    /// Checkpoints are written beside the steps.
    in_background: bool,
    savers: BTreeMap<SaveTo, Saver>,
    /// To be saved with the end of these steps.
    due: Vec<(StepId, SaveTo, PathBuf)>,
    /// Steps that were applied or aborted: the step that is computed now.
    version: Version,
    planned: VecDeque<Arc<StepPlan>>,
    /// Parcels of steps whose plan is still on its way here: peers may have had theirs earlier. Their credit bounds them.
    early: Vec<(ActorId, Parcel)>,
    /// So many planned steps, the first ones, are reduced and wait for their commits: one at most, but where encoders are
    /// frozen and go ahead. Where members come and go, it may be finished and wait to be told to reduce.
    num_reported: usize,
    /// An encoder that the scheduler knows to be frozen: it is not told to reduce.
    goes_ahead: bool,
    /// The encoder's learning rate over the run's.
    encoder_lr: f64,
    /// Samples are made with the weights, and not with their averages.
    samples_own_weights: bool,
    /// The memory of everything that this engine's thread allocates.
    memory: Option<MemoryWatch>,
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
        Self {
            encoder,
            foundation,
            exports,
            in_background: true,
            savers: BTreeMap::new(),
            due: Vec::new(),
            version,
            planned: VecDeque::new(),
            early: Vec::new(),
            num_reported: 0,
            goes_ahead: false,
            encoder_lr: 1.0,
            samples_own_weights: false,
            memory: None,
        }
    }

    /// Reports the memory that `memory`, which was started before the engine was built, has counted from now on.
    #[must_use]
    pub fn counting(mut self, mut memory: MemoryWatch) -> Self {
        memory.reset_peak();
        self.memory = Some(memory);
        self
    }

    /// Returns whether it encodes, and waits for gradients.
    pub(super) fn trains_encoder(&self) -> bool {
        self.encoder.as_ref().is_some_and(|part| part.pool.is_trained())
    }

    pub(super) fn foundation(&self) -> Option<&FoundationPart> {
        self.foundation.as_ref()
    }

    /// The most memory that was taken since the engine was built.
    pub(super) fn memory(&self) -> MemoryReport {
        let at_peak = self.memory.as_ref().map_or([0; 5], MemoryWatch::at_peak);
        let [activations, parameters, gradients, optimizer, buffers] = at_peak.map(|bytes| bytes.max(0) as u64);
        MemoryReport { parameters, gradients, optimizer, activations, buffers }
    }

    /// Has an encoder report steps as soon as it has sent what it makes for them.
    #[must_use]
    pub fn going_ahead(mut self, goes_ahead: bool) -> Self {
        self.goes_ahead = goes_ahead;
        self
    }

    /// Trains the encoder with a learning rate that is so many times the run's.
    #[must_use]
    pub fn with_encoder_lr(mut self, encoder_lr: f64) -> Self {
        self.encoder_lr = encoder_lr;
        self
    }

    /// Makes samples with the weights, even where there are averages of them.
    #[must_use]
    pub fn sampling_own_weights(mut self, samples_own_weights: bool) -> Self {
        self.samples_own_weights = samples_own_weights;
        self
    }

    /// Has steps wait until a checkpoint is written.
    #[must_use]
    pub fn saving_in_background(mut self, in_background: bool) -> Self {
        self.in_background = in_background;
        self
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut TrainState> {
        let encoder = self.encoder.iter_mut().map(|part| &mut part.pool);
        encoder.chain(self.foundation.iter_mut().map(|part| &mut part.pool))
    }

    fn is_finished(&self) -> bool {
        self.encoder.as_ref().is_none_or(|part| part.is_finished(0))
            && self.foundation.as_ref().is_none_or(FoundationPart::is_finished)
    }

    fn membership(&mut self) -> Option<&mut Membership> {
        self.encoder.as_mut()?.membership.as_mut()
    }

    /// Returns, for an encoder that goes ahead and with which nobody waits to reduce, the next step of which it has
    /// sent everything. That must not wait for a pause in its work: others could not end the step meanwhile.
    fn sent(&self, ports: &Ports) -> Option<StepId> {
        let part = self.encoder.as_ref().filter(|_| self.goes_ahead)?;
        let step = self.planned.get(self.num_reported)?.step;
        (part.is_finished(self.num_reported) && ports.num_unsent_until(step) == 0).then_some(step)
    }

    fn report_sent(&mut self, step: StepId, ports: &mut Ports) {
        self.num_reported += 1;
        let epoch = self.membership().map_or(Epoch(0), |membership| membership.epoch());
        ports.timings.memory = self.memory();
        report_encoder((step, epoch), 0.0, ports);
    }

    /// Returns whether the first step is an evaluation.
    fn evaluates(&self) -> bool {
        self.planned.front().is_some_and(|plan| plan.purpose.is_evaluation())
    }

    /// Tells what the evaluation has come to: there is nothing to reduce.
    fn report_evaluation(&mut self, step: StepId, ports: &mut Ports) {
        self.num_reported = 1;
        let epoch = self.membership().map_or(Epoch(0), |membership| membership.epoch());
        let evaluation = self.foundation.as_mut().map(FoundationPart::take_evaluation);
        let timings = std::mem::take(&mut ports.timings);
        let report = StepReport { step, epoch, loss: 0.0, grad_square_sum: 0.0, routing: None, timings, evaluation };
        ports.emit(Event::Reduced(report));
    }

    /// Has done its units of the first step: tells so, or reduces at once.
    fn finish(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        if self.evaluates() {
            self.report_evaluation(step, ports);
            return Ok(());
        }
        match self.membership().map(|membership| membership.epoch()) {
            Some(epoch) => {
                self.num_reported = 1;
                ports.emit(Event::Finished { step, epoch });
                Ok(())
            }
            None => self.reduce(step, ports),
        }
    }

    /// All members have done their units.
    fn reduce_members(&mut self, step: StepId, epoch: Epoch, ports: &mut Ports) -> Result<(), EngineError> {
        let plan = self.planned.front().filter(|plan| plan.step == step).cloned();
        let (Some(plan), Some(part)) = (plan, &mut self.encoder) else {
            return Err(format!("step {step} is not one to reduce").into());
        };
        let Some(membership) = part.membership.as_mut().filter(|membership| membership.epoch() == epoch) else {
            return Ok(());
        };
        match membership.reduce(&mut part.pool, &plan) {
            Ok(grad_square_sum) => {
                ports.timings.memory = self.memory();
                report_encoder((step, epoch), grad_square_sum, ports);
            }
            Err(error) => ports.emit(Event::Broken { step, epoch, error: error.to_string() }),
        }
        Ok(())
    }

    /// An encoder pool has other members.
    fn regroup(&mut self, regroup: &Regroup, ports: &mut Ports) -> Result<(), EngineError> {
        if let Some(part) = &mut self.foundation {
            part.regroup(regroup);
        }
        // Of another pool nothing changes for an encoder.
        if let Some(part) = self.encoder.as_mut().filter(|part| part.pool_name() == regroup.pool) {
            if self.planned.is_empty() {
                // One that has just joined: it takes the parameters of this version when the pool first reduces.
                self.version = Version(regroup.step.0);
            }
            part.regroup(regroup);
            self.planned.retain(|plan| plan.step < regroup.step);
            // Those are decided; all others are reported anew.
            self.num_reported = self.planned.len();
            self.planned.extend(regroup.plans.iter().cloned());
        }
        let strays = self.foundation.as_mut().map_or(Vec::new(), FoundationPart::take_strays);
        let early = std::mem::take(&mut self.early);
        let mut waiting = strays.into_iter().chain(early).filter(|(from, _)| !ports.is_gone(*from)).collect::<Vec<_>>();
        waiting.drain(..).try_for_each(|(from, parcel)| self.arrive(from, parcel, ports))
    }

    fn reduce(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        // The loss before the collectives: reading it waits for the device's packs, and for nobody else's.
        let start = Instant::now();
        let loss = self.foundation.as_ref().map_or(0.0, FoundationPart::loss);
        if self.foundation.is_some() {
            ports.timings.packs += start.elapsed().as_secs_f64();
            ports.trace.span(Activity::Pack, Some((step, None)), start);
        }
        let start = Instant::now();
        let mut grad_square_sum = 0.0;
        let asked = self.foundation.as_ref().is_some_and(FoundationPart::was_asked);
        if !asked && fault::poison(ports.me(), "nan_gradient", &[]) {
            self.pools().for_each(TrainState::poison);
        }
        // The foundation's on every replica before the encoder's: one that has packs has begun already.
        self.pools().try_for_each(TrainState::begin_sums)?;
        // Encoder first on every replica: collectives of two groups in two orders would wait for each other.
        for pool in self.pools() {
            grad_square_sum += pool.reduce()?;
        }
        ports.trace.span(Activity::Reduce, Some((step, None)), start);
        self.num_reported = 1;
        let timings = Timings { memory: self.memory(), ..std::mem::take(&mut ports.timings) };
        let routing = self.foundation.as_mut().map_or(Ok(None), FoundationPart::reduce_routing)?;
        let report = StepReport { step, epoch: Epoch(0), loss, grad_square_sum, routing, timings, evaluation: None };
        ports.emit(Event::Reduced(report));
        Ok(())
    }

    fn finish_step(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        let evaluates = self.evaluates();
        if self.planned.pop_front().map(|plan| plan.step) != Some(step) {
            return Err(format!("step {step} was ended out of turn").into());
        }
        if let Some(part) = &mut self.encoder {
            part.finish_step();
        }
        let claims = self.foundation.as_mut().map_or(Vec::new(), FoundationPart::finish_step);
        for (peer, kind) in claims.into_iter().filter(|(peer, _)| !ports.is_gone(*peer)) {
            ports.emit(Event::Refused { peer, reason: format!("{kind:?} is another's to send"), lacks: None });
        }
        self.num_reported = self.num_reported.saturating_sub(1);
        if !evaluates {
            self.version = Version(step.0 + 1);
        }
        ports.emit(Event::Applied { step });
        Ok(())
    }

    /// Puts averages in place of the weights where an evaluation is next, and the weights back where none is.
    fn settle_weights(&mut self) -> Result<(), EngineError> {
        let own = self.samples_own_weights;
        let wants = |plan: &Arc<StepPlan>| plan.purpose.is_evaluation() && !(own && plan.purpose.is_sample());
        let averages = self.planned.front().is_some_and(wants);
        if self.pools().all(|pool| pool.uses_ema() == (averages && pool.has_ema())) {
            return Ok(());
        }
        self.wait_copied();
        self.pools().try_for_each(|pool| if averages { pool.use_ema() } else { pool.use_own() })?;
        Ok(())
    }

    /// Saves what is to be saved after the last step that is applied; not while averages are in place of the weights.
    fn save_due(&mut self, ports: &mut Ports) -> Result<(), EngineError> {
        if self.pools().any(|pool| pool.uses_ema()) {
            return Ok(());
        }
        let version = self.version;
        let due = self.due.extract_if(.., |(step, ..)| step.0 < version.0).collect::<Vec<_>>();
        due.into_iter().try_for_each(|(step, to, dir)| self.save(step, to, dir, ports))
    }

    /// Takes a snapshot, which is written meanwhile; or writes.
    fn save(&mut self, step: StepId, to: SaveTo, dir: PathBuf, ports: &mut Ports) -> Result<(), EngineError> {
        if !self.in_background {
            let event = match self.files(Target::Folder(&dir)) {
                Ok(files) => Event::Saved { step, to, files },
                Err(error) if error.is_of_disk() => Event::SaveFailed { step, to, error: error_chain(&error) },
                Err(error) => return Err(error.into()),
            };
            ports.emit(event);
            return Ok(());
        }
        let mut saver = self.savers.remove(&to).unwrap_or_default();
        let lasting: Vec<_> = self.pools().flat_map(|pool| pool.lasting()).collect();
        let snapshot = RefCell::new(Snapshot::new(saver.take_buffers(), &lasting));
        let files = self.files(Target::Memory(&snapshot))?;
        match files.is_empty() {
            true => ports.emit(Event::Saved { step, to, files }),
            false => {
                let task = Task { me: ports.me(), step, to, dir, events: ports.events() };
                let mut snapshot = snapshot.into_inner();
                snapshot.describe(&files);
                saver.begin(snapshot, task)?;
            }
        }
        self.savers.insert(to, saver);
        Ok(())
    }

    /// Before parameters change.
    fn wait_copied(&self) {
        self.savers.values().for_each(Saver::wait_copied);
    }

    fn files(&self, to: Target<'_>) -> Result<Vec<SavedFile>, StateError> {
        let (mut files, mut failed) = (Vec::new(), None);
        let encoder = self.encoder.as_ref().map(|part| (&part.pool, &self.exports.encoder, part.pool_name()));
        let foundation = self.foundation.as_ref();
        let foundation = foundation.map(|part| (&part.pool, &self.exports.foundation, PoolName::FOUNDATION));
        for (pool, export, name) in encoder.into_iter().chain(foundation) {
            // The other pool's ranks save as well, and wait for this one.
            match save_state(pool, to, export, name.as_str()) {
                Ok(written) => files.extend(written),
                Err(error) if error.is_of_disk() => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        for (tensors, shards) in self.exports.carried.iter().filter(|_| failed.is_none()) {
            match to {
                Target::Folder(folder) => files.extend(tensors.write(folder, shards, &AtomicBool::new(false))?),
                Target::Memory(snapshot) => {
                    let (tensors, shards) = (tensors.clone(), *shards);
                    let write = move |folder: &Path, stop: &AtomicBool| tensors.write(folder, &shards, stop);
                    snapshot.borrow_mut().also_write(Box::new(write));
                }
            }
        }
        failed.map_or(Ok(files), Err)
    }
}

/// Reports a step of an actor that is an encoder alone.
fn report_encoder((step, epoch): (StepId, Epoch), grad_square_sum: f64, ports: &mut Ports) {
    let timings = std::mem::take(&mut ports.timings);
    let (routing, evaluation) = (None, None);
    ports.emit(Event::Reduced(StepReport { step, epoch, loss: 0.0, grad_square_sum, routing, timings, evaluation }));
}

impl Engine for TorchEngine {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => {
                self.planned.push_back(plan.clone());
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
                self.wait_copied();
                if let Some(part) = &mut self.encoder {
                    part.pool.commit(commit.clip_scale, commit.learning_rate * self.encoder_lr)?;
                }
                if let Some(part) = &mut self.foundation {
                    part.pool.commit(commit.clip_scale, commit.learning_rate)?;
                }
                self.foundation.iter().for_each(FoundationPart::balance);
                self.finish_step(commit.step, ports)?;
                self.save_due(ports)
            }
            Command::Abort { step } => {
                if !self.evaluates() {
                    self.pools().for_each(TrainState::abort);
                }
                self.finish_step(step, ports)?;
                self.settle_weights()?;
                self.save_due(ports)
            }
            Command::Save { step, to, dir } => {
                self.encoder.iter_mut().for_each(EncoderPart::flush_cache);
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
                Err(format!("{command:?} cannot be taken by {}", ports.me()).into())
            }
        }
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError> {
        let kind = parcel.header.kind;
        let next_plan = self.planned.back().map_or(self.version.0, |plan| plan.step.0 + 1);
        // Pixels of a unit that is about to be given to this encoder may be here before the word of it.
        let to_be_given = |part: &EncoderPart| matches!(kind, ParcelKind::Items(unit) if part.membership.is_some() && !part.has(unit));
        if kind.step().0 >= next_plan || self.encoder.as_ref().is_some_and(to_be_given) {
            self.early.push((from, parcel));
            return Ok(());
        }
        let for_encoder = matches!(kind, ParcelKind::Items(_) | ParcelKind::Gradient(_));
        match (&mut self.encoder, &mut self.foundation) {
            (Some(part), _) if for_encoder => part.arrive(from, parcel),
            (_, Some(part)) if !for_encoder => part.arrive(from, parcel, ports),
            _ if from.role == Role::Encoder => {
                ports.emit(Event::Refused {
                    peer: from,
                    reason: format!("{kind:?} is not for this actor"),
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
        if let Some(part) = &mut self.encoder
            && part.work(version, ports)? == Progress::Busy
        {
            ports.timings.units += start.elapsed().as_secs_f64();
            return Ok(Progress::Busy);
        }
        // Where ranks meet within a micro-batch, what others wait for is encoded before this thread waits for them.
        // What waits for credit could not be sent then.
        let encoded = self.encoder.as_ref().is_none_or(EncoderPart::has_encoded);
        let first = self.planned.front().map(|plan| plan.step);
        let sent = self.encoder.is_none() || first.is_none_or(|step| ports.num_unsent_until(step) == 0);
        if let Some(part) = &mut self.foundation
            && (!part.meets_others() || encoded && (sent || part.has_begun()))
            && part.work(version, ports)? == Progress::Busy
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
