//! The scans of single digits, split into those for training and those held out.

use std::io::Read;

use flate2::read::GzDecoder;

const CSV: &[u8] = include_bytes!("digits.csv.gz");

pub const SIDE: usize = 8;

/// [`SIDE`]×[`SIDE`] values of 0 (paper) to 16 (ink), row by row.
pub type Scan = [u8; SIDE * SIDE];

/// Scans by digit. A scan is in one of the two parts only.
pub struct Scans {
    pub train: [Vec<Scan>; 10],
    pub held_out: [Vec<Scan>; 10],
}

impl Scans {
    /// Loads the scans. For training there are 85 % of each digit's, spread over the file, whose neighbors are of one hand.
    pub fn load() -> Self {
        let mut text = String::new();
        GzDecoder::new(CSV).read_to_string(&mut text).expect("the file is part of the program");
        let mut scans = Self { train: Default::default(), held_out: Default::default() };
        let mut counts = [0usize; 10];
        for line in text.lines() {
            let mut numbers = line.split(',').map(|number| number.parse::<u8>().expect("a small number"));
            let scan: Scan = std::array::from_fn(|_| numbers.next().expect("64 pixels"));
            let digit = usize::from(numbers.next().expect("a digit"));
            let held_out = matches!(counts[digit] % 20, 3 | 10 | 17);
            counts[digit] += 1;
            let part = if held_out { &mut scans.held_out } else { &mut scans.train };
            part[digit].push(scan);
        }
        scans
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_scan_is_there_and_in_one_part_only() {
        let scans = Scans::load();
        let count = |part: &[Vec<Scan>; 10]| part.iter().map(Vec::len).sum::<usize>();
        assert_eq!((count(&scans.train), count(&scans.held_out)), (1529, 268));
        for digit in 0..10 {
            let fraction = scans.held_out[digit].len() as f64 / scans.train[digit].len() as f64;
            assert!((0.14..0.2).contains(&fraction), "{digit}: {fraction}");
        }
        let train: BTreeSet<&Scan> = scans.train.iter().flatten().collect();
        assert!(scans.held_out.iter().flatten().all(|scan| !train.contains(scan)));
        assert!(scans.train.iter().flatten().flatten().all(|&value| value <= 16));
    }
}
