//! The client for `loongforge top` and `loongforge trace`: one GET, answered within seconds or not at all.

use super::word::{WATCH_FILE, Word};
use loongforge_core::config::Address;
use loongforge_core::files;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time that a page may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer: a trace of every kept span of hundreds of actors.
const MAX_ANSWER: u64 = 1 << 30;
/// Lines in an answer's head.
const MAX_HEADERS: usize = 32;

/// A run's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: Address,
    pub token: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{path}: no run is active there: {source}")]
    NoRun { path: PathBuf, source: io::Error },
    #[error("the run in {dir} has ended")]
    Ended { dir: PathBuf },
    #[error("{path} was not written by a run")]
    Damaged { path: PathBuf },
    #[error("`{text}` is neither a run's folder nor the address that a run printed")]
    NoTarget { text: String },
    #[error("no answer from {address}: {source}")]
    Silent { address: Address, source: io::Error },
    #[error("{address} answers {answer}")]
    Refused { address: Address, answer: String },
}

impl Target {
    /// Finds the page of a run from its folder, or from the address that it has printed.
    ///
    /// # Errors
    /// Fails if the argument is neither.
    pub fn find(text: &str) -> Result<Self, ClientError> {
        let no_target = || ClientError::NoTarget { text: text.to_owned() };
        let Some(rest) = text.strip_prefix("http://") else {
            let path = Path::new(text);
            return if path.is_dir() { Self::of_run(path) } else { Err(no_target()) };
        };
        let (address, rest) = rest.split_once('/').ok_or_else(no_target)?;
        let (_, token) = rest.split_once("token=").ok_or_else(no_target)?;
        let token = token.split('&').next().unwrap_or_default().to_owned();
        Ok(Self { address: address.parse().map_err(|_| no_target())?, token })
    }

    fn of_run(dir: &Path) -> Result<Self, ClientError> {
        let path = dir.join(WATCH_FILE);
        let text = files::read_text(&path).map_err(|source| ClientError::NoRun { path: path.clone(), source })?;
        let word: Word = serde_json::from_str(&text).map_err(|_| ClientError::Damaged { path: path.clone() })?;
        if word.ended {
            return Err(ClientError::Ended { dir: dir.to_owned() });
        }
        match word.address.parse() {
            Ok(address) => Ok(Self { address, token: word.token }),
            Err(_) => Err(ClientError::Damaged { path }),
        }
    }
}

/// Returns the body of one of the page's paths.
///
/// # Errors
/// Fails if nobody answers, or with another status.
pub fn get(target: &Target, path: &str) -> Result<Vec<u8>, ClientError> {
    let address = target.address.clone();
    let answer = ask(target, path).map_err(|source| ClientError::Silent { address: address.clone(), source })?;
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let refused = |answer: &str| ClientError::Refused { address: address.clone(), answer: answer.to_owned() };
    let Ok(httparse::Status::Complete(begin)) = head.parse(&answer) else { return Err(refused("half a page")) };
    if head.code != Some(200) {
        return Err(refused(&format!("{} {}", head.code.unwrap_or(0), head.reason.unwrap_or_default())));
    }
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    match &answer[begin..] {
        body if length == Some(body.len()) => Ok(body.to_vec()),
        _ => Err(refused("half a page")),
    }
}

fn ask(target: &Target, path: &str) -> io::Result<Vec<u8>> {
    let (host, token) = (&target.address, &target.token);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut answer = Vec::new();
    match &target.address {
        Address::Tcp { host, port } => {
            let mut stream = TcpStream::connect((&**host, *port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        }
        Address::Unix(path) => {
            let mut stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        }
    }
    Ok(answer)
}
