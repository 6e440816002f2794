//! The findings of a simulation: step times, where each pool's time goes, and what bounds the step.

use super::Activity;
use super::rank::{Rank, Times};
use super::step::Step;
use super::{Gantt, SimSpec};
use crate::message::{PoolName, Role, SampleMeta, StepId};
use crate::schedule::{PoolSize, StepSummary};
use serde::Serialize;

/// A simulated run, without its first steps.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// Seconds of every step, from one step's end to the next one's.
    pub steps: Vec<f64>,
    pub tokens: u64,
    pub samples: u64,
    pub packs: u64,
    pub units: u64,
    pub patches: u64,
    /// Data, encoder pools, foundation; those that have ranks.
    pub pools: Vec<PoolReport>,
    /// The times that a step would last if nothing but this took time; the longest first.
    pub bounds: Vec<Bound>,
    /// Seconds that parcels waited for credit in the mean step: pixels, tokens, features, gradients.
    pub credit_waits: [f64; 4],
    /// Share of a pipeline that `(p − 1) / (m + p − 1)` says is idle, for the mean number of packs; 0 without stages.
    pub ideal_bubble: f64,
    #[serde(skip)]
    pub gantt: Gantt,
}

/// One pool's time.
#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    pub role: Role,
    pub name: PoolName,
    pub ranks: usize,
    /// Share of the time in which its ranks compute, 0 to 1.
    pub busy: f64,
    /// Share of each activity that was met, the largest first.
    pub shares: Vec<(Activity, f64)>,
}

/// A bound that a step cannot be faster than.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    pub what: &'static str,
    /// The seconds of the mean step.
    pub seconds: f64,
}

impl SimReport {
    /// Returns the seconds of all steps together.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().sum()
    }

    /// Returns the mean duration of a step, in seconds.
    pub fn mean_step(&self) -> f64 {
        self.seconds() / self.steps.len() as f64
    }

    /// Returns the step time that this share of the steps does not exceed.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.steps.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * share).round() as usize]
    }

    /// Returns the rate over all steps.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds()
    }

    /// Returns the bound that limits the step most.
    pub fn bound(&self) -> &Bound {
        &self.bounds[0]
    }

    /// Returns the pool of this name, if it has ranks of its own.
    pub fn pool(&self, name: PoolName) -> Option<&PoolReport> {
        self.pools.iter().find(|pool| pool.name == name)
    }
}

impl PoolReport {
    /// Returns the share of one activity.
    pub fn share(&self, activity: Activity) -> f64 {
        self.shares.iter().find(|(what, _)| *what == activity).map_or(0.0, |&(_, share)| share)
    }
}

/// Takes notes while a simulation runs.
pub(super) struct Ledger {
    first_step: u64,
    last_step: u64,
    /// The figures at the end of the steps that are left out, and at the end of the last.
    begin: Snapshot,
    end: Snapshot,
    ends: Vec<f64>,
    work: Work,
}

#[derive(Default)]
struct Snapshot {
    time: f64,
    times: Vec<Times>,
    waited: [f64; 4],
}

/// Sums over steps.
#[derive(Default)]
struct Work {
    tokens: u64,
    samples: u64,
    packs: u64,
    units: u64,
    patches: f64,
    encoder: f64,
    foundation: f64,
    /// The seconds of each encoder; frozen ones wait for no step of each other.
    encoders: Vec<f64>,
    /// The seconds of each step's costliest encoder and replica; of frozen encoders the costliest one of all steps.
    longest_trained: f64,
    longest_encoder: f64,
    longest_replica: f64,
    data: f64,
}

impl Ledger {
    /// Counts the steps behind the warm-up.
    pub fn new(spec: &SimSpec) -> Self {
        let first = spec.coordinator.first_step.0;
        Self {
            first_step: first + spec.warm_up,
            last_step: spec.coordinator.steps - 1,
            begin: Snapshot::default(),
            end: Snapshot::default(),
            ends: Vec::new(),
            work: Work::default(),
        }
    }

    /// Returns whether it is told of a step what its ranks did until then.
    pub fn looks_at_ranks(&self, step: StepId) -> bool {
        step.0 + 1 == self.first_step || step.0 == self.last_step
    }

