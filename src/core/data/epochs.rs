//! The number of steps that `train.epochs` are, which is known when the samples are counted. Whoever plans a run asks once, right after
//! its config is loaded, and everybody sees `train.steps` from then on. Actors do not use it: they are told each step.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::dataset::Dataset;
use super::error::DataError;
use super::in_process::InProcess;
use super::open_maker::open_maker;
use super::processor::{ProcessorFolders, ProcessorOptions};
use crate::config::{RunConfig, Train};

/// The steps that the epochs of a config come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs {
    pub epochs: f64,
    /// The number of samples of all data sets together, those that will turn out to be bad included.
    pub num_samples: u64,
    pub steps: u64,
    /// The steps of the run, where `train.steps` says fewer.
    pub most: Option<u64>,
}

impl Epochs {
    /// Returns the part of an epoch that a step is.
    pub fn per_step(&self) -> f64 {
        self.epochs / self.steps as f64
    }
}

/// The reason why epochs give no number of steps.
#[derive(Debug, thiserror::Error)]
pub enum EpochsError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(
        "`train.warmup_steps` {warmup_steps} is more than the {steps} steps of `train.epochs` {epochs} over \
         {num_samples} samples: the learning rate would never reach its peak; lower `train.warmup_steps` (0: no warm-up), or set \
         `train.warmup_ratio` in its place"
    )]
    Warmup { warmup_steps: u64, steps: u64, epochs: f64, num_samples: u64 },
    #[error(
        "a warm-up of {warmup_steps} and a decay of {decay_steps} steps (`train.decay_steps`) exceed the {steps} steps of \
         `train.epochs` {epochs} over {num_samples} samples: the learning rate would decay before it has reached its peak"
    )]
    Decay { warmup_steps: u64, decay_steps: u64, steps: u64, epochs: f64, num_samples: u64 },
    #[error(
        "`watch.profile`: step {last} is to be recorded, but the run has only the {steps} steps of `train.epochs` {epochs} over \
         {num_samples} samples: record earlier steps"
    )]
    Profile { last: u64, steps: u64, epochs: f64, num_samples: u64 },
}

/// Counts the samples of an epoch; `None` where the config has no `train.epochs`. The model's folder and `config.json` are those of
/// the run.
///
/// # Errors
/// The data cannot be opened.
pub fn count_samples(config: &RunConfig, model_dir: &Path, model_config: &Json) -> Result<Option<u64>, DataError> {
    if config.train.epochs.is_none() {
        return Ok(None);
    }
    let options = ProcessorOptions::of_run(config, &config.data);
    let folders = ProcessorFolders::of(model_dir);
    let maker = open_maker(folders, model_config, &options, Arc::new(InProcess))?;
    Ok(Some(Dataset::open(&config.training_data(), maker, config.run.seed)?.len() as u64))
}

/// Puts a number of `train.steps` in the place of `train.epochs`, where an epoch is `num_samples` samples, or as many packs, and the
/// steps that were set are not fewer, and `every_steps` in the place of `every_epochs`; `None` where the config has no epochs.
///
/// # Errors
/// There are fewer steps than the warm-up takes, than the warm-up and the decay at the end do, or than are to be profiled.
pub fn settle_steps(config: &mut RunConfig, num_samples: u64) -> Result<Option<Epochs>, EpochsError> {
    let Train { epochs, steps: most, global_batch_size, warmup_steps, .. } = config.train;
    let Some(epochs) = epochs else { return Ok(None) };
    let steps = num_steps(epochs, num_samples, global_batch_size as u64);
    if warmup_steps > steps {
        return Err(EpochsError::Warmup { warmup_steps, steps, epochs, num_samples });
    }
    let of = |epochs: f64| num_steps(epochs, num_samples, global_batch_size as u64);
    if let Some(every) = config.checkpoint.every_epochs.take() {
        config.checkpoint.every_steps = of(every);
    }
    if let Some(eval) = &mut config.eval
        && let Some(every) = eval.every_epochs.take()
    {
        eval.every_steps = of(every);
    }
    if let Some(sample) = &mut config.sample
        && let Some(every) = sample.every_epochs.take()
    {
        sample.every_steps = of(every);
    }
    let most = most.filter(|most| *most < steps);
    // Only `wsd` has such a decay; with `train.steps` alone the config is refused as it is read.
    let (all, decay_steps) = (most.unwrap_or(steps), config.train.decay_steps.unwrap_or(0));
    let warmup_steps = config.train.num_warmup_steps(all);
    if warmup_steps.saturating_add(decay_steps) > all {
        return Err(EpochsError::Decay { warmup_steps, decay_steps, steps: all, epochs, num_samples });
    }
    let last = config.watch.profile.map_or(0, |profile| profile.first.saturating_add(profile.steps) - 1);
    if last > all {
        return Err(EpochsError::Profile { last, steps: all, epochs, num_samples });
    }
    (config.train.steps, config.train.epochs) = (most.or(Some(steps)), None);
    Ok(Some(Epochs { epochs, num_samples, steps, most }))
}

