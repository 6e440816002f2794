//! Control messages between the scheduler and the engines: commands down, events up.

use super::ids::{ActorId, Epoch, SampleId, StepId, UnitId};
use super::plan::{SampleMeta, StepPlan};
use super::pool::Regroup;
use super::trace::Trace;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// From the scheduler to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// To data engines: read and measure your share of the positions `from..until`; answered by [`Event::Measured`].
    Read { from: SampleId, until: SampleId },
    /// To data engines: as `Read`, of positions that an earlier process had read and not used; ascending. Answered in
    /// the same way.
    ReadAgain { positions: Vec<SampleId> },
    /// A step to compute. Steps are planned in order and may be planned ahead.
    Plan(Arc<StepPlan>),
    /// An encoder pool has other members. To all engines: data engines send pixels to who has none, foundations return
    /// gradients again where features come again, encoders do what is theirs now.
    Regroup(Arc<Regroup>),
    /// To the encoders of a pool: every member has answered [`Event::Finished`], reduce the step's gradients; answered by
    /// [`Event::Reduced`] or [`Event::Broken`].
    Reduce { step: StepId, epoch: Epoch },
    /// To the process of an engine: send parcels for `to` from now on to the socket at `path`.
    Connect { to: ActorId, credit: u64, path: PathBuf },
    /// Every pool has reduced its gradients: apply the optimizer; answered by [`Event::Applied`].
    Commit(Commit),
    /// Drop the gradients of this step and keep the parameters; answered by [`Event::Applied`] as well.
    Abort { step: StepId },
    /// Write your part of a checkpoint into `dir` after `step` was applied: what is there now is written, whenever that
    /// ends. Answered by [`Event::Saved`] or [`Event::SaveFailed`], once and maybe steps later.
    Save { step: StepId, to: SaveTo, dir: PathBuf },
    /// Drop what is in flight and end; answered by [`Event::Stopped`].
    Stop,
}

/// Says what a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SaveTo {
    /// To last: `checkpoint.dir`.
    Disk,
    /// To begin again quickly where a process dies: memory of the machine, gone with the run.
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

/// From an engine to the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The engine is built: weights are loaded, edges are connected.
    Ready,
    /// Answer to [`Command::Read`]: every position of the engine's share is in one of the two.
    Measured { samples: Vec<SampleMeta>, bad: Vec<SkippedSample> },
    /// The unit that an encoder works on from now on, told before it begins; `None`: it waits. Who dies has died of that.
    At { unit: Option<UnitId> },
    /// A trained encoder's units of the step are done, as the epoch shares them out; it waits for [`Command::Reduce`].
    Finished { step: StepId, epoch: Epoch },
    /// The members of the epoch could not reduce the step. The engine keeps its sums and waits for another epoch.
    Broken { step: StepId, epoch: Epoch, error: String },
    /// An edge to or from an encoder is broken. The engine goes on without it.
    Lost { peer: ActorId, reason: String },
    /// An encoder sent something other than it was told to send: nothing of it was taken. `lacks`: a unit of its own,
    /// which somebody else must compute now.
    Refused { peer: ActorId, reason: String, lacks: Option<UnitId> },
    /// All work of a step is done and its gradients are reduced over the pool. A frozen encoder says so as soon as it has
    /// sent what it makes for the step, also of steps before which others are still to be decided.
    Reduced(StepReport),
    /// The step was applied or aborted; parameters are ready for the next.
    Applied { step: StepId },
    /// Answer to [`Command::Save`]: on the disk. Engines other than the first of a pool list nothing.
    Saved { step: StepId, to: SaveTo, files: Vec<SavedFile> },
    /// Answer to [`Command::Save`]: the part could not be written. The engine goes on.
    SaveFailed { step: StepId, to: SaveTo, error: String },
    /// An actor without towers was to read features of this sample that nobody has made: no other actor could, and the run
    /// ends.
    NoFeatures { sample: SampleId, error: String },
    /// The engine cannot go on. Its last message. `lost` is the peer without which it cannot, if that is the cause:
    /// then the cause of the run's end is the peer's.
    Failed { error: String, lost: Option<ActorId> },
    /// The engine has ended in order. Its last message.
    Stopped,
    /// For whoever watches; decides nothing and may be lost.
    Trace(Trace),
}

/// A sample that is not used: it is skipped, counted and listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedSample {
    pub id: SampleId,
    /// File and line of the sample.
    pub source: String,
    pub reason: String,
    /// It is longer than a pack, and nothing else is wrong with it.
    #[serde(default)]
    pub too_long: bool,
}

impl std::fmt::Display for SkippedSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.source, self.reason)
    }
}

