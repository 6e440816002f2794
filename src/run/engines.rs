//! The engine of each role: the only file that sees data, models and actors together.

use crate::eval::{held_out_sets, samples};
use crate::model::folder::ModelFolder;
use crate::run::snapshots::is_in_memory;
use loongforge_actors::{Assignment, EngineFactory};
use loongforge_core::checkpoint::{Manifest, latest};
use loongforge_core::config::{ModelKind, RunConfig};
use loongforge_core::data::{Dataset, MediaDecoder, ProcessorOptions};
use loongforge_core::engine::{DataEngine, Engine, EngineError, WithHeldOut};
use loongforge_core::message::{ActorId, Role, StepId, Tower, TowerSet};
use loongforge_torch::engine::{EngineSpec, build_engine};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The inputs from which every engine of a run is made.
#[derive(Clone)]
pub struct Recipe {
    pub config: RunConfig,
    /// The folder of the models, which are built-in ones unless a program puts in its own.
    pub folder: ModelFolder,
    /// The decoder of the samples' pictures and videos.
    pub decoder: Arc<dyn MediaDecoder>,
    /// The rank of this process on its host, where a launcher says so.
    pub local_rank: Option<u32>,
    /// The place of this process in its pool, where it was started for one.
    pub place: Option<u32>,
}

/// Returns the maker of one actor's engine, to be called on the thread that will run it.
pub fn engine(recipe: Arc<Recipe>, assignment: Assignment) -> EngineFactory {
    Box::new(move || build(&recipe, assignment))
}

fn build(recipe: &Recipe, assignment: Assignment) -> Result<Box<dyn Engine>, EngineError> {
    match assignment.me.role {
        Role::Scheduler => Err("the scheduler has no engine".into()),
        Role::Data => Ok(Box::new(data_engine(recipe, &assignment)?)),
        Role::Encoder | Role::Foundation => Ok(Box::new(build_engine(&engine_spec(recipe, assignment)?)?)),
    }
}

/// Opens the data of a run, held-out sets included, for a data actor.
fn data_engine(recipe: &Recipe, assignment: &Assignment) -> Result<DataEngine, EngineError> {
    let Recipe { config, folder, decoder, .. } = recipe;
    let options = ProcessorOptions::of_run(config, &config.data);
    let maker = folder.maker(&options, decoder.clone())?;
    let train = Dataset::open(&config.training_data(), maker, config.run.seed)?;
    let (sets, prompts) = held_out_sets::open_during(config, folder, Some(decoder))?;
    let sets = sets.into_iter().map(|set| set.dataset).chain(prompts).collect();
    let memory = config.pools.data.memory.bytes();
    let (index, num_data) = (assignment.me.index, assignment.pools.data);
    let engine =
        DataEngine::new(index, num_data, config.pools.placement, memory, Box::new(WithHeldOut { train, sets }));
    Ok(engine.with_encoder_ranks(config.pools.encoder_ranks()))
}

/// Describes the engine of an actor that computes.
fn engine_spec(recipe: &Recipe, assignment: Assignment) -> Result<EngineSpec, EngineError> {
    let Recipe { config, folder, local_rank, place, .. } = recipe;
    // An encoder that joins takes what is trained from another one; the checkpoint may be gone by then.
    let joins = assignment.me.role == Role::Encoder && !assignment.pools.contains(assignment.me);
    let (resume, frozen_from) = match &assignment.resume {
        Some(checkpoint) if joins => (None, frozen_from(checkpoint, assignment.me, recipe)?),
        Some(checkpoint) => {
            let first_step = StepId(Manifest::read(checkpoint)?.num_steps);
            (Some((checkpoint.clone(), first_step)), None)
        }
        None => (None, None),
    };
    let mut config = config.clone();
    config.run.products = assignment.products;
    Ok(EngineSpec {
        model: folder.config.clone(),
        me: assignment.me,
        rendezvous: assignment.rendezvous,
        local_rank: *local_rank,
        place: *place,
        reads: assignment.reads,
        resume,
        frozen_from,
        stop_token_ids: stop_tokens(&config, folder)?,
        samples: samples::spec(&config, folder)?,
        config,
    })
}

