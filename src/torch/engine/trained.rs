//! Describes which of a pool's parameters a run trains: what is frozen by part or by name, and adapters beside what is.

use super::existing::{AdaptedPart, existing, named_modules, part_name};
use super::lora::{TrainedError, lora_config};
use crate::model::{ModelConfig, TreeNames};
use crate::params::{ADAPTER_PARTS, LinearModule, LoraConfig, ParamSpec, Role, Rounding};
use loongforge_core::config::{FrozenPrecision, Lora, Part, glob};
use std::collections::BTreeMap;

/// Gives every parameter its role. `part_of` tells the part, with its key in the config, that a parameter belongs to; `tree`
/// what the modules are called in folders of adapters.
///
/// # Errors
/// A module of `lora.target_modules` that this pool does not have, nothing frozen for `frozen_precision` to hold, or `lora.adapter` is
/// not of these parameters.
pub fn trained<'a>(
    specs: Vec<ParamSpec>,
    tree: &TreeNames,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<Vec<ParamSpec>, TrainedError> {
    with_roles(specs, tree, part_of, true)
}

/// Works like [`trained`] for a whole foundation of `model`, which may have two transformers: what matches nothing in one of them may
/// match in the other.
///
/// # Errors
/// Fails as [`trained`] does where the foundation is the only one, else as [`trained_stage`] does.
pub fn trained_foundation<'a>(
    specs: Vec<ParamSpec>,
    model: &ModelConfig,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<Vec<ParamSpec>, TrainedError> {
    with_roles(specs, &model.tree, part_of, model.low_noise.is_none())
}

/// Works like [`trained`] for one of several stages of a pipeline: a pattern that matches nothing here may match in another stage. The
/// process that begins a run calls [`trained`] for the whole model.
///
/// # Errors
/// `lora.adapter` is not of these parameters, or a weight cannot be rounded.
pub fn trained_stage<'a>(
    specs: Vec<ParamSpec>,
    tree: &TreeNames,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<Vec<ParamSpec>, TrainedError> {
    with_roles(specs, tree, part_of, false)
}