    /// A step was applied.
    pub fn step(
        &mut self,
        spec: &SimSpec,
        summary: &StepSummary,
        step: &Step,
        now: f64,
        ranks: &[Rank],
        waited: [f64; 4],
    ) {
        let snapshot =
            || Snapshot { time: now, times: ranks.iter().map(|rank| rank.times_until(now)).collect(), waited };
        let number = summary.step.0;
        if number + 1 == self.first_step {
            self.begin = snapshot();
        }
        if number >= self.first_step {
            self.ends.push(now);
            self.work.add(spec, summary, step);
        }
        if number == self.last_step {
            self.end = snapshot();
        }
    }

    /// Returns the report, with the times of `ranks` by pool.
    pub fn report(self, spec: &SimSpec, ranks: &[Rank], gantt: Gantt) -> SimReport {
        let num_steps = self.ends.len() as f64;
        let seconds = self.end.time - self.begin.time;
        let starts = std::iter::once(self.begin.time).chain(self.ends.iter().copied());
        let pool = |(role, PoolSize { name, .. }): (Role, PoolSize)| {
            let of_pool = (0..ranks.len()).filter(|&rank| ranks[rank].actor.pool == name);
            let mut sums = Times::default();
            let mut num_ranks = 0;
            for rank in of_pool {
                num_ranks += 1;
                for (what, sum) in sums.iter_mut().enumerate() {
                    let before = self.begin.times.get(rank).map_or(0.0, |times| times[what]);
                    *sum += self.end.times[rank][what] - before;
                }
            }
            let whole = (seconds * f64::from(num_ranks)).max(f64::MIN_POSITIVE);
            let mut shares: Vec<(Activity, f64)> =
                Activity::ALL.into_iter().zip(sums.map(|sum| sum / whole)).filter(|(_, share)| *share > 0.0).collect();
            shares.sort_by(|left, right| right.1.total_cmp(&left.1));
            let busy = shares.iter().filter(|(what, _)| what.is_busy()).fold(0.0, |busy, (_, share)| busy + share);
            (num_ranks > 0).then_some(PoolReport { role, name, ranks: num_ranks as usize, busy, shares })
        };
        let stages = f64::from(spec.cluster.stages.max(1));
        let packs = self.work.packs as f64 / num_steps / f64::from(spec.coordinator.pools.num_foundations().max(1));
        SimReport {
            steps: starts.zip(&self.ends).map(|(start, end)| end - start).collect(),
            tokens: self.work.tokens,
            samples: self.work.samples,
            packs: self.work.packs,
            units: self.work.units,
            patches: self.work.patches as u64,
            pools: spec.coordinator.pools.pools().filter_map(pool).collect(),
            bounds: self.work.bounds(spec, num_steps),
            credit_waits: std::array::from_fn(|kind| (self.end.waited[kind] - self.begin.waited[kind]) / num_steps),
            ideal_bubble: (stages - 1.0) / (packs + stages - 1.0),
            gantt,
        }
    }
}

impl Work {
    fn add(&mut self, spec: &SimSpec, summary: &StepSummary, step: &Step) {
        let costs = &spec.costs;
        self.tokens += summary.num_tokens as u64;
        self.samples += summary.num_samples as u64;
        self.packs += step.packs.len() as u64;
        self.units += step.units.len() as u64;
        let trained_of = |(pool, replicas): (PoolName, u32)| (0..replicas).map(move |_| spec.is_trained(pool));
        let trained: Vec<bool> = spec.encoders().flat_map(trained_of).collect();
        let mut encoders = vec![0.0; step.units_open.len()];
        let patches = step.patches;
        for unit in &step.units {
            let share = if trained[unit.encoder as usize] { 1.0 } else { unit.forward };
            encoders[unit.encoder as usize] += unit.seconds * share;
        }
        let mut replicas = vec![0.0; spec.coordinator.pools.num_foundations() as usize];
        for pack in &step.packs {
            replicas[pack.replica as usize] += pack.seconds;
        }
        self.patches += patches;
        self.encoder += encoders.iter().sum::<f64>();
        self.foundation += replicas.iter().sum::<f64>();
        self.encoders.resize(encoders.len(), 0.0);
        self.encoders.iter_mut().zip(&encoders).for_each(|(sum, seconds)| *sum += seconds);
        let of = |seconds: &[f64], is_trained: bool| {
            let these = seconds.iter().zip(&trained).filter(|(_, trained)| **trained == is_trained);
            these.map(|(&seconds, _)| seconds).fold(0.0, f64::max)
        };
        self.longest_trained += of(&encoders, true);
        self.longest_encoder = self.longest_trained.max(of(&self.encoders, false));
        self.longest_replica += replicas.iter().copied().fold(0.0, f64::max);
        let data = &costs.data;
        let bytes = step.pixel_bytes + summary.num_tokens as f64 * SampleMeta::BYTES_PER_TOKEN as f64;
        self.data += data.per_sample * summary.num_samples as f64 + data.per_patch * patches + data.per_byte * bytes;
    }

