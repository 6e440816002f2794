//! The root of the config tree, and the run's name, outputs, checkpoints, evaluation and logs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Checkpoint, Data, Edges, EncoderPool, Expect, Experts, FoundationPool, LogFormat, Memory, Mlflow, Model, Normalize,
    Otlp, Placement, Policy, Pools, ProfiledSteps, SampleReader, Sampling, Scheduler, Score, Security, Train, Wandb,
};
use crate::config::{Address, Device, EpisodeRange, Threads};
use crate::message::{PoolName, Tower};

/// The complete, validated config of a run. It is sent between processes as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Name, output folder and guarantees of the run.
    pub run: Run,
    /// Device of the tensors: `auto` (`cuda` if libtorch supports it and there is a GPU, else `cpu`), `cpu`, `cuda` (each actor
    /// takes the next GPU) or `cuda:N`.
    #[serde(default)]
    pub device: Device,
    /// The model: a Hugging Face directory or hub id, a `config.json` given here, or a composition of parts.
    pub model: Model,
    /// Number of actors of each kind.
    #[serde(default)]
    pub pools: Pools,
    /// Limits on the bytes in flight between pools.
    #[serde(default)]
    pub edges: Edges,
    /// Memory limits for activations between forward and backward, and for weights.
    #[serde(default)]
    pub memory: Memory,
    /// The scheduler actor.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// Training data, and how samples become model inputs.
    pub data: Data,
    /// Robot policies: what is read from the data, and how states and actions are normalized.
    #[serde(default)]
    pub policy: Policy,
    /// Optimization.
    pub train: Train,
    /// Folder and frequency of checkpoints.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Evaluation on held-out samples: loss, and greedy answers; `null`: none.
    #[serde(default)]
    pub eval: Option<Eval>,
    /// Diffusion models: pictures or clips generated during the run; `null`: none.
    #[serde(default)]
    pub sample: Option<Sampling>,
    /// Metrics and logs.
    #[serde(default)]
    pub log: Log,
    /// Handling of untrusted data.
    #[serde(default)]
    pub security: Security,
    /// The web page of a running job.
    #[serde(default)]
    pub watch: Watch,
}

/// Name, output folder and guarantees of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the run.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Seed of weights, shuffling and all other random choices.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Output directory of the run.
    #[serde(default = "run_dir")]
    pub dir: PathBuf,
    /// Bitwise identical results for any number of encoders: gradients are summed per lane, not per replica.
    #[serde(default)]
    pub deterministic: bool,
    /// Number of gradient lanes of the encoder pool under `run.deterministic`.
    #[serde(default = "lanes")]
    #[schemars(range(min = 1, max = 1024))]
    pub lanes: usize,
    /// Matrix multiplication on CPUs: `libtorch`; loongforge's own kernels for AVX-512 with bfloat16 or for AVX2, `tiled_bf16` for
    /// bfloat16 only, `tiled` for float32 too; or `auto`: `tiled` if the scheduler's processor has AVX2 but no AVX-512, or is an
    /// AMD processor with AVX-512 and bfloat16, else `libtorch`. The choice changes the bits of results: checkpoints record it, and
    /// `auto` keeps it on resume.
    #[serde(default)]
    pub products: Products,
    /// With `--processes`: how many times the whole run is restarted from its last checkpoint after the death of a process that it
    /// cannot continue without.
    #[serde(default = "max_restarts")]
    pub max_restarts: usize,
}

/// The computation of matrix products on CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Products {
    #[default]
    Auto,
    Libtorch,
    TiledBf16,
    Tiled,
}

impl Products {
    /// Returns its name in a config.
    pub fn name(self) -> &'static str {
        match self {
            Products::Auto => "auto",
            Products::Libtorch => "libtorch",
            Products::TiledBf16 => "tiled_bf16",
            Products::Tiled => "tiled",
        }
    }
}