fn with_roles<'a>(
    specs: Vec<ParamSpec>,
    tree: &TreeNames,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
    is_whole: bool,
) -> Result<Vec<ParamSpec>, TrainedError> {
    let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    let mut all: Vec<ParamSpec> = specs.into_iter().map(|spec| with_role(spec, &part_of)).collect();
    let mut parts: Vec<(&'static str, &Part)> = modules.iter().map(|module| part_of(&module.path)).collect();
    parts.sort_by_key(|(key, _)| *key);
    parts.dedup_by_key(|(key, _)| *key);
    for (key, part) in parts {
        let Some(lora) = &part.lora else { continue };
        let is_own = |name: &str| part_of(name).0 == key;
        let own: Vec<&LinearModule> = modules.iter().filter(|module| is_own(&module.path)).collect();
        let adapters = match &lora.adapter {
            Some(folder) => existing(&AdaptedPart { key, lora, folder, is_own: &is_own }, &mut all, tree, is_whole)?,
            None => {
                if is_whole {
                    expect_matches(key, lora, &own, &named_modules(&all, &is_own))?;
                }
                new_adapters(lora, &own)
            }
        };
        all.extend(adapters.into_iter().flat_map(|(module, lora)| lora.specs(&module)));
        if let Some(ratio) = lora.loraplus_lr_ratio {
            let own = all.iter_mut().filter(|spec| spec.role == Role::Trained && is_own(part_name(spec)));
            own.filter(|spec| is_faster(spec)).for_each(|spec| spec.rate = ratio);
        }
    }
    set_rates(&mut all, &part_of)?;
    hold(&mut all, &part_of, is_whole)?;
    Ok(all)
}

/// Gives trained parameters the learning rates that their parts' `lr_ratios` name.
fn set_rates<'a>(
    all: &mut [ParamSpec],
    part_of: &impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<(), TrainedError> {
    for spec in all.iter_mut().filter(|spec| spec.role == Role::Trained) {
        let (key, part) = part_of(part_name(spec));
        let ratios: Vec<_> = part.lr_ratios_of(part_name(spec)).collect();
        match ratios[..] {
            [] => {}
            [(_, ratio)] => spec.rate *= ratio,
            [(first, _), (second, _), ..] => {
                let [name, first, second] = [part_name(spec), first, second].map(str::to_owned);
                return Err(TrainedError::TwoRates { key, name, first, second });
            }
        }
    }
    Ok(())
}

/// Checks that patterns of a whole model's parts match something: `all` is what [`trained`] makes of its parameters. `parts` may be
/// parts that have none.
///
/// # Errors
/// A pattern that matches no parameter, or in lists of what is trained none that the model itself lets be trained.
pub fn check_patterns<'a>(
    all: &[ParamSpec],
    parts: impl IntoIterator<Item = (&'static str, &'a Part)>,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<(), TrainedError> {
    let parts = parts.into_iter().map(|(key, part)| (key, (part, Vec::new())));
    let mut parts: BTreeMap<&'static str, (&Part, Vec<&ParamSpec>)> = parts.collect();
    for spec in all {
        let (key, part) = part_of(part_name(spec));
        parts.entry(key).or_insert((part, Vec::new())).1.push(spec);
    }
    for (key, (part, own)) in parts {
        let lists = [("freeze_patterns", &part.freeze_patterns), ("train_patterns", &part.train_patterns)];
        for (list, pattern) in lists.into_iter().flat_map(|(list, all)| all.iter().map(move |pattern| (list, pattern)))
        {
            if !own.iter().any(|spec| glob(pattern, part_name(spec))) {
                return Err(TrainedError::NoMatch { key, list, pattern: pattern.clone() });
            }
        }
        let trained = |spec: &&&ParamSpec| spec.role == Role::Trained;
        let unmatched = |pattern: &&String| !own.iter().filter(trained).any(|spec| glob(pattern, part_name(spec)));
        if let Some(pattern) = part.lr_ratios.keys().find(unmatched) {
            return Err(TrainedError::NoRate { key, pattern: pattern.clone() });
        }
        if let Some(pattern) = part.train_patterns.iter().find(unmatched) {
            return Err(TrainedError::AllFrozen { key, list: "train_patterns", pattern: pattern.clone() });
        }
        let modules = own.iter().filter(trained).filter_map(|spec| Some(part_name(spec).rsplit_once('.')?.0));
        if let Some(pattern) = part.lora.as_ref().and_then(|lora| lora.saved_without_module(modules)) {
            return Err(TrainedError::AllFrozen { key, list: "lora.modules_to_save", pattern: pattern.to_owned() });
        }
    }
    Ok(())
}

/// Returns whether LoRA+ gives it the learning rate of `B`: PEFT's `create_loraplus_optimizer` gives that to whatever has one
/// dimension, too, such as DoRA's norms.
fn is_faster(spec: &ParamSpec) -> bool {
    spec.name.ends_with(ADAPTER_PARTS[1]) || spec.shape.len() == 1
}

/// Has the frozen weights held as their parts' `frozen_precision` says.
fn hold<'a>(
    all: &mut [ParamSpec],
    part_of: &impl Fn(&str) -> (&'static str, &'a Part),
    is_whole: bool,
) -> Result<(), TrainedError> {
    let mut found: BTreeMap<&'static str, usize> = BTreeMap::new();
    for spec in all {
        let (key, part) = part_of(part_name(spec));
        let Some(precision) = part.frozen_precision else { continue };
        let is_held = spec.is_frozen_map();
        *found.entry(key).or_default() += usize::from(is_held);
        if is_held {
            spec.held.rounding = rounding(precision);
            if let Some(why) = spec.cannot_be_rounded() {
                return Err(TrainedError::CutBlocks { key, name: part_name(spec).to_owned(), why });
            }
        }
    }
    match found.into_iter().find(|(_, count)| is_whole && *count == 0) {
        Some((key, _)) => Err(TrainedError::NothingFrozen { key }),
        None => Ok(()),
    }
}

