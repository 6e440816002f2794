//! Pictures and clips that a diffusion model makes of prompts: how, of which prompts, and where they go.

use crate::eval::held_out_data::data;
use crate::model::flow::with_flow;
use crate::model::folder::ModelFolder;
use loongforge_core::config::{Experts, ModelKind, RunConfig, Sampler, Sampling, TrainFile};
use loongforge_core::data::{DataError, Dataset, InProcess, MediaDecoder, ProcessorOptions};
use loongforge_core::engine::WithHeldOut;
use loongforge_core::files::step_name;
use loongforge_core::message::{Purpose, SampleId, Sigma, StepId};
use loongforge_core::observe::{Clip, ObserveError};
use loongforge_core::schedule::{EvaluationPass, EvaluationSet};
use loongforge_core::text::counted;
use loongforge_torch::engine::{SampleSpec, UntrainedTransformer};
use loongforge_torch::model::{
    GuidanceScales, MakeSettings, Method, ModelConfig, ModelConfigError, Schedule, ScheduleError, Shift,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of samples in the run's folder.
pub const SAMPLES: &str = "samples";
/// The set of prompts among those that are evaluated.
const SET: &str = "samples";
/// Frames a second of clips, unless the config says: Wan's models, and TI2V-5B.
const FPS: f64 = 16.0;
const FPS_OF_EXPANDED: f64 = 24.0;

#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    #[error("sample: the model makes no pictures: it is not a diffusion model")]
    NoPictures,
    #[error("{key}: two numbers are for two transformers, but the model has one: write one number")]
    OneTransformer { key: &'static str },
}

/// Says how a model makes samples: as it is asked for, else as its configs say. `key`: who asked for the guidance.
///
/// # Errors
/// The model's scheduler is not known, or there are two guidances for one transformer.
pub fn settings(json: &Value, sampling: &Sampling, key: &'static str, seed: u64) -> Result<MakeSettings, SampleError> {
    if sampling.guidance.len() > 1 && json["boundary_ratio"].is_null() {
        return Err(SampleError::OneTransformer { key });
    }
    let mut schedule = match &json["scheduler"] {
        Value::Null => Schedule {
            method: Method::Euler,
            num_steps: sampling.steps,
            shift: Shift::Constant(1.0),
            terminal: None,
            to_least: false,
        },
        scheduler => Schedule::from_hf(scheduler, sampling.steps)?,
    };
    match sampling.sampler {
        Some(Sampler::Euler) => schedule.method = Method::Euler,
        Some(Sampler::Unipc) => schedule.method = Method::UniPc,
        None => {}
    }
    if let Some(shift) = sampling.shift {
        schedule.shift = Shift::Constant(shift);
    }
    let class = json["transformer"]["_class_name"].as_str().unwrap_or_default();
    // Qwen-Image's pipelines give the scheduler their own levels, Wan's leave them to it.
    schedule.to_least = class.starts_with("Wan");
    Ok(MakeSettings {
        schedule,
        guidance: GuidanceScales {
            scales: sampling.guidance.clone(),
            boundary: json["boundary_ratio"].as_f64().unwrap_or(0.0),
            keeps_length: class.starts_with("QwenImage"),
        },
        seed: sampling.seed.unwrap_or(seed),
        keeps_first_frame: json["expand_timesteps"] == true,
    })
}

/// Returns the frames a second of the clips that a run makes.
fn fps(config: &RunConfig, json: &Value) -> f64 {
    config.data.video.fps.unwrap_or_else(|| fps_of(json))
}

/// Returns the frames a second of the clips that a model was trained on.
pub fn fps_of(json: &Value) -> f64 {
    if json["expand_timesteps"] == true { FPS_OF_EXPANDED } else { FPS }
}

/// Returns a line about the samples that are made while the run goes on.
pub fn summary(config: &RunConfig) -> Option<String> {
    let sampling = config.sample.as_ref()?;
    let when = match (sampling.every_epochs, sampling.every_steps) {
        // Of epochs that nobody has counted the steps of yet.
        (Some(epochs), _) => format!("before the first step, every {epochs} epochs and at the end"),
        (None, 0) => "at the end".to_owned(),
        (None, 1) => "before the first step, after every step and at the end".to_owned(),
        (None, steps) => format!("before the first step, every {steps} steps and at the end"),
    };
    let steps = counted(sampling.steps as u64, "step");
    Some(format!("samples of {} {when}, in {steps} each: {SAMPLES}/", sampling.prompts.display()))
}

/// Returns the spec by which a foundation actor of the run makes samples; `None`: none are made.
///
/// # Errors
/// The model is no diffusion model, its scheduler is not known, or there are two guidances for one transformer.
pub fn spec(config: &RunConfig, folder: &ModelFolder) -> Result<Option<SampleSpec>, SampleError> {
    let Some(sampling) = &config.sample else { return Ok(None) };
    let json = &folder.json;
    let autoencoder = ModelConfig::autoencoder(json)?.ok_or(SampleError::NoPictures)?;
    let run_dir = config.run.dir.clone();
    let write = move |step: StepId, prompt: SampleId, clip: &Clip| {
        let folder = step_folder(step);
        let name = clip.write(&run_dir.join(&folder), &format!("{:04}", number(prompt)))?;
        Ok(folder.join(name).to_string_lossy().into_owned())
    };
    let run_dir = config.run.dir.clone();
    let hand_over = move |step: StepId, prompt: SampleId| {
        let folder = run_dir.join(step_folder(step));
        let made = std::fs::create_dir_all(&folder);
        made.map_err(|source| ObserveError::Write { path: folder.clone(), source })?;
        Ok(folder.join(format!("{:04}.noised.safetensors", number(prompt))))
    };
    Ok(Some(SampleSpec {
        settings: settings(json, sampling, "sample.guidance", config.run.seed)?,
        autoencoder,
        fps: fps(config, json),
        own_weights: !sampling.ema,
        write: Arc::new(write),
        boundary: json["boundary_ratio"].as_f64().unwrap_or(0.0),
        hand_over: Arc::new(hand_over),
        other: untrained(config, json)?,
    }))
}

/// Returns the transformer that samples need and that the run does not train; `None`: it trains all that the model has.
fn untrained(config: &RunConfig, json: &Value) -> Result<Option<UntrainedTransformer>, ModelConfigError> {
    let is_high = match config.model.experts {
        Some(Experts::High) => false,
        Some(Experts::Low) => true,
        Some(Experts::Both) | None => return Ok(None),
    };
    let model = with_flow(ModelConfig::from_hf(json)?, config).with_one_transformer(is_high);
    Ok(Some(UntrainedTransformer { family: model.foundation, is_high }))
}

/// Returns the number of a prompt in its file.
fn number(prompt: SampleId) -> u64 {
    prompt.as_held_out().map_or(prompt.0, |(_, index)| index)
}

/// Returns the folder of the samples that were made before a step, in the run's folder.
pub fn step_folder(step: StepId) -> PathBuf {
    Path::new(SAMPLES).join(step_name(step.0))
}

/// Opens the prompts of the run, if it makes samples.
///
/// # Errors
/// The file is missing, of an unknown layout, or has no samples.
pub fn prompts(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: Option<&Arc<dyn MediaDecoder>>,
) -> Result<Option<Dataset>, DataError> {
    let Some(sampling) = &config.sample else { return Ok(None) };
    let decoder = decoder.map_or_else(|| Arc::new(InProcess) as Arc<dyn MediaDecoder>, Arc::clone);
    let data = data(&config.data, TrainFile::new(sampling.prompts.as_path()));
    let maker = folder.maker(&ProcessorOptions::of_run(config, &data), decoder)?;
    Dataset::open(&data, maker, 0).map(Some)
}

/// Opens the samples that the run has learned from.
///
/// # Errors
/// A file is missing, of an unknown layout, or has no samples.
pub fn trained_on(config: &RunConfig, folder: &ModelFolder) -> Result<Dataset, DataError> {
    let maker = folder.maker(&ProcessorOptions::of_run(config, &config.data), Arc::new(InProcess))?;
    Dataset::open(&config.data, maker, config.run.seed)
}

/// Returns the set that the scheduler evaluates to make samples: number `number`, of these prompts. With `two` transformers each prompt
/// is computed twice: from all noise on by that of high noise, and then by the other.
pub fn set(sampling: &Sampling, number: usize, prompts: &Dataset, two: bool) -> EvaluationSet {
    let [_, stream] = WithHeldOut::streams(number);
    let pass = |sigma| EvaluationPass {
        purpose: Purpose::Sample { draw: 0 },
        stream,
        num_samples: (prompts.len() as u64).min(sampling.max_prompts.unwrap_or(u64::MAX)),
        max_samples: usize::MAX,
        sigma,
    };
    let passes = match two {
        true => [1.0, 0.0].map(|sigma| pass(Some(Sigma::new(sigma)))).into(),
        false => vec![pass(None)],
    };
    let at_start = sampling.every_steps > 0;
    EvaluationSet { name: SET.to_owned(), every: sampling.every_steps, at_start, passes }
}

/// Returns whether a model of this kind can be sampled from.
pub fn is_diffusion(folder: &ModelFolder) -> bool {
    matches!(folder.model_kind(), ModelKind::Diffusion { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sampling(more: Value) -> Sampling {
        let mut all = json!({ "prompts": "p.jsonl", "steps": 20 });
        more.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn samples_are_made_as_the_model_and_the_config_say() {
        let qwen = json!({
            "transformer": { "_class_name": "QwenImageTransformer2DModel" },
            "scheduler": { "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true,
                "base_shift": 0.5, "max_shift": 0.9, "base_image_seq_len": 256, "max_image_seq_len": 8192,
                "shift_terminal": 0.02 },
        });
        let found = settings(&qwen, &sampling(json!({ "guidance": [4.0] })), "sample.guidance", 7).unwrap();
        assert!(found.guidance.keeps_length && found.guidance.at(0.5).scale == 4.0 && !found.keeps_first_frame);
        assert_eq!((found.schedule.num_steps, found.schedule.terminal, found.seed), (20, Some(0.02), 7));
        assert!((found.schedule.shift.at(4096) - 2.0).abs() < 0.01, "1024 × 1024 pixels");
        assert!(!found.schedule.to_least);
        let wan = json!({
            "transformer": { "_class_name": "WanTransformer3DModel" }, "boundary_ratio": 0.9, "expand_timesteps": true,
            "scheduler": { "_class_name": "UniPCMultistepScheduler", "flow_shift": 5.0, "use_flow_sigmas": true,
                "prediction_type": "flow_prediction" },
        });
        let two = settings(&qwen, &sampling(json!({ "guidance": [4.0, 3.0] })), "sample.guidance", 7).unwrap_err();
        assert!(two.to_string().starts_with("sample.guidance"), "{two}");
        let found =
            settings(&wan, &sampling(json!({ "guidance": [4.0, 3.0], "seed": 1 })), "sample.guidance", 7).unwrap();
        assert_eq!((found.schedule.method, found.seed, found.keeps_first_frame), (Method::UniPc, 1, true));
        let scales = [0.95, 0.9, 0.899].map(|time| found.guidance.at(time).scale);
        assert_eq!((scales, found.guidance.keeps_length), ([4.0, 4.0, 3.0], false));
        assert_eq!(found.schedule.shift, Shift::Constant(5.0));
        let asked = sampling(json!({ "sampler": "euler", "shift": 3.0 }));
        let found = settings(&wan, &asked, "sample.guidance", 7).unwrap().schedule;
        assert_eq!((found.method, found.shift, found.to_least), (Method::Euler, Shift::Constant(3.0), true));
        let plain = settings(&json!({}), &sampling(json!({})), "sample.guidance", 0).unwrap().schedule;
        assert_eq!((plain.method, plain.shift), (Method::Euler, Shift::Constant(1.0)));
        assert!(settings(&json!({ "scheduler": { "_class_name": "DDIM" } }), &asked, "sample.guidance", 0).is_err());
    }
}
