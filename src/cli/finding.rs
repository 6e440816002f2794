//! A finding of `loongforge doctor`: one thing that it looked at, and what to do about it.

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Warning,
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// The advice says what to do where it is not good.
    pub advice: &'static str,
}

impl Finding {
    /// Makes a finding that needs no advice.
    pub fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, found: found.into(), advice: "" }
    }

    /// Returns a good finding if `enough`, else a warning with advice.
    pub fn expect(what: &'static str, enough: bool, found: String, advice: &'static str) -> Self {
        match enough {
            true => Self::good(what, found),
            false => Self { what, verdict: Verdict::Warning, found, advice },
        }
    }
}

impl Verdict {
    /// Returns the word that begins the finding's line, at most four letters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warn",
            Self::Failure => "fail",
        }
    }
}