fn rounding(precision: FrozenPrecision) -> Rounding {
    match precision {
        FrozenPrecision::Fp8E4m3fn => Rounding::Float8,
        FrozenPrecision::Nf4 => Rounding::Nf4,
        FrozenPrecision::Nf4Double => Rounding::Nf4Double,
        FrozenPrecision::Int8 => Rounding::Int8,
    }
}

/// Splits the maps that adapters may stand beside into those of stacked parameters and plain ones.
fn stacked_and_plain<'a>(own: &[&'a LinearModule]) -> (Vec<&'a LinearModule>, Vec<&'a LinearModule>) {
    own.iter().copied().partition(|module| module.parameter().is_some())
}

/// Sees to it that all that `lora` names is there, of the maps of a whole part, whose modules are `known`.
fn expect_matches(key: &'static str, lora: &Lora, own: &[&LinearModule], known: &[String]) -> Result<(), TrainedError> {
    let (stacked, plain) = stacked_and_plain(own);
    let stacks: Vec<String> = stacked.iter().filter_map(|module| module.parameter()).collect();
    let maps: Vec<String> = plain.iter().map(|module| module.path.clone()).collect();
    if let Some(target) = lora.target_without_module(maps.iter().map(String::as_str)) {
        return Err(TrainedError::NoTarget { key, target: target.to_owned(), known: last_names(&maps) });
    }
    if let Some(target) = lora.target_without_parameter(stacks.iter().map(String::as_str)) {
        return Err(TrainedError::NoParameter { key, target: target.to_owned(), known: last_names(&stacks) });
    }
    let no_module = |name, pattern: &str, known: &[String]| TrainedError::NoModule {
        key,
        name,
        pattern: pattern.to_owned(),
        known: last_names(known),
    };
    let both: Vec<String> = stacks.into_iter().chain(maps).collect();
    if let Some((name, pattern)) = lora.pattern_without_module(both.iter().map(String::as_str)) {
        return Err(no_module(name, pattern, &both));
    }
    if let Some(pattern) = lora.saved_without_module(known.iter().map(String::as_str)) {
        return Err(no_module("modules_to_save", pattern, known));
    }
    if new_adapters(lora, own).is_empty() { Err(TrainedError::NothingLeft { key }) } else { Ok(()) }
}

/// Returns the adapters that `lora` asks for beside `own`.
fn new_adapters(lora: &Lora, own: &[&LinearModule]) -> Vec<(LinearModule, LoraConfig)> {
    let (stacked, plain) = stacked_and_plain(own);
    let adapted = plain.into_iter().filter(|module| lora.targets(&module.path));
    let is_named = |module: &&LinearModule| module.parameter().is_some_and(|name| lora.targets_parameter(&name));
    let adapted = adapted.chain(stacked.into_iter().filter(is_named));
    adapted.map(|module| (module.clone(), lora_config(lora, &module.path))).collect()
}

/// Returns the last parts of these names, each once.
fn last_names(names: &[String]) -> String {
    let mut known: Vec<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    known.sort_unstable();
    known.dedup();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

fn with_role<'a>(spec: ParamSpec, part_of: &impl Fn(&str) -> (&'static str, &'a Part)) -> ParamSpec {
    // Names as in the checkpoint: a parameter of several pieces is frozen where the first one is.
    let name = part_name(&spec);
    let is_trained = part_of(name).1.trains(name);
    if is_trained { spec } else { spec.frozen() }
}

#[cfg(test)]
mod tests {
    use super::{TrainedError, check_patterns, trained, trained_stage};
    use crate::model::TreeNames;
    use crate::nn::Linear;
    use crate::params::{Init, LinearModule, LoraConfig, ParamSpec, ParamStore, Role};
    use crate::train::{AdapterFile, AdapterSettings, adapter_config, save_adapter};
    use loongforge_core::config::{FrozenPrecision, Lora, Part, Source};
    use serde_json::json;
    use std::collections::BTreeSet;
    use tch::{Device, Kind};

