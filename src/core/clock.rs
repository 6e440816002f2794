//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since the beginning of 1970: nothing where the machine's clock is before that.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
