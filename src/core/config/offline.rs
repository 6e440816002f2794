//! The data that a run reads if it packs all samples before the first step (`data.pack.mode: offline`).

use std::borrow::Cow;
use std::path::PathBuf;

use super::{Data, Format, Pack, PackMode, RunConfig, TrainFile};

/// Folder of the packs in `run.dir`.
const PACKS: &str = "packs";

impl RunConfig {
    /// Returns whether all samples are packed before the first step.
    pub fn packs_first(&self) -> bool {
        self.data.pack.mode == PackMode::Offline
    }

    /// Returns the folder of these packs, whether or not they exist.
    pub fn packs_dir(&self) -> PathBuf {
        self.run.dir.join(PACKS)
    }

    /// Returns the training data: `data`, or the packs made from it. Samples held out by `data.val_size` are in neither.
    pub fn training_data(&self) -> Cow<'_, Data> {
        if !self.packs_first() {
            return Cow::Borrowed(&self.data);
        }
        let packs = TrainFile { format: Format::Packed, ..TrainFile::new(self.packs_dir()) };
        let pack = Pack { mode: PackMode::Step, samples: None, ..self.data.pack };
        Cow::Owned(Data { train: vec![packs], val_size: 0.0, pack, ..self.data.clone() })
    }

    /// Returns the unit in which a batch is counted, in the singular.
    pub fn batch_unit(&self) -> &'static str {
        match self.data.pack.mode {
            PackMode::Step => "sample",
            PackMode::Stream | PackMode::Offline => "pack",
        }
    }
}
