//! Describes whether there is anything to train on: the first samples of every data set, made as the run will make
//! them.

use super::first_read::{FirstRead, expect_first_read};
use super::shares::uneven;
use super::{Preflight, PreflightError};
use crate::answer::{Positions, possible_stretch};
use crate::estimate::memory::forecast;
use crate::eval::samples;
use loongforge_core::config::{ModelKind, Placement, RunConfig, TooLong};
use loongforge_core::data::tools::{Survey, default_jobs, survey, too_long_text};
use loongforge_core::data::{BadSample, Dataset, PACKED_ALREADY, ProcessorOptions};
use loongforge_core::message::SampleMeta;
use loongforge_core::observe::safe;
use loongforge_core::schedule::{MIN_SEEN, are_too_many_bad};
use loongforge_torch::engine::OverBudget;
use std::path::PathBuf;

/// Steps after which a budget is known to be kept: the first two micro-batches are computed again while they are measured.
const BUDGET_STEPS: usize = 3;
/// Samples that are read for that, at most.
const MAX_OF_BUDGET: usize = 256;

/// The reasons why a data set is of no use to a run.
#[derive(Debug, thiserror::Error)]
pub enum DataProblem {
    #[error("data.train: none of the {seen} samples of {name} that were looked at can be used; the first: {first}")]
    Unusable { name: PathBuf, seen: u64, first: String },
    #[error(
        "data.train: all {seen} samples of {name} that were looked at are longer than data.pack.max_tokens = \
         {max_tokens}; the first: {first}; raise it, or {otherwise}"
    )]
    AllTooLong { name: PathBuf, seen: u64, max_tokens: usize, first: String, otherwise: &'static str },
    #[error("data.train: {} {}", .name.display(), PACKED_ALREADY)]
    PackedAlready { name: PathBuf },
    #[error("data.system: no set of data.train has conversations, to which alone it applies: leave it out")]
    NoConversations,
    #[error("sample.prompts: {first}")]
    Prompt { first: String },
    #[error("{first}, and data.pack.too_long is error")]
    TooLong { first: String },
    #[error(
        "edges.{edge}.credit is {credit} bytes, but {what} of {name} takes {needed}, which could never be sent: raise it"
    )]
    Credit { edge: &'static str, credit: u64, what: &'static str, name: PathBuf, needed: usize },
    #[error(
        "data.train: {bad} of {seen} samples that were looked at are bad, so at least {least} of the {all} that the run reads \
         are: the run would end, since this is more than data.on_bad_sample.max_fraction = {limit} allows; the first: {first}"
    )]
    TooManyBad { bad: usize, seen: u64, all: u64, least: u64, limit: f64, first: String },
    #[error(transparent)]
    FirstRead(#[from] FirstRead),
}

