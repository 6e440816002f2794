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
    let limit = limit_reached(&text);
    with_limit(text, limit)
}

/// Returns the text with the limit that it comes from, once: it may be of an error that was told of before, as by another process.
fn with_limit(text: String, limit: Option<String>) -> String {
    match limit.filter(|limit| !text.contains(limit.as_str())) {
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

    #[test]
    fn a_limit_is_named_once() {
        let named = |text: String| with_limit(text, Some("this process may write files of at most 1 B".to_owned()));
        let once = named("File too large".to_owned());
        assert_eq!(once, "File too large; this process may write files of at most 1 B");
        assert_eq!(named(format!("foundation/0: {once}")), format!("foundation/0: {once}"));
        assert_eq!(with_limit("gone".to_owned(), None), "gone");
    }
}
