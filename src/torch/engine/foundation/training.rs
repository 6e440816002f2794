//! Forward and backward of micro-batches that are trained on.

use super::FoundationWorker;
use crate::engine::stages::Filled;
use crate::model::{FeatureInput, FoundationTape, MicroBatch, Routing, with_values};
use crate::parallel::pipeline::Recorded;
use crate::params::{GradBuffer, ParamId};
use crate::tape::Slot;
use loongforge_core::engine::{EngineError, Ports, fault};
use loongforge_core::message::Version;
use loongforge_core::schedule::Task;

impl FoundationWorker {
    pub(super) fn forward(&mut self, tasks: &[Task]) -> Result<(), EngineError> {
        /// Holds what of a micro-batch is read after its forward.
        struct Begun {
            rows: i64,
            loss: Option<Slot>,
            measures: Option<Slot>,
            routing: Option<Routing>,
        }
        let (params, step) = (self.state.params().clone(), &mut self.steps[0]);
        let device = params.flat().device();
        let (mut recorded, mut begun) = (Vec::new(), Vec::new());
        for task in tasks {
            let (pack, chunk) = step.micro_batches[task.micro_batch];
            let filler;
            let (batch, features, row_tokens, dropout) = match step.packs.get(pack) {
                Some(work) => {
                    let (row_tokens, seed) = (work.pack.num_tokens(), work.pack.id.seed());
                    let Filled { batch, features } = &work.chunks[chunk].filled;
                    (batch, &features[..], row_tokens, Some(seed))
                }
                None => {
                    filler = MicroBatch::filler(self.stages.any().columns(), device);
                    (&filler, &[][..], 1, None)
                }
            };
            let FoundationTape {
                tape, features: slots, loss, measures, inbound, outbound, key_values, routing, ..
            } = self.stages.model(task.stage).record(batch);
            let inputs = with_values(&slots, features);
            let (rows, routing) = (batch.num_tokens(), routing.filter(|_| dropout.is_some()));
            recorded.push(Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout });
            begun.push(Begun { rows, loss, measures, routing });
            if let Some(work) = step.packs.get_mut(pack).filter(|_| slots.iter().any(|levels| !levels.is_empty())) {
                work.chunks[chunk].slots = slots;
            }
        }
        let (mut found, counts, alive) = (Vec::new(), self.stages.counts_loss(), step.run.most_alive());
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

    pub(super) fn backward(&mut self, tasks: &[Task], version: Version, ports: &mut Ports) -> Result<(), EngineError> {
        let (params, lane, how) = (self.state.params().clone(), self.state.own_lane(), self.returns(version));
        let trains_encoders = self.has_trained_encoders();
        let step = &mut self.steps[0];
        let is_last = step.run.is_last();
        if is_last && self.state.is_in_buckets() {
            // Before the sums begin.
            step.is_past_fault_point = true;
            if fault::poison(ports.me(), "nan_gradient", &[]) {
                self.state.poison();
            }
        }
        let (grads, sums) = self.state.lane_and_sums(lane);
        let mut sums = sums.filter(|_| is_last);
        let mut passed = |grads: &GradBuffer, done: &dyn Fn(&[ParamId]) -> bool| match &mut sums {
            Some(sums) => sums.begin(grads, done),
            None => Ok(()),
        };
        let runs = step.run.backward(&params, grads, Some(&mut passed))?;
        let inputs = self.stages.any().inputs();
        for (task, run) in tasks.iter().zip(runs) {
            let (pack, chunk) = step.micro_batches[task.micro_batch];
            if let Some(work) = step.packs.get(pack) {
                self.activations.learn(&run, work.chunks[chunk].filled.batch.num_tokens());
            }
            let Some(work) = step.packs.get_mut(pack).filter(|_| task.stage == 0) else { continue };
            let num_features = work.num_features(inputs);
            let done = &mut work.chunks[chunk];
            if trains_encoders {
                let grad = |slot: &Slot| run.input_grad(*slot).ok_or("the model gave no gradient of features");
                let levels = |(slots, input): (&Vec<Slot>, &FeatureInput)| {
                    let slots = slots.iter().filter(|_| input.has_gradient());
                    slots.map(grad).collect::<Result<Vec<_>, _>>()
                };
                let grads = done.slots.iter().zip(inputs).map(levels).collect::<Result<_, _>>()?;
                done.grads = self.stages.gather_features(&done.filled.batch, grads, &num_features)?;
            }
            done.is_done = true;
            if self.stages.mesh.is_leader() && work.chunks.iter().all(|chunk| chunk.is_done) {
                work.give_back(inputs, &how, &mut step.returned, ports)?;
            }
        }
        Ok(())
    }
}
