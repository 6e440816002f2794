//! Whole loads: what is accepted, what it becomes, and what a user reads when it is not.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

mod any;
mod by_epochs;
mod composing;
mod missing_files;
mod mistakes;
mod reading;
mod stages;
mod suggestions;
mod tracking;

const GOOD: &str = "\
run: { name: t }
model: { load: MODEL, weights: random }
data:
  train: [{ path: DATA }]
train:
  steps: 10
  global_batch_size: 4
  lr: 1e-05
";

/// A directory with a model, a data file and a run's file.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(yaml: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["m/config.json", "m/tokenizer.json", "d.jsonl"] {
            bench.file(name, "{}");
        }
        bench.file("vlm.yaml", yaml);
        bench
    }

    fn file(&self, name: &str, text: &str) -> &Self {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (model, data) = (self.dir.path().join("m"), self.dir.path().join("d.jsonl"));
        let text = text.replace("MODEL", model.to_str().unwrap()).replace("DATA", data.to_str().unwrap());
        fs::write(path, text).unwrap();
        self
    }

    fn load_with(&self, overrides: &[&str], env: &[(&str, &str)]) -> Result<Loaded, Report> {
        let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        load(&self.dir.path().join("vlm.yaml"), &overrides, env)
    }

    fn load(&self, overrides: &[&str]) -> Loaded {
        self.load_with(overrides, &[]).unwrap_or_else(|report| panic!("{report}"))
    }

    /// Returns what the user reads, without the directory's name.
    fn errors(&self, overrides: &[&str]) -> String {
        let report = self.load_with(overrides, &[]).map(|loaded| loaded.config).unwrap_err();
        report.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }
}

/// Returns [`GOOD`] with one more section or key.
fn good_and(more: &str) -> String {
    format!("{GOOD}{more}")
}
