//! Adapters to go on from: rank, factor and modules are those of the folder, and what the config says must agree.

use super::lora::{TrainedError, lora_config};
use crate::model::TreeNames;
use crate::params::{LinearModule, LoraConfig, ParamSpec, Role};
use crate::train::{AdapterFolder, Found};
use loongforge_core::config::{Lora, Source};

/// One part of a model, whose adapters are in a folder.
pub(super) struct AdaptedPart<'a, F> {
    pub key: &'static str,
    pub lora: &'a Lora,
    pub folder: &'a Source,
    /// Returns whether a parameter is the part's, by its name in the checkpoint.
    pub is_own: F,
}

/// Returns the adapters that the folder has beside the parameters of the part, and marks as trained the parameters that the folder holds
/// itself. A stage of a pipeline, where `is_whole` is false, may have none of them.
pub(super) fn existing(
    part: &AdaptedPart<'_, impl Fn(&str) -> bool>,
    all: &mut [ParamSpec],
    tree: &TreeNames,
    is_whole: bool,
) -> Result<Vec<(LinearModule, LoraConfig)>, TrainedError> {
    let &AdaptedPart { key, lora, folder, ref is_own } = part;
    let wrong = |source| TrainedError::Adapter { key, source: Box::new(source) };
    let opened = AdapterFolder::open(folder.as_path()).map_err(wrong)?;
    let own: Vec<ParamSpec> = all.iter().filter(|spec| is_own(part_name(spec))).cloned().collect();
    let contents = opened.contents(&own, tree).map_err(wrong)?;
    if contents.adapters.is_empty() && contents.whole.is_empty() {
        let has_maps = own.iter().any(|spec| {
            LinearModule::of(spec).is_some_and(|module| module.parameter().is_none() && lora.targets(&module.path))
        });
        let folder = folder.as_str().to_owned();
        return if is_whole && has_maps { Err(TrainedError::NoAdapter { key, folder }) } else { Ok(Vec::new()) };
    }
    agree(part, &opened.config.lora, &contents.adapters, &own)?;
    for spec in all.iter_mut().filter(|spec| contents.whole.iter().any(|whole| whole.name == spec.name)) {
        if spec.role == Role::Frozen {
            spec.role = Role::Trained;
        }
    }
    let dropout = lora.dropout.unwrap_or(opened.config.lora.dropout);
    let adapters = contents.adapters.into_iter();
    Ok(adapters.map(|found| (found.module, LoraConfig { dropout, ..found.lora })).collect())
}

/// Checks that the adapters are what the config says of them.
fn agree<F>(
    part: &AdaptedPart<'_, F>,
    there: &LoraConfig,
    found: &[Found],
    own: &[ParamSpec],
) -> Result<(), TrainedError> {
    let &AdaptedPart { key, lora, folder, .. } = part;
    let differ = |name: &'static str, typed: String, found: String| {
        let folder = folder.as_str().to_owned();
        Err(TrainedError::Contradiction { key, name, typed, found, folder })
    };
    for (name, typed, there) in
        [("use_rslora", lora.use_rslora, there.use_rslora), ("use_dora", lora.use_dora, there.use_dora)]
    {
        if let Some(typed) = typed.filter(|typed| *typed != there) {
            return differ(name, typed.to_string(), there.to_string());
        }
    }
    for Found { module, lora: there, .. } in found {
        let typed = LoraConfig { use_rslora: there.use_rslora, ..lora_config(lora, &module.path) };
        if (lora.r.is_some() || !lora.rank_pattern.is_empty()) && typed.r != there.r {
            return differ("r", typed.r.to_string(), format!("{} for {}", there.r, module.path));
        }
        let scale = LoraConfig { r: there.r, ..typed.clone() }.scale();
        let has_alpha = lora.alpha.is_some() || !lora.alpha_pattern.is_empty();
        if has_alpha && (scale - there.scale()).abs() > 1e-9 * scale.abs() {
            return differ("alpha", typed.alpha.to_string(), format!("{} for {}", there.alpha, module.path));
        }
    }
    let has = |module: &LinearModule| found.iter().any(|found| found.module.path == module.path);
    for module in own.iter().filter_map(LinearModule::of) {
        let (name, typed) = match module.parameter() {
            None => ("target_modules", lora.target_modules.is_some().then(|| lora.targets(&module.path))),
            Some(name) => {
                let typed = !lora.target_parameters.is_empty();
                ("target_parameters", typed.then(|| lora.targets_parameter(&name)))
            }
        };
        let excluded = !lora.exclude_modules.is_empty() && !lora.targets(&module.path) && module.parameter().is_none();
        let misplaced = |name: &'static str, typed: bool| {
            let [typed, found] = [typed, !typed].map(|is| if is { "an adapter" } else { "no adapter" });
            let (folder, module) = (folder.as_str().to_owned(), module.path.clone());
            Err(TrainedError::Misplaced { key, name, typed, found, folder, module })
        };
        match typed {
            Some(typed) if typed != has(&module) => return misplaced(name, typed),
            None if excluded && has(&module) => return misplaced("exclude_modules", false),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the modules that hold the parameters of one part, by the names of its files.
pub(super) fn named_modules(all: &[ParamSpec], is_own: &impl Fn(&str) -> bool) -> Vec<String> {
    let names = all.iter().map(part_name).filter(|name| is_own(name));
    let mut modules: Vec<String> = names.filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned())).collect();
    modules.dedup();
    modules
}

/// Returns the name by which the part of a parameter is found: the one in the checkpoint.
pub(super) fn part_name(spec: &ParamSpec) -> &str {
    spec.pieces.first().map_or(spec.name.as_str(), |piece| piece.name.as_str())
}
