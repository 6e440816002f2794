//! Models of the Hugging Face hub: a hub id to a folder of the shared cache, in which Python's tools find them, too.
//!
//! `HF_HOME` (or `HF_HUB_CACHE`) says where the cache is, `HF_HUB_OFFLINE=1` forbids the network, `HF_TOKEN` opens gated
//! repositories, `HF_ENDPOINT` names a mirror. Fetched are safetensors, JSON, text, templates and tokenizer models of
//! the repository's top folder, and of a repository of Diffusers those of its folders. Never pickles, never code.

use super::hub_check::{Unchecked, compare_left};
use super::hub_files::{is_unread, is_wanted, is_wanted_part, missing, shards_of};
use super::hub_lock::wait_for_others;
use super::stored::{Extent, fetch_model};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use loongforge_core::checkpoint::StoredError;
use loongforge_core::config::{HubId, Source};
use loongforge_core::data::{HUB_CARD, HubListing, HubPath, MODEL_INDEX, choose_hub_files};
use loongforge_core::data::{hub_cache, hub_snapshot, is_plain_hub_name};
use loongforge_core::files;
use loongforge_core::store::is_store_url;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(
        "{id} is not in {cache}: {what} is missing, and HF_HUB_OFFLINE is set; run once without HF_HUB_OFFLINE to download it"
    )]
    Offline { id: String, cache: PathBuf, what: String },
    #[error("{id}: the hub answered {status}: {hint}")]
    Refused { id: String, status: &'static str, hint: &'static str },
    #[error("{id} is not a local folder, and download from {endpoint} failed: {reason}")]
    Network { id: String, endpoint: String, reason: String },
    #[error(
        "{id} has its weights in pickle files only ({file}), which run code when they are opened and are never read"
    )]
    Pickle { id: String, file: String },
    #[error("{id}: the SHA-256 of {file} differs from the one that the hub announced; the file was removed, try again")]
    Corrupt { id: String, file: String },
    #[error("{id}: the hub's answer is invalid: {what}")]
    Hostile { id: String, what: String },
    #[error("data set {id}: {what}")]
    Files { id: String, what: String },
    #[error(transparent)]
    Stored(#[from] StoredError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// Returns the directory of a model: `load` itself, or where the model of this hub id or URL of an object store is after all of it was
/// fetched.
///
/// # Errors
/// The hub has no such model, or it cannot be fetched.
pub fn resolve_model(load: &str) -> Result<PathBuf, HubError> {
    resolve(load, Extent::Whole)
}

/// Works like [`resolve_model`], without fetching weights: for what only reads the config or the tokenizer.
///
/// # Errors
/// Fails as [`resolve_model`] does.
pub fn resolve_config(load: &str) -> Result<PathBuf, HubError> {
    resolve(load, Extent::WithoutWeights)
}

/// Returns the directory of a model, weights included, if all of it is here; nothing is fetched.
pub fn model_here(load: &str) -> Option<PathBuf> {
    if is_store_url(load) {
        return None;
    }
    match Source::new(load).hub_id() {
        Some(id) => {
            let hub = Hub::from_env();
            hub.compare_left(&id).ok()?;
            hub.cached(&id).filter(|folder| missing(folder, Extent::Whole).is_none())
        }
        None => Some(PathBuf::from(load)),
    }
}

/// Fetches so much of a model; returns its directory.
///
/// # Errors
/// The model is found nowhere, or cannot be fetched, as [`resolve_model`] says.
pub(super) fn resolve(load: &str, extent: Extent) -> Result<PathBuf, HubError> {
    if is_store_url(load) {
        let is_wanted = |name: &str| is_wanted(name) || is_wanted_part(name);
        return Ok(fetch_model(load, extent, is_wanted)?);
    }
    match Source::new(load).hub_id() {
        Some(id) => Hub::from_env().snapshot(&id, extent),
        None => Ok(PathBuf::from(load)),
    }
}

/// The cache and the endpoint that the environment names.
pub struct Hub {
    kind: RepoType,
    cache: Cache,
    endpoint: String,
    offline: bool,
    token: Option<String>,
}

impl Hub {
    fn from_env() -> Self {
        Self::of(RepoType::Model)
    }

    /// Returns the hub's settings for repositories of models.
    pub fn of_models() -> Self {
        Self::of(RepoType::Model)
    }

    /// Returns the hub's settings for repositories of this kind.
    pub(super) fn of(kind: RepoType) -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache = Cache::new(hub_cache());
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().filter_map(text).any(|value| {
            let value = value.to_ascii_lowercase();
            ["1", "true", "yes", "on"].contains(&value.as_str())
        });
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let token = text("HF_TOKEN").or_else(|| cache.token());
        Self { kind, cache, endpoint: endpoint.trim_end_matches('/').to_owned(), offline, token }
    }

    /// Returns the settings of writing: the endpoint, whether the network is forbidden, and the token.
    pub(super) fn writing(self) -> (String, bool, Option<String>) {
        (self.endpoint, self.offline, self.token)
    }

    #[cfg(test)]
    pub(super) fn at(endpoint: &str, token: Option<&str>) -> Self {
        let (endpoint, token) = (endpoint.to_owned(), token.map(str::to_owned));
        Self { kind: RepoType::Model, cache: Cache::new("nowhere".into()), endpoint, offline: false, token }
    }

    fn snapshot(&self, id: &HubId, extent: Extent) -> Result<PathBuf, HubError> {
        self.compare_left(id)?;
        if !self.offline {
            return self.fetch(id, extent);
        }
        let cache = self.cache.path().clone();
        let offline = |what: &str| HubError::Offline { id: id.to_string(), cache, what: what.to_owned() };
        let Some(folder) = self.cached(id) else { return Err(offline("the repository")) };
        match missing(&folder, extent) {
            None => Ok(folder),
            Some(what) => Err(offline(&what)),
        }
    }

    /// Compares files that a killed process has downloaded and not compared.
    fn compare_left(&self, id: &HubId) -> Result<(), HubError> {
        let (cache, folder) = (self.cache.path(), self.repo(id, "main").folder_name());
        let compared = compare_left(cache, &folder, &id.repo);
        compared.map_err(|source| HubError::Io { path: cache.join(folder), source })
    }

    /// Returns the snapshot of this revision that the cache has.
    fn cached(&self, id: &HubId) -> Option<PathBuf> {
        let revision = id.revision.as_deref().unwrap_or("main");
        let repository = self.cache.path().join(self.repo(id, revision).folder_name());
        hub_snapshot(&repository, revision).map(|(_, folder)| folder)
    }

    fn repo(&self, id: &HubId, revision: &str) -> Repo {
        Repo::with_revision(id.repo.clone(), self.kind, revision.to_owned())
    }

    fn fetch(&self, id: &HubId, extent: Extent) -> Result<PathBuf, HubError> {
        let hostile = |what: String| HubError::Hostile { id: id.to_string(), what };
        let api = self.api(id, extent == Extent::Whole)?;
        let revision = id.revision.as_deref().unwrap_or("main");
        let info = match api.repo(self.repo(id, revision)).info() {
            Ok(info) => info,
            Err(error) => {
                let error = self.explain(id, &error);
                // What is there already serves while the hub cannot be reached.
                let unreachable = matches!(error, HubError::Network { .. });
                let cached = self.cached(id).filter(|folder| unreachable && missing(folder, extent).is_none());
                return cached.ok_or(error);
            }
        };
        if !is_plain_hub_name(&info.sha) || !revision.split('/').all(is_plain_hub_name) {
            return Err(hostile(format!("the commit {:?} for {revision:?}", info.sha)));
        }
        // All files of one commit, whatever is pushed meanwhile.
        let repo = api.repo(self.repo(id, &info.sha));
        let folder = self.cache.repo(self.repo(id, revision)).pointer_path(&info.sha);
        let mut names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        names.sort();
        let has_weights = names.iter().any(|name| name.ends_with(".safetensors"));
        if extent == Extent::Whole && !has_weights {
            let pickle =
                names.iter().find(|name| name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
            if let Some(file) = pickle {
                return Err(HubError::Pickle { id: id.to_string(), file: file.clone() });
            }
        }
        // Weights last: what is small and wrong is found first.
        let is_weight = |name: &&String| name.ends_with(".safetensors");
        let is_pipeline = names.iter().any(|name| name == MODEL_INDEX);
        let wanted = names.iter().filter(|name| is_wanted(name) || (is_pipeline && is_wanted_part(name)));
        let (heavy, light): (Vec<_>, Vec<_>) = wanted.partition(is_weight);
        let get = |name: &str, shards: &[String]| match is_unread(name, &names, shards) || folder.join(name).exists() {
            true => Ok(()),
            false => self.download(&api, &repo, id, name),
        };
        light.into_iter().try_for_each(|name| get(name, &[]))?;
        if extent == Extent::Whole {
            // The index is here by now.
            let shards = shards_of(&folder).unwrap_or_default();
            heavy.into_iter().try_for_each(|name| get(name, &shards))?;
        }
        self.note_commit(id, revision, &info.sha);
        Ok(folder)
    }

    /// Notes in the cache which commit the revision is, for when the hub is away. A note that is there is not written again, and a note
    /// that cannot be written is only missed when the hub is away: a cache with all files may be read-only.
    fn note_commit(&self, id: &HubId, revision: &str, commit: &str) {
        let repository = self.cache.path().join(self.repo(id, revision).folder_name());
        if hub_snapshot(&repository, revision).is_some_and(|(noted, _)| noted == commit) {
            return;
        }
        if let Err(error) = self.cache.repo(self.repo(id, revision)).create_ref(commit) {
            let cache = self.cache.path().display();
            tracing::warn!("{id} will not be found without the hub: {cache} cannot be written: {error}");
        }
    }

    fn api(&self, id: &HubId, shows_progress: bool) -> Result<Api, HubError> {
        let api = ApiBuilder::new()
            .with_endpoint(self.endpoint.clone())
            .with_cache_dir(self.cache.path().clone())
            .with_token(self.token.clone())
            .with_retries(3)
            .with_progress(shows_progress);
        api.build().map_err(|error| self.explain(id, &error))
    }

    /// Returns whether the cache lacks what `path` means of a data set's repository, after files of it were compared that a killed
    /// process has left.
    pub(super) fn is_missing(&self, path: &HubPath) -> bool {
        let id = HubId { repo: path.repo.clone(), revision: path.revision.clone() };
        self.compare_left(&id).is_err() || path.find(self.cache.path()).is_err()
    }

    /// Fetches those files of a data set's repository that `path` means, and keeps the names of all beside them.
    ///
    /// # Errors
    /// The hub has no such data set or file, or one cannot be fetched.
    pub(super) fn fetch_data(&self, path: &HubPath) -> Result<(), HubError> {
        let id = HubId { repo: path.repo.clone(), revision: path.revision.clone() };
        let hostile = |what: String| HubError::Hostile { id: id.to_string(), what };
        let lacks = |what: String| HubError::Files { id: id.to_string(), what };
        self.compare_left(&id)?;
        if self.offline {
            return path.find(self.cache.path()).map(drop).map_err(lacks);
        }
        let api = self.api(&id, true)?;
        let info = match api.repo(self.repo(&id, path.revision())).info() {
            Ok(info) => info,
            Err(error) => {
                let error = self.explain(&id, &error);
                // What is there already serves while the hub cannot be reached.
                let serves = matches!(error, HubError::Network { .. }) && path.find(self.cache.path()).is_ok();
                return if serves { Ok(()) } else { Err(error) };
            }
        };
        if !is_plain_hub_name(&info.sha) || !is_plain_hub_name(path.revision()) {
            return Err(hostile(format!("the commit {:?} for {:?}", info.sha, path.revision())));
        }
        let repo = api.repo(self.repo(&id, &info.sha));
        let folder = self.cache.repo(self.repo(&id, path.revision())).pointer_path(&info.sha);
        let files: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let fetch = |name: &str| match name.split('/').all(is_plain_hub_name) {
            true if folder.join(name).exists() => Ok(()),
            true => self.download(&api, &repo, &id, name),
            false => Err(hostile(format!("the file name {name:?}"))),
        };
        let has_card = files.iter().any(|name| name == HUB_CARD);
        if has_card {
            fetch(HUB_CARD)?;
        }
        let card = has_card.then(|| files::read_text(&folder.join(HUB_CARD))).transpose();
        let card = card.map_err(|source| HubError::Io { path: folder.join(HUB_CARD), source })?;
        let chosen = choose_hub_files(&files, card.as_deref(), &path.inner).map_err(lacks)?;
        chosen.iter().try_for_each(|name| fetch(name))?;
        let listing = path.listing(self.cache.path(), &info.sha);
        let text = serde_json::to_vec(&HubListing { files }).expect("names are JSON");
        if !files::read(&listing, files::MAX_TEXT_BYTES).is_ok_and(|noted| noted == text) {
            let write = listing.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&listing, text));
            // Readers then take the names of the files that are there.
            if let Err(error) = write {
                tracing::warn!("the names of the files of {id} are not kept: {}: {error}", listing.display());
            }
        }
        self.note_commit(&id, path.revision(), &info.sha);
        Ok(())
    }

    fn download(&self, api: &Api, repo: &ApiRepo, id: &HubId, name: &str) -> Result<(), HubError> {
        let failed = |error: ApiError| self.explain(id, &error);
        // The library names files in the cache by these, unseen.
        let metadata = api.metadata(&repo.url(name)).map_err(failed)?;
        if !is_plain_hub_name(metadata.etag()) || !is_plain_hub_name(metadata.commit_hash()) {
            let what = format!("{name} has the tag {:?} of the commit {:?}", metadata.etag(), metadata.commit_hash());
            return Err(HubError::Hostile { id: id.to_string(), what });
        }
        let io = |path: &Path| {
            let path = path.to_owned();
            |source| HubError::Io { path, source }
        };
        let cached = self.cache.repo(self.repo(id, metadata.commit_hash()));
        // The library waits for seconds, and downloads what another process has downloaded meanwhile.
        let folder = self.repo(id, metadata.commit_hash()).folder_name();
        let _alone = wait_for_others(self.cache.path(), &folder, metadata.etag(), &format!("{name} of {id}"));
        let (unchecked, blob) =
            (Unchecked::of(self.cache.path(), &folder, metadata.etag()), cached.blob_path(metadata.etag()));
        unchecked.compare().map_err(io(&blob))?;
        let pointer = cached.pointer_path(metadata.commit_hash()).join(name);
        if pointer.exists() {
            return Ok(());
        }
        // Of a part that has all bytes it would ask for more, which servers refuse.
        let part = blob.with_extension("part");
        if fs::metadata(&part).is_ok_and(|part| part.len() >= metadata.size() as u64) {
            fs::remove_file(&part).map_err(io(&part))?;
        }
        // It makes no link where one is, also if that leads nowhere.
        if pointer.is_symlink() {
            fs::remove_file(&pointer).map_err(io(&pointer))?;
        }
        unchecked.note().map_err(io(&blob))?;
        repo.download(name).map_err(failed)?;
        match unchecked.compare().map_err(io(&blob))? {
            true => Ok(()),
            false => Err(HubError::Corrupt { id: id.to_string(), file: name.to_owned() }),
        }
    }

    fn explain(&self, id: &HubId, error: &ApiError) -> HubError {
        let (id, reason) = (id.to_string(), error.to_string());
        let refused = |status, hint| HubError::Refused { id: id.clone(), status, hint };
        match reason.rsplit("status: ").next().unwrap_or_default().trim() {
            "401" | "403" => refused("no access", "if it is private or gated, accept its terms and set HF_TOKEN"),
            "404" => refused(
                "not found",
                "check the id and its revision (org/name@revision); there is no local folder of that name either",
            ),
            _ => HubError::Network { id, endpoint: self.endpoint.clone(), reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_noted_is_not_written_and_one_that_cannot_be_is_no_error() {
        let cache = tempfile::tempdir().unwrap();
        let mut hub = Hub::at("http://127.0.0.1:1", None);
        hub.cache = Cache::new(cache.path().to_owned());
        let id = HubId { repo: "org/name".to_owned(), revision: None };
        let at = |name: &str| cache.path().join("models--org--name").join(name);
        fs::create_dir_all(at("snapshots/c0ffee")).unwrap();
        hub.note_commit(&id, "main", "c0ffee");
        assert_eq!(hub.cached(&id), Some(at("snapshots/c0ffee")));
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(at("refs/main")).unwrap().set_modified(long_ago).unwrap();
        hub.note_commit(&id, "main", "c0ffee");
        assert_eq!(fs::metadata(at("refs/main")).unwrap().modified().unwrap(), long_ago);
        fs::create_dir_all(at("refs/v1")).unwrap();
        hub.note_commit(&id, "v1", "c0ffee");
        assert!(at("refs/v1").is_dir());
    }

    #[test]
    fn a_directory_is_itself() {
        assert_eq!(resolve_model("./somewhere").unwrap(), Path::new("./somewhere"));
    }
}
