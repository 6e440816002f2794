//! Lengths of synthetic samples by three laws, the same everywhere, and the command line that picks them.

use loongforge_core::rng::{STEP, mix};
use std::path::PathBuf;

pub const LAWS: [&str; 3] = ["sft", "vlm", "longtail"];

/// SplitMix64.
pub struct Draw(pub u64);

impl Draw {
    /// Draws a number in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(STEP);
        ((mix(self.0) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        median * (sigma * normal).exp()
    }

    fn image(&mut self) -> f64 {
        256.0 + 1024.0 * self.uniform() * self.uniform()
    }

    /// Draws the length of a sample, again where it is more than `most`.
    ///
    /// `sft`: log-normal, median 420, mean 690. `vlm`: 25 % text, 55 % one image, 20 % two to eight. `longtail`: Pareto
    /// with α = 0.9 from 400 tokens.
    pub fn length(&mut self, law: &str, most: usize) -> u32 {
        loop {
            let tokens = match law {
                "sft" => self.log_normal(420.0, 0.9964),
                "vlm" => match self.uniform() {
                    share if share < 0.25 => self.log_normal(420.0, 0.9964),
                    share if share < 0.8 => self.image() + self.log_normal(200.0, 0.8),
                    _ => {
                        let images = 2 + (self.uniform() * 7.0) as usize;
                        (0..images).map(|_| self.image()).sum::<f64>() + self.log_normal(300.0, 0.8)
                    }
                },
                "longtail" => 400.0 * self.uniform().powf(-1.0 / 0.9),
                other => panic!("no law is called {other}; there are {LAWS:?}"),
            };
            if tokens.ceil() <= most as f64 {
                return tokens.ceil() as u32;
            }
        }
    }
}

/// `--laws a,b`, `--samples n,m`, `--tokens l,m`, `--ranks d,e`, `--rounds r`, and `--write FOLDER` for the lengths as
/// little-endian u32.
pub struct Arguments {
    pub laws: Vec<String>,
    pub samples: Vec<usize>,
    pub tokens: Vec<usize>,
    pub ranks: Vec<usize>,
    pub rounds: usize,
    pub write: Option<PathBuf>,
}

impl Arguments {
    pub fn read() -> Self {
        let mut read = Self {
            laws: LAWS.map(str::to_owned).to_vec(),
            samples: vec![1_000_000, 10_000_000],
            tokens: vec![8192, 32768],
            ranks: vec![8, 32, 128, 512, 4096],
            rounds: 5,
            write: None,
        };
        // Cargo adds `--bench`.
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(name) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{name} wants a value"));
            let numbers = || value.split(',').map(|number| number.parse().expect("a number")).collect::<Vec<usize>>();
            match name.as_str() {
                "--laws" => read.laws = value.split(',').map(str::to_owned).collect(),
                "--samples" => read.samples = numbers(),
                "--tokens" => read.tokens = numbers(),
                "--ranks" => read.ranks = numbers(),
                "--rounds" => read.rounds = numbers()[0],
                "--write" => read.write = Some(value.into()),
                other => panic!("{other} is no argument"),
            }
        }
        read
    }

    /// Writes lengths as `NAME.u32`, if asked to.
    pub fn write(&self, name: &str, lengths: &[u32]) {
        if let Some(folder) = &self.write {
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
            std::fs::write(folder.join(format!("{name}.u32")), bytes).expect("a file of lengths");
        }
    }
}

/// Returns the least, median and most.
pub fn spread(mut rounds: Vec<f64>) -> [f64; 3] {
    rounds.sort_by(f64::total_cmp);
    [rounds[0], rounds[rounds.len() / 2], rounds[rounds.len() - 1]]
}