    fn specs() -> Vec<ParamSpec> {
        let mut specs = Linear::specs("layers.0.attn.", "q_proj", 5, 4, true, 0.5);
        specs.extend(Linear::specs("layers.0.mlp.", "up_proj", 5, 7, false, 0.5));
        specs.push(ParamSpec::new("embed.weight", &[9, 5], Init::Normal(0.1)));
        specs.push(ParamSpec::new("bias", &[5], Init::Zeros).with_role(Role::Buffer));
        specs
    }

    fn trained_names(part: &Part) -> Result<Vec<String>, TrainedError> {
        let specs = trained(specs(), &TreeNames::default(), |_| ("model.foundation", part))?;
        assert!(specs.iter().any(|spec| spec.role == Role::Buffer));
        Ok(specs.into_iter().filter(|spec| spec.role == Role::Trained).map(|spec| spec.name).collect())
    }

    #[test]
    fn patterns_freeze_and_except() {
        let mut part = Part { freeze_patterns: vec!["layers.*".into()], ..Part::default() };
        assert_eq!(trained_names(&part).unwrap(), ["embed.weight"]);
        part.train_patterns = vec!["*.bias".into()];
        assert_eq!(trained_names(&part).unwrap(), ["layers.0.attn.q_proj.bias", "embed.weight"]);
    }

    #[test]
    fn learning_rates_follow_patterns() {
        let rates = |ratios: serde_json::Value, frozen: &[&str]| {
            let freeze_patterns = frozen.iter().map(|name| name.to_string()).collect();
            let part = Part { lr_ratios: ratios.as_object().unwrap().clone(), freeze_patterns, ..Part::default() };
            let specs = trained(specs(), &TreeNames::default(), |_| ("model.foundation", &part))?;
            check_patterns(&specs, [], |_| ("model.foundation", &part))?;
            Ok(specs.into_iter().filter(|spec| spec.rate != 1.0).map(|spec| (spec.name, spec.rate)).collect::<Vec<_>>())
        };
        let found: Result<_, TrainedError> = rates(json!({ "*attn*": 0.1, "embed.*": 2 }), &["*.bias"]);
        let expected = [("layers.0.attn.q_proj.weight".to_owned(), 0.1), ("embed.weight".to_owned(), 2.0)];
        assert_eq!(found.unwrap(), expected);
        let error = rates(json!({ "*attn*": 0.1, "layers.*": 2 }), &[]).unwrap_err().to_string();
        assert!(error.contains("both `*attn*` and `layers.*` match layers.0.attn.q_proj.weight"), "{error}");
        let error = rates(json!({ "*.bias": 0.1 }), &["*.bias"]).unwrap_err().to_string();
        assert_eq!(error, "model.foundation.lr_ratios: no trained parameter of this part matches `*.bias`");
        let error = rates(json!({}), &["*.norm.*"]).unwrap_err().to_string();
        assert_eq!(error, "model.foundation.freeze_patterns: no parameter of this part matches `*.norm.*`");
    }

    /// A policy's `config.json` may freeze its prefix, say.
    #[test]
    fn what_the_model_itself_freezes_cannot_be_named_as_trained() {
        let error = |part: &Part| {
            let own = ParamSpec::new("state_proj.weight", &[4, 5], Init::Zeros).frozen();
            let all = specs().into_iter().chain([own]).collect();
            let all = trained(all, &TreeNames::default(), |_| ("model.foundation", part)).unwrap();
            check_patterns(&all, [], |_| ("model.foundation", part)).err().map(|error| error.to_string())
        };
        let saved = |names: &[&str]| {
            let modules_to_save = names.iter().map(|name| name.to_string()).collect();
            Part { lora: Some(Lora { modules_to_save, ..Lora::default() }), ..Part::default() }
        };
        assert_eq!(error(&saved(&["embed"])), None);
        let found = error(&saved(&["embed", "state_proj"])).unwrap();
        assert!(found.starts_with("model.foundation.lora.modules_to_save: all that `state_proj` matches"), "{found}");
        let patterns = |pattern: &str| Part { train_patterns: vec![pattern.to_owned()], ..Part::default() };
        assert_eq!(error(&patterns("*.weight")), None);
        let found = error(&patterns("state_*")).unwrap();
        assert!(found.starts_with("model.foundation.train_patterns: all that `state_*` matches"), "{found}");
        assert!(found.contains("model.overrides"), "{found}");
    }

