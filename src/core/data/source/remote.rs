//! Objects of S3, Google Cloud Storage, Azure and behind HTTP, read by ranges. Retries and time limits are
//! `object_store`'s; credentials come from the variables that the stores' own tools read.
//!
//! Its futures run on two threads that live as long as the program; callers wait for them and may be on any thread.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::{Builder, Runtime};
use url::{Position, Url};

use super::shard::Shard;

/// Read at a time where one byte follows another, and how many of these are held for each object.
const CHUNK: u64 = 4 << 20;
const NUM_CHUNKS: usize = 4;
/// Variables that stores are configured by.
const VARIABLES: [&str; 4] = ["AWS_", "GOOGLE_", "AZURE_", "HTTP_"];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let builder = Builder::new_multi_thread().worker_threads(2).thread_name("object store").enable_all().build();
    builder.expect("two threads can be started")
});

/// One client for each bucket or host.
static STORES: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>> = Mutex::new(BTreeMap::new());

/// An object and the chunks of it that were read last.
pub struct Object {
    store: Arc<dyn ObjectStore>,
    path: Path,
    name: String,
    len: u64,
    chunks: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
}

impl Object {
    pub fn open(shard: &Shard) -> Result<Self, String> {
        let (store, path, _) = locate(&shard.name)?;
        Ok(Self { store, path, name: shard.name.clone(), len: shard.size, chunks: Mutex::default() })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// These bytes and no others. The range lies within the object.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (store, path, range) = (self.store.clone(), self.path.clone(), offset..offset + len as u64);
        let bytes = wait(async move { store.get_range(&path, range).await });
        let bytes = bytes.map_err(|error| io::Error::other(describe(&self.name, &error)))?;
        match bytes.len() == len {
            true => Ok(bytes.to_vec()),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ends too early: truncated")),
        }
    }

    /// The same through the chunks that are held: for headers, and what is read from one end to the other.
    pub fn scan_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (mut bytes, mut at, end) = (Vec::with_capacity(len), offset, offset + len as u64);
        while at < end {
            let begin = at / CHUNK * CHUNK;
            let chunk = self.chunk(begin)?;
            let until = (end - begin).min(chunk.len() as u64);
            bytes.extend_from_slice(&chunk[(at - begin) as usize..until as usize]);
            at = begin + until;
        }
        Ok(bytes)
    }

    fn chunk(&self, begin: u64) -> io::Result<Arc<[u8]>> {
        let lock = || self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, chunk)) = lock().iter().find(|(at, _)| *at == begin) {
            return Ok(chunk.clone());
        }
        let chunk: Arc<[u8]> = self.read_at(begin, CHUNK.min(self.len - begin) as usize)?.into();
        let mut chunks = lock();
        if chunks.len() == NUM_CHUNKS {
            chunks.pop_front();
        }
        chunks.push_back((begin, chunk.clone()));
        Ok(chunk)
    }
}

/// An object's size and tag.
///
/// # Errors
/// The reason: there is none, or it cannot be reached.
pub fn stat(url: &str) -> Result<Shard, String> {
    let (store, path, _) = locate(url)?;
    let meta = wait(async move { store.head(&path).await }).map_err(|error| describe(url, &error))?;
    Ok(Shard { name: url.to_owned(), size: meta.size, tag: tag(&meta) })
}

/// A whole object of at most `max` bytes, which is seen before they are fetched.
pub fn get(url: &str, max: u64) -> Result<Vec<u8>, String> {
    let (store, path, _) = locate(url)?;
    let fetched = wait(async move {
        let object = store.get(&path).await?;
        let size = object.meta.size;
        if size > max { Ok(Err(size)) } else { object.bytes().await.map(Ok) }
    });
    match fetched.map_err(|error| describe(url, &error))? {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(size) => Err(format!("{size} bytes, more than {max}")),
    }
}

/// All objects under a folder, which ends in a slash.
pub fn list(folder: &str) -> Result<Vec<Shard>, String> {
    let (store, prefix, root) = locate(folder)?;
    let (mut found, mut folders) = (Vec::new(), vec![prefix]);
    while let Some(prefix) = folders.pop() {
        let store = store.clone();
        let listed = wait(async move { store.list_with_delimiter(Some(&prefix)).await });
        let listed = listed.map_err(|error| describe(folder, &error))?;
        folders.extend(listed.common_prefixes);
        let shard = |meta: &object_store::ObjectMeta| Shard {
            name: format!("{root}{}", meta.location),
            size: meta.size,
            tag: tag(meta),
        };
        found.extend(listed.objects.iter().map(shard));
    }
    Ok(found)
}

fn tag(meta: &object_store::ObjectMeta) -> String {
    meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.timestamp_millis().to_string())
}

/// The store of a URL, where in it, and what stands before that place in the URL.
fn locate(text: &str) -> Result<(Arc<dyn ObjectStore>, Path, String), String> {
    let url = Url::parse(text).map_err(|error| format!("is no URL: {error}"))?;
    let key = url[..Position::BeforePath].to_owned();
    let root = format!("{key}/");
    let lock = || STORES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = lock().get(&key) {
        let path = Path::from_url_path(url.path()).map_err(|error| error.to_string())?;
        return Ok((store.clone(), path, root));
    }
    let mut options: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| VARIABLES.iter().any(|prefix| name.starts_with(prefix))).collect();
    if url.scheme() == "http"
        || options.iter().any(|(name, value)| name.contains("ENDPOINT") && value.starts_with("http:"))
    {
        options.push(("allow_http".to_owned(), "true".to_owned()));
    }
    let (store, path) = object_store::parse_url_opts(&url, options).map_err(|error| describe(text, &error))?;
    let store: Arc<dyn ObjectStore> = store.into();
    // Where the bucket is a part of the path, a client is for one URL.
    if Path::from_url_path(url.path()).is_ok_and(|whole| whole == path) {
        lock().insert(key, store.clone());
        return Ok((store, path, root));
    }
    let root = text.strip_suffix(path.as_ref()).unwrap_or(&root).to_owned();
    Ok((store, path, root))
}

fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, answer) = flume::bounded(1);
    RUNTIME.spawn(async move { drop(sender.send(future.await)) });
    answer.recv().expect("the future answers")
}

fn describe(url: &str, error: &object_store::Error) -> String {
    let variables = match url.split(':').next().unwrap_or_default() {
        "s3" | "s3a" => {
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT; AWS_SKIP_SIGNATURE=true for public buckets"
        }
        "gs" | "gcs" => {
            "GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for public buckets"
        }
        "http" | "https" => return format!("cannot be read: {error}"),
        _ => "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY",
    };
    format!("cannot be read: {error} (credentials come from {variables})")
}

/// Puts a store in the place of a bucket.
#[cfg(test)]
pub fn register(root: &str, store: Arc<dyn ObjectStore>) {
    STORES.lock().unwrap_or_else(PoisonError::into_inner).insert(root.to_owned(), store);
}

/// Puts an object into a store.
#[cfg(test)]
pub fn put(store: &Arc<dyn ObjectStore>, path: &str, bytes: Vec<u8>) {
    let (store, path) = (store.clone(), Path::from(path));
    wait(async move { store.put(&path, bytes.into()).await }).unwrap();
}
