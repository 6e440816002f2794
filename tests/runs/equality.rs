//! Decoupled equals single: the same losses, bit for bit, whoever computes what.

use crate::fixture::{Fixture, Pictures};

const COLOCATED: &str = "pools.placement=colocated";
const DETERMINISTIC: &str = "run.deterministic=true";

/// Losses of one more step than an epoch has.
fn losses(fixture: &Fixture, overrides: &[&str]) -> Vec<f64> {
    fixture.losses(&[&["train.steps=13"], overrides].concat())
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Returns the largest relative difference.
fn distance(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    // Not `max`, which drops a NaN.
    left.iter().zip(right).map(|(left, right)| ((left - right) / left).abs()).max_by(f64::total_cmp).unwrap_or_default()
}

fn assert_learns(losses: &[f64]) {
    assert_eq!(losses.len(), 13);
    assert!(losses[12] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn one_actor_equals_two_pools() {
    for pictures in [Pictures::All, Pictures::Some, Pictures::None] {
        let fixture = Fixture::new(pictures);
        let single = losses(&fixture, &[COLOCATED]);
        assert_learns(&single);
        let pools = losses(&fixture, &[]);
        assert_eq!(bits(&single), bits(&pools), "{pictures:?}: {single:?} and {pools:?}");
    }
}

#[test]
fn a_frozen_encoder_runs_ahead_and_changes_nothing() {
    let fixture = Fixture::new(Pictures::Some);
    let freeze = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true"];
    let frozen = |overrides: &[&str]| losses(&fixture, &[&freeze, overrides].concat());
    let single = frozen(&[COLOCATED]);
    assert_learns(&single);
    for others in [&[][..], &["scheduler.prefetch_steps=5"], &["pools.data.replicas=3"]] {
        let pools = frozen(others);
        assert_eq!(bits(&single), bits(&pools), "{others:?}");
    }
    // Lanes fix how pictures are batched, frozen or not.
    let lanes = frozen(&[DETERMINISTIC, COLOCATED]);
    assert_eq!(bits(&lanes), bits(&frozen(&[DETERMINISTIC, "pools.encoder.replicas=3"])));
    // The scheduler does not know that patterns leave nothing to train.
    let patterns =
        ["encoder", "projector"].map(|part| format!("model.image_{part}.freeze_patterns=['model.visual.*']"));
    let by_name = [&patterns[0], &patterns[1], DETERMINISTIC, "pools.encoder.replicas=3"];
    assert_eq!(bits(&lanes), bits(&losses(&fixture, &by_name)));
    let trained = losses(&fixture, &[]);
    assert_ne!(bits(&single), bits(&trained), "freezing made no difference");
}

#[test]
fn a_frozen_foundation_trains_the_encoder() {
    let fixture = Fixture::new(Pictures::All);
    let freeze = "model.foundation.freeze=true";
    let single = losses(&fixture, &[COLOCATED, freeze]);
    assert!(single[12] < single[0], "{single:?}");
    assert_eq!(bits(&single), bits(&losses(&fixture, &[freeze])));
}

#[test]
fn any_number_of_encoders_gives_the_same_bits_under_deterministic() {
    for (pictures, numbers) in [
        (Pictures::All, &["pools.encoder.replicas=4"][..]),
        (Pictures::Some, &["pools.encoder.replicas=1", "pools.encoder.replicas=2", "pools.encoder.replicas=4"]),
        (Pictures::None, &["pools.encoder.replicas=2"]),
    ] {
        let fixture = Fixture::new(pictures);
        let single = losses(&fixture, &[DETERMINISTIC, COLOCATED]);
        assert_learns(&single);
        for &encoders in numbers {
            let pools = losses(&fixture, &[DETERMINISTIC, encoders]);
            assert_eq!(bits(&single), bits(&pools), "{pictures:?}, {encoders}");
        }
    }
}

/// Sums in another order: float32 rounding over 13 steps of training.
const ROUNDING: f64 = 1e-6;

#[test]
fn replicas_differ_by_rounding_only() {
    let fixture = Fixture::new(Pictures::Some);
    let single = losses(&fixture, &[]);
    let others: [&[&str]; 4] = [
        &["pools.encoder.replicas=2"],
        &["pools.encoder.replicas=4"],
        &["pools.foundation.replicas=2"],
        &["pools.foundation.replicas=2", "pools.encoder.replicas=2", "pools.data.replicas=2"],
    ];
    for overrides in others {
        let pools = losses(&fixture, overrides);
        assert!(distance(&single, &pools) < ROUNDING, "{overrides:?}: {}", distance(&single, &pools));
    }
    let colocated = losses(&fixture, &[COLOCATED, "pools.foundation.replicas=2", "pools.encoder.replicas=2"]);
    assert!(distance(&single, &colocated) < ROUNDING, "colocated: {}", distance(&single, &colocated));
}

#[test]
fn recompute_changes_no_bit() {
    let fixture = Fixture::new(Pictures::Some);
    let keep = losses(&fixture, &[]);
    let recompute = losses(&fixture, &["model.foundation.recompute=all", "model.image_encoder.recompute=all"]);
    assert_eq!(bits(&keep), bits(&recompute));
}

#[test]
fn small_credits_cost_time_and_no_bits() {
    let fixture = Fixture::new(Pictures::All);
    let narrow = ["edges.features.credit=16KiB", "edges.pixels.credit=256KiB", "edges.tokens.credit=8KiB"];
    assert_eq!(bits(&losses(&fixture, &[])), bits(&losses(&fixture, &narrow)));
}

#[test]
fn bf16_learns_and_is_its_own_twin() {
    let fixture = Fixture::new(Pictures::Some);
    let (single, pools) =
        (losses(&fixture, &["train.precision=bf16", COLOCATED]), losses(&fixture, &["train.precision=bf16"]));
    assert_learns(&single);
    assert_eq!(bits(&single), bits(&pools));
    let float32 = losses(&fixture, &[]);
    // Eight bits of mantissa, over 13 steps in which the loss falls by a third.
    assert!(distance(&float32, &single) < 0.1, "{}", distance(&float32, &single));
}
