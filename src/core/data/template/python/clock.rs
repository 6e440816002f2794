//! `strftime_now`: the date of today, which some templates write.

use minijinja::Error;

use super::error::wrong;
use crate::clock::since_epoch;

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats the present time in UTC.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    strftime(format, since_epoch().as_secs())
}

/// Formats the time of `seconds` since 1970.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, second) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (name, month_name) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let mut result = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            result.push(letter);
            continue;
        }
        result += &match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => name.to_owned(),
            Some('a') => name[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('j') => format!("{:03}", days - days_before(year, 1, 1) + 1),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('-') => match letters.next() {
                Some('d') => day.to_string(),
                Some('m') => month.to_string(),
                Some('H') => hour.to_string(),
                other => return Err(wrong(format!("strftime_now: unknown %-{}", other.unwrap_or(' ')))),
            },
            Some('%') => "%".to_owned(),
            other => return Err(wrong(format!("strftime_now: unknown %{}", other.unwrap_or(' ')))),
        };
    }
    Ok(result)
}

/// Returns year, month and day of the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let year = (1970..).find(|&year| days_before(year + 1, 1, 1) > days).unwrap_or(1970);
    let month = (1..=12).rev().find(|&month| days_before(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

/// Days from 1970 to a date.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let leap = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
    let of_years = (year - 1970) * 365 + leap(year - 1) - leap(1969);
    of_years + before + u64::from(month > 2 && is_leap) + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_python() {
        for (seconds, expected) in [
            (0, "01 Jan 1970 Thursday 00:00:00 001"),
            (951_782_399, "28 Feb 2000 Monday 23:59:59 059"),
            (951_782_400, "29 Feb 2000 Tuesday 00:00:00 060"),
            (1_735_689_599, "31 Dec 2024 Tuesday 23:59:59 366"),
            (4_107_542_400, "01 Mar 2100 Monday 00:00:00 060"),
        ] {
            assert_eq!(strftime("%d %b %Y %A %T %j", seconds).unwrap(), expected);
        }
        assert!(strftime("%Q", 0).is_err());
    }
}
