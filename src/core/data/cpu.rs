//! Describes how long decoding may take: a file within all limits of size may still be made to keep a core busy. Time
//! of the thread on a core, so that neither a slow disk nor a busy machine spoils a sample.

/// Seconds for one picture, or for all frames of an animation: many times what the largest allowed takes.
pub const MAX_DECODE_SECONDS: f64 = 5.0;
/// Pixels up to which nobody looks at the clock, which takes longer than a small picture.
const SMALL: u64 = 1 << 20;

/// The clock of one piece of work on this thread.
pub struct CpuClock {
    /// The time at the start; `None` where the system does not tell.
    begin: Option<f64>,
}

impl CpuClock {
    /// Returns the limit for a picture of so many pixels.
    pub fn for_picture(width: u32, height: u32) -> Self {
        let is_small = u64::from(width) * u64::from(height) <= SMALL;
        Self { begin: if is_small { None } else { seconds() } }
    }

    /// Begins to measure the time of this thread on a core.
    pub fn start() -> Self {
        Self { begin: seconds() }
    }

    /// # Errors
    /// The reason: more than `limit` seconds were spent.
    pub fn check(&self, limit: f64) -> Result<(), String> {
        let Some((begin, now)) = self.begin.and_then(|begin| Some((begin, seconds()?))) else { return Ok(()) };
        if now - begin > limit { Err(format!("takes more than {limit} s to decode")) } else { Ok(()) }
    }
}

/// This thread's time on a core.
fn seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn work_counts_until_the_limit() {
        let clock = CpuClock::start();
        assert!(clock.check(MAX_DECODE_SECONDS).is_ok());
        while clock.check(0.005).is_ok() {}
        assert!(clock.check(0.005).unwrap_err().contains("0.005 s"));
        // Nobody looks at a small picture's.
        assert!(CpuClock::for_picture(1024, 1024).check(-1.0).is_ok());
        assert!(CpuClock::for_picture(1024, 1025).check(-1.0).is_err());
    }
}
