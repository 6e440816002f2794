//! Files and folders, read and written with one rule for each thing that can go wrong.
//!
//! Files that come from outside, such as data, pictures, models and configs, are opened by [`open`] and [`read`]: regular files only, so
//! that no pipe, device or socket keeps a run waiting or fills its memory, and a whole file up to a limit that does not come from the
//! file system. What a run writes is appended whole ([`AppendFile`]) or replaced whole ([`replace()`]). Besides these there are the names
//! of a run's folders of checkpoints, and which of them the run goes on from ([`LeftAside`]).

mod append;
mod left_aside;
mod whole;

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

pub use append::{AppendFile, Appended, append_whole};
pub use left_aside::{LEFT_ASIDE, LeftAside, MANIFEST, newest_checkpoint, newest_of_run};
pub use whole::{draft_of, replace, replace_shared, replace_synced};

/// A larger config, template, tokenizer or index in JSON is refused.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Returns whether `name` names a file of a checkpoint: a plain name, or one in a folder of its own. It cannot lead out of the
/// checkpoint.
pub fn is_inner_name(name: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '\0']);
    name.split('/').count() <= 2 && name.split('/').all(is_plain)
}

/// Refuses a path for a socket at which something else is. A process that connects to a file is refused as at a socket where nobody
/// listens, which may be replaced.
///
/// # Errors
/// A file, folder or device is there.
pub fn expect_room_for_socket(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(ErrorKind::AlreadyExists, "a file of this name exists, and it is not a socket"))
        }
        _ => Ok(()),
    }
}

/// Names and paths in a folder; none where the folder is not there.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let listing = match fs::read_dir(folder) {
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        listing => listing?,
    };
    listing.map(|entry| entry.map(|it| (it.file_name().to_string_lossy().into_owned(), it.path()))).collect()
}

/// Returns whether a failure to open something says that it is not there: nothing has its name, or what should be a folder is none.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the result of work on a file or folder; `None` where nothing has its name. A file where a folder is meant is an error here,
/// unlike in [`is_missing`]: who removes a folder would take the file that stays for removed.
///
/// # Errors
/// It failed for another reason.
pub fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// Removes a file, or a folder with all that is in it, if it is there. A link is removed itself.
///
/// # Errors
/// It cannot be removed.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    if_there(if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) }).map(drop)
}

/// Returns the name of the folder of what a run has made after so many steps, a checkpoint or samples: `step-00000200`.
pub fn step_name(num_steps: u64) -> String {
    format!("step-{num_steps:08}")
}

/// Returns the number of the name `step-NUMBER` of a checkpoint's folder, here or in a store; `None` of another name.
pub fn steps_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    // `parse` would take a sign.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Returns the folders `step-NUMBER` of a folder of checkpoints, which are whole, by their numbers; none where the folder is not there.
///
/// # Errors
/// The folder cannot be read.
pub fn step_folders(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found: Vec<(u64, PathBuf)> =
        entries(folder)?.into_iter().filter_map(|(name, path)| Some((steps_of(&name)?, path))).collect();
    found.sort();
    Ok(found)
}

/// Opens a regular file for reading, without waiting.
///
/// # Errors
/// The file is missing, may not be read, or is no regular file: the error says what it is.
pub fn open(path: &Path) -> io::Result<File> {
    // Without `NONBLOCK` opening a pipe waits for a writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        // The answer for a socket, and for a device that is not there.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            return Err(not_regular(fs::metadata(path)?.file_type()));
        }
        opened => opened?,
    };
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(not_regular(kind)) }
}

/// Returns the metadata of a regular file.
///
/// # Errors
/// Fails as [`open`] does, but for permission to read.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() { Ok(metadata) } else { Err(not_regular(metadata.file_type())) }
}

/// Reads a whole regular file of at most `max_bytes`.
///
/// # Errors
/// Fails as [`open`] does, and if the file is larger or cannot be read.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let promised = file.metadata()?.len();
    if promised > max_bytes {
        return Err(too_large(format!("{promised} bytes, more than the limit of {max_bytes}")));
    }
    let mut bytes = Vec::with_capacity(promised as usize);
    // What is read is counted: the promise may be wrong, as it is for the files of /proc.
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(too_large(format!("more than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// Reads a whole regular file of UTF-8 text, of at most [`MAX_TEXT_BYTES`].
///
/// # Errors
/// Fails as [`read`] does, and if the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read(path, MAX_TEXT_BYTES)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8 text"))
}

fn too_large(size: String) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("file of {size}"))
}

fn not_regular(kind: FileType) -> io::Error {
    let name = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "a special file",
    };
    io::Error::new(ErrorKind::InvalidInput, format!("is {name}, not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn special_files_are_refused_by_name_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(at("pipe"), at("link")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (path, kind) in [
            (at("pipe"), "a pipe"),
            (at("link"), "a pipe"),
            (at("socket"), "a socket"),
            (folder.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            let error = read(&path, 10).unwrap_err().to_string();
            assert_eq!(error, format!("is {kind}, not a regular file"));
            assert_eq!(metadata(&path).unwrap_err().to_string(), error);
        }
        assert_eq!(open(&at("gone")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_number_of_a_name_is_the_one_it_was_made_of() {
        for number in [0, 200, 1_234_567_890] {
            assert_eq!(steps_of(&step_name(number)), Some(number));
        }
        assert_eq!((step_name(200).as_str(), steps_of("step-+2"), steps_of("best")), ("step-00000200", None, None));
    }

    #[test]
    fn only_a_missing_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(if_there(fs::read(at("gone"))).unwrap(), None);
        assert!(if_there(fs::read(folder.path())).is_err());
        fs::create_dir_all(at("inner/one")).unwrap();
        fs::write(at("file"), "kept").unwrap();
        std::os::unix::fs::symlink(at("file"), at("inner/one/link")).unwrap();
        for name in ["inner", "inner", "gone"] {
            remove_if_there(&at(name)).unwrap();
        }
        assert_eq!(if_there(fs::read(at("file"))).unwrap().as_deref(), Some(&b"kept"[..]));
        assert!(!at("inner").exists());
    }

    #[test]
    fn sizes_are_bounded_whatever_is_promised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "hello").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"hello");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "file of 5 bytes, more than the limit of 4");
        // The kernel promises 0 bytes of these.
        let maps = Path::new("/proc/self/maps");
        assert_eq!(read(maps, 100).unwrap_err().to_string(), "file of more than 100 bytes");
        assert!(!read(maps, MAX_TEXT_BYTES).unwrap().is_empty());
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path).unwrap_err().to_string(), "is not UTF-8 text");
    }
}
