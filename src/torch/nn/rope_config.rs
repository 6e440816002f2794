//! Rotary embeddings as data: which channels turn, by which frequencies, and which position turns each of them. No
//! tables here, see `rope.rs`; how frequencies are scaled is in `rope_scaling.rs`; how a `config.json` says it is read in `model/`.

use tch::Tensor;

use super::rope_scaling::RopeScaling;

/// Describes how a model turns its queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    /// The first channels of a head, an even number, are turned; the others pass. Where this number is odd, one channel more is turned.
    pub rotary_dim: i64,
    pub scaling: RopeScaling,
    pub axes: RopeAxes,
    pub layout: RopeLayout,
    /// Makes queries of later positions longer (Ministral 3); `None`: they are as they come.
    pub query_scale: Option<QueryScale>,
    /// The least that a document's length counts as, where frequencies depend on it. 0 but where a padded batch of
    /// transformers, whose documents count as the longest, is to be repeated.
    pub min_seq_len: i64,
}

impl RopeConfig {
    /// Makes a config that turns all channels of a head of width `head_dim`, by one position a token, with frequencies that are not
    /// scaled.
    pub fn plain(head_dim: i64, theta: f64) -> RopeConfig {
        RopeConfig {
            theta,
            rotary_dim: head_dim,
            scaling: RopeScaling::Default,
            axes: RopeAxes::One,
            layout: RopeLayout::HalfSplit,
            query_scale: None,
            min_seq_len: 0,
        }
    }
}

impl RopeConfig {
    /// Returns whether a token's position has three axes: frame, row and column.
    pub fn has_three_axes(&self) -> bool {
        matches!(self.axes, RopeAxes::Three(_))
    }

    /// Returns the length beyond which a document's frequencies are others than those of shorter ones, where there is one such length.
    pub fn changes_beyond(&self) -> Option<i64> {
        match &self.scaling {
            RopeScaling::LongRope { original_max_position_embeddings: len, .. } if self.min_seq_len <= *len => {
                Some(*len)
            }
            _ => None,
        }
    }

    /// Returns whether the frequencies of a document depend on its length.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. })
    }
}

/// Multiplies the turned queries at position p by `1 + beta · ln(1 + ⌊p / original_max_position_embeddings⌋)`, as Llama 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    pub beta: f64,
    pub original_max_position_embeddings: i64,
}

/// Says which two channels make a pair that is turned by one angle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Channels i and i + R/2.
    HalfSplit,
    /// Channels 2i and 2i + 1; they come out half-split, which no product of queries and keys can tell.
    Interleaved,
}

/// Says which position of a token turns a frequency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RopeAxes {
    /// A token has one position.
    One,
    /// A token has three, of frame, row and column; for each of the R/2 frequencies, which of them (0, 1, 2).
    Three(Vec<i64>),
}

impl RopeAxes {
    /// Assigns as many frequencies as `sections` says to frames, then to rows, then to columns, and again to frames where there are more
    /// than three sections (`Qwen2_5_VLRotaryEmbedding`).
    pub fn contiguous(sections: &[i64]) -> RopeAxes {
        let axes = (0..).zip(sections).flat_map(|(at, size): (i64, &i64)| std::iter::repeat_n(at % 3, *size as usize));
        RopeAxes::Three(axes.collect())
    }

    /// Assigns `half` frequencies to frames, rows and columns in turn (t h w t h w …), and to frames where rows or columns have had
    /// theirs (`Qwen3VLTextRotaryEmbedding`).
    pub fn interleaved(half: i64, rows_columns: [i64; 2]) -> RopeAxes {
        let axis = |frequency: i64| match frequency % 3 {
            0 => 0,
            axis if frequency < 3 * rows_columns[axis as usize - 1] => axis,
            _ => 0,
        };
        RopeAxes::Three((0..half).map(axis).collect())
    }
}

impl RopeConfig {
    /// Returns the R/2 frequencies [R/2] of a document of `seq_len` tokens, float32, and what multiplies `cos` and `sin`.
    pub(super) fn frequencies(&self, seq_len: i64) -> (Tensor, f64) {
        self.scaling.frequencies(self.rotary_dim, self.theta, seq_len.max(self.min_seq_len))
    }
}

#[cfg(test)]
mod tests {
    use super::RopeAxes;

    #[test]
    fn sections_say_which_axis_turns_a_frequency() {
        let RopeAxes::Three(contiguous) = RopeAxes::contiguous(&[2, 3, 3]) else { unreachable!() };
        assert_eq!(contiguous, [0, 0, 1, 1, 1, 2, 2, 2]);
        let RopeAxes::Three(interleaved) = RopeAxes::interleaved(8, [2, 2]) else { unreachable!() };
        assert_eq!(interleaved, [0, 1, 2, 0, 1, 2, 0, 0]);
    }
}
