//! Packs that a run makes of all its samples before the first step (`data.pack.mode: offline`): once, in its folder.
//!
//! ```text
//! RUN/packs/        shards, as `loongforge data pack` writes them
//! RUN/packs.json    what decides them, how many there are, what they save, and a hash of each shard
//! ```
//!
//! Packs are a function of the data, the settings and the files of the model that their key is made of. Those with the key of the run
//! are used again; others are moved aside, and removed when the run has taken its first step with new ones.

use super::former_packs::FormerPacks;
use crate::model::folder::ModelFolder;
use loongforge_core::checkpoint::{CheckpointError, FileEntry, sha256};
use loongforge_core::config::{RunConfig, TooLong};
use loongforge_core::data::tools::{BAD, PackJob, PackOrder, PackStats, model_spec, too_long_text, write_whole};
use loongforge_core::data::{DataError, Fingerprint, fingerprint};
use loongforge_core::files::if_there;
use loongforge_core::schedule::{PackLimits, are_too_many_bad};
use loongforge_core::text::{counted, grouped, hex, plural, were};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the ledger in a run's folder.
pub const LEDGER: &str = "packs.json";
/// Packs of a shard.
pub const MAX_PACKS: u64 = 1000;
/// Bytes of a shard.
pub const MAX_BYTES: u64 = 1_000_000_000;
/// Settings of `data` on which packs do not depend.
const NOT_OF_PACKS: [&str; 3] = ["index_dir", "on_bad_sample", "on_change"];
/// The keys of `data.pack` that do not decide the packs.
const NOT_OF_ONE: [&str; 2] = ["look_ahead", "mode"];

/// The reasons why packs cannot be trained on, or cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum PacksError {
    #[error(
        "data.pack.mode is offline, and {dir} holds no packs of this config: `loongforge run` makes them before the first step; \
         `loongforge data pack` with only the config makes them and stops"
    )]
    Missing { dir: PathBuf },
    #[error(
        "data.pack.mode is offline, and {dir} holds something other than packs of a run: remove it, or set run.dir"
    )]
    Foreign { dir: PathBuf },
    #[error("{bad} of {all} samples are bad, more than data.on_bad_sample.max_fraction = {limit}: {list} lists them")]
    TooManyBad { bad: u64, all: u64, limit: f64, list: PathBuf },
    #[error("{0}, and data.pack.too_long is error")]
    TooLong(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Io(#[from] CheckpointError),
}

/// The record of the packs that is written beside them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ledger {
    /// A hash of everything that decides the packs.
    key: String,
    /// `None`: they are being made.
    packs: Option<Packs>,
}

/// Holds the packs of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packs {
    /// Samples that were read for them.
    pub num_samples: u64,
    pub stats: PackStats,
    /// Rows as long as packs ÷ packs; tokens of rows as long as the longest sample, and of padded batches, ÷ tokens of packs.
    padding_compression: [f64; 3],
    files: BTreeMap<String, FileEntry>,
}

/// Describes packs as a config wants them, whether they are there or not.
#[derive(Debug)]
pub struct WantedPacks<'a> {
    pub config: &'a RunConfig,
    pub dir: PathBuf,
    /// The data that they are made of.
    data: Fingerprint,
    key: String,
}

impl<'a> WantedPacks<'a> {
    /// # Errors
    /// Files of the data or the model cannot be read.
    pub fn new(config: &'a RunConfig, folder: &ModelFolder) -> Result<Self, PacksError> {
        let data = fingerprint(&config.data)?;
        let key = key(config, &data, folder)?;
        Ok(Self { config, dir: config.packs_dir(), data, key })
    }

    fn ledger(&self) -> PathBuf {
        self.config.run.dir.join(LEDGER)
    }

    /// Returns a name that packs of other data, settings or another model do not have.
    pub fn short_key(&self) -> &str {
        &self.key[..16]
    }

    fn former(&self) -> FormerPacks {
        FormerPacks::new(self.ledger(), self.dir.clone())
    }

    /// Returns whether this is a ledger of these packs.
    fn is_mine(&self, ledger: Option<&Ledger>) -> bool {
        ledger.is_some_and(|ledger| ledger.key == self.key)
    }

    fn write(&self, packs: Option<Packs>) -> Result<(), PacksError> {
        let ledger = Ledger { key: self.key.clone(), packs };
        let text = serde_json::to_string_pretty(&ledger).expect("numbers and texts can be written") + "\n";
        let path = self.ledger();
        fs::create_dir_all(&self.config.run.dir).map_err(|source| DataError::Write { path: path.clone(), source })?;
        Ok(write_whole(&path, text.as_bytes())?)
    }

