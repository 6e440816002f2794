//! The packs of a run's first steps, how even replicas and encoders are, and the memory that every actor takes.

use super::PlanArgs;
use super::case::Case;
use crate::cli::UsageError;
use crate::cli::forecast::count;
use crate::estimate::calibrate::Stream;
use crate::estimate::memory::{self, ActorMemory};
use loongforge_core::config::Device;
use loongforge_core::message::{MemoryReport, PackId, PoolName, Replica, StepId, StepPlan, Tower};
use loongforge_core::observe;
use loongforge_core::schedule::{Batches, PoolSize, plan_step};
use std::collections::BTreeMap;

/// Planned steps unless --steps says otherwise.
const PLANNED_STEPS: u64 = 2;
/// Packs that are listed.
const MAX_PACKS: usize = 8;

impl Case {
    /// Prints pools, data, the first steps and the memory of each kind of actor.
    ///
    /// # Errors
    /// Fails if the data cannot be read, a sample fits no pack, or the dry run fails.
    pub fn show(&self, args: &PlanArgs) -> anyhow::Result<()> {
        let mut stream = Stream::open(&self.config, &self.folder)?;
        let mut batches = Batches::new(&self.coordinator);
        let mut plans = Vec::new();
        for step in 0..args.steps.unwrap_or(PLANNED_STEPS).min(self.coordinator.steps) {
            let formed = stream.form(&mut batches)?;
            plans.push(plan_step(&self.coordinator.plan, StepId(step), formed.batch, formed.cursor)?);
        }
        print!("{}{}", self.pools(), self.epochs(stream.num_samples()));
        plans.iter().for_each(|plan| print!("{}", self.step(plan)));
        print!("{}", self.memory(&plans)?);
        Ok(())
    }

    /// Returns a line on the run's actors and on how many samples make a step.
    pub fn pools(&self) -> String {
        let (pools, plan) = (&self.coordinator.pools, &self.coordinator.plan);
        let of_pool = |pool: &PoolSize| format!("{}, ", count(pool.actors as usize, &format!("{} actor", pool.name)));
        let placement = match plan.encoders.first().filter(|_| plan.colocated) {
            Some(pool) => format!("{} in the foundation's actors, ", count(pool.replicas as usize, "encoder")),
            None => pools.encoders.iter().map(of_pool).collect(),
        };
        format!(
            "run `{}`: {}, {placement}{}; {} of {}, packs of at most {} tokens\n",
            self.config.run.name,
            count(pools.data as usize, "data actor"),
            count(pools.num_foundations() as usize, "foundation actor"),
            count(self.coordinator.steps as usize, "step"),
            count(
                self.coordinator.global_batch_size,
                if self.coordinator.look_ahead.is_some() { "pack" } else { "sample" }
            ),
            plan.pack.max_tokens,
        )
    }

    /// Returns how often a run of plain batches goes over its data.
    fn epochs(&self, num_samples: usize) -> String {
        let run = &self.coordinator;
        match run.look_ahead {
            Some(_) => format!("data: {}\n", count(num_samples, "sample")),
            None => {
                let epochs = run.steps as f64 * run.global_batch_size as f64 / num_samples.max(1) as f64;
                format!("data: {}, {epochs:.2} epochs\n", count(num_samples, "sample"))
            }
        }
    }

