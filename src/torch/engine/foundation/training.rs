//! Forward and backward of micro-batches that are trained on, and the routing of their tokens.

use super::rank::Rank;
use super::step::Step;
use crate::engine::activations::Activations;
use crate::engine::pack_work::Return;
use crate::engine::stages::{Filled, Stages};
use crate::model::{ExpertSet, FeatureInput, FoundationTape, MicroBatch, Routing, with_values};
use crate::native::NativeError;
use crate::parallel::pipeline::Recorded;
use crate::params::{GradBuffer, Masks, ParamId};
use crate::tape::Slot;
use loongforge_core::engine::{EngineError, Ports, fault};
use loongforge_core::message::RoutingReport;
use loongforge_core::schedule::Task;

/// Computes the tasks of steps that train, within a budget for activations.
pub(super) struct Trainer {
    pub activations: Activations,
    expert_sets: Vec<ExpertSet>,
}

impl Trainer {
    /// Trains these stages, and keeps all activations.
    pub fn new(stages: &Stages) -> Trainer {
        let expert_sets = stages.models.iter().flat_map(|model| model.expert_sets()).collect();
        Trainer { activations: Activations::default(), expert_sets }
    }

    /// Runs the forward of these tasks, and adds their losses to the step's.
    ///
    /// # Errors
    /// The budget for activations is too small, or a rank of the replica is gone.
    pub fn forward(&mut self, rank: &Rank, step: &mut Step, tasks: &[Task]) -> Result<(), EngineError> {
        /// The slots of a micro-batch that are read after its forward.
        struct Begun {
            rows: i64,
            loss: Option<Slot>,
            measures: Option<Slot>,
            routing: Option<Routing>,
        }
        let (params, device, stages) = (rank.state.params().clone(), rank.device(), &rank.stages);
        let (mut recorded, mut begun) = (Vec::new(), Vec::new());
        for task in tasks {
            let (pack, chunk) = step.micro_batches[task.micro_batch];
            let filler;
            let (batch, features, row_tokens, seed) = match step.packs.get(pack) {
                Some(work) => {
                    let (row_tokens, seed) = (work.pack.num_tokens(), work.pack.id.seed());
                    let Filled { batch, features } = &work.chunks[chunk].filled;
                    (batch, &features[..], row_tokens, Some(seed))
                }
                None => {
                    let feature_grads = !step.trained_towers.is_empty();
                    filler = MicroBatch { feature_grads, ..MicroBatch::filler(stages.any().columns(), device) };
                    (&filler, &[][..], 1, None)
                }
            };
            let FoundationTape {
                tape, features: slots, loss, measures, inbound, outbound, key_values, routing, ..
            } = stages.model(task.stage).record(batch);
            let inputs = with_values(&slots, features);
            let (rows, routing) = (batch.num_tokens(), routing.filter(|_| seed.is_some()));
            let dropout = seed.map(|seed| Masks::new(seed, stages.dropout_rows(task.stage, chunk, batch, device)));
            recorded.push(Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout });
            begun.push(Begun { rows, loss, measures, routing });
            if let Some(work) = step.packs.get_mut(pack).filter(|_| slots.iter().any(|levels| !levels.is_empty())) {
                work.chunks[chunk].slots = slots;
            }
        }
        let (mut found, counts, alive) = (Vec::new(), stages.counts_loss(), step.run.most_alive());
        let (sums, activations, measured) = (&mut step.routing, &mut self.activations, &mut step.measures);
        let begin = |at: usize, tape, inputs| activations.begin(tape, params.clone(), inputs, begun[at].rows, alive);
        step.run.forward(&params, recorded, begin, |at, run| {
            found.extend(begun[at].loss.filter(|_| counts).map(|loss| run.value(loss).shallow_clone()));
            if let Some(part) = begun[at].measures.filter(|_| counts) {
                let part = run.value(part);
                *measured = Some(measured.take().map_or_else(|| part.copy(), |sum| sum + part));
            }
            if let Some(routing) = &begun[at].routing {
                sums.add(&self.expert_sets, routing, run);
            }
        })?;
        for loss in found {
            step.loss = Some(step.loss.take().map_or(loss.shallow_clone(), |sum| sum + loss));
        }
        Ok(())
    }

    /// Runs the backward of these tasks. Gradients of features go back as `how` says, once their pack is done.
    ///
    /// # Errors
    /// The model gave no gradient of features, or a rank is gone.
    pub fn backward(
        &mut self,
        rank: &mut Rank,
        step: &mut Step,
        tasks: &[Task],
        how: &Return,
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        let Rank { stages, state, .. } = rank;
        let (params, lane) = (state.params().clone(), state.own_lane());
        let is_last = step.run.is_last();
        if is_last && state.is_in_buckets() {
            // Before the sums begin.
            step.is_past_fault_point = true;
            if fault::poison(ports.me(), "nan_gradient", &[]) {
                state.poison();
            }
        }
        let (grads, sums) = state.lane_and_sums(lane);
        let mut sums = sums.filter(|_| is_last);
        let mut passed = |grads: &GradBuffer, done: &dyn Fn(&[ParamId]) -> bool| match &mut sums {
            Some(sums) => sums.begin(grads, done),
            None => Ok(()),
        };
        let runs = step.run.backward(&params, grads, Some(&mut passed))?;
        let inputs = stages.any().inputs();
        for (task, run) in tasks.iter().zip(runs) {
            let (pack, chunk) = step.micro_batches[task.micro_batch];
            if let Some(work) = step.packs.get(pack) {
                self.activations.learn(&run, work.chunks[chunk].filled.batch.num_tokens());
            }
            let Some(work) = step.packs.get_mut(pack).filter(|_| task.stage == 0) else { continue };
            let num_features = work.num_features(inputs);
            let done = &mut work.chunks[chunk];
            let trained = step.trained_towers;
            if !trained.is_empty() {
                let grad = |slot: &Slot| run.input_grad(*slot).ok_or("the model gave no gradient of features");
                let levels = |(slots, input): (&Vec<Slot>, &FeatureInput)| {
                    let slots = slots.iter().filter(|_| input.has_gradient() && trained.contains(input.tower));
                    slots.map(grad).collect::<Result<Vec<_>, _>>()
                };
                let grads = done.slots.iter().zip(inputs).map(levels).collect::<Result<_, _>>()?;
                done.grads = stages.gather_features(&done.filled.batch, grads, &num_features)?;
            }
            done.is_done = true;
            if stages.mesh.is_leader() && work.chunks.iter().all(|chunk| chunk.is_done) {
                work.give_back(inputs, how, &mut step.returned, ports)?;
            }
        }
        Ok(())
    }

    /// Sums the step's loads over the pool; `None` of a model without experts. Every replica calls it once a step, also one without
    /// a pack, whose loads are zero.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn reduce_routing(&self, rank: &Rank, step: &mut Step) -> Result<Option<RoutingReport>, NativeError> {
        if self.expert_sets.is_empty() {
            return Ok(None);
        }
        let mut report = step.routing.reduce(&self.expert_sets, &rank.state, rank.device())?;
        // Ranks that compute the same row have the same losses.
        if !rank.stages.counts_loss() {
            (report.aux_loss, report.z_loss, report.indexer_loss) = (None, None, None);
        }
        Ok(Some(report))
    }

    /// Moves the routers' biases against the loads of a step that is applied.
    pub fn balance(&self, rank: &Rank, step: &Step) {
        let rate = rank.stages.any().bias_update_rate();
        if rate > 0.0 && rank.state.is_trained() {
            step.routing.balance(&self.expert_sets, rate);
        }
    }
}
