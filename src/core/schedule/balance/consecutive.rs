//! Splits a sequence into consecutive chunks.

use std::ops::Range;

/// Splits into at most `max_chunks` consecutive chunks so that the heaviest is as light as possible.
pub(crate) fn consecutive(weights: &[u64], max_chunks: usize) -> Vec<Range<usize>> {
    let (mut low, mut high) = (weights.iter().copied().max().unwrap_or(0), weights.iter().sum());
    while low < high {
        let limit = low + (high - low) / 2;
        if fill(weights, limit).len() <= max_chunks { high = limit } else { low = limit + 1 }
    }
    fill(weights, low)
}

/// Splits into chunks of at most `limit`, each as long as possible.
fn fill(weights: &[u64], limit: u64) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut sum) = (Vec::new(), 0, 0);
    for (index, &weight) in weights.iter().enumerate() {
        if index > start && sum + weight > limit {
            chunks.push(start..index);
            (start, sum) = (index, 0);
        }
        sum += weight;
    }
    if start < weights.len() {
        chunks.push(start..weights.len());
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the least bottleneck over every way to cut.
    fn best_bottleneck(weights: &[u64], max_chunks: usize) -> u64 {
        if max_chunks == 1 || weights.len() <= 1 {
            return weights.iter().sum();
        }
        (1..=weights.len())
            .map(|cut| {
                let head: u64 = weights[..cut].iter().sum();
                head.max(best_bottleneck(&weights[cut..], max_chunks - 1))
            })
            .min()
            .unwrap()
    }

    proptest! {
        #[test]
        fn consecutive_chunks_are_the_best_there_are(
            weights in prop::collection::vec(0_u64..30, 0..9),
            max_chunks in 1_usize..5,
        ) {
            let chunks = consecutive(&weights, max_chunks);
            prop_assert!(chunks.len() <= max_chunks);
            let joined: Vec<usize> = chunks.iter().cloned().flatten().collect();
            prop_assert_eq!(joined, (0..weights.len()).collect::<Vec<_>>());
            let heaviest = chunks.into_iter().map(|chunk| weights[chunk].iter().sum::<u64>()).max().unwrap_or(0);
            prop_assert_eq!(heaviest, best_bottleneck(&weights, max_chunks));
        }
    }
}