    /// A module that is named may be in another stage of a pipeline; names are judged by the whole model.
    #[test]
    fn a_stage_lacks_what_another_one_has() {
        let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<String>>();
        let [of_mlp, of_none] = [&["up_proj"][..], &["up_porj"]].map(|targets| {
            let lora = Lora { target_modules: Some(names(targets)), ..Lora::default() };
            Part { lora: Some(lora), ..Part::default() }
        });
        let is_of = |part: &'static str| move |spec: &ParamSpec| spec.name.contains(part);
        let stages = [is_of("attn"), is_of("mlp")];
        let stage = |part: &Part, at: usize| {
            let specs = specs().into_iter().filter(stages[at]).collect();
            let specs = trained_stage(specs, &TreeNames::default(), |_| ("model.foundation", part)).unwrap();
            specs.into_iter().filter(|spec| spec.role == Role::Trained).count()
        };
        assert_eq!([0, 1].map(|at| stage(&of_mlp, at)), [0, 2]);
        assert!(trained_names(&of_mlp).is_ok());
        assert!(trained_names(&of_none).unwrap_err().to_string().contains("`up_porj`"));
        // The first stage has nothing frozen whose precision could be another.
        let frozen_precision = Some(FrozenPrecision::Fp8E4m3fn);
        let half = Part { freeze_patterns: names(&["*mlp*"]), frozen_precision, ..Part::default() };
        assert_eq!([0, 1].map(|at| stage(&half, at)), [2, 0]);
        let none = Part { frozen_precision, ..Part::default() };
        assert!(matches!(trained_names(&none), Err(TrainedError::NothingFrozen { .. })));
    }

    #[test]
    fn a_stage_lacks_the_adapters_that_another_one_goes_on_from() {
        let tree = TreeNames::default();
        let mut adapted: Vec<ParamSpec> = specs().into_iter().take(1).map(ParamSpec::frozen).collect();
        let config = LoraConfig { r: 2, alpha: 4.0, dropout: 0.0, use_rslora: false, use_dora: false };
        adapted.extend(config.specs(&LinearModule::of(&adapted[0]).unwrap()));
        let json = adapter_config(&adapted, &tree, &AdapterSettings::default()).to_string();
        let (modules_to_save, name) = (BTreeSet::new(), AdapterFile::name(0, 1));
        let file = AdapterFile { config: Some(json), modules_to_save, name, tree: tree.clone() };
        let params = ParamStore::new(adapted, Kind::Float, Device::Cpu);
        params.init_random(1);
        let dir = tempfile::tempdir().unwrap();
        save_adapter(&[&params], &file, dir.path()).unwrap();
        let adapter = Some(Source::new(dir.path().display().to_string()));
        let part = Part { lora: Some(Lora { adapter, ..Lora::default() }), ..Part::default() };
        let [attention, mlp] = ["attn", "mlp"].map(|own| {
            let of_stage = || specs().into_iter().filter(|spec| spec.name.contains(own)).collect::<Vec<_>>();
            let count = |specs: Vec<ParamSpec>| specs.into_iter().filter(|spec| spec.role == Role::Trained).count();
            let stage = trained_stage(of_stage(), &tree, |_| ("model.foundation", &part)).map(count);
            (stage, trained(of_stage(), &tree, |_| ("model.foundation", &part)).map(count))
        });
        assert!(matches!(attention, (Ok(2), Ok(2))), "{attention:?}");
        assert!(matches!(mlp, (Ok(0), Err(TrainedError::NoAdapter { .. }))), "{mlp:?}");
    }

