//! The size of a model, from its configuration alone: parameters, FLOPs a token, memory. Nothing is allocated.
//!
//! FLOPs of a token, forward and backward, are `6 x m + 3 x s x a`. `m` are the parameters that the token is multiplied
//! with: no norms, no lookup in the embeddings, of the experts the chosen ones. `a` is the sum over layers of softmax
//! attention of `heads x (query width + value width)`, and `s` the sequence length: a causal token sees half of it on
//! average, and a product counts twice. Recomputation is not counted, nor are linear attention's states and what a
//! sparse attention saves.

use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::{ParamSpec, Role};

/// Rank of the adapters in [`Training::Lora`].
const LORA_RANK: i64 = 16;

/// Says how a model is trained, for its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Training {
    /// Weights, gradients and both moments in float32: 16 bytes a parameter.
    Float32,
    /// Weights in bf16; masters, gradients and both moments in float32: 18 bytes a parameter.
    Bf16,
    /// Weights in bf16, adapters of rank 16 beside the language model's linear maps as in [`Training::Bf16`].
    Lora,
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelSize {
    /// All parameters, buffers such as routers' biases included.
    pub parameters: u64,
    /// The parameters that a token meets: of the experts only the chosen ones.
    pub active: u64,
    /// The parameters of encoder and projector.
    pub encoder: u64,
    /// FLOPs of a token, forward and backward, and what each token of its sequence adds.
    flops: [f64; 2],
    /// Parameters of adapters of rank 16.
    adapters: u64,
}

impl ModelSize {
    /// Computes the size of a model.
    pub fn of(config: &ModelConfig) -> Self {
        let encoder: u64 = config.towers.specs().into_iter().map(|spec| count(&spec)).sum();
        let (shape, decoder) = (config.foundation.shape(), config.decoder());
        let is_head = |name: &str| decoder.is_some_and(|decoder| name.contains(&decoder.names.head));
        let mut size = Self { encoder, ..Self::default() };
        let mut multiplied = 0.0;
        let mut active = 0.0;
        for spec in config.foundation.specs() {
            let parameters = count(&spec);
            let met = if is_expert(&spec) { parameters as f64 * shape.expert_share } else { parameters as f64 };
            size.parameters += parameters;
            active += met;
            let is_aside = shape.aside.contains(&spec.name);
            if spec.shape.len() >= 2 && spec.role != Role::Buffer && !is_aside {
                multiplied += met;
            }
            if spec.is_linear && spec.shape.len() == 2 && !is_head(&spec.name) {
                size.adapters += adapter(&spec);
            }
        }
        // Of two transformers a token meets one.
        for spec in config.low_noise.iter().flat_map(|transformer| transformer.specs()) {
            size.parameters += count(&spec);
            size.adapters += if spec.is_linear { adapter(&spec) } else { 0 };
        }
        size.flops = [shape.flops_per_token(multiplied, 0), shape.flops_per_token(0.0, 1)];
        size.parameters += encoder;
        size.active = active.round() as u64 + encoder;
        size
    }

    /// Makes the size of a vision tower alone.
    pub fn tower(parameters: u64) -> Self {
        Self { parameters, active: parameters, encoder: parameters, ..Self::default() }
    }

    /// Returns the FLOPs of one token of the language model, forward and backward, in sequences of `seq_len`.
    pub fn flops_per_token(&self, seq_len: usize) -> f64 {
        self.flops[0] + seq_len as f64 * self.flops[1]
    }

    /// Returns the number of bytes of weights, gradients and the optimizer's state; activations come on top.
    pub fn memory(&self, training: Training) -> u64 {
        match training {
            Training::Float32 => 16 * self.parameters,
            Training::Bf16 => 18 * self.parameters,
            Training::Lora => 2 * self.parameters + 18 * self.adapters,
        }
    }
}

fn count(spec: &ParamSpec) -> u64 {
    spec.shape.iter().product::<i64>() as u64
}

