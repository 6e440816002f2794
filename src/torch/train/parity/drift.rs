//! How far a model of another precision is from the float32 reference: not whether it computes the same, which
//! `run.rs` tells, but whether rounding stays rounding.

use super::fixture::{Document, Fixture};
use super::models::{Models, ParityError};
use std::path::Path;
use tch::{Kind, Tensor};

/// Relative differences.
#[derive(Debug)]
pub struct Drift {
    /// The root mean square of the logits' differences over that of the logits.
    pub logits: f64,
    /// The largest of the losses' differences, before each of the fixture's steps of AdamW.
    pub loss: f64,
    /// Whether the model makes choices, of experts or of keys, which rounding may decide otherwise.
    pub chooses: bool,
    /// Whether it has gated delta nets, which are ill-conditioned in these fixtures.
    pub has_gated_delta: bool,
}

/// Runs the fixture in `folder` on the CPU with parameters of `kind`, the optimizer's masters in float32.
///
/// # Errors
/// The folder is no fixture.
pub fn drift(folder: &Path, kind: Kind) -> Result<Drift, ParityError> {
    let fixture = Fixture { kind, ..Fixture::read(folder)? };
    let mut models = Models::load(&fixture, &fixture.config, folder)?;
    let documents: Vec<&Document> = fixture.documents.iter().collect();
    let (logits, routed) = models.logits(&documents);
    let expected = fixture.expect("packed.logits")?;
    let norm = |tensor: &Tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]);
    let logits = norm(&(logits.to_kind(Kind::Double) - expected)) / norm(expected);
    let mut loss = 0f64;
    let losses = Vec::<f64>::try_from(fixture.expect("adamw.loss")?.to_kind(Kind::Double)).expect("a row of numbers");
    for expected in losses.iter().take(fixture.num_steps as usize) {
        let (found, _) = models.update(&fixture, &documents)?;
        let difference = (found - expected).abs() / expected;
        // Not a number is no smaller than anything.
        loss = if difference.is_nan() { f64::INFINITY } else { loss.max(difference) };
    }
    let decoder = &fixture.config.decoder;
    let has_indexer = decoder.clone().train_indexers(0.0, false);
    Ok(Drift {
        logits: if logits.is_nan() { f64::INFINITY } else { logits },
        loss,
        chooses: !routed.is_empty() || has_indexer,
        has_gated_delta: decoder.gated_delta().is_some(),
    })
}
