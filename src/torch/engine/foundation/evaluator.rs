//! Evaluations whose packs are done one after the other: prompts are continued, samples made, actions predicted.

use super::acting::Actor;
use super::continuing::continue_together;
use super::evaluating::Done;
use super::making::SampleMaking;
use super::rank::Rank;
use super::step::Step;
use crate::comm::Started;
use crate::engine::stages::Filled;
use crate::model::Decoding;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{Activity, Purpose};
use std::time::Instant;

/// Does the packs of such an evaluation, with what the run has for it.
#[derive(Default)]
pub(super) struct Evaluator {
    /// The tokens that end a continuation.
    pub stop_token_ids: Vec<i64>,
    /// The settings by which samples are made of prompts, where some are.
    pub making: Option<SampleMaking>,
    /// Makes actions, where the model is a policy.
    pub actor: Option<Actor>,
}

impl Evaluator {
    /// Does the next pack of an evaluation, if what it needs is here.
    ///
    /// # Errors
    /// The model or the layout cannot do what is asked for, or a rank of the replica is gone.
    pub fn next(&self, rank: &Rank, step: &mut Step, ports: &mut Ports) -> Result<Progress, EngineError> {
        let Some(evaluation) = step.evaluation.as_ref().filter(|evaluation| evaluation.has_left()) else {
            return Ok(Progress::Idle);
        };
        let (id, number, purpose) = (step.id, evaluation.num_continued, evaluation.purpose);
        expect_whole(purpose, rank)?;
        // A rank without a pack takes part in what replicas that meet it continue.
        let has_pack = number < step.packs.len();
        let filled = if has_pack { step.assemble(number, rank)? } else { None };
        if has_pack && filled.is_none() {
            return Ok(Progress::Idle);
        }
        let start = Instant::now();
        rank.state.params().set_dropout(None);
        let done = self.done(purpose, rank, step, number, filled)?;
        step.sent.drain(..).try_for_each(Started::wait)?;
        if let Some(evaluation) = &mut step.evaluation {
            evaluation.add(done);
        }
        if let Some(work) = step.packs.get_mut(number) {
            work.forget();
        }
        ports.trace.span(Activity::Forward, Some((id, Some(number as u32))), start);
        Ok(Progress::Busy)
    }

    /// Returns the result of pack `number` of a step.
    fn done(
        &self,
        purpose: Purpose,
        rank: &Rank,
        step: &Step,
        number: usize,
        filled: Option<Filled>,
    ) -> Result<Done, EngineError> {
        match (purpose, filled) {
            (Purpose::Sample { .. }, filled) => {
                let making = self.making.as_ref().ok_or("this run makes no samples")?;
                Ok(Done::Made(making.make(step.id, filled, rank)?))
            }
            (Purpose::Act { .. }, Some(filled)) => {
                let none = "eval.actions: the model is not a robot policy that generates actions from noise";
                Ok(Done::Acted(self.actor.as_ref().ok_or(none)?.act(&filled)?))
            }
            (Purpose::Generate { max_new_tokens }, filled) => {
                let outputs = self.generate(rank, filled, max_new_tokens as usize)?;
                let samples = step.packs.get(number).into_iter().flat_map(|work| &work.pack.samples);
                // One rank tells of a replica.
                let is_leader = rank.stages.mesh.is_leader();
                let ids = samples.map(|sample| sample.id);
                Ok(Done::Continued(ids.zip(outputs).filter(|_| is_leader).collect()))
            }
            (purpose, _) => unreachable!("packs of {purpose:?} are not done one after the other"),
        }
    }

    /// Returns the tokens that follow each document of a pack.
    fn generate(
        &self,
        rank: &Rank,
        filled: Option<Filled>,
        max_new_tokens: usize,
    ) -> Result<Vec<Vec<i64>>, EngineError> {
        let stop_token_ids = self.stop_token_ids.clone();
        let decoding = Decoding { max_new_tokens, stop_token_ids, ..Decoding::default() };
        let outputs = match &filled {
            Some(Filled { batch, features }) if rank.continues_alone() => {
                rank.stages.any().generate(batch, features, &decoding)
            }
            _ => continue_together(rank, filled, &decoding)?,
        };
        Ok(outputs.ok_or("eval.generate: the model does not predict tokens")?)
    }
}

/// # Errors
/// The purpose needs a whole model, and this rank has none.
fn expect_whole(purpose: Purpose, rank: &Rank) -> Result<(), EngineError> {
    if rank.has_whole_foundation() {
        return Ok(());
    }
    match purpose {
        Purpose::Act { .. } => {
            Err("eval.actions: actions can only be made by a rank with the whole model; set it to 0".into())
        }
        Purpose::Sample { .. } | Purpose::Generate { .. } | Purpose::Train | Purpose::Score { .. } => Ok(()),
    }
}
