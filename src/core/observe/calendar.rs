//! The calendar of UTC, for names of folders and lines of logs.

use crate::clock::since_epoch;

/// A moment as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    pub year: u64,
    pub month: usize,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
    pub millisecond: u32,
}

impl Utc {
    /// Returns the present time.
    pub fn now() -> Self {
        let since = since_epoch();
        Self { millisecond: since.subsec_millis(), ..Self::of(since.as_secs()) }
    }

    /// Returns the time of so many seconds since 1970.
    pub fn of(seconds: u64) -> Self {
        let (mut days, second) = (seconds / 86_400, seconds % 86_400);
        let is_leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
        let mut year = 1970;
        while days >= 365 + u64::from(is_leap(year)) {
            days -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let mut month = 0;
        let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        while days >= lengths[month] {
            days -= lengths[month];
            month += 1;
        }
        let (hour, minute) = (second / 3600, second / 60 % 60);
        Self { year, month: month + 1, day: days + 1, hour, minute, second: second % 60, millisecond: 0 }
    }

    /// Formats the time as `2026-11-22T13:05:00Z`.
    pub fn seconds(&self) -> String {
        format!("{}Z", self.text())
    }

    /// Formats the time as `2026-11-22T13:05:00.123Z`.
    pub fn milliseconds(&self) -> String {
        format!("{}.{:03}Z", self.text(), self.millisecond)
    }

    /// Formats the time as `20261122_130500`, for names.
    pub fn compact(&self) -> String {
        let Self { year, month, day, hour, minute, second, .. } = self;
        format!("{year}{month:02}{day:02}_{hour:02}{minute:02}{second:02}")
    }

    fn text(&self) -> String {
        let Self { year, month, day, hour, minute, second, .. } = self;
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        let days = [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_779, "2026-11-22")];
        for (day, date) in days {
            assert_eq!(Utc::of(day * 86_400 + 47_105).seconds(), format!("{date}T13:05:05Z"));
        }
        let moment = Utc { millisecond: 7, ..Utc::of(20_779 * 86_400) };
        assert_eq!(
            (moment.milliseconds().as_str(), moment.compact().as_str()),
            ("2026-11-22T00:00:00.007Z", "20261122_000000")
        );
    }
}
