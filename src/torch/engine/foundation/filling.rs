//! Gets what a pack is computed of: its tokens, and the features of its units.

use super::FoundationWorker;
use super::evaluating::Evaluating;
use crate::engine::buffer::take_over;
use crate::engine::pack_work::{Features, PackChunk, PackUnit};
use crate::engine::stages::Filled;
use crate::model::{Columns, FeatureInput, MicroBatch, NoisePurpose};
use loongforge_core::engine::EngineError;
use tch::Tensor;

impl FoundationWorker {
    /// Gets a pack's tokens and features. False where the leader does not have them yet.
    pub(super) fn fill(&mut self, number: usize) -> Result<bool, EngineError> {
        let Some(filled) = self.assemble(number)? else { return Ok(false) };
        let chunks = self.stages.chunks(filled, self.state.params())?;
        self.steps[0].packs[number].chunks = chunks.into_iter().map(PackChunk::new).collect();
        Ok(true)
    }

    /// A pack's tokens and features, whole; `None` where the leader does not have them yet.
    pub(super) fn assemble(&mut self, number: usize) -> Result<Option<Filled>, EngineError> {
        let trains_encoders = self.has_trained_encoders();
        let (params, step) = (self.state.params().clone(), &mut self.steps[0]);
        let evaluates = step.evaluation.is_some();
        let noise = step.evaluation.as_ref().map_or(NoisePurpose::Training, Evaluating::noise);
        let work = &mut step.packs[number];
        let inputs = self.stages.any().inputs();
        let num_features = work.num_features(inputs);
        let columns = self.stages.any().columns();
        let sizes = |columns| MicroBatch {
            columns,
            cu_seqlens: work.pack.cu_seqlens(),
            samples: work.rows(noise),
            loss_scale: if evaluates { 1.0 } else { 1.0 / step.weight },
            num_features,
            feature_grads: trains_encoders && !evaluates,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates,
        };
        if self.stages.mesh.is_leader() {
            if !work.tokens.is_complete() || work.units.iter().any(PackUnit::waits) {
                return Ok(None);
            }
            let whole = columns.iter().enumerate().map(|(index, column)| work.column(index, column));
            let batch = sizes(Columns::new(columns, whole.collect::<Result<_, _>>()?));
            let device = params.flat().device();
            let of_input = |input: &FeatureInput| {
                let kind = input.kind(params.flat().kind());
                let units = || work.units.iter().filter(|unit| unit.tower == input.tower);
                let level = |index: usize| {
                    let zeros = |rows| Tensor::zeros([rows, input.width], (kind, device));
                    let mut of_units: Vec<Tensor> = units().map(|unit| unit.level(index, zeros)).collect();
                    let rows = if of_units.len() == 1 { of_units.remove(0) } else { Tensor::cat(&of_units, 0) };
                    rows.to_kind(kind)
                };
                let levels = if units().next().is_none() { 0 } else { input.num_tensors };
                (0..levels).map(level).collect()
            };
            let filled = Filled { batch, features: inputs.iter().map(of_input).collect() };
            work.tokens.clear();
            // Packs that are computed along with this one wait for their credit.
            if step.run.most_alive() > 1 {
                let features = work.units.iter_mut().filter_map(|unit| unit.features.as_mut());
                features.for_each(|(_, features)| *features = Features { tensors: Vec::new(), credit: None });
                take_over(filled.batch.columns.tensors().iter().chain(filled.features.iter().flatten()));
            }
            step.sent.extend(self.stages.hand_out(number, &filled, device)?);
            Ok(Some(filled))
        } else {
            let num_samples = work.pack.samples.len();
            Ok(Some(self.stages.take(number, sizes(Columns::to_come(columns)), num_samples, &params)?))
        }
    }
}
