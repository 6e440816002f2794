//! The files that the pools of a run write into checkpoints for others to read.

use super::existing;
use super::export_files::Exports;
use super::pool_specs::{encoder_specs, num_files};
use super::share::cut;
use super::trained::{trained_foundation, trained_stage};
use crate::model::ModelConfig;
use crate::params::{ADAPTER_PARTS, ParamSpec, Role};
use crate::train::hf::FilesOf;
use crate::train::{
    AdapterBase, AdapterFile, AdapterFolder, AdapterSettings, Export, adapter_config, dora_without_place, is_within,
    modules_to_save,
};
use loongforge_core::config::{Experts, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, Tower, TowerSet};
use loongforge_core::schedule::Pipeline;
use std::collections::BTreeSet;

/// Returns the files that actor `me` writes into checkpoints for the pools of this run.
///
/// # Errors
/// Checkpoints of adapters cannot hold what this run trains, or `lora.adapter` is of another model.
pub(super) fn exports(config: &RunConfig, model: &ModelConfig, me: ActorId) -> Result<Exports, EngineError> {
    let foundation_part = |_: &str| ("model.foundation", &config.model.foundation);
    let pools = config.pools.encoders(model.towers.set());
    let own = pools.iter().position(|(name, ..)| *name == me.pool).unwrap_or(0);
    // A reference model stays where it came from.
    let of_pool = |set: TowerSet| match set.contains(Tower::Reference) {
        true => Ok(Vec::new()),
        false => encoder_specs(config, &model.towers.only(set), &model.tree),
    };
    let is_reference = pools.get(own).is_some_and(|(.., set)| set.contains(Tower::Reference));
    let encoders = pools.iter().map(|&(.., set)| of_pool(set)).collect::<Result<Vec<_>, EngineError>>()?;
    // The ranks of the pipelines of all foundation pools, and which of them this actor is.
    let (mut of_ranks, mut foundations, mut part) = (Vec::new(), Vec::new(), 0);
    for (name, pool) in config.foundations() {
        let (family, layout) = (model.foundation_of(name), pool.layout());
        let pipeline = Pipeline { ranks: layout.pp, virtual_stages: pool.virtual_stages };
        let stages = cut(family.as_ref(), pipeline, name)?;
        if me.pool == name {
            part = of_ranks.len() + layout.place(me.index as usize % layout.ranks()).pp;
        }
        for rank in 0..layout.pp {
            let specs = pipeline.stages_of(rank).flat_map(|stage| family.stage_specs(&stages[stage]));
            of_ranks.push(trained_stage(specs.filter(|spec| !spec.is_copy).collect(), &model.tree, foundation_part)?);
        }
        foundations.extend(trained_foundation(family.specs(), model, foundation_part)?);
    }
    let all: Vec<ParamSpec> = encoders.iter().flatten().chain(&foundations).cloned().collect();
    let names: BTreeSet<&str> = encoders.iter().flatten().map(existing::part_name).collect();
    let part_of = |name: &str| names.contains(name).then(|| model.towers.part_of(name)).flatten();
    expect_all_used(config, model, &all, |name| match part_of(name) {
        Some((tower, part)) => config.model.tower_part(tower, part).0,
        None => "model.foundation",
    })?;
    if !config.saves_adapters_only() {
        let own = own.min(encoders.len());
        if model.has_network_folders() {
            let count = |of: FilesOf, pools: &[Vec<ParamSpec>]| -> Vec<usize> {
                let in_network = |spec: &&ParamSpec| of.has(existing::part_name(spec));
                pools.iter().map(|specs| num_files(specs.iter().filter(in_network), config.train.precision)).collect()
            };
            let counts = FilesOf::networks().map(|of| (of, [count(of, &encoders), count(of, &of_ranks)]));
            return Ok(Exports::networks(counts.collect(), own, part));
        }
        let num_files = |specs: &[ParamSpec]| num_files(specs.iter(), config.train.precision);
        let of_ranks: Vec<usize> = of_ranks.iter().map(|specs| num_files(specs)).collect();
        let of_encoders: Vec<usize> = encoders.iter().map(|specs| num_files(specs)).collect();
        let exports = Exports::weights((&of_encoders, own), &of_ranks, part);
        return Ok(if is_reference { exports.without_encoder() } else { exports });
    }
    check(model, &all)?;
    // The encoder pools' parts of the adapters and those of the foundation's stages, where they have something.
    let has_some = |specs: &[ParamSpec]| specs.iter().any(|spec| spec.role == Role::Trained);
    let mut parts: Vec<bool> = encoders.iter().map(|specs| has_some(specs)).collect();
    parts.extend(of_ranks.iter().map(|specs| has_some(specs)));
    let count = parts.iter().filter(|has| **has).count();
    let number = |part: usize| parts[..part].iter().filter(|has| **has).count();
    let modules = modules_to_save(all.iter(), &model.tree);
    let json = adapter_config(&all, &model.tree, &settings(config, model)?);
    let text = serde_json::to_string_pretty(&json).expect("JSON of plain values");
    let file = |part: usize, writes_config: bool| {
        Export::Adapter(Some(AdapterFile {
            config: writes_config.then(|| text.clone()),
            tree: model.tree.clone(),
            modules_to_save: modules.clone(),
            name: AdapterFile::name(number(part), count),
        }))
    };
    // The foundation is always there to write the config.
    Ok(Exports::new(file(own, false), file(encoders.len() + part, part == 0)))
}

