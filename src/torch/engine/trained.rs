//! Which of a pool's parameters a run trains: what is frozen by part or by name, and adapters beside what is.

use crate::nn::{LinearModule, LoraConfig, ParamSpec};
use loongforge_core::config::{Lora, Part};

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TrainedError {
    #[error("{key}.lora.target_modules: no linear map of this part is called {target}; there are {known}")]
    NoTarget { key: &'static str, target: String, known: String },
    #[error("{key}.lora.target_parameters: no stacked parameter of this part is called {target}; there are {known}")]
    NoParameter { key: &'static str, target: String, known: String },
    #[error("{key}.lora: every linear map of this part is excluded")]
    NothingLeft { key: &'static str },
}

/// Gives every parameter its role. `part_of` tells the part, with its key in the config, that a parameter belongs to.
///
/// # Errors
/// A module of `lora.target_modules` that this pool does not have.
pub fn trained<'a>(
    specs: Vec<ParamSpec>,
    part_of: impl Fn(&str) -> (&'static str, &'a Part),
) -> Result<Vec<ParamSpec>, TrainedError> {
    let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    let mut all: Vec<ParamSpec> = specs.into_iter().map(|spec| with_role(spec, &part_of)).collect();
    let mut parts: Vec<(&'static str, &Part)> = modules.iter().map(|module| part_of(&module.path)).collect();
    parts.sort_by_key(|(key, _)| *key);
    parts.dedup_by_key(|(key, _)| *key);
    for (key, part) in parts {
        let Some(lora) = &part.lora else { continue };
        let own: Vec<&LinearModule> = modules.iter().filter(|module| part_of(&module.path).0 == key).collect();
        let (stacked, plain): (Vec<_>, Vec<_>) = own.into_iter().partition(|module| module.stacked.is_some());
        let paths = |modules: &[&'_ LinearModule]| modules.iter().map(|module| module.path.clone()).collect::<Vec<_>>();
        let (stacks, maps) = (paths(&stacked), paths(&plain));
        if let Some(target) = lora.target_without_module(maps.iter().map(String::as_str)) {
            return Err(TrainedError::NoTarget { key, target: target.to_owned(), known: last_names(&maps) });
        }
        if let Some(target) = lora.target_without_parameter(stacks.iter().map(String::as_str)) {
            return Err(TrainedError::NoParameter { key, target: target.to_owned(), known: last_names(&stacks) });
        }
        let mut adapted: Vec<&LinearModule> = plain.into_iter().filter(|module| lora.targets(&module.path)).collect();
        adapted.extend(stacked.into_iter().filter(|module| lora.targets_parameter(&module.path)));
        if adapted.is_empty() {
            return Err(TrainedError::NothingLeft { key });
        }
        all.extend(adapted.into_iter().flat_map(|module| lora_config(lora).specs(module)));
    }
    Ok(all)
}

/// The last parts of these names, each once.
fn last_names(names: &[String]) -> String {
    let mut known: Vec<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    known.sort_unstable();
    known.dedup();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// What PEFT calls the same.
pub fn lora_config(lora: &Lora) -> LoraConfig {
    LoraConfig { r: lora.r as i64, alpha: lora.alpha, dropout: lora.dropout, use_rslora: false }
}

fn with_role<'a>(spec: ParamSpec, part_of: &impl Fn(&str) -> (&'static str, &'a Part)) -> ParamSpec {
    // Names as in the checkpoint: a parameter of several pieces is frozen where the first one is.
    let name = spec.pieces.first().map_or(spec.name.as_str(), |piece| piece.name.as_str());
    let is_trained = part_of(name).1.trains(name);
    if is_trained { spec } else { spec.frozen() }
}

#[cfg(test)]
mod tests {
    use super::{TrainedError, trained};
    use crate::nn::{Init, Linear, ParamSpec, Role};
    use loongforge_core::config::{Lora, Part};

    fn specs() -> Vec<ParamSpec> {
        let mut specs = Linear::specs("layers.0.attn.", "q_proj", 5, 4, true, 0.5);
        specs.extend(Linear::specs("layers.0.mlp.", "up_proj", 5, 7, false, 0.5));
        specs.push(ParamSpec::new("embed.weight", &[9, 5], Init::Normal(0.1)));
        specs.push(ParamSpec::new("bias", &[5], Init::Zeros).with_role(Role::Buffer));
        specs
    }

    fn trained_names(part: &Part) -> Result<Vec<String>, TrainedError> {
        let specs = trained(specs(), |_| ("model.foundation", part))?;
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
    fn adapters_stand_beside_what_they_name_and_all_else_is_frozen() {
        let lora = |targets: &[&str], excluded: &[&str]| {
            let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect();
            let lora = Lora { target_modules: names(targets), exclude_modules: names(excluded), ..Lora::default() };
            trained_names(&Part { lora: Some(lora), ..Part::default() })
        };
        let [q, up] = ["layers.0.attn.q_proj", "layers.0.mlp.up_proj"];
        let both = |path: &str| ["A", "B"].map(|part| format!("{path}.lora_{part}.weight"));
        assert_eq!(lora(&["all-linear"], &[]).unwrap(), [both(q), both(up)].concat());
        assert_eq!(lora(&["q_proj"], &[]).unwrap(), both(q));
        assert_eq!(lora(&["all-linear"], &["mlp.up_proj"]).unwrap(), both(q));
        let error = lora(&["q_proj", "qkv"], &[]).unwrap_err().to_string();
        assert!(error.ends_with("is called qkv; there are q_proj, up_proj"), "{error}");
        assert!(matches!(lora(&["q_proj"], &["q_proj"]), Err(TrainedError::NothingLeft { .. })));
    }
}
