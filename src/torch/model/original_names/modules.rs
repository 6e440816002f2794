//! The names of transformers' modules, since 4.52, in folders that other programs have saved: transformers itself writes published
//! names.

type Rules = &'static [(&'static str, &'static str)];

/// Beginnings of modules, with what published folders have in their place.
const QWEN_VL: Rules = &[("model.language_model.", "model."), ("model.visual.", "visual.")];
const LLAVA: Rules = &[
    ("model.language_model.", "language_model.model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
];

/// Read in one direction alone: folders are written with the published names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleNames {
    /// Qwen2-VL and Qwen2.5-VL.
    QwenVl,
    /// LLaVA, InternVL, Gemma 3 and PaliGemma.
    Llava,
}

impl ModuleNames {
    /// Returns the names of these tensors; `None` where they are the published ones.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<ModuleNames> {
        let [mut decoder, mut qwen, mut tower, mut projector] = [false; 4];
        for name in names {
            decoder |= name.starts_with("model.language_model.layers.");
            // Qwen3-VL has these modules in its published folders, and another merger.
            qwen |= name.starts_with("model.visual.merger.ln_q.");
            tower |= name.starts_with("model.vision_tower.");
            projector |= name.starts_with("model.multi_modal_projector.");
        }
        match (decoder, qwen, tower && projector) {
            (true, true, _) => Some(ModuleNames::QwenVl),
            (true, false, true) => Some(ModuleNames::Llava),
            _ => None,
        }
    }

    /// Returns the published name of the tensor that files call `name`.
    pub fn ours(self, name: &str) -> String {
        let rules = match self {
            ModuleNames::QwenVl => QWEN_VL,
            ModuleNames::Llava => LLAVA,
        };
        let renamed = |(theirs, ours): &(&str, &str)| name.strip_prefix(theirs).map(|rest| format!("{ours}{rest}"));
        rules.iter().find_map(renamed).unwrap_or_else(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::ModuleNames;

    #[test]
    fn folders_with_names_of_modules_are_read_as_published_ones() {
        let qwen = ["model.language_model.layers.0.mlp.up_proj.weight", "model.visual.merger.ln_q.weight"];
        let found = ModuleNames::of(qwen.into_iter()).unwrap();
        assert_eq!(found.ours(qwen[0]), "model.layers.0.mlp.up_proj.weight");
        assert_eq!(found.ours(qwen[1]), "visual.merger.ln_q.weight");
        assert_eq!(found.ours("lm_head.weight"), "lm_head.weight");
        let llava = [
            "model.language_model.layers.0.mlp.up_proj.weight",
            "model.vision_tower.vision_model.embeddings.patch_embedding.weight",
            "model.multi_modal_projector.linear_1.weight",
        ];
        let found = ModuleNames::of(llava.into_iter()).unwrap();
        assert_eq!(found.ours(llava[0]), "language_model.model.layers.0.mlp.up_proj.weight");
        assert_eq!(found.ours(llava[1]), "vision_tower.vision_model.embeddings.patch_embedding.weight");
        assert_eq!(found.ours(llava[2]), "multi_modal_projector.linear_1.weight");
        assert_eq!(found.ours("lm_head.weight"), "language_model.lm_head.weight");
    }

    #[test]
    fn published_folders_keep_their_names() {
        for names in [
            // Qwen3-VL, MiniCPM-V, Qwen3-ASR and Florence-2.
            ["model.language_model.layers.0.mlp.up_proj.weight", "model.visual.merger.linear_fc1.weight"],
            ["model.language_model.layers.0.mlp.up_proj.weight", "model.vision_tower.embeddings.patch_embedding.bias"],
            ["model.language_model.layers.0.mlp.up_proj.weight", "model.multi_modal_projector.linear_1.weight"],
            ["model.vision_tower.convs.0.conv.bias", "model.multi_modal_projector.image_projection.weight"],
        ] {
            assert_eq!(ModuleNames::of(names.into_iter()), None, "{names:?}");
        }
    }
}