    /// Returns the packs that are there, all of them and of this config; their sizes are compared, their contents are not read.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn find(&self) -> Result<Option<Packs>, PacksError> {
        let whole = self.counted()?;
        let is_there = |(name, entry): (&String, &FileEntry)| {
            fs::metadata(self.dir.join(name)).is_ok_and(|found| found.len() == entry.bytes)
        };
        Ok(whole.filter(|packs| packs.files.iter().all(is_there)))
    }

    /// Works like [`WantedPacks::find`], whether the shards are still there or not.
    ///
    /// # Errors
    /// Fails as [`WantedPacks::find`] does.
    pub fn counted(&self) -> Result<Option<Packs>, PacksError> {
        Ok(read(&self.ledger())?.filter(|ledger| self.is_mine(Some(ledger))).and_then(|ledger| ledger.packs))
    }

    /// Returns the packs that are there.
    ///
    /// # Errors
    /// There are no packs of this config; or too many samples are bad or too long for it.
    pub fn expect(&self) -> Result<Packs, PacksError> {
        let packs = self.find()?.ok_or_else(|| PacksError::Missing { dir: self.dir.clone() })?;
        packs.judge(self.config, &self.dir)?;
        Ok(packs)
    }

    /// Returns the name of the first shard whose contents are not what was written; `None` where all are.
    pub fn damaged(&self, packs: &Packs) -> Option<String> {
        let is_good =
            |(name, entry): &(&String, &FileEntry)| sha256(&self.dir.join(name)).is_ok_and(|hash| hash == entry.sha256);
        packs.files.iter().find(|file| !is_good(file)).map(|(name, _)| name.clone())
    }

    /// Puts these packs back in their place, where a run that took no step has moved them aside.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn restore(&self) -> Result<(), PacksError> {
        let former = self.former();
        former.settle()?;
        if !self.is_mine(read(&self.ledger())?.as_ref()) && self.is_mine(read(&former.ledger())?.as_ref()) {
            former.restore()?;
        }
        Ok(())
    }

    /// Returns whether packs are here that [`WantedPacks::begin`] would move aside.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn replaces(&self) -> Result<bool, PacksError> {
        Ok(!self.is_mine(read(&self.ledger())?.as_ref()) && !self.is_empty())
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.dir).map_or(true, |mut entries| entries.next().is_none())
    }

    /// Prepares the folder: what was begun of these packs stays, others are moved aside. Returns whether others were there.
    ///
    /// # Errors
    /// Something else is in the folder, or it cannot be written.
    pub fn begin(&self) -> Result<bool, PacksError> {
        self.restore()?;
        let ledger = read(&self.ledger())?;
        // A ledger is there before the packs are. One that is torn is one as well.
        if !self.is_empty() && !self.ledger().exists() {
            return Err(PacksError::Foreign { dir: self.dir.clone() });
        }
        let replaces = self.replaces()?;
        if replaces || (ledger.is_some() && !self.is_mine(ledger.as_ref())) {
            self.former().set_aside()?;
        }
        // A ledger of whole packs stays.
        if self.find()?.is_none() {
            self.write(None)?;
        }
        Ok(replaces)
    }

    /// Removes the packs, as they are not what was written.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn remove(&self) -> Result<(), PacksError> {
        let write = |source| DataError::Write { path: self.dir.clone(), source };
        if_there(fs::remove_dir_all(&self.dir)).map_err(write)?;
        Ok(())
    }

    /// Describes how they are made. An epoch has so many samples.
    pub fn job(&self, num_samples: u64) -> PackJob {
        let pack = &self.config.data.pack;
        PackJob {
            spec: json!(self.key),
            num_samples: pack.samples.unwrap_or(num_samples),
            limits: PackLimits::of_run(self.config),
            order: PackOrder::Offline,
            max_packs: MAX_PACKS,
            max_bytes: MAX_BYTES,
            batch: self.config.train.global_batch_size as u64,
        }
    }

    /// Notes that they are whole; `bad`: samples that turned out to be bad as packs were written.
    ///
    /// # Errors
    /// A shard cannot be read, or the ledger not be written; or it fails as [`WantedPacks::expect`] does.
    pub fn finish(&self, num_samples: u64, stats: PackStats, bad: u64) -> Result<Packs, PacksError> {
        let stats = PackStats { bad: stats.bad + bad, ..stats };
        let failed = |source| DataError::Read { path: self.dir.clone(), source };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("shard-") && name.ends_with(".tar") {
                let bytes = fs::metadata(&path).map_err(failed)?.len();
                files.insert(name, FileEntry { bytes, sha256: sha256(&path).map_err(failed)? });
            }
        }
        let packs = Packs { num_samples, stats, padding_compression: stats.compression(), files };
        self.write(Some(packs.clone()))?;
        packs.judge(self.config, &self.dir)?;
        Ok(packs)
    }

    /// Returns the fingerprint of the data that a checkpoint of this run notes.
    pub fn fingerprint(self) -> Fingerprint {
        Fingerprint { packs: Some(self.key), ..self.data }
    }
}

