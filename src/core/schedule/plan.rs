//! Turns one global batch into a step plan.

use super::balance::{Capacity, longest_first, refine};
use super::pack::{deal, pack};
use super::units::cut_units;
use super::{Batch, ByTower, CostModel, FoundationPlanSpec, PackLimits, PlanError, PlanSpec, SampleSize};
use crate::message::{
    ActorId, FIRST_EVALUATION_INDEX, Pack, PackId, Purpose, Replica, SampleId, SampleMeta, StepId, StepPlan, Unit,
};
use std::collections::BTreeMap;

/// Relative excess of the costliest replica over the mean above which samples are assigned to replicas before they are packed.
const UNEVEN: u64 = 64;

/// Plans `step` over a global batch; `cursor` is the first position that was not taken.
///
/// A pure function: equal arguments give equal plans, and except for `Unit::encoder` the plan does not depend on the number of
/// encoders.
///
/// # Errors
/// Fails for a sample longer than a pack or of no foundation pool, a batch without targets, or an edge whose credit is smaller than
/// one pack.
pub fn plan_step(spec: &PlanSpec, step: StepId, mut batch: Batch, cursor: SampleId) -> Result<StepPlan, PlanError> {
    let max_tokens = spec.pack.max_tokens;
    if let Some(sample) = batch.samples().find(|sample| sample.num_tokens as usize > max_tokens) {
        return Err(PlanError::SampleTooLong { sample: sample.id, num_tokens: sample.num_tokens, max_tokens });
    }
    batch.samples().try_for_each(|sample| spec.pack.check(sample.id, SampleSize::of(sample)))?;
    let num_targets = batch.samples().map(|sample| u64::from(sample.num_targets)).sum();
    if num_targets == 0 {
        let ids = || batch.samples().map(|sample| sample.id);
        let (first, last) = (ids().min().unwrap_or(cursor), ids().max().unwrap_or(cursor));
        return Err(PlanError::NoTargets { step, first, last });
    }
    if let Some(sigma) = &spec.sigma {
        sigma.plan(step, batch.samples_mut().into_iter());
    }
    plan_batch(spec, step, Purpose::Train, batch, num_targets, cursor)
}

/// Plans held-out samples that fit in packs, forward only, on the parameters with which `step` begins. `round` distinguishes
/// consecutive evaluations.
///
/// # Errors
/// Fails for a sample of no foundation pool, or an edge whose credit is smaller than one pack.
pub fn plan_evaluation(
    spec: &PlanSpec,
    (step, round): (StepId, u32),
    purpose: Purpose,
    samples: Vec<SampleMeta>,
) -> Result<StepPlan, PlanError> {
    let num_targets = samples.iter().map(|sample| u64::from(sample.num_targets)).sum();
    let mut plan = plan_batch(spec, step, purpose, Batch::Samples(samples), num_targets, SampleId(0))?;
    let first = FIRST_EVALUATION_INDEX * (1 + round % (u32::MAX / FIRST_EVALUATION_INDEX - 1));
    plan.packs.iter_mut().for_each(|pack| pack.id.index += first);
    for unit in &mut plan.units {
        unit.id.index += first;
        unit.pack.index += first;
    }
    Ok(plan)
}

fn plan_batch(
    spec: &PlanSpec,
    step: StepId,
    purpose: Purpose,
    batch: Batch,
    num_targets: u64,
    cursor: SampleId,
) -> Result<StepPlan, PlanError> {
    if let Some(sample) = batch.samples().find(|sample| spec.foundation_of(sample).is_none()) {
        return Err(PlanError::NoFoundation { sample: sample.id, route: sample.route });
    }
    let packs = place(spec, step, batch);
    let units = cut_units(spec, step, &packs);
    check_credits(spec, &packs, &units)?;
    Ok(StepPlan {
        step,
        purpose,
        cursor,
        learning_rate: spec.learning_rate.at(step.0),
        num_targets,
        replica_ranks: spec.foundations.iter().map(|pool| (pool.pool, pool.replica_ranks)).collect(),
        packs,
        units,
    })
}

