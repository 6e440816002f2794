//! The web page of a run.

use crate::model::folder::ModelFolder;
use loongforge_actors::watch::Watch;
use loongforge_core::config::RunConfig;
use loongforge_core::observe::{Board, Console, RunInfo, StepMetrics};
use loongforge_core::schedule::PoolSizes;

/// The page of the run; without it the run goes on as well.
pub(super) fn watch(
    config: &RunConfig,
    folder: &ModelFolder,
    earlier: Vec<StepMetrics>,
    first_step: u64,
    console: &Console,
) -> Option<Watch> {
    let pools = PoolSizes::new(config, folder.config.towers.set());
    let info = RunInfo {
        name: config.run.name.clone(),
        dir: config.run.dir.display().to_string(),
        actors: pools.actors().collect(),
        first_step,
        num_steps: config.train.num_steps(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let board = Board::new(info, config.watch.history, config.watch.trace_steps).with_history(earlier);
    match Watch::start(config.watch.listen.as_ref()?, &config.run.dir, board) {
        Ok(watch) => {
            console.line(&format!("watch: {}", watch.url()));
            Some(watch)
        }
        Err(error) => {
            console.line(&format!("warning: {error}; the run continues without a page"));
            None
        }
    }
}
