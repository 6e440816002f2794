//! Files that are replaced as a whole: whoever reads one, or comes after a kill, finds the old contents or the new ones. The new ones
//! are written to a draft beside the file, which is renamed to it.

use super::if_there;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Returns the draft of a file that one process at a time writes. One that a killed process has left is overwritten by the next.
pub fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{}.part", name.trim_start_matches('.')))
}

/// Replaces a file that one process at a time writes, or makes it. It is not synced: after the end of the machine it may be empty.
///
/// # Errors
/// It cannot be written: the file is as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_of(path);
    fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, path))
}

/// Works like [`replace`], and the file and its name are on the disk when it returns. The file has `mode`, less what the umask takes,
/// from its first byte on.
///
/// # Errors
/// It cannot be written: the file is as before; or the folder cannot be synced.
pub fn replace_synced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_of(path);
    // What a killed process has left may have another mode.
    if_there(fs::remove_file(&draft))?;
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder_of(path))?.sync_all()
}

/// Works like [`replace`] for a file that several processes may write at once, also on several machines: each has a draft of its own,
/// which is removed where it fails. The contents are synced before they get the name. The file has `mode`, less what the umask takes.
///
/// # Errors
/// It cannot be written: the file is as before.
pub fn replace_shared(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut drafts = tempfile::Builder::new();
    // A temporary file is its owner's alone unless it is told otherwise.
    drafts.prefix(&prefix).suffix(".part").permissions(Permissions::from_mode(mode));
    let mut draft = drafts.tempfile_in(folder_of(path))?;
    draft.write_all(bytes)?;
    draft.as_file().sync_all()?;
    draft.persist(path)?;
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Replace = fn(&Path, &[u8]) -> io::Result<()>;

    #[test]
    fn a_file_is_replaced_and_nothing_else_stays() {
        let ways: [Replace; 3] = [
            replace,
            |path, bytes| replace_synced(path, bytes, 0o600),
            |path, bytes| replace_shared(path, bytes, 0o600),
        ];
        for way in ways {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.json");
            for text in ["first", "second"] {
                way(&path, text.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            way(&dir.path().join("gone/a.json"), b"").unwrap_err();
            fs::create_dir(dir.path().join("folder")).unwrap();
            way(&dir.path().join("folder"), b"").unwrap_err();
            assert!(dir.path().join("folder").is_dir());
        }
    }

    #[test]
    fn a_draft_that_was_left_gives_its_mode_to_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        assert_eq!(draft_of(&path), dir.path().join(".a.key.part"));
        assert_eq!(draft_of(&dir.path().join(".hidden")), dir.path().join(".hidden.part"));
        fs::write(draft_of(&path), "half of it, readable by all").unwrap();
        replace_synced(&path, b"secret", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        replace_shared(&path, b"open", 0o644).unwrap();
        let usual = dir.path().join("usual");
        fs::write(&usual, "").unwrap();
        let [shared, usual] = [path, usual].map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
        assert_eq!(shared, usual & 0o644);
    }
}
