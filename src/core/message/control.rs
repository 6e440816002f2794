//! Control messages between the scheduler and the engines: commands to engines, events to the scheduler.

use super::ids::{ActorId, Epoch, SampleId, StepId, UnitId};
use super::plan::{SampleMeta, StepPlan};
use super::pool::Regroup;
use super::trace::Trace;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// A message from the scheduler to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// To data engines: read and measure your share of the positions `from..until`; answered by [`Event::Measured`].
    Read { from: SampleId, until: SampleId },
    /// To data engines: read and measure positions that an earlier process read but did not use, ascending; answered as `Read` is.
    ReadAgain { positions: Vec<SampleId> },
    /// A step to compute. Steps are planned in order, and may be planned ahead.
    Plan(Arc<StepPlan>),
    /// The members of an encoder pool have changed. Sent to all engines: data engines send pixels to encoders that lack them,
    /// foundations return gradients again where features arrive again, and encoders compute the units that are now theirs.
    Regroup(Arc<Regroup>),
    /// To the encoders of a pool: every member has answered [`Event::Finished`]; reduce the step's gradients. It is answered by
    /// [`Event::Reduced`] or [`Event::Broken`].
    Reduce { step: StepId, epoch: Epoch },
    /// To the process of an engine: from now on, send parcels for `to` to the socket at `path`.
    Connect { to: ActorId, credit: u64, path: PathBuf },
    /// Every pool has reduced its gradients: apply the optimizer; answered by [`Event::Applied`].
    Commit(Commit),
    /// Drop the gradients of this step and keep the parameters; answered by [`Event::Applied`] as well.
    Abort { step: StepId },
    /// Write your part of a checkpoint into `dir` after `step` was applied: the state at this time is written, however long that
    /// takes. Answered once by [`Event::Saved`] or [`Event::SaveFailed`], possibly steps later.
    Save { step: StepId, to: SaveTo, dir: PathBuf },
    /// Drop what is in flight and end; answered by [`Event::Stopped`].
    Stop,
}

/// The purpose of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SaveTo {
    /// A durable checkpoint in `checkpoint.dir`.
    Disk,
    /// A checkpoint in the machine's memory for a quick restart after a process dies; gone with the run.
    Memory,
}

/// The second half of a step's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    pub step: StepId,
    /// Factor for the gradients: 1, or `clip_grad / norm` over all pools.
    pub clip_scale: f64,
    pub learning_rate: f64,
}

/// A message from an engine to the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The engine is built: weights are loaded, edges are connected.
    Ready,
    /// Answers [`Command::Read`]: every position of the engine's share is in one of the two lists.
    Measured { samples: Vec<SampleMeta>, bad: Vec<SkippedSample> },
    /// The unit that an encoder works on next, sent before it begins; `None`: it waits. If the encoder dies, this unit counts as
    /// the cause.
    At { unit: Option<UnitId> },
    /// A trained encoder has finished its units of the step, as assigned in this epoch, and waits for [`Command::Reduce`].
    Finished { step: StepId, epoch: Epoch },
    /// The members of the epoch could not reduce the step. The engine keeps its sums and waits for another epoch.
    Broken { step: StepId, epoch: Epoch, error: String },
    /// An edge to or from an encoder is broken. The engine continues without it.
    Lost { peer: ActorId, reason: String },
    /// An encoder sent something other than its plan says; none of it was accepted. `lacks`: a unit of the encoder that another one
    /// must now compute.
    Refused { peer: ActorId, reason: String, lacks: Option<UnitId> },
    /// All work of a step is done and its gradients are reduced over the pool. A frozen encoder sends this as soon as it has sent
    /// its features for the step, even if earlier steps are still undecided.
    Reduced(StepReport),
    /// The step was applied or aborted; parameters are ready for the next.
    Applied { step: StepId },
    /// Answers [`Command::Save`]: the files are on disk. Engines other than the first of a pool list none.
    Saved { step: StepId, to: SaveTo, files: Vec<SavedFile> },
    /// Answers [`Command::Save`]: the part could not be written. The engine continues.
    SaveFailed { step: StepId, to: SaveTo, error: String },
    /// An actor without towers was asked for features of this sample that do not exist. If no other member of its pool could make
    /// them, the run ends.
    NoFeatures { sample: SampleId, error: String },
    /// The engine cannot continue; this is its last message. `lost` is the missing peer if that is the cause; then the cause of the run's
    /// end is that peer's. It is the engine itself if a rank of its pool is missing in a collective: which one, it does not know.
    Failed { error: String, lost: Option<ActorId> },
    /// The engine has ended normally; this is its last message.
    Stopped,
    /// Trace data for observers; it affects no decision and may be lost.
    Trace(Trace),
    /// The actor's process was asked to stop. It goes on until it is told to: an encoder that others can do without is removed,
    /// otherwise the run stops.
    Leaving,
}

