//! Describes which tokens of a packed row are whose.
//!
//! Every document is cut into twice as many pieces as there are ranks, and rank r has piece r and piece 2·ranks - 1 - r (Brandon et al.
//! 2023, in the form of Llama 3's and Megatron's context parallelism): the early piece sees few keys, the late one many, together all
//! ranks see as many. Tokens that a document's length leaves over go to the ranks that have fewest.

use std::ops::Range;

/// A packed row split over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSplit {
    num_ranks: usize,
    /// The tokens of the pieces of each document.
    pieces: Vec<Vec<Range<usize>>>,
}

/// Queries and keys of one document that see each other: rows among those of their ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
    /// True if they are the same tokens, each of which sees itself and earlier ones; otherwise all see all.
    pub causal: bool,
}

impl RowSplit {
    /// Documents end at `cu_seqlens` `[0, …, T]`. Panics without a rank.
    pub fn new(cu_seqlens: &[usize], num_ranks: usize) -> RowSplit {
        assert!(num_ranks > 0, "a row of no rank");
        let num_pieces = 2 * num_ranks;
        let mut held = vec![0usize; num_ranks];
        let document = |ends: &[usize]| {
            let len = ends[1] - ends[0];
            let mut lens = vec![len / num_pieces; num_pieces];
            held.iter_mut().for_each(|held| *held += 2 * (len / num_pieces));
            let mut longer = vec![0; num_ranks];
            for _ in 0..len % num_pieces {
                // No rank gets three of fewer tokens than there are pieces: two are as many as it has pieces.
                let ranks = (0..num_ranks).filter(|&rank| longer[rank] < 2);
                let rank = ranks.min_by_key(|&rank| held[rank]).expect("fewer tokens than pieces");
                lens[if longer[rank] == 0 { rank } else { num_pieces - 1 - rank }] += 1;
                longer[rank] += 1;
                held[rank] += 1;
            }
            let mut start = ends[0];
            let piece = |len: usize| {
                start += len;
                start - len..start
            };
            lens.into_iter().map(piece).collect()
        };
        RowSplit { num_ranks, pieces: cu_seqlens.windows(2).map(document).collect() }
    }

    /// Returns the number of ranks that share a row.
    pub fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// Returns the number of tokens of the row.
    pub fn num_tokens(&self) -> usize {
        self.pieces.iter().flatten().map(Range::len).sum()
    }

    /// Returns the number of tokens of each document.
    pub fn document_lens(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().map(|pieces| pieces.iter().map(Range::len).sum())
    }

    /// Returns the tokens of a rank, in its order.
    pub fn rows(&self, rank: usize) -> Vec<i64> {
        self.pieces_of(rank).flatten().flat_map(|piece| piece.map(|token| token as i64)).collect()
    }

    /// Returns where documents end among a rank's tokens; some may have none there.
    pub fn cu_seqlens(&self, rank: usize) -> Vec<usize> {
        let mut ends = vec![0];
        for pieces in self.pieces_of(rank) {
            ends.push(ends[ends.len() - 1] + pieces.iter().map(Range::len).sum::<usize>());
        }
        ends
    }

    /// Returns the place of each token of the row among the tokens of rank 0, then of rank 1, and so on.
    pub fn places(&self) -> Vec<i64> {
        let mut places = vec![0; self.num_tokens()];
        let rows = (0..self.num_ranks).flat_map(|rank| self.rows(rank));
        (0..).zip(rows).for_each(|(place, row)| places[row as usize] = place);
        places
    }