/// Evaluation on held-out samples, after the run or during it: loss, and greedy answers scored by exact match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    /// File or folder of held-out samples, in any format of `data.train`; for conversations the last answer is also generated. This
    /// set is named `held_out`.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// The episodes of `path` to use if it is a LeRobot data set, as in `data.train[].episodes`; `null`: all.
    #[serde(default)]
    #[schemars(length(min = 1, max = 65536), extend("x-one-or-more" = true))]
    pub episodes: Option<Vec<EpisodeRange>>,
    /// More files or folders, by the names of their sets: `{ math: math.jsonl }`. `data.val_size` adds the set `val`.
    #[serde(default)]
    pub sets: BTreeMap<String, PathBuf>,
    /// Field names that differ from those of the format in `path` and `sets`, as in `data.train[].columns`.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// Folder to which paths in the samples of `path` and `sets` are relative, as in `data.train[].media_dir`.
    #[serde(default)]
    pub media_dir: Option<String>,
    /// Evaluate every N steps and after the last one, on the run's own actors; 0 without `every_epochs`: only after the run, from its
    /// last checkpoint.
    #[serde(default)]
    pub every_steps: u64,
    /// Instead of `every_steps`, with `train.epochs`: evaluate every N epochs, such as 1 or 0.25, in steps rounded up.
    #[serde(default)]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub every_epochs: Option<f64>,
    /// During the run: use the first N samples of each set; `null`: all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_samples: Option<u64>,
    /// During the run: the same for single sets, by their names, in place of `max_samples`: `{ math: 200 }`.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// During the run: answer the first N questions of each set; `null`: 16.
    #[serde(default)]
    pub generate: Option<u64>,
    /// The set whose loss determines the best step; `null`: the first of `held_out`, `val`, and `sets` by name.
    #[serde(default)]
    pub best: Option<String>,
    /// During the run: save a checkpoint whenever that loss reaches a new minimum. `checkpoint.dir` has a link `best` to it, and
    /// `checkpoint.keep_last` does not remove it.
    #[serde(default = "yes")]
    pub save_best: bool,
    /// Early stopping: end the run when that loss has not improved in N evaluations; `null`: never.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub patience: Option<u64>,
    /// With `patience`: count a loss as improved only if it is lower by more than this than the last one that counted; 0: any
    /// lower loss counts. The best step is the one with the lowest loss in any case.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub min_delta: f64,
    /// Maximum length of a generated answer, in tokens.
    #[serde(default = "max_new_tokens")]
    #[schemars(range(min = 1))]
    pub max_new_tokens: usize,
    /// Number of samples to show in the terminal.
    #[serde(default = "show")]
    pub show: usize,
    /// Number of samples on the PNG sheet.
    #[serde(default = "sheet")]
    pub sheet: usize,
    /// Number of samples to generate together.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1))]
    pub batch_size: usize,
    /// Scores of answers in addition to exact match: `wer` and `cer` are the word and character error rates over all answers, `bleu`
    /// is BLEU-4 over all answers, `rouge` the mean ROUGE-1, ROUGE-2 and ROUGE-L, `words` counts the answers with the correct word at
    /// each position.
    #[serde(default)]
    pub scores: Vec<Score>,
    /// Normalization of answers before words and characters are compared (`wer`, `cer`, `words`): Whisper's basic rules (lower case,
    /// no punctuation, nothing in brackets; of Qwen3-ASR's answers the transcript), or none.
    #[serde(default)]
    pub normalize: Normalize,
    /// Expected fraction of correct answers, by the name of the set: `{ math: { at_least: 0.9 } }`, or `at_most`, or `chance` for a
    /// control; with `word: 2` it applies to the second word. The result says whether it is met.
    #[serde(default)]
    pub expect: BTreeMap<String, Expect>,
    /// Robot policies, during the run: compare predicted with recorded actions at N evenly spaced frames of each set; 0: none.
    /// `null`: 64, or none if weights are not whole (`zero: 3`, `frozen_precision`, `memory.weight_budget`) and for Pi0-FAST, which
    /// generates actions only after the run.
    #[serde(default)]
    pub actions: Option<u64>,
    /// Diffusion models: the noise levels at which the held-out loss is measured; `null`: 0.1, 0.3, 0.5, 0.7 and 0.9.
    #[serde(default)]
    #[schemars(length(min = 1), inner(range(min = 0.0, max = 1.0)))]
    pub sigmas: Option<Vec<f64>>,
    /// Diffusion models: a model that reads the generated samples; the words that it reads are compared with the prompt's answer.
    /// `null`: none.
    #[serde(default)]
    pub reader: Option<SampleReader>,
    /// After the run: as a baseline, fit a linear classifier to the first N training samples; it sees the question and, of images
    /// and other media, only each channel's mean and standard deviation. Its answers to the first set are scored as the set
    /// `pooled_statistics`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub pooled_statistics: Option<u64>,
}

/// Metrics and logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Steps between progress lines and between TensorBoard points; `metrics.jsonl` has every step.
    #[schemars(range(min = 1))]
    pub every_steps: u64,
    /// Write metrics to `metrics.jsonl`, one JSON object per line.
    pub jsonl: bool,
    /// Write metrics as TensorBoard event files.
    pub tensorboard: bool,
    /// Peak TFLOP/s of one device at `train.precision`, for the model FLOPs utilization (MFU); `null`: known for some GPUs.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub peak_tflops: Option<f64>,
    /// Lowest severity of log messages to show.
    pub level: Level,
    /// Format of the lines on standard error and in the run's log file: `text` (`log.txt`), or `json` (`log.jsonl`), one object per
    /// line.
    pub format: LogFormat,
    /// A Weights & Biases run as its client stores it offline; `null`: none.
    pub wandb: Option<Wandb>,
    /// A run in an MLflow file store; `null`: none.
    pub mlflow: Option<Mlflow>,
}

