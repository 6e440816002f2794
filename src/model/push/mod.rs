//! Pushing a model's folder to the Hugging Face hub, by its HTTP API: create the repository, ask which files are large, upload those by
//! their hash, and commit all at once. Files that the hub has already are not sent again, so that a push that broke off goes on where it
//! was.
//!
//! Nothing is ever sent but by the command that says so.

mod error;
mod files;
mod http;
mod large;
#[cfg(test)]
mod tests;

use super::hub::Hub;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use error::PushError;
use files::{PushFile, files_of};
use http::Client;
use large::upload;
use loongforge_core::checkpoint::sha256;
use loongforge_core::config::Source;
use loongforge_torch::train::hf::{INDEX_FILE, SINGLE_FILE};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a file's beginning that the hub asks for.
const SAMPLE_BYTES: u64 = 512;
/// A larger file is never a part of a commit's text.
const MAX_REGULAR_BYTES: u64 = 16 << 20;
/// Files that one question names.
const BATCH: usize = 256;

/// The file that makes a repository one of adapters.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Tells what was pushed.
#[derive(Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The address of the commit on the hub, or of the repository where the hub names no commit.
    pub url: String,
    pub num_files: usize,
    /// Bytes of all files, and of those that had to be sent.
    pub bytes: [u64; 2],
    /// Files of the folder that were left out.
    pub left_out: Vec<String>,
}

/// Pushes the model in `folder` to the repository `id` (`ORG/NAME`), which is made if it is not there, as one commit on the branch
/// `revision` of `hub`. `progress` is told of every large file, of those of earlier pushes that are removed, and of adapters beside whole
/// weights.
///
/// # Errors
/// There is no token or no model, or the hub refuses or cannot be reached. What was uploaded by then is not sent again.
pub fn push(
    hub: Hub,
    folder: &Path,
    id: &str,
    private: bool,
    revision: &str,
    progress: &mut dyn FnMut(String),
) -> Result<Pushed, PushError> {
    let is_id = Source::new(format!("{id}@{revision}")).hub_id().is_some_and(|found| found.repo == id);
    if !is_id || !revision.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return Err(PushError::Id { id: format!("{id} ({revision})") });
    }
    let (files, left_out) = files_of(folder)?;
    let client = Client::new(hub)?;
    if let Some(said) = said_of_both(&files) {
        progress(said);
    }
    create(&client, id, private, revision)?;
    let large = ask_large(&client, id, revision, &files)?;
    let (mut lines, mut sent) =
        (vec![json!({"key": "header", "value": {"summary": "Upload a model", "description": ""}})], 0);
    for old in replaced(&client, id, revision, &files)? {
        progress(format!("{old} of an earlier push is removed: it could be read in place of these weights"));
        lines.push(json!({"key": "deletedFile", "value": {"path": old}}));
    }
    let mut hashed = Vec::new();
    for (file, is_large) in files.iter().zip(large) {
        if !is_large {
            let text = loongforge_core::files::read(&file.path, MAX_REGULAR_BYTES);
            let text = text.map_err(|source| PushError::Io { path: file.path.clone(), source })?;
            let content = STANDARD.encode(text);
            lines.push(json!({"key": "file", "value": {"content": content, "path": file.name, "encoding": "base64"}}));
            sent += file.bytes;
            continue;
        }
        let oid = sha256(&file.path).map_err(|source| PushError::Io { path: file.path.clone(), source })?;
        let value = json!({"path": file.name, "algo": "sha256", "oid": oid, "size": file.bytes});
        lines.push(json!({"key": "lfsFile", "value": value}));
        hashed.push((file, oid));
    }
    for batch in hashed.chunks(BATCH) {
        sent += upload(&client, id, revision, batch, progress)?;
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let what = format!("committing to {id}");
    let url = client.api(&format!("/api/models/{id}/commit/{revision}"));
    let answer = client.post(&what, &url, "application/x-ndjson", text.as_bytes())?;
    let url = answer["commitUrl"].as_str().map(str::to_owned).unwrap_or_else(|| client.api(&format!("/{id}")));
    let bytes = [files.iter().map(|file| file.bytes).sum(), sent];
    Ok(Pushed { url, num_files: files.len(), bytes, left_out })
}