    /// Returns the blocks in which the tokens of rank `queries` see those of rank `keys`.
    pub fn blocks(&self, queries: usize, keys: usize) -> Vec<Block> {
        let (mut first_query, mut first_key) = (0, 0);
        let mut blocks = Vec::new();
        for (of_queries, of_keys) in self.pieces_of(queries).zip(self.pieces_of(keys)) {
            let [early, late] = of_queries.map(|piece| piece.len());
            let [early_keys, late_keys] = of_keys.map(|piece| piece.len());
            let all = first_query..first_query + early + late;
            let all_keys = first_key..first_key + early_keys + late_keys;
            let block = match queries.cmp(&keys) {
                std::cmp::Ordering::Equal => Block { queries: all, keys: all_keys, causal: true },
                // The keys' early piece is before both pieces of the queries, and their late one after both.
                std::cmp::Ordering::Greater => {
                    Block { queries: all, keys: first_key..first_key + early_keys, causal: false }
                }
                // Both pieces of the keys are between those of the queries.
                std::cmp::Ordering::Less => {
                    Block { queries: first_query + early..all.end, keys: all_keys, causal: false }
                }
            };
            first_query += early + late;
            first_key += early_keys + late_keys;
            if !block.queries.is_empty() && !block.keys.is_empty() {
                blocks.push(block);
            }
        }
        blocks
    }

    fn pieces_of(&self, rank: usize) -> impl Iterator<Item = [Range<usize>; 2]> {
        self.pieces.iter().map(move |pieces| [pieces[rank].clone(), pieces[pieces.len() - 1 - rank].clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::RowSplit;

    const ROWS: [&[usize]; 4] = [&[0, 64], &[0, 1, 3, 6, 7, 7, 9], &[0, 37, 38, 101, 250], &[0, 3]];

    #[test]
    fn every_token_is_of_one_rank_and_all_have_as_many() {
        for (row, ranks) in ROWS.iter().zip([4, 2, 3, 1]) {
            let split = RowSplit::new(row, ranks);
            let mut all: Vec<i64> = (0..ranks).flat_map(|rank| split.rows(rank)).collect();
            let counts: Vec<usize> = (0..ranks).map(|rank| split.rows(rank).len()).collect();
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            let places = split.places();
            assert!((0..).zip(&places).all(|(token, place)| all[*place as usize] == token));
            all.sort_unstable();
            assert_eq!(all, (0..*row.last().unwrap() as i64).collect::<Vec<_>>());
            assert!((0..ranks).all(|rank| split.cu_seqlens(rank).last() == Some(&counts[rank])));
        }
    }

    /// The pairs of tokens that blocks join are those of causal attention within documents, each once.
    #[test]
    fn blocks_are_causal_attention() {
        for row in ROWS {
            for ranks in 1..5 {
                let split = RowSplit::new(row, ranks);
                let mut seen = std::collections::BTreeMap::new();
                for (queries, keys) in (0..ranks).flat_map(|q| (0..ranks).map(move |k| (q, k))) {
                    let (of_queries, of_keys) = (split.rows(queries), split.rows(keys));
                    for block in split.blocks(queries, keys) {
                        for (at, query) in block.queries.clone().enumerate() {
                            let end = if block.causal { block.keys.start + at + 1 } else { block.keys.end };
                            for &key in &of_keys[block.keys.start..end] {
                                *seen.entry((of_queries[query], key)).or_insert(0) += 1;
                            }
                        }
                    }
                }
                let pairs = row.windows(2).flat_map(|ends| {
                    (ends[0]..ends[1]).flat_map(move |q| (ends[0]..=q).map(move |k| ((q as i64, k as i64), 1)))
                });
                assert_eq!(seen, pairs.collect());
            }
        }
    }

    #[test]
    fn long_documents_give_ranks_equal_work() {
        let split = RowSplit::new(&[0, 1000, 1700], 4);
        let work = |rank: usize| -> usize {
            (0..4)
                .flat_map(|keys| split.blocks(rank, keys))
                .map(|block| match block.causal {
                    true => block.queries.len() * (block.queries.len() + 1) / 2,
                    false => block.queries.len() * block.keys.len(),
                })
                .sum()
        };
        let works: Vec<usize> = (0..4).map(work).collect();
        assert!(works.iter().max().unwrap() * 100 <= works.iter().min().unwrap() * 102, "{works:?}");
    }
}
