//! A mistake in Qwen-Image's transformer, which the comparison with diffusers (`dit/tests.rs`) would find.

use crate::model::dit::TransformerConfig;
use crate::model::dit::tests::{Fixture, error, folders};
use crate::model::policy::checks;

/// The tolerance, and by how much a mistake has to move velocities, as shares of the largest value.
const TOLERANCE: f64 = 5e-6;
const FAR: f64 = 10.0 * TOLERANCE;

/// Scale and shift exchanged in `norm_out`.
#[test]
fn mistakes_are_far_from_the_reference() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        if !matches!(fixture.family.transformer(), TransformerConfig::QwenImage(_)) {
            continue;
        }
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let off = || error(&fixture.velocity(&all), &fixture.expected["velocity"]);
        let without = off();
        checks::exchange(&fixture.params, "norm_out.linear.", 0, (2, [0, 1]));
        println!("{}: {without:.1e}, exchanged {:.1e}", fixture.name, off());
        assert!(without < TOLERANCE && off() > FAR, "{}", fixture.name);
    }
}
