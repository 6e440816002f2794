//! The names of a model's modules in transformers, where they differ from the names in its `model.safetensors`: adapters of PEFT go by
//! the modules.

use loongforge_core::data::ModelCard;
use serde_json::Value;

/// Replaced where a name begins with the first of the two; the first rule that fits counts.
type Rules = &'static [(&'static str, &'static str)];

/// PEFT adapts the transformer alone.
const DIFFUSION: Rules = &[("transformer.", "")];

const QWEN2_5_VL: Rules = &[("model.", "model.language_model."), ("visual.", "model.visual.")];

const INTERNVL: Rules = &[
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
];

const LLAVA: Rules = &[
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("vision_tower.vision_model.", "model.vision_tower."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
];

const QWEN2_AUDIO: Rules = &[
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("audio_tower.", "model.audio_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
];

const KIMI: Rules = &[
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("vision_tower.encoder.blocks.", "model.vision_tower.layers."),
    ("vision_tower.encoder.", "model.vision_tower."),
    ("vision_tower.patch_embed.pos_emb.weight", "model.vision_tower.patch_embed.pos_emb.position_embeddings"),
    ("vision_tower.", "model.vision_tower."),
    ("mm_projector.proj.0.", "model.mm_projector.in_proj."),
    ("mm_projector.proj.2.", "model.mm_projector.out_proj."),
    ("mm_projector.", "model.mm_projector."),
];

const ERNIE_VL: Rules = &[
    ("model.vision_model.", "model.vision_tower."),
    ("vision_model.", "model.vision_tower."),
    ("model.resampler_model.", "model.resampler_model."),
    ("model.", "model.language_model."),
];

/// Replaced anywhere in a name. The names that begin with a dot and end with one are whole parts of a path.
const KIMI_WITHIN: Rules = &[
    (".norm1.", ".norm2."),
    (".norm0.", ".norm1."),
    (".mlp.fc1.", ".mlp.fc2."),
    (".mlp.fc0.", ".mlp.fc1."),
    (".wo.", ".attn.proj."),
];

const ERNIE_VL_WITHIN: Rules = &[
    ("_linear.0.", "_linear.fc1."),
    ("_linear.2.", "_linear.fc2."),
    ("_linear.3.", "_linear.ln."),
    (".mlp.gate.weight_1.", ".mlp.vision_moe.gate.weight."),
    (".mlp.gate.", ".mlp.text_moe.gate."),
    (".mlp.experts.", ".mlp.text_moe.experts."),
];

/// Maps whose names end so PEFT takes for those of experts, which transformers 4 had one by one: it looks for stacked
/// parameters instead. It does so for all of a model's maps, and for models of these types.
const LIKE_QWEN2_MOE: &[&str] = &["gate", "gate_proj", "up_proj", "down_proj"];
const LIKE_MIXTRAL: &[&str] = &["gate", "w1", "w2", "w3"];
const QWEN2_MOE_TYPES: &[&str] = &[
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "ernie4_5_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    // DeepSeek-V3, which is what transformers computes it with.
    "kimi_k2",
    "olmoe",
    "qwen3_moe",
    "qwen3_next",
];

/// The module tree of a model of transformers, as far as adapters need it. The default has the names of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeNames {
    beginnings: Rules,
    within: Rules,
    taken_for_experts: &'static [&'static str],
    /// True if parameters are called as the modules, whatever files call them (DeepSeek-V4).
    by_parameter: bool,
    /// The number of heads of a tower whose `wqkv` is three maps in transformers.
    split_heads: Option<i64>,
    /// The embedding's weight and the name of the head, which is the same tensor.
    tied: Option<[String; 2]>,
}

/// Rows of a parameter that transformers has as a module of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePart {
    /// The module's path, or the parameter's name.
    pub name: String,
    /// The rows in the module's order; `None`: all, as they are.
    pub rows: Option<Vec<i64>>,
}

