//! Every process has a clock of its own; one of them is the board's.

/// The difference that has to be added to a peer's clock, in nanoseconds: the least that was seen between its sending and our hearing,
/// which is the clocks' difference and the shortest way of a message. Its error is that way: some ten microseconds on one machine, and a
/// fraction of a millisecond between two.
///
/// Clocks of two machines drift apart, by seconds in a run of days: what was seen long ago counts for less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offset {
    least: Option<i64>,
    /// The time at which the last message was heard.
    heard: u64,
}

/// Clocks drift by less than one part in so many.
const MAX_DRIFT: u64 = 10_000;

impl Offset {
    /// Learns from a message of another process, sent at its time and heard at ours, in nanoseconds: the least difference
    /// counts.
    pub fn observe(&mut self, sent: u64, heard: u64) {
        let seen = heard as i64 - sent as i64;
        let drift = (heard.saturating_sub(self.heard) / MAX_DRIFT) as i64;
        self.least = Some(self.least.map_or(seen, |least| seen.min(least + drift)));
        self.heard = heard;
    }

    /// Returns a peer's time in seconds of our clock.
    pub fn seconds(self, time: u64) -> f64 {
        (time as i64 + self.least.unwrap_or(0)) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_message_tells() {
        let mut offset = Offset::default();
        for (sent, heard) in [(1_000, 901_000), (2_000, 900_500), (3_000, 950_000)] {
            offset.observe(sent, heard);
        }
        assert!((offset.seconds(1_500) - 900e-6).abs() < 1e-8);
    }

    #[test]
    fn a_clock_that_is_slower_is_followed_for_days() {
        const DAY: u64 = 86_400;
        let mut offset = Offset::default();
        for second in 0..2 * DAY {
            // It loses 20 microseconds a second, and a message takes 100.
            let heard = second * 1_000_000_000;
            offset.observe(heard - second * 20_000, heard + 100_000);
        }
        let now = 2 * DAY * 1_000_000_000;
        assert!((offset.seconds(now - 2 * DAY * 20_000) - (2 * DAY) as f64).abs() < 1e-3);
    }
}