    #[test]
    fn patterns_of_a_part_without_parameters_match_nothing() {
        let projector = Part { freeze_patterns: vec!["*".into()], ..Part::default() };
        let part = Part::default();
        let specs = trained(specs(), &TreeNames::default(), |_| ("model.image_encoder", &part)).unwrap();
        let check = |parts: Vec<(&'static str, &Part)>| {
            check_patterns(&specs, parts, |_| ("model.image_encoder", &part)).map_err(|error| error.to_string())
        };
        assert!(check(vec![("model.image_projector", &part)]).is_ok());
        let expected = "model.image_projector.freeze_patterns: no parameter of this part matches `*`";
        assert_eq!(check(vec![("model.image_projector", &projector)]).unwrap_err(), expected);
    }

    #[test]
    fn adapters_stand_beside_what_they_name_and_all_else_is_frozen() {
        let lora = |targets: &[&str], excluded: &[&str]| {
            let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect();
            let lora =
                Lora { target_modules: Some(names(targets)), exclude_modules: names(excluded), ..Lora::default() };
            trained_names(&Part { lora: Some(lora), ..Part::default() })
        };
        let [q, up] = ["layers.0.attn.q_proj", "layers.0.mlp.up_proj"];
        let both = |path: &str| ["A", "B"].map(|part| format!("{path}.lora_{part}.weight"));
        assert_eq!(lora(&["all-linear"], &[]).unwrap(), [both(q), both(up)].concat());
        assert_eq!(lora(&["q_proj"], &[]).unwrap(), both(q));
        assert_eq!(lora(&["all-linear"], &["mlp.up_proj"]).unwrap(), both(q));
        let error = lora(&["q_proj", "qkv"], &[]).unwrap_err().to_string();
        assert!(error.ends_with("matches `qkv`; available: q_proj, up_proj"), "{error}");
        let error = lora(&["q_proj", "lm_head"], &[]).unwrap_err().to_string();
        assert!(error.contains("available: q_proj, up_proj; a head that is tied to the embedding"), "{error}");
        let with = |lora: Lora| trained_names(&Part { lora: Some(lora), ..Part::default() });
        let saved = with(Lora { modules_to_save: vec!["embed".into()], ..Lora::default() }).unwrap();
        assert_eq!(saved, [vec!["embed.weight".to_owned()], both(q).into(), both(up).into()].concat());
        let error = with(Lora { modules_to_save: vec!["embd".into()], ..Lora::default() }).unwrap_err().to_string();
        assert!(error.contains("modules_to_save: no module") && error.contains("embed"), "{error}");
        let head = Lora { modules_to_save: vec!["embed".into(), "lm_head".into()], ..Lora::default() };
        let error = with(head).unwrap_err().to_string();
        assert!(error.contains("no module matches `lm_head`") && error.contains("a head that is tied to"), "{error}");
        let plus = Lora {
            loraplus_lr_ratio: Some(16.0),
            use_dora: Some(true),
            modules_to_save: vec!["embed".into()],
            ..Lora::default()
        };
        let plus = Part { lora: Some(plus), ..Part::default() };
        let specs = trained(specs(), &TreeNames::default(), |_| ("model.foundation", &plus)).unwrap();
        let fast = specs.iter().filter(|spec| spec.rate == 16.0).map(|spec| spec.name.clone());
        let norms = |path: &str| format!("{path}.lora_magnitude_vector");
        let expected = [&both(q)[1], &norms(q), &both(up)[1], &norms(up)].map(String::clone);
        assert_eq!(fast.collect::<Vec<_>>(), expected);
        let dora = with(Lora { use_dora: Some(true), target_modules: Some(vec!["q_proj".into()]), ..Lora::default() });
        assert_eq!(dora.unwrap()[2], format!("{q}.lora_magnitude_vector"));
        assert!(matches!(lora(&["q_proj"], &["q_proj"]), Err(TrainedError::NothingLeft { .. })));
    }
}
