//! One client for each bucket, and what is asked of it.

use super::{StoreError, StoredObject};
use ::url::{Position, Url};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, WriteMultipart};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io::{self, Read};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};

/// Sent or fetched in one request, and how many requests of a file are under way at a time.
const PART_BYTES: u64 = 16 << 20;
const NUM_PARTS: usize = 4;
/// S3 takes so many parts of a file.
const MAX_PARTS: u64 = 10_000;
/// Variables that stores are configured by.
const VARIABLES: [&str; 4] = ["AWS_", "GOOGLE_", "AZURE_", "HTTP_"];
/// Names of variables with these in them hold secrets.
const SECRETS: [&str; 3] = ["KEY", "SECRET", "TOKEN"];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let builder = Builder::new_multi_thread().worker_threads(2).thread_name("object store").enable_all().build();
    builder.expect("two threads can be started")
});

/// One client for each bucket or host.
static STORES: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>> = Mutex::new(BTreeMap::new());

/// Returns the store of a URL, where in it, and what stands before that place in the URL.
pub(crate) fn client_of(text: &str) -> Result<(Arc<dyn ObjectStore>, Path, String), StoreError> {
    let url = Url::parse(text).map_err(|error| StoreError::new(text, format!("is not a valid URL: {error}")))?;
    let key = url[..Position::BeforePath].to_owned();
    let root = format!("{key}/");
    let lock = || STORES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = lock().get(&key) {
        let path = Path::from_url_path(url.path()).map_err(|error| StoreError::new(text, error))?;
        return Ok((store.clone(), path, root));
    }
    let mut options: Vec<(String, String)> = variables().collect();
    if url.scheme() == "http"
        || options.iter().any(|(name, value)| name.contains("ENDPOINT") && value.starts_with("http:"))
    {
        options.push(("allow_http".to_owned(), "true".to_owned()));
    }
    // The first call decides; where another has decided before, its choice holds.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (store, path) = object_store::parse_url_opts(&url, options)
        // Nothing was asked of the store yet: it is the settings that are wrong.
        .map_err(|error| StoreError { is_outage: false, ..failed(text, &error) })?;
    let store: Arc<dyn ObjectStore> = store.into();
    // Where the bucket is a part of the path, a client is for one URL.
    if Path::from_url_path(url.path()).is_ok_and(|whole| whole == path) {
        lock().insert(key, store.clone());
        return Ok((store, path, root));
    }
    let root = text.strip_suffix(path.as_ref()).unwrap_or(&root).to_owned();
    Ok((store, path, root))
}

fn variables() -> impl Iterator<Item = (String, String)> {
    // `vars` panics where another variable is not Unicode.
    let text =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| VARIABLES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Runs a future on the threads of stores, and waits for it.
pub(crate) fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    begin(future).recv().expect("the future answers")
}

/// Begins, and does not wait.
fn begin<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> flume::Receiver<T> {
    let (sender, answer) = flume::bounded(1);
    RUNTIME.spawn(async move { drop(sender.send(future.await)) });
    answer
}

/// Creates the error of a request for `url`.
pub(crate) fn failed(url: &str, error: &object_store::Error) -> StoreError {
    let credentials = match url.split(':').next().unwrap_or_default() {
        "s3" | "s3a" => {
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; AWS_SKIP_SIGNATURE=true for public buckets"
        }
        "gs" | "gcs" => {
            "GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for public buckets"
        }
        "http" | "https" => {
            return StoreError {
                is_outage: is_outage(error),
                ..StoreError::new(url, hide(&error.to_string(), variables()))
            };
        }
        _ => "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY",
    };
    let reason = hide(&error.to_string(), variables());
    let what = format!("{reason} (credentials come from {credentials})");
    StoreError { is_outage: is_outage(error), ..StoreError::new(url, what) }
}

