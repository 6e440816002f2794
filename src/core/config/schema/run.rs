//! The root of the tree, and what a run is called, where it writes and what it reports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Data, Edges, EncoderPool, Expect, Experts, FoundationPool, LogFormat, Memory, Mlflow, Model, Normalize, Otlp,
    Placement, Policy, Pools, ProfiledSteps, SampleReader, Sampling, Scheduler, Score, Security, Train, Wandb,
};
use crate::config::{Address, Device, Threads};
use crate::message::{PoolName, Tower};

/// Everything a run needs, checked. It travels between processes as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Name, output folder and guarantees of the run.
    pub run: Run,
    /// Device of the tensors: `auto` (`cuda` where libtorch has it and there is a GPU, else `cpu`), `cpu`, `cuda` (each
    /// actor takes the next GPU) or `cuda:N`.
    #[serde(default)]
    pub device: Device,
    /// The model: a Hugging Face directory or hub id, a `config.json` of its own, or composed of parts.
    pub model: Model,
    /// Number of actors of each kind.
    #[serde(default)]
    pub pools: Pools,
    /// Limits of the bytes in flight between pools.
    #[serde(default)]
    pub edges: Edges,
    /// Memory limits for activations between forward and backward, and for weights.
    #[serde(default)]
    pub memory: Memory,
    /// The scheduler actor.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// Samples, and how they are turned into model inputs.
    pub data: Data,
    /// Robot policies: what is read of the data, and how states and actions are normalized.
    #[serde(default)]
    pub policy: Policy,
    /// Optimization.
    pub train: Train,
    /// Folder and frequency of checkpoints.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Held-out samples after the run: their loss, and greedy answers; `null`: none.
    #[serde(default)]
    pub eval: Option<Eval>,
    /// Diffusion models: pictures or clips that are made while the run goes on; `null`: none.
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
    /// Seed of weights, shuffling and every other random choice.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Directory the run writes into.
    #[serde(default = "run_dir")]
    pub dir: PathBuf,
    /// The same bits for any number of encoders: gradient sums belong to lanes, not to replicas.
    #[serde(default)]
    pub deterministic: bool,
    /// Number of gradient lanes of the encoder pool under `run.deterministic`.
    #[serde(default = "lanes")]
    #[schemars(range(min = 1, max = 1024))]
    pub lanes: usize,
    /// Matrix products on CPUs: `libtorch`'s; our own for AVX-512 with bfloat16 or for AVX2, `tiled_bf16` for bfloat16, `tiled` for
    /// float32 as well; or `auto`: `tiled` where the scheduler's processor has AVX2 and no AVX-512, or is AMD's and has AVX-512 with
    /// bfloat16, else `libtorch`. They make the bits: checkpoints say which they were, and `auto` keeps to that on resume.
    #[serde(default)]
    pub products: Products,
    /// With `--processes`: how often the whole run is begun again at its last checkpoint after a process that it cannot go
    /// on without has died.
    #[serde(default = "max_restarts")]
    pub max_restarts: usize,
}

/// Chooses how matrix products are computed on CPUs.
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
    /// The word that a config has for it.
    pub fn name(self) -> &'static str {
        match self {
            Products::Auto => "auto",
            Products::Libtorch => "libtorch",
            Products::TiledBf16 => "tiled_bf16",
            Products::Tiled => "tiled",
        }
    }
}

