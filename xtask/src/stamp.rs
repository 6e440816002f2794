//! The stamp: written last, it says that `.libtorch/` is complete, and with which file sizes.
//! Reading it back costs a few `stat` calls, which is why a second set-up takes milliseconds.

use std::fs;
use std::io::Result;
use std::path::Path;

const NAME: &str = "stamp";

/// Writes the stamp for `files` (paths under `folder`) atomically; `what` names the contents.
pub fn write(folder: &Path, what: &str, files: &[&str]) -> Result<()> {
    let mut text = format!("{what}\n");
    for file in files {
        let size = fs::metadata(folder.join(file))?.len();
        text += &format!("{size} {file}\n");
    }
    let temporary = folder.join("stamp.tmp");
    fs::write(&temporary, text)?;
    fs::rename(temporary, folder.join(NAME))
}

/// Returns whether the stamp names `what` and every file it lists is still there with its size.
pub fn holds(folder: &Path, what: &str) -> bool {
    let Ok(text) = fs::read_to_string(folder.join(NAME)) else {
        return false;
    };
    let mut lines = text.lines();
    lines.next() == Some(what)
        && lines.all(|line| {
            let Some((size, file)) = line.split_once(' ') else {
                return false;
            };
            let found = fs::metadata(folder.join(file)).map(|meta| meta.len().to_string());
            found.is_ok_and(|found| found == size)
        })
}

/// Removes the stamp, if there is one: what follows is about to change the files.
pub fn remove(folder: &Path) -> Result<()> {
    match fs::remove_file(folder.join(NAME)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_only_for_the_same_contents() {
        let folder = std::env::temp_dir().join(format!("xtask-stamp-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::write(folder.join("lib/a.so"), b"four").unwrap();

        assert!(!holds(&folder, "v1"), "no stamp yet");
        assert!(write(&folder, "v1", &["lib/missing.so"]).is_err());
        assert!(!holds(&folder, "v1"), "a failed write leaves no stamp");
        write(&folder, "v1", &["lib/a.so"]).unwrap();
        assert!(holds(&folder, "v1"));
        assert!(!holds(&folder, "v2"), "another version");

        fs::write(folder.join("lib/a.so"), b"cut").unwrap();
        assert!(!holds(&folder, "v1"), "a truncated file");
        fs::remove_file(folder.join("lib/a.so")).unwrap();
        assert!(!holds(&folder, "v1"), "a missing file");

        remove(&folder).unwrap();
        remove(&folder).unwrap();
        assert!(!folder.join(NAME).exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
