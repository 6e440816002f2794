//! Errors of sockets, certificates and authentication.

use super::Party;
use loongforge_core::config::Address;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(
        "error[LF0501]: {address} can be reached from other machines, and needs no authentication; give \
         `--tls DIR` (`loongforge certs new` makes it), use 127.0.0.1 or a Unix socket, or say \
         `--insecure-allow-plaintext` where the network is isolated"
    )]
    NotSecure { address: Address },
    #[error("cannot listen at {address}: {source}")]
    Listen { address: Address, source: io::Error },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: no usable certificate or key: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error("{path}: {reason}; `loongforge certs add` writes new certificates")]
    Expired { path: PathBuf, reason: String },
    #[error("{path} is readable by others: `chmod 600` it")]
    Open { path: PathBuf },
    #[error(
        "{path} is the certificate of run `{theirs}`, not of `{ours}`: write into another folder, or remove it first"
    )]
    OfOtherRun { path: PathBuf, theirs: String, ours: String },
    #[error(
        "{path}: {reason}; give `--tls` the folder of this run's certificates (`loongforge certs new --run RUN` makes it)"
    )]
    NotOurs { path: PathBuf, reason: Refusal },
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The reason why a peer is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its certificate names no run and role (loongforge://RUN/role/ROLE)")]
    NoIdentity,
    #[error("its certificate is for run `{theirs}`, this is `{ours}`")]
    OtherRun { theirs: String, ours: String },
    #[error("its certificate is for the role {certified}, but it claims to be {said}")]
    OtherRole { certified: Party, said: Party },
    #[error("its certificate is for the role {certified}, which does not listen there")]
    NotServing { certified: Party },
    #[error("it belongs to user {uid}")]
    OtherUser { uid: u32 },
    #[error("its first message of {len} bytes is longer than the {max} allowed before authentication")]
    TooLong { len: usize, max: usize },
    #[error("it did not identify itself")]
    NoHello,
    /// A probe that looks whether somebody listens ends so.
    #[error("it left without a word")]
    Left,
    #[error("it did not identify itself within {seconds} s")]
    TooSlow { seconds: u64 },
    #[error("it uses plain text and this run TLS: give it `--tls DIR`")]
    Plain,
    #[error("it uses TLS and this run plain text: give the scheduler `--tls DIR`, too")]
    Encrypted,
    #[error("{0}")]
    Handshake(String),
}