impl TreeNames {
    /// Makes the names of the model that this `config.json` describes.
    pub fn of(config: &Value) -> Self {
        let model_type = config["model_type"].as_str().unwrap_or_default();
        let vision = ModelCard::of(config).vision();
        let heads = ["num_attention_heads", "vt_num_attention_heads"].iter().find_map(|key| vision?[key].as_i64());
        let named = |beginnings, within| Self { beginnings, within, ..Self::default() };
        match model_type {
            loongforge_core::data::DIFFUSION => named(DIFFUSION, &[]),
            "qwen2_vl" | "qwen2_5_vl" => named(QWEN2_5_VL, &[]),
            "internvl" => named(INTERNVL, &[]),
            "gemma3" | "llava" | "paligemma" => named(LLAVA, &[]),
            "qwen2_audio" | "voxtral" => named(QWEN2_AUDIO, &[]),
            "deepseek_v4" => Self { by_parameter: true, ..Self::default() },
            "kimi_k25" => Self { split_heads: heads, ..named(KIMI, KIMI_WITHIN) },
            "ernie4_5_vl_moe" | "ernie4_5_moe_vl" => named(ERNIE_VL, ERNIE_VL_WITHIN),
            "minimax_m2" | "mixtral" => {
                Self { taken_for_experts: LIKE_MIXTRAL, ..named(&[], &[(".block_sparse_moe.", ".mlp.")]) }
            }
            _ if QWEN2_MOE_TYPES.contains(&model_type) => Self { taken_for_experts: LIKE_QWEN2_MOE, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Returns the names of a model whose head is its embedding: the modules of the two.
    pub fn with_tied(self, embedding: &str, head: &str) -> Self {
        Self { tied: Some([embedding, head].map(|module| format!("{module}.weight"))), ..self }
    }

    /// Returns the name of the head, where this is the weight of an embedding that is the head as well.
    pub fn tied_head(&self, name: &str) -> Option<String> {
        let [embedding, head] = self.tied.as_ref()?;
        (name == embedding).then(|| self.name(head))
    }

    /// Returns the module of a head that is the embedding as well, if there is one.
    pub fn tied_module(&self) -> Option<String> {
        let [_, head] = self.tied.as_ref()?;
        self.name(head).strip_suffix(".weight").map(str::to_owned)
    }

    /// Returns the name that rules of this tree match: the parameter's own, or that of its only tensor in files.
    pub fn known<'a>(&self, parameter: &'a str, in_file: &'a str) -> &'a str {
        if self.by_parameter { parameter } else { in_file }
    }

    /// Returns a module's path, or a parameter's name, in transformers.
    pub fn name(&self, name: &str) -> String {
        // A dot behind, so that rules of whole parts fit at the end of a path as well.
        let mut found = format!("{name}.");
        if let Some((from, to)) = self.beginnings.iter().find(|(from, _)| found.starts_with(from)) {
            found.replace_range(..from.len(), to);
        }
        let in_tower = self.split_heads.is_none() || found.starts_with("model.vision_tower.");
        // A second set of experts has a name of our own.
        if let Some((before, after)) = found.split_once(".experts.")
            && let Some((own, _)) = after.split_once("_from_")
            && !self.within.is_empty()
        {
            return format!("{}.vision_moe.experts.{own}_proj", before);
        }
        if let Some((from, to)) = self.within.iter().filter(|_| in_tower).find(|(from, _)| found.contains(from)) {
            found = found.replacen(from, to, 1);
        }
        found.truncate(found.len() - 1);
        found
    }

    /// Works like [`TreeNames::name`], where one parameter of ours of so many rows may be several modules.
    pub fn parts(&self, name: &str, num_rows: i64) -> Vec<TreePart> {
        let split = self.split_heads.and_then(|heads| {
            let (block, after) = name.split_once(".wqkv").filter(|(block, _)| block.contains("vision_tower."))?;
            Some((heads, block, after))
        });
        let Some((heads, block, after)) = split else {
            return vec![TreePart { name: self.name(name), rows: None }];
        };
        let (width, block) = (num_rows / 3, self.name(block));
        let half = width / heads / 2;
        // Of a head the file has pairs one after the other, transformers first the one half and then the other.
        let paired = |start: i64| {
            let row = move |head: i64, of_pair: i64, pair: i64| start + (head * half + pair) * 2 + of_pair;
            (0..heads).flat_map(move |head| (0..2).flat_map(move |two| (0..half).map(move |pair| row(head, two, pair))))
        };
        let part = |name: &str, rows| TreePart { name: format!("{block}.attn.{name}_proj{after}"), rows: Some(rows) };
        vec![
            part("q", paired(0).collect()),
            part("k", paired(width).collect()),
            part("v", (2 * width..3 * width).collect()),
        ]
    }

    /// Returns whether PEFT takes the linear map at this path of the tree for those of experts.
    pub fn is_taken_for_experts(&self, path: &str) -> bool {
        self.taken_for_experts.contains(&path.rsplit('.').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_of_the_modules() {
        let cases = [
            ("qwen2_5_vl", "visual.merger.mlp.0", "model.visual.merger.mlp.0"),
            ("qwen2_5_vl", "model.layers.1.mlp.up_proj", "model.language_model.layers.1.mlp.up_proj"),
            ("qwen2_5_vl", "lm_head", "lm_head"),
            ("internvl", "language_model.lm_head", "lm_head"),
            (
                "llava",
                "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
                "model.vision_tower.encoder.layers.0.mlp.fc1",
            ),
            ("kimi_k25", "mm_projector.proj.0", "model.mm_projector.in_proj"),
            ("kimi_k25", "vision_tower.encoder.blocks.1.mlp.fc0", "model.vision_tower.layers.1.mlp.fc1"),
            ("kimi_k25", "vision_tower.encoder.blocks.1.norm1.weight", "model.vision_tower.layers.1.norm2.weight"),
            ("ernie4_5_vl_moe", "model.resampler_model.spatial_linear.2", "model.resampler_model.spatial_linear.fc2"),
            (
                "ernie4_5_vl_moe",
                "model.layers.1.mlp.experts.gate_up_from_6",
                "model.language_model.layers.1.mlp.vision_moe.experts.gate_up_proj",
            ),
            (
                "ernie4_5_vl_moe",
                "model.layers.1.mlp.experts.down_proj",
                "model.language_model.layers.1.mlp.text_moe.experts.down_proj",
            ),
            ("minimax_m2", "model.layers.0.block_sparse_moe.experts.down_proj", "model.layers.0.mlp.experts.down_proj"),
            ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight"),
            ("qwen3_vl", "model.visual.merger.linear_fc1", "model.visual.merger.linear_fc1"),
        ];
        for (model_type, ours, theirs) in cases {
            assert_eq!(TreeNames::of(&json!({ "model_type": model_type })).name(ours), theirs);
        }
    }

    #[test]
    fn a_model_under_another_name_has_the_names_of_its_class() {
        let names = |model_type: &str| TreeNames::of(&json!({ "model_type": model_type }));
        assert_eq!(names("kimi_k2"), names("deepseek_v3"));
        assert_ne!(names("kimi_k2"), TreeNames::default());
    }

    #[test]
    fn a_fused_map_is_three_with_turned_rows() {
        let config = json!({"model_type": "kimi_k25", "vision_config": {"num_attention_heads": 2}});
        let parts = TreeNames::of(&config).parts("vision_tower.encoder.blocks.0.wqkv", 24);
        assert_eq!(parts[1].name, "model.vision_tower.layers.0.attn.k_proj");
        assert_eq!(parts[0].rows.as_deref().unwrap(), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(parts[2].rows.as_deref().unwrap(), [16, 17, 18, 19, 20, 21, 22, 23]);
    }
}
