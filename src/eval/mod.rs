//! Evaluations of held-out samples: their loss, the answers that a model generates, while a run goes on and after it.

pub(crate) mod acted;
mod action_errors;
pub mod after_run;
pub(crate) mod aligned;
pub(crate) mod answers;
pub(crate) mod forward;
pub(crate) mod futures;
pub(crate) mod generator;
pub(crate) mod held_out_data;
pub(crate) mod held_out_sets;
pub(crate) mod laid_out;
pub(crate) mod loss;
pub(crate) mod made;
pub(crate) mod nearest;
pub(crate) mod painter;
pub(crate) mod pooled;
pub(crate) mod ranks;
pub(crate) mod readings;
pub(crate) mod report;
pub(crate) mod samples;