    /// Returns one step: its packs, how full and how even they are, and who encodes.
    fn step(&self, plan: &StepPlan) -> String {
        let room = plan.packs.len() * self.coordinator.plan.pack.max_tokens;
        let media = match plan.num_items() {
            0 => String::new(),
            items => format!(", {} of {}", count(plan.units.len(), "unit"), count(items, "media item")),
        };
        let mut text = format!(
            "step {}: {}, {:.1} % full ({} tokens, {} of them targets){}, consumed {}\n",
            plan.step,
            count(plan.packs.len(), "pack"),
            100.0 * plan.num_tokens() as f64 / room.max(1) as f64,
            plan.num_tokens(),
            plan.num_targets,
            media,
            count(plan.cursor.0 as usize, "sample"),
        );
        for pool in &self.coordinator.plan.foundations {
            let replicas = (0..pool.replicas).map(|index| {
                let samples = plan.packs_of(Replica::new(pool.pool, index)).flat_map(|pack| &pack.samples);
                samples.map(|sample| pool.cost.sample(sample)).sum()
            });
            text += &balance(&format!("{} replicas", pool.pool), replicas.collect());
        }
        for pool in &self.coordinator.plan.encoders {
            let encoders = (0..pool.replicas).map(|index| {
                let own = plan.units.iter().filter(|unit| unit.encoder == Replica::new(pool.pool, index));
                own.map(|unit| self.coordinator.plan.unit_cost(unit)).sum()
            });
            let name =
                if pool.pool == PoolName::ENCODER { "encoders".to_owned() } else { format!("{} encoders", pool.pool) };
            text += &balance(&name, encoders.collect());
        }
        for pack in plan.packs.iter().take(MAX_PACKS) {
            let units = plan.units_of(pack.id).count();
            let (samples, tokens) = (count(pack.samples.len(), "sample"), pack.num_tokens());
            text += &format!("  {} on {}: {samples}, {tokens} tokens", pack.id, pack.replica);
            if units > 0 {
                text += &format!(", {} in {}", rows(plan, pack.id), count(units, "unit"));
            }
            text.push('\n');
        }
        if plan.packs.len() > MAX_PACKS {
            text += &format!("  and {} more\n", count(plan.packs.len() - MAX_PACKS, "pack"));
        }
        text
    }

    /// Returns a text about the memory of each kind of actor, by purpose.
    fn memory(&self, plans: &[StepPlan]) -> anyhow::Result<String> {
        let found = memory::of_plans(&self.config, &self.folder, plans).map_err(|error| UsageError::of_dyn(&*error))?;
        let cells = |cells: [String; 7]| cells.map(|cell| format!("{cell:>12}")).concat();
        let head = ["parameters", "gradients", "optimizer", "activations", "buffers", "sum", "resident"];
        let mut text = format!(
            "peak tensor memory in these steps, from a dry run{}: for each kind of actor, the one that needs the most\n  {:<22}{}\n",
            if self.config.device == Device::Cpu { "" } else { " as on a CPU" },
            "",
            cells(head.map(str::to_owned))
        );
        for ActorMemory { kind, memory, .. } in found {
            let MemoryReport { parameters, gradients, optimizer, activations, buffers, offloaded } = memory;
            let resident = memory.total() + memory::PROCESS_OVERHEAD;
            let row = [parameters, gradients, optimizer, activations, buffers, memory.total(), resident];
            text += &format!("  {kind:<22}{}\n", cells(row.map(observe::bytes)));
            if let Some(offload) = self.config.train.optimizer.offload.as_ref().filter(|_| offloaded > 0) {
                let place = match &offload.path {
                    Some(path) => format!("in files in {}", path.display()),
                    None => "in host memory".to_owned(),
                };
                text += &format!("  {:<22}and {} of optimizer state {place}\n", "", observe::bytes(offloaded));
            }
        }
        let overhead = observe::bytes(memory::PROCESS_OVERHEAD);
        text += &format!("resident: includes {overhead} per process, which the threads of one process share\n");
        Ok(text)
    }
}

/// Returns the sizes of the items of a pack by tower, such as `1024 patches, 36 tokens`.
fn rows(plan: &StepPlan, pack: PackId) -> String {
    let mut rows: BTreeMap<Tower, usize> = BTreeMap::new();
    let items = plan.units_of(pack).flat_map(|unit| &unit.items);
    items.for_each(|item| *rows.entry(item.meta.tower).or_default() += item.meta.num_rows());
    rows.into_iter().map(|(tower, num)| format!("{num} {}", tower.rows())).collect::<Vec<_>>().join(", ")
}

/// Returns a line such as `  encoders: the slowest has 1.03 times the mean`.
fn balance(name: &str, loads: Vec<u64>) -> String {
    let (sum, most) = (loads.iter().sum::<u64>(), loads.iter().max().copied().unwrap_or(0));
    if loads.len() < 2 || sum == 0 {
        return String::new();
    }
    format!("  {name}: the slowest has {:.3} × the mean load\n", most as f64 * loads.len() as f64 / sum as f64)
}
