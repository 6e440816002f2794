//! Samples of a model whose encoder reads the prompt and whose decoder reads and writes the answer.

use crate::data::card::EncoderDecoder;
use crate::data::error::DataError;
use crate::data::sample::IGNORE_INDEX;

/// Tokens, positions `[3, tokens]` and targets of a sample.
pub(super) type Rows = (Vec<i64>, Vec<f32>, Vec<i64>);

/// Returns the rows of a sample: the prompt, up to the first of `ids` that counts, and then the tokens before the others, where positions
/// restart. Where nothing counts, all tokens are the prompt.
///
/// # Errors
/// There are more tokens on a side than positions.
pub(super) fn answered(rules: &EncoderDecoder, ids: &[i64], counted: &[bool]) -> Result<Rows, DataError> {
    let begin = counted.iter().position(|counted| *counted).unwrap_or(ids.len());
    let (asked, answer) = ids.split_at(begin);
    let max = rules.max_positions;
    for (what, len) in [("prompt", asked.len()), ("answer", answer.len())] {
        if len > max {
            return Err(DataError::Line(format!("its {what} has {len} tokens, but the model has positions for {max}")));
        }
    }
    if asked.is_empty() {
        return Err(DataError::Line("its prompt has no token".to_owned()));
    }
    let before = answer.iter().take(1).map(|_| &rules.start_token).chain(answer).take(answer.len());
    let input_ids = asked.iter().chain(before).copied().collect();
    let of_answer = answer.iter().zip(&counted[begin..]).map(|(id, counted)| if *counted { *id } else { IGNORE_INDEX });
    let targets = asked.iter().map(|_| IGNORE_INDEX).chain(of_answer).collect();
    let positions = || (0..asked.len()).chain(0..answer.len()).map(|at| at as f32);
    Ok((input_ids, (0..3).flat_map(|_| positions()).collect(), targets))
}

/// Checks that each document of a pack has its answer behind its prompt.
///
/// # Errors
/// One has not: it was packed for another model.
pub(super) fn check_pack(lens: &[u32], positions: &[f32], targets: &[i64]) -> Result<(), DataError> {
    let mut begin = 0;
    for len in lens {
        let end = begin + *len as usize;
        let border = (begin + 1..end).find(|at| positions[*at] == 0.0).unwrap_or(end);
        if targets[begin..border].iter().any(|target| *target != IGNORE_INDEX) {
            let reason =
                "the pack's documents have no answers separate from their prompts: pack the data for this model";
            return Err(DataError::Line(reason.to_owned()));
        }
        begin = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{answered, check_pack};
    use crate::data::card::EncoderDecoder;

    fn rules() -> EncoderDecoder {
        EncoderDecoder { start_token: 2, max_positions: 4, unwritten: vec![2], note: None }
    }

    #[test]
    fn the_answer_is_behind_the_prompt_one_token_later() {
        let (ids, positions, targets) =
            answered(&rules(), &[9, 9, 7, 0, 5, 2], &[false, false, false, true, true, true]).unwrap();
        assert_eq!(ids, [9, 9, 7, 2, 0, 5]);
        assert_eq!(positions, [0.0, 1.0, 2.0, 0.0, 1.0, 2.0].repeat(3));
        assert_eq!(targets, [-100, -100, -100, 0, 5, 2]);
        let (ids, positions, targets) = answered(&rules(), &[9, 7], &[false; 2]).unwrap();
        assert_eq!((ids, positions, targets), (vec![9, 7], [0.0, 1.0].repeat(3), vec![-100; 2]));
        check_pack(&[6], &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0], &[-100, -100, -100, 0, 5, 2]).unwrap();
        let error = check_pack(&[3], &[0.0, 1.0, 2.0], &[-100, 7, 8]).unwrap_err().to_string();
        assert!(error.contains("pack the data for this model"), "{error}");
    }

    #[test]
    fn no_side_is_longer_than_positions() {
        let error = |ids: &[i64], counted: &[bool]| answered(&rules(), ids, counted).unwrap_err().to_string();
        assert!(error(&[1; 5], &[false; 5]).contains("its prompt has 5 tokens, but the model has positions for 4"));
        let counted = [false, true, true, true, true, true];
        assert!(error(&[1; 6], &counted).contains("its answer has 5 tokens"));
        assert!(error(&[1], &[true]).contains("its prompt has no token"));
    }
}
