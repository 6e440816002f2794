//! The files of MLflow's store: experiments, runs, parameters, and lines of metrics that are cut.

use crate::clock::since_epoch;
use crate::config::read_yaml;
use crate::observe::error::ObserveError;
use crate::observe::track::files::{safe_name, write_whole};
use crate::text::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

const META: &str = "meta.yaml";

/// An experiment of the store.
pub(super) struct Experiment {
    pub id: String,
    pub folder: PathBuf,
}

impl Experiment {
    /// Finds the experiment of this name, or makes it.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn find(dir: &Path, name: &str) -> Result<Self, ObserveError> {
        let read = |source| ObserveError::Read { path: dir.to_owned(), source };
        for entry in fs::read_dir(dir).map_err(read)? {
            let folder = entry.map_err(read)?.path();
            let found = read_meta(&folder).filter(|meta| meta["name"] == name && meta["lifecycle_stage"] != "deleted");
            if let Some(id) = found.as_ref().and_then(|meta| meta["experiment_id"].as_str()) {
                return Ok(Self { id: id.to_owned(), folder });
            }
        }
        // Eighteen digits, as MLflow's are, and the same for two runs that begin at once.
        let digest = Sha256::digest(name);
        let number = u64::from_be_bytes(digest[..8].try_into().expect("eight of 32 bytes"));
        let id = format!("{}", 100_000_000_000_000_000 + number % 900_000_000_000_000_000);
        let folder = dir.join(&id);
        fs::create_dir_all(&folder).map_err(|error| ObserveError::write(&folder, error))?;
        let now = since_epoch().as_millis();
        let meta = format!(
            "artifact_location: {}\ncreation_time: {now}\nexperiment_id: '{id}'\nlast_update_time: {now}\n\
             lifecycle_stage: active\nname: {}\n",
            quoted(&uri(&folder)),
            quoted(name)
        );
        write_whole(&folder.join(META), &meta)?;
        Ok(Self { id, folder })
    }
}

/// The word of RunStatus in MLflow's `service.proto`.
#[derive(Clone, Copy)]
pub(super) enum Status {
    Running = 1,
    Finished = 3,
    Failed = 4,
    Killed = 5,
}

/// The contents of a run's `meta.yaml`.
pub(super) struct RunMeta {
    path: PathBuf,
    /// All but the end and the status.
    begin: String,
    user: String,
}

impl RunMeta {
    /// Makes the `meta.yaml` of a run that began at `begun`, in milliseconds since 1970.
    pub fn new(folder: &Path, experiment: &str, run: &str, name: &str, begun: u64) -> Self {
        let user = std::env::var("USER").unwrap_or_default();
        let begin = format!(
            "artifact_uri: {}\nentry_point_name: ''\nexperiment_id: '{experiment}'\nlifecycle_stage: active\nrun_id: {}\n\
             run_name: {}\nrun_uuid: {}\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {begun}\ntags: []\n\
             user_id: {}\n",
            quoted(&uri(&folder.join("artifacts"))),
            quoted(run),
            quoted(name),
            quoted(run),
            quoted(&user)
        );
        Self { path: folder.join(META), begin, user }
    }

    /// Returns the name of the user who started the run.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the time at which the run in this folder began, in milliseconds.
    pub fn begun(folder: &Path) -> Option<u64> {
        read_meta(folder)?["start_time"].as_u64()
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, status: Status, ended: Option<u64>) -> Result<(), ObserveError> {
        let ended = ended.map_or_else(|| "null".to_owned(), |at| at.to_string());
        write_whole(&self.path, &format!("{}end_time: {ended}\nstatus: {}\n", self.begin, status as u8))
    }
}

fn read_meta(folder: &Path) -> Option<Value> {
    read_yaml(&fs::read_to_string(folder.join(META)).ok()?).ok()
}

/// Returns a text as JSON has it, which is YAML, too.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the address of a folder: all but letters, digits and a few signs as `%XX`.
fn uri(folder: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in folder.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri += &format!("%{}", hex([*byte]).to_uppercase()),
        }
    }
    uri
}

/// Returns every value of the config with the name of its key; lists are one value, as JSON.
pub(super) fn param_files(config: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    flatten("", config, &mut all);
    all
}

fn flatten(key: &str, value: &Value, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, all);
            }
        }
        // A slash would be a folder, which the file of another key may be in the way of.
        Value::String(text) => all.push((safe_name(&key.replace('/', "_")), text.clone())),
        Value::Null if key.is_empty() => {}
        value => all.push((safe_name(&key.replace('/', "_")), value.to_string())),
    }
}

/// Drops lines of steps from `first_step` on from every metric below `folder`. An evaluation before that step is not made again.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn keep_lines(folder: &Path, prefix: &str, first_step: u64) -> Result<(), ObserveError> {
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| ObserveError::Read { path, source }
    };
    for entry in fs::read_dir(folder).map_err(read(folder))? {
        let path = entry.map_err(read(folder))?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            keep_lines(&path, &format!("{name}/"), first_step)?;
            continue;
        }
        let end = if name.starts_with("eval/") { first_step.saturating_add(1) } else { first_step };
        let text = fs::read_to_string(&path).map_err(read(&path))?;
        let is_kept = |line: &&str| {
            let mut parts = line.split(' ').skip(2);
            let step = parts.next().and_then(|step| step.parse::<u64>().ok());
            step.is_some_and(|step| step < end) && parts.next().is_none()
        };
        let kept: String = text.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        if kept != text {
            write_whole(&path, &kept)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_has_no_blanks() {
        assert_eq!(uri(Path::new("/a b/c")), "file:///a%20b/c");
    }

    #[test]
    fn every_value_of_the_config_is_a_parameter() {
        let config = json!({"train": {"lr": 1e-3, "betas": [0.9, 0.95]}, "eval": null, "run": {"name": "a"}, "x": {"a/b": true}});
        let found = param_files(&config);
        let text = |name: &str| found.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        assert_eq!(
            [text("train.lr"), text("train.betas"), text("eval"), text("run.name"), text("x.a_b")],
            [Some("0.001"), Some("[0.9,0.95]"), Some("null"), Some("a"), Some("true")]
        );
    }

    #[test]
    fn an_experiment_is_found_again_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let made = Experiment::find(dir.path(), "a: \"b\"").unwrap();
        let again = Experiment::find(dir.path(), "a: \"b\"").unwrap();
        assert_eq!((made.id.len(), &made.id, &made.folder), (18, &again.id, &again.folder));
        assert_ne!(Experiment::find(dir.path(), "c").unwrap().id, made.id);
        // As MLflow writes one.
        let theirs = dir.path().join("7");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join(META), "experiment_id: '7'\nlifecycle_stage: active\nname: theirs\n").unwrap();
        assert_eq!(Experiment::find(dir.path(), "theirs").unwrap().id, "7");
    }
}
