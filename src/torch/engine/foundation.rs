//! The foundation's part of a step: its packs in order, each as soon as its tokens and features are there.

use super::activations::Activations;
use super::buffer::TorchBuffer;
use super::parts::Parts;
use super::routing::StepRouting;
use crate::model::{ExpertSet, FoundationModel, MicroBatch};
use crate::native::NativeError;
use crate::train::Pool;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{ActorId, Pack, RoutingReport, StepId, StepPlan, UnitId, Version};
use loongforge_core::transport::{Buffer, CreditGuard, Header, Parcel, ParcelKind};
use std::collections::VecDeque;
use tch::Tensor;

/// Computes the packs of one foundation replica.
pub struct FoundationPart {
    index: u32,
    model: Box<dyn FoundationModel>,
    expert_sets: Vec<ExpertSet>,
    pub(super) pool: Pool,
    encoder_trained: bool,
    activations: Activations,
    steps: VecDeque<Step>,
}

struct Step {
    id: StepId,
    num_targets: u64,
    packs: VecDeque<PackWork>,
    /// Summed on the device, and read once the step is done: reading waits for it.
    loss: Option<Tensor>,
    routing: StepRouting,
}

struct PackWork {
    pack: Pack,
    tokens: Parts,
    /// In placeholder order.
    units: Vec<UnitWork>,
}

struct UnitWork {
    id: UnitId,
    num_features: i64,
    /// Who sent the features, and what.
    features: Option<(ActorId, Features)>,
}

struct Features {
    tensors: Vec<Tensor>,
    /// Held until the micro-batch is done: the features are in use until then.
    _credit: Option<CreditGuard>,
}

impl FoundationPart {
    /// Foundation replica `index`; with `encoder_trained` it returns gradients of the features.
    pub fn new(index: u32, model: Box<dyn FoundationModel>, pool: Pool, encoder_trained: bool) -> Self {
        let expert_sets = model.expert_sets();
        let activations = Activations::default();
        Self { index, model, expert_sets, pool, encoder_trained, activations, steps: VecDeque::new() }
    }

