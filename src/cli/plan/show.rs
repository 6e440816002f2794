//! The packs of a run's first steps, how even replicas and encoders are, and the memory that every actor takes.

use super::PlanArgs;
use super::case::Case;
use crate::calibrate::Stream;
use crate::cli::forecast::count;
use crate::estimate::{PoolSize, Trunk};
use loongforge_core::message::{StepId, StepPlan};
use loongforge_core::observe;
use loongforge_core::schedule::{Batches, plan_step};

/// Planned steps unless --steps says otherwise.
const PLANNED_STEPS: u64 = 2;
/// Packs that are listed.
const MAX_PACKS: usize = 8;

impl Case {
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
        print!("{}", self.memory(&plans));
        Ok(())
    }

    pub fn pools(&self) -> String {
        let (pools, plan) = (self.coordinator.pools, &self.coordinator.plan);
        let placement = match (plan.colocated, pools.encoder as usize) {
            (true, _) => format!("{} in the foundation's actors, ", count(plan.encoder_replicas as usize, "encoder")),
            (false, 0) => String::new(),
            (false, encoders) => format!("{}, ", count(encoders, "encoder actor")),
        };
        format!(
            "run `{}`: {}, {placement}{}; {} of {}, packs of at most {} tokens\n",
            self.config.run.name,
            count(pools.data as usize, "data actor"),
            count(pools.foundation as usize, "foundation actor"),
            count(self.coordinator.steps as usize, "step"),
            count(
                self.coordinator.global_batch_size,
                if self.coordinator.look_ahead.is_some() { "pack" } else { "sample" }
            ),
            plan.pack.max_tokens,
        )
    }

    /// How often a run of plain batches goes over its data.
    fn epochs(&self, num_samples: usize) -> String {
        let run = &self.coordinator;
        match run.look_ahead {
            Some(_) => format!("data: {}\n", count(num_samples, "sample")),
            None => {
                let epochs = run.steps as f64 * run.global_batch_size as f64 / num_samples.max(1) as f64;
                format!("data: {}, gone over {epochs:.2} times\n", count(num_samples, "sample"))
            }
        }
    }

    /// One step: its packs, how full and how even they are, and who encodes.
    fn step(&self, plan: &StepPlan) -> String {
        let room = plan.packs.len() * self.coordinator.plan.pack.max_tokens;
        let media = match plan.num_items() {
            0 => String::new(),
            items => format!(", {} of {}", count(plan.units.len(), "unit"), count(items, "media item")),
        };
        let mut text = format!(
            "step {}: {}, {:.1} % full ({} tokens, {} of them targets){}, read up to sample {}\n",
            plan.step,
            count(plan.packs.len(), "pack"),
            100.0 * plan.num_tokens() as f64 / room.max(1) as f64,
            plan.num_tokens(),
            plan.num_targets,
            media,
            plan.cursor,
        );
        let replicas = (0..self.coordinator.pools.foundation).map(|replica| {
            plan.packs_of(replica)
                .flat_map(|pack| &pack.samples)
                .map(|sample| self.coordinator.plan.cost.sample(sample))
                .sum()
        });
        text += &balance("foundation replicas", replicas.collect());
        let encoders = (0..self.coordinator.plan.encoder_replicas).map(|encoder| {
            plan.units.iter().filter(|unit| unit.encoder == encoder).map(|unit| unit.num_patches() as u64).sum()
        });
        text += &balance("encoders", encoders.collect());
        for pack in plan.packs.iter().take(MAX_PACKS) {
            let units = plan.units_of(pack.id).count();
            let patches: usize = plan.units_of(pack.id).map(|unit| unit.num_patches()).sum();
            let (samples, tokens) = (count(pack.samples.len(), "sample"), pack.num_tokens());
            text += &format!("  {} on foundation/{}: {samples}, {tokens} tokens", pack.id, pack.replica);
            if units > 0 {
                text += &format!(", {patches} patches in {}", count(units, "unit"));
            }
            text.push('\n');
        }
        if plan.packs.len() > MAX_PACKS {
            text += &format!("  and {} more\n", count(plan.packs.len() - MAX_PACKS, "pack"));
        }
        text
    }

    fn memory(&self, plans: &[StepPlan]) -> String {
        let bf16 = self.is_bf16();
        let vision = Trunk::encoder(&self.folder.json);
        let decoder = &self.folder.config.decoder;
        let language = Trunk {
            layers: decoder.num_layers() as f64,
            hidden_size: decoder.hidden_size as f64,
            full_layers: decoder.num_layers() as f64,
        };
        // A trained encoder keeps what it has encoded until its gradients are back; a frozen one keeps nothing.
        let patches = |plan: &StepPlan| {
            let of =
                |encoder| plan.units.iter().filter(move |unit| unit.encoder == encoder).map(|unit| unit.num_patches());
            let encoders = 0..self.coordinator.plan.encoder_replicas;
            match self.encoder.trained > 0 {
                true => encoders.map(|encoder| of(encoder).sum::<usize>()).max().unwrap_or(0),
                false => 0,
            }
        };
        let patches = plans.iter().map(patches).max().unwrap_or(0);
        let tokens = plans.iter().flat_map(|plan| &plan.packs).map(|pack| pack.num_tokens()).max().unwrap_or(0);
        let targets = plans.iter().flat_map(|plan| &plan.packs);
        let targets =
            targets.map(|pack| pack.samples.iter().map(|sample| u64::from(sample.num_targets)).sum::<u64>()).max();
        // Logits, and their gradient, of the rows that count.
        let logits = 8 * targets.unwrap_or(0) * decoder.vocab_size as u64;
        let mut rows = Vec::new();
        let encoder = (self.encoder, vision.activations(patches as f64, bf16), 0);
        let foundation = (self.foundation, language.activations(tokens as f64, bf16), logits);
        let row = |name: &str, parts: &[(PoolSize, u64, u64)]| {
            let mut sums = [0; 5];
            for (pool, activations, logits) in parts {
                let [weights, gradients, state] = pool.memory(bf16);
                sums.iter_mut()
                    .zip([weights, gradients, state, *activations, *logits])
                    .for_each(|(sum, part)| *sum += part);
            }
            let whole: u64 = sums.iter().sum();
            let cells: Vec<String> =
                sums.iter().chain([&whole]).map(|&bytes| format!("{:>12}", observe::bytes(bytes))).collect();
            format!("  {name:<22}{}\n", cells.concat())
        };
        match (self.coordinator.plan.colocated, self.coordinator.pools.encoder) {
            (true, _) => rows.push(row("encoder + foundation", &[encoder, foundation])),
            (false, 0) => rows.push(row("foundation", &[foundation])),
            (false, _) => rows.extend([row("encoder", &[encoder]), row("foundation", &[foundation])]),
        }
        format!(
            "memory of one actor, estimated without recomputation\n  {:<22}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n{}",
            "",
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "logits",
            "sum",
            rows.concat()
        )
    }
}

/// `  encoders: the dearest does 1.03 times the mean`.
fn balance(name: &str, loads: Vec<u64>) -> String {
    let (sum, most) = (loads.iter().sum::<u64>(), loads.iter().max().copied().unwrap_or(0));
    if loads.len() < 2 || sum == 0 {
        return String::new();
    }
    format!("  {name}: the dearest does {:.3} times the mean\n", most as f64 * loads.len() as f64 / sum as f64)
}