/// Holds what one engine did in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    pub step: StepId,
    /// The epoch of the encoder's pool; foundations leave it 0.
    pub epoch: Epoch,
    /// Foundation: sum of the losses of this replica's tokens, over `StepPlan::num_targets`; encoders: 0.
    pub loss: f64,
    /// Sum of squares of the pool's reduced gradient, the same from each replica; 0 where frozen.
    pub grad_square_sum: f64,
    /// The routing of a foundation with experts.
    pub routing: Option<RoutingReport>,
    /// The pairs of answers of a foundation that learns from such.
    pub pairs: Option<Box<PairReport>>,
    pub timings: Timings,
    /// The evaluation of a foundation's rank that has a part in the results of an evaluation; then all the above are 0.
    pub evaluation: Option<Box<EvaluationReport>>,
}

/// Holds what one foundation rank found in an evaluation; ranks add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationReport {
    /// Sum of the targets' losses; of tokens cross-entropies in nats.
    pub loss_sum: f64,
    pub num_targets: u64,
    /// Targets that greedy decoding would take; `None`: the model does not say.
    pub num_correct: Option<u64>,
    /// Continuations of prompts, as tokens.
    pub outputs: Vec<(SampleId, Vec<i64>)>,
    /// Pictures and clips that were made of prompts, as names of files in the run's folder.
    pub made: Vec<(SampleId, String)>,
    /// Actions that a policy predicts, normalized, `[chunk_size, max_action_dim]`.
    pub acted: Vec<(SampleId, Vec<f32>)>,
}

impl EvaluationReport {
    /// Adds what another rank found.
    pub fn add(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.num_targets += other.num_targets;
        self.num_correct = self.num_correct.zip(other.num_correct).map(|(one, other)| one + other);
        self.outputs.extend(other.outputs);
        self.made.extend(other.made);
        self.acted.extend(other.acted);
    }
}

/// Sums over answers that are pairs or have labels, by which training on preferences is watched. Good answers are called chosen,
/// and bad ones rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Pairs that count, or single answers.
    pub pairs: f64,
    /// Those of which the chosen answer has the higher reward; of single answers those on the right side of the divergence.
    pub preferred: f64,
    /// Rewards: beta times the log-probability over that of the reference model; without one, times the mean log-probability.
    pub chosen_reward: f64,
    pub rejected_reward: f64,
    /// Log-probabilities of the answers.
    pub chosen_logp: f64,
    pub rejected_logp: f64,
    /// The number of chosen and of rejected answers.
    pub chosen: f64,
    pub rejected: f64,
    /// Of single answers the divergence from the reference model that each was compared with.
    pub divergence: f64,
}

impl PairReport {
    /// The number of sums.
    pub const LEN: usize = 9;

    /// From the sums in the order of the fields.
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

    /// The sums in the order of the fields.
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

    /// The sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (own, others) = (self.sums(), other.sums());
        Self::new(std::array::from_fn(|at| own[at] + others[at]))
    }
}

/// Holds what the routers of a mixture of experts did in a step, and the indexers beside them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoutingReport {
    /// Load-balancing loss, unweighted: this replica's share of the mean over the step's targets. `None` where it is
    /// not computed.
    pub aux_loss: Option<f64>,
    /// Router z-loss, in the same way.
    pub z_loss: Option<f64>,
    /// Holds what the indexers of sparse attention have yet to learn (a divergence a token, summed over layers), in the
    /// same way.
    pub indexer_loss: Option<f64>,
    /// For each set of experts, in the order of the layers; over the whole pool, the same from each replica.
    pub loads: Vec<ExpertLoads>,
}

/// Describes how many tokens each expert of a layer got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoads {
    /// `layer 3`, `layer 3 media`
    pub layer: String,
    pub tokens: Vec<u64>,
}

impl ExpertLoads {
    /// The largest load over the mean: 1 where all are even; 0 where there were no tokens.
    pub fn imbalance(&self) -> f64 {
        let (sum, max) = (self.tokens.iter().sum::<u64>(), self.tokens.iter().max().copied().unwrap_or(0));
        if sum == 0 { 0.0 } else { max as f64 * self.tokens.len() as f64 / sum as f64 }
    }
}

/// Bytes of an engine's tensors on its device, by what they are for, when they were the most since the engine was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub parameters: u64,
    pub gradients: u64,
    /// The optimizer's state, float32 parameters among it.
    pub optimizer: u64,
    /// Holds what a forward leaves for its backward, batches, and everything that has no line of its own.
    pub activations: u64,
    /// Holds what collectives read and write: gathered parameters, sums of gradients.
    pub buffers: u64,
    /// The optimizer's state off the device (`train.optimizer.offload`), which is not in the total.
    #[serde(default)]
    pub offloaded: u64,
}

impl MemoryReport {
    /// All lines together, of the device.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

/// Describes where an engine's time went in a step, in seconds, what it was spared, and the memory that it has taken so
/// far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Computing.
    pub busy: f64,
    /// Waiting for parcels or commands.
    pub idle: f64,
    /// The part of `busy` for units forward and backward, on an actor that encodes.
    pub units: f64,
    /// The part of `busy` for packs forward and backward, on an actor that has a foundation.
    pub packs: f64,
    /// Media items whose features came from the cache.
    pub cached_items: u32,
    /// Nothing from engines without tensors.
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
