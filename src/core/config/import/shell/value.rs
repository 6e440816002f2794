//! Words and variables, and what expansions make of them.

use super::arithmetic;
use super::lex::{Part, RawWord};
use std::collections::BTreeMap;

/// Bytes and words that one expansion may come to, and how deep defaults may be within each other.
const MAX_BYTES: usize = 1 << 16;
const MAX_WORDS: usize = 1 << 13;
const MAX_DEPTH: usize = 16;

/// A word of a command, expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    pub text: String,
    /// A part of it is a variable that the script does not set, and which counts as empty.
    pub unset: bool,
    /// A part of it is what a command would say, or was set under a condition that is not known.
    pub unknown: bool,
}

impl Word {
    /// Makes a word whose text is known.
    pub fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Returns whether the script says all of it.
    pub fn is_said(&self) -> bool {
        !self.unset && !self.unknown
    }

    fn push(&mut self, other: &Word) {
        self.text.push_str(&other.text);
        self.unset |= other.unset;
        self.unknown |= other.unknown;
    }
}

/// The variables of a script: a list of words each, of one for those that are no arrays.
#[derive(Default)]
pub struct Variables(pub BTreeMap<String, Vec<Word>>);

impl Variables {
    /// Returns the words that a raw word becomes: none, one, or more where it has unquoted expansions.
    ///
    /// # Errors
    /// It comes to more than is taken.
    pub fn expand(&self, word: &RawWord) -> Result<Vec<Word>, String> {
        let mut words = self.words(word, 0)?;
        // What nobody knows stays, if only to be told.
        words.retain(|it| !it.text.is_empty() || word.is_quoted() || !it.is_said());
        Ok(words)
    }

    /// Returns all of a raw word as one, as in an assignment.
    ///
    /// # Errors
    /// Fails as [`Variables::expand`] does.
    pub fn join(&self, word: &RawWord) -> Result<Word, String> {
        self.one(word, 0)
    }

    fn one(&self, word: &RawWord, depth: usize) -> Result<Word, String> {
        let mut all = Word::default();
        for part in &word.0 {
            match part {
                Part::Text { text, .. } => all.push(&Word::known(text)),
                part => {
                    let values = self.values(part, depth)?;
                    for (number, value) in values.iter().enumerate() {
                        if number > 0 {
                            all.text.push(' ');
                        }
                        all.push(value);
                    }
                }
            }
            expect_small(all.text.len(), 1)?;
        }
        Ok(all)
    }

    fn words(&self, word: &RawWord, depth: usize) -> Result<Vec<Word>, String> {
        let mut words = vec![Word::default()];
        for part in &word.0 {
            let last = words.len() - 1;
            match part {
                Part::Text { text, .. } => words[last].push(&Word::known(text)),
                part => {
                    let mut pieces = Vec::new();
                    for value in self.values(part, depth)? {
                        match part.is_quoted() {
                            true => pieces.push(value),
                            false => pieces.extend(split(&value)),
                        }
                    }
                    let mut pieces = pieces.into_iter();
                    if let Some(first) = pieces.next() {
                        words[last].push(&first);
                    }
                    words.extend(pieces);
                }
            }
            expect_small(words.iter().map(|word| word.text.len()).sum(), words.len())?;
        }
        Ok(words)
    }

    /// Returns a variable that is a whole number.
    fn number(&self, name: &str) -> Option<i64> {
        match self.0.get(name)?.as_slice() {
            [word] if word.is_said() => word.text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Returns the words that an expansion stands for.
    fn values(&self, part: &Part, depth: usize) -> Result<Vec<Word>, String> {
        if depth > MAX_DEPTH {
            return Err("its defaults are nested too deeply".to_owned());
        }
        Ok(match part {
            Part::Text { text, .. } => vec![Word::known(text)],
            Part::Command { .. } => vec![Word { unknown: true, ..Word::default() }],
            Part::Arithmetic { text, .. } => match arithmetic::value(text, &|name| self.number(name)) {
                Some(number) => vec![Word::known(number.to_string())],
                None => vec![Word { unknown: true, ..Word::default() }],
            },
            Part::Variable { name, default, is_list, .. } => match (self.0.get(name), default) {
                (Some(words), _) if words.iter().any(|word| !word.text.is_empty() || word.unknown) => match is_list {
                    true => words.clone(),
                    false => words[..1].to_vec(),
                },
                (Some(words), None) => words.clone(),
                (_, Some(default)) => vec![self.one(default, depth + 1)?],
                // The script's own arguments may well be none.
                (None, None) if *is_list => Vec::new(),
                (None, None) => vec![Word { unset: true, ..Word::default() }],
            },
        })
    }
}

/// Returns the words of an unquoted value.
fn split(value: &Word) -> Vec<Word> {
    let mut words: Vec<Word> =
        value.text.split_whitespace().map(|text| Word { text: text.to_owned(), ..value.clone() }).collect();
    if words.is_empty() {
        words.push(Word { text: String::new(), ..value.clone() });
    }
    words
}

fn expect_small(bytes: usize, words: usize) -> Result<(), String> {
    if bytes > MAX_BYTES || words > MAX_WORDS {
        return Err("a value of the script is too large".to_owned());
    }
    Ok(())
}
