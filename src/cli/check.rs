//! `loongforge check`: every mistake in a config, or a summary of the run.

use super::decode_worker::decoder;
use super::open_files::expect_open_files_of;
use super::{UsageError, exit};
use crate::checkpoint::{LLAVA_CLASS, Llava};
use crate::eval::{held_out_sets, samples};
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use crate::model::sources::without_fetching;
use crate::preflight::{Asked, Preflight};
use crate::run::packs::{Packs, PacksError, WantedPacks};
use crate::run::policy::as_configured;
use clap::{Args, ValueEnum};
use loongforge_core::checkpoint::latest;
use loongforge_core::config::{self, ListedStage, Loaded, Report, RunConfig, StageStart};
use loongforge_core::data::{Epochs, settle_steps};
use loongforge_core::message::TowerPart;
use loongforge_core::schedule::PoolSizes;
use loongforge_core::text::{counted, grouped, plural};
use loongforge_torch::device::settle;
use loongforge_torch::engine::{trained, trained_foundation};
use loongforge_torch::params::{ParamSpec, Role};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge check my.yaml                                every mistake at once; exit code 2 if there is one
  loongforge check my.yaml --no-device                    on a machine without the GPUs of the run
  loongforge check my.yaml train.lr=1e-5 --show-origin    every value, and where it was set
  loongforge check my.yaml --format yaml > whole.yaml     everything in one file, defaults included";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Skip the checks of device and memory, for a run on other machines
    #[arg(long)]
    no_device: bool,
    /// Print every key with its value and its origin
    #[arg(long)]
    show_origin: bool,
    /// Print the composed config
    #[arg(long, value_name = "FORMAT", conflicts_with = "show_origin")]
    format: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

/// Runs `loongforge check` on a config, or on every stage of one; the exit code is 2 if there is a mistake.
pub fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let stages = match stages_of(&args.file, &args.overrides) {
        Ok(stages) => stages,
        Err(report) => return Ok(wrong(&report)),
    };
    if stages.is_empty() {
        return match config::load(&args.file, &args.overrides, super::environment()) {
            Ok(loaded) => {
                super::tell_ignored(&loaded);
                show(&args, Checked::of(loaded, !args.no_device)?)
            }
            Err(report) => Ok(wrong(&report)),
        };
    }
    let mut before = None;
    for stage in stages {
        if args.format.is_none() {
            println!("stage `{}`", stage.name);
        }
        let checked = stage.check(Against { before: before.as_ref(), is_anew: false, has_device: !args.no_device })?;
        if before.is_none() {
            super::tell_ignored(&checked.loaded);
        }
        before = Some(checked.config.clone());
        show(&args, checked)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wrong(report: &Report) -> ExitCode {
    eprintln!("{report}");
    ExitCode::from(exit::USAGE)
}

/// One stage of a file that has several, as none is chosen.
pub(super) struct Stage<'a> {
    pub name: String,
    /// True if the stage starts from the last checkpoint of the stage before it.
    follows: bool,
    /// The word that chooses it.
    pub word: String,
    file: &'a Path,
    overrides: &'a [String],
}

/// The settings that a stage is checked against.
pub(super) struct Against<'a> {
    /// The stage before it.
    pub before: Option<&'a RunConfig>,
    /// True if all stages begin anew: the checkpoints of the one before do not count.
    pub is_anew: bool,
    /// True if the run's devices are those of this machine.
    pub has_device: bool,
}

/// Returns the stages of a file of which none is chosen; none where it has none.
pub(super) fn stages_of<'a>(file: &'a Path, overrides: &'a [String]) -> Result<Vec<Stage<'a>>, Report> {
    let listed = config::stages(file, overrides)?.into_iter();
    let stage = |ListedStage { name, follows }| Stage { word: format!("stage={name}"), name, follows, file, overrides };
    Ok(listed.map(stage).collect())
}

