//! Formats an error with its causes on one line.

use super::limits::limit_reached;
use std::error::Error;

/// Returns the error and its sources, outermost first. A source that the message before it already contains is not repeated. Of one that
/// comes from a limit of this process, the limit is named.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    match limit_reached(&text) {
        Some(limit) => format!("{text}; {limit}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("cannot read a.txt: {source}")]
        Named { source: io::Error },
        #[error("cannot read a.txt")]
        Plain { source: io::Error },
    }

    #[test]
    fn every_cause_is_named_once() {
        let cause = || io::Error::other("the disk is gone");
        for error in [Outer::Named { source: cause() }, Outer::Plain { source: cause() }] {
            assert_eq!(error_chain(&error), "cannot read a.txt: the disk is gone");
        }
    }
}
