//! The names of tensors in files of Pi0 and Pi0.5: lerobot saves them under `model.`, files made of openpi's weights lack it, and those
//! of older versions nest PaliGemma otherwise.

/// The prefix that lerobot's policies give to the names of all tensors.
const PREFIX: &str = "model.";
const PALIGEMMA: &str = "paligemma_with_expert.paligemma.";
const HEAD: &str = "lm_head.weight";
const TABLE: &str = "model.language_model.embed_tokens.weight";

/// The beginnings of names behind PaliGemma's in older files, and what they are now. The first that fits counts.
const NESTED: [[&str; 2]; 5] = [
    ["language_model.lm_head.", "lm_head."],
    ["language_model.model.", "model.language_model."],
    ["language_model.", "model.language_model."],
    ["vision_tower.", "model.vision_tower."],
    ["multi_modal_projector.", "model.multi_modal_projector."],
];

/// The names in files of a policy of two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyNames {
    /// True if the table of tokens is stored as PaliGemma's head alone.
    head_is_table: bool,
}

impl PolicyNames {
    /// Returns the names in files that have these tensors; `None`: they are of another model.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<PolicyNames> {
        let plain = PolicyNames { head_is_table: false };
        let names: Vec<String> = names.map(|name| plain.ours(name)).collect();
        let has = |end: &str| names.iter().any(|name| *name == format!("{PREFIX}{PALIGEMMA}{end}"));
        let is_policy = names.iter().any(|name| name.starts_with(&format!("{PREFIX}{PALIGEMMA}")));
        is_policy.then(|| PolicyNames { head_is_table: has(HEAD) && !has(TABLE) })
    }

    /// Returns lerobot's name.
    pub fn ours(self, name: &str) -> String {
        let inner = name.strip_prefix(PREFIX).unwrap_or(name);
        let Some(inner) = inner.strip_prefix(PALIGEMMA) else { return format!("{PREFIX}{inner}") };
        let nested = NESTED.iter().find_map(|[from, to]| inner.strip_prefix(from).map(|rest| format!("{to}{rest}")));
        let inner = nested.unwrap_or_else(|| inner.to_owned());
        let inner = if self.head_is_table && inner == HEAD { TABLE } else { &inner };
        format!("{PREFIX}{PALIGEMMA}{inner}")
    }
}

#[cfg(test)]
mod tests {
    use super::PolicyNames;

    #[test]
    fn all_spellings_become_one() {
        let of = |names: &[&str]| {
            let found = PolicyNames::of(names.iter().copied()).expect("a policy");
            names.iter().map(|name| found.ours(name)).collect::<Vec<_>>()
        };
        let published = [
            "model.paligemma_with_expert.paligemma.model.language_model.norm.weight",
            "model.paligemma_with_expert.paligemma.model.vision_tower.vision_model.post_layernorm.bias",
            "model.paligemma_with_expert.paligemma.model.multi_modal_projector.linear.bias",
            "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight",
            "model.paligemma_with_expert.gemma_expert.model.norm.dense.bias",
            "model.action_in_proj.weight",
        ];
        assert_eq!(of(&published), published);
        let bare: Vec<&str> = published.iter().map(|name| &name["model.".len()..]).collect();
        assert_eq!(of(&bare), published);
        let older = [
            "paligemma_with_expert.paligemma.language_model.model.norm.weight",
            "paligemma_with_expert.paligemma.vision_tower.vision_model.post_layernorm.bias",
            "paligemma_with_expert.paligemma.multi_modal_projector.linear.bias",
            "paligemma_with_expert.paligemma.language_model.lm_head.weight",
            "paligemma_with_expert.gemma_expert.model.norm.dense.bias",
            "action_in_proj.weight",
        ];
        assert_eq!(of(&older), published);
        // The table itself goes before the head.
        let both = ["paligemma_with_expert.paligemma.lm_head.weight", published[3]];
        assert_eq!(of(&both), ["model.paligemma_with_expert.paligemma.lm_head.weight", published[3]]);
        assert_eq!(PolicyNames::of(["model.layers.0.mlp.up_proj.weight"].into_iter()), None);
    }
}
