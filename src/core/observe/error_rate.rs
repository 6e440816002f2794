//! Word and character error rates: the fewest edits that turn references into what was recognized, over all of them together.

use serde::{Deserialize, Serialize};

/// Edits from references to hypotheses, summed over a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRate {
    pub substitutions: u64,
    /// Words or characters of hypotheses that no reference has.
    pub insertions: u64,
    /// Words or characters of references that no hypothesis has.
    pub deletions: u64,
    /// Words or characters of the references.
    pub reference: u64,
}

impl ErrorRate {
    /// Counts the edits of pairs of a reference and a hypothesis, each of words or of characters.
    pub fn of<T: PartialEq>(pairs: impl IntoIterator<Item = (Vec<T>, Vec<T>)>) -> Self {
        pairs
            .into_iter()
            .map(|(reference, hypothesis)| edits(&reference, &hypothesis))
            .fold(Self::default(), Self::plus)
    }

    /// Edits for each word or character of the references, which may be more than 1; `None`: they have none.
    pub fn rate(&self) -> Option<f64> {
        (self.reference > 0).then(|| self.num_edits() as f64 / self.reference as f64)
    }

    fn num_edits(&self) -> u64 {
        self.substitutions + self.insertions + self.deletions
    }

    fn plus(self, other: Self) -> Self {
        Self {
            substitutions: self.substitutions + other.substitutions,
            insertions: self.insertions + other.insertions,
            deletions: self.deletions + other.deletions,
            reference: self.reference + other.reference,
        }
    }
}

/// Counts the fewest edits; of several ways with as few, those with the most words or characters in place.
fn edits<T: PartialEq>(reference: &[T], hypothesis: &[T]) -> ErrorRate {
    let start = |length: usize| ErrorRate { insertions: length as u64, ..ErrorRate::default() };
    // Of a part of the reference and each beginning of the hypothesis.
    let mut row: Vec<ErrorRate> = (0..=hypothesis.len()).map(start).collect();
    for expected in reference {
        let mut diagonal = row[0];
        row[0].deletions += 1;
        for (at, found) in hypothesis.iter().enumerate() {
            let (mut replaced, mut deleted, mut inserted) = (diagonal, row[at + 1], row[at]);
            replaced.substitutions += u64::from(expected != found);
            deleted.deletions += 1;
            inserted.insertions += 1;
            diagonal = row[at + 1];
            let order = |edits: &ErrorRate| (edits.num_edits(), edits.substitutions);
            row[at + 1] = [replaced, deleted, inserted].into_iter().min_by_key(order).expect("three of them");
        }
    }
    ErrorRate { reference: reference.len() as u64, ..row[hypothesis.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns all ways to edit, one by one: the fewest edits, and of those the fewest substitutions.
    fn all_ways(reference: &[u64], hypothesis: &[u64]) -> (u64, u64) {
        let with = |(edits, substitutions): (u64, u64), more: (u64, u64)| (edits + more.0, substitutions + more.1);
        match (reference.split_first(), hypothesis.split_first()) {
            (None, None) => (0, 0),
            (Some((_, rest)), None) => with(all_ways(rest, hypothesis), (1, 0)),
            (None, Some((_, rest))) => with(all_ways(reference, rest), (1, 0)),
            (Some((left, lefts)), Some((right, rights))) => {
                let other = u64::from(left != right);
                let replaced = with(all_ways(lefts, rights), (other, other));
                let deleted = with(all_ways(lefts, hypothesis), (1, 0));
                let inserted = with(all_ways(reference, rights), (1, 0));
                replaced.min(deleted).min(inserted)
            }
        }
    }

    #[test]
    fn no_way_to_edit_is_shorter() {
        let mut rng = Rng::new(&[1]);
        for _ in 0..300 {
            let mut draw = || (0..rng.below(7)).map(|_| rng.below(3)).collect::<Vec<u64>>();
            let (reference, hypothesis) = (draw(), draw());
            let found = edits(&reference, &hypothesis);
            assert_eq!((found.num_edits(), found.substitutions), all_ways(&reference, &hypothesis), "{found:?}");
            // What is deleted is gone, and what is inserted is there.
            let length = found.reference + found.insertions - found.deletions;
            assert_eq!((found.reference, length), (reference.len() as u64, hypothesis.len() as u64));
        }
    }

    #[test]
    fn a_set_has_one_rate() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let pairs = [("the cat sat", "the cat"), ("a b", "b c"), ("", "um"), ("one two three", "one too three")];
        let found = ErrorRate::of(pairs.map(|(reference, hypothesis)| (words(reference), words(hypothesis))));
        assert_eq!(found, ErrorRate { substitutions: 1, insertions: 2, deletions: 2, reference: 8 });
        assert_eq!(found.rate(), Some(5.0 / 8.0));
        assert_eq!(ErrorRate::of([(words(""), words("um"))]).rate(), None);
    }
}
