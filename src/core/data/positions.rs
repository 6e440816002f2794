//! Position ids for multimodal RoPE. Not for RoPE itself, which is the model's.

use crate::message::Grid;

/// Position ids of one sequence, [3, num_tokens]: rows of frames, rows and columns, from 0, as `get_rope_index` of
/// Qwen3-VL (transformers 5). Text advances all three by one a token; a picture spans a box that begins where the
/// text before it ended, and the text after it goes on behind the box's longer side.
///
/// `grids` are those of the pictures in order, whose placeholders stand in `input_ids` as runs of `image_token`.
/// Two pictures are never next to each other: every picture is framed by vision tokens.
pub fn mrope_position_ids(input_ids: &[i64], image_token: Option<i64>, grids: &[Grid], merge_size: usize) -> Vec<i64> {
    let len = input_ids.len();
    let mut ids = vec![0; 3 * len];
    let (frames, rest) = ids.split_at_mut(len);
    let (rows, columns) = rest.split_at_mut(len);
    let mut grids = grids.iter();
    let (mut at, mut next) = (0, 0i64);
    while at < len {
        if Some(input_ids[at]) != image_token {
            (frames[at], rows[at], columns[at]) = (next, next, next);
            (at, next) = (at + 1, next + 1);
            continue;
        }
        let Some(grid) = grids.next() else {
            debug_assert!(false, "more runs of placeholders than pictures");
            break;
        };
        let (t, h, w) =
            (i64::from(grid.t), i64::from(grid.h) / merge_size as i64, i64::from(grid.w) / merge_size as i64);
        for index in 0..t * h * w {
            frames[at] = next + index / (h * w);
            rows[at] = next + index / w % h;
            columns[at] = next + index % w;
            at += 1;
        }
        next += h.max(w);
    }
    ids
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        image_token: i64,
        merge_size: usize,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        input_ids: Vec<i64>,
        grids: Vec<[u32; 3]>,
        position_ids: [Vec<i64>; 3],
    }

    #[test]
    fn equal_to_transformers() {
        let golden: Golden = serde_json::from_str(include_str!("goldens/positions.json")).unwrap();
        assert!(golden.cases.len() >= 8);
        for case in golden.cases {
            let grids: Vec<Grid> = case.grids.iter().map(|&[t, h, w]| Grid { t, h, w }).collect();
            let ids = mrope_position_ids(&case.input_ids, Some(golden.image_token), &grids, golden.merge_size);
            assert_eq!(ids, case.position_ids.concat(), "{grids:?}");
        }
    }
}
