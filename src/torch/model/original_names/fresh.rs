//! The names in folders of models that transformers made of a config and saved: for some families it calls modules otherwise there
//! than in published folders.

/// The beginnings of names in such a folder, with what published folders have in their place.
const BEGINNINGS: [(&str, &str); 4] = [
    ("language_model.model.model.", "language_model.model."),
    ("language_model.model.blocks.", "language_model.model.layers."),
    ("model.mm_projector.", "mm_projector."),
    ("vision_tower.", "vision_tower.vision_model."),
];

/// Read in one direction alone: folders are written with the published names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshNames {
    /// True for each of the beginnings of names that the folder has.
    has: [bool; 4],
}

impl FreshNames {
    /// Returns the names of these tensors; `None` where they are the published ones.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<FreshNames> {
        let mut has = [false; 4];
        for name in names {
            // Qwen2-Audio and Voxtral; Kimi-K2.5.
            has[0] |= name.starts_with(BEGINNINGS[0].0);
            has[1] |= name.starts_with(BEGINNINGS[1].0);
            // The towers of CLIP and SigLIP in LLaVA, Gemma 3 and PaliGemma, whose blocks alone are called so.
            has[3] |= name.starts_with("vision_tower.encoder.layers.") && name.contains(".self_attn.out_proj.");
        }
        has[2] = has[1];
        has.contains(&true).then_some(FreshNames { has })
    }

    /// Returns the published name of the tensor that files call `name`.
    pub fn ours(self, name: &str) -> String {
        let found = BEGINNINGS.iter().zip(self.has).filter(|(_, has)| *has);
        let mut renamed =
            found.filter_map(|((theirs, ours), _)| name.strip_prefix(theirs).map(|rest| format!("{ours}{rest}")));
        renamed.next().unwrap_or_else(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::FreshNames;

    fn renamed(names: &[&str], name: &str) -> Option<String> {
        FreshNames::of(names.iter().copied()).map(|found| found.ours(name))
    }

    #[test]
    fn fresh_folders_are_read_as_published_ones() {
        let tower = ["vision_tower.encoder.layers.0.self_attn.out_proj.bias"];
        for (theirs, ours) in [
            (
                "vision_tower.embeddings.patch_embedding.weight",
                "vision_tower.vision_model.embeddings.patch_embedding.weight",
            ),
            ("multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.weight"),
            ("model.mm_projector.proj.0.weight", "model.mm_projector.proj.0.weight"),
        ] {
            assert_eq!(renamed(&tower, theirs).as_deref(), Some(ours));
        }
        let kimi = ["language_model.model.blocks.0.input_layernorm.weight"];
        assert_eq!(renamed(&kimi, "model.mm_projector.pre_norm.bias").as_deref(), Some("mm_projector.pre_norm.bias"));
        assert_eq!(renamed(&kimi, kimi[0]).as_deref(), Some("language_model.model.layers.0.input_layernorm.weight"));
        let doubled = ["language_model.model.model.norm.weight"];
        assert_eq!(renamed(&doubled, doubled[0]).as_deref(), Some("language_model.model.norm.weight"));
        assert_eq!(
            renamed(&doubled, "language_model.lm_head.weight").as_deref(),
            Some("language_model.lm_head.weight")
        );
    }

    #[test]
    fn published_folders_keep_their_names() {
        for name in [
            "vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.bias",
            "vision_tower.encoder.layer.0.attention.output.dense.bias",
            "vision_tower.encoder.blocks.0.wqkv.bias",
            "language_model.model.layers.0.self_attn.o_proj.weight",
        ] {
            assert_eq!(renamed(&[name], name), None);
        }
    }
}
