//! The engine of each role: the only file that sees data, models and actors together.

use crate::eval::{held_out_sets, samples};
use crate::model::folder::ModelFolder;
use loongforge_actors::{Assignment, EngineFactory};
use loongforge_core::checkpoint::Manifest;
use loongforge_core::config::{ModelKind, RunConfig};
use loongforge_core::data::{Dataset, MediaDecoder, ProcessorOptions};
use loongforge_core::engine::{DataEngine, Engine, EngineError, WithHeldOut};
use loongforge_core::message::{Role, StepId};
use loongforge_torch::engine::{EngineSpec, build_engine};
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
    let resume = match assignment.resume.filter(|_| !joins) {
        Some(checkpoint) => {
            let first_step = StepId(Manifest::read(&checkpoint)?.num_steps);
            Some((checkpoint, first_step))
        }
        None => None,
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
        stop_token_ids: stop_tokens(&config, folder)?,
        samples: samples::spec(&config, folder)?,
        config,
    })
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
