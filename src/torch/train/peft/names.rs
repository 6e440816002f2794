//! What PEFT calls the parameters of adapters: the model's names with `base_model.model.` before them. Adapters of stacked
//! parameters (`target_parameters`) stand at the module that holds these: the last one that it declares has the
//! module's own name, and each one before it is a `base_layer` deeper.

use std::collections::BTreeMap;

pub const PREFIX: &str = "base_model.model.";

/// The names in the file by our own, `PATH.lora_A.weight` and `PATH.lora_B.weight`, for the adapted modules: path, and
/// whether it is a stacked parameter; those of one module in the order in which it declares them. A path may come twice.
pub fn file_names<'a>(modules: impl Iterator<Item = (&'a str, bool)>) -> BTreeMap<String, String> {
    let mut paths: Vec<(&str, bool)> = Vec::new();
    modules.for_each(|module| {
        if !paths.contains(&module) {
            paths.push(module)
        }
    });
    let holder = |path: &'a str| path.rsplit_once('.').map_or("", |(holder, _)| holder);
    let mut names = BTreeMap::new();
    for (number, &(path, stacked)) in paths.iter().enumerate() {
        let there = match stacked {
            false => path.to_owned(),
            true => {
                let after = paths[number + 1..].iter().filter(|(other, _)| holder(other) == holder(path)).count();
                format!("{}{}", holder(path), ".base_layer".repeat(after))
            }
        };
        for part in ["lora_A", "lora_B"] {
            names.insert(format!("{path}.{part}.weight"), format!("{PREFIX}{there}.{part}.weight"));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::file_names;

    #[test]
    fn parameters_of_one_module_are_nested() {
        let names = |modules: &[(&str, bool)]| {
            file_names(modules.iter().copied())
                .into_iter()
                .filter(|(name, _)| name.contains("lora_A"))
                .collect::<Vec<_>>()
        };
        let pair = |ours: &str, theirs: &str| {
            (format!("{ours}.lora_A.weight"), format!("base_model.model.{theirs}.lora_A.weight"))
        };
        let all = names(&[("l.0.q_proj", false), ("l.0.experts.gate_up", true), ("l.0.experts.down", true)]);
        let expected = [
            pair("l.0.experts.down", "l.0.experts"),
            pair("l.0.experts.gate_up", "l.0.experts.base_layer"),
            pair("l.0.q_proj", "l.0.q_proj"),
        ];
        assert_eq!(all, expected);
        assert_eq!(names(&[("l.0.experts.gate_up", true)]), [pair("l.0.experts.gate_up", "l.0.experts")]);
    }
}
