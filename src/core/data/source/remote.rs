//! Objects of stores, read by ranges ([`crate::store`]).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::patience::OF_STORE;
use super::shard::Shard;
use crate::store::{self, client_of, failed, wait};

/// The bytes that are read at a time where one byte follows another, and how many of these are held for each object.
const CHUNK: u64 = 4 << 20;
const NUM_CHUNKS: usize = 4;

/// An object and the chunks of it that were read last.
pub struct Object {
    store: Arc<dyn ObjectStore>,
    path: Path,
    name: String,
    len: u64,
    chunks: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
}

impl Object {
    /// Connects to the store of a shard, whose size is known; nothing is read yet.
    ///
    /// # Errors
    /// The URL or the credentials are wrong.
    pub fn open(shard: &Shard) -> Result<Self, String> {
        let (store, path, _) = client_of(&shard.name).map_err(|error| unread(&error.reason))?;
        Ok(Self { store, path, name: shard.name.clone(), len: shard.size, chunks: Mutex::default() })
    }

    /// Returns the number of bytes that the store told before.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads these bytes and no others. The range lies within the object.
    ///
    /// # Errors
    /// The store does not answer, or refuses.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (store, path, range) = (self.store.clone(), self.path.clone(), offset..offset + len as u64);
        let bytes = wait(async move { store.get_range(&path, range).await });
        let bytes = bytes.map_err(|error| io::Error::other(describe(&self.name, &error)))?;
        match bytes.len() == len {
            true => Ok(bytes.to_vec()),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ends too early: truncated")),
        }
    }

    /// Reads the same through the chunks that are held: for headers, and what is read from one end to the other.
    ///
    /// # Errors
    /// Fails as [`Object::read_at`] does.
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

/// Returns an object's size and tag.
///
/// # Errors
/// The reason: there is none, or it cannot be reached.
pub fn stat(url: &str) -> Result<Shard, String> {
    let (store, path, _) = client_of(url).map_err(|error| unread(&error.reason))?;
    let meta = wait(async move { store.head(&path).await }).map_err(|error| describe(url, &error))?;
    Ok(Shard { name: url.to_owned(), size: meta.size, tag: store::tag(&meta) })
}

/// Fetches a whole object of at most `max` bytes, which is seen before they are fetched.
///
/// # Errors
/// The reason: there is no such object, it is larger, or the store does not answer.
pub fn get(url: &str, max: u64) -> Result<Vec<u8>, String> {
    store::get(url, max).map_err(|error| unread(&error.reason))?.ok_or_else(|| unread("there is no such object"))
}

/// Lists all objects under a folder, which ends in a slash.
///
/// # Errors
/// The reason: the store does not answer, or refuses.
pub fn list(folder: &str) -> Result<Vec<Shard>, String> {
    let listed = store::list(folder).map_err(|error| unread(&error.reason))?;
    let shard = |object: store::StoredObject| Shard {
        name: format!("{folder}{}", object.name),
        size: object.bytes,
        tag: object.tag,
    };
    Ok(listed.into_iter().map(shard).collect())
}

fn describe(url: &str, error: &object_store::Error) -> String {
    unread(&failed(url, error).reason)
}

fn unread(reason: &str) -> String {
    format!("{OF_STORE}: {reason}")
}

/// Puts an object into a store.
#[cfg(test)]
pub fn put(store: &Arc<dyn ObjectStore>, path: &str, bytes: Vec<u8>) {
    let (store, path) = (store.clone(), Path::from(path));
    wait(async move { store.put(&path, bytes.into()).await }).unwrap();
}