/// Returns the number of parameters of the adapter of a linear map.
fn adapter(spec: &ParamSpec) -> u64 {
    (LORA_RANK * spec.shape.iter().sum::<i64>()) as u64
}

/// Returns whether this is a stack of experts: `[experts, out, in]`.
fn is_expert(spec: &ParamSpec) -> bool {
    spec.shape.len() == 3 && spec.name.contains("experts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{ModelFile, model_files};
    use serde_json::Value;
    use std::sync::LazyLock;

    fn config(name: &str) -> ModelConfig {
        // They are parsed once, not again for each name.
        static FILES: LazyLock<Vec<ModelFile>> = LazyLock::new(|| model_files().collect());
        let file = FILES.iter().find(|file| file.name == name).unwrap_or_else(|| panic!("no {name}"));
        ModelConfig::from_hf(&Value::Object(file.config.clone())).unwrap()
    }

    fn size(name: &str) -> ModelSize {
        ModelSize::of(&config(name))
    }

    #[test]
    fn parameters_are_the_published_ones() {
        let published = [
            ("llama2_7b", 6_738_415_616),
            ("llama3_8b", 8_030_261_248),
            ("llama3_1_405b", 405_853_388_800),
            ("qwen_7b", 7_721_324_544),
            ("qwen2_5_7b", 7_615_616_512),
            ("qwen2_5_0_5b", 494_032_768),
            ("qwen3_0_6b", 596_049_920),
            ("qwen3_32b", 32_762_123_264),
            ("internlm2_5_7b", 7_737_708_544),
            ("gemma_7b", 8_537_680_896),
            ("gemma2_27b", 27_227_128_320),
            ("gemma3_1b", 999_885_952),
            ("gemma3_4b", 4_300_079_472),
            ("gemma3_12b", 12_187_325_040),
            ("gemma3_27b", 27_432_406_640),
            ("florence2_base", 231_414_784 + 100 * 1024),
            ("florence2_large", 770_174_976 + 100 * 2048),
            ("paligemma_3b_224", 2_923_466_480),
            ("paligemma2_3b_224", 3_032_242_416),
            ("smolvlm2_256m", 256_484_928),
            ("smolvlm2_500m", 507_482_304),
            ("smolvlm2_2_2b", 2_246_784_880),
            ("minicpm_v4_6", 1_300_659_440),
            ("mistral_7b_v0_1", 7_241_732_096),
            ("mistral_nemo_12b", 12_247_782_400),
            ("mixtral_8x7b", 46_702_792_704),
            ("phi3_mini_4k", 3_821_079_552),
            ("phi4_14b", 14_659_507_200),
            ("phi4_mini", 3_836_021_760),
            ("olmo2_32b", 32_234_279_936),
            ("olmo3_7b", 7_298_011_136),
            ("smollm3_3b", 3_075_098_624),
            ("glm4_9b", 9_400_279_040),
            ("glm4_32b", 32_566_081_536),
            ("seed_oss_36b", 36_151_104_512),
            ("granite3_0_2b", 2_533_531_648),
            ("granite3_0_8b", 8_170_848_256),
            ("qwen1_5_moe_a2_7b", 14_315_784_192),
            ("olmoe_1b_7b", 6_919_161_856),
            // 30.95 billion are published, without embeddings.
            ("exaone4_32b", 30_954_635_264 + 5120 + 2 * 102_400 * 5120),
            ("gpt_oss_20b", 20_914_757_184),
            ("gpt_oss_120b", 116_829_156_672),
            ("qwen3_vl_2b", 2_127_532_032),
            // With the routers' biases, without the layer of multi-token prediction.
            ("deepseek_v3", 671_026_419_200),
            // With the routers' biases and tables of experts, as transformers' class counts without them.
            ("deepseek_v4_flash", 284_334_567_511),
            ("deepseek_v4_pro", 1_572_999_528_803),
            // As classes of transformers 5.17 count with the same values; of Omni models the thinker.
            ("qwen2_5_omni_3b", 4_703_464_448),
            ("qwen2_5_omni_7b", 8_931_813_888),
            ("qwen3_omni_30b_a3b", 31_719_205_488),
            ("qwen2_audio_7b", 8_397_094_912),
            ("voxtral_mini_3b", 4_676_271_104),
            ("qwen3_asr_1_7b", 2_038_052_480),
        ];
        for (name, parameters) in published {
            assert_eq!(size(name).parameters, parameters, "{name}");
        }
    }

    /// Wan 2.2's transformers have the sizes of Wan 2.1's, and two of them are trained.
    #[test]
    fn both_transformers_are_counted_and_a_token_meets_one() {
        let (one, two) = (size("wan2_1_t2v_14b"), size("wan2_2_t2v_a14b"));
        let transformer = one.parameters - one.encoder;
        assert_eq!((two.parameters, two.active), (one.parameters + transformer, one.active));
        assert_eq!(two.flops_per_token(4096), one.flops_per_token(4096));
        let adapters = |size: &ModelSize| size.memory(Training::Lora) - 2 * size.parameters;
        assert_eq!(adapters(&two), 2 * adapters(&one));
    }

    /// Counts as the classes of diffusers do. FLOPs are those of the tokens of pictures, without what rows of text and noise levels meet.
    #[test]
    fn diffusion_transformers_have_the_published_sizes() {
        for (name, transformer) in [
            ("wan2_1_t2v_1_3b", 1_418_996_800),
            ("wan2_1_t2v_14b", 14_288_491_584),
            ("wan2_1_i2v_14b", 16_394_878_784),
            ("wan2_2_ti2v_5b", 4_999_787_712),
            ("qwen_image", 20_430_401_088),
        ] {
            let of = size(name);
            assert_eq!(of.parameters - of.encoder, transformer, "{name}");
        }
        // 81 frames of 480×832: a block has six maps of d × d and two of d × f for these tokens, and patches have 64 numbers.
        let (d, f, tokens) = (5120.0, 13_824.0, 32_760);
        let multiplied = 40.0 * (6.0 * d * d + 2.0 * d * f) + 2.0 * 64.0 * d;
        let expected = 6.0 * multiplied + 12.0 * tokens as f64 * 40.0 * d;
        assert_eq!(size("wan2_1_t2v_14b").flops_per_token(tokens), expected);
        let d = 3072.0;
        let multiplied = 60.0 * 12.0 * d * d + 2.0 * 64.0 * d;
        assert_eq!(size("qwen_image").flops_per_token(4096), 6.0 * multiplied + 12.0 * 4096.0 * 60.0 * d);
    }

    /// The length of a sample whose attention costs as much as its matrices: 3·d + f of Wan, 6·d of Qwen-Image.
    #[test]
    fn samples_of_diffusion_transformers_are_weighed_by_the_published_sizes() {
        for (name, even_length) in [
            ("wan2_1_t2v_1_3b", 13_568),
            ("wan2_1_t2v_14b", 29_184),
            ("wan2_2_ti2v_5b", 23_552),
            ("qwen_image", 18_432),
        ] {
            assert_eq!(config(name).foundation.shape().even_length, even_length, "{name}");
        }
    }

    #[test]
    fn flops_and_memory_follow_from_the_sizes() {
        let llama = size("llama3_8b");
        // Without the lookup in the embeddings and the 65 norms of 4096.
        let multiplied = 8_030_261_248.0 - 128_256.0 * 4096.0 - 65.0 * 4096.0;
        let attention = 32.0 * 32.0 * 256.0;
        assert_eq!(llama.flops_per_token(4096), 6.0 * multiplied + 3.0 * 4096.0 * attention);
        assert_eq!(llama.memory(Training::Float32), 16 * 8_030_261_248);
        // q, k, v, o: 4096 + 4096 twice, 4096 + 1024 twice; gate, up, down: 4096 + 14336 three times.
        let adapters = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432);
        assert_eq!(llama.memory(Training::Lora), 2 * 8_030_261_248 + 18 * adapters);
    }
}