/// A sample that is skipped, counted and listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedSample {
    pub id: SampleId,
    /// File and line of the sample.
    pub source: String,
    pub reason: String,
    /// The sample is longer than a pack, and otherwise valid.
    #[serde(default)]
    pub too_long: bool,
}

impl std::fmt::Display for SkippedSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.source, self.reason)
    }
}

/// The report of one engine about a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    pub step: StepId,
    /// Epoch of the encoder's pool; 0 from foundations.
    pub epoch: Epoch,
    /// Foundation: sum of the losses of this replica's tokens, over `StepPlan::num_targets`; encoders: 0.
    pub loss: f64,
    /// Sum of squares of the pool's reduced gradient, the same from every replica; 0 if frozen.
    pub grad_square_sum: f64,
    /// The routing of a foundation with experts.
    pub routing: Option<RoutingReport>,
    /// Statistics of answer pairs, from a foundation trained on preferences.
    pub pairs: Option<Box<PairReport>>,
    pub timings: Timings,
    /// Results of a foundation rank that takes part in an evaluation; all fields above are then 0.
    pub evaluation: Option<Box<EvaluationReport>>,
}

/// Results of one foundation rank in an evaluation; the results of ranks are added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationReport {
    /// Sum of the targets' losses; for tokens, cross-entropies in nats.
    pub loss_sum: f64,
    pub num_targets: u64,
    /// Number of targets that greedy decoding would predict; `None`: the model does not say.
    pub num_correct: Option<u64>,
    /// Continuations of prompts, as tokens.
    pub outputs: Vec<(SampleId, Vec<i64>)>,
    /// Pictures and clips generated from prompts, as names of files in the run's folder.
    pub made: Vec<(SampleId, String)>,
    /// Actions predicted by a policy, normalized, `[chunk_size, max_action_dim]`.
    pub acted: Vec<(SampleId, Vec<f32>)>,
}

impl EvaluationReport {
    /// Adds the results of another rank.
    pub fn add(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.num_targets += other.num_targets;
        self.num_correct = self.num_correct.zip(other.num_correct).map(|(one, other)| one + other);
        self.outputs.extend(other.outputs);
        self.made.extend(other.made);
        self.acted.extend(other.acted);
    }
}

/// Sums over answers that are pairs or have labels, for monitoring preference learning. Good answers are called chosen, bad ones
/// rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Number of pairs in the loss, or of single answers.
    pub pairs: f64,
    /// Number of pairs whose chosen answer has the higher reward; for single answers, those on the right side of the divergence.
    pub preferred: f64,
    /// Rewards: beta times the log-probability ratio to the reference model; without a reference, beta times the mean
    /// log-probability.
    pub chosen_reward: f64,
    pub rejected_reward: f64,
    /// Log-probabilities of the answers.
    pub chosen_logp: f64,
    pub rejected_logp: f64,
    /// The number of chosen and of rejected answers.
    pub chosen: f64,
    pub rejected: f64,
    /// The divergence of each single answer from the reference model that it was compared with.
    pub divergence: f64,
}

