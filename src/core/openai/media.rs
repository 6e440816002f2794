//! The files that a request may name: its own bytes, and those below one folder.

use std::fs::DirEntry;
use std::path::Path;

use super::error::ApiError;
use crate::data::{Conversation, Locator, MediaSource};

/// Lets the conversation name only bytes that came with it (`data:` URIs) and, where `files` is a folder, files below it.
///
/// # Errors
/// It names another file, or one that is not there; or a URL, which is never fetched.
pub fn confine(conversation: &mut Conversation, files: Option<&Path>) -> Result<(), ApiError> {
    for source in &mut conversation.media {
        match source {
            MediaSource::Image(locator) => confine_one(locator, files)?,
            MediaSource::Audio(audio) => confine_one(&mut audio.locator, files)?,
            MediaSource::Video(video) => {
                video.locators.iter_mut().try_for_each(|locator| confine_one(locator, files))?;
            }
            MediaSource::Context(_) => {}
        }
    }
    Ok(())
}

/// Returns whether all files in `path` are below `folder`, if it is a folder of frames; a frame may be a link.
fn has_only_own(path: &Path, folder: &Path) -> bool {
    let is_own = |entry: DirEntry| entry.path().canonicalize().is_ok_and(|path| path.starts_with(folder));
    !path.is_dir() || path.read_dir().is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_own)))
}

fn confine_one(locator: &mut Locator, files: Option<&Path>) -> Result<(), ApiError> {
    let refuse = |reason: &str| Err(ApiError::bad("messages", reason));
    let name = match locator {
        Locator::Bytes { .. } => return Ok(()),
        Locator::Url(_) => return refuse("URLs are not fetched: send the bytes in a data: URI"),
        Locator::File(name) => name,
    };
    let Some(folder) = files else {
        return refuse("files cannot be named: send the bytes in a data: URI, or start the server with --files");
    };
    // The same words for a file that is not there and one that is elsewhere: nobody learns what is on the disk.
    let found = folder.canonicalize().and_then(|folder| Ok((folder.join(&*name).canonicalize()?, folder)));
    match found {
        Ok((path, folder)) if path.starts_with(&folder) && has_only_own(&path, &folder) => {
            *locator = Locator::File(path.display().to_string());
            Ok(())
        }
        _ => refuse("a file is not inside the folder of --files"),
    }
}
