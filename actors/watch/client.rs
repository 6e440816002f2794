//! The other end, for `loongforge top` and `loongforge trace`: one GET, answered within seconds or not at all.

use super::WATCH_FILE;
use loongforge_core::config::Address;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer: a trace of every kept span of hundreds of actors.
const MAX_ANSWER: u64 = 1 << 30;

/// A run's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: Address,
    pub token: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{path}: no run is going on there: {source}")]
    NoRun { path: PathBuf, source: io::Error },
    #[error("{path} is not what a run leaves there")]
    Damaged { path: PathBuf },
    #[error("`{text}` is neither a run's folder nor the address that a run has printed")]
    NoTarget { text: String },
    #[error("nobody answers at {address}: {source}")]
    Silent { address: Address, source: io::Error },
    #[error("{address} answers {answer}")]
    Refused { address: Address, answer: String },
}

impl Target {
    /// From a run's folder, or from the address that it has printed.
    ///
    /// # Errors
    /// It is neither.
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
        let text = fs::read_to_string(&path).map_err(|source| ClientError::NoRun { path: path.clone(), source })?;
        let word: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let of = |name: &str| word[name].as_str().map(str::to_owned);
        let address = of("address").and_then(|address| address.parse().ok());
        let target = address.zip(of("token")).map(|(address, token)| Self { address, token });
        target.ok_or(ClientError::Damaged { path })
    }
}

/// The body of one of the page's paths.
///
/// # Errors
/// Nobody answers, or not with it.
pub fn get(target: &Target, path: &str) -> Result<Vec<u8>, ClientError> {
    let address = target.address.clone();
    let answer = ask(target, path).map_err(|source| ClientError::Silent { address: address.clone(), source })?;
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let head = String::from_utf8_lossy(&answer[..end.unwrap_or(answer.len())]).into_owned();
    let mut line = head.lines().next().unwrap_or_default().splitn(2, ' ');
    let (_version, status) = (line.next(), line.next().unwrap_or_default());
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    match end.map(|end| answer[end + 4..].to_vec()) {
        Some(body) if status.starts_with("200") && length == Some(body.len()) => Ok(body),
        Some(_) if !status.starts_with("200") => Err(ClientError::Refused { address, answer: status.to_owned() }),
        _ => Err(ClientError::Refused { address, answer: "half a page".to_owned() }),
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
