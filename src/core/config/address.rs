//! The address at which a process listens or to which it connects: the path of a Unix socket, or host and port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// `/tmp/run.sock`, `127.0.0.1:6001`, `[::1]:6001` or `host:6001`. Text with a slash, or without a port, is a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    Unix(PathBuf),
    /// A name or a number, without brackets.
    Tcp {
        host: String,
        port: u16,
    },
}

impl Address {
    /// Maximum length of a Unix socket's path, in bytes.
    pub const MAX_PATH: usize = 107;

    /// Returns whether only processes on this machine can connect. Names other than `localhost` are not resolved.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    fn unix(path: &str) -> Result<Self, String> {
        match path.len() {
            0..=Self::MAX_PATH => Ok(Self::Unix(path.into())),
            len => Err(format!("the path of a socket may have at most {} bytes, `{path}` has {len}", Self::MAX_PATH)),
        }
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::unix(path);
        }
        let Some((host, port)) = text.rsplit_once(':').filter(|_| !text.contains('/')) else {
            return match text {
                "" => Err("expected a path or HOST:PORT".to_owned()),
                number if number.parse::<u16>().is_ok() => Err(format!(
                    "`{number}` is a port without a host; expected HOST:PORT, as in `127.0.0.1:{number}`, or a path \
                     (`./{number}`)"
                )),
                path => Self::unix(path),
            };
        };
        let port = port.parse().map_err(|_| format!("`{port}` is not a port; expected a path or HOST:PORT"))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(number) if number.parse::<Ipv6Addr>().is_ok() => number,
            _ if host.is_empty() || host.contains([':', '[', ']']) => {
                return Err(format!(
                    "`{host}` is not a host name; write an IPv6 address in brackets, as in `[::1]:{port}`"
                ));
            }
            _ => host,
        };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

/// Returns whether a bare name would not be read back as a path.
fn is_ambiguous(path: &str) -> bool {
    !path.contains('/') && (path.contains(':') || path.parse::<u16>().is_ok())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) if is_ambiguous(&path.to_string_lossy()) => write!(f, "unix:{}", path.display()),
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_what_they_write() {
        for text in ["/tmp/run.sock", "run.sock", "127.0.0.1:6001", "[::1]:6001", "head-0.pool:1", "unix:a:1", "./a:1"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["unix:6001", "./6001"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("unix:/a/b".parse::<Address>().unwrap(), Address::Unix("/a/b".into()));
        for text in ["", "6001", ":1", "::1:6001", "host:port", "host:70000", "[host]:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        let long = format!("/{}", "a".repeat(Address::MAX_PATH));
        assert!(
            long.parse::<Address>().unwrap_err().contains("at most 107 bytes") && long[1..].parse::<Address>().is_ok()
        );
    }

    #[test]
    fn only_loopback_numbers_are_local() {
        for (text, local) in [
            ("/tmp/run.sock", true),
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("localhost.example.org:1", false),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().is_local(), local, "{text}");
        }
    }
}
