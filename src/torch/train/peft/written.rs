//! `adapter_config.json` as PEFT reads it, for what a run trains.

use super::config::AdapterBase;
use super::names::{AdapterPlace, places};
use super::pattern::exactly;
use super::whole::modules_to_save;
use crate::model::TreeNames;
use crate::params::{ADAPTER_PARTS, AdapterSpec, LinearModule, ParamSpec, Role};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The settings of adapters that their parameters do not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterSettings {
    /// Dropout of the adapters' inputs, for whoever trains them further.
    pub dropout: f64,
    /// The factor of `B A x` is `alpha / sqrt(r)`.
    pub use_rslora: bool,
    /// `None` where nothing was loaded.
    pub base: Option<AdapterBase>,
    /// True if the model writes text, for which PEFT has a class of its own: it asks the model for functions that others, such as
    /// robot policies, do not have.
    pub writes_text: bool,
}

/// Describes where an adapter is and what PEFT needs to make one like it.
struct Written {
    place: AdapterPlace,
    r: i64,
    alpha: f64,
    is_parameter: bool,
}

/// Returns the first map that has the norms of DoRA and that PEFT would take for those of experts, whose adapters have none.
pub fn dora_without_place<'a>(specs: &'a [ParamSpec], tree: &TreeNames) -> Option<&'a str> {
    let mut modules = specs.iter().filter_map(|spec| spec.name.strip_suffix(ADAPTER_PARTS[2]));
    modules.find(|path| tree.is_taken_for_experts(&tree.name(path)))
}

/// Returns the config of the adapters among `specs`, all parameters of a model, and of the parameters that are trained themselves.
pub fn adapter_config(specs: &[ParamSpec], tree: &TreeNames, settings: &AdapterSettings) -> Value {
    let by_name: BTreeMap<&str, &ParamSpec> = specs.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    let adapter = |module: &LinearModule| -> Option<(i64, AdapterSpec)> {
        let a = by_name.get(format!("{}{}", module.path, ADAPTER_PARTS[0]).as_str())?;
        Some((a.whole_shape()[0] / module.whole_stack(), a.adapter?))
    };
    let mut modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    modules.retain(|module| adapter(module).is_some());
    let places = places(&modules, tree);
    let mut written = Vec::new();
    for module in &modules {
        let (r, AdapterSpec { scale, .. }) = adapter(module).expect("only modules with adapters are left");
        let alpha = scale * if settings.use_rslora { (r as f64).sqrt() } else { r as f64 };
        // Without what the parallel and the product left.
        let alpha = (alpha * 1e9).round() / 1e9;
        for place in &places[&module.path] {
            let is_parameter = module.parameter().is_some() || tree.is_taken_for_experts(&place.path);
            let mut place = place.clone();
            if is_parameter && module.stacked.is_none() {
                place.path.push_str(".weight");
            }
            written.push(Written { place, r, alpha, is_parameter });
        }
    }
    let named = |is_parameter: bool| {
        let found = written.iter().filter(|written| written.is_parameter == is_parameter);
        let mut paths: Vec<&str> = found.map(|written| written.place.path.as_str()).collect();
        paths.sort_unstable();
        paths
    };
    let r = most_common(written.iter().map(|written| written.r.to_string()));
    let alpha = most_common(written.iter().map(|written| written.alpha.to_string()));
    let pattern = |value: &dyn Fn(&Written) -> Value, common: &str| -> Map<String, Value> {
        let others = written.iter().filter(|written| value(written).to_string().trim_end_matches(".0") != common);
        others.map(|written| (exactly(&written.place.path), value(written))).collect()
    };
    let number = |text: &str| serde_json::from_str::<Value>(text).expect("a number's text");
    let has_parameters = written.iter().any(|written| written.is_parameter);
    let to_save = modules_to_save(specs.iter(), tree);
    json!({
        "peft_type": "LORA",
        "task_type": settings.writes_text.then_some("CAUSAL_LM"),
        "base_model_name_or_path": settings.base.as_ref().map(|base| &base.name),
        "revision": settings.base.as_ref().and_then(|base| base.revision.as_ref()),
        "r": number(&r),
        "lora_alpha": number(&alpha),
        "rank_pattern": pattern(&|written: &Written| json!(written.r), &r),
        "alpha_pattern": pattern(&|written: &Written| json!(written.alpha), &alpha),
        // PEFT knows none beside parameters.
        "lora_dropout": if has_parameters { 0.0 } else { settings.dropout },
        "use_rslora": settings.use_rslora,
        "use_dora": specs.iter().any(|spec| spec.name.ends_with(ADAPTER_PARTS[2])),
        "target_modules": named(false),
        "target_parameters": named(true),
        "exclude_modules": null,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "ensure_weight_tying": specs.iter().any(|spec| {
            spec.role == Role::Trained && tree.tied_head(&spec.name).is_some()
        }),
        "modules_to_save": (!to_save.is_empty()).then_some(to_save),
    })
}

/// Returns the text that comes most often, of those that come as often the first; "8" where there is none, as PEFT's default.
fn most_common(texts: impl Iterator<Item = String>) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for text in texts {
        match counts.iter_mut().find(|(other, _)| *other == text) {
            Some((_, count)) => *count += 1,
            None => counts.push((text, 1)),
        }
    }
    let best = counts.iter().map(|(_, count)| *count).max();
    counts.into_iter().find(|(_, count)| Some(*count) == best).map_or_else(|| "8".to_owned(), |(text, _)| text)
}