/// Where and how often the run is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Directory of the checkpoints.
    pub dir: PathBuf,
    /// Save every N steps; 0: only at the end.
    pub every_steps: u64,
    /// Save after the last step as well, and where the run is stopped. False: the last checkpoint is one of `every_steps`; without
    /// `every_steps` the run writes none, as benchmarks want it, but where SIGUSR1 asks for one or numbers are not finite.
    pub at_end: bool,
    /// Number of newest checkpoints that are kept.
    #[schemars(range(min = 1))]
    pub keep_last: usize,
    /// Write while the next steps are computed, from a copy in memory of what is saved; else steps wait until it is
    /// written, and no copy is needed.
    #[serde(rename = "async")]
    pub in_background: bool,
    /// A checkpoint that cannot be written is tried again, and the run ends when this many in a row have failed.
    #[schemars(range(min = 1))]
    pub max_failures: usize,
    /// With `--processes`: keep a checkpoint in memory every N steps, from which the run restarts after a
    /// process has died; 0: never.
    pub snapshot_every: u64,
    /// With `lora`: write the model's weights with the adapters added, so that a checkpoint is a plain model; else the
    /// adapters alone, in PEFT's layout.
    pub merge_lora: bool,
    /// Also copy each checkpoint to this folder of an object store, `s3://BUCKET/FOLDER`, while training goes on; `--resume` finds it
    /// there, too.
    pub upload: Option<String>,
    /// Number of newest checkpoints that the store keeps; `null`: as `keep_last`.
    #[schemars(range(min = 1))]
    pub upload_keep_last: Option<usize>,
}

/// Held-out samples, after the run or during it: their loss, and greedy answers scored by exact match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    /// File or folder of held-out samples, in any format of `data.train`; of conversations the last answer is asked for, too. The
    /// set is called `held_out`.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// More files or folders, by the names of their sets: `{ math: math.jsonl }`. With `data.val_size` there is also the set
    /// `val`.
    #[serde(default)]
    pub sets: BTreeMap<String, PathBuf>,
    /// Evaluate every N steps, and after the last one, on the run's own actors; 0: only after the run, from its
    /// last checkpoint.
    #[serde(default)]
    pub every_steps: u64,
    /// During the run: use the first N samples of each set; `null`: all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_samples: Option<u64>,
    /// During the run: answer the first N questions of each set; `null`: 16.
    #[serde(default)]
    pub generate: Option<u64>,
    /// The set whose loss says which step is the best one; `null`: the first of `held_out`, `val`, and `sets` by name.
    #[serde(default)]
    pub best: Option<String>,
    /// During the run: save a checkpoint whenever that loss is the lowest so far. `checkpoint.dir` has a link `best` to
    /// it, and `checkpoint.keep_last` does not remove it.
    #[serde(default = "yes")]
    pub save_best: bool,
    /// End the run when that loss has not become lower in N evaluations; `null`: never.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub patience: Option<u64>,
    /// Longest answer generated, in tokens.
    #[serde(default = "max_new_tokens")]
    #[schemars(range(min = 1))]
    pub max_new_tokens: usize,
    /// Number of samples that are shown in the terminal.
    #[serde(default = "show")]
    pub show: usize,
    /// Number of samples on the PNG sheet.
    #[serde(default = "sheet")]
    pub sheet: usize,
    /// Samples generated together.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1))]
    pub batch_size: usize,
    /// Scores of answers beside exact match: `wer` and `cer` are the word and character error rates of all answers together,
    /// `words` says how many answers have the correct word at each place.
    #[serde(default)]
    pub scores: Vec<Score>,
    /// Normalization of answers before words and characters are compared: Whisper's basic rules (lower case, no punctuation,
    /// nothing in brackets), or nothing.
    #[serde(default)]
    pub normalize: Normalize,
    /// The part of the answers that is expected to be correct, by the name of the set: `{ math: { at_least: 0.9 } }`, or
    /// `at_most`, or `chance`, for a control, and with `word: 2` of the second word. The result says whether it is met.
    #[serde(default)]
    pub expect: BTreeMap<String, Expect>,
    /// Robot policies, during the run: compare actions with the recorded ones at N frames of each set, evenly spread; 0: none.
    /// `null`: 64, or none where weights are not whole (`zero: 3`, `frozen_precision`, `memory.weight_budget`) and of Pi0-FAST, which
    /// acts after the run alone.
    #[serde(default)]
    pub actions: Option<u64>,
    /// Diffusion models: the noise levels at which the held-out loss is measured; `null`: 0.1, 0.3, 0.5, 0.7 and 0.9.
    #[serde(default)]
    #[schemars(length(min = 1), inner(range(min = 0.0, max = 1.0)))]
    pub sigmas: Option<Vec<f64>>,
    /// Diffusion models: a model that reads the samples that are made; the words that it reads are compared with the prompt's
    /// answer. `null`: nobody reads them.
    #[serde(default)]
    pub reader: Option<SampleReader>,
    /// After the run: fit a linear classifier to the first N training samples, which knows the question and of media no more
    /// than each channel's mean and deviation. Its answers to the first set are scored as the set `pooled_statistics`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub pooled_statistics: Option<u64>,
}

