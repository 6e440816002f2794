//! The run as a state machine: inputs in, outputs out, no I/O, no clocks, no threads.
//!
//! 1. Every actor of the run reports `Ready`.
//! 2. Data actors measure windows of positions, position `p` by actor `p mod num_data`. Good samples form global
//!    batches in position order, or go through a streaming packer in that order, whose packs form global batches; bad
//!    ones are skipped, counted and listed in that order. A resumed run first reads again what the packer had held.
//! 3. Each batch is planned and sent to all actors, up to `prefetch_steps` ahead of the current step.
//! 4. When every encoder and foundation engine has reduced a step, it is committed, or aborted if loss or gradient is not finite.
//!    When all have applied that, the next step is decided. If costs are fitted, the step's times change the costs that the next
//!    plan uses. Encoders of an elastic pool that are much slower than the others get less work.
//! 5. `Save` is sent right before `Commit` on the same queues and handled with it, so that every engine writes the same version, and
//!    none begins the next step before. Engines write while later steps run. When all have written, the checkpoint is published; the
//!    run does not end before that. A failed checkpoint is retried with a later step, when the caller says so.
//! 6. An encoder that dies, hangs, joins or is removed begins a new epoch of its pool: in every step in flight, the units of encoders
//!    that left go to the remaining ones, and nothing else in a plan changes. Finished work is kept: foundations keep the gradients
//!    that they have returned until the step is decided, and return them again.
//! 7. The encoders of a pool reduce when all of them have finished, so that one that dies earlier does not block the others in a
//!    collective. A failed reduction is retried in another epoch. Once a step is decided, the survivors apply it.
//! 8. Too many consecutive steps that are not finite end the run: steps planned ahead are computed and dropped, the last batch is
//!    read and computed again, and the last good state is saved. This distinguishes bad data from faulty machines ([`Verdict`]).
//! 9. An encoder reports which unit it begins. A unit on which two encoders died is not assigned any more: the step continues with
//!    zeros for its features and without its samples' targets, and so does any later life of the run.
//! 10. Before a step with a due evaluation, nothing is planned until everything in flight is applied. Then held-out samples are
//!     measured, planned ([`Purpose`](crate::message::Purpose)) and computed forward only, one plan at a time, each ended by
//!     `Abort`; the engines' results are added. Training then continues as if nothing had happened.
//! 11. After the last step and the last publication, or after the first failure, everyone is stopped and waited for.
//! 12. Messages of an encoder are checked against its plan, and refused if they are out of turn; after three violations it is
//!     excluded. No encoder can end the run.
//!
//! Invariants, also checked in release builds: at most one `Reduced` and one `Applied` per engine and step (otherwise that engine has
//! failed); events of an older epoch, and of actors that are not members, are dropped; steps are decided one by one without a gap; a
//! sample is planned once; a run that has ended has no outputs.
//!
//! The files: `machine.rs` takes an input and calls the rest, and `machine/stepping.rs` drives a step. A file such as `save.rs` holds the
//! state of one topic, and `machine/saving.rs` is what the machine does about it; likewise `probe.rs` and `machine/probing.rs`,
//! `evaluations.rs` and `machine/evaluating.rs`, `encoder_pool.rs` and `machine/membership.rs`.

mod batches;
mod by_actor;
mod costs;
mod crash_attribution;
mod draft;
mod drain;
mod encoder_pool;
mod evaluations;
mod intake;
mod io;
mod ledger;
mod machine;
#[cfg(test)]
mod order_tests;
mod probe;
mod save;
mod spec;
mod speeds;
mod state;
mod step;
mod trust;
#[cfg(test)]
mod trust_tests;

pub use batches::{Batches, Formed};
pub use costs::{Imbalance, StepBalance};
pub use crash_attribution::{MAX_CRASHES, PoisonItem};
pub use draft::CheckpointDraft;
pub use evaluations::{Best, Evaluated, EvaluationPass, EvaluationSet, EvaluationSpec, EvaluationSummary, SetResult};
pub use io::{Doubt, ExpertStep, Failure, Input, Outcome, Output, PoolChange, StepSummary};
pub use ledger::Ledger;
pub use machine::{Coordinator, Planner};
pub use probe::{NonFinite, Verdict};
pub use save::FailedSave;
pub use spec::{CoordinatorSpec, EncoderPoolSpec, PoolSize, PoolSizes};
pub use speeds::Straggler;
pub use state::{FittedCosts, SchedulerState};
