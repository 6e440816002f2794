//! Balancing: costliest replica over the mean, and the time it takes to decide. Prints one JSON object a line.
//! `cargo bench -p loongforge-core --bench balance -- [--ranks 8,512] [--laws vlm]`; `benches/balance.py` runs it beside
//! its peers.

mod laws;

use laws::{Arguments, Draw, spread};
use loongforge_core::config::Schedule;
use loongforge_core::message::{SampleId, SampleMeta, StepId};
use loongforge_core::schedule::{
    Batch, ByTower, CostModel, EdgeCredits, FoundationPlanSpec, LearningRate, ModelShape, PackLimits, PlanSpec,
    StreamPacker, balance, loads_of, pack_lengths, plan_step, sorted_rows,
};
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
            plans(law, ranks, cost);
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
    // The sum of the costliest of each micro-batch, over what it would be were all alike.
    let barriers = |places: &[(usize, usize)]| {
        let mut costliest = [0_u64; MICRO_BATCHES + 1];
        costs.iter().zip(places).for_each(|(&cost, &(row, _))| costliest[row] = costliest[row].max(cost));
        costliest.iter().sum::<u64>() as f64 * ranks as f64 / costs.iter().sum::<u64>() as f64
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

/// Does what a run does, replicas meeting once a step: samples packed within the step, 97 % of the room of four packs a replica,
/// in packs of any length; full packs of a stream, four a replica; and 1 % fewer of them.
fn plans(law: &str, ranks: usize, cost: CostModel) {
    let room = ranks * MICRO_BATCHES;
    let samples: Vec<SampleMeta> =
        draw(law, room * 11 / 10).iter().zip(0..).map(|(&length, id)| sample(id, length)).collect();
    let mut left = room * MAX_TOKENS * 97 / 100;
    let fits = |sample: &&SampleMeta| {
        left = left.saturating_sub(sample.num_tokens as usize);
        left > 0
    };
    let step = samples.iter().take_while(fits).cloned().collect();
    let mut packer = StreamPacker::new(PackLimits::tokens(MAX_TOKENS), 4096);
    let mut stream = Vec::new();
    for sample in &samples {
        packer.push(sample.clone()).expect("a sample fits a pack");
        stream.extend(std::iter::from_fn(|| packer.pop()));
    }
    // The end of the stream is not held back.
    packer.finish();
    stream.extend(std::iter::from_fn(|| packer.pop()));
    stream.truncate(room);
    let fewer = stream[..room - room.div_ceil(100)].to_vec();
    let batches = [("step", Batch::Samples(step)), ("stream", Batch::Packs(stream)), ("fewer", Batch::Packs(fewer))];
    for (mode, batch) in batches {
        let tokens: usize = batch.samples().map(|sample| sample.num_tokens as usize).sum();
        let start = Instant::now();
        let plan = plan_step(&spec(ranks, cost), StepId(0), batch, SampleId(0)).expect("a plan");
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let costs: Vec<u64> =
            plan.packs.iter().map(|pack| pack.samples.iter().map(|sample| cost.sample(sample)).sum()).collect();
        let replica_of: Vec<usize> = plan.packs.iter().map(|pack| pack.replica.index as usize).collect();
        println!(
            r#"{{"what": "plan", "law": "{law}", "ranks": {ranks}, "mode": "{mode}", "packs": {}, "fill": {:.4}, "step": {:.4}, "bound": {:.4}, "ms": {ms:.3}}}"#,
            costs.len(),
            tokens as f64 / (room * MAX_TOKENS) as f64,
            over_mean(&costs, ranks, &replica_of),
            bound(costs, ranks, mode == "step"),
        );
    }
}

/// Returns the least that there could be of costliest over mean: of whole packs, as many to a replica as are needed, or, where packs can
/// be made otherwise, of the mean alone.
fn bound(mut costs: Vec<u64>, ranks: usize, is_free: bool) -> f64 {
    costs.sort_unstable();
    let mean = costs.iter().sum::<u64>() as f64 / ranks as f64;
    let most = costs.len().div_ceil(ranks);
    // Others hold `most` each at best, so the costliest pack is not alone.
    let beside = costs.len().saturating_sub(most * (ranks - 1) + 1);
    let least = costs.last().copied().unwrap_or(0) + costs.iter().take(beside).sum::<u64>();
    if is_free { 1.0 } else { (least as f64 / mean).max(1.0) }
}

fn sample(id: u64, num_tokens: u32) -> SampleMeta {
    let (items, documents) = (Vec::new(), Vec::new());
    SampleMeta { items, documents, ..SampleMeta::of_tokens(SampleId(id), num_tokens, num_tokens) }
}

fn spec(ranks: usize, cost: CostModel) -> PlanSpec {
    PlanSpec {
        sigma: None,
        pack: PackLimits::tokens(MAX_TOKENS),
        learning_rate: LearningRate {
            peak: 1e-3,
            min: 0.0,
            schedule: Schedule::Cosine,
            warmup_steps: 0,
            decay_steps: 1,
            steps: 1,
        },
        foundations: vec![FoundationPlanSpec::only(ranks as u32, cost)],
        encoders: Vec::new(),
        colocated: false,
        shape: ModelShape {
            towers: [loongforge_core::message::Tower::Vision].into_iter().collect(),
            hidden_size: 2048,
            even_length: 12 * 2048,
            bytes_per_patch: ByTower::all(1),
            bytes_per_feature: ByTower::all(1),
            flow: None,
        },
        credits: EdgeCredits { pixels: u64::MAX, tokens: u64::MAX, features: u64::MAX },
    }
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
