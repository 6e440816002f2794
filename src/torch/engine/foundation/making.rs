//! Evaluations that make pictures and clips of prompts: a pack at a time, from noise to latents, which are then decoded.

use super::FoundationPart;
use super::evaluating::Evaluating;
use crate::engine::stages::Filled;
use crate::model::{MakeSettings, SampleRow};
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{Activity, StepId};
use std::time::Instant;
use tch::Tensor;

/// Says how samples are made of prompts, and what becomes of them.
pub struct SampleMaking {
    pub settings: MakeSettings,
    /// Decodes the latents `[tokens, width]` of a sample that was made before a step, and writes what they show. Returns the
    /// name of the file in the run's folder.
    pub finish: Finish,
}

/// See [`SampleMaking::finish`].
pub type Finish = Box<dyn Fn(StepId, &SampleRow, &Tensor) -> Result<String, EngineError>>;

impl FoundationPart {
    /// Makes samples of prompts so.
    pub fn with_sample_making(self, making: Option<SampleMaking>) -> Self {
        Self { making, ..self }
    }

    /// Makes the samples of the next pack, if what it needs is here.
    pub(super) fn make_next(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        let step = &self.steps[0];
        let Some(evaluation) = step.evaluation.as_ref().filter(|evaluation| evaluation.has_left()) else {
            return Ok(Progress::Idle);
        };
        if !self.continues_alone() {
            let keys = "tensor_parallel, context_parallel, pipeline_parallel, expert_parallel and zero: 3";
            return Err(format!("sample: samples are made by single ranks with a whole model; set no {keys}").into());
        }
        let (id, number) = (step.id, evaluation.num_continued);
        let Some(Filled { batch, features }) = self.assemble(number)? else { return Ok(Progress::Idle) };
        let start = Instant::now();
        let making = self.making.as_ref().ok_or("this run makes no samples")?;
        let (model, params) = (self.stages.any(), self.pool.params());
        params.set_dropout(None);
        let width = making.settings.width(model).ok_or("sample: the model makes no latents")?;
        let noise: Vec<Tensor> = batch.samples.iter().map(|row| making.settings.noise(row, width)).collect();
        let made = making.settings.make(model, params, &batch, &features, &noise);
        let made = made.ok_or("sample: the model makes no latents")??;
        let finish = |(row, latents): (&SampleRow, Tensor)| Ok((row.id, (making.finish)(id, row, &latents)?));
        let made = batch.samples.iter().zip(made).map(finish).collect::<Result<Vec<_>, EngineError>>()?;
        let step = &mut self.steps[0];
        if let Some(evaluation) = &mut step.evaluation {
            evaluation.num_continued += 1;
            evaluation.made.extend(made);
        }
        step.packs[number].forget();
        ports.trace.span(Activity::Forward, Some((id, Some(number as u32))), start);
        Ok(Progress::Busy)
    }
}

impl Evaluating {
    /// Returns whether pictures or clips are made.
    pub fn makes(&self) -> bool {
        self.purpose.is_sample()
    }
}