/// The web page of a running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    /// Address at which the scheduler serves the page: `127.0.0.1:PORT` (0: any free port), the path of a Unix socket, or `null`:
    /// not served.
    pub listen: Option<Address>,
    /// Number of steps whose metrics are kept in memory for the page.
    #[schemars(range(min = 1, max = 1000000))]
    pub history: usize,
    /// Number of steps whose timeline is kept in memory for the page.
    #[schemars(range(min = 1, max = 1000))]
    pub trace_steps: usize,
    /// Record the operators of a few steps, and kernels on GPUs, as a trace and a table in the run's folder; `null`: none.
    pub profile: Option<ProfiledSteps>,
    /// Print the page's address with its token even if standard error is not a terminal, as in a job's log. The log file never
    /// contains the token.
    pub show_token: bool,
    /// OpenTelemetry collector to send metrics and traces to; `null`: nothing is sent.
    pub otlp: Option<Otlp>,
}

/// Severity of log messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl RunConfig {
    /// Returns the number of gradient lanes of an encoder pool: fixed under `run.deterministic`, else one per replica.
    pub fn num_lanes(&self, pool: &EncoderPool) -> usize {
        if self.run.deterministic { self.run.lanes } else { pool.replicas }
    }

    /// Returns whether checkpoints contain adapters and no other weights.
    pub fn saves_adapters_only(&self) -> bool {
        !self.checkpoint.merge_lora && self.model.parts().iter().any(|(_, part)| part.lora.is_some())
    }

    /// Returns the foundation pools, each with its name: one, or if two transformers are trained that of high and that of low
    /// noise. Only for a config whose model is settled (`Model::settle`).
    pub fn foundations(&self) -> Vec<(PoolName, FoundationPool)> {
        let Pools { foundation, foundation_high, foundation_low, .. } = &self.pools;
        if self.model.experts != Some(Experts::Both) {
            return vec![(PoolName::FOUNDATION, *foundation)];
        }
        let own = [(PoolName::FOUNDATION_HIGH, foundation_high), (PoolName::FOUNDATION_LOW, foundation_low)];
        own.map(|(name, own)| (name, own.unwrap_or(*foundation))).into()
    }

    /// Returns the foundation pool of this name, or `pools.foundation` if there is none.
    pub fn foundation_pool(&self, name: PoolName) -> FoundationPool {
        let own = self.foundations().into_iter().find(|(other, _)| *other == name);
        own.map_or(self.pools.foundation, |(_, pool)| pool)
    }

    /// Returns the number of intra-op threads of an actor of `pool`. `auto` is 1 under `run.deterministic`, since the order of sums
    /// must not depend on the machine, and otherwise an equal share of the cores.
    pub fn threads_for(&self, pool: PoolName) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads_on(pool, cores)
    }

    fn threads_on(&self, pool: PoolName, cores: usize) -> usize {
        let foundations = self.foundations();
        let num_foundations: usize = foundations.iter().map(|(_, pool)| pool.layout().ranks()).sum();
        let encoders = self.pools.encoders(Tower::ALL.into_iter().collect());
        let num_encoders: usize = encoders.iter().map(|(_, pool, _)| pool.layout().ranks()).sum();
        let num_actors = match self.pools.placement {
            Placement::Separate => num_encoders + num_foundations,
            Placement::Colocated => num_foundations,
        };
        let threads = match self.pools.encoder_pool(pool) {
            Some(pool) => pool.threads,
            None if pool == PoolName::DATA => Threads::Count(1),
            None => self.foundation_pool(pool).threads,
        };
        match threads {
            Threads::Count(count) => count,
            Threads::Auto if self.run.deterministic => 1,
            Threads::Auto => (cores / num_actors.max(1)).max(1),
        }
    }
}

impl Eval {
    /// Returns whether evaluations take place during the run, and not only after it.
    pub fn is_during_run(&self) -> bool {
        self.every_steps > 0 || self.every_epochs.is_some()
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            every_steps: 1,
            jsonl: true,
            tensorboard: true,
            peak_tflops: None,
            level: Level::Info,
            format: LogFormat::Text,
            wandb: None,
            mlflow: None,
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        let listen = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        Self { listen: Some(listen), history: 20_000, trace_steps: 20, profile: None, show_token: false, otlp: None }
    }
}

fn seed() -> u64 {
    42
}

fn run_dir() -> PathBuf {
    "runs/${run.name}".into()
}

fn lanes() -> usize {
    Run::LANES
}

fn max_restarts() -> usize {
    3
}

fn max_new_tokens() -> usize {
    Eval::MAX_NEW_TOKENS
}

fn yes() -> bool {
    true
}

fn show() -> usize {
    6
}

fn sheet() -> usize {
    36
}

fn batch_size() -> usize {
    64
}