/// Returns the number of steps, rounded up: the last step of the last epoch may begin the next one.
fn num_steps(epochs: f64, num_samples: u64, global_batch_size: u64) -> u64 {
    let steps = epochs * num_samples as f64 / global_batch_size as f64;
    // What is a whole number but for the rounding of a decimal fraction is that number.
    let whole = steps.round();
    let steps = if (steps - whole).abs() <= 1e-9 * whole { whole } else { steps.ceil() };
    (steps as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text_with;
    use crate::data::digits::{Digits, MODEL, compose, write_model};
    use crate::data::tokenizer_file::read_json;

    #[test]
    fn steps_are_rounded_up_and_fractions_are_exact() {
        assert_eq!(num_steps(3.0, 16_000, 128), 375);
        assert_eq!([1.0, 0.5, 0.01].map(|epochs| num_steps(epochs, 41, 8)), [6, 3, 1]);
        // 1.1 is a little more in binary.
        assert_eq!([1.1, 2.3, 0.7].map(|epochs| num_steps(epochs, 1000, 10)), [110, 230, 70]);
        assert_eq!(num_steps(1.0, u64::MAX >> 12, 1), u64::MAX >> 12);
    }

    /// Makes a config of ten pictures, which have files, beside `more` samples of text.
    fn config(dir: &Path, more: usize, overrides: &[&str]) -> RunConfig {
        compose(&dir.join("data"), &Digits { seed: 2, num_train: 10, num_held_out: 1 }).unwrap();
        write_model(&dir.join("model"), &MODEL).unwrap();
        let line = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        std::fs::write(dir.join("text.jsonl"), format!("{line}\n").repeat(more)).unwrap();
        let root = dir.display();
        let text = format!(
            "run: {{ name: t }}
model: {{ load: {root}/model, weights: random }}
data: {{ train: [{{ path: {root}/data/train.jsonl }}, {{ path: {root}/text.jsonl, weight: 7 }}] }}
train: {{ epochs: 2.5, global_batch_size: 4, lr: 1e-5 }}"
        );
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        load_text_with(&text, &overrides).unwrap_or_else(|report| panic!("{report}")).config
    }

    fn settle(config: &mut RunConfig, dir: &Path) -> Result<Option<Epochs>, EpochsError> {
        let model = dir.join("model");
        let num_samples = count_samples(config, &model, &read_json(&model.join("config.json")).unwrap())?;
        num_samples.map_or(Ok(None), |num_samples| settle_steps(config, num_samples))
    }

    #[test]
    fn an_epoch_is_as_many_samples_as_all_files_have() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), 7, &[]);
        let wanted = Epochs { epochs: 2.5, num_samples: 17, steps: 11, most: None };
        assert_eq!(settle(&mut config, folder.path()).unwrap(), Some(wanted));
        assert_eq!(wanted.per_step() * 11.0, 2.5);
        assert_eq!((config.train.num_steps(), config.train.epochs), (11, None));
        // Settled once, and the config of a run may be read again.
        assert_eq!(settle(&mut config, folder.path()).unwrap(), None);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(load_text_with(&text, &[]).unwrap().config, config);
        // Steps beside them count where they are fewer.
        for (steps, most, all) in [(4, Some(4), 4), (11, None, 11), (90, None, 11)] {
            let mut both = self::config(folder.path(), 7, &[&format!("train.steps={steps}")]);
            assert_eq!(settle(&mut both, folder.path()).unwrap(), Some(Epochs { most, ..wanted }));
            assert_eq!((both.train.num_steps(), both.train.epochs), (all, None));
        }
    }

    #[test]
    fn checkpoints_evaluations_and_samples_of_epochs_are_those_of_their_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/held_out.jsonl");
        let eval = format!("eval={{path: {}, every_epochs: 0.5, patience: 2}}", path.display());
        let sample = format!("sample={{prompts: {}, every_epochs: 0.25}}", path.display());
        let mut config = config(folder.path(), 6, &["checkpoint.every_epochs=1", &eval, &sample]);
        assert!(config.eval.as_ref().unwrap().is_during_run());
        // An epoch has 16 samples, and a step 4.
        settle(&mut config, folder.path()).unwrap();
        let (eval, sample) = (config.eval.as_ref().unwrap(), config.sample.as_ref().unwrap());
        assert_eq!([config.checkpoint.every_steps, eval.every_steps, sample.every_steps], [4, 2, 1]);
        assert_eq!([config.checkpoint.every_epochs, eval.every_epochs, sample.every_epochs], [None; 3]);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(load_text_with(&text, &[]).unwrap().config, config);
    }

    #[test]
    fn what_cannot_be_settled_names_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let mut long = config(folder.path(), 7, &["train.warmup_steps=12"]);
        let error = settle(&mut long, folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("`train.warmup_steps` 12") && error.contains("11 steps of `train.epochs` 2.5"),
            "{error}"
        );
        assert!(error.contains("set `train.warmup_ratio` in its place"), "{error}");
        let wsd = ["train.schedule=wsd", "train.warmup_steps=4"];
        let mut decay = config(folder.path(), 7, &[&wsd[..], &["train.decay_steps=8"]].concat());
        let error = settle(&mut decay, folder.path()).unwrap_err().to_string();
        assert!(error.contains("a warm-up of 4 and a decay of 8 steps") && error.contains("the 11 steps"), "{error}");
        let mut fits = config(folder.path(), 7, &[&wsd[..], &["train.decay_steps=7"]].concat());
        assert!(settle(&mut fits, folder.path()).is_ok());
        let mut profiled = config(folder.path(), 7, &["watch.profile={first: 11, steps: 2}"]);
        let error = settle(&mut profiled, folder.path()).unwrap_err().to_string();
        assert!(error.contains("`watch.profile`: step 12") && error.contains("only the 11 steps"), "{error}");
        let mut empty = config(folder.path(), 0, &[]);
        let error = settle(&mut empty, folder.path()).unwrap_err();
        // What is wrong with the data is wrong with `train.steps`, too.
        assert!(error.to_string().ends_with("text.jsonl has no samples"), "{error}");
    }
}