impl Stage<'_> {
    /// Checks the stage. Where the one before it has no checkpoint yet, or all begin anew, that is with the model of the first one.
    ///
    /// # Errors
    /// Fails with a [`UsageError`]; mistakes in the file are printed.
    pub fn check(&self, Against { before, is_anew, has_device }: Against<'_>) -> anyhow::Result<Checked> {
        let has_begun = match before {
            Some(before) => {
                self.expect_model(before)?;
                !is_anew && latest(&before.checkpoint.dir)?.is_some()
            }
            None => true,
        };
        let start = if has_begun { StageStart::Checkpoint } else { StageStart::FirstModel };
        let checked = Checked::of(self.load(start)?, has_device);
        let mut checked = checked.map_err(|error| UsageError(format!("stage `{}`: {error:#}", self.name)))?;
        if !has_begun {
            checked
                .lines
                .push("checked with the model of the first stage, as the stage before has no checkpoint yet".into());
        }
        Ok(checked)
    }

    /// Expects that the stage before leaves the model that this one starts from.
    fn expect_model(&self, before: &RunConfig) -> Result<(), UsageError> {
        if !self.follows {
            return Ok(());
        }
        let why = if before.saves_adapters_only() {
            "saves only adapters, not a whole model: set `checkpoint.merge_lora: true` there"
        } else if !before.checkpoint.at_end {
            "writes no checkpoint at its end: drop `checkpoint.at_end: false` there"
        } else {
            return Ok(());
        };
        Err(UsageError(format!(
            "stage `{}` starts from the last checkpoint of the stage before it, `{}`, which {why}, or set `model.load` \
             in this stage",
            self.name, before.run.name
        )))
    }

    /// Reads the stage's config.
    ///
    /// # Errors
    /// Fails with a [`UsageError`]; mistakes in the file are printed.
    pub fn load(&self, start: StageStart) -> anyhow::Result<Loaded> {
        let words: Vec<String> = self.overrides.iter().chain([&self.word]).cloned().collect();
        config::load_stage(self.file, &words, super::environment(), start).map_err(|report| {
            eprintln!("{report}");
            UsageError(format!("the config of stage `{}` is wrong", self.name)).into()
        })
    }
}

/// A config that passed all checks before a run.
pub(super) struct Checked {
    loaded: Loaded,
    /// The config, with the number of steps that epochs come to.
    pub config: RunConfig,
    folder: ModelFolder,
    epochs: Option<Epochs>,
    lines: Vec<String>,
}

impl Checked {
    fn of(loaded: Loaded, has_device: bool) -> anyhow::Result<Self> {
        hub_data::fetch_data(&loaded.config).map_err(UsageError::of)?;
        let mut config = loaded.config.clone();
        if has_device {
            config.device = settle(config.device).0;
        }
        let mut folder = ModelFolder::open_settled(&mut config).map_err(UsageError::of)?;
        folder.config = as_configured(folder.config, &config);
        let mut lines: Vec<String> = without_fetching(&mut config.model)
            .into_iter()
            .map(|key| format!("warning: {key} is not fetched yet, so the weights were not compared with the model"))
            .collect();
        let asked = Asked { device: has_device, weights: lines.is_empty(), alone: has_device };
        let decoder = decoder(config.security.sandbox, |warning| eprintln!("warning: {warning}"));
        let preflight = Preflight { config: &config, folder: &folder, decoder };
        let passed = preflight.ask(asked).map_err(UsageError::of)?;
        lines.extend(passed.lines);
        lines.extend(preflight.cached(asked).map_err(UsageError::of)?);
        if has_device {
            // A run of one process an actor needs less.
            let pools = PoolSizes::new(&config, folder.config.towers.set());
            lines.extend(expect_open_files_of(&pools).err().map(|error| format!("warning: {error}")));
        }
        let num_samples = match config.packs_first() {
            true => {
                let packs = packs(&config, &folder).map_err(UsageError::of)?;
                let none =
                    "its packs are made before the first step: how many there are and what they save is not known yet";
                lines.extend(packs.as_ref().map_or_else(|| vec![none.to_owned()], |packs| packs.lines(&config)));
                packs.map(|packs| packs.stats.packs)
            }
            false => Some(passed.num_samples),
        };
        let settled = num_samples.map(|num_samples| settle_steps(&mut config, num_samples)).transpose();
        let epochs = settled.map_err(UsageError::of)?.flatten();
        Ok(Self { loaded, config, folder, epochs, lines })
    }
}

/// Returns the packs of a run that makes them first, if they are there.
fn packs(config: &RunConfig, folder: &ModelFolder) -> Result<Option<Packs>, PacksError> {
    let wanted = WantedPacks::new(config, folder)?;
    wanted.find()?.map(|_| wanted.expect()).transpose()
}

