//! Describes what files of GR00T call the table of tokens: where a head that is the same tensor was saved as well, safetensors keeps the
//! first of their names alone, and lerobot's files have the head's.

const HEAD: &str = "backbone.model.lm_head.weight";
const TABLE: &str = "backbone.model.model.language_model.embed_tokens.weight";
/// What lerobot begins the names of all tensors with.
const LEROBOT: &str = "_groot_model.";

/// The names in files of GR00T whose table of tokens is stored as a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrootNames;

impl GrootNames {
    /// The names in files that have these tensors; `None`: they are of another model, or as ours.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<GrootNames> {
        let (mut has_head, mut has_table) = (false, false);
        for name in names {
            let name = name.strip_prefix(LEROBOT).unwrap_or(name);
            has_head |= name == HEAD;
            has_table |= name == TABLE;
        }
        (has_head && !has_table).then_some(GrootNames)
    }

    /// Returns our name.
    pub fn ours(self, name: &str) -> String {
        match name.strip_suffix(HEAD) {
            Some(prefix) => format!("{prefix}{TABLE}"),
            None => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GrootNames, HEAD, TABLE};

    #[test]
    fn a_head_alone_is_the_table() {
        let of = |names: &[&str]| GrootNames::of(names.iter().copied());
        let lerobot = [format!("_groot_model.{HEAD}"), format!("_groot_model.{TABLE}")];
        assert_eq!(of(&[&lerobot[0], "_groot_model.action_head.vlln.weight"]).unwrap().ours(&lerobot[0]), lerobot[1]);
        assert_eq!(of(&[HEAD]).unwrap().ours(HEAD), TABLE);
        assert_eq!(of(&[HEAD]).unwrap().ours("action_head.vlln.weight"), "action_head.vlln.weight");
        assert_eq!(of(&[HEAD, TABLE]), None);
        assert_eq!(of(&["lm_head.weight"]), None);
    }
}
