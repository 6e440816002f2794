//! A run composed in code: a config, its model, and the pools' models, built in or your own.
//!
//! `loongforge run` is this with nothing replaced. `examples/` shows the rest. The types from which an own model is made are re-exported
//! here, so that one `use` is enough.

use crate::eval::held_out_sets;
use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use crate::model::sources::{fetch, fetch_reader};
use crate::preflight::{Asked, Preflight, PreflightError, WeightsProblem, expect_levels, expect_weights};
use crate::run::engines::{self, Recipe};
use crate::run::packs::{Packs, PacksError, WantedPacks};
use crate::run::policy::as_configured;
use crate::run::uploads;
use loongforge_actors::checkpoint::{Publication, Uploader, Uploads};
use loongforge_actors::{Observer, Publisher, RunError, RunSpec, StopOn, run_in_process};
use loongforge_core::config::{Device, Products, Report, RunConfig, load_text};
use loongforge_core::data::{DataError, Epochs, EpochsError, InProcess, MediaDecoder, count_samples, settle_steps};
use loongforge_core::engine::error_chain;
use loongforge_core::message::{PoolName, SampleId, SkippedSample, StepId, Tower, TowerSet};
use loongforge_core::observe::Console;
use loongforge_core::schedule::{
    CoordinatorSpec, EvaluationSpec, FailedSave, Outcome, PoisonItem, SchedulerState, StepSummary,
};
use loongforge_torch::device::settle;
use loongforge_torch::native::faster_products;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use crate::run::families::Families;
pub(crate) use crate::run::publication::precision_name;
pub use crate::run::publication::{publication, publisher};
pub use loongforge_core::data::{AudioFamily, VisionCut};
pub use loongforge_core::message::Grid;
pub use loongforge_torch::model::{EncoderFamily, EncoderModel, EncoderPart, EncoderTape};
pub use loongforge_torch::model::{FoundationFamily, FoundationModel, FoundationPart, FoundationTape, MicroBatch};
pub use loongforge_torch::params::{Init, ParamId, ParamSpec, ParamStore};
pub use loongforge_torch::tape::{Policy, Slot, Tape};
pub use tch::Tensor;

/// Sets how long an engine may take to stop before it is given up.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Describes where a resumed run begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// The step that comes next.
    pub first_step: StepId,
    /// The position of the data stream, and the values that were fitted.
    pub state: SchedulerState,
}

