//! A run that is looked at: its config, its model's sizes, and what its coordinator would be told.

use super::PlanArgs;
use crate::cli::{UsageError, check, environment, exit, tell_ignored};
use crate::estimate::flops::ParamCounts;
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use crate::preflight::Asked;
use crate::run::compose::Composition;
use loongforge_core::config::{self, Precision, RunConfig};
use loongforge_core::message::{Tower, TowerPart};
use loongforge_core::schedule::CoordinatorSpec;
use std::process::ExitCode;

/// Runs `loongforge plan`: prints packs and memory of a run, or with `--simulate` the time of its steps.
pub fn plan(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let loaded = match config::load(&args.file, &args.overrides, environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    tell_ignored(&loaded);
    if !args.simulate {
        hub_data::fetch_data(&loaded.config).map_err(UsageError::of)?;
    }
    // Another machine may be meant; a simulation may do without the data.
    let composition = match args.simulate {
        true => Composition::new(loaded.config),
        false => Composition::unsettled(loaded.config).map_err(Into::into).and_then(|composition| {
            let (composition, lines) = composition.preflight(Asked { device: false, weights: false, alone: false })?;
            lines.iter().for_each(|line| println!("{line}"));
            Ok(composition)
        }),
    };
    let composition = composition.map_err(UsageError::of)?;
    let folder = composition.folder().clone();
    let (recipe, run) = composition.into_parts();
    let case = Case::new(recipe.config.clone(), folder, run.coordinator)?;
    if args.simulate {
        case.simulate(&args)?
    } else {
        case.show(&args)?
    }
    Ok(ExitCode::SUCCESS)
}

/// A run that is looked at.
pub(super) struct Case {
    pub config: RunConfig,
    pub folder: ModelFolder,
    pub coordinator: CoordinatorSpec,
    pub encoder: ParamCounts,
    pub foundation: ParamCounts,
}

impl Case {
    fn new(config: RunConfig, folder: ModelFolder, coordinator: CoordinatorSpec) -> anyhow::Result<Self> {
        let parts = check::parts(&config, &folder)?;
        let (mut foundation, encoder): (Vec<_>, Vec<_>) =
            parts.iter().partition(|(name, _)| name.starts_with("foundation"));
        // Two transformers are two pools, and one is as large as the other.
        foundation.truncate(1);
        let size = |parts: Vec<&(_, Vec<_>)>| ParamCounts::of(parts.into_iter().flat_map(|(_, specs)| specs));
        Ok(Self { encoder: size(encoder), foundation: size(foundation), config, folder, coordinator })
    }

    /// Returns the parameters of a tower and its projector.
    ///
    /// # Errors
    /// Fails if the config trains or freezes what the model does not have.
    pub fn tower(&self, tower: Tower) -> anyhow::Result<ParamCounts> {
        let name = |part| self.config.model.tower_part(tower, part).0.trim_start_matches("model.");
        let names = TowerPart::ALL.map(name);
        let parts = check::parts(&self.config, &self.folder)?;
        let of_tower = parts.iter().filter(|(name, _)| names.contains(name));
        Ok(ParamCounts::of(of_tower.flat_map(|(_, specs)| specs)))
    }

    /// Returns whether the run computes in bfloat16.
    pub fn is_bf16(&self) -> bool {
        self.config.train.precision == Precision::Bf16
    }
}
