//! Tests that each of two models is trained as in a run of its own.

use super::*;
use crate::message::PoolName;
use crate::message::{Pack, PackId, Purpose, SampleMeta, StepId};

const POOLS: [PoolName; 2] = [PoolName::FOUNDATION_HIGH, PoolName::FOUNDATION_LOW];

/// Returns a step whose samples go to the pools of these numbers, where every pool reduced a gradient of norm 3 and a loss of 0.5.
fn decided(of_samples: &[usize], clip_grad: f64) -> InFlight {
    let pack = |(index, pool): (u32, &usize)| Pack {
        id: PackId { step: StepId(0), index },
        replica: Replica::new(POOLS[*pool], 0),
        samples: vec![SampleMeta::of_tokens(SampleId(u64::from(index)), 4, 1)],
    };
    let plan = StepPlan {
        step: StepId(0),
        purpose: Purpose::Train,
        cursor: SampleId(9),
        learning_rate: 0.1,
        num_targets: of_samples.len() as u64,
        replica_ranks: std::collections::BTreeMap::new(),
        packs: (0..).zip(of_samples).map(pack).collect(),
        units: Vec::new(),
    };
    let encoder = crate::schedule::PoolSize { name: PoolName::ENCODER, actors: 1 };
    let foundations = POOLS.map(|name| PoolSize { name, actors: 1 }).to_vec();
    let pools = PoolSizes { data: 1, encoders: vec![encoder], foundations };
    let mut step = InFlight::new(Arc::new(plan), Vec::new(), StepBalance::default());
    let engines: Vec<ActorId> = pools.compute_actors().collect();
    for &actor in &engines {
        let has_samples = actor.role == Role::Encoder || of_samples.iter().any(|pool| POOLS[*pool] == actor.pool);
        let (loss, grad_square_sum) = if has_samples { (0.5, 9.0) } else { (0.0, 0.0) };
        let loss = if actor.role == Role::Encoder { 0.0 } else { loss };
        let report = StepReport { loss, grad_square_sum, ..StepReport::default() };
        step.reduced(actor, report).unwrap();
    }
    step.decide(&engines, &pools, clip_grad, false).unwrap();
    step
}

fn scale(step: &InFlight, actor: ActorId) -> Option<f64> {
    match step.command_for(actor) {
        Command::Commit(commit) => Some(commit.clip_scale),
        _ => None,
    }
}

#[test]
fn each_of_two_models_is_clipped_as_in_a_run_of_its_own() {
    let [high, low] = POOLS.map(|pool| ActorId::foundation_of(pool, 0));
    let step = decided(&[0, 1, 1, 1], 6.0);
    let [of_high, of_low] = [step.experts[0], step.experts[1]];
    assert_eq!((of_high.loss, of_high.grad_norm, of_high.num_samples), (2.0, 12.0, 1));
    assert_eq!((of_low.loss, of_low.grad_norm, of_low.num_samples), (0.5 * 4.0 / 3.0, 4.0, 3));
    // The norm of the mean over its own samples is 12, and is clipped to 6; 4 is not clipped, nor are the encoder's 3.
    assert!((scale(&step, high).unwrap() - 4.0 * 6.0 / 12.0).abs() < 1e-6);
    assert_eq!(scale(&step, low), Some(4.0 / 3.0));
    assert_eq!(scale(&step, ActorId::encoder(0)), Some(1.0));
    assert_eq!(step.decision.unwrap().grad_norm, 27.0_f64.sqrt(), "of the loss of all samples");
}

#[test]
fn a_model_without_samples_does_not_step() {
    let [high, low] = POOLS.map(|pool| ActorId::foundation_of(pool, 0));
    let step = decided(&[1, 1], 0.0);
    assert_eq!(step.command_for(high), Command::Abort { step: StepId(0) });
    assert_eq!((scale(&step, low), scale(&step, ActorId::encoder(0))), (Some(1.0), Some(1.0)));
}
