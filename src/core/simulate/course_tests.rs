//! The course of a few runs, event by event: durations vary and are drawn in the order of the events, so that any other
//! order gives other times.

use super::tests::spec;
use super::*;
use crate::config::Placement;
use crate::message::{Grid, ItemMeta, Purpose, SampleId, SampleMeta, Tower};
use crate::schedule::{EdgeCredits, EvaluationPass, EvaluationSet, EvaluationSpec};

/// Samples of 20 to 90 tokens, two of three with one to three pictures.
struct Mixed;

impl Samples for Mixed {
    fn sample(&self, position: u64) -> SampleMeta {
        let picture = |index: u64| {
            let w = 4 * (2 + ((position + index) * 7 % 5) as u32);
            ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 2, w }, num_features: w / 2 }
        };
        let items: Vec<ItemMeta> = (0..position % 3 * (1 + position % 2)).map(picture).collect();
        let features: u32 = items.iter().map(|item| item.num_features).sum();
        let num_tokens = features + 20 + (position * 31 % 37) as u32;
        SampleMeta { items, ..SampleMeta::of_tokens(SampleId(position), num_tokens, 1) }
    }
}

/// Returns a pipeline with little credit, many replicas with trained encoders, frozen encoders on shared cores, a packed stream on
/// colocated ranks.
fn specs() -> [SimSpec; 4] {
    let mut specs = [spec(3, 4, 2, 8, 24), spec(4, 6, 9, 8, 60), spec(2, 3, 2, 8, 20), spec(2, 3, 3, 8, 9)];
    for spec in &mut specs {
        spec.cluster = Cluster { jitter: 0.1, latency: 1e-3, bandwidth: 1e5, control_latency: 5e-4, ..spec.cluster };
        spec.costs.data = DataCosts { per_sample: 1e-3, per_patch: 1e-6, per_byte: 1e-8 };
        spec.costs.encoder.gradient_bytes = 1e4;
        spec.costs.foundation.per_step = 0.01;
        spec.cluster.reduce_bandwidth = 1e6;
        spec.drawn_steps = 0;
    }
    specs[0].cluster = Cluster { stages: 4, bytes_per_hidden: 10.0, ..specs[0].cluster };
    specs[0].coordinator.plan.credits = EdgeCredits { pixels: 4000, tokens: 8000, features: 700 };
    specs[2] = specs[2].clone().with_training(false);
    specs[2].cluster.cores = Some(3.0);
    specs[3].coordinator.look_ahead = Some(12);
    specs[3] = specs[3].with_pools(Placement::Colocated, 3, 3, Some(6));
    specs
}

#[test]
fn events_happen_in_the_same_order_as_ever() {
    // Seconds of the last step and of all, share of the second pool's ranks that computes, seconds that parcels waited.
    let known = [
        [0.461859018459, 2.721524996005, 0.670619605641, 0.026284061069],
        [0.527328109005, 3.171099168081, 0.948689079421, 0.0],
        [0.519454257358, 3.500433464969, 0.190998551754, 0.0],
        [0.594101903676, 3.597613891580, 0.951304982509, 0.0],
    ];
    let found = specs().map(|spec| {
        let report = simulate(&spec, &Mixed).unwrap();
        let waited: f64 = report.credit_waits.iter().sum();
        [*report.steps.last().unwrap(), report.seconds(), report.pools[1].busy, waited]
    });
    let near = |(found, known): (&f64, &f64)| (found - known).abs() <= 1e-9 * known.abs();
    assert!(found.iter().flatten().zip(known.iter().flatten()).all(near), "{found:?}, not {known:?}");
}

#[test]
fn evaluations_take_no_part_in_simulated_steps() {
    let [spec, ..] = specs();
    let purpose = Purpose::Score { draw: 0 };
    let pass = EvaluationPass { purpose, stream: 0, num_samples: 3, max_samples: 1, sigma: None };
    let set = EvaluationSet { name: "val".to_owned(), every: 2, at_start: true, passes: vec![pass] };
    let (decisive, save_best, patience) = (Some(0), true, Some(1));
    let evaluation = EvaluationSpec { sets: vec![set], decisive, save_best, patience, min_delta: 0.0, batch_size: 1 };
    let mut evaluated = spec.clone();
    evaluated.coordinator.evaluation = Some(evaluation);
    assert_eq!(simulate(&evaluated, &Mixed).unwrap().steps, simulate(&spec, &Mixed).unwrap().steps);
}
