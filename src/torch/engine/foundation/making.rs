//! Evaluations that make pictures and clips of prompts: a pack at a time, from noise to latents, which are then decoded.

use super::rank::Rank;
use crate::engine::stages::Filled;
use crate::model::{FoundationModel, MakeSettings, SampleRow, Underway};
use crate::train::hf::{TensorFile, write_tensor_file};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{SampleId, StepId};
use loongforge_core::observe::ObserveError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Tensor};

/// The file of a sample that the transformer of high noise leaves to that of low noise, in an existing folder that the actors of
/// both see.
pub type HandOver = Arc<dyn Fn(StepId, SampleId) -> Result<PathBuf, ObserveError> + Send + Sync>;

/// Says how samples are made of prompts, and what becomes of them.
pub struct SampleMaking {
    pub settings: MakeSettings,
    pub part: SamplePart,
    /// Decodes the latents `[tokens, width]` of a sample that was made before a step, and writes what they show. Returns the
    /// name of the file in the run's folder.
    pub finish: Finish,
}

/// The steps of a sample that the actors of a pool take.
pub enum SamplePart {
    Whole,
    /// Those from a noise level on; then the sample goes into a file.
    High(f64, HandOver),
    /// Those below; the sample comes out of that file.
    Low(f64, HandOver),
}

impl SampleMaking {
    /// The first part of samples, of which there is nothing to see.
    pub fn high_noise(settings: MakeSettings, boundary: f64, hand_over: HandOver) -> Self {
        let finish =
            |_: StepId, _: &SampleRow, _: &Tensor| Err("the high-noise transformer does not finish samples".into());
        Self { settings, part: SamplePart::High(boundary, hand_over), finish: Box::new(finish) }
    }

    fn levels(&self) -> Range<f64> {
        match self.part {
            SamplePart::Whole => 0.0..f64::INFINITY,
            SamplePart::High(boundary, _) => boundary..f64::INFINITY,
            SamplePart::Low(boundary, _) => 0.0..boundary,
        }
    }

    /// Makes the samples of a pack, whose tokens and features are `filled`, and returns the names of files that show them.
    ///
    /// # Errors
    /// The model makes no latents, or a file cannot be read or written.
    pub(super) fn make(
        &self,
        step: StepId,
        filled: &Filled,
        rank: &Rank,
    ) -> Result<Vec<(SampleId, String)>, EngineError> {
        let (model, params) = (rank.stages.any(), rank.state.params());
        let nothing = "sample: the model makes no latents";
        let Filled { batch, features } = filled;
        let width = self.settings.width(model).ok_or(nothing)?;
        let mut samples = self.begin(step, &batch.samples, width, rank.device())?;
        self.settings.advance(&mut samples, &self.levels(), (model, params), batch, features).ok_or(nothing)??;
        self.end(step, samples, model, filled)
    }

    /// The samples of a pack before their first step here.
    fn begin(
        &self,
        step: StepId,
        rows: &[SampleRow],
        width: i64,
        device: Device,
    ) -> Result<Vec<Underway>, EngineError> {
        let SamplePart::Low(_, hand_over) = &self.part else {
            return Ok(self.settings.begin(rows, rows.iter().map(|row| self.settings.noise(row, width)).collect()));
        };
        let take_over = |row: &SampleRow| {
            let file = TensorFile::open(&hand_over(step, row.id)?)?;
            let mut tensors = BTreeMap::new();
            for name in file.tensors().keys() {
                tensors.extend(file.read(name)?.map(|tensor| (name.as_str(), tensor.to_device(device))));
            }
            let resumed = self.settings.resume(row, &|name| tensors.get(name).map(Tensor::shallow_clone));
            resumed.map_err(|name| format!("{} lacks {name}", file.path().display()).into())
        };
        rows.iter().map(take_over).collect()
    }

    /// Writes what is made, or hands it over; returns the names of files that show it.
    fn end(
        &self,
        step: StepId,
        samples: Vec<Underway>,
        model: &dyn FoundationModel,
        Filled { batch, features }: &Filled,
    ) -> Result<Vec<(SampleId, String)>, EngineError> {
        if let SamplePart::High(_, hand_over) = &self.part {
            for (row, sample) in batch.samples.iter().zip(&samples) {
                let path = hand_over(step, row.id)?;
                let (folder, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
                write_tensor_file(&sample.tensors(), &[], folder, &name.to_string_lossy())?;
            }
            return Ok(Vec::new());
        }
        let made = self.settings.finish(samples, model, batch, features);
        let finish = |(row, latents): (&SampleRow, Tensor)| {
            let name = (self.finish)(step, row, &latents)?;
            if let SamplePart::Low(_, hand_over) = &self.part {
                std::fs::remove_file(hand_over(step, row.id)?)?;
            }
            Ok((row.id, name))
        };
        batch.samples.iter().zip(made).map(finish).collect()
    }
}

/// See [`SampleMaking::finish`].
pub type Finish = Box<dyn Fn(StepId, &SampleRow, &Tensor) -> Result<String, EngineError>>;
