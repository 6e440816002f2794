//! A run as W&B's client leaves it offline: a folder that `wandb sync` uploads. Nothing here knows of a network.
//!
//! ```text
//! DIR/offline-run-20261125_081443-abc12345/run-abc12345.wandb   the records
//! DIR/offline-run-20261125_081443-abc12345/files/               the config, the log, tables of answers, pictures
//! DIR/offline-run-20261125_081443-abc12345/open-step.json       an evaluation before a step, until that step is written
//! ```

mod log;
mod records;

use self::log::{LogFile, Records};
use self::records::{Item, Kind, RunRecord, number, read};
use super::files::{safe_name, write_file, write_whole};
use super::kept::{Kept, KeptWandb, fresh_id};
use super::tracker::{Ending, Scalars, TrackedRun, Tracker};
use crate::clock::since_epoch;
use crate::config::Wandb;
use crate::files::if_there;
use crate::observe::calendar::Utc;
use crate::observe::error::ObserveError;
use crate::text::hex;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Steps between two summaries: a reader of a run that was killed has one that is not much older than its last step.
const SUMMARY_EVERY: u64 = 50;
/// The file of what is known of a step that is not written yet: it is not computed again if the run is killed in that step.
const OPEN_STEP: &str = "open-step.json";

/// A step and what is known of it.
type OpenStep = (u64, Vec<Item>);

/// A run that is written.
pub(super) struct WandbRun {
    log: LogFile,
    folder: PathBuf,
    num_records: u64,
    /// The values of the step that is not written yet, as far as they are known.
    open: Option<OpenStep>,
    /// True if that is also in the file [`OPEN_STEP`].
    is_kept: bool,
    /// The last step that was written, and all that was written last under each name.
    last: Option<(u64, BTreeMap<String, String>)>,
    begun: Instant,
    /// Seconds of the starts before this one.
    earlier: f64,
}

