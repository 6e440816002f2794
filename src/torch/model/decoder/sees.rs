//! The tokens of a document that see tokens behind them, as the decoder's family says.

use crate::nn::Mask;

/// The tokens of a document that see tokens behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sees {
    /// None does, as in text.
    #[default]
    Back,
    /// Neighboring tokens of these ids see each other: those of one picture (Gemma 3).
    Runs(Vec<i64>),
    /// The prompt sees all of itself, pictures included (PaliGemma): all tokens before the first that is to be predicted.
    Prompt,
    /// The same, but for the last of these tokens, which begins the answer and is seen from itself on alone (Pi0-FAST). A prompt that
    /// is continued sees all of itself, as lerobot's does.
    Before,
}

impl Sees {
    /// Returns the mask of a row of documents that end at `cu_seqlens` `[0, …, T]` and have prompts of these lengths.
    pub fn mask(&self, input_ids: &[i64], cu_seqlens: &[usize], prompts: &[usize]) -> Mask {
        match self {
            Sees::Back => Mask::Causal,
            Sees::Runs(ids) => Mask::runs(&input_ids.iter().map(|id| ids.contains(id)).collect::<Vec<bool>>()),
            Sees::Prompt | Sees::Before => Mask::prefixes(cu_seqlens, prompts),
        }
    }

    /// Works like `mask` of a row with `labels`: for each token the one to predict, or below 0.
    pub fn mask_of(&self, input_ids: &[i64], cu_seqlens: &[usize], labels: &[i64]) -> Mask {
        match self {
            Sees::Prompt => self.mask(input_ids, cu_seqlens, &prompt_lens(cu_seqlens, labels)),
            Sees::Before => {
                let lens = prompt_lens(cu_seqlens, labels);
                let answers =
                    cu_seqlens.windows(2).map(|ends| labels[ends[0]..ends[1]].iter().any(|label| *label >= 0));
                let lens: Vec<usize> =
                    lens.iter().zip(answers).map(|(len, answers)| len - usize::from(answers)).collect();
                self.mask(input_ids, cu_seqlens, &lens)
            }
            Sees::Back | Sees::Runs(_) => self.mask(input_ids, cu_seqlens, &[]),
        }
    }
}

/// Returns the length of each document's prompt: the tokens up to the one behind which the first token is to be predicted; all tokens
/// where none is.
fn prompt_lens(cu_seqlens: &[usize], labels: &[i64]) -> Vec<usize> {
    let len = |ends: &[usize]| {
        let own = &labels[ends[0]..ends[1]];
        own.iter().position(|label| *label >= 0).map_or(own.len(), |at| at + 1)
    };
    cu_seqlens.windows(2).map(len).collect()
}

#[cfg(test)]
mod tests {
    use super::prompt_lens;

    #[test]
    fn a_prompt_ends_where_something_is_predicted() {
        let labels = [-100, -100, 7, 8, -100, -100, -100, 5, -100];
        assert_eq!(prompt_lens(&[0, 5, 5, 7, 9], &labels), [3, 0, 2, 1]);
    }
}
