//! What goes wrong with a journal.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("journal {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("another scheduler conducts this run: it holds {path}")]
    Held { path: PathBuf },
    #[error("{path} is no journal of this version; begin anew with --resume or --overwrite")]
    NotAJournal { path: PathBuf },
    #[error("{path} is the journal of another configuration; begin anew with --resume or --overwrite")]
    OtherConfig { path: PathBuf },
}
