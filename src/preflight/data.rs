//! Describes whether there is anything to train on: the first samples of every data set, made as the run will make
//! them.

use super::{Preflight, PreflightError};
use crate::eval::samples;
use loongforge_core::config::{Size, TooLong};
use loongforge_core::data::tools::{Survey, default_jobs, survey, too_long_text};
use loongforge_core::data::{BadSample, Dataset, ProcessorOptions};
use loongforge_core::observe::safe;
use std::path::PathBuf;

/// Why a data set is of no use to a run.
#[derive(Debug, thiserror::Error)]
pub enum DataProblem {
    #[error("data.train: none of the {seen} samples of {name} that were looked at can be used; the first: {first}")]
    Unusable { name: PathBuf, seen: u64, first: String },
    #[error(
        "data.train: all {seen} samples of {name} that were looked at are longer than data.pack.max_tokens = \
         {max_tokens}; the first: {first}; raise it, or set data.pack.too_long=truncate"
    )]
    AllTooLong { name: PathBuf, seen: u64, max_tokens: usize, first: String },
    #[error(
        "a sample of {name} sends {} MiB to its encoder at once, and edges.pixels.credit is {credit}: raise it, or make \
         samples smaller (data.image, data.video)",
        .bytes.div_ceil(1 << 20)
    )]
    Credit { name: PathBuf, bytes: u64, credit: Size },
    #[error("sample.prompts: {first}")]
    Prompt { first: String },
    #[error("{first}, and data.pack.too_long is error")]
    TooLong { first: String },
}

impl Preflight<'_> {
    /// Opens all data and looks at the first samples: how many samples there are, and what is to be said of them.
    pub(super) fn data(&self) -> Result<(u64, Vec<String>), PreflightError> {
        let config = self.config;
        let options = ProcessorOptions::of_run(config, &config.data);
        let maker = self.folder.maker(&options, self.decoder.clone())?;
        let dataset = Dataset::open(&config.data, maker, config.run.seed)?;
        let mut lines: Vec<String> = dataset.left_out().iter().map(|left| format!("warning: {left}")).collect();
        let found = survey(&dataset, default_jobs());
        let is_usable = |survey: &Survey| survey.num_usable() > 0;
        for survey in &found {
            self.judge(survey, found.iter().any(is_usable))?;
        }
        for Survey { name, seen, bad, .. } in &found {
            if let Some(first) = bad.first() {
                let (name, first) = (name.display(), described(first));
                lines.push(format!(
                    "warning: {} of {seen} samples of {name} that were looked at are bad; the first: {first}",
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
        if let Some(prompts) = samples::prompts(config, self.folder, Some(&self.decoder))? {
            // Of a prompt that cannot be used no sample would be made: the first one stands for all.
            prompts.prompt(0).map_err(|first| DataProblem::Prompt { first: described(&first) })?;
        }
        Ok((dataset.len() as u64, lines))
    }

    /// Refuses a set of which nothing can be used; `others`: of some set something can.
    fn judge(&self, survey: &Survey, others: bool) -> Result<(), DataProblem> {
        let Survey { name, seen, bad, too_long, .. } = survey;
        let (pack, name, seen) = (&self.config.data.pack, name.clone(), *seen);
        let (bytes, credit) = (survey.max_item_bytes, self.config.edges.pixels.credit);
        if bytes > credit.bytes() {
            return Err(DataProblem::Credit { name, bytes, credit });
        }
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
                Err(DataProblem::AllTooLong { name, seen, max_tokens, first })
            }
            (None, None) => Ok(()),
        }
    }
}

/// A sample and its reason, without what would change the terminal.
fn described(bad: &BadSample) -> String {
    safe(&bad.to_string())
}
