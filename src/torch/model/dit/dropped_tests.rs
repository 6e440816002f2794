//! Samples of image-to-video models without their condition, beside samples that have one.

use loongforge_core::message::Tower;

use super::tests::{Fixture, Found, error, folders};
use crate::tape::Policy;

/// Takes the condition and the pictures from the last sample.
fn drop_last(fixture: &mut Fixture) {
    let mut num_latents = 0;
    fixture.rows.last_mut().unwrap().items.retain(|item| {
        num_latents += u32::from(item.tower == Tower::Vae);
        item.tower == Tower::Text || (item.tower == Tower::Vae && num_latents == 1)
    });
}

#[test]
fn samples_without_a_condition_are_beside_others_what_they_are_alone() {
    for name in ["wan2.1_i2v", "wan2.1_flf2v", "wan2.2_i2v"] {
        let mut fixture = Fixture::read(&folders().into_iter().find(|folder| folder.ends_with(name)).unwrap());
        let model = fixture.model(Policy::Keep);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let last = [all.len() - 1];
        let given = fixture.run(&model, &last).loss;
        drop_last(&mut fixture);
        let together = fixture.run(&model, &all);
        let apart: Vec<Found> = all.iter().map(|at| fixture.run(&model, &[*at])).collect();
        assert!((apart[last[0]].loss / given - 1.0).abs() > 1e-4, "{name}: the condition is read");
        let loss: f64 = apart.iter().map(|found| found.loss).sum();
        assert!((together.loss / loss - 1.0).abs() < 1e-6, "{name}: {} of {loss}", together.loss);
        let sum = apart.iter().map(|found| found.grads.flat().shallow_clone()).reduce(|a, b| a + b).unwrap();
        assert!(error(together.grads.flat(), &sum) < 1e-5, "{name}");
    }
}
