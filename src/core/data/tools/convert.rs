//! Any format to WebDataset shards.

use std::path::Path;

use serde_json::json;

use super::input::{Inputs, path_text};
use super::job::{Done, Job, Share};
use super::record::{self, Look};
use crate::data::error::{BadSample, DataError};

/// Describes how shards are cut and what is looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Convert {
    /// Samples of a shard.
    pub max_samples: u64,
    /// Bytes of a shard; one sample that is larger has a shard of its own.
    pub max_bytes: u64,
    pub look: Look,
    /// The cooker that Megatron-Energon is to use.
    pub sample_type: String,
}

impl Default for Convert {
    fn default() -> Self {
        let sample_type = "multi_mix_qa".to_owned();
        Self { max_samples: 10_000, max_bytes: 1 << 30, look: Look::Header, sample_type }
    }
}

impl Convert {
    fn job(&self, inputs: &Inputs) -> Job {
        let look = if self.look == Look::Whole { "whole" } else { "header" };
        Job {
            kind: "convert".to_owned(),
            spec: json!({ "inputs": inputs.spec(), "look": look }),
            num_samples: inputs.len(),
            group_samples: self.max_samples.max(1),
            max_bytes: self.max_bytes,
            sample_type: self.sample_type.clone(),
            bad: Vec::new(),
        }
    }
}

/// Writes the shards of a share of `inputs`; with the whole, also the metadata. `progress` is told of every sample.
///
/// # Errors
/// `out` holds something else or cannot be written. A bad sample is no error: it is listed.
pub fn convert(
    inputs: &Inputs,
    out: &Path,
    how: &Convert,
    share: Share,
    jobs: usize,
    progress: impl FnMut(u64, Option<&BadSample>),
) -> Result<Done, DataError> {
    one_kind(inputs)?;
    let job = how.job(inputs);
    job.begin(out)?;
    let work = |index| {
        let (content, base) = inputs.read(index)?;
        record::members(&content, base, how.look, inputs.decoder())
            .map_err(|error| inputs.bad(index, error.to_string()))
    };
    let done = job.write(out, share, jobs, work, progress)?;
    if share == Share::WHOLE {
        job.merge(out)?;
    }
    Ok(done)
}

/// Shards hold conversations or texts: readers tell which by the first sample.
fn one_kind(inputs: &Inputs) -> Result<(), DataError> {
    let mut kinds = [None, None];
    for ((file, _), format) in inputs.files().zip(inputs.formats()) {
        let refused = match format {
            "tokens" => {
                Some("holds tokens without their text, which shards cannot hold: make packs of them with `data pack`")
            }
            "captioned" => Some(
                "has pictures or clips with captions, which shards of conversations cannot hold: train on it as it is",
            ),
            _ => None,
        };
        if let Some(reason) = refused {
            return Err(DataError::file(Path::new(&path_text(file)), reason));
        }
        kinds[usize::from(matches!(format, "text" | "plain"))] = Some(file);
    }
    match kinds {
        [Some(conversations), Some(texts)] => {
            let other = path_text(conversations);
            let reason = format!("has texts, but {other} has conversations: convert them into folders of their own");
            Err(DataError::file(Path::new(&path_text(texts)), reason))
        }
        _ => Ok(()),
    }
}

/// Samples of a share, as `progress` will count them.
pub fn num_samples(inputs: &Inputs, how: &Convert, share: Share) -> u64 {
    how.job(inputs).num_samples_of(share)
}

/// Joins the parts of a job that several processes wrote.
///
/// # Errors
/// The folder has no job, a part is missing, or a file cannot be written.
pub fn merge(out: &Path) -> Result<Done, DataError> {
    Job::open(out)?.merge(out)
}
