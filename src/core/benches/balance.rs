//! Balancing: dearest replica over the mean, and the time it takes to decide. Prints one JSON object a line.
//! `cargo bench -p loongforge-core --bench balance -- [--ranks 8,512] [--laws vlm]`; `benches/balance.py` runs it beside
//! its peers.

mod laws;

use laws::{Arguments, Draw, spread};
use loongforge_core::schedule::{CostModel, PackLimits, balance, loads_of, pack_lengths, sorted_rows};
use std::time::Instant;

const MAX_TOKENS: usize = 32768;
/// Micro-batches of a step, where packs are balanced.
const MICRO_BATCHES: usize = 4;

fn main() {
    let arguments = Arguments::read();
    // Of a model of width 2048.
    let cost = CostModel::decoder(2048);
    for law in &arguments.laws {
        for &ranks in &arguments.ranks {
            samples(&arguments, law, ranks, cost);
            packs(law, ranks, cost);
        }
    }
}

/// Samples over replicas, a pack's worth to each.
fn samples(arguments: &Arguments, law: &str, ranks: usize, cost: CostModel) {
    let lengths = draw(law, ranks);
    arguments.write(&format!("{law}-{ranks}"), &lengths);
    let costs: Vec<u64> = lengths.iter().map(|&length| cost.sequence(length)).collect();
    let mut bin_of = Vec::new();
    let mut round = || {
        let start = Instant::now();
        bin_of = balance(&costs, ranks);
        start.elapsed().as_secs_f64() * 1e3
    };
    let [least, median, most] = spread((0..arguments.rounds.max(3)).map(|_| round()).collect());
    let in_order: Vec<usize> = (0..costs.len()).map(|item| item * ranks / costs.len()).collect();
    let mean = costs.iter().sum::<u64>() as f64 / ranks as f64;
    let bound = (costs.iter().copied().max().unwrap_or(0) as f64 / mean).max(1.0);
    let (none, ours) = (over_mean(&costs, ranks, &in_order), over_mean(&costs, ranks, &bin_of));
    println!(
        r#"{{"what": "samples", "law": "{law}", "ranks": {ranks}, "items": {}, "ms": {median:.3}, "least": {least:.3}, "most": {most:.3}, "none": {none:.4}, "ours": {ours:.5}, "bound": {bound:.5}, "of_bound": {:.5}}}"#,
        costs.len(),
        ours / bound
    );
}

/// Full packs over replicas and micro-batches: as they come, replicas that meet after every micro-batch, replicas that
/// meet once a step; and samples balanced first, packed on their replica.
fn packs(law: &str, ranks: usize, cost: CostModel) {
    let lengths = draw(law, ranks * MICRO_BATCHES);
    let found = pack_lengths(&lengths, PackLimits::tokens(MAX_TOKENS));
    let mut costs = vec![0_u64; found.num_packs()];
    for (&length, pack) in lengths.iter().zip(found.pack_of()) {
        costs[pack.expect("all fit") as usize] += cost.sequence(length);
    }
    costs.truncate(ranks * MICRO_BATCHES);
    // The sum of the dearest of each micro-batch, over what it would be were all alike.
    let barriers = |places: &[(usize, usize)]| {
        let mut dearest = vec![0_u64; MICRO_BATCHES + 1];
        costs.iter().zip(places).for_each(|(&cost, &(row, _))| dearest[row] = dearest[row].max(cost));
        dearest.iter().sum::<u64>() as f64 * ranks as f64 / costs.iter().sum::<u64>() as f64
    };
    let as_they_come: Vec<(usize, usize)> = (0..costs.len()).map(|pack| (pack / ranks, pack % ranks)).collect();
    let unsorted: Vec<usize> = as_they_come.iter().map(|place| place.1).collect();
    let sorted = sorted_rows(&costs, ranks);
    let start = Instant::now();
    let step = balance(&costs, ranks);
    let ms = start.elapsed().as_secs_f64() * 1e3;

    let sample_costs: Vec<u64> = lengths.iter().map(|&length| cost.sequence(length)).collect();
    let replica_of = balance(&sample_costs, ranks);
    let mut shares = vec![Vec::new(); ranks];
    lengths.iter().zip(&replica_of).for_each(|(&length, &replica)| shares[replica].push(length));
    let sizes = [MAX_TOKENS, MAX_TOKENS * 3 / 4, MAX_TOKENS / 2, MAX_TOKENS / 4];
    let (mut tokens, mut room) = (0.0, 0.0);
    for share in shares {
        let packs = pack_lengths(&share, PackLimits::tokens(MAX_TOKENS));
        let sum: f64 = packs.num_tokens.iter().map(|&tokens| f64::from(tokens)).sum();
        tokens += sum;
        room += sum / packs.fill(&sizes);
    }
    println!(
        r#"{{"what": "packs", "law": "{law}", "ranks": {ranks}, "packs": {}, "as_they_come_step": {:.4}, "as_they_come_micro": {:.4}, "sorted_micro": {:.4}, "step": {:.4}, "step_ms": {ms:.3}, "samples_first": {:.4}, "samples_first_fill": {:.4}}}"#,
        costs.len(),
        over_mean(&costs, ranks, &unsorted),
        barriers(&as_they_come),
        barriers(&sorted),
        over_mean(&costs, ranks, &step),
        over_mean(&sample_costs, ranks, &replica_of),
        tokens / room,
    );
}

/// Lengths that fill that many packs.
fn draw(law: &str, packs: usize) -> Vec<u32> {
    let mut draw = Draw(3);
    let mut tokens = 0;
    let mut more = || {
        let length = draw.length(law, MAX_TOKENS);
        tokens += length as usize;
        (tokens <= packs * MAX_TOKENS).then_some(length)
    };
    std::iter::from_fn(&mut more).collect()
}

fn over_mean(costs: &[u64], ranks: usize, bin_of: &[usize]) -> f64 {
    let loads = loads_of(costs, ranks, bin_of);
    loads.iter().copied().max().unwrap_or(0) as f64 * ranks as f64 / costs.iter().sum::<u64>() as f64
}