/// Returns what is said where a folder has adapters beside whole weights: transformers reads one of them.
fn said_of_both(files: &[PushFile]) -> Option<String> {
    let has = |name: &&str| files.iter().any(|file| file.name == *name);
    let weights = [SINGLE_FILE, INDEX_FILE].into_iter().find(has)?;
    has(&ADAPTER_CONFIG).then(|| {
        format!(
            "the folder has whole weights ({weights}) and adapters ({ADAPTER_CONFIG}), and both are pushed: of such a repository \
             transformers loads the adapters on their own base, and not the whole weights; to push one of them, name a folder \
             without the others"
        )
    })
}

/// Makes the repository and the branch where they are not there.
fn create(client: &Client, id: &str, private: bool, revision: &str) -> Result<(), PushError> {
    let (org, name) = id.split_once('/').unwrap_or(("", id));
    let body = json!({"organization": org, "name": name, "type": "model", "private": private});
    let what = format!("creating {id}");
    // 409: it is there. Who may write to a repository need not be allowed to make one.
    let made = client.post_json(&what, &client.api("/api/repos/create"), &body);
    match made {
        Err(PushError::Refused { status: 409, .. }) => {}
        Err(PushError::Refused { status: 403, .. }) if client.exists(&client.api(&format!("/api/models/{id}")))? => {}
        made => drop(made?),
    }
    if revision == "main" {
        return Ok(());
    }
    let url = client.api(&format!("/api/models/{id}/branch/{revision}"));
    match client.post_json(&format!("creating the branch {revision} of {id}"), &url, &json!({})) {
        Err(PushError::Refused { status: 409, .. }) => Ok(()),
        made => made.map(drop),
    }
}

/// Returns the files of earlier pushes at the hub that programs may read in place of the weights that are pushed: one file where these
/// are shards, the index of shards where these are one file, and the config of adapters, whose base transformers would load.
fn replaced(client: &Client, id: &str, revision: &str, files: &[PushFile]) -> Result<Vec<&'static str>, PushError> {
    let has = |name: &str| files.iter().any(|file| file.name == name);
    if !has(SINGLE_FILE) && !has(INDEX_FILE) {
        return Ok(Vec::new());
    }
    let others: Vec<&str> = [SINGLE_FILE, INDEX_FILE, ADAPTER_CONFIG].into_iter().filter(|name| !has(name)).collect();
    let url = client.api(&format!("/api/models/{id}/paths-info/{revision}"));
    let what = format!("asking for {} of {id}", others.join(" and "));
    let found = match client.post_json(&what, &url, &json!({"paths": others})) {
        // A mirror may not know the question.
        Err(PushError::Refused { status: 404, .. }) => return Ok(Vec::new()),
        found => found?,
    };
    let is_there = |other: &&str| found.as_array().into_iter().flatten().any(|file| file["path"] == **other);
    Ok(others.into_iter().filter(is_there).collect())
}

/// Asks which files are stored by their hash.
fn ask_large(client: &Client, id: &str, revision: &str, files: &[PushFile]) -> Result<Vec<bool>, PushError> {
    let what = format!("asking how {id} stores files");
    let url = client.api(&format!("/api/models/{id}/preupload/{revision}"));
    let mut large = Vec::new();
    for batch in files.chunks(BATCH) {
        let asked = batch.iter().map(|file| {
            let sample = sample(&file.path).map_err(|source| PushError::Io { path: file.path.clone(), source })?;
            Ok(json!({"path": file.name, "size": file.bytes, "sample": STANDARD.encode(sample)}))
        });
        let asked = asked.collect::<Result<Vec<Value>, PushError>>()?;
        let answer = client.post_json(&what, &url, &json!({ "files": asked }))?;
        for file in batch {
            let told = answer["files"].as_array().into_iter().flatten().find(|told| told["path"] == file.name);
            let mode = told.and_then(|told| told["uploadMode"].as_str());
            let is_large = match mode {
                Some("lfs") => true,
                Some("regular") if file.bytes <= MAX_REGULAR_BYTES => false,
                other => {
                    let reason = format!("{} of {} bytes is to be stored as {other:?}", file.name, file.bytes);
                    return Err(PushError::Answer { what, reason });
                }
            };
            if told.is_some_and(|told| told["shouldIgnore"] == true) {
                let reason = format!("{} is ignored by the repository's .gitignore", file.name);
                return Err(PushError::Answer { what, reason });
            }
            large.push(is_large);
        }
    }
    Ok(large)
}

fn sample(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