impl Preflight<'_> {
    /// Opens all data and looks at the first samples: how many samples there are, and what is to be said of them.
    /// `begins`: the run reads them from the first on.
    pub(super) fn data(&self, begins: bool) -> Result<(u64, Vec<String>), PreflightError> {
        let config = self.config;
        let options = ProcessorOptions::of_run(config, &config.data);
        let maker = self.folder.maker(&options, self.decoder.clone())?;
        let dataset = Dataset::open(&config.data, maker, config.run.seed)?;
        if let Some(name) = dataset.packed_source().filter(|_| config.packs_first()) {
            return Err(DataProblem::PackedAlready { name: name.to_owned() }.into());
        }
        if config.data.system.is_some() && !dataset.has_conversations() {
            return Err(DataProblem::NoConversations.into());
        }
        let mut lines: Vec<String> = dataset.left_out().iter().map(|left| format!("warning: {left}")).collect();
        lines.extend(dataset.maker().of_data().iter().map(|note| format!("warning: {}", safe(note))));
        let found = survey(&dataset, default_jobs());
        let is_usable = |survey: &Survey| survey.num_usable() > 0;
        for survey in &found {
            self.judge(survey, found.iter().any(is_usable))?;
        }
        self.expect_credit(&found)?;
        self.expect_few_bad(&found, dataset.len() as u64)?;
        if begins {
            let wanted = num_read(config, dataset.len() as u64);
            expect_first_read(config, &dataset, &found, wanted).map_err(DataProblem::from)?;
            self.expect_budget(&dataset)?;
        }
        let limit = config.data.on_bad_sample.max_fraction;
        for Survey { name, seen, bad, .. } in &found {
            if let Some(first) = bad.first() {
                let (name, first) = (name.display(), described(first));
                let share = bad.len() as f64 / (*seen).max(1) as f64;
                let meaning = match share > limit {
                    true => format!(
                        " ({:.1} %; from {MIN_SEEN} samples on, a run ends if more than data.on_bad_sample.max_fraction = {limit} \
                         are)",
                        100.0 * share
                    ),
                    false => String::new(),
                };
                lines.push(format!(
                    "warning: {} of {seen} samples of {name} that were looked at are bad{meaning}; the first: {first}",
                    bad.len()
                ));
            }
        }
        let sum = |count: fn(&Survey) -> u64| found.iter().map(count).sum::<u64>();
        let too_long = sum(|survey| survey.too_long.len() as u64);
        if too_long > 0 {
            let text = too_long_text(too_long, sum(|survey| survey.seen), sum(|survey| survey.len), options.max_tokens);
            lines.push(format!("{text} and {} skipped", if too_long == 1 { "is" } else { "are" }));
        }
        lines.extend(self.beyond_positions(&found));
        lines.extend(uneven(config, &found));
        if let Some(prompts) = samples::prompts(config, self.folder, Some(&self.decoder))? {
            // Of a prompt that cannot be used no sample would be made: the first one stands for all.
            prompts.prompt(0).map_err(|first| DataProblem::Prompt { first: safe(&first.to_string()) })?;
        }
        Ok((dataset.len() as u64, lines))
    }

    /// Says where a sample has more tokens than the model has positions: `generate` and `serve` go no further, nor do other programs.
    fn beyond_positions(&self, found: &[Survey]) -> Option<String> {
        let is_text = self.folder.model_kind() == ModelKind::Tokens;
        let positions = Positions::of(&self.folder.json).filter(|positions| is_text && !positions.apart)?;
        let most = (positions.most as f64 * possible_stretch(&self.folder.json)) as usize;
        let longest = found.iter().max_by_key(|survey| survey.document_tokens)?;
        (longest.document_tokens as usize > most).then(|| {
            format!(
                "warning: a sample of {} has {} tokens, more than the {most} positions of the model \
                 (max_position_embeddings in its config.json), which may know none beyond them: lower \
                 data.pack.max_tokens, or stretch its positions (model.overrides)",
                longest.name.display(),
                longest.document_tokens
            )
        })
    }

    /// Refuses edges over which what was looked at could not be sent.
    fn expect_credit(&self, found: &[Survey]) -> Result<(), DataProblem> {
        let edges = &self.config.edges;
        let largest = |bytes: fn(&Survey) -> usize| {
            let survey = found.iter().max_by_key(|survey| bytes(survey));
            survey.map(|survey| (survey.name.clone(), bytes(survey)))
        };
        let needs = [
            (
                "pixels",
                edges.pixels.credit,
                "an item (a picture, clip, recording or answer for the reference)",
                largest(|survey| survey.item_bytes),
            ),
            ("tokens", edges.tokens.credit, "a sample", largest(|survey| survey.column_bytes)),
        ];
        for (edge, credit, what, largest) in needs {
            if let Some((name, needed)) = largest.filter(|(_, needed)| *needed as u64 > credit.bytes()) {
                return Err(DataProblem::Credit { edge, credit: credit.bytes(), what, name, needed });
            }
        }
        self.expect_credit_of_features(found)
    }

    /// Checks the credit of features in the same way. One encoder sends those of a whole sample, several may share them.
    fn expect_credit_of_features(&self, found: &[Survey]) -> Result<(), DataProblem> {
        let (pools, shape, credit) = (&self.config.pools, self.folder.shape(), self.config.edges.features.credit);
        if pools.placement == Placement::Colocated {
            return Ok(());
        }
        for (_, pool, towers) in pools.encoders(self.folder.config.towers.set()) {
            if pool.reads() {
                continue;
            }
            let (at, what) = match pool.replicas {
                1 => (1, "the encoder's result for a sample"),
                _ => (0, "the encoder's result for a picture, clip or recording"),
            };
            for survey in found {
                let bytes = towers.iter().map(|tower| {
                    let features = survey.features.get(&tower).map_or(0, |features| features[at]);
                    features * shape.bytes_per_feature.of(tower)
                });
                let needed: u64 = if at == 1 { bytes.sum() } else { bytes.max().unwrap_or(0) };
                if needed > credit.bytes() {
                    let (name, needed) = (survey.name.clone(), needed as usize);
                    return Err(DataProblem::Credit { edge: "features", credit: credit.bytes(), what, name, needed });
                }
            }
        }
        Ok(())
    }

    /// Refuses a budget of activations that the run's first steps could not be kept to.
    fn expect_budget(&self, dataset: &Dataset) -> Result<(), PreflightError> {
        let budget = &self.config.memory.activation_budget;
        if (budget.foundation.is_none() && budget.encoder.is_none()) || self.config.packs_first() {
            return Ok(());
        }
        let count = (BUDGET_STEPS * self.config.train.global_batch_size).min(MAX_OF_BUDGET);
        let good = (0..2 * count as u64).filter_map(|position| dataset.sample(position).ok());
        let samples: Vec<SampleMeta> = good.take(count).map(|sample| sample.meta).collect();
        let mut config = self.config.clone();
        // Whatever the epochs come to.
        (config.train.steps, config.train.epochs) = (Some(BUDGET_STEPS as u64), None);
        match forecast(&config, self.folder, &samples) {
            Err(error) if error.is::<OverBudget>() => Err(PreflightError::Engine(error)),
            // What else may be wrong is asked elsewhere.
            _ => Ok(()),
        }
    }

    /// Refuses a run that will come to its limit of bad samples whatever those are that were not looked at. An epoch has `num_samples`.
    fn expect_few_bad(&self, found: &[Survey], num_samples: u64) -> Result<(), DataProblem> {
        let (config, limit) = (self.config, self.config.data.on_bad_sample.max_fraction);
        let all = num_read(config, num_samples);
        let shares = found.iter().enumerate().map(|(set, survey)| config.data.share(set, survey.len));
        let shares: Vec<f64> = shares.collect();
        let total: f64 = shares.iter().sum();
        // A set is gone over as often as its share of what is read allows.
        let passes = |(survey, share): (&Survey, &f64)| {
            let share = (share / total * all as f64).floor() as u64;
            (share / survey.len.max(1)) * survey.bad.len() as u64
        };
        let least: u64 = found.iter().zip(&shares).map(passes).sum();
        // Good samples are counted, and bad ones read beside them.
        let read = all + least;
        let first = found.iter().find_map(|survey| survey.bad.first());
        match first.filter(|_| are_too_many_bad(least, read, limit)) {
            Some(first) => {
                let (bad, seen) =
                    (found.iter().map(|survey| survey.bad.len()).sum(), found.iter().map(|s| s.seen).sum());
                Err(DataProblem::TooManyBad { bad, seen, all: read, least, limit, first: described(first) })
            }
            None => Ok(()),
        }
    }

    /// Refuses a set of which nothing can be used; `others`: of some set something can.
    fn judge(&self, survey: &Survey, others: bool) -> Result<(), DataProblem> {
        let Survey { name, seen, bad, too_long, .. } = survey;
        let (pack, name, seen) = (&self.config.data.pack, name.clone(), *seen);
        if let Some(first) = too_long.first().filter(|_| pack.too_long == TooLong::Error) {
            return Err(DataProblem::TooLong { first: described(first) });
        }
        // A config may allow any number of bad samples.
        let any = self.config.data.on_bad_sample.max_fraction >= 1.0 && others;
        match (bad.first(), too_long.first()) {
            _ if survey.num_usable() > 0 || any => Ok(()),
            (Some(first), _) => Err(DataProblem::Unusable { name, seen, first: described(first) }),
            (None, Some(first)) => {
                let (max_tokens, first) = (pack.max_tokens, described(first));
                let otherwise = match self.folder.model_kind() {
                    ModelKind::Diffusion { .. } => {
                        "make the samples smaller: data.image.area, data.video.area and frames"
                    }
                    _ => "set data.pack.too_long=truncate",
                };
                Err(DataProblem::AllTooLong { name, seen, max_tokens, first, otherwise })
            }
            (None, None) => Ok(()),
        }
    }
}

/// Returns how many samples a run reads at least, of which an epoch has `num_samples`.
pub(super) fn num_read(config: &RunConfig, num_samples: u64) -> u64 {
    if config.packs_first() {
        return config.data.pack.samples.unwrap_or(num_samples);
    }
    // A batch of packs has at least as many samples.
    let of_steps = config.train.steps.map(|steps| steps.saturating_mul(config.train.global_batch_size as u64));
    let of_epochs = config.train.epochs.map(|epochs| (epochs * num_samples as f64).floor() as u64);
    of_steps.into_iter().chain(of_epochs).min().unwrap_or(0)
}

/// Returns a sample and its reason, without what would change the terminal, and where its files are looked for if one is not there.
fn described(bad: &BadSample) -> String {
    let told = safe(&bad.to_string());
    match bad.reason.contains("No such file or directory") {
        true => format!("{told}; files are looked for in the folder of their list, or in media_dir of the data set"),
        false => told,
    }
}
