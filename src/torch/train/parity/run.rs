//! A fixture's batch against the reference: as one packed row, each sequence alone, and through steps of AdamW.

use super::fixture::{Document, Fixture};
use super::indexers::compare_indexers;
use super::models::{Models, reference_parts};
use super::report::{ParityReport, is_rounding};
use super::state::ParityError;
use crate::model::{Comparisons, Decoding, Prompt, generate, open_fixture};
use crate::nn::RopeScaling;
use crate::tape::Policy;
use crate::train::merge_adapter;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Returns whether the fixture in `folder` is of a language or vision-language model, and not of a policy or of Florence-2, which
/// have samples of other kinds.
///
/// # Errors
/// The folder is no fixture.
pub fn is_of_tokens(folder: &Path) -> Result<bool, ParityError> {
    Ok(open_fixture(folder, Kind::Float)?.is_none())
}

/// Runs the fixture in `folder` in float32 on `device`.
///
/// # Errors
/// The folder is no fixture, its weights are not the model's, or it is compared on the CPU alone.
pub fn parity(folder: &Path, device: Device) -> Result<ParityReport, ParityError> {
    if let Some(fixture) = open_fixture(folder, Kind::Float)? {
        expect_cpu(device)?;
        let mut comparisons = Comparisons::default();
        fixture.compare(&mut comparisons);
        let mut report = ParityReport::default();
        report.add(comparisons);
        return Ok(report);
    }
    let fixture = Fixture { device, ..Fixture::read(folder)? };
    let mut models = Models::load(&fixture, &fixture.config, folder)?;
    let ill_conditioned = fixture.decoder().gated_delta().is_some();
    let mut report = ParityReport { ill_conditioned, ..ParityReport::default() };
    let documents: Vec<&Document> = fixture.documents.iter().collect();
    let lens = reference_lens(&fixture);

    models.count_documents_as(lens.padded);
    let (logits, routed) = models.logits(&documents);
    models.compare_routers(&fixture, routed, &mut report);
    let of_tokens = |name: &str| fixture.expected.get(name);
    if let Some(expected) = of_tokens("logits") {
        let (rows, width) = (fixture.attention_mask.flatten(0, -1).nonzero().flatten(0, -1), logits.size()[1]);
        report.compare("logits", "logits", &logits, &expected.reshape([-1, width]).index_select(0, &rows));
    }
    models.count_documents_as(lens.packed);
    if let Some(expected) = of_tokens("packed.logits") {
        let logits = if lens.differ() { models.logits(&documents).0 } else { logits };
        report.compare("packed.logits", "packed.logits", &logits, expected);
        let alone: Vec<Tensor> = documents.iter().map(|document| models.logits(&[document]).0).collect();
        report.compare("single logits", "packed.logits", &Tensor::cat(&alone, 0), expected);
        models.compare_scores(&fixture, expected, &mut report)?;
    }

    if let Some(expected) = &fixture.generated {
        models.count_documents_as(0);
        models.compare_generated(&documents, expected, &mut report);
    }

    let scale = 1.0 / fixture.num_targets() as f64;
    models.count_documents_as(lens.packed);
    let packed = if lens.differ() { Some(models.step(&documents, scale)?) } else { None };
    models.count_documents_as(lens.padded);
    let loss = models.step(&documents, scale)?;
    let packed = packed.as_ref().unwrap_or(&loss);
    // The packed reference has the cross-entropy alone.
    let alone = fixture.decoder().mtp.is_none();
    let packed = alone.then_some(packed.total - packed.of_routers);
    for (quantity, found) in [("loss", Some(loss.total)), ("packed.loss", packed), ("aux_loss", loss.aux)] {
        if let Some((expected, found)) = fixture.expected.get(quantity).zip(found) {
            report.compare(quantity, quantity, &Tensor::from(found), expected);
        }
    }
    models.compare_gradients(&fixture, &mut report);
    models.compare_recomputed(&documents, scale, &mut report)?;
    compare_indexers(&fixture, folder, &documents, &mut report)?;
    models.train(&fixture, &documents, &mut report)?;
    // A base that is rounded would be rounded once more.
    if fixture.has_adapter && !fixture.rounding.is_some() {
        let (before, _) = models.logits(&documents);
        merge_adapter(&models.text.params);
        report.compare("merged logits", "logits", &models.logits(&documents).0, &before);
    }
    let wanted = ["logits", "packed.logits", "loss", "adamw.loss", "adamw.grad_norm"];
    let absent = wanted.iter().filter(|key| !fixture.expected.contains_key(**key));
    report.problems.extend(absent.map(|key| format!("expected.safetensors has no {key}")));
    Ok(report)
}

/// Fixtures of policies and of Florence-2 have their samples on the CPU.
pub(super) fn expect_cpu(device: Device) -> Result<(), ParityError> {
    if device == Device::Cpu { Ok(()) } else { Err(ParityError::OnTheCpu) }
}

/// The lengths that documents count as at least, where rotary embeddings depend on their length.
struct ReferenceLens {
    padded: i64,
    packed: i64,
}

impl ReferenceLens {
    fn differ(&self) -> bool {
        self.padded != self.packed
    }
}

/// transformers takes the longest document of a padded batch; of documents one by one, with dynamic scaling, it keeps the
/// longest so far until one is shorter than the context.
fn reference_lens(fixture: &Fixture) -> ReferenceLens {
    let lens = || fixture.documents.iter().map(|document| document.input_ids.len() as i64);
    let rope = &fixture.decoder().layers[0].rope;
    let padded = if rope.depends_on_length() { lens().max().unwrap_or(0) } else { 0 };
    let packed = match rope.scaling {
        RopeScaling::Dynamic { max_position_embeddings: context, .. } if lens().all(|len| len >= context) => padded,
        _ => 0,
    };
    ReferenceLens { padded, packed }
}

