//! Masks as data: which tokens of its document a token attends to.

use std::ops::Range;

/// Says which tokens of its document a token attends to. A rule over kinds of tokens, as world-action models have it, would
/// be one more variant: a variant is data for all documents of a row, and [`super::PackedAttention`] is exact for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mask {
    /// A token attends to itself and the tokens before it, as in text.
    Causal,
    /// A token attends to all tokens, as patches of a picture do.
    Full,
    /// Blocks of neighboring tokens: a token attends to its whole block and to all blocks before it (the prefixes of PaliGemma and Pi0).
    /// The vector has `true` for each token of the row at which a block begins; a document begins one in any case. A window cuts blocks
    /// before a token's own alone.
    Prefix(Vec<bool>),
    /// The same, where a window cuts all that is before a token, its own block's tokens as well (the pictures of Gemma 3).
    Runs(Vec<bool>),
}

impl Mask {
    /// The first `lens` tokens of each document of a row that ends them at `cu_seqlens` `[0, …, T]` see each other; those
    /// behind see what is before them and themselves. Panics where a prefix is longer than its document.
    pub fn prefixes(cu_seqlens: &[usize], lens: &[usize]) -> Mask {
        assert_eq!(cu_seqlens.len(), lens.len() + 1, "a prefix for each document");
        let begins = |(ends, len): (&[usize], &usize)| {
            let size = ends[1] - ends[0];
            assert!(*len <= size, "a prefix of {len} tokens in a document of {size}");
            (0..size).map(|at| at >= *len).collect::<Vec<bool>>()
        };
        Mask::Prefix(cu_seqlens.windows(2).zip(lens).flat_map(begins).collect())
    }

    /// Neighboring tokens of a row for which `is_in` is true see each other; all other pairs of tokens are as in text.
    pub fn runs(is_in: &[bool]) -> Mask {
        if !is_in.contains(&true) {
            return Mask::Causal;
        }
        Mask::Runs((0..is_in.len()).map(|at| !(is_in[at] && at > 0 && is_in[at - 1])).collect())
    }

    /// Returns where blocks begin in a mask of blocks; `None` for other masks.
    pub(super) fn begins(&self) -> Option<&[bool]> {
        match self {
            Mask::Causal | Mask::Full => None,
            Mask::Prefix(begins) | Mask::Runs(begins) => Some(begins),
        }
    }

    /// Returns how a window of `len` tokens, the last of them a token itself, cuts blocks.
    pub(super) fn cut(&self, len: i64) -> WindowCut {
        WindowCut { len: len.max(1) as usize, spares_block: matches!(self, Mask::Prefix(_)) }
    }
}

/// The window that cuts blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WindowCut {
    /// Tokens of the window.
    pub len: usize,
    /// True if a token sees its whole block, whatever the window.
    pub spares_block: bool,
}

/// Queries of a document that are attended at once: they see the document's keys up to their last one, or those of them
/// that are within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The row's token at which the document begins.
    pub document: usize,
    /// The queries, within the document.
    pub queries: Range<usize>,
    /// True if a query sees nothing behind itself; else it sees all queries of the segment.
    pub causal: bool,
}

/// Tokens of a causal segment behind others: as many as rows of its mask.
const MAX_CAUSAL: usize = 512;

/// Returns the segments of documents that end at `cu_seqlens`, whose blocks begin where `begins` says: a block of several tokens is one
/// segment, and neighboring blocks of one token each make a causal one.
pub(super) fn segments(cu_seqlens: &[usize], begins: &[bool]) -> Vec<Segment> {
    let mut segments = Vec::<Segment>::new();
    for ends in cu_seqlens.windows(2) {
        let (document, len) = (ends[0], ends[1] - ends[0]);
        let of_document = segments.len();
        let mut start = 0;
        while start < len {
            let rest = start + 1..len;
            let end = rest.clone().find(|at| begins[document + at]).unwrap_or(len);
            let causal = end - start == 1;
            match segments[of_document..].last_mut() {
                Some(last) if causal && last.causal && last.queries.len() < MAX_CAUSAL => last.queries.end = end,
                _ => segments.push(Segment { document, queries: start..end, causal }),
            }
            start = end;
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::{Mask, Segment, segments};

    #[test]
    fn blocks_become_segments() {
        let Mask::Prefix(begins) = Mask::prefixes(&[0, 5, 5, 7], &[3, 0, 2]) else { unreachable!("prefixes") };
        assert_eq!(begins, [false, false, false, true, true, false, false]);
        let segment = |document, queries, causal| Segment { document, queries, causal };
        let expected = [segment(0, 0..3, false), segment(0, 3..5, true), segment(5, 0..2, false)];
        assert_eq!(segments(&[0, 5, 5, 7], &begins), expected);
        // Pi0: pictures and prompt, a state, actions.
        let pi0 = [false, false, true, true, false, false];
        let expected = [segment(0, 0..2, false), segment(0, 2..3, true), segment(0, 3..6, false)];
        assert_eq!(segments(&[0, 6], &pi0), expected);
        assert_eq!(segments(&[0, 700], &[true; 700]), [segment(0, 0..512, true), segment(0, 512..700, true)]);
    }

    #[test]
    fn runs_are_blocks_and_a_document_begins_one() {
        assert_eq!(Mask::runs(&[false; 3]), Mask::Causal);
        let is_in = [true, true, false, true, true, true];
        let Mask::Runs(begins) = Mask::runs(&is_in) else { unreachable!("runs") };
        assert_eq!(begins, [true, false, true, true, false, false]);
        let segment = |document, queries, causal| Segment { document, queries, causal };
        // The document's end cuts a run.
        let expected = [segment(0, 0..2, false), segment(0, 2..4, true), segment(4, 0..2, false)];
        assert_eq!(segments(&[0, 4, 6], &begins), expected);
    }
}
