//! Tells whose samples are whose, where several processes write one folder.

use std::ops::Range;

/// One process of several: `index` of `num`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub index: u64,
    pub num: u64,
}

impl Share {
    pub const WHOLE: Self = Self { index: 0, num: 1 };

    /// Returns the numbers of `0..len` that are this process's: neighbors, as many as everybody's but for one.
    pub fn of(self, len: u64) -> Range<u64> {
        let at = |index: u64| (u128::from(len) * u128::from(index) / u128::from(self.num)) as u64;
        at(self.index)..at(self.index + 1)
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// Parses `i/n` with `i` from 0.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (index, num) = text.split_once('/')?;
            Some((index.trim().parse::<u64>().ok()?, num.trim().parse::<u64>().ok()?))
        };
        match parse() {
            Some((index, num)) if index < num => Ok(Self { index, num }),
            Some((index, num)) => Err(format!(
                "{index}/{num} is out of range: the first of {num} is 0/{num}, the last {}/{num}",
                num.saturating_sub(1)
            )),
            None => Err(format!("{text:?} is not i/n, for example 0/8")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (len, num) in [(0, 3), (1, 3), (10, 3), (7, 7), (1000, 16)] {
            let all: Vec<u64> = (0..num).flat_map(|index| Share { index, num }.of(len)).collect();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
        }
        assert_eq!("2/3".parse(), Ok(Share { index: 2, num: 3 }));
        assert!("3/3".parse::<Share>().unwrap_err().contains("2/3"));
        assert!("0/0".parse::<Share>().is_err() && "a".parse::<Share>().unwrap_err().contains("i/n"));
    }
}