/// Prints what is asked for of a config that passed.
fn show(args: &CheckArgs, checked: Checked) -> anyhow::Result<ExitCode> {
    let Checked { loaded, config, folder, epochs, mut lines } = checked;
    match args.format {
        Some(Format::Yaml) => print!("{}", loaded.to_yaml()),
        Some(Format::Json) => println!("{}", loaded.to_json()),
        None if args.show_origin => print!("{}", loaded.show_origin()),
        None => {
            println!("{} is a valid config of run `{}`", args.file.display(), loaded.config.run.name);
            print!("{}", explain(&config, &folder)?);
            epochs.into_iter().for_each(|epochs| println!("{}", duration(epochs, config.packs_first())));
            held_out_sets::summary(&loaded.config, &folder).into_iter().for_each(|line| println!("{line}"));
            samples::summary(&loaded.config).into_iter().for_each(|line| println!("{line}"));
            config.unsaved().into_iter().for_each(|line| println!("{line}"));
            lines.iter().for_each(|line| println!("{line}"));
            lines.clear();
        }
    }
    // Beside a config that a program reads.
    lines.iter().for_each(|line| eprintln!("{line}"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the parameters of the model's parts with their roles.
pub(super) fn parts(config: &RunConfig, folder: &ModelFolder) -> anyhow::Result<Vec<(&'static str, Vec<ParamSpec>)>> {
    let (families, model) = (&folder.config, &config.model);
    let names = if families.low_noise.is_some() { ["foundation_high", "foundation_low"] } else { ["foundation", ""] };
    let mut parts = Vec::new();
    for (name, family) in names.into_iter().zip(families.foundations()) {
        let part_of = |_: &str| ("model.foundation", &model.foundation);
        parts.push((name, trained_foundation(family.specs(), families, part_of)?));
    }
    for it in families.towers.iter() {
        let part_of = |name: &str| model.tower_part(it.tower, it.part_of(name));
        let specs = trained(it.family.specs(), &families.tree, part_of)?;
        let (projector, tower) = specs.into_iter().partition(|spec| it.part_of(&spec.name) == TowerPart::Projector);
        let name = |part| model.tower_part(it.tower, part).0.trim_start_matches("model.");
        parts.extend([(name(TowerPart::Encoder), tower), (name(TowerPart::Projector), projector)]);
    }
    Ok(parts)
}

/// Returns a text about the model: its type, and the numbers of trained and frozen parameters of each part.
fn explain(config: &RunConfig, folder: &ModelFolder) -> anyhow::Result<String> {
    let parts = parts(config, folder)?;
    let mut text = format!("model: {}\n", folder.config.model_type);
    for (name, specs) in parts.iter().filter(|(_, specs)| !specs.is_empty()) {
        let count = |role: Role| {
            let of_role = specs.iter().filter(|spec| spec.role == role);
            grouped(of_role.map(|spec| spec.num_elements() as u64).sum())
        };
        text += &format!("  {name}: {} parameters trained, {} frozen\n", count(Role::Trained), count(Role::Frozen));
    }
    match Llava::of(&folder.json) {
        Some(Ok(_)) => {
            text += &format!("  `loongforge checkpoint export-hf` writes it as {LLAVA_CLASS} of transformers\n")
        }
        Some(Err(why)) => text += &format!("  no class of transformers has the layout of these parts: {why}\n"),
        None => {}
    }
    Ok(text)
}

/// Returns a one-line summary of a run before it begins.
pub(super) fn summary(config: &RunConfig, folder: &ModelFolder) -> anyhow::Result<String> {
    let parts = parts(config, folder)?;
    let count = |wanted: &dyn Fn(&ParamSpec) -> bool| {
        let specs = parts.iter().flat_map(|(_, specs)| specs).filter(|spec| wanted(spec));
        grouped(specs.map(|spec| spec.num_elements() as u64).sum())
    };
    let (train, name) = (&config.train, &folder.config.model_type);
    Ok(format!(
        "{name}: {} parameters, {} of them trained; {} of {} into {}",
        count(&|_| true),
        count(&|spec| spec.role == Role::Trained),
        counted(train.num_steps(), "step"),
        counted(train.global_batch_size as u64, config.batch_unit()),
        config.run.dir.display()
    ))
}

/// Returns a text such as `3 epochs of 16,000 samples: 375 steps`; the samples may be packs, and `train.steps` may leave fewer.
pub(super) fn duration(Epochs { epochs, num_samples, steps, most }: Epochs, of_packs: bool) -> String {
    let unit = if of_packs { "pack" } else { "sample" };
    let count = |count: u64, what: &str| format!("{} {}", grouped(count), plural(what, count));
    let of = if epochs == 1.0 { "epoch" } else { "epochs" };
    let left = most.map_or(String::new(), |most| format!(", of which train.steps leaves {}", grouped(most)));
    format!("{epochs} {of} of {}: {}{left}", count(num_samples, unit), count(steps, "step"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_told_in_steps() {
        let told = |epochs, num_samples, steps| duration(Epochs { epochs, num_samples, steps, most: None }, false);
        assert_eq!(told(3.0, 16_000, 375), "3 epochs of 16,000 samples: 375 steps");
        assert_eq!(told(1.0, 1, 1), "1 epoch of 1 sample: 1 step");
        assert_eq!(told(0.5, 16_000, 1000), "0.5 epochs of 16,000 samples: 1,000 steps");
        let limited = Epochs { epochs: 1.0, num_samples: 80, steps: 10, most: Some(4) };
        assert_eq!(duration(limited, true), "1 epoch of 80 packs: 10 steps, of which train.steps leaves 4");
    }
}
