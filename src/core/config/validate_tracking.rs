//! Rules over the names under `log.wandb` and `log.mlflow`, which these tools would reject later.

use super::error::code;
use super::validate::Rules;
use super::{Address, RunConfig};
use std::time::Duration;

/// The shortest interval of exports; with a shorter one a run would do little else.
const MIN_EXPORT: Duration = Duration::from_secs(1);
/// The longest name that W&B takes for a project.
const MAX_PROJECT: usize = 128;

impl Rules<'_> {
    /// Checks the collector of `watch.otlp` and the names under `log.wandb` and `log.mlflow`.
    pub(super) fn tracking(&mut self, config: &RunConfig) {
        if let Some(otlp) = &config.watch.otlp {
            let is_path = matches!(otlp.endpoint, Address::Unix(_));
            self.broken(is_path, code::OUT_OF_RANGE, &["watch.otlp.endpoint"], || {
                let message = format!("`watch.otlp.endpoint`: expected HOST:PORT, found `{}`", otlp.endpoint);
                (
                    message,
                    "a collector on this host listens at 127.0.0.1:4318; it can forward to one that requires https",
                )
            });
            let is_short = otlp.every.duration() < MIN_EXPORT;
            self.broken(is_short, code::OUT_OF_RANGE, &["watch.otlp.every"], || {
                (format!("`watch.otlp.every`: must be at least 1s, found `{}`", otlp.every), "10s is usual")
            });
            let keys = ["watch.otlp", "watch.listen"];
            self.broken(config.watch.listen.is_none(), code::COMBINATION, &keys, || {
                let message = "`watch.otlp` is not supported with `watch.listen: null`: it exports what the page shows"
                    .to_owned();
                (message, "drop one of them")
            });
        }
        if let Some(profile) = config.watch.profile {
            let last = profile.first.saturating_add(profile.steps) - 1;
            let all = config.train.steps.unwrap_or(u64::MAX);
            self.broken(last > all, code::OUT_OF_RANGE, &["watch.profile", "train.steps"], || {
                let message =
                    format!("`watch.profile`: step {last} is to be recorded, but the run has only {all} steps");
                (message, "record earlier steps, or train for more")
            });
        }
        if let Some(wandb) = &config.log.wandb {
            let project = &wandb.project;
            let is_bad = |c: char| "/\\#?%:".contains(c) || c.is_control();
            let is_wrong = project.trim().is_empty() || project.len() > MAX_PROJECT || project.contains(is_bad);
            self.broken(is_wrong, code::OUT_OF_RANGE, &["log.wandb.project"], || {
                let message = format!("`log.wandb.project`: W&B does not accept the project name {project:?}");
                (message, "a name may have at most 128 characters and none of / \\ # ? % :")
            });
            let texts = [("entity", &wandb.entity), ("name", &wandb.name), ("group", &wandb.group)];
            for (key, text) in texts.into_iter().chain([("job_type", &wandb.job_type)]) {
                let key = format!("log.wandb.{key}");
                self.broken(
                    text.as_ref().is_some_and(|text| text.trim().is_empty()),
                    code::OUT_OF_RANGE,
                    &[&key],
                    || (format!("`{key}` is empty"), "drop the key, or give it a name"),
                );
            }
        }
        if let Some(mlflow) = &config.log.mlflow {
            self.broken(mlflow.experiment.trim().is_empty(), code::OUT_OF_RANGE, &["log.mlflow.experiment"], || {
                ("`log.mlflow.experiment` is empty".to_owned(), "drop the key, or give it a name")
            });
            let is_plain = |c: char| c.is_alphanumeric() || "_-.: ".contains(c);
            for tag in mlflow.tags.keys() {
                let is_wrong = tag.is_empty() || tag.starts_with('.') || !tag.chars().all(is_plain);
                self.broken(is_wrong, code::OUT_OF_RANGE, &["log.mlflow.tags"], || {
                    let message = format!("`log.mlflow.tags`: {tag:?} is not a valid tag name");
                    (message, "a name has letters, digits, `_`, `-`, `.`, `:` and blanks, and does not begin with `.`")
                });
            }
        }
    }
}
