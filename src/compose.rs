//! A run composed in code: a config, its model, and the pools' models, built in or your own.
//!
//! `loongforge run` is this with nothing replaced. `examples/` shows the rest.

use crate::folder::{FolderError, ModelFolder};
use crate::roles::{self, Recipe};
use loongforge_actors::checkpoint::Publication;
use loongforge_actors::{Observer, RunError, RunSpec, StopOn, run_in_process};
use loongforge_core::config::{Precision, RunConfig};
use loongforge_core::message::{SampleId, StepId};
use loongforge_core::schedule::{CoordinatorSpec, Outcome};
use loongforge_torch::engine::{EncoderFamily, Families, FoundationFamily};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long an engine may take to stop before it is given up.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Where a resumed run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// The step that comes next.
    pub first_step: StepId,
    /// The first position of the data stream to read.
    pub cursor: SampleId,
}

/// A run that is ready to be started.
pub struct Composition {
    config: RunConfig,
    folder: ModelFolder,
    families: Families,
    resume: Option<Resume>,
    stop: StopOn,
}

impl Composition {
    /// The run of this config with built-in models.
    ///
    /// # Errors
    /// The model folder is missing or of a model that is not built in.
    pub fn new(config: RunConfig) -> Result<Self, FolderError> {
        let folder = ModelFolder::open(&config.model)?;
        let families = Families::of(&folder.config);
        Ok(Self { config, folder, families, resume: None, stop: StopOn::Nothing })
    }

    /// Puts another encoder in. Its features must be as wide as the foundation expects.
    pub fn encoder(mut self, family: impl EncoderFamily + 'static) -> Self {
        self.families.encoder = Some(Arc::new(family));
        self
    }

    /// Puts another foundation in.
    pub fn foundation(mut self, family: impl FoundationFamily + 'static) -> Self {
        self.families.foundation = Arc::new(family);
        self
    }

    /// Goes on from a checkpoint.
    pub fn resume(mut self, resume: Option<Resume>) -> Self {
        self.resume = resume;
        self
    }

    /// Who may stop the run; nobody unless told.
    pub fn stop_on(mut self, stop: StopOn) -> Self {
        self.stop = stop;
        self
    }

    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The run's first step.
    pub fn first_step(&self) -> StepId {
        self.resume.as_ref().map_or(StepId(0), |resume| resume.first_step)
    }

    /// What engines are made from, and what the scheduler begins with.
    pub fn into_parts(self) -> (Arc<Recipe>, RunSpec) {
        let begin = self.resume.as_ref().map(|resume| (resume.first_step, resume.cursor));
        let spec = RunSpec {
            coordinator: CoordinatorSpec::new(&self.config, self.folder.shape(), begin),
            resume: self.resume.map(|resume| resume.checkpoint),
            queue: self.config.scheduler.queue,
            stop: self.stop,
            stop_grace: STOP_GRACE,
        };
        let recipe = Recipe { config: self.config, folder: self.folder, families: self.families };
        (Arc::new(recipe), spec)
    }

    /// Runs all actors in this process until the end.
    ///
    /// # Errors
    /// The first cause that ended the run.
    pub fn run(self, observer: Box<dyn Observer>) -> Result<Outcome, RunError> {
        let (recipe, spec) = self.into_parts();
        run_in_process(spec, move |assignment| roles::engine(recipe.clone(), assignment), observer)
    }
}

/// What every checkpoint of a run holds besides its engines' files.
pub fn publication(config: &RunConfig, composed: Value, folder: &ModelFolder) -> Publication {
    let precision = match config.train.precision {
        Precision::Float32 => "float32",
        Precision::Bf16 => "bf16",
    };
    Publication {
        model_dir: folder.path.clone(),
        model_config: folder.json.clone(),
        config: composed,
        precision: precision.to_owned(),
        keep_last: config.checkpoint.keep_last,
    }
}