impl Packs {
    /// Refuses packs of samples of which more are bad or too long than the config allows.
    fn judge(&self, config: &RunConfig, dir: &Path) -> Result<(), PacksError> {
        let (Self { num_samples: all, stats, .. }, limit) = (self, config.data.on_bad_sample.max_fraction);
        let PackStats { bad, too_long, .. } = *stats;
        if are_too_many_bad(bad, *all, limit) {
            let list = dir.join(BAD);
            return Err(PacksError::TooManyBad { bad, all: *all, limit, list });
        }
        if too_long > 0 && config.data.pack.too_long == TooLong::Error {
            return Err(PacksError::TooLong(too_long_text(too_long, *all, *all, config.data.pack.max_tokens)));
        }
        Ok(())
    }

    /// Returns lines about the packs, for the time before a run.
    pub fn lines(&self, config: &RunConfig) -> Vec<String> {
        let (Self { num_samples, stats, .. }, pack) = (self, &config.data.pack);
        let mut lines = vec![
            format!(
                "packs: {} of {} {}, {:.1} % full, in {}",
                grouped(stats.packs),
                grouped(stats.samples),
                plural("sample", stats.samples),
                100.0 * stats.fill(),
                config.packs_dir().display()
            ),
            stats.compression_text(pack.max_tokens),
        ];
        if stats.bad > 0 {
            let (bad, list) = (counted(stats.bad, "bad sample"), config.packs_dir().join(BAD));
            lines.push(format!("{bad} {} left out of the packs; see {}", were(stats.bad), list.display()));
        }
        if stats.too_long > 0 {
            let text = too_long_text(stats.too_long, *num_samples, *num_samples, pack.max_tokens);
            lines.push(format!("{text} and left out of the packs"));
        }
        lines
    }
}

/// Returns the fingerprint of the run's data that a checkpoint notes, packs included.
///
/// # Errors
/// A file of the data is missing.
pub fn data_fingerprint(config: &RunConfig, folder: &ModelFolder) -> Result<Fingerprint, PacksError> {
    match config.packs_first() {
        true => Ok(WantedPacks::new(config, folder)?.fingerprint()),
        false => Ok(fingerprint(&config.data)?),
    }
}

