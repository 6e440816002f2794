//! A tiny model, a few pictures, and runs of them whose losses are kept.

use loongforge::actors::checkpoint::Publication;
use loongforge::actors::{Observer, Publisher};
use loongforge::compose::{Composition, Resume, publication, publisher};
use loongforge::core::config::{self, Loaded};
use loongforge::core::data::digits::{Digits, ModelSize, compose, write_model};
use loongforge::core::message::SkippedSample;
use loongforge::core::robot::Policy;
use loongforge::core::schedule::{EvaluationSummary, StepSummary};
use loongforge::policy::{Choice, Purpose, Wanted, open};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Says which samples have pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pictures {
    All,
    Some,
    None,
}

/// A folder with data and a model folder without weights. Programs decode its pictures themselves, as runs in this process do.
pub struct Fixture {
    dir: TempDir,
}

pub const SIZE: ModelSize = ModelSize {
    hidden_size: 48,
    intermediate_size: 64,
    num_hidden_layers: 3,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 24,
    vision_depth: 2,
    vision_hidden_size: 32,
    vision_intermediate_size: 48,
    vision_num_heads: 2,
    deepstack_visual_indexes: &[0],
    ..loongforge::core::data::digits::MODEL
};

impl Fixture {
    pub fn new(pictures: Pictures) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        compose(&data, &Digits { seed: 3, num_train: 96, num_held_out: 8 }).unwrap();
        write_model(&dir.path().join("model"), &SIZE).unwrap();
        let lines = fs::read_to_string(data.join("train.jsonl")).unwrap();
        let text = |index: usize| {
            let answer = "abcdefgh".repeat(index % 3 + 1);
            format!(
                r#"{{"messages":[{{"role":"user","content":"Say {index}."}},{{"role":"assistant","content":"{answer}"}}]}}"#
            )
        };
        let keep = |index: usize| match pictures {
            Pictures::All => true,
            Pictures::Some => !index.is_multiple_of(3),
            Pictures::None => false,
        };
        let mixed = lines.lines().enumerate();
        let mixed: Vec<String> =
            mixed.map(|(index, line)| if keep(index) { line.to_owned() } else { text(index) }).collect();
        fs::write(data.join("train.jsonl"), mixed.join("\n")).unwrap();
        let config = format!(
            "run: {{ name: test, dir: {root}/run, seed: 5 }}
model: {{ load: {root}/model, weights: random }}
pools: {{ encoder: {{ threads: 1 }}, foundation: {{ threads: 1 }} }}
data: {{ train: [{{ path: {root}/data/train.jsonl }}], pack: {{ max_tokens: 128 }} }}
train: {{ steps: 20, global_batch_size: 8, lr: 2e-3, warmup_steps: 3 }}
log: {{ tensorboard: false }}
security: {{ sandbox: 'off' }}
",
            root = dir.path().display()
        );
        fs::write(dir.path().join("run.yaml"), config).unwrap();
        Self { dir }
    }

    /// Puts a language model of this config in place of the one with eyes.
    pub fn replace_model(&self, config: serde_json::Value) {
        let model = self.path().join("model");
        fs::write(model.join("config.json"), config.to_string()).unwrap();
        for name in ["preprocessor_config.json", "video_preprocessor_config.json"] {
            fs::remove_file(model.join(name)).unwrap();
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn config_file(&self) -> PathBuf {
        self.path().join("run.yaml")
    }

    pub fn load(&self, overrides: &[&str]) -> Loaded {
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        config::load(&self.config_file(), &overrides, std::iter::empty()).unwrap_or_else(|report| panic!("{report}"))
    }

    /// Returns the losses of a run's steps.
    pub fn losses(&self, overrides: &[&str]) -> Vec<f64> {
        self.run(overrides, None).into_iter().map(|summary| summary.loss).collect()
    }

    /// Runs in this process.
    pub fn run(&self, overrides: &[&str], resume: Option<Resume>) -> Vec<StepSummary> {
        self.run_evaluated(overrides, resume).0
    }

    /// Works like `run`, with what was evaluated meanwhile.
    pub fn run_evaluated(
        &self,
        overrides: &[&str],
        resume: Option<Resume>,
    ) -> (Vec<StepSummary>, Vec<EvaluationSummary>) {
        run(self.load(overrides), resume)
    }
}

/// Runs a config in this process. Returns the summaries of steps, and of evaluations meanwhile.
pub fn run(loaded: Loaded, resume: Option<Resume>) -> (Vec<StepSummary>, Vec<EvaluationSummary>) {
    let composition = Composition::new(loaded.config.clone()).unwrap().resume(resume);
    let (steps, evaluated) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let publication = publication(&loaded.config, loaded.composed, composition.folder()).unwrap();
    let recorder = Recorder { steps: steps.clone(), evaluated: evaluated.clone(), publication };
    composition.run(Box::new(recorder)).unwrap();
    let steps = std::mem::take(&mut *steps.lock().unwrap());
    (steps, std::mem::take(&mut *evaluated.lock().unwrap()))
}

/// Losses of steps, to the last bit.
pub fn loss_bits(steps: &[StepSummary]) -> Vec<u64> {
    steps.iter().map(|step| step.loss.to_bits()).collect()
}

/// Losses and norms of gradients of steps, to the last bit.
pub fn bits(steps: &[StepSummary]) -> Vec<[u64; 2]> {
    steps.iter().map(|step| [step.loss, step.grad_norm].map(f64::to_bits)).collect()
}

/// Opens the policy of a checkpoint, or of a run's folder, on the CPU, as it is judged.
pub fn opened_policy(checkpoint: &Path) -> Box<dyn Policy> {
    let wanted = Wanted {
        checkpoint: Some(checkpoint.display().to_string()),
        policy: Choice::Trained,
        embodiment: None,
        episodes: None,
        episode: None,
        action: None,
        execute: None,
        seed: Some(1),
        device: Some(config::Device::Cpu),
    };
    open(&wanted, Purpose::Judging).unwrap_or_else(|error| panic!("{error:#}"))
}

struct Recorder {
    steps: Arc<Mutex<Vec<StepSummary>>>,
    evaluated: Arc<Mutex<Vec<EvaluationSummary>>>,
    publication: Publication,
}

impl Observer for Recorder {
    fn step(&mut self, summary: &StepSummary) {
        assert!(summary.applied, "step {} was skipped", summary.step);
        self.steps.lock().unwrap().push(summary.clone());
    }

    fn evaluated(&mut self, summary: &EvaluationSummary) {
        self.evaluated.lock().unwrap().push(summary.clone());
    }

    fn bad(&mut self, samples: &[SkippedSample]) {
        panic!("bad samples: {samples:?}");
    }

    fn publisher(&mut self) -> Publisher {
        publisher(self.publication.clone(), None)
    }
}
