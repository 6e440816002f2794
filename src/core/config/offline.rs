//! Says which data a run reads if it packs all samples before the first step (`data.pack.mode: offline`).

use std::borrow::Cow;
use std::path::PathBuf;

use super::{Data, Format, Pack, PackMode, RunConfig, TrainFile};

/// Folder of the packs in `run.dir`.
const PACKS: &str = "packs";

impl RunConfig {
    /// Returns whether packs are made of all samples before the first step.
    pub fn packs_first(&self) -> bool {
        self.data.pack.mode == PackMode::Offline
    }

    /// Returns where such packs are, or will be.
    pub fn packs_dir(&self) -> PathBuf {
        self.run.dir.join(PACKS)
    }

    /// Returns the data whose samples are trained on: `data`, or the packs that were made of it. What `data.val_size` sets aside is
    /// in none of them.
    pub fn training_data(&self) -> Cow<'_, Data> {
        if !self.packs_first() {
            return Cow::Borrowed(&self.data);
        }
        let packs = TrainFile { format: Format::Packed, ..TrainFile::new(self.packs_dir()) };
        let pack = Pack { mode: PackMode::Step, samples: None, ..self.data.pack };
        Cow::Owned(Data { train: vec![packs], val_size: 0.0, pack, ..self.data.clone() })
    }

    /// Returns what a batch is counted in.
    pub fn batch_unit(&self) -> &'static str {
        match self.data.pack.mode {
            PackMode::Step => "samples",
            PackMode::Stream | PackMode::Offline => "packs",
        }
    }
}
