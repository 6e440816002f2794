//! The reasons why a step cannot be planned. Each is about the configuration or the samples: the operands name them.

use super::TooLarge;
use crate::message::{ActorId, SampleId, StepId};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "sample {sample} has {num_tokens} tokens, but a pack holds only {max_tokens}; raise `data.pack.max_tokens`"
    )]
    SampleTooLong { sample: SampleId, num_tokens: u32, max_tokens: usize },
    #[error(transparent)]
    SampleTooLarge(#[from] TooLarge),
    #[error("sample {sample} has route {route}, but no foundation pool computes samples of that route")]
    NoFoundation { sample: SampleId, route: u32 },
    #[error("no token of step {step} counts in the loss (samples {first} to {last}); does the data hold any answers?")]
    NoTargets { step: StepId, first: SampleId, last: SampleId },
    #[error(
        "{bytes} bytes must be in flight at once from {from} to {to} for sample(s) {}, but the edge's credit is {credit}; \
         raise `{key}` or lower `data.pack.max_tokens`",
        list(samples)
    )]
    CreditTooSmall { key: &'static str, from: ActorId, to: ActorId, samples: Vec<SampleId>, bytes: u64, credit: u64 },
}

fn list(samples: &[SampleId]) -> String {
    samples.iter().map(SampleId::to_string).collect::<Vec<_>>().join(", ")
}
