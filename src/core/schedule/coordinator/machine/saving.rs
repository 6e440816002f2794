//! The part of the machine that handles checkpoints ([`Saves`](super::Saves)).

use super::{Broken, Coordinator, InFlight, Output, SchedulerState};
use crate::message::{ActorId, Command, Event, SaveTo, StepId};
use crate::schedule::coordinator::encoder_pool::EncoderPool;
use crate::schedule::coordinator::save::Ended;
use crate::text::counted;

impl Coordinator {
    /// Handles an engine's report about its part of a checkpoint.
    pub(super) fn saved(&mut self, actor: ActorId, event: Event) -> Result<(), Broken> {
        let ended = match event {
            Event::Saved { step, to, files } => self.saves.saved((step, to), actor, files),
            Event::SaveFailed { step, to, error } => self.saves.failed((step, to), actor, &error),
            event => unreachable!("{event:?} is not of a checkpoint"),
        };
        let ended = ended.map_err(|error| (actor, error))?;
        self.save_ended(ended)
    }

    /// Publishes a checkpoint that all engines have written, or reports one that failed.
    ///
    /// # Errors
    /// Fails if `checkpoint.max_failures` checkpoints in a row have failed.
    pub(super) fn save_ended(&mut self, ended: Option<Ended>) -> Result<(), Broken> {
        match ended {
            None => Ok(()),
            Some(Ended::Written(draft)) => {
                self.out.push(Output::Publish(draft));
                Ok(())
            }
            Some(Ended::Failed(failed)) => {
                let cause = format!(
                    "the checkpoint of {}: {}; {} in a row could not be written, as many as `checkpoint.max_failures`",
                    counted(failed.step.0 + 1, "step"),
                    failed.error,
                    failed.num_failures
                );
                let is_lost = failed.num_failures == 0;
                self.out.push(Output::SaveFailed(failed));
                match is_lost || !self.saves.is_hopeless() {
                    true => Ok(()),
                    false => Err((ActorId::SCHEDULER, cause)),
                }
            }
        }
    }

    /// Returns the last step that the engines have applied, or are told to apply.
    pub(super) fn newest(&self) -> Option<StepId> {
        let decided = self.in_flight.get(&self.current).is_some_and(InFlight::ends_step);
        (self.current.0 + u64::from(decided)).checked_sub(1).map(StepId)
    }

    /// Returns whether the folder of checkpoints may lack what the engines have: not before the first step of a run that was resumed
    /// from a checkpoint there.
    pub(super) fn is_unkept(&self) -> bool {
        self.current > self.spec.first_step || !self.spec.is_kept
    }

    /// Begins to save the state after `step`: names the folder, and whose answers are awaited.
    pub(super) fn save(&mut self, step: StepId, to: SaveTo, state: SchedulerState) {
        let awaited = self.compute_actors();
        let writers = self.encoders.iter().filter_map(EncoderPool::writer).collect();
        let parent = match (to, &self.spec.snapshots) {
            (SaveTo::Memory, Some((dir, _))) => dir,
            _ => &self.spec.checkpoint_dir,
        };
        let dir = self.saves.begin((step, to), state, parent, awaited, writers);
        self.out.push(Output::Prepare(step, to, dir.clone()));
        self.send_to_compute(&Command::Save { step, to, dir });
    }
}