/// Returns what `adapter_config.json` says beside what the parameters tell.
fn settings(config: &RunConfig, model: &ModelConfig) -> Result<AdapterSettings, EngineError> {
    let writes_text = model.decoder().is_some() || model.foundation.as_encoder_decoder().is_some();
    let model = &config.model;
    let mut parts = model.parts();
    parts.rotate_right(1);
    let loras = || parts.iter().filter_map(|(_, part)| part.lora.as_ref());
    let mut settings = AdapterSettings { writes_text, ..AdapterSettings::default() };
    // The language model's counts where parts differ in it: the file has one.
    for lora in loras().collect::<Vec<_>>().into_iter().rev() {
        let there = lora.adapter.as_ref().map(|folder| AdapterFolder::open(folder.as_path())).transpose()?;
        let there = there.map(|folder| folder.config.lora);
        settings.dropout = lora.dropout.or(there.as_ref().map(|there| there.dropout)).unwrap_or(0.0);
        settings.use_rslora = lora.use_rslora.or(there.map(|there| there.use_rslora)).unwrap_or(false);
    }
    Ok(AdapterSettings { base: model.adapter_base().map(|base| AdapterBase::of(base.as_str())), ..settings })
}

/// Every tensor of the folders to go on from is of a part that names its folder.
fn expect_all_used(
    config: &RunConfig,
    model: &ModelConfig,
    all: &[ParamSpec],
    part_of: impl Fn(&str) -> &'static str,
) -> Result<(), EngineError> {
    let parts = config.model.parts();
    let named = parts.iter().filter_map(|(_, part)| part.lora.as_ref()?.adapter.as_ref());
    for source in named.collect::<BTreeSet<_>>() {
        let folder = AdapterFolder::open(source.as_path())?;
        let mut own = Vec::new();
        for (key, part) in parts {
            if part.lora.as_ref().and_then(|lora| lora.adapter.as_ref()) == Some(source) {
                own.extend(all.iter().filter(|param| part_of(existing::part_name(param)) == key).cloned());
            }
        }
        let help = match config.model.experts {
            Some(Experts::High | Experts::Low) => {
                "a run of one of two transformers takes the file of that one alone: set `lora.adapter` to it"
            }
            Some(Experts::Both) | None => "set `lora.adapter` for every part of the model that it has adapters of",
        };
        let unused = folder.expect_all([&folder.contents(&own, &model.tree)?]);
        unused.map_err(|error| format!("{error}; {help}"))?;
    }
    Ok(())
}

/// Refuses adapters that a folder of PEFT's cannot hold.
fn check(model: &ModelConfig, all: &[ParamSpec]) -> Result<(), EngineError> {
    let merge = "set checkpoint.merge_lora=true to save whole models";
    if let Some(path) = dora_without_place(all, &model.tree) {
        let why = "PEFT treats it as a layer of experts, which cannot have DoRA";
        return Err(format!("DoRA beside {path}: {why}; leave it out with lora.exclude_modules, or {merge}").into());
    }
    let saved = modules_to_save(all.iter(), &model.tree);
    let mut adapted = all.iter().filter_map(|spec| spec.name.strip_suffix(ADAPTER_PARTS[0]));
    if let Some(path) = adapted.find(|path| is_within(&format!("{}.weight", model.tree.name(path)), &saved)) {
        let why = "it is within a module that is saved whole";
        return Err(format!("the adapter of {path} cannot be saved separately: {why}; {merge}").into());
    }
    Ok(())
}
