//! Errors of a journal.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("journal {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("another scheduler runs this job: it holds {path}")]
    Held { path: PathBuf },
    #[error("{path} is not a journal of this version; start over with --resume or --overwrite")]
    NotAJournal { path: PathBuf },
    #[error("{path} is the journal of another configuration; start over with --resume or --overwrite")]
    OtherConfig { path: PathBuf },
}