    /// Under a budget for activations.
    pub fn with_activations(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    pub(super) fn plan(&mut self, plan: &StepPlan) {
        let packs = plan.packs_of(self.index).map(|pack| PackWork {
            tokens: Parts::new(pack.samples.iter().map(|sample| sample.owner)),
            units: plan
                .units_of(pack.id)
                .map(|unit| UnitWork { id: unit.id, num_features: unit.num_features() as i64, features: None })
                .collect(),
            pack: pack.clone(),
        });
        self.steps.push_back(Step {
            id: plan.step,
            num_targets: plan.num_targets,
            packs: packs.collect(),
            loss: None,
            routing: StepRouting::default(),
        });
    }

    /// Takes tokens or features.
    pub(super) fn arrive(&mut self, from: ActorId, parcel: Parcel) -> Result<(), EngineError> {
        let Header { kind, version } = parcel.header;
        let device = self.pool.params().flat().device();
        let (trained, num_tensors) = (self.encoder_trained, self.model.num_feature_tensors());
        let step = match kind {
            ParcelKind::Tokens(id) => id.step,
            ParcelKind::Activation(id) => id.step,
            other => return Err(format!("{other:?} from {from} is nothing for a foundation").into()),
        };
        let unplanned = || format!("{from} sent {kind:?}, which is not planned here");
        let step = self.steps.iter_mut().find(|known| known.id == step).ok_or_else(unplanned)?;
        let into_tensor = |buffer| TorchBuffer::into_tensor(buffer, device);
        if let ParcelKind::Tokens(id) = kind {
            let work = step.packs.iter_mut().find(|work| work.pack.id == id).ok_or_else(unplanned)?;
            let tensors = parcel.tensors.into_iter().map(into_tensor).collect();
            return work.tokens.insert(from.index, tensors).map_err(|error| format!("tokens of {id}: {error}").into());
        }
        let mut units = step.packs.iter_mut().flat_map(|work| &mut work.units);
        let unit = units.find(|unit| kind == ParcelKind::Activation(unit.id)).ok_or_else(unplanned)?;
        if unit.features.is_some() {
            return Err(format!("{from} sent {kind:?} twice").into());
        }
        if trained && version != Version(step.id.0) {
            return Err(format!(
                "{from} made {kind:?} with parameters of version {version}, step {} needs its own",
                step.id
            )
            .into());
        }
        let tensors: Vec<Tensor> = parcel.tensors.into_iter().map(into_tensor).collect();
        if tensors.len() != num_tensors
            || tensors.iter().any(|tensor| tensor.size() != [unit.num_features, self.model.feature_dim()])
        {
            let shapes: Vec<_> = tensors.iter().map(Tensor::size).collect();
            let want = format!("{num_tensors} tensors of [{}, {}]", unit.num_features, self.model.feature_dim());
            return Err(format!("{from} sent {kind:?} with shapes {shapes:?}; expected {want}").into());
        }
        unit.features = Some((from, Features { tensors, _credit: parcel.credit }));
        Ok(())
    }

    /// Computes the next pack of the step of this `version`, if it is whole.
    pub(super) fn work(&mut self, version: Version, ports: &mut Ports) -> Result<Progress, EngineError> {
        let Some(step) = self.steps.front_mut().filter(|step| step.id.0 == version.0) else {
            return Ok(Progress::Idle);
        };
        let whole =
            |work: &mut PackWork| work.tokens.is_complete() && work.units.iter().all(|unit| unit.features.is_some());
        let Some(work) = step.packs.pop_front_if(whole) else { return Ok(Progress::Idle) };
        let loss_scale = 1.0 / step.num_targets.max(1) as f64;
        let loss = self.compute(work, loss_scale, version, ports)?;
        let sum = self.steps[0].loss.take();
        self.steps[0].loss = Some(sum.map_or(loss.shallow_clone(), |sum| sum + loss));
        Ok(Progress::Busy)
    }

    fn compute(
        &mut self,
        work: PackWork,
        loss_scale: f64,
        version: Version,
        ports: &mut Ports,
    ) -> Result<Tensor, EngineError> {
        let pieces: Vec<(u32, i64)> =
            work.pack.samples.iter().map(|sample| (sample.owner, i64::from(sample.num_tokens))).collect();
        let num_features = work.units.iter().map(|unit| unit.num_features).sum();
        let batch = MicroBatch {
            input_ids: work.tokens.assemble(0, 0, &pieces)?,
            position_ids: work.tokens.assemble(1, 1, &pieces)?,
            targets: work.tokens.assemble(2, 0, &pieces)?,
            cu_seqlens: work.pack.cu_seqlens(),
            loss_scale,
            num_features,
            feature_grads: self.encoder_trained,
            row: None,
        };
        let record = self.model.record(&batch);
        let rows = batch.input_ids.numel() as i64;
        let params = self.pool.params().clone();
        params.set_dropout(Some(work.pack.id.seed()));
        let kind = params.flat().kind();
        let level = |index: usize| {
            let of_units =
                work.units.iter().map(|unit| &unit.features.as_ref().expect("the pack is whole").1.tensors[index]);
            Tensor::cat(&of_units.collect::<Vec<_>>(), 0).to_kind(kind)
        };
        let inputs = record.features.iter().enumerate().map(|(index, &slot)| (slot, level(index))).collect();
        let mut run = self.activations.begin(record.tape, params, inputs, rows, 1)?;
        run.forward()?;
        let loss = run.value(record.loss).shallow_clone();
        if let Some(routing) = &record.routing {
            self.steps[0].routing.add(&self.expert_sets, routing, &run);
        }
        run.seed(record.loss, Tensor::ones_like(run.value(record.loss)));
        let lane = self.pool.own_lane();
        run.backward(self.pool.lane(lane))?;
        self.activations.learn(&run, rows);

        let mut row = 0;
        for unit in work.units {
            let (from, features) = unit.features.expect("the pack is whole");
            drop(features);
            let mut tensors: Vec<Box<dyn Buffer>> = Vec::new();
            for &slot in record.features.iter().filter(|_| self.encoder_trained) {
                let grad = run.input_grad(slot).ok_or_else(|| format!("the model gave no gradient for {}", unit.id))?;
                tensors.push(Box::new(TorchBuffer::new(&grad.narrow(0, row, unit.num_features))));
            }
            row += unit.num_features;
            let kind =
                if self.encoder_trained { ParcelKind::Gradient(unit.id) } else { ParcelKind::NoGradient(unit.id) };
            ports.send(from, Parcel::new(Header { kind, version }, tensors))?;
        }
        Ok(loss)
    }

    /// Whether every pack of the first step is done.
    pub(super) fn is_finished(&self) -> bool {
        self.steps.front().is_none_or(|step| step.packs.is_empty())
    }

    /// Summed loss of the first step.
    pub(super) fn loss(&self) -> f64 {
        let sum = self.steps.front().and_then(|step| step.loss.as_ref());
        sum.map_or(0.0, |sum| sum.double_value(&[]))
    }

    /// Sums the first step's loads over the pool; `None` of a model without experts. Every replica calls it once a step.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub(super) fn reduce_routing(&mut self) -> Result<Option<RoutingReport>, NativeError> {
        // A replica without a pack in this step has loads of zero and yet takes part.
        let device = self.pool.params().flat().device();
        match self.steps.front_mut().filter(|_| !self.expert_sets.is_empty()) {
            Some(step) => step.routing.reduce(&self.expert_sets, &self.pool, device).map(Some),
            None => Ok(None),
        }
    }

    /// Moves the routers' biases against the loads of the first step, which is applied.
    pub(super) fn balance(&self) {
        let rate = self.model.bias_update_rate();
        if let Some(step) = self.steps.front().filter(|_| rate > 0.0 && self.pool.is_trained()) {
            step.routing.balance(&self.expert_sets, rate);
        }
    }

    /// Forgets the first step, which was applied or aborted.
    pub(super) fn finish_step(&mut self) {
        self.steps.pop_front();
    }
}

#[cfg(test)]
#[path = "foundation_tests.rs"]
mod tests;