impl Models {
    /// Logits, chosen experts and weights of every router, where the fixture has them.
    fn compare_routers(&self, fixture: &Fixture, routed: Vec<(String, [Tensor; 3])>, report: &mut ParityReport) {
        for (layer, [logits, weights, experts]) in routed {
            // A token's experts in ascending order.
            let (experts, order) = experts.sort(-1, false);
            let weights = weights.gather(-1, &order, false);
            let found = [("router logits", logits), ("router experts", experts), ("router weights", weights)];
            for (quantity, found) in found {
                let key = format!("{}/{layer}", quantity.replace(' ', "_"));
                if let Some(expected) = fixture.expected.get(&key) {
                    report.compare(quantity, &key, &found, expected);
                }
            }
        }
    }

    /// Greedy continuations, all documents as one batch of prompts: not one token may differ.
    fn compare_generated(&self, documents: &[&Document], expected: &[Vec<i64>], report: &mut ParityReport) {
        let prompts: Vec<Prompt> = documents
            .iter()
            .map(|document| {
                let features = self.features(&[document]);
                let feature_rows = self.batch(&[document]).feature_rows;
                let position_ids = document.position_ids.to_device(self.device);
                Prompt { input_ids: document.input_ids.clone(), position_ids, feature_rows, features }
            })
            .collect();
        let max_new_tokens = expected.iter().map(Vec::len).max().unwrap_or(0);
        let decoding = Decoding { max_new_tokens, ..Decoding::default() };
        for (number, (found, expected)) in
            generate(&self.text.model, &prompts, &decoding).iter().zip(expected).enumerate()
        {
            report.compare(
                "generated tokens",
                &format!("document {number}"),
                &Tensor::from_slice(found),
                &Tensor::from_slice(expected),
            );
        }
    }

    /// Compares gradients piece by piece, as the reference names them. A tensor that is no parameter there (a buffer) has no gradient.
    /// Gradients that are zero in exact arithmetic (of a key's bias without rotation) are rounding on both sides.
    fn compare_gradients(&self, fixture: &Fixture, report: &mut ParityReport) {
        let rounding = fixture.rounding();
        let mut known = 0;
        for (params, grads) in self.pools() {
            for (name, found) in reference_parts(params, &fixture.config.tree, |id| grads.view(id).shallow_clone()) {
                let name = name.as_str();
                let Some(norm) = fixture.expected.get(&format!("grad_norm/{name}")) else {
                    // What the batch does not reach has a gradient of zero here, and none there.
                    if found.norm().double_value(&[]) == 0.0 {
                        continue;
                    }
                    report.problems.push(format!("the reference has no gradient of {name}"));
                    continue;
                };
                known += 1;
                if is_rounding([norm.double_value(&[]), found.norm().double_value(&[])], rounding) {
                    continue;
                }
                report.compare("gradient norms", name, &found.norm(), norm);
                if let Some(expected) = fixture.expected.get(&format!("grad/{name}")) {
                    report.compare("gradients", name, &found, expected);
                }
            }
        }
        let theirs = fixture.grad_norms().count();
        if theirs != known {
            report
                .problems
                .push(format!("the reference has {theirs} gradients, but only {known} of them are known here"));
        }
    }

    /// Gradients with activations computed again are the same as those of the last step, which kept them.
    fn compare_recomputed(
        &mut self,
        documents: &[&Document],
        scale: f64,
        report: &mut ParityReport,
    ) -> Result<(), ParityError> {
        let gradients = |models: &Models| models.pools().map(|(_, grads)| grads.flat().copy()).collect::<Vec<_>>();
        let kept = gradients(self);
        self.policy = Policy::Recompute;
        self.step(documents, scale)?;
        self.policy = Policy::Keep;
        for (kept, again) in kept.iter().zip(gradients(self)) {
            report.compare("recomputed", "all gradients", &again, kept);
        }
        Ok(())
    }

    /// The fixture's steps, and what they make of the weights.
    fn train(
        &mut self,
        fixture: &Fixture,
        documents: &[&Document],
        report: &mut ParityReport,
    ) -> Result<(), ParityError> {
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for _ in 0..fixture.num_steps {
            let (loss, norm) = self.update(fixture, documents)?;
            losses.push(loss);
            norms.push(norm);
        }
        losses.push(self.step(documents, 1.0 / fixture.num_targets() as f64)?.total);
        for (quantity, found) in [("adamw.loss", losses), ("adamw.grad_norm", norms)] {
            if let Some(expected) = fixture.expected.get(quantity) {
                report.compare(quantity, quantity, &Tensor::from_slice(&found), expected);
            }
        }
        let rounding = fixture.rounding();
        for (params, _) in self.pools() {
            for (name, found) in reference_parts(params, &fixture.config.tree, |id| params.leaf(id).detach()) {
                // AdamW divides a gradient by its size, and so makes whole steps of one that is rounding alone.
                let norm = fixture.expected.get(&format!("grad_norm/{name}"));
                if norm.is_some_and(|norm| norm.double_value(&[]) <= rounding) {
                    continue;
                }
                if let Some(expected) = fixture.expected.get(&format!("adamw.weight_norm/{name}")) {
                    report.compare("adamw.weight_norm", &name, &found.norm(), expected);
                }
            }
        }
        Ok(())
    }
}