impl WandbRun {
    /// Goes on with the run that `kept` names, or begins one. Steps from `first_step` on are dropped: they are computed again.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn open(wandb: &Wandb, run: &TrackedRun<'_>, first_step: u64, kept: &mut Kept) -> Result<Self, ObserveError> {
        let dir = wandb.dir.clone().unwrap_or_else(|| run.dir.join("wandb"));
        let before = kept.wandb.as_ref().map(|kept| (dir.join(&kept.folder), format!("run-{}.wandb", kept.id)));
        if let Some((folder, file)) = before.filter(|(folder, file)| folder.join(file).is_file()) {
            return Self::go_on(folder, &file, first_step);
        }
        let id = fresh_id(run.dir, 8, b"0123456789abcdefghijklmnopqrstuvwxyz");
        let name = format!("offline-run-{}-{id}", Utc::now().compact());
        let folder = dir.join(&name);
        let files = folder.join("files");
        fs::create_dir_all(&files).map_err(|error| ObserveError::write(&files, error))?;
        let mut log = LogFile::create(&folder.join(format!("run-{id}.wandb")))?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let record = RunRecord {
            id: &id,
            entity: wandb.entity.as_deref().unwrap_or_default(),
            project: &wandb.project,
            group: wandb.group.as_deref().unwrap_or_default(),
            job_type: wandb.job_type.as_deref().unwrap_or("train"),
            name: wandb.name.as_deref().unwrap_or(run.name),
            notes: wandb.notes.as_deref().unwrap_or_default(),
            tags: &wandb.tags,
            host: &host,
            config: Some(run.config),
        };
        log.append(&records::header(run.version))?;
        log.append(&records::run(&record, SystemTime::now(), 2))?;
        kept.wandb = Some(KeptWandb { id, folder: name });
        let begun = Instant::now();
        Ok(Self { log, folder, num_records: 2, open: None, is_kept: false, last: None, begun, earlier: 0.0 })
    }

    fn go_on(folder: PathBuf, file: &str, first_step: u64) -> Result<Self, ObserveError> {
        let path = folder.join(file);
        let mut all = Records::open(&path)?;
        let (mut num_records, mut end, mut last) = (0, None, None::<(u64, BTreeMap<String, String>)>);
        let mut open = read_open(&folder).filter(|(step, _)| *step == first_step);
        for (begin, record) in all.by_ref() {
            match read(&record) {
                Kind::Exit => end = Some(begin),
                Kind::History { step, items } if step >= first_step => {
                    end = Some(begin);
                    // The evaluation before this step is not made again.
                    if step == first_step {
                        let items = items.into_iter().filter(|(key, _)| key.starts_with("eval/"));
                        let known = open.take().map(|(_, items)| items).unwrap_or_default();
                        open = Some((step, updated(known, items)));
                    }
                }
                Kind::History { step, items } => last = Some((step, merged(last, items))),
                Kind::Other => {}
            }
            if end.is_some() {
                break;
            }
            num_records += 1;
        }
        let open = open.filter(|(_, items)| !items.is_empty());
        // Before it goes from the log: this start may be killed in that step as well.
        keep_open(&folder, open.as_ref())?;
        let log = LogFile::go_on(&path, end.unwrap_or(all.end()))?;
        // It is to be uploaded again.
        let _ = fs::remove_file(folder.join(format!("{file}.synced")));
        let ran = last.as_ref().and_then(|(_, items)| items.get("_runtime")?.parse().ok());
        let earlier = ran.unwrap_or(0.0);
        let is_kept = open.is_some();
        Ok(Self { log, folder, num_records, open, is_kept, last, begun: Instant::now(), earlier })
    }

    fn append(&mut self, record: impl FnOnce(u64) -> Vec<u8>) -> Result<(), ObserveError> {
        self.log.append(&record(self.num_records + 1))?;
        self.num_records += 1;
        Ok(())
    }

    fn ran(&self) -> Duration {
        Duration::from_secs_f64(self.earlier) + self.begun.elapsed()
    }

    /// Adds values to a step. The one before it is complete then.
    fn add(&mut self, step: u64, items: impl IntoIterator<Item = Item>) -> Result<(), ObserveError> {
        if self.open.as_ref().is_some_and(|(open, _)| *open != step) {
            self.flush()?;
        }
        let (step, known) = self.open.take().unwrap_or((step, Vec::new()));
        self.open = Some((step, updated(known, items)));
        Ok(())
    }

    /// Works like [`WandbRun::add`], with what belongs to an evaluation before the step.
    fn add_early(&mut self, step: u64, items: impl IntoIterator<Item = Item>) -> Result<(), ObserveError> {
        self.add(step, items)?;
        self.is_kept = true;
        keep_open(&self.folder, self.open.as_ref())
    }

    fn flush(&mut self) -> Result<(), ObserveError> {
        let Some((step, mut items)) = self.open.take() else { return Ok(()) };
        let (now, ran) = (since_epoch().as_secs_f64(), self.ran().as_secs_f64());
        items.extend([("_timestamp".to_owned(), number(now)), ("_runtime".to_owned(), number(ran))]);
        self.append(|at| records::history(step, &items, at))?;
        if std::mem::take(&mut self.is_kept) {
            keep_open(&self.folder, None)?;
        }
        self.last = Some((step, merged(self.last.take(), items)));
        if step.is_multiple_of(SUMMARY_EVERY) { self.summarize() } else { Ok(()) }
    }

    fn summarize(&mut self) -> Result<(), ObserveError> {
        let Some((step, items)) = self.last.take() else { return Ok(()) };
        let written = self.append(|at| records::summary(step, &items, at));
        self.last = Some((step, items));
        written
    }

    /// Puts a file into the folder that is uploaded, under a name with its hash; returns that and the hash.
    fn media(
        &mut self,
        kind: &str,
        key: &str,
        step: u64,
        ending: &str,
        bytes: &[u8],
    ) -> Result<(String, String), ObserveError> {
        let sha256 = hex(Sha256::digest(bytes));
        let key = safe_name(key);
        let name = format!("media/{kind}/{key}_{step}_{}.{ending}", &sha256[..20]);
        self.put(&name, bytes)?;
        Ok((name, sha256))
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), ObserveError> {
        write_file(&self.folder.join("files").join(name), bytes)?;
        self.append(|at| records::file(name, at))
    }
}