/// Returns a checkpoint with the weights of frozen towers for an encoder that joins a run which was resumed: nobody sends it those, and
/// the run may have trained them before.
///
/// # Errors
/// There is none, and the encoder's towers are frozen.
fn frozen_from(resumed: &Path, me: ActorId, recipe: &Recipe) -> Result<Option<PathBuf>, EngineError> {
    let Recipe { config, folder, .. } = recipe;
    let found = with_frozen_weights(resumed, &config.checkpoint.dir);
    let pools = config.pools.encoders(folder.config.towers.set());
    // An autoencoder and a reference model are never trained.
    let may_train = |towers: TowerSet| towers.iter().any(|tower| !matches!(tower, Tower::Vae | Tower::Reference));
    let is_frozen = |towers: TowerSet| may_train(towers) && config.model.has_frozen(towers);
    if found.is_none() && pools.iter().any(|(name, _, towers)| *name == me.pool && is_frozen(*towers)) {
        let (path, dir) = (resumed.display(), config.checkpoint.dir.display());
        return Err(format!(
            "{me} joins a run that was resumed from {path}, which is not there any more, and {dir} has no checkpoint: the weights \
             of its frozen towers are nowhere; keep {path} until the run has saved a checkpoint"
        )
        .into());
    }
    Ok(found)
}

/// Returns a checkpoint that has the weights which do not change: the one that the run was resumed from, or one of those in `dir` that have
/// replaced it.
fn with_frozen_weights(resumed: &Path, dir: &Path) -> Option<PathBuf> {
    if Manifest::read(resumed).is_ok() {
        return Some(resumed.to_owned());
    }
    let beside = resumed.parent().filter(|_| is_in_memory(resumed));
    [Some(dir), beside].into_iter().flatten().find_map(|folder| latest(folder).ok().flatten())
}

/// Returns the tokens that end an answer, where some are generated while the run goes on.
fn stop_tokens(config: &RunConfig, folder: &ModelFolder) -> Result<Vec<i64>, EngineError> {
    let answers = folder.model_kind() == ModelKind::Tokens && config.num_answers() > 0;
    if config.eval.as_ref().is_none_or(|eval| !eval.is_during_run()) || !answers {
        return Ok(Vec::new());
    }
    let processor = folder.processor(&ProcessorOptions::default())?;
    Ok(processor.tokenizer().special().end.iter().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::MANIFEST;
    use std::collections::BTreeMap;

    #[test]
    fn frozen_weights_are_those_of_the_run_whichever_checkpoints_are_left() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other, memory] =
            ["checkpoints", "other", "loongforge-snapshots-a"].map(|name| root.path().join(name));
        let put = |folder: &Path, num_steps: u64| {
            let path = folder.join(format!("step-{num_steps:08}"));
            std::fs::create_dir_all(&path).unwrap();
            let manifest = Manifest::of_files(num_steps, BTreeMap::new());
            std::fs::write(path.join(MANIFEST), manifest.to_text()).unwrap();
            path
        };
        put(&other, 9);
        let newest = put(&memory, 6);
        let [elsewhere, before] = [other.join("step-00000005"), memory.join("step-00000004")];
        // Another run's may be of other weights.
        assert_eq!(with_frozen_weights(&elsewhere, &dir), None);
        assert_eq!(with_frozen_weights(&before, &dir), Some(newest));
        let own = put(&dir, 7);
        assert_eq!(with_frozen_weights(&elsewhere, &dir), Some(own.clone()));
        assert_eq!(with_frozen_weights(&before, &dir), Some(own));
        assert_eq!(with_frozen_weights(&put(&other, 5), &dir), Some(elsewhere));
    }
}
