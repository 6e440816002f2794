//! A lower bound on the number of packs.

/// Returns a lower bound on the number of packs of `capacity` tokens, given the number of samples of each length: bound L2 of
/// Martello and Toth ("Knapsack Problems", 1990, section 8.3.2), which is never below `⌈Σ length / capacity⌉` and at least two
/// thirds of the best packing.
///
/// The bound is the maximum over every threshold k up to half of a pack: samples longer than `capacity − k` lie alone, those longer than
/// half a pack in a pack each, and the room that they leave must hold the samples from `k` to half a pack.
///
/// # Panics
/// Some sample is longer than a pack.
pub fn least_packs(counts: &[u64], capacity: usize) -> u64 {
    let volume =
        |range: std::ops::Range<usize>| -> u64 { range.map(|length| length as u64 * count(counts, length)).sum() };
    let number = |range: std::ops::Range<usize>| -> u64 { range.map(|length| count(counts, length)).sum() };
    assert_eq!(number(capacity + 1..counts.len()), 0, "a sample is longer than a pack");
    let half = capacity / 2;
    let large = number(half + 1..capacity + 1);
    // As k falls from above half, what is alone joins those with room, and smaller samples come in.
    let (mut paired_volume, mut paired) = (volume(half + 1..capacity + 1), large);
    let mut small_volume = volume(0..half + 1);
    let mut best = (small_volume + paired_volume).div_ceil(capacity as u64).max(large);
    for threshold in 1..=half {
        small_volume -= (threshold - 1) as u64 * count(counts, threshold - 1);
        let alone = capacity + 1 - threshold;
        paired_volume -= alone as u64 * count(counts, alone);
        paired -= count(counts, alone);
        let room = paired * capacity as u64 - paired_volume;
        best = best.max(large + small_volume.saturating_sub(room).div_ceil(capacity as u64));
    }
    best
}

fn count(counts: &[u64], length: usize) -> u64 {
    counts.get(length).copied().unwrap_or(0)
}
