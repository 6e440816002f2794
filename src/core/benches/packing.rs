//! Packing: samples a second and fill, of all lengths at once and of a stream. Prints one JSON object a line.
//! `cargo bench -p loongforge-core --bench packing -- [--samples 1000000,100000000] [--laws sft] [--tokens 8192]`;
//! `benches/packing.py` runs it beside its peers.

mod laws;

use laws::{Arguments, Draw, spread};
use loongforge_core::message::{SampleId, SampleMeta};
use loongforge_core::schedule::{PackLimits, StreamPacker, least_packs, pack_lengths};
use std::time::Instant;

const LOOK_AHEAD: usize = 4096;
/// Samples of a stream, at most.
const STREAMED: usize = 1_000_000;

fn main() {
    let arguments = Arguments::read();
    for law in &arguments.laws {
        for &max_tokens in &arguments.tokens {
            for &num_samples in &arguments.samples {
                let mut draw = Draw(1);
                let lengths: Vec<u32> = (0..num_samples).map(|_| draw.length(law, max_tokens)).collect();
                arguments.write(&format!("{law}-{max_tokens}-{num_samples}"), &lengths);
                let head = format!(r#""law": "{law}", "max_tokens": {max_tokens}, "samples": {num_samples}"#);
                offline(&head, &lengths, max_tokens, arguments.rounds);
            }
            let mut draw = Draw(2);
            let most = arguments.samples.iter().copied().max().unwrap_or(0).min(STREAMED);
            let lengths: Vec<u32> = (0..most).map(|_| draw.length(law, max_tokens)).collect();
            stream(&format!(r#""law": "{law}", "max_tokens": {max_tokens}, "samples": {most}"#), &lengths, max_tokens);
        }
    }
}

fn offline(head: &str, lengths: &[u32], max_tokens: usize, rounds: usize) {
    let mut num_packs = 0;
    let mut fill = 0.0;
    let mut round = || {
        let start = Instant::now();
        let packs = pack_lengths(lengths, PackLimits::tokens(max_tokens));
        let seconds = start.elapsed().as_secs_f64();
        assert!(packs.too_large.is_empty(), "no length exceeds a pack");
        (num_packs, fill) = (packs.num_packs(), packs.fill(&[max_tokens]));
        seconds
    };
    let [least, median, most] = spread((0..rounds).map(|_| round()).collect());
    let mut counts = vec![0; max_tokens + 1];
    lengths.iter().for_each(|&length| counts[length as usize] += 1);
    let bound = least_packs(&counts, max_tokens);
    let of_bound = bound as f64 / num_packs as f64;
    println!(
        r#"{{"what": "offline", {head}, "seconds": {median:.6}, "least": {least:.6}, "most": {most:.6}, "packs": {num_packs}, "bound": {bound}, "of_bound": {of_bound:.6}, "fill": {fill:.6}}}"#
    );
}

/// The fill is of the packs before the stream ends, which are what a run sees.
fn stream(head: &str, lengths: &[u32], max_tokens: usize) {
    let sample = |(index, &num_tokens): (usize, &u32)| SampleMeta::of_tokens(SampleId(index as u64), num_tokens, 1);
    let samples: Vec<SampleMeta> = lengths.iter().enumerate().map(sample).collect();
    let mut packer = StreamPacker::new(PackLimits::tokens(max_tokens), LOOK_AHEAD);
    let (mut packs, mut tokens, mut span) = (0_usize, 0_u64, 0);
    let start = Instant::now();
    for sample in samples {
        let newest = sample.id.0;
        packer.push(sample).expect("no length exceeds a pack");
        while let Some(pack) = packer.pop() {
            packs += 1;
            tokens += pack.iter().map(|sample| u64::from(sample.num_tokens)).sum::<u64>();
            span = span.max(newest - pack[0].id.0);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let fill = tokens as f64 / (packs * max_tokens).max(1) as f64;
    println!(
        r#"{{"what": "stream", {head}, "look_ahead": {LOOK_AHEAD}, "seconds": {seconds:.6}, "packs": {packs}, "fill": {fill:.6}, "longest_wait": {span}}}"#
    );
}
