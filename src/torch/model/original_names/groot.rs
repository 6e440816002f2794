//! The name of the table of tokens in files of GR00T: where a head that is the same tensor was saved as well, safetensors keeps only the
//! first of their names, and lerobot's files have the head's.

/// The head and the table, of N1.7 and of N1.6.
const TIED: [[&str; 2]; 2] = [
    ["backbone.model.lm_head.weight", "backbone.model.model.language_model.embed_tokens.weight"],
    ["backbone.model.language_model.lm_head.weight", "backbone.model.language_model.model.embed_tokens.weight"],
];
/// The prefix that lerobot gives to the names of all tensors.
const LEROBOT: &str = "_groot_model.";

/// The names in files of GR00T whose table of tokens is stored as a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrootNames;

impl GrootNames {
    /// Returns the names in files that have these tensors; `None`: they are of another model, or as ours.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<GrootNames> {
        let mut has = [[false; 2]; 2];
        for name in names {
            let name = name.strip_prefix(LEROBOT).unwrap_or(name);
            for (has, tied) in has.iter_mut().flatten().zip(TIED.as_flattened()) {
                *has |= name == *tied;
            }
        }
        has.contains(&[true, false]).then_some(GrootNames)
    }

    /// Returns our name.
    pub fn ours(self, name: &str) -> String {
        let table = |[head, table]: [&str; 2]| Some(format!("{}{table}", name.strip_suffix(head)?));
        TIED.into_iter().find_map(table).unwrap_or_else(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{GrootNames, TIED};

    #[test]
    fn a_head_alone_is_the_table() {
        let of = |names: &[&str]| GrootNames::of(names.iter().copied());
        for [head, table] in TIED {
            let lerobot = [format!("_groot_model.{head}"), format!("_groot_model.{table}")];
            let found = of(&[&lerobot[0], "_groot_model.action_head.vlln.weight"]).unwrap();
            assert_eq!(found.ours(&lerobot[0]), lerobot[1]);
            assert_eq!(of(&[head]).unwrap().ours(head), table);
            assert_eq!(of(&[head]).unwrap().ours("action_head.vlln.weight"), "action_head.vlln.weight");
            assert_eq!(of(&[head, table]), None);
        }
        assert_eq!(of(&["lm_head.weight"]), None);
    }
}
