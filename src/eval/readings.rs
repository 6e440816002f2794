//! The answers of a model that reads pictures about those that another model has made, beside its controls.

use crate::eval::aligned::aligned;
use crate::eval::generator::{Files, Reader};
use crate::eval::laid_out::laid_out;
use anyhow::Result;
use image::RgbImage;
use loongforge_core::config::{Eval, SampleReader};
use loongforge_core::observe::without_thought;
use loongforge_core::rng::another;

/// A picture that was made, and what is to be read of it.
pub struct Readable<'a> {
    pub picture: RgbImage,
    /// The prompt's own picture.
    pub truth: Option<RgbImage>,
    pub answer: &'a str,
}

/// Reads pictures.
pub struct Readings<'a> {
    pub reader: Reader,
    pub settings: &'a SampleReader,
    pub eval: &'a Eval,
    /// Belongs to the control.
    pub seed: u64,
}

impl Readings<'_> {
    /// Returns the reader's words for each picture that was made, and a table of how often they are what was asked for; in the same table
    /// are the true pictures, and the same readings by the answers of other prompts. `what` names the pictures.
    ///
    /// # Errors
    /// The reader takes no such pictures.
    pub fn of(&self, made: &[Readable<'_>], what: &str) -> Result<(Vec<String>, Vec<String>)> {
        let given = self.read(made.iter().map(|it| &it.picture))?;
        let with_truth = || made.iter().filter(|it| it.truth.is_some());
        let of_true = self.read(with_truth().filter_map(|it| it.truth.as_ref()))?;
        let load = self.settings.load.as_path().display();
        let mut table =
            vec![vec![format!("read by {load}"), "answers right".to_owned(), "characters right".to_owned()]];
        if !of_true.is_empty() {
            let found = share(of_true.iter().zip(with_truth()).map(|(read, it)| (read.as_str(), it.answer)));
            table.push(found.row(format!("  true {what} of the prompts")));
        }
        let own = share(given.iter().zip(made).map(|(read, it)| (read.as_str(), it.answer)));
        table.push(own.row(format!("  {what} that were made")));
        if made.len() > 1 {
            let other = |at: usize| made[another(at, made.len(), &[self.seed])].answer;
            let of_others = share(given.iter().enumerate().map(|(at, read)| (read.as_str(), other(at))));
            table.push(of_others.row("  control: by the answers of other prompts".to_owned()));
        }
        Ok((given, aligned(&table)))
    }

    fn read<'a>(&self, pictures: impl Iterator<Item = &'a RgbImage>) -> Result<Vec<String>> {
        let pictures: Vec<&RgbImage> = pictures.collect();
        let folder = tempfile::tempdir()?;
        let mut answers = Vec::new();
        for batch in pictures.chunks(self.eval.batch_size.max(1)) {
            let question = |(at, picture): (usize, &&RgbImage)| {
                let path = folder.path().join(format!("{at}.png"));
                laid_out(picture, self.settings).save(&path)?;
                self.reader.question(&self.settings.question, &Files { images: &[path], ..Files::default() })
            };
            let questions = batch.iter().enumerate().map(question).collect::<Result<Vec<_>>>()?;
            let questions: Vec<_> = questions.iter().collect();
            answers.extend(self.reader.answer(&questions, self.eval.max_new_tokens, None)?);
        }
        Ok(answers)
    }
}

/// The number of readings that are as expected, and the share of their characters.
#[derive(Debug, PartialEq)]
struct Share {
    count: usize,
    right: usize,
    characters: f64,
}

fn share<'a>(readings: impl Iterator<Item = (&'a str, &'a str)>) -> Share {
    let (mut count, mut right, mut same, mut all) = (0, 0, 0, 0);
    for (read, expected) in readings {
        let read = without_thought(read, expected);
        count += 1;
        right += usize::from(read == expected);
        same += read.chars().zip(expected.chars()).filter(|(one, other)| one == other).count();
        all += expected.chars().count().max(read.chars().count());
    }
    Share { count, right, characters: same as f64 / all.max(1) as f64 }
}

impl Share {
    fn row(&self, name: String) -> Vec<String> {
        let Self { count, right, characters } = self;
        let percent = 100.0 * *right as f64 / (*count).max(1) as f64;
        vec![name, format!("{right} of {count} ({percent:.1} %)"), format!("{:.1} %", 100.0 * characters)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_count_whole_and_by_character() {
        let found = share([("412", "412"), ("413", "412"), ("41", "412")].into_iter());
        assert_eq!(found, Share { count: 3, right: 1, characters: 7.0 / 9.0 });
        assert_eq!(found.row("of all".to_owned()), ["of all", "1 of 3 (33.3 %)", "77.8 %"]);
        let thought = share([("<think>\n\n</think>\n\n412", "412")].into_iter());
        assert_eq!(thought, Share { count: 1, right: 1, characters: 1.0 });
    }
}
