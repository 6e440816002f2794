//! A run in MLflow's file store: a folder for each experiment and run, with a file for each metric, parameter and tag.
//!
//! ```text
//! DIR/EXPERIMENT/meta.yaml
//! DIR/EXPERIMENT/RUN/meta.yaml
//! DIR/EXPERIMENT/RUN/metrics/train/loss     "TIME_MS VALUE STEP", a line for each step
//! DIR/EXPERIMENT/RUN/params/train.lr, tags/mlflow.runName, artifacts/…
//! ```

mod store;

use self::store::{Experiment, RunMeta, Status, keep_lines, param_files};
use super::files::{safe_name, write_file};
use super::kept::{Kept, KeptMlflow, fresh_id};
use super::tracker::{Ending, Scalars, TrackedRun, Tracker};
use crate::clock::since_epoch;
use crate::config::Mlflow;
use crate::files::append_whole;
use crate::observe::error::ObserveError;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The tag that lists artifacts which are tables.
const TABLES: &str = "tags/mlflow.loggedArtifacts";

/// A run that is written.
pub(super) struct MlflowRun {
    folder: PathBuf,
    meta: RunMeta,
    /// Artifacts that MLflow shows as tables.
    tables: Vec<String>,
}

impl MlflowRun {
    /// Goes on with the run that `kept` names, or begins one. Lines of steps from `first_step` on are dropped: the steps are
    /// computed again.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn open(mlflow: &Mlflow, run: &TrackedRun<'_>, first_step: u64, kept: &mut Kept) -> Result<Self, ObserveError> {
        let dir = mlflow.dir.clone().unwrap_or_else(|| run.dir.join("mlruns"));
        fs::create_dir_all(&dir).map_err(|error| ObserveError::write(&dir, error))?;
        let dir = dir.canonicalize().map_err(|source| ObserveError::Read { path: dir.clone(), source })?;
        let experiment = Experiment::find(&dir, &mlflow.experiment)?;
        let name = mlflow.name.as_deref().unwrap_or(run.name);
        let before = kept.mlflow.as_ref().filter(|kept| kept.experiment_id == experiment.id);
        if let Some(kept) = before.filter(|kept| experiment.folder.join(&kept.run_id).is_dir()) {
            let folder = experiment.folder.join(&kept.run_id);
            keep_lines(&folder.join("metrics"), "", first_step)?;
            let begun = RunMeta::begun(&folder).unwrap_or_else(now_ms);
            let meta = RunMeta::new(&folder, &experiment.id, &kept.run_id, name, begun);
            meta.write(Status::Running, None)?;
            let tables = tables_of(&folder);
            return Ok(Self { folder, meta, tables });
        }
        let run_id = fresh_id(run.dir, 32, b"0123456789abcdef");
        let folder = experiment.folder.join(&run_id);
        for part in ["metrics", "params", "tags", "artifacts"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(|error| ObserveError::write(&part, error))?;
        }
        let meta = RunMeta::new(&folder, &experiment.id, &run_id, name, now_ms());
        let program = format!("loongforge {}", run.version);
        let tags = [("mlflow.runName", name), ("mlflow.source.name", &*program), ("mlflow.source.type", "LOCAL")];
        let tags = tags.into_iter().chain([("mlflow.user", meta.user())]);
        for (name, value) in tags.chain(mlflow.tags.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
            write_file(&folder.join("tags").join(safe_name(name)), value.as_bytes())?;
        }
        for (name, value) in param_files(run.config) {
            write_file(&folder.join("params").join(name), value.as_bytes())?;
        }
        // Last: what has no meta.yaml is no run yet.
        meta.write(Status::Running, None)?;
        kept.mlflow = Some(KeptMlflow { experiment_id: experiment.id, run_id });
        Ok(Self { folder, meta, tables: Vec::new() })
    }

    fn artifact(&self, name: &str, bytes: &[u8]) -> Result<(), ObserveError> {
        write_file(&self.folder.join("artifacts").join(name), bytes)
    }

    fn metric(&self, name: &str, line: &str) -> Result<(), ObserveError> {
        let path = self.folder.join("metrics").join(safe_name(name));
        let open = || File::options().append(true).create(true).open(&path);
        let file = open().or_else(|_| fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| open()));
        file.and_then(|mut file| append_whole(&mut file, line.as_bytes()))
            .map_err(|error| ObserveError::write(&path, error))
    }
}

impl Tracker for MlflowRun {
    fn scalars(&mut self, step: u64, scalars: &Scalars<'_>, _is_whole: bool) -> Result<(), ObserveError> {
        let now = now_ms();
        scalars.iter().try_for_each(|(name, value)| self.metric(name, &format!("{now} {value:?} {step}\n")))
    }

    fn table(&mut self, step: u64, key: &str, columns: &[&str], rows: &[Vec<String>]) -> Result<(), ObserveError> {
        let name = format!("{}-step-{step}.json", safe_name(key));
        self.artifact(&name, json!({ "columns": columns, "data": rows }).to_string().as_bytes())?;
        if !self.tables.contains(&name) {
            self.tables.push(name);
        }
        let tables: Vec<_> = self.tables.iter().map(|path| json!({ "path": path, "type": "table" })).collect();
        write_file(&self.folder.join(TABLES), json!(tables).to_string().as_bytes())
    }

    fn picture(&mut self, step: u64, key: &str, _size: (u32, u32), png: &[u8]) -> Result<(), ObserveError> {
        self.artifact(&format!("{}-step-{step}.png", safe_name(key)), png)
    }

    fn memory(&mut self, step: u64, bytes: u64) -> Result<(), ObserveError> {
        let line = format!("{} {:?} {step}\n", now_ms(), bytes as f64 / f64::from(1 << 20));
        self.metric("system/process_resident_megabytes", &line)
    }

    fn end(&mut self, ending: Ending, files: &[(&str, &Path)]) -> Result<(), ObserveError> {
        for (name, path) in files {
            let bytes = fs::read(path).map_err(|source| ObserveError::Read { path: path.to_path_buf(), source })?;
            self.artifact(name, &bytes)?;
        }
        let status = match ending {
            Ending::Completed => Status::Finished,
            Ending::Failed => Status::Failed,
            Ending::Stopped => Status::Killed,
        };
        self.meta.write(status, Some(now_ms()))
    }
}

/// Returns the tables that a run has already.
fn tables_of(folder: &Path) -> Vec<String> {
    let tag = fs::read_to_string(folder.join(TABLES)).unwrap_or_default();
    let tables: Vec<Value> = serde_json::from_str(&tag).unwrap_or_default();
    tables.iter().filter_map(|table| Some(table["path"].as_str()?.to_owned())).collect()
}

fn now_ms() -> u64 {
    since_epoch().as_millis() as u64
}