/// Assigns packs to replicas, in the order in which the replicas compute them.
fn place(spec: &PlanSpec, step: StepId, batch: Batch) -> Vec<Pack> {
    let pools = spec.foundations.iter().zip(by_pool(spec, batch));
    let mut queues: Vec<(Replica, Vec<Vec<SampleMeta>>)> = pools
        .flat_map(|(pool, batch)| {
            let queues = place_in_pool(pool, spec.pack, batch);
            queues.into_iter().zip(0..).map(|(queue, index)| (Replica::new(pool.pool, index), queue))
        })
        .collect();
    queues.iter_mut().for_each(|(_, queue)| hide_encoders(queue));

    let mut placed = Vec::with_capacity(queues.iter().map(|(_, queue)| queue.len()).sum());
    let longest = queues.iter().map(|(_, queue)| queue.len()).max().unwrap_or(0);
    let mut queues: Vec<_> = queues.into_iter().map(|(replica, queue)| (replica, queue.into_iter())).collect();
    for _ in 0..longest {
        for (replica, queue) in &mut queues {
            if let Some(samples) = queue.next() {
                let id = PackId { step, index: placed.len() as u32 };
                placed.push(Pack { id, replica: *replica, samples });
            }
        }
    }
    placed
}

/// Splits the batch by foundation pool, in order. A pack has samples of one pool.
fn by_pool(spec: &PlanSpec, batch: Batch) -> Vec<Batch> {
    let pool_of = |sample: &SampleMeta| spec.foundation_of(sample).expect("every route is a pool's");
    let num_pools = spec.foundations.len();
    match batch {
        Batch::Samples(samples) => divide(samples, num_pools, pool_of).map(Batch::Samples).collect(),
        Batch::Packs(packs) => {
            let pool_of = |pack: &Vec<SampleMeta>| pack.first().map_or(0, pool_of);
            divide(packs, num_pools, pool_of).map(Batch::Packs).collect()
        }
    }
}

fn divide<T>(all: Vec<T>, num_parts: usize, part_of: impl Fn(&T) -> usize) -> impl Iterator<Item = Vec<T>> {
    let mut parts: Vec<Vec<T>> = (0..num_parts).map(|_| Vec::new()).collect();
    all.into_iter().for_each(|one| parts[part_of(&one)].push(one));
    parts.into_iter()
}

/// Returns the packs of each replica of one pool.
fn place_in_pool(pool: &FoundationPlanSpec, limits: PackLimits, batch: Batch) -> Vec<Vec<Vec<SampleMeta>>> {
    let num_replicas = pool.replicas.max(1) as usize;
    match batch {
        Batch::Samples(samples) if samples.is_empty() => vec![Vec::new(); num_replicas],
        Batch::Samples(samples) => {
            let queues = place_samples(pool.cost, limits, &samples, num_replicas);
            let mut samples: Vec<Option<SampleMeta>> = samples.into_iter().map(Some).collect();
            let mut take = |item: usize| samples[item].take().expect("a sample is in one pack");
            let mut fill = |pack: Vec<usize>| pack.into_iter().map(&mut take).collect();
            queues.into_iter().map(|queue| queue.into_iter().map(&mut fill).collect()).collect()
        }
        Batch::Packs(packs) => share_out(packs, num_replicas, |sample| pool.cost.sample(sample)),
    }
}

/// Returns the packs of each replica, as samples by index.
fn place_samples(
    cost: CostModel,
    limits: PackLimits,
    samples: &[SampleMeta],
    num_replicas: usize,
) -> Vec<Vec<Vec<usize>>> {
    let costs: Vec<u64> = samples.iter().map(|sample| cost.sample(sample)).collect();
    let packs = pack(samples, limits, cost, num_replicas);
    let num_packs = packs.len();
    let queues = share_out(packs, num_replicas, |&sample| costs[sample]);
    let costliest = |queues: &[Vec<Vec<usize>>]| {
        let loads = queues.iter().map(|queue| queue.iter().flatten().map(|&sample| costs[sample]).sum::<u64>());
        loads.max().unwrap_or(0)
    };
    let mean = costs.iter().sum::<u64>() / num_replicas as u64;
    let is_uneven = costliest(&queues) > mean + mean / UNEVEN;
    if !is_uneven || num_packs == num_replicas || !num_packs.is_multiple_of(num_replicas) {
        return queues;
    }
    match deal(samples, limits, cost, num_replicas, num_packs / num_replicas) {
        Some(dealt) if costliest(&dealt) < costliest(&queues) => dealt,
        _ => queues,
    }
}

