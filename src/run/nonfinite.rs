//! The report of steps that were not finite: a line for each, and a file when the run ends for them.

use loongforge_core::checkpoint::Manifest;
use loongforge_core::schedule::{CheckpointDraft, NonFinite, StepSummary};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the line about a step that was not applied.
pub fn skipped(summary: &StepSummary) -> String {
    let ids: Vec<u64> = summary.skipped.iter().map(|sample| sample.0).collect();
    let what = match summary.loss.is_finite() && summary.grad_norm.is_finite() {
        true => "earlier steps were not finite and are being examined",
        false => "loss or gradient is not finite",
    };
    let (step, loss, norm) = (summary.step, summary.loss, summary.grad_norm);
    format!("step {step} skipped: {what} (loss {loss}, gradient norm {norm}); samples {ids:?}")
}

/// The facts of the run that are written into the file of a step.
pub struct Evidence {
    dir: PathBuf,
    seed: u64,
    /// The newest checkpoint on the disk, and the hashes of its files.
    checkpoint: Option<(PathBuf, BTreeMap<String, String>)>,
}

impl Evidence {
    /// Writes into a run's folder; `seed` is the run's, by which samples can be found again.
    pub fn new(dir: &Path, seed: u64) -> Self {
        Self { dir: dir.to_owned(), seed, checkpoint: None }
    }

    /// Notes the newest checkpoint of a run that goes on. One that cannot be read counts as none.
    pub fn resumed(mut self, checkpoint: Option<PathBuf>) -> Self {
        self.checkpoint = checkpoint.and_then(|path| {
            let files = Manifest::read(&path).ok()?.files.into_iter();
            Some((path, files.map(|(name, entry)| (name, entry.sha256)).collect()))
        });
        self
    }

    /// Notes the newest checkpoint, from which the steps can be computed again.
    pub fn published(&mut self, draft: &CheckpointDraft, path: &Path) {
        let hashes = draft.files.iter().map(|file| (file.name.clone(), file.sha256.clone()));
        self.checkpoint = Some((path.to_owned(), hashes.collect()));
    }

    /// Writes `nonfinite-step-N.json` into the run's folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, found: &NonFinite) -> io::Result<PathBuf> {
        let path = self.dir.join(format!("nonfinite-step-{}.json", found.step));
        let mut text = serde_json::to_vec_pretty(&self.json(found)).expect("JSON values can be written");
        text.push(b'\n');
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn json(&self, found: &NonFinite) -> Value {
        // JSON has no NaN.
        let number = |value: f64| if value.is_finite() { json!(value) } else { json!(value.to_string()) };
        let computed = |loss, norm| json!({ "loss": number(loss), "grad_norm": number(norm) });
        let ids =
            |samples: &[loongforge_core::message::SampleId]| -> Vec<u64> { samples.iter().map(|id| id.0).collect() };
        json!({
            "verdict": found.verdict.name(),
            "meaning": found.verdict.to_string(),
            "step": found.step.0,
            "samples": ids(&found.samples),
            "skipped_in_a_row": found.num_in_row,
            "first": computed(found.loss, found.grad_norm),
            "recomputed": found.recomputed.map(|(step, loss, norm)| json!({ "step": step.0, "result": computed(loss, norm) })),
            "other_batches": { "computed": found.num_others, "finite": found.num_others_finite },
            // All that is random is a function of these and of a name, a position or a unit.
            "random": { "seed": self.seed, "step": found.step.0 },
            "weights": {
                "last_step": found.last_applied.map(|step| step.0),
                "checkpoint": self.checkpoint.as_ref().map(|(path, _)| path.display().to_string()),
                "sha256": self.checkpoint.as_ref().map(|(_, hashes)| hashes),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::{FileEntry, MANIFEST};
    use loongforge_core::message::{SampleId, StepId};
    use loongforge_core::schedule::Verdict;

    fn found() -> NonFinite {
        NonFinite {
            step: StepId(7),
            samples: vec![SampleId(4), SampleId(9)],
            loss: f64::NAN,
            grad_norm: f64::INFINITY,
            num_in_row: 4,
            recomputed: Some((StepId(9), 2.5, 1.0)),
            num_others: 1,
            num_others_finite: 0,
            verdict: Verdict::Transient,
            last_applied: Some(StepId(3)),
        }
    }

    #[test]
    fn the_file_names_samples_numbers_and_weights() {
        let dir = tempfile::tempdir().unwrap();
        let path = Evidence::new(dir.path(), 5).write(&found()).unwrap();
        assert!(path.ends_with("nonfinite-step-7.json"));
        let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(json["samples"], json!([4, 9]));
        assert_eq!((&json["verdict"], &json["first"]["loss"]), (&json!("transient"), &json!("NaN")));
        assert_eq!((&json["recomputed"]["result"]["loss"], &json["random"]["seed"]), (&json!(2.5), &json!(5)));
    }

    #[test]
    fn a_run_that_goes_on_names_its_checkpoint_before_it_has_saved_another() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("step-00000003");
        std::fs::create_dir(&checkpoint).unwrap();
        std::fs::write(checkpoint.join("model.safetensors"), "x").unwrap();
        let entry = FileEntry { bytes: 1, sha256: "1f".to_owned() };
        let manifest = Manifest::of_files(3, BTreeMap::from([("model.safetensors".to_owned(), entry)]));
        std::fs::write(checkpoint.join(MANIFEST), manifest.to_text()).unwrap();
        let weights = |path: &Path| Evidence::new(dir.path(), 5).resumed(Some(path.to_owned())).json(&found());
        let json = &weights(&checkpoint)["weights"];
        assert_eq!(json["checkpoint"], json!(checkpoint.display().to_string()));
        assert_eq!(json["sha256"], json!({ "model.safetensors": "1f" }));
        assert!(weights(dir.path())["weights"]["checkpoint"].is_null());
    }
}
