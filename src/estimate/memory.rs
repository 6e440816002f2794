//! The memory that the actors of a run will take, from its configuration and model: counted by dry runs of their engines,
//! so that what is predicted is what the run's own allocation record will tell.

use crate::model::folder::ModelFolder;
use loongforge_core::config::{Placement, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, MemoryReport, Pack, Replica, Role, SampleId, SampleMeta, StepId, StepPlan};
use loongforge_core::observe;
use loongforge_core::schedule::{Batch, CoordinatorSpec, plan_step};
use loongforge_torch::engine::memory_of;
use std::sync::Arc;

/// Resident bytes of a process besides its tensors: the program, libtorch, tokenizer, data that is read ahead.
pub const PROCESS_OVERHEAD: u64 = 250 << 20;

/// Returns the most bytes of memory that this process had resident, where the system tells.
pub fn peak_resident() -> Option<u64> {
    system_bytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// Returns the bytes in the line `NAME:  123 kB` of a file of the kernel's, such as `/proc/meminfo`.
pub fn system_bytes(text: &str, name: &str) -> Option<u64> {
    let size = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Formats memory as `1.2 GB (parameters 0.3 GB, …)`.
pub fn show(memory: &MemoryReport) -> String {
    let MemoryReport { parameters, gradients, optimizer, activations, buffers, offloaded } = *memory;
    let parts = [
        ("parameters", parameters),
        ("gradients", gradients),
        ("optimizer", optimizer),
        ("activations", activations),
        ("buffers", buffers),
    ];
    let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", observe::bytes(bytes))).collect();
    let off = if offloaded > 0 {
        format!("; {} of optimizer state offloaded", observe::bytes(offloaded))
    } else {
        String::new()
    };
    format!("{} ({}){off}", observe::bytes(memory.total()), parts.join(", "))
}

/// The actor of a kind that takes the most, and what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct ActorMemory {
    /// `foundation`, `foundation, stage 2`, `foundation_low`, `encoder`.
    pub kind: String,
    pub actor: ActorId,
    pub memory: MemoryReport,
}

/// Bytes of tensors that the run's actors take in steps of `samples`, repeated as often as batches need; without samples,
/// of text that fills every pack.
///
/// # Errors
/// The samples do not fit into packs, or the model cannot be split as the configuration says.
pub fn forecast(
    config: &RunConfig,
    folder: &ModelFolder,
    samples: &[SampleMeta],
) -> Result<Vec<ActorMemory>, EngineError> {
    let spec = CoordinatorSpec::new(config, folder.shape(), None);
    let max_tokens = spec.plan.pack.max_tokens as u32;
    let full = SampleMeta::of_tokens(SampleId(0), max_tokens, max_tokens.saturating_sub(1));
    let samples = if samples.is_empty() { std::slice::from_ref(&full) } else { samples };
    let batch_size = spec.global_batch_size as u64;
    let mut samples = samples.iter().cycle();
    let plan_of = |step: u64| {
        let positions = step * batch_size..(step + 1) * batch_size;
        let numbered = positions.zip(&mut samples);
        let batch = numbered.map(|(at, sample)| SampleMeta { id: SampleId(at), ..sample.clone() }).collect();
        plan_step(&spec.plan, StepId(step), Batch::Samples(batch), SampleId((step + 1) * batch_size))
    };
    let plans: Vec<StepPlan> = (0..num_steps(config)).map(plan_of).collect::<Result<_, _>>()?;
    of_plans(config, folder, &plans)
}

/// Steps after which an actor takes the most. Where a budget is kept to, the first two micro-batches are computed again while
/// they are measured, and hold less than those after them.
fn num_steps(config: &RunConfig) -> u64 {
    let budget = &config.memory.activation_budget;
    if budget.encoder.is_some() || budget.foundation.is_some() { 3 } else { 1 }
}

/// Works like [`forecast`], for the steps of these plans.
///
/// # Errors
/// Fails as [`forecast`] does.
pub fn of_plans(config: &RunConfig, folder: &ModelFolder, plans: &[StepPlan]) -> Result<Vec<ActorMemory>, EngineError> {
    let model = &folder.config;
    let memory = |actor, plans: &[Arc<StepPlan>]| memory_of(config, model, actor, plans);
    let mut found = Vec::new();
    let colocated = config.pools.placement == Placement::Colocated;
    for (name, pool, _) in config.pools.encoders(model.towers.set()).into_iter().filter(|_| !colocated) {
        if pool.reads() {
            continue;
        }
        let patches = |plan: &StepPlan, index: u32| {
            let own = plan.units.iter().filter(|unit| unit.encoder == Replica::new(name, index));
            own.map(|unit| unit.num_cells()).sum::<usize>()
        };
        let most = |encoder: &u32| plans.iter().map(|plan| patches(plan, *encoder)).max();
        let encoder = (0..pool.replicas as u32).max_by_key(most).unwrap_or(0);
        let actor = Replica::new(name, encoder).leader(Role::Encoder, pool.tensor_parallel as u32);
        let plans = numbered(plans.iter().cloned());
        found.push(ActorMemory { kind: name.to_string(), actor, memory: memory(actor, &plans)? });
    }
    for (name, pool) in config.foundations() {
        let layout = pool.layout();
        let packs = plans.iter().flat_map(|plan| &plan.packs).filter(|pack| pack.replica.pool == name);
        let largest = packs.max_by_key(|pack| pack.num_tokens());
        let replica = largest.map_or(Replica::new(name, 0), |pack| pack.replica);
        // As many micro-batches as are alive at once on any stage, and some more.
        let count = 2 * layout.pp * pool.virtual_stages + 2;
        let plans = numbered(plans.iter().map(|plan| of_replica(plan, replica, count)));
        for stage in 0..layout.pp {
            let place =
                loongforge_core::config::RankCoords { dp: replica.index as usize, pp: stage, ..layout.place(0) };
            let actor = ActorId::foundation_of(name, layout.rank(place) as u32);
            let what = if colocated && !model.towers.is_empty() { "encoder + foundation" } else { name.as_str() };
            let kind = if layout.pp > 1 { format!("{what}, stage {}", stage + 1) } else { what.into() };
            found.push(ActorMemory { kind, actor, memory: memory(actor, &plans)? });
        }
    }
    Ok(found)
}

/// Numbers plans as the first steps of a run.
fn numbered(plans: impl Iterator<Item = StepPlan>) -> Vec<Arc<StepPlan>> {
    plans.map(Arc::new).collect()
}

/// Returns a step of one replica with its largest packs alone, `count` of them, in their order.
fn of_replica(plan: &StepPlan, replica: Replica, count: usize) -> StepPlan {
    let mut sizes: Vec<usize> = plan.packs_of(replica).map(Pack::num_tokens).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let least = sizes.get(count.saturating_sub(1)).copied().unwrap_or(0);
    let large = plan.packs_of(replica).filter(|pack| pack.num_tokens() >= least);
    let packs: Vec<Pack> = large.take(count).cloned().collect();
    let units = plan.units.iter().filter(|unit| packs.iter().any(|pack| pack.id == unit.pack)).cloned().collect();
    StepPlan { packs, units, ..plan.clone() }
}
