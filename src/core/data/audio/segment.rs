//! A part of a recording: several samples may be of one file.

use serde::{Deserialize, Serialize};

use crate::data::locator::Locator;

/// The latest end of a segment, in seconds: what is before it is decoded as well.
const MAX_END: f64 = 86_400.0;
/// Seconds that a recording may lack at the end of a segment, whose numbers are often rounded.
pub const TOLERANCE: f64 = 0.1;

/// A part of a recording, in seconds from its begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    pub start: f64,
    /// `None`: the end of the recording.
    pub end: Option<f64>,
}

/// A recording, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioSource {
    pub locator: Locator,
    pub segment: Segment,
}

impl Segment {
    pub const WHOLE: Self = Self { start: 0.0, end: None };

    /// # Errors
    /// The reason: a number is negative or too large, or nothing lies between them.
    pub fn new(start: f64, end: Option<f64>) -> Result<Self, String> {
        let is_time = |seconds: f64| (0.0..=MAX_END).contains(&seconds);
        match end {
            _ if !is_time(start) => Err(format!("a segment must begin within 0 to {MAX_END} s, found {start} s")),
            Some(end) if !is_time(end) => Err(format!("a segment must end within 0 to {MAX_END} s, found {end} s")),
            Some(end) if end <= start => Err(format!("a segment ends at {end} s, but begins at {start} s")),
            _ => Ok(Self { start, end }),
        }
    }

    /// Returns whether it is the whole recording: it begins at 0 and has no end.
    pub fn is_whole(&self) -> bool {
        *self == Self::WHOLE
    }

    /// Returns the length in seconds of the segment of a recording that lasts `whole` seconds.
    pub fn seconds(&self, whole: f64) -> f64 {
        (self.end.unwrap_or(whole).min(whole) - self.start).max(0.0)
    }
}

impl From<Locator> for AudioSource {
    /// Returns the whole recording.
    fn from(locator: Locator) -> Self {
        Self { locator, segment: Segment::WHOLE }
    }
}
