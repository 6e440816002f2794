//! Rules over when checkpoints are written and where they go.

use super::RunConfig;
use super::error::code;
use super::validate::Rules;
use crate::store::check_store_url;
use std::path::Path;

const AT_END: &str = "checkpoint.at_end";

impl Rules<'_> {
    /// Checks where checkpoints are copied to, and what needs the checkpoint of the last step, or any.
    pub(super) fn checkpoint(&mut self, config: &RunConfig) {
        let checkpoint = &config.checkpoint;
        if let Some(Err(reason)) = checkpoint.upload.as_deref().map(check_store_url) {
            self.broken(true, code::OUT_OF_RANGE, &["checkpoint.upload"], || {
                (
                    format!("`checkpoint.upload` {reason}"),
                    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                )
            });
        }
        let is_alone = checkpoint.upload_keep_last.is_some() && checkpoint.upload.is_none();
        self.broken(is_alone, code::COMBINATION, &["checkpoint.upload_keep_last"], || {
            ("`checkpoint.upload_keep_last` requires `checkpoint.upload`".to_owned(), "set checkpoint.upload")
        });
        self.every_epochs(config, "checkpoint", (checkpoint.every_steps, checkpoint.every_epochs));
        if !checkpoint.at_end {
            self.none_at_end(config);
        }
    }

    /// Checks the folders that a run writes into: they are on this machine, and no file is in their place.
    pub(super) fn output_folders(&mut self, config: &RunConfig) {
        let (wandb, mlflow) = (config.log.wandb.as_ref(), config.log.mlflow.as_ref());
        let dirs = [
            ("run.dir", Some(&config.run.dir)),
            ("checkpoint.dir", Some(&config.checkpoint.dir)),
            ("log.wandb.dir", wandb.and_then(|it| it.dir.as_ref())),
            ("log.mlflow.dir", mlflow.and_then(|it| it.dir.as_ref())),
            ("data.index_dir", config.data.index_dir.as_ref()),
        ];
        let is_url = |dir: &Path| dir.to_string_lossy().contains("://");
        for (key, dir) in dirs.into_iter().filter_map(|(key, dir)| Some((key, dir?))) {
            self.broken(dir.exists() && !dir.is_dir(), code::NO_SUCH_FILE, &[key], || {
                (
                    format!("`{key}`: `{}` is not a directory", dir.display()),
                    "name a directory; it is created if it does not exist",
                )
            });
            // A folder in the run's is told with that.
            let is_told = key != "run.dir" && is_url(&config.run.dir) && dir.starts_with(&config.run.dir);
            self.broken(is_url(dir) && !is_told, code::OUT_OF_RANGE, &[key], || {
                (
                    format!("`{key}`: `{}` is a URL: a run writes into a folder of this machine", dir.display()),
                    "name a folder; checkpoints are copied to the object store in `checkpoint.upload`",
                )
            });
        }
    }

    /// Checks what `section` does every so many steps, or epochs: one of them, of a run whose epochs are known.
    pub(super) fn every_epochs(&mut self, config: &RunConfig, section: &str, (steps, epochs): (u64, Option<f64>)) {
        let [by_epochs, by_steps] = ["every_epochs", "every_steps"].map(|key| format!("{section}.{key}"));
        self.broken(steps > 0 && epochs.is_some(), code::COMBINATION, &[&by_epochs, &by_steps], || {
            (format!("both `{by_epochs}` and `{by_steps}` are set"), "set only one of them")
        });
        let is_alone = epochs.is_some() && steps == 0 && config.train.epochs.is_none();
        self.broken(is_alone, code::COMBINATION, &[&by_epochs, "train.epochs"], || {
            (format!("`{by_epochs}` requires `train.epochs`"), "set it, or count steps with `every_steps`")
        });
    }

    /// Checks what needs the checkpoint of the last step, or any.
    fn none_at_end(&mut self, config: &RunConfig) {
        let writes_any = config.checkpoint.save_points().any() || config.checkpoint.every_epochs.is_some();
        let without = match writes_any {
            false => {
                "no checkpoint is written (`checkpoint.at_end: false` without `checkpoint.every_steps` or `checkpoint.every_epochs`)"
            }
            true => "none is written at the end (`checkpoint.at_end: false`)",
        };
        let need_any = [
            ("checkpoint.upload", config.checkpoint.upload.is_some()),
            ("checkpoint.merge_lora", config.checkpoint.merge_lora),
        ];
        for (key, _) in need_any.into_iter().filter(|(_, is)| *is && !writes_any) {
            self.broken(true, code::COMBINATION, &[key, AT_END], || {
                (format!("`{key}` needs a checkpoint, but {without}"), "drop it, or set checkpoint.at_end: true")
            });
        }
        let Some(eval) = &config.eval else { return };
        let saves_best = eval.is_during_run() && eval.save_best && !writes_any;
        self.broken(saves_best, code::COMBINATION, &[AT_END, "eval.save_best"], || {
            let message = format!("`eval.save_best` keeps the best checkpoint, but {without}");
            (message, "set eval.save_best: false, or checkpoint.at_end: true")
        });
        self.broken(!eval.is_during_run(), code::COMBINATION, &[AT_END, "eval"], || {
            let message = format!(
                "`eval` without `every_steps` or `every_epochs` reads the last checkpoint after the run, but {without}"
            );
            (message, "set eval.every_steps or eval.every_epochs, or checkpoint.at_end: true")
        });
        self.broken(eval.pooled_statistics.is_some(), code::COMBINATION, &["eval.pooled_statistics", AT_END], || {
            let message = format!("`eval.pooled_statistics` is measured with the last checkpoint, but {without}");
            (message, "drop it, or set checkpoint.at_end: true")
        });
    }
}