/// Reads a ledger; `None` where there is none.
fn read(path: &Path) -> Result<Option<Ledger>, PacksError> {
    let bytes = if_there(fs::read(path)).map_err(CheckpointError::read(path))?;
    // What was torn or is of another version is no ledger.
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Removes packs that those of the run have replaced: it has taken its first step.
///
/// # Errors
/// A file cannot be removed: the next start goes on.
pub fn forget_former(config: &RunConfig) -> Result<(), DataError> {
    FormerPacks::new(config.run.dir.join(LEDGER), config.packs_dir()).remove()
}

/// Returns the part of a model that packs depend on: its config, and checksums of the files that samples are made with.
///
/// # Errors
/// A file cannot be read.
pub fn of_model(folder: &ModelFolder) -> Result<Value, DataError> {
    let mut found = json!({
        "config": folder.json,
        "tokenizer": model_spec(&folder.path)?,
        "media": model_spec(&folder.media_path)?,
    });
    // One beside the tokenizer is among its files.
    let text = folder.text_tokenizer.as_deref().and_then(Path::parent).filter(|text| *text != folder.path);
    if let Some(text) = text {
        found["text_tokenizer"] = model_spec(text)?;
    }
    Ok(found)
}

/// Hashes everything that decides the packs of a config, which are made of `files`.
fn key(config: &RunConfig, files: &Fingerprint, folder: &ModelFolder) -> Result<String, PacksError> {
    let mut data = serde_json::to_value(&config.data).expect("a config is JSON");
    let without = |value: &mut Value, keys: &[&str]| {
        if let Some(map) = value.as_object_mut() {
            map.retain(|key, _| !keys.contains(&&**key));
        }
    };
    without(&mut data, &NOT_OF_PACKS);
    without(&mut data["pack"], &NOT_OF_ONE);
    without_later(&mut data);
    let of_model = of_model(folder)?;
    let mut made_of = json!({
        "data": data,
        "files": files,
        "phase": config.train.phase,
        "learn": config.train.learn,
        "max_samples": config.train.micro_batch_size,
        "seed": config.run.seed,
        "model": &of_model["config"],
        "tokenizer": &of_model["tokenizer"],
        "media": &of_model["media"],
    });
    if let Some(text) = of_model.get("text_tokenizer") {
        made_of["text_tokenizer"] = text.clone();
    }
    Ok(hex(Sha256::digest(made_of.to_string())))
}

/// Leaves the keys out of `data` that are newer than packs which may be there, where they have their defaults.
fn without_later(data: &mut Value) {
    let of_data = [("mix", json!("sets")), ("system", Value::Null)];
    let of_set = [("max_samples", Value::Null), ("select", json!("first")), ("system", Value::Null)];
    leave_out(data, &of_data);
    for of_media in ["image", "video"] {
        leave_out(&mut data[of_media], &[("bucket", Value::Null)]);
    }
    data["train"].as_array_mut().into_iter().flatten().for_each(|set| leave_out(set, &of_set));
}

/// Leaves out those of `keys` that have these values.
fn leave_out(keys: &mut Value, values: &[(&str, Value)]) {
    if let Some(map) = keys.as_object_mut() {
        map.retain(|key, value| !values.iter().any(|(name, usual)| *name == key.as_str() && *usual == *value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{Mix, load_text};

    #[test]
    fn later_keys_with_their_defaults_leave_packs_of_an_earlier_build_in_use() {
        let config = load_text(include_str!("../../configs/sft_text.yaml")).unwrap_or_else(|report| panic!("{report}"));
        let mut data = config.config.data;
        let hashed = |data: &loongforge_core::config::Data| {
            let mut value = json!(data);
            without_later(&mut value);
            value
        };
        let usual = hashed(&data);
        let [all, set] = [&usual, &usual["train"][0]].map(|keys| keys.as_object().unwrap());
        assert!(["mix", "system"].iter().all(|key| !all.contains_key(*key)) && all.contains_key("shuffle"));
        assert!(["max_samples", "select", "system"].iter().all(|key| !set.contains_key(*key)));
        for (media, older) in [("image", "max_side"), ("video", "sound")] {
            let keys = all[media].as_object().unwrap();
            assert!(!keys.contains_key("bucket") && keys.contains_key(older), "{media}");
        }
        (data.mix, data.train[0].max_samples) = (Mix::Samples, Some(5));
        let other = hashed(&data);
        assert_eq!((&other["mix"], &other["train"][0]["max_samples"]), (&json!("samples"), &json!(5)));
    }

    #[test]
    fn packs_depend_on_the_config_of_a_model_and_the_files_of_both_folders() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-seed1/config.json");
        fs::copy(fixture, dir.path().join("config.json")).unwrap();
        let mut folder = ModelFolder::open_plain(dir.path()).unwrap();
        let first = of_model(&folder).unwrap();
        folder.json["max_position_embeddings"] = json!(7);
        let second = of_model(&folder).unwrap();
        let media = tempfile::tempdir().unwrap();
        fs::write(media.path().join("preprocessor_config.json"), "{}").unwrap();
        folder.media_path = media.path().to_owned();
        let third = of_model(&folder).unwrap();
        assert!(first != second && second != third);
        // The text tower's tokenizer may lie in a third one.
        let text = tempfile::tempdir().unwrap();
        let file = text.path().join("tokenizer.json");
        folder.text_tokenizer = Some(file.clone());
        let with = |contents: &str| {
            fs::write(&file, contents).unwrap();
            of_model(&folder).unwrap()
        };
        let [fourth, fifth] = ["{}", "[]"].map(with);
        assert!(third != fourth && fourth != fifth);
        let config = load_text(include_str!("../../configs/sft_text.yaml")).unwrap_or_else(|report| panic!("{report}"));
        let files = Fingerprint::default();
        let keyed = |folder: &ModelFolder| key(&config.config, &files, folder).unwrap();
        let other = ModelFolder { text_tokenizer: None, ..folder.clone() };
        assert_ne!(keyed(&folder), keyed(&other));
    }
}