/// Returns whether an error is no answer to the request itself. A missing bucket is an answer, for which the library has no kind of its
/// own. Without credentials the library asks for those of a virtual machine, where there may be none, which is no outage either.
fn is_outage(error: &object_store::Error) -> bool {
    const REFUSALS: [&str; 5] = [
        "NoSuchBucket",
        "status code: 4",
        "Client error with status",
        "://169.254.169.254",
        "://metadata.google.internal",
    ];
    let text = error.to_string();
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    // Too slow, too many requests.
    let passes = has(&["status code: 408", "status code: 429"]);
    matches!(error, object_store::Error::Generic { .. }) && (passes || !has(&REFUSALS))
}

/// Answers of a store may repeat what they were asked with.
pub(super) fn hide(text: &str, variables: impl Iterator<Item = (String, String)>) -> String {
    let is_secret = |name: &str| SECRETS.iter().any(|part| name.contains(part));
    let values = variables.filter(|(name, value)| is_secret(name) && value.len() >= 4);
    values.fold(text.to_owned(), |text, (_, value)| text.replace(&value, "…"))
}

/// Fetches a whole object of at most `max` bytes, which is seen before they are fetched; `None`: there is none.
///
/// # Errors
/// It is larger, or cannot be reached.
pub fn get(url: &str, max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let (store, path, _) = client_of(url)?;
    let fetched = wait(async move {
        let object = store.get(&path).await?;
        let size = object.meta.size;
        if size > max { Ok(Err(size)) } else { object.bytes().await.map(Ok) }
    });
    match fetched {
        Ok(Ok(bytes)) => Ok(Some(bytes.to_vec())),
        Ok(Err(size)) => {
            Err(StoreError::new(url, format!("the object has {size} bytes, more than the limit of {max}")))
        }
        // A bucket that is not there is another thing than an object that is not.
        Err(object_store::Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => Ok(None),
        Err(error) => Err(failed(url, &error)),
    }
}

/// Writes a small object.
///
/// # Errors
/// It cannot be written.
pub fn put(url: &str, bytes: Vec<u8>) -> Result<(), StoreError> {
    let (store, path, _) = client_of(url)?;
    wait(async move { store.put(&path, bytes.into()).await }).map(drop).map_err(|error| failed(url, &error))
}

/// Writes an object of exactly `bytes` bytes, a large one in parts of which four are under way at a time. It is not there before
/// all of it is.
///
/// # Errors
/// It cannot be written, or the reader fails or has another length.
pub fn send(url: &str, reader: &mut dyn Read, bytes: u64) -> Result<(), StoreError> {
    let read = |reader: &mut dyn Read, want: u64| {
        let mut part = Vec::with_capacity(want as usize);
        let got = reader.take(want).read_to_end(&mut part).map_err(|error| StoreError::new(url, error))?;
        if got as u64 == want {
            Ok(part)
        } else {
            Err(StoreError::new(url, "the file was truncated while it was being uploaded"))
        }
    };
    if bytes <= PART_BYTES {
        return put(url, read(reader, bytes)?);
    }
    let (store, path, _) = client_of(url)?;
    let size = PART_BYTES.max(bytes.div_ceil(MAX_PARTS));
    let upload = wait(async move { store.put_multipart(&path).await }).map_err(|error| failed(url, &error))?;
    let mut writer = WriteMultipart::new_with_chunk_size(upload, size as usize);
    let mut left = bytes;
    while left > 0 {
        let part = match read(reader, size.min(left)) {
            Ok(part) => part,
            Err(error) => {
                // Parts of a file that is not there cost money.
                let _ = wait(async move { writer.abort().await });
                return Err(error);
            }
        };
        left -= part.len() as u64;
        let (back, result) = wait(async move {
            let capacity = writer.wait_for_capacity(NUM_PARTS).await;
            if capacity.is_ok() {
                writer.put(Bytes::from(part));
            }
            (writer, capacity)
        });
        writer = back;
        if let Err(error) = result {
            let _ = wait(async move { writer.abort().await });
            return Err(failed(url, &error));
        }
    }
    wait(async move { writer.finish().await }).map(drop).map_err(|error| failed(url, &error))
}

/// Fetches an object of exactly `bytes` bytes in order, of which four parts are under way at a time.
///
/// # Errors
/// It cannot be fetched or has another length, or the sink fails.
pub fn fetch(url: &str, bytes: u64, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), StoreError> {
    let (store, path, _) = client_of(url)?;
    let mut ranges = (0..bytes.div_ceil(PART_BYTES)).map(|part| part * PART_BYTES..bytes.min((part + 1) * PART_BYTES));
    let mut ahead = VecDeque::new();
    loop {
        while ahead.len() < NUM_PARTS
            && let Some(range) = ranges.next()
        {
            let (store, path, len) = (store.clone(), path.clone(), range.end - range.start);
            ahead.push_back((len, begin(async move { store.get_range(&path, range).await })));
        }
        let Some((len, answer)) = ahead.pop_front() else { return Ok(()) };
        let part = answer.recv().expect("the future answers").map_err(|error| failed(url, &error))?;
        if part.len() as u64 != len {
            return Err(StoreError::new(url, "the response is truncated"));
        }
        sink(&part).map_err(|error| StoreError::new(url, error))?;
    }
}

/// Objects that a folder may have.
const MAX_LISTED: usize = 1_000_000;

/// Lists all objects under a folder.
///
/// # Errors
/// The bucket is not there, cannot be listed, or the folder has more than a million objects.
pub fn list(folder: &str) -> Result<Vec<StoredObject>, StoreError> {
    let folder = with_slash(folder);
    let (store, whole, _) = client_of(&folder)?;
    let (mut found, mut folders) = (Vec::new(), vec![whole.clone()]);
    while let Some(prefix) = folders.pop() {
        let store = store.clone();
        let listed = wait(async move { store.list_with_delimiter(Some(&prefix)).await });
        let listed = listed.map_err(|error| failed(&folder, &error))?;
        if found.len() + listed.objects.len() > MAX_LISTED {
            return Err(StoreError::new(&folder, format!("the folder has more than {MAX_LISTED} objects")));
        }
        folders.extend(listed.common_prefixes);
        for meta in &listed.objects {
            let name = meta.location.as_ref().strip_prefix(whole.as_ref()).unwrap_or(meta.location.as_ref());
            let name = name.trim_start_matches('/').to_owned();
            found.push(StoredObject { name, bytes: meta.size, tag: tag(meta) });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Names of the folders in a folder.
///
/// # Errors
/// Fails as [`list`] does.
pub fn list_folders(folder: &str) -> Result<Vec<String>, StoreError> {
    let folder = with_slash(folder);
    let (store, prefix, _) = client_of(&folder)?;
    let listed = wait(async move { store.list_with_delimiter(Some(&prefix)).await });
    let listed = listed.map_err(|error| failed(&folder, &error))?;
    Ok(listed.common_prefixes.iter().filter_map(|path| Some(path.filename()?.to_owned())).collect())
}

/// Removes an object; it may be gone.
///
/// # Errors
/// It cannot be removed.
pub fn delete(url: &str) -> Result<(), StoreError> {
    let (store, path, _) = client_of(url)?;
    match wait(async move { store.delete(&path).await }) {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(failed(url, &error)),
    }
}

fn with_slash(folder: &str) -> String {
    format!("{}/", folder.trim_end_matches('/'))
}

/// Returns a tag that changes when the object does: its entity tag, or else the time when it was written.
pub(crate) fn tag(meta: &ObjectMeta) -> String {
    meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.timestamp_millis().to_string())
}

/// Puts a store in the place of a bucket.
#[cfg(test)]
pub(crate) fn register(root: &str, store: Arc<dyn ObjectStore>) {
    STORES.lock().unwrap_or_else(PoisonError::into_inner).insert(root.to_owned(), store);
}
