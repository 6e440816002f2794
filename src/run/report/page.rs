//! The web page of a run.

use crate::model::folder::ModelFolder;
use loongforge_actors::watch::{WATCH_FILE, Watch};
use loongforge_core::config::RunConfig;
use loongforge_core::files::remove_if_there;
use loongforge_core::observe::{Board, Console, EvalRecord, RunInfo, StepMetrics};
use loongforge_core::schedule::PoolSizes;

/// Returns the page of the run; without it the run goes on as well.
pub(super) fn watch(
    config: &RunConfig,
    folder: &ModelFolder,
    earlier: Vec<StepMetrics>,
    evaluations: &[EvalRecord],
    first_step: u64,
    console: &Console,
) -> Option<Watch> {
    let file = config.run.dir.join(WATCH_FILE);
    let Some(listen) = &config.watch.listen else {
        // That of an earlier page would say that the run has ended.
        if let Err(error) = remove_if_there(&file) {
            console.line(&format!("warning: {}: {error}; `loongforge top` takes it for this run's", file.display()));
        }
        return None;
    };
    let pools = PoolSizes::new(config, folder.config.towers.set());
    let info = RunInfo {
        name: config.run.name.clone(),
        dir: config.run.dir.display().to_string(),
        actors: pools.actors().collect(),
        first_step,
        num_steps: config.train.num_steps(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let board = Board::new(info, config.watch.history, config.watch.trace_steps)
        .with_history(earlier)
        .with_evaluations(evaluations);
    match Watch::start_with(listen, config.watch.otlp.as_ref(), &config.run.dir, board) {
        Ok(watch) => {
            let url = watch.url();
            let bare = url.split("?token=").next().unwrap_or(&url);
            let hidden = format!("watch: {bare} (the address with its token: loongforge top, or {})", file.display());
            let kept = if bare == url { format!("watch: {url}") } else { hidden };
            // A job's log may be read by more people than may see the run.
            let shows = console.is_watched() || config.watch.show_token;
            let shown = if shows { format!("watch: {url}") } else { kept.clone() };
            console.line_kept_as(&shown, &kept);
            Some(watch)
        }
        Err(error) => {
            console.line(&format!("warning: {error}; the run continues without a page"));
            None
        }
    }
}
