//! The log file of a process: lines that come before it is known where it is wait for it.

use super::error::ObserveError;
use super::log_line::LogLine;
use crate::config::LogFormat;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

/// Lines that wait at most; those of a process that keeps no log are dropped with it.
const MAX_WAITING: usize = 1000;

/// A log file, or what is to be in it.
pub(super) enum LogFile {
    Waiting(Vec<String>),
    /// It is made with its first line.
    Named(PathBuf),
    Open(PathBuf, File),
    /// It could not be written, and an error has said so.
    Failed,
}

impl Default for LogFile {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl LogFile {
    /// Lines go here from now on, and those that wait. A file that is open here already stays so.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_in(&mut self, path: PathBuf) -> Result<(), ObserveError> {
        if matches!(self, Self::Open(open, _) if *open == path && path.exists()) {
            return Ok(());
        }
        let waiting = match std::mem::replace(self, Self::Named(path)) {
            Self::Waiting(lines) => lines,
            _ => Vec::new(),
        };
        waiting.into_iter().try_for_each(|line| self.put(line))
    }

    /// # Errors
    /// The file cannot be written: it is said once.
    pub fn write(&mut self, line: &LogLine<'_>, format: LogFormat, process: Option<&str>) -> Result<(), ObserveError> {
        if line.is_empty() {
            return Ok(());
        }
        self.put(match format {
            LogFormat::Text => line.kept(),
            LogFormat::Json => line.json(process) + "\n",
        })
    }

    fn put(&mut self, line: String) -> Result<(), ObserveError> {
        // A scheduler that starts later than this process moves what it finds aside, and somebody may remove the file.
        if let Self::Open(path, _) = self
            && !path.exists()
        {
            *self = Self::Named(path.clone());
        }
        if let Self::Named(path) = self {
            let made = fs::create_dir_all(path.parent().unwrap_or(path))
                .and_then(|()| File::options().append(true).create(true).open(&*path));
            let path = path.clone();
            *self = match made {
                Ok(file) => Self::Open(path, file),
                Err(error) => {
                    *self = Self::Failed;
                    return Err(ObserveError::write(&path, error));
                }
            };
        }
        match self {
            Self::Waiting(lines) if lines.len() < MAX_WAITING => lines.push(line),
            Self::Open(path, file) => {
                if let Err(error) = file.write_all(line.as_bytes()) {
                    let error = ObserveError::write(path, error);
                    *self = Self::Failed;
                    return Err(error);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_lines_wait_for_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/a.txt");
        let mut file = LogFile::default();
        let write = |file: &mut LogFile, text: &str| file.write(&LogLine::of(text), LogFormat::Text, None);
        write(&mut file, "early").unwrap();
        file.keep_in(path.clone()).unwrap();
        write(&mut file, "").unwrap();
        write(&mut file, "late").unwrap();
        file.keep_in(path.clone()).unwrap();
        write(&mut file, "later").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let words: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(words, ["early", "late", "later"]);
        fs::rename(dir.path().join("logs"), dir.path().join("aside")).unwrap();
        write(&mut file, "afterwards").unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("INFO  afterwards\n"));
        fs::remove_file(&path).unwrap();
        write(&mut file, "again").unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("INFO  again\n"));
        let mut silent = LogFile::default();
        silent.keep_in(dir.path().join("b.txt")).unwrap();
        assert!(!dir.path().join("b.txt").exists());
        let mut lost = LogFile::default();
        lost.keep_in("/proc/none/c.txt".into()).unwrap();
        assert!(write(&mut lost, "a").unwrap_err().to_string().contains("/proc/none/c.txt"));
        write(&mut lost, "b").unwrap();
    }
}
