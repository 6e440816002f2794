//! Every process has a clock of its own; one of them is the board's.

/// Holds what has to be added to a peer's clock, in nanoseconds: the least that was seen between its sending and our
/// hearing, which is the clocks' difference and the shortest way of a message. Its error is that way: some ten
/// microseconds on one machine, and a fraction of a millisecond between two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offset(Option<i64>);

impl Offset {
    /// Learns from a message of another process, sent at its time and heard at ours, in nanoseconds: the least difference
    /// counts.
    pub fn observe(&mut self, sent: u64, heard: u64) {
        let seen = heard as i64 - sent as i64;
        self.0 = Some(self.0.map_or(seen, |least| least.min(seen)));
    }

    /// A peer's time in seconds of our clock.
    pub fn seconds(self, time: u64) -> f64 {
        (time as i64 + self.0.unwrap_or(0)) as f64 / 1e9
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
        assert_eq!(offset.seconds(1_500), 900e-6);
    }
}