/// The reasons why there is no run to start.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    /// Everything that is wrong with the config.
    #[error("{0}")]
    Config(Report),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Epochs(#[from] EpochsError),
    #[error("eval: the held-out samples cannot be opened")]
    Eval(#[source] DataError),
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Packs(#[from] PacksError),
}

/// A run that is ready to be started.
pub struct Composition {
    config: RunConfig,
    folder: ModelFolder,
    decoder: Arc<dyn MediaDecoder>,
    /// The packs that were made before the run, where its config asks for such.
    packs: Option<Packs>,
    epochs: Option<Epochs>,
    evaluation: Option<EvaluationSpec>,
    resume: Option<Resume>,
    snapshots: Option<PathBuf>,
    poison_items: Vec<PoisonItem>,
    stop: StopOn,
    local_rank: Option<u32>,
    place: Option<u32>,
}

impl Composition {
    /// Returns the run of this config with built-in models.
    ///
    /// # Errors
    /// The model folder is missing or of a model that is not built in; or it fails as [`Composition::settled`] does.
    pub fn new(config: RunConfig) -> Result<Self, ComposeError> {
        Self::unsettled(config)?.settled()
    }

    /// Returns the run where this process may be one of the run's actors, which need not see the data: `train.epochs` stay what they are,
    /// and there is a recipe, but no run before they are [`Composition::settled`].
    ///
    /// # Errors
    /// The model folder is missing or of a model that is not built in.
    pub fn unsettled(mut config: RunConfig) -> Result<Self, FolderError> {
        fetch(&mut config.model)?;
        config.device = settle(config.device).0;
        let mut folder = ModelFolder::open_settled(&mut config)?;
        folder.config = as_configured(folder.config, &config);
        Ok(Self {
            config,
            folder,
            decoder: Arc::new(InProcess),
            packs: None,
            epochs: None,
            evaluation: None,
            resume: None,
            snapshots: None,
            poison_items: Vec::new(),
            stop: StopOn::Nothing,
            local_rank: None,
            place: None,
        })
    }

    /// Counts the samples where the config has `train.epochs`; its `train.steps` are a number from then on. Opens what is
    /// evaluated while the run goes on.
    ///
    /// # Errors
    /// The data cannot be opened, there are fewer steps than the warm-up takes, or packs that are made before the run are not there.
    pub fn settled(self) -> Result<Self, ComposeError> {
        let Self { config, folder, .. } = &self;
        if config.packs_first() {
            let packs = WantedPacks::new(config, folder)?.expect()?;
            return self.with_packs(packs);
        }
        let num_samples = count_samples(config, &folder.path, &folder.json).map_err(EpochsError::from)?;
        self.settle(num_samples)
    }

    /// Works like [`Composition::settled`] with these packs, which were found or made.
    ///
    /// # Errors
    /// There are fewer steps than the warm-up takes, or a held-out set cannot be opened.
    pub(crate) fn with_packs(self, packs: Packs) -> Result<Self, ComposeError> {
        let num_packs = packs.stats.packs;
        Self { packs: Some(packs), ..self }.settle(Some(num_packs))
    }

    /// Gives the composition what is known once its data is: the steps of its epochs, of so many samples or packs each, and what is
    /// evaluated while the run goes on. `None`: its steps are known.
    ///
    /// # Errors
    /// There are fewer steps than the warm-up takes, no noise level can be planned, or a held-out set cannot be opened.
    fn settle(mut self, num_samples: Option<u64>) -> Result<Self, ComposeError> {
        fetch_reader(&mut self.config)?;
        expect_levels(&self.config, &self.folder)?;
        if let Some(num_samples) = num_samples {
            self.epochs = settle_steps(&mut self.config, num_samples)?.or(self.epochs);
        }
        let sets = held_out_sets::open_during(&self.config, &self.folder, None).map_err(ComposeError::Eval)?;
        self.evaluation = held_out_sets::spec(&self.config, &self.folder, &sets);
        Ok(self)
    }

    /// Works like [`Composition::settled`], after everything was asked that can be known before the run begins. Returns
    /// what the user should know, a line each.
    ///
    /// # Errors
    /// The run could not go, for the reason that is found first; or it fails as [`Composition::settled`] does.
    pub fn preflight(self, asked: Asked) -> Result<(Self, Vec<String>), ComposeError> {
        let (composition, lines) = self.asked(asked)?;
        match composition.config.packs_first() {
            true => Ok((composition.settled()?, lines)),
            false => Ok((composition, lines)),
        }
    }

    /// Works like [`Composition::preflight`]; a run whose packs are made first is not settled before they are.
    ///
    /// # Errors
    /// The first reason for which the run could not go; or there are fewer steps than the warm-up takes.
    pub(crate) fn asked(mut self, asked: Asked) -> Result<(Self, Vec<String>), ComposeError> {
        fetch_reader(&mut self.config)?;
        let Self { config, folder, decoder, .. } = &self;
        let passed = Preflight { config, folder, decoder: decoder.clone() }.ask(asked)?;
        match config.packs_first() {
            true => Ok((self, passed.lines)),
            false => Ok((self.settle(Some(passed.num_samples))?, passed.lines)),
        }
    }

    /// Returns the packs that were made before the run, once it is [`Composition::settled`].
    pub(crate) fn packs(&self) -> Option<&Packs> {
        self.packs.as_ref()
    }

    /// Returns the numbers that the config's epochs came to, if it has any.
    pub fn epochs(&self) -> Option<Epochs> {
        self.epochs
    }

    /// Keeps the numbers that the config's epochs came to in an earlier attempt, whose settled config has only their steps.
    pub(crate) fn of_epochs(self, epochs: Option<Epochs>) -> Self {
        Self { epochs, ..self }
    }

    /// Returns the run of a config's text.
    ///
    /// # Errors
    /// The config has mistakes, all of which are named; or it fails as [`Composition::new`] does.
    pub fn from_yaml(text: &str) -> Result<Self, ComposeError> {
        let loaded = load_text(text).map_err(ComposeError::Config)?;
        Self::new(loaded.config)
    }

    /// Puts another vision tower in. Its features must be as wide as the foundation expects.
    pub fn encoder(mut self, family: impl EncoderFamily + 'static) -> Self {
        self.folder.config.towers.replace(Tower::Vision, Arc::new(family));
        self
    }

    /// Puts another foundation in.
    pub fn foundation(mut self, family: impl FoundationFamily + 'static) -> Self {
        self.folder.config.foundation = Arc::new(family);
        self
    }

    /// Lets `decoder` decode the samples' pictures and videos, for instance a [`Sandbox`](crate::sandbox::Sandbox); else this
    /// process does.
    pub fn decoder(mut self, decoder: Arc<dyn MediaDecoder>) -> Self {
        self.decoder = decoder;
        self
    }

    /// Goes on from a checkpoint.
    pub fn resume(mut self, resume: Option<Resume>) -> Self {
        self.resume = resume;
        self
    }

    /// Keeps checkpoints in this folder, which is memory, as often as `checkpoint.snapshot_every` says.
    pub fn snapshots_in(mut self, folder: Option<&Path>) -> Self {
        self.snapshots = folder.map(Path::to_owned);
        self
    }

    /// Knows which items encoders have died of before.
    pub fn knowing(mut self, poison_items: Vec<PoisonItem>) -> Self {
        self.poison_items = poison_items;
        self
    }

    /// Returns the media items that encoders have died of before.
    pub fn poison_items(&self) -> &[PoisonItem] {
        &self.poison_items
    }

    /// Sets who may stop the run; by default nobody may.
    pub fn stop_on(mut self, stop: StopOn) -> Self {
        self.stop = stop;
        self
    }

    /// Returns whether it goes on from a checkpoint.
    pub fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// Sees to it that the weights that a fresh run begins with are those of its model, before anything is built.
    ///
    /// # Errors
    /// A file is torn, or tensors do not fit, all of which are in one table.
    pub fn expect_weights(&self) -> Result<(), WeightsProblem> {
        match &self.resume {
            None => expect_weights(&self.config, &self.folder),
            Some(_) => Ok(()),
        }
    }

    /// Makes this process take the GPU `rank` of its host, which counts from 0, with `device: cuda`.
    pub fn on_local_rank(mut self, rank: Option<u32>) -> Self {
        self.local_rank = rank;
        self
    }

    /// Makes this process take the GPU of place `place` in its pool, with `device: cuda` and no rank of its host, rather than of its
    /// index, which is greater where it replaces another one.
    pub fn in_place(mut self, place: Option<u32>) -> Self {
        self.place = place;
        self
    }

    /// Returns the run's config as its actors see it.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Returns the model's folder, opened with the run's settings.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Returns the first position of the data stream that the run reads.
    pub fn cursor(&self) -> SampleId {
        self.resume.as_ref().map_or(SampleId(0), |resume| resume.state.cursor)
    }

    /// Returns the positions before that which the run reads again, ascending.
    pub fn held(&self) -> Vec<SampleId> {
        self.resume.as_ref().map_or_else(Vec::new, |resume| resume.state.held.clone())
    }

    /// Returns the run's first step.
    pub fn first_step(&self) -> StepId {
        self.resume.as_ref().map_or(StepId(0), |resume| resume.first_step)
    }

    /// Returns the checkpoint that the run was resumed from, unless that was in memory.
    pub(crate) fn resumed_from_disk(&self) -> Option<&Resume> {
        let is_in_memory = |path: &Path| self.snapshots.as_ref().is_some_and(|memory| path.starts_with(memory));
        self.resume.as_ref().filter(|resume| !is_in_memory(&resume.checkpoint))
    }

    /// Tells how the run's actors compute products: as the config says, else as its checkpoint does, else what is faster on this
    /// processor. `auto` on GPUs.
    pub fn products(&self) -> Products {
        let recorded = self.resume.as_ref().map(|resume| resume.state.products);
        match (self.config.run.products, recorded) {
            _ if self.config.device != Device::Cpu => Products::Auto,
            (Products::Auto, Some(Products::Auto) | None) => faster_products(),
            (Products::Auto, Some(recorded)) => recorded,
            (asked, _) => asked,
        }
    }

    /// Returns the recipe from which engines are made.
    pub fn into_recipe(self) -> Arc<Recipe> {
        let Self { mut config, folder, decoder, local_rank, place, .. } = self;
        let pools = config.pools.encoders(folder.config.towers.set());
        if pools.iter().all(|(name, ..)| *name != PoolName::ENCODER) {
            // A text model, or its towers are in other pools: no actors wait here, and their cores are the others'.
            config.pools.encoder.replicas = 0;
        }
        Arc::new(Recipe { config, folder, decoder, local_rank, place })
    }

    /// Returns the recipe of engines, and the scheduler's settings of the run.
    pub fn into_parts(mut self) -> (Arc<Recipe>, RunSpec) {
        let begin = self.resume.as_ref().map(|resume| (resume.first_step, resume.state.clone()));
        let products = self.products();
        let resume = self.resume.take().map(|resume| resume.checkpoint);
        let is_kept = resume.as_ref().is_none_or(|checkpoint| is_own(checkpoint, &self.config));
        let (snapshots, poison_items) = (self.snapshots.take(), std::mem::take(&mut self.poison_items));
        let stop = std::mem::replace(&mut self.stop, StopOn::Nothing);
        let evaluation = self.evaluation.take();
        let recipe = self.into_recipe();
        let config = &recipe.config;
        let mut coordinator = CoordinatorSpec::new(config, recipe.folder.shape(), begin);
        coordinator.state.poison_items = poison_items;
        coordinator.state.products = products;
        coordinator.is_kept = is_kept;
        let every = Some(config.checkpoint.snapshot_every).filter(|every| *every > 0);
        let spec = RunSpec {
            coordinator: CoordinatorSpec { snapshots: snapshots.zip(every), evaluation, ..coordinator },
            resume,
            queue: config.scheduler.queue,
            stop,
            stop_grace: STOP_GRACE,
            grace: graces(config, recipe.folder.config.towers.set()),
            lease: config.scheduler.lease.duration(),
        };
        (recipe, spec)
    }

    /// Runs all actors in this process until the end.
    ///
    /// # Errors
    /// The run ended early; the error is the first cause.
    pub fn run(self, observer: Box<dyn Observer>) -> Result<Outcome, RunError> {
        let (recipe, spec) = self.into_parts();
        run_in_process(spec, move |assignment| engines::engine(recipe.clone(), assignment), observer)
    }

    /// Works like [`Composition::run`], calling `each_step` after every step. Checkpoints are written as the config
    /// says, and skipped samples named on the error stream.
    ///
    /// # Errors
    /// Fails as [`Composition::run`] does.
    pub fn run_with(self, each_step: impl FnMut(&StepSummary) + 'static) -> Result<Outcome, RunError> {
        let composed = serde_json::to_value(&self.config).expect("a config is JSON");
        let publication = publication(&self.config, composed, &self.folder).map_err(|error| RunError::Start {
            what: "checkpoints".to_owned(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let start = |error| RunError::Start { what: "checkpoint.upload".to_owned(), source: error };
        let (config, console) = (self.config.clone(), Console::stderr());
        let other = |error: &dyn std::fmt::Display| start(std::io::Error::other(error.to_string()));
        // What the store has would be removed.
        if !self.resumes() {
            uploads::expect_none_stored(&config).map_err(|error| other(&error_chain(&error)))?;
        }
        let uploads = uploads::start(&config, !self.resumes(), &console).map_err(start)?;
        let uploader = uploads.as_ref().map(Uploads::uploader);
        let ended = self.run(Box::new(EachStep { each_step, publication, uploader }));
        let copied = uploads::finish(uploads, &config, &console);
        // Why the run has failed comes before what was not copied, of which there was a line.
        let outcome = ended?;
        copied.map_err(|error| other(&error))?;
        Ok(outcome)
    }
}

/// Returns whether `checkpoint` lies in the run's folder of checkpoints.
pub(crate) fn is_own(checkpoint: &Path, config: &RunConfig) -> bool {
    let real = |path: Option<&Path>| path.and_then(|path| path.canonicalize().ok());
    let folder = real(Some(&config.checkpoint.dir));
    folder.is_some() && real(checkpoint.parent()) == folder
}

/// Returns how long a run waits for an encoder of each pool.
fn graces(config: &RunConfig, towers: TowerSet) -> BTreeMap<PoolName, Duration> {
    config.pools.encoders(towers).into_iter().map(|(name, pool, _)| (name, pool.grace.duration())).collect()
}

/// The observer of [`Composition::run_with`].
struct EachStep<F> {
    each_step: F,
    publication: Publication,
    uploader: Option<Uploader>,
}

impl<F: FnMut(&StepSummary)> Observer for EachStep<F> {
    fn step(&mut self, summary: &StepSummary) {
        (self.each_step)(summary);
    }

    fn bad(&mut self, samples: &[SkippedSample]) {
        samples.iter().for_each(|sample| eprintln!("skipped {}: {}", sample.source, sample.reason));
    }

    fn publisher(&mut self) -> Publisher {
        publisher(self.publication.clone(), self.uploader.clone())
    }

    fn save_failed(&mut self, failed: &FailedSave) {
        eprintln!("the checkpoint of {} steps could not be written: {}", failed.step.0 + 1, failed.error);
    }
}
