//! Describes how long every sample is: made once by any number of processes, kept in blocks, and read by whoever packs.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::job::{HOME, Share, read_json, write_json};
use super::ordered::for_each_ordered;
use super::shard::write_whole;
use crate::data::dataset::Dataset;
use crate::data::error::{BadSample, DataError};
use crate::files::if_there;
use crate::message::{SampleMeta, decode, encode};

/// Samples whose measures are one file.
const BLOCK: u64 = 4096;

/// The samples that are measured: the first ones of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub spec: Json,
    pub num_samples: u64,
}

/// A sample of a block.
pub type Measured = Result<SampleMeta, BadSample>;

impl Measure {
    /// Says in the folder what is measured, or sees that it is the same.
    ///
    /// # Errors
    /// The folder has packs of something else, or cannot be written.
    pub fn begin(&self, out: &Path) -> Result<(), DataError> {
        let home = out.join(HOME);
        fs::create_dir_all(&home).map_err(|error| DataError::write(out, error))?;
        let path = home.join("measure.json");
        match read_json::<Self>(&path)? {
            Some(other) if other == *self => Ok(()),
            Some(_) => Err(DataError::file(
                out,
                "the folder holds packs of other data, another model or other options; name another folder, or remove it",
            )),
            None => write_json(&path, self),
        }
    }

    fn num_blocks(&self) -> u64 {
        self.num_samples.div_ceil(BLOCK)
    }

    fn range(&self, block: u64) -> std::ops::Range<u64> {
        block * BLOCK..((block + 1) * BLOCK).min(self.num_samples)
    }

    /// Returns the number of samples that a process of this share measures.
    pub fn num_samples_of(&self, share: Share) -> u64 {
        share.of(self.num_blocks()).map(|block| self.range(block).end - self.range(block).start).sum()
    }

    /// Measures the blocks of a share that are not there yet.
    ///
    /// # Errors
    /// A block cannot be read or written.
    pub fn run(
        &self,
        out: &Path,
        dataset: &Dataset,
        share: Share,
        jobs: usize,
        mut progress: impl FnMut(Option<&BadSample>),
    ) -> Result<(), DataError> {
        for block in share.of(self.num_blocks()) {
            if let Some(measured) = self.read(out, block)? {
                measured.iter().for_each(|sample| progress(sample.as_ref().err()));
                continue;
            }
            let mut measured: Vec<Measured> = Vec::with_capacity(BLOCK as usize);
            let work = |position| dataset.sample(position).map(|sample| sample.meta);
            for_each_ordered(jobs, self.range(block), work, |_, sample: Measured| {
                progress(sample.as_ref().err());
                measured.push(sample);
                Ok::<(), DataError>(())
            })?;
            let bytes = encode(&measured).map_err(|error| DataError::file(out, error))?;
            write_whole(&path(out, block), &bytes)?;
        }
        Ok(())
    }

    /// Returns the number of blocks that are missing.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn num_missing(&self, out: &Path) -> Result<u64, DataError> {
        let mut missing = 0;
        for block in 0..self.num_blocks() {
            missing += u64::from(self.read(out, block)?.is_none());
        }
        Ok(missing)
    }

    /// Returns all samples, in order.
    ///
    /// # Errors
    /// A block is missing.
    pub fn samples(&self, out: &Path) -> impl Iterator<Item = Result<Measured, DataError>> {
        (0..self.num_blocks()).flat_map(move |block| {
            let missing = || DataError::file(&path(out, block), "is missing: measure it");
            match self.read(out, block).and_then(|block| block.ok_or_else(missing)) {
                Ok(measured) => measured.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        })
    }

    /// `None` where a block is not there, or not whole.
    fn read(&self, out: &Path, block: u64) -> Result<Option<Vec<Measured>>, DataError> {
        let path = path(out, block);
        let bytes = if_there(fs::read(&path)).map_err(|error| DataError::read(&path, error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let measured: Option<Vec<Measured>> = decode(&bytes).ok();
        let range = self.range(block);
        Ok(measured.filter(|measured| measured.len() as u64 == range.end - range.start))
    }
}

fn path(out: &Path, block: u64) -> PathBuf {
    out.join(HOME).join(format!("measure-{block:06}.bin"))
}