impl PairReport {
    /// The number of sums.
    pub const LEN: usize = 9;

    /// Creates a report from the sums in the order of the fields.
    pub fn new(sums: [f64; Self::LEN]) -> Self {
        let [pairs, preferred, chosen_reward, rejected_reward, chosen_logp, rejected_logp, ..] = sums;
        let [.., chosen, rejected, divergence] = sums;
        Self {
            pairs,
            preferred,
            chosen_reward,
            rejected_reward,
            chosen_logp,
            rejected_logp,
            chosen,
            rejected,
            divergence,
        }
    }

    /// Returns the sums in the order of the fields.
    pub fn sums(&self) -> [f64; Self::LEN] {
        [
            self.pairs,
            self.preferred,
            self.chosen_reward,
            self.rejected_reward,
            self.chosen_logp,
            self.rejected_logp,
            self.chosen,
            self.rejected,
            self.divergence,
        ]
    }

    /// Returns the sum of both reports.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (own, others) = (self.sums(), other.sums());
        Self::new(std::array::from_fn(|at| own[at] + others[at]))
    }
}

/// The losses and loads of the routers of a mixture of experts, and of the indexers of sparse attention, in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoutingReport {
    /// Load-balancing loss, unweighted: this replica's share of the mean over the step's targets. `None` if it is not computed.
    pub aux_loss: Option<f64>,
    /// Router z-loss, computed in the same way.
    pub z_loss: Option<f64>,
    /// Loss of the indexers of sparse attention (divergence per token, summed over layers), computed in the same way.
    pub indexer_loss: Option<f64>,
    /// Loads of each set of experts, in the order of the layers; over the whole pool, the same from every replica.
    pub loads: Vec<ExpertLoads>,
}

/// Number of tokens routed to each expert of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoads {
    /// `layer 3`, `layer 3 media`
    pub layer: String,
    pub tokens: Vec<u64>,
}

impl ExpertLoads {
    /// Returns the largest load divided by the mean: 1 if all are equal; 0 if there were no tokens.
    pub fn imbalance(&self) -> f64 {
        let (sum, max) = (self.tokens.iter().sum::<u64>(), self.tokens.iter().max().copied().unwrap_or(0));
        if sum == 0 { 0.0 } else { max as f64 * self.tokens.len() as f64 / sum as f64 }
    }
}

/// Bytes of an engine's tensors on its device by purpose, at their peak since the engine was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub parameters: u64,
    pub gradients: u64,
    /// Optimizer state, including float32 master weights.
    pub optimizer: u64,
    /// Activations kept for the backward, batches, and everything not listed elsewhere.
    pub activations: u64,
    /// Buffers of collectives: gathered parameters, gradient sums.
    pub buffers: u64,
    /// Optimizer state off the device (`train.optimizer.offload`), not part of the total.
    #[serde(default)]
    pub offloaded: u64,
}

impl MemoryReport {
    /// Returns the total on the device.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

/// The times that an engine spent in a step, in seconds, what its cache saved, and its peak memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Computing.
    pub busy: f64,
    /// Waiting for parcels or commands.
    pub idle: f64,
    /// The part of `busy` spent on forward and backward of units, on an actor that encodes.
    pub units: f64,
    /// The part of `busy` spent on forward and backward of packs, on an actor with a foundation.
    pub packs: f64,
    /// Number of media items whose features came from the cache.
    pub cached_items: u32,
    /// All zero from engines without tensors.
    pub memory: MemoryReport,
}

/// A file that an engine wrote into a checkpoint folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// Name inside the folder.
    pub name: String,
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256 of the contents.
    pub sha256: String,
    /// Names of the model's tensors in it; empty for files that are not model weights.
    pub tensors: Vec<String>,
}