/// Metrics and logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Steps between progress lines and between points of TensorBoard; `metrics.jsonl` has every step.
    #[schemars(range(min = 1))]
    pub every_steps: u64,
    /// Metrics as one JSON object a line.
    pub jsonl: bool,
    /// Metrics as TensorBoard event files.
    pub tensorboard: bool,
    /// Peak of one device in TFLOP/s at `train.precision`, for the model FLOPs utilization; `null`: known for some
    /// GPUs.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub peak_tflops: Option<f64>,
    /// Least severe log messages shown.
    pub level: Level,
    /// Form of the lines on standard error and in the run's log file: `text` (`log.txt`), or `json` (`log.jsonl`), one object a line.
    pub format: LogFormat,
    /// A run of Weights & Biases as its client leaves it offline; `null`: none.
    pub wandb: Option<Wandb>,
    /// A run in a file store of MLflow; `null`: none.
    pub mlflow: Option<Mlflow>,
}

/// The web page of a running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    /// Address at which the scheduler serves it: `127.0.0.1:PORT` (0: any that is free), a Unix socket's path, or
    /// `null`: nowhere.
    pub listen: Option<Address>,
    /// Steps whose metrics are kept in memory for it.
    #[schemars(range(min = 1, max = 1000000))]
    pub history: usize,
    /// Steps whose timeline is kept in memory for it.
    #[schemars(range(min = 1, max = 1000))]
    pub trace_steps: usize,
    /// Operators of a few steps, and kernels on GPUs, as a trace and a table in the run's folder; `null`: none.
    pub profile: Option<ProfiledSteps>,
    /// Print the page's address with its token also where standard error is no terminal, as in the log of a job. The log file never
    /// has the token.
    pub show_token: bool,
    /// A collector of OpenTelemetry that metrics and traces are sent to; `null`: nothing is sent anywhere.
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
    /// Number of gradient lanes of an encoder pool: fixed under `run.deterministic`, else one a replica.
    pub fn num_lanes(&self, pool: &EncoderPool) -> usize {
        if self.run.deterministic { self.run.lanes } else { pool.replicas }
    }

    /// Returns whether checkpoints hold adapters and no other weights.
    pub fn saves_adapters_only(&self) -> bool {
        !self.checkpoint.merge_lora && self.model.parts().iter().any(|(_, part)| part.lora.is_some())
    }

    /// The foundation pools, each with what it is called: one, or where two transformers are trained that of high noise and that
    /// of low noise. Only for a config whose model was settled (`Model::settle`).
    pub fn foundations(&self) -> Vec<(PoolName, FoundationPool)> {
        self.pools.foundations(self.model.experts == Some(Experts::Both))
    }

    /// The foundation pool of this name; `pools.foundation` where there is none.
    pub fn foundation_pool(&self, name: PoolName) -> FoundationPool {
        let own = self.foundations().into_iter().find(|(other, _)| *other == name);
        own.map_or(self.pools.foundation, |(_, pool)| pool)
    }

    /// Intra-operation threads of one actor of `pool`. `auto` is 1 under `run.deterministic`, as the order of sums
    /// must not depend on the machine, and else an even share of the cores.
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

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            dir: "${run.dir}/checkpoints".into(),
            every_steps: 0,
            at_end: true,
            keep_last: 3,
            in_background: true,
            max_failures: 5,
            snapshot_every: 0,
            merge_lora: false,
            upload: None,
            upload_keep_last: None,
        }
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
    4
}

impl Eval {
    /// Returns whether the length of answers is another one than the default.
    pub fn names_length(&self) -> bool {
        self.max_new_tokens != max_new_tokens()
    }
}

fn max_restarts() -> usize {
    3
}

fn max_new_tokens() -> usize {
    32
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