    fn bounds(&self, spec: &SimSpec, num_steps: f64) -> Vec<Bound> {
        let (pools, cluster, costs) = (&spec.coordinator.pools, &spec.cluster, &spec.costs);
        let stages = f64::from(cluster.stages.max(1));
        let replicas = f64::from(pools.num_foundations().max(1));
        // Of the pool that holds the most.
        let (encoder_step, encoder_bytes) = spec
            .encoders()
            .filter(|&(pool, _)| spec.is_trained(pool))
            .map(|(pool, _)| spec.held(pool))
            .fold((0.0, 0.0), |most: (f64, f64), held| (most.0.max(held.0), most.1.max(held.1)));
        let foundation_step = costs.foundation.per_step / stages;
        let foundation_reduce =
            cluster.reduction(costs.foundation.gradient_bytes / stages, pools.num_foundations() as usize);
        let colocated = spec.coordinator.plan.colocated;
        let num_encoders = f64::from(spec.encoders().map(|(_, replicas)| replicas).sum::<u32>().max(1));
        // Pools reduce beside each other.
        let largest = spec.encoders().map(|(_, replicas)| replicas).max().unwrap_or(1);
        let encoder_reduce = cluster.reduction(encoder_bytes, largest as usize);
        let of = |seconds: f64| seconds / num_steps;
        let mut bounds = Vec::new();
        let mut add = |what, seconds| bounds.push(Bound { what, seconds });
        if colocated {
            let per_step = foundation_step + foundation_reduce + encoder_step + encoder_reduce;
            let work = self.foundation / stages + self.encoder;
            add("encoders and foundation on the same ranks", of(work) / replicas + per_step);
            add(
                "the slowest foundation replica",
                of(self.longest_replica) / stages + foundation_step + foundation_reduce,
            );
        } else {
            let encoders = of(self.encoder) / num_encoders;
            if !spec.coordinator.pools.encoders.is_empty() {
                add("encoders", encoders + encoder_step + encoder_reduce);
                add("the slowest encoder", of(self.longest_encoder) + encoder_step + encoder_reduce);
            }
            let per_step = foundation_step + foundation_reduce;
            add("foundation", of(self.foundation) / (replicas * stages) + per_step);
            add("the slowest foundation replica", of(self.longest_replica) / stages + per_step);
        }
        let data = of(self.data);
        add("data actors", data / f64::from(pools.data.max(1)));
        if let Some(cores) = cluster.cores {
            let each = spec.encoders().flat_map(|(pool, replicas)| {
                let once = if spec.is_trained(pool) { spec.held(pool).0 } else { 0.0 };
                let threads = spec.threads(pool);
                (0..replicas).map(move |_| (once, threads))
            });
            let of_each = self.encoders.iter().zip(each);
            let encoders: f64 = of_each.map(|(&seconds, (once, threads))| (of(seconds) + once) * threads).sum();
            let foundations = of(self.foundation) + costs.foundation.per_step * replicas;
            let compute = encoders + foundations * cluster.foundation_threads;
            add("cores", (compute + data) / cores);
        }
        // A sum that equals the maximum names the pool, not its costliest rank.
        bounds.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
        bounds
    }
}
