//! The names of adapters' parameters in PEFT: the path of their module in transformers' module tree, with `base_model.model.` before it.
//! Adapters of stacked parameters (`target_parameters`) stand at the module that holds these: the last one that it declares has the
//! module's own name, and each one before it is a `base_layer` deeper.

use crate::model::TreeNames;
use crate::params::LinearModule;
use std::collections::BTreeMap;

/// The beginning of names of the second transformer, which has the low noise levels.
pub(super) const SECOND: &str = "transformer_2.";

pub const PREFIX: &str = "base_model.model.";

/// Describes where the adapter of a linear map, or of some of its rows, is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterPlace {
    /// The path in the module tree that patterns go by; of a stack, the parameter's name.
    pub path: String,
    /// The prefix of the names of its tensors.
    pub in_file: String,
    /// The rows of the map's outputs, in the order of the file; `None`: all of them.
    pub rows: Option<Vec<i64>>,
}

impl AdapterPlace {
    /// Returns the name of a tensor in the file; `part` is what comes behind the module's, such as `lora_A.weight`.
    pub fn tensor(&self, part: &str) -> String {
        format!("{}{part}", self.in_file)
    }
}

/// Returns the places of the adapters of these maps by the maps' own paths; the maps of one module in the order in which it declares
/// them. A map may come twice.
pub fn places<'a>(
    modules: impl IntoIterator<Item = &'a LinearModule>,
    tree: &TreeNames,
) -> BTreeMap<String, Vec<AdapterPlace>> {
    let mut found: BTreeMap<String, Vec<AdapterPlace>> = BTreeMap::new();
    let mut stacks: Vec<(&str, String)> = Vec::new();
    for module in modules {
        match module.stacked {
            None => {
                let place = |part: crate::model::TreePart| AdapterPlace {
                    in_file: format!("{PREFIX}{}", part.name),
                    path: part.name,
                    rows: part.rows,
                };
                let parts = tree.parts(&module.path, module.whole_outputs());
                found.insert(module.path.clone(), parts.into_iter().map(place).collect());
            }
            Some(_) if stacks.iter().any(|(path, _)| *path == module.path) => {}
            Some(_) => stacks.push((&module.path, tree.name(&module.path))),
        }
    }
    let holder = |name: &str| name.rsplit_once('.').map_or_else(String::new, |(holder, _)| holder.to_owned());
    for (number, (ours, name)) in stacks.iter().enumerate() {
        let after = stacks[number + 1..].iter().filter(|(_, other)| holder(other) == holder(name)).count();
        let in_file = format!("{PREFIX}{}{}", holder(name), ".base_layer".repeat(after));
        found.insert((*ours).to_owned(), vec![AdapterPlace { path: name.clone(), in_file, rows: None }]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{PREFIX, places};
    use crate::model::TreeNames;
    use crate::params::LinearModule;

    #[test]
    fn parameters_of_one_module_are_nested() {
        let names = |modules: &[(&str, Option<i64>)]| {
            let module = |(path, stacked): &(&str, Option<i64>)| LinearModule {
                path: (*path).to_owned(),
                inputs: 3,
                outputs: 4,
                stacked: *stacked,
                is_router: false,
                shard: None,
            };
            let modules: Vec<LinearModule> = modules.iter().map(module).collect();
            let found = places(&modules, &TreeNames::default());
            found.into_values().map(|places| places[0].in_file.replace(PREFIX, "")).collect::<Vec<_>>()
        };
        let all = names(&[("l.0.q_proj", None), ("l.0.experts.gate_up", Some(2)), ("l.0.experts.down", Some(2))]);
        assert_eq!(all, ["l.0.experts", "l.0.experts.base_layer", "l.0.q_proj"]);
        assert_eq!(names(&[("l.0.experts.gate_up", Some(2))]), ["l.0.experts"]);
    }
}
