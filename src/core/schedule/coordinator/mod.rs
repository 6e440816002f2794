//! The course of a run as a state machine: inputs in, outputs out, no I/O, no clocks, no threads.
//!
//! 1. Every actor of the run says `Ready`.
//! 2. Data actors measure windows of positions, position `p` by actor `p mod num_data`. Good samples form global
//!    batches in position order, or go through a streaming packer in that order, whose packs form global batches; bad
//!    ones are skipped, counted and listed in that order. A resumed run first reads again what the packer had held.
//! 3. Each batch is planned and sent to all actors, up to `prefetch_steps` ahead of the step being computed.
//! 4. When every encoder and foundation engine has reduced a step, it is committed, or aborted where loss or gradient
//!    is not finite. When all have applied that, the next step is decided.
//!    Where costs are fitted, the step's times change what the next plan goes by. Encoders of an elastic pool that are
//!    much slower than the others get less.
//! 5. `Save` comes right before `Commit` on the same queues and is obeyed with it, so every engine writes the same version, and none
//!    begins the next step before. Engines write while steps go on. When all have written, the checkpoint is published; the end of
//!    the run waits for that. One that fails is tried again with a later step, when the caller says that it is time.
//! 6. An encoder that dies, hangs, joins or is let go begins an epoch of its pool: in every step in flight, the units of the encoders
//!    that have left go to those that remain, and nothing else of a plan changes. What is done stays done: foundations keep the
//!    gradients that they have returned until the step is decided, and return them again.
//! 7. The encoders of a pool reduce when all of them have finished, so that one that dies before keeps no other waiting in a
//!    collective. A reduction that fails is tried again in another epoch. Once a step is decided, the survivors apply it.
//! 8. Too many steps in a row that are not finite end the run: what is planned ahead is computed and dropped, the last batch
//!    is read and computed once more, and the last good state is saved. That tells data from machines ([`Verdict`]).
//! 9. An encoder says which unit it begins. A unit that has killed two of them is given to nobody: the step goes on with
//!    zeros for its features and without its samples' targets, and so does any later life of the run.
//! 10. Before a step that an evaluation is due at, nothing is planned until all that is in flight is applied. Then held-out
//!     samples are measured, planned ([`Purpose`](crate::message::Purpose)) and computed forward only, a plan at a time,
//!     each ended by `Abort`; what engines report of them adds up. Training goes on as if nothing had been.
//! 11. After the last step and the last publication, or after the first failure, everyone is stopped and waited for.
//! 12. What an encoder says is compared with what it was told, and refused where it was not its turn; after three times
//!     it is excluded. No encoder can end the run.
//!
//! Invariants, checked in release builds too: at most one `Reduced` and one `Applied` per engine and step (else that
//! engine has failed); events of an older epoch, and of actors that are no members, are dropped; steps are decided one by one
//! without a gap; a sample is planned once; a run that has ended has no outputs.
//!
//! Where to read: `machine.rs` takes an input and calls the rest, and `machine/stepping.rs` is the course of a step. A file such as
//! `save.rs` holds what is known of a matter, and `machine/saving.rs` is what the machine does about it; so `probe.rs` and
//! `machine/probing.rs`, `evaluations.rs` and `machine/evaluating.rs`, `encoder_pool.rs` and `machine/membership.rs`.

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
