//! The paths that commands write to.

use clap::builder::{PathBufValueParser, TypedValueParser, ValueParser};
use std::path::PathBuf;

/// Returns the parser of a path to write to. A URL is refused: it would become a folder such as `s3:` of this machine.
pub fn local_path() -> ValueParser {
    ValueParser::new(PathBufValueParser::new().try_map(expect_local))
}

fn expect_local(path: PathBuf) -> Result<PathBuf, &'static str> {
    let is_url = path.to_string_lossy().contains("://");
    if is_url { Err("this is a URL: name a path on this machine, and copy it from there") } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_no_path_to_write_to() {
        for url in ["s3://bucket/out", "file:///out", "hf://org/name"] {
            assert!(expect_local(PathBuf::from(url)).is_err(), "{url}");
        }
        for path in ["out", "/a/b", "a:b", "s3:/a"] {
            assert_eq!(expect_local(PathBuf::from(path)), Ok(PathBuf::from(path)));
        }
    }
}