/// Assigns whole packs to replicas, equally many to each up to a difference of one.
fn share_out<T>(packs: Vec<Vec<T>>, num_replicas: usize, price: impl Fn(&T) -> u64) -> Vec<Vec<Vec<T>>> {
    let costs: Vec<u64> = packs.iter().map(|pack| pack.iter().map(&price).sum()).collect();
    let room = Capacity { weight: 0, count: packs.len().div_ceil(num_replicas) };
    let free = vec![0; packs.len()];
    let mut replica_of = longest_first(&costs, &free, num_replicas, room).expect("replicas have room for all packs");
    refine(&costs, &free, num_replicas, room, &mut replica_of);
    let mut queues: Vec<Vec<Vec<T>>> = (0..num_replicas).map(|_| Vec::new()).collect();
    packs.into_iter().zip(replica_of).for_each(|(pack, replica)| queues[replica].push(pack));
    queues
}

/// Orders packs so that text-only ones come first, while the encoders start, and last, while their backward finishes.
fn hide_encoders(queue: &mut Vec<Vec<SampleMeta>>) {
    let is_text = |pack: &Vec<SampleMeta>| pack.iter().all(|sample| sample.items.is_empty());
    let (mut first, media): (Vec<_>, Vec<_>) = std::mem::take(queue).into_iter().partition(is_text);
    let last = first.split_off(first.len().div_ceil(2));
    queue.extend(first.into_iter().chain(media).chain(last));
}

/// Checks that everything a replica needs for one pack fits on its edges at once; otherwise the step would never end.
pub(super) fn check_credits(spec: &PlanSpec, packs: &[Pack], units: &[Unit]) -> Result<(), PlanError> {
    let mut units = units.chunk_by(|left, right| left.pack == right.pack).peekable();
    for pack in packs {
        let units = units.next_if(|units| units[0].pack == pack.id).unwrap_or_default();
        // What one edge could carry needs no look at who sends what.
        let token_bytes = pack.samples.iter().map(|sample| u64::from(sample.column_bytes)).sum::<u64>();
        let shape = &spec.shape;
        let sum =
            |of: fn(&Unit) -> u64, bytes: ByTower| units.iter().map(|unit| of(unit) * bytes.of(unit.tower())).sum();
        let pixel_bytes: u64 = sum(|unit| unit.num_cells() as u64, shape.bytes_per_patch);
        let feature_bytes: u64 = sum(|unit| unit.num_features() as u64, shape.bytes_per_feature);
        let credits = spec.credits;
        if token_bytes <= credits.tokens && pixel_bytes <= credits.pixels && feature_bytes <= credits.features {
            continue;
        }
        let replica = spec.leader(pack.replica);
        let (mut tokens, mut pixels, mut features) = (Load::default(), Load::default(), Load::default());
        for sample in &pack.samples {
            let bytes = u64::from(sample.column_bytes);
            tokens.add((ActorId::data(sample.owner), replica), sample.id, bytes);
        }
        for unit in units.iter().filter(|unit| !unit.is_skipped()) {
            let encoder = spec.encoder(unit.encoder);
            for item in &unit.items {
                let bytes = item.meta.grid.num_cells() as u64 * shape.bytes_per_patch.of(item.meta.tower);
                pixels.add((ActorId::data(item.owner), encoder), item.id.sample, bytes);
                // A colocated encoder hands over inside its actor.
                if encoder != replica {
                    let bytes = u64::from(item.meta.num_features) * shape.bytes_per_feature.of(item.meta.tower);
                    features.add((encoder, replica), item.id.sample, bytes);
                }
            }
        }
        tokens.check("edges.tokens.credit", spec.credits.tokens)?;
        pixels.check("edges.pixels.credit", spec.credits.pixels)?;
        features.check("edges.features.credit", spec.credits.features)?;
    }
    Ok(())
}

/// Bytes of one pack by edge, and the samples that they belong to.
#[derive(Default)]
struct Load(BTreeMap<(ActorId, ActorId), (u64, Vec<SampleId>)>);

impl Load {
    fn add(&mut self, edge: (ActorId, ActorId), sample: SampleId, more: u64) {
        let (bytes, samples) = self.0.entry(edge).or_default();
        *bytes += more;
        if samples.last() != Some(&sample) {
            samples.push(sample);
        }
    }

    fn check(self, key: &'static str, credit: u64) -> Result<(), PlanError> {
        match self.0.into_iter().find(|(_, (bytes, _))| *bytes > credit) {
            Some(((from, to), (bytes, samples))) => {
                Err(PlanError::CreditTooSmall { key, from, to, samples, bytes, credit })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
