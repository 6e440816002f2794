//! The sets of held-out samples that a config names, and what is computed of them while a run goes on.

use crate::eval::held_out_data::data;
use crate::eval::samples;
use crate::model::folder::ModelFolder;
use loongforge_core::config::{Data, Eval, ModelKind, RunConfig};
use loongforge_core::data::{DataError, Dataset, InProcess, MediaDecoder, ProcessorOptions};
use loongforge_core::engine::WithHeldOut;
use loongforge_core::message::{Purpose, Sigma};
use loongforge_core::schedule::{EvaluationPass, EvaluationSet, EvaluationSpec};
use std::sync::Arc;

/// Samples of one plan, at least: fewer would leave replicas without work.
const MIN_BATCH: usize = 64;
/// Noise levels at which a diffusion model's loss is measured, unless the config says.
const SIGMAS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// A set by its name.
pub struct HeldOutSet {
    pub name: String,
    pub dataset: Dataset,
}

/// Opens the sets of `eval`, in the order of their names there.
///
/// # Errors
/// A file is missing, of an unknown layout, or has no samples; nothing can be set aside.
pub fn open(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: Option<&Arc<dyn MediaDecoder>>,
) -> Result<Vec<HeldOutSet>, DataError> {
    let Some(eval) = &config.eval else { return Ok(Vec::new()) };
    eval.set_names(&config.data).into_iter().map(|name| open_set(config, folder, decoder, (eval, name))).collect()
}

/// Opens one set of `eval` by its name.
///
/// # Errors
/// Fails as [`open`] does.
pub fn open_set(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: Option<&Arc<dyn MediaDecoder>>,
    (eval, name): (&Eval, String),
) -> Result<HeldOutSet, DataError> {
    let decoder = decoder.map_or_else(|| Arc::new(InProcess) as Arc<dyn MediaDecoder>, Arc::clone);
    let file = eval.file(&name);
    let is_own = file.is_some();
    let data = match file {
        None => Data { caption_dropout: None, condition_dropout: None, ..config.data.clone() },
        Some(file) => data(&config.data, file),
    };
    let maker = folder.maker(&ProcessorOptions::of_run(config, &data), decoder)?;
    let dataset = match is_own {
        false => Dataset::open_held(&data, maker)?,
        true => Dataset::open(&data, maker, 0)?.once(),
    };
    let is_policy = dataset.maker().as_policy().is_some();
    let dataset = if is_policy { dataset.asking(config.num_acted()) } else { dataset };
    Ok(HeldOutSet { name, dataset })
}

/// Returns the settings of evaluations while the run goes on. Diffusion models and policies are always evaluated then, if only after the
/// last step: the run's towers are there.
pub fn during<'a>(config: &'a RunConfig, folder: &ModelFolder) -> Option<&'a Eval> {
    config.eval.as_ref().filter(|eval| eval.is_during_run() || folder.model_kind() != ModelKind::Tokens)
}

/// Returns the sets that are evaluated while the run goes on, and behind them the prompts of samples.
///
/// # Errors
/// Fails as [`open`] does.
pub fn open_during(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: Option<&Arc<dyn MediaDecoder>>,
) -> Result<(Vec<HeldOutSet>, Option<Dataset>), DataError> {
    let sets = if during(config, folder).is_some() { open(config, folder, decoder)? } else { Vec::new() };
    Ok((sets, samples::prompts(config, folder, decoder)?))
}

/// Returns the spec of the evaluations that the scheduler orders while the run goes on; `None`: there are none.
pub fn spec(
    config: &RunConfig,
    folder: &ModelFolder,
    (sets, prompts): &(Vec<HeldOutSet>, Option<Dataset>),
) -> Option<EvaluationSpec> {
    let eval = during(config, folder);
    let mut all: Vec<EvaluationSet> = Vec::new();
    if let Some(eval) = eval {
        let levels = samples::is_diffusion(folder).then(|| eval.sigmas.as_deref().unwrap_or(&SIGMAS));
        all.extend(sets.iter().enumerate().map(|(number, set)| scored(config, eval, (number, set), levels)));
    }
    if let (Some(sampling), Some(prompts)) = (&config.sample, prompts) {
        all.push(samples::set(sampling, sets.len(), prompts, config.foundations().len() > 1));
    }
    let decisive = |eval: &Eval| eval.best.as_ref().and_then(|best| sets.iter().position(|set| set.name == *best));
    (!all.is_empty()).then(|| EvaluationSpec {
        sets: all,
        decisive: eval.map(|eval| decisive(eval).unwrap_or(0)),
        save_best: eval.is_some_and(|eval| eval.save_best),
        patience: eval.and_then(|eval| eval.patience),
        min_delta: eval.map_or(0.0, |eval| eval.min_delta),
        batch_size: config.train.global_batch_size.max(MIN_BATCH),
    })
}

/// Returns the passes over a set's samples: for their loss, at each of these noise `levels` where there are some, and for answers.
fn scored(
    config: &RunConfig,
    eval: &Eval,
    (number, HeldOutSet { name, dataset }): (usize, &HeldOutSet),
    levels: Option<&[f64]>,
) -> EvaluationSet {
    let [samples, prompts] = WithHeldOut::streams(number);
    let (len, most) = (dataset.len() as u64, eval.most_of(name));
    let score = |draw: usize, sigma| EvaluationPass {
        purpose: Purpose::Score { draw: draw as u32 },
        stream: samples,
        num_samples: len.min(most),
        max_samples: usize::MAX,
        sigma,
    };
    let passes = match levels {
        Some(levels) => {
            let at = |(draw, sigma): (usize, &f64)| score(draw, Some(Sigma::new(*sigma as f32)));
            levels.iter().enumerate().map(at).collect()
        }
        None => {
            let generate = EvaluationPass {
                purpose: Purpose::Generate { max_new_tokens: eval.max_new_tokens as u32 },
                stream: prompts,
                num_samples: if dataset.is_conversation() { len.min(config.num_answers()) } else { 0 },
                max_samples: eval.batch_size,
                sigma: None,
            };
            // Of a policy the same stream has the frames at which it acts. One that writes actions as tokens acts after the run alone.
            let act = dataset.maker().as_policy().map(|policy| EvaluationPass {
                purpose: Purpose::Act { draw: 0 },
                num_samples: if policy.writes().is_some() { 0 } else { len.min(config.num_acted()) },
                max_samples: usize::MAX,
                ..generate.clone()
            });
            vec![score(0, None), act.unwrap_or(generate)]
        }
    };
    EvaluationSet { name: name.clone(), every: eval.every_steps, at_start: false, passes }
}

/// Returns a line about the evaluations while the run goes on, and about what they leave out.
pub fn summary(config: &RunConfig, folder: &ModelFolder) -> Option<String> {
    let eval = config.eval.as_ref().filter(|eval| eval.is_during_run())?;
    let answers = match config.num_answers() {
        _ if folder.model_kind() != ModelKind::Tokens => String::new(),
        0 => String::new(),
        1 => "; one question of each set is answered".to_owned(),
        count => format!("; up to {count} questions of each set are answered"),
    };
    let names = eval.set_names(&config.data).join(", ");
    // Of epochs that nobody has counted the steps of yet.
    let every = match eval.every_epochs {
        Some(1.0) => "epoch".to_owned(),
        Some(epochs) => format!("{epochs} epochs"),
        None if eval.every_steps == 1 => "step".to_owned(),
        None => format!("{} steps", eval.every_steps),
    };
    Some(format!("evaluated every {every} and at the end: {names}{answers}"))
}