impl Tracker for WandbRun {
    fn scalars(&mut self, step: u64, scalars: &Scalars<'_>, is_whole: bool) -> Result<(), ObserveError> {
        let items = scalars.iter().map(|(name, value)| (name.to_string(), number(*value)));
        if !is_whole {
            return self.add_early(step, items);
        }
        self.add(step, items)?;
        self.flush()
    }

    fn table(&mut self, step: u64, key: &str, columns: &[&str], rows: &[Vec<String>]) -> Result<(), ObserveError> {
        let bytes = json!({ "columns": columns, "data": rows }).to_string().into_bytes();
        let (path, sha256) = self.media("table", key, step, "table.json", &bytes)?;
        let value = json!({
            "_type": "table-file", "path": path, "sha256": sha256, "size": bytes.len(), "ncols": columns.len(),
            "nrows": rows.len(),
        });
        self.add_early(step, [(key.to_owned(), value.to_string())])
    }

    fn picture(&mut self, step: u64, key: &str, size: (u32, u32), png: &[u8]) -> Result<(), ObserveError> {
        let (path, sha256) = self.media("images", key, step, "png", png)?;
        let value = json!({
            "_type": "image-file", "path": path, "sha256": sha256, "size": png.len(), "format": "png", "width": size.0,
            "height": size.1,
        });
        self.add_early(step, [(key.to_owned(), value.to_string())])
    }

    fn memory(&mut self, _step: u64, bytes: u64) -> Result<(), ObserveError> {
        let items = [("proc.memory.rssMB".to_owned(), number(bytes as f64 / f64::from(1 << 20)))];
        self.append(|at| records::stats(&items, SystemTime::now(), at))
    }

    fn end(&mut self, ending: Ending, files: &[(&str, &Path)]) -> Result<(), ObserveError> {
        self.flush()?;
        self.summarize()?;
        for (name, path) in files {
            // W&B shows a file of this name as what the run printed.
            let name = if *name == "log.txt" { "output.log" } else { name };
            let bytes = fs::read(path).map_err(|source| ObserveError::Read { path: path.to_path_buf(), source })?;
            // W&B's client writes a `config.yaml` of its own.
            self.put(&if name == "config.yaml" { "loongforge.yaml".to_owned() } else { name.to_owned() }, &bytes)?;
        }
        let ran = self.ran();
        let code = match ending {
            Ending::Completed => 0,
            Ending::Failed => 1,
            Ending::Stopped => 3,
        };
        self.append(|at| records::exit(code, ran, at))
    }
}

/// Reads what an earlier start knew of a step that it did not write; `None`: nothing, or it cannot be read.
fn read_open(folder: &Path) -> Option<OpenStep> {
    serde_json::from_slice(&fs::read(folder.join(OPEN_STEP)).ok()?).ok()
}

/// Keeps what is known of a step until it is written; `None`: it is.
fn keep_open(folder: &Path, open: Option<&OpenStep>) -> Result<(), ObserveError> {
    let path = folder.join(OPEN_STEP);
    match open {
        Some(open) => write_whole(&path, &json!(open).to_string()),
        None => if_there(fs::remove_file(&path)).map(drop).map_err(|error| ObserveError::write(&path, error)),
    }
}

/// Items with newer ones, which replace those of the same name.
fn updated(mut known: Vec<Item>, newer: impl IntoIterator<Item = Item>) -> Vec<Item> {
    for (name, value) in newer {
        match known.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => known.push((name, value)),
        }
    }
    known
}

/// Returns the newest value of each name.
fn merged(before: Option<(u64, BTreeMap<String, String>)>, items: Vec<Item>) -> BTreeMap<String, String> {
    let mut all = before.map_or_else(BTreeMap::new, |(_, items)| items);
    all.extend(items);
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns all steps of a file with their items.
    pub fn steps_in(path: &Path) -> Vec<(u64, Vec<(String, String)>)> {
        let steps = Records::open(path).unwrap().filter_map(|(_, record)| match read(&record) {
            Kind::History { step, items } => Some((step, items)),
            _ => None,
        });
        steps.collect()
    }
}
