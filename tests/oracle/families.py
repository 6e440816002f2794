"""The families that fixtures are made of: a tiny config, a reference class and changes of the config for each.

Widths are small but distinct (hidden 24, feed-forward 36, experts 12, ...), so that a swapped or transposed tensor
shows. A change maps dotted paths of the config to values; `--set` takes the same paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VOCAB = 64
LAST_WORD = 56  # tokens 3..55 are words; the special ones of images follow
IMAGE, VIDEO, VISION_START, VISION_END = 58, 59, 60, 61
AUDIO_TOKEN, AUDIO_START, AUDIO_END = 57, 62, 63


@dataclass(frozen=True)
class Family:
    name: str
    model: str  # a class of transformers, or of references.py
    covers: str
    config: dict
    variants: dict = field(default_factory=dict)
    kind: str = "text"  # how inputs are made, see batches.py
    mtp: str = ""  # layout of the multi-token prediction head, see references.py
    published: dict = field(default_factory=dict)  # entries of config.json that differ from what transformers writes
    lora: dict = field(default_factory=dict)  # of PEFT's LoraConfig: the base is frozen, and an adapter trained
    adam_eps: float = 1e-8  # of the steps, larger where some gradients are rounding alone
    renames: dict = field(default_factory=dict)  # pattern to replacement, where transformers saves a wrong name

    @property
    def plain(self) -> bool:
        """Whether the reference is a module of ours, not a class of transformers."""
        return self.model in ("Qwen1", "InternLM2", "InternVLChat", "LlavaOneVision15", "Composed")


FAMILIES: dict[str, Family] = {}


def add(name, model, covers, config, **more):
    FAMILIES[name] = Family(name, model, covers, config, **more)


def text(**over) -> dict:
    base = dict(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, tie_word_embeddings=False, use_cache=False,
    )
    return {**base, **over}


def rope(theta, **more) -> dict:
    return {"rope_type": "default", "rope_theta": theta, **more}


def scaled(kind, theta, factor, **more) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, "factor": factor, **more}}


# Sequences of equal length: the frequencies of transformers' dynamic scaling depend on the longest of the batch.
DYNAMIC = {"max_position_embeddings": 16, "fixture.equal_lengths": True}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LAYERS3, MQA = {"num_hidden_layers": 3}, {"num_key_value_heads": 1}

# ------------------------------------------------------------------------------------ dense decoders

add("llama2", "LlamaForCausalLM", "LLaMA 2",
    text(num_key_value_heads=4, rms_norm_eps=1e-5, rope_parameters=rope(10000.0)),
    variants={"gqa": {"num_key_value_heads": 2}, "linear-rope": scaled("linear", 10000.0, 2.0),
              "dynamic-rope": {**scaled("dynamic", 10000.0, 2.0), **DYNAMIC}})
add("llama3", "LlamaForCausalLM", "LLaMA 3", text(rms_norm_eps=1e-5, rope_parameters=rope(500000.0)),
    variants={"biases": {"attention_bias": True, "mlp_bias": True}, "tied-3layers": {**TIED, **LAYERS3},
              "yarn": scaled("yarn", 500000.0, 4.0, original_max_position_embeddings=16)})
LLAMA31 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32)
add("llama3.1", "LlamaForCausalLM", "LLaMA 3.1, 3.2, 3.3 (rope of type llama3)",
    text(rms_norm_eps=1e-5, rope_parameters=LLAMA31),
    variants={"tied-factor32": {**TIED, "rope_parameters.factor": 32.0}, "mqa-headdim8": {**MQA, "head_dim": 8},
              "longrope": {"rope_parameters": {
                  "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24, "factor": 4.0,
                  "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.0, 4.0]}}})
add("mistral", "MistralForCausalLM", "Mistral 7B v0.1 (with a window); Nemo and v0.3 as changes",
    text(head_dim=8, rms_norm_eps=1e-5, sliding_window=6, rope_parameters=rope(10000.0)),
    variants={"no-window-mqa-3layers": {**MQA, **LAYERS3, "sliding_window": None, "rope_parameters.rope_theta": 1e6},
              "tied-yarn": {**TIED, **scaled("yarn", 1e6, 4.0, original_max_position_embeddings=16), "head_dim": None}})
PHI3 = text(rms_norm_eps=1e-5, sliding_window=None, original_max_position_embeddings=64,
            rope_parameters=rope(10000.0, partial_rotary_factor=1.0))
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.3],
        "long_factor": [1.5, 4.0]}
add("phi3", "Phi3ForCausalLM", "Phi-3 and 4 with fused projections; Phi-3.5 and Phi-4-mini (longrope) as changes", PHI3,
    variants={"window-tied-mqa": {**MQA, **TIED, **LAYERS3, "sliding_window": 6},
              # Heads are 6 wide, of which 4 turn; all documents are longer than the original 8, or shorter than 64.
              "longrope-long": {"original_max_position_embeddings": 8, "rope_parameters": LONG},
              "longrope-short-tied": {**TIED, "rope_parameters": LONG},
              # Documents are shorter than 36, and what is generated is longer.
              "longrope-crossing": {"original_max_position_embeddings": 36, "rope_parameters": LONG}})
add("olmo2", "Olmo2ForCausalLM", "OLMo 2 (norms after the branches only)", text(rope_parameters=rope(500000.0)),
    variants={"bias-tied": {**TIED, "attention_bias": True}, "mqa-3layers": {**MQA, **LAYERS3, "rms_norm_eps": 1e-5}})
OLMO3_ROPES = {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500000.0, "attention_factor": 1.2,
                                  "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0},
               "sliding_attention": rope(500000.0)}
add("olmo3", "Olmo3ForCausalLM", "OLMo 3 (windows, and scaled rotary embeddings in full layers alone)",
    text(sliding_window=6, layer_types=["sliding_attention", "full_attention"], rope_parameters=OLMO3_ROPES),
    variants={"full-first-bias": {"layer_types": ["full_attention", "sliding_attention"], "attention_bias": True},
              "plain-mqa-3layers": {**MQA, **LAYERS3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
                                    "rope_parameters.full_attention": rope(500000.0)}})
add("smollm3", "SmolLM3ForCausalLM", "SmolLM3 (layers without positions)",
    text(tie_word_embeddings=True, rope_parameters=rope(2e6), no_rope_layers=[1, 0]),
    variants={"window-bias": {"use_sliding_window": True, "sliding_window": 6, "attention_bias": True, "mlp_bias": True,
                              "layer_types": ["full_attention", "sliding_attention"]},
              "untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3, "no_rope_layers": [0, 1, 0]}})
add("glm4", "Glm4ForCausalLM", "GLM-4-9B-0414, GLM-4-32B-0414 (without biases, as a change), GLM-Z1",
    text(head_dim=8, rms_norm_eps=1e-5, attention_bias=True, rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
    adam_eps=1e-5,  # biases of keys get gradients of rounding alone in channels that do not turn
    variants={"no-bias-3layers": {**LAYERS3, "attention_bias": False}, "tied-mqa-whole": {**TIED, **MQA, "rope_parameters.partial_rotary_factor": 1.0}})
add("seed_oss", "SeedOssForCausalLM", "Seed-OSS 36B (without its dropout)",
    text(head_dim=8, attention_dropout=0.0, residual_dropout=0.0, rope_parameters=rope(1e7)),
    variants={"biases-tied": {**TIED, "attention_out_bias": True, "mlp_bias": True}, "no-bias-mqa": {**MQA, "attention_bias": False}})
MINISTRAL_ROPE = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0,
                      mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5)
add("ministral3", "Ministral3ForCausalLM", "Ministral 3 3B, 8B, 14B (text)",
    text(head_dim=8, rms_norm_eps=1e-5, rope_parameters=MINISTRAL_ROPE),
    variants={"plain-tied-mqa": {**TIED, **MQA, "rope_parameters": rope(10000.0, llama_4_scaling_beta=0.3, original_max_position_embeddings=4)},
              "window-3layers": {**LAYERS3, "sliding_window": 6}})
add("granite", "GraniteForCausalLM", "Granite 3.0 to 3.3 (dense)",
    text(rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(10000.0), embedding_multiplier=12.0,
         attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0),
    variants={"untied-biases": {**UNTIED, "attention_bias": True, "mlp_bias": True, "logits_scaling": 0.7},
              "mqa-3layers": {**MQA, **LAYERS3, "residual_multiplier": 1.3, "embedding_multiplier": 1.0}})
add("exaone4", "Exaone4ForCausalLM", "EXAONE 4.0 32B (layers with a window turn alone); 1.2B as a change",
    text(head_dim=8, rms_norm_eps=1e-5, sliding_window=6, layer_types=["sliding_attention", "full_attention"],
         rope_parameters={**LLAMA31, "rope_theta": 1e6}),
    variants={"no-window-tied": {**TIED, "sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
              "full-first-mqa-3layers": {**MQA, **LAYERS3, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                                         "rope_parameters": rope(1e6)}})
ALPHA = dict(rope_type="dynamic", rope_theta=10000.0, factor=1.0, alpha=1000.0)
add("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", "Hunyuan 0.5B, 1.8B, 4B, 7B",
    text(head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=ALPHA),
    variants={"untied-bias-plain": {**UNTIED, "attention_bias": True, "rope_parameters": rope(10000.0)},
              "beyond-mqa-3layers": {**MQA, **LAYERS3, **DYNAMIC, "rope_parameters.factor": 2.0}})
add("qwen1.5", "Qwen2ForCausalLM", "Qwen1.5", text(num_key_value_heads=4, rope_parameters=rope(1e6)),
    variants={"gqa": {"num_key_value_heads": 2}, "tied-theta": {**TIED, "rope_parameters.rope_theta": 10000.0}})
add("qwen2", "Qwen2ForCausalLM", "Qwen2 (tied, as 0.5B and 1.5B)", text(tie_word_embeddings=True, rope_parameters=rope(1e6)),
    variants={"untied-mqa": {**UNTIED, **MQA}, "dynamic-rope": {**scaled("dynamic", 10000.0, 2.0), **DYNAMIC},
              "window": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "hidden_act": "gelu"}})
add("qwen2.5", "Qwen2ForCausalLM", "Qwen2.5", text(rope_parameters=rope(1e6)),
    variants={"yarn": scaled("yarn", 1e6, 4.0, original_max_position_embeddings=16), "tied-3layers": {**TIED, **LAYERS3}})
add("qwen3", "Qwen3ForCausalLM", "Qwen3 dense (tied)",
    text(head_dim=8, tie_word_embeddings=True, rope_parameters=rope(1e6)),
    variants={"yarn-bias": {**scaled("yarn", 1e6, 4.0, original_max_position_embeddings=16), "attention_bias": True},
              "untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3}})
add("qwen3_lora", "Qwen3ForCausalLM", "An adapter of PEFT on Qwen3",
    text(head_dim=8, tie_word_embeddings=True, rope_parameters=rope(1e6)),
    lora={"r": 3, "lora_alpha": 7, "target_modules": "all-linear"},
    variants={"attention-only": {"lora.target_modules": ["q_proj", "v_proj"], "lora.r": 2},
              "rslora": {"lora.use_rslora": True, "lora.exclude_modules": ["down_proj"]},
              # Norms of rows, ranks and alphas by pattern, and a norm that is trained itself.
              "dora": {"lora.use_dora": True, "lora.use_rslora": True, "lora.modules_to_save": ["model.norm"],
                       "lora.rank_pattern": {r"layers\.0\..*_proj": 2, "v_proj": 4}, "lora.alpha_pattern": {"q_proj|o_proj": 11}},
              # QLoRA: beside weights of 4 bits, whose rows are blocks of bitsandbytes.
              "nf4": {**MQA, "fixture.frozen_precision": "nf4", "hidden_size": 64, "intermediate_size": 64, "head_dim": 16}})
add("ernie4.5", "Ernie4_5ForCausalLM", "ERNIE-4.5 0.3B",
    text(head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(500000.0)),
    variants={"bias": {"use_bias": True}, "untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3}})

GEMMA = text(head_dim=8, tie_word_embeddings=True)
WINDOWED = dict(sliding_window=6, query_pre_attn_scalar=10)
add("gemma", "GemmaForCausalLM", "Gemma 1, CodeGemma", {**GEMMA, "rope_parameters": rope(10000.0)},
    variants={"untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3}, "bias-gelu": {"attention_bias": True, "hidden_act": "gelu"}})
add("gemma2", "Gemma2ForCausalLM", "Gemma 2",
    {**GEMMA, **WINDOWED, "rope_parameters": rope(10000.0), "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    variants={"no-caps-bias": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
              "untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3, "query_pre_attn_scalar": 24,
                                     "layer_types": ["full_attention", "sliding_attention", "full_attention"]}})
GEMMA3_ROPES = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
add("gemma3_text", "Gemma3ForCausalLM", "Gemma 3 (text)",
    {**GEMMA, **WINDOWED, "rope_parameters": GEMMA3_ROPES, "layer_types": ["sliding_attention", "full_attention"]},
    variants={"untied-mqa-3layers": {**UNTIED, **MQA, **LAYERS3, "sliding_window": 4,
                                     "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                     "rope_parameters.full_attention": rope(1e6)},
              "final-cap-bias": {"final_logit_softcapping": 2.0, "attention_bias": True,
                                 "rope_parameters.sliding_attention.rope_theta": 500.0}})

# --------------------------------------------------------------------------------- mixtures of experts

MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12)
AUX = dict(output_router_logits=True, router_aux_loss_coef=0.01)
add("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3-MoE, Qwen3-Coder",
    text(head_dim=8, rope_parameters=rope(1e6), **MOE, **AUX, norm_topk_prob=True, decoder_sparse_step=1,
         mlp_only_layers=[]),
    variants={"sparse-step": {**LAYERS3, "decoder_sparse_step": 2, "norm_topk_prob": False},
              "mlp-only": {**LAYERS3, "mlp_only_layers": [1], "num_experts_per_tok": 3, "output_router_logits": False},
              "bias-yarn-tied": {**scaled("yarn", 1e6, 4.0, original_max_position_embeddings=16), **TIED,
                                 "attention_bias": True}})
add("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    text(num_key_value_heads=4, rope_parameters=rope(1e6), **MOE, **AUX, shared_expert_intermediate_size=20, norm_topk_prob=False),
    variants={"window-top3-3layers": {**LAYERS3, "num_experts_per_tok": 3, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
              "no-bias-dense-first-tied": {**TIED, "qkv_bias": False, "mlp_only_layers": [0], "num_key_value_heads": 2, "norm_topk_prob": True}})
add("olmoe", "OlmoeForCausalLM", "OLMoE 1B-7B", text(intermediate_size=12, num_key_value_heads=4, rms_norm_eps=1e-5, rope_parameters=rope(10000.0),
                                                      num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, **AUX),
    variants={"top3-bias-tied": {**TIED, "num_experts_per_tok": 3, "attention_bias": True, "norm_topk_prob": True},
              "mqa-3layers": {**MQA, **LAYERS3, "output_router_logits": False}})
add("mixtral", "MixtralForCausalLM", "Mixtral 8x7B and 8x22B",
    text(rms_norm_eps=1e-5, rope_parameters=rope(1e6), intermediate_size=12, num_local_experts=6, num_experts_per_tok=2,
         sliding_window=None, **AUX),
    variants={"window-top3": {"sliding_window": 6, "num_experts_per_tok": 3, "head_dim": 8},
              "mqa-tied-3layers": {**MQA, **TIED, **LAYERS3, "output_router_logits": False}})
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
add("qwen3_moe_lora", "Qwen3MoeForCausalLM", "An adapter of PEFT on Qwen3-MoE, experts included",
    text(head_dim=8, rope_parameters=rope(1e6), **MOE, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
    lora={"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"], "target_parameters": EXPERTS},
    variants={"down-only": {"lora.target_parameters": EXPERTS[1:], "lora.target_modules": [], "lora.use_rslora": True}})
add("ernie4.5_moe", "Ernie4_5_MoeForCausalLM", "ERNIE-4.5 21B-A3B and 300B-A47B",
    text(num_hidden_layers=3, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(500000.0),
         moe_num_experts=6, moe_k=2, moe_intermediate_size=12, moe_num_shared_experts=2, moe_layer_start_index=1,
         moe_layer_interval=1, **AUX),
    variants={"untied-no-shared": {**UNTIED, "moe_num_shared_experts": 0},
              "interval2": {"moe_layer_interval": 2, "moe_k": 3},
              "bias": {"use_bias": True, "hidden_act": "gelu_pytorch_tanh"}})
add("minimax_m2", "MiniMaxM2ForCausalLM", "MiniMax-M2, M2.1, M2.5",
    text(intermediate_size=12, head_dim=8, num_local_experts=6, num_experts_per_tok=2, **AUX,
         rope_parameters=rope(5e6, partial_rotary_factor=0.5)),
    variants={"top3-full-rotary": {"num_experts_per_tok": 3, "rope_parameters.partial_rotary_factor": 1.0},
              "mqa-tied-3layers": {**MQA, **TIED, **LAYERS3, "output_router_logits": False}})

LINEAR = dict(num_hidden_layers=3, head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=8,
              linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=4,
              layer_types=["linear_attention", "linear_attention", "full_attention"])
FULL_FIRST = {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}
QWEN3_NEXT = text(**LINEAR, rope_parameters=rope(1e7, partial_rotary_factor=0.25), **MOE, **AUX,
                  shared_expert_intermediate_size=20, norm_topk_prob=True)
add("qwen3_next", "Qwen3NextForCausalLM", "Qwen3-Next", QWEN3_NEXT,
    variants={"equal-heads": {"linear_num_value_heads": 2, "norm_topk_prob": False, "linear_conv_kernel_dim": 3},
              "full-first-dense": {**FULL_FIRST, "mlp_only_layers": [0], "num_experts_per_tok": 3}})
add("qwen3_next_mtp", "Qwen3NextForCausalLM", "Qwen3-Next with its prediction head", QWEN3_NEXT, mtp="qwen3_next",
    published={"num_nextn_predict_layers": 1},
    variants={"tied": TIED, "no-aux": {"output_router_logits": False, "linear_num_value_heads": 2}})

OSS_ROPE = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=16)
add("gpt_oss", "GptOssForCausalLM", "gpt-oss 20b and 120b",
    text(head_dim=8, rms_norm_eps=1e-5, intermediate_size=12, num_local_experts=6, num_experts_per_tok=2, **AUX,
         sliding_window=6, layer_types=["sliding_attention", "full_attention"], rope_parameters=OSS_ROPE),
    variants={"top3-tied-no-bias": {**TIED, "num_experts_per_tok": 3, "attention_bias": False, "output_router_logits": False},
              # Downs are square, so that their shape does not tell how they are stored.
              "square-mqa-3layers": {**MQA, **LAYERS3, "num_local_experts": 4, "intermediate_size": 24,
                                     "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                                     "rope_parameters": rope(10000.0)}})

MLA = dict(num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=12,
           v_head_dim=10, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
           moe_intermediate_size=12)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32,
            beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
V2_YARN = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
PLAIN_ROPE = {"rope_parameters": rope(10000.0)}
V2 = text(**{**MLA, "n_shared_experts": 2}, norm_topk_prob=False)
add("deepseek_v2_lite", "DeepseekV2ForCausalLM", "DeepSeek-V2-Lite (no query compression, greedy top-k)",
    {**V2, "q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.0, "rope_parameters": rope(10000.0)},
    variants={"yarn-scaling": {"rope_parameters": V2_YARN, "routed_scaling_factor": 1.5},
              "all-sparse-tied": {**TIED, "first_k_dense_replace": 0, "num_experts_per_tok": 3, "attention_bias": True}})
add("deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2 (group-limited top-k)",
    {**V2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 16.0,
     "rope_parameters": rope(10000.0)},
    variants={"yarn": {"rope_parameters": V2_YARN}, "groups2-3layers": {**LAYERS3, "n_group": 2, "topk_group": 1}})
NOAUX = dict(n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5)
V3 = text(**MLA, **NOAUX, rope_parameters=YARN)
add("deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3, Kimi-K2", V3,
    variants={"no-norm-one-group": {"norm_topk_prob": False, "n_group": 1, "topk_group": 1, **LAYERS3},
              "no-query-lora": {"q_lora_rank": None, **PLAIN_ROPE, "attention_bias": True},
              "half-rotation": {"rope_interleave": False, "n_shared_experts": 2}})
add("kimi_k2", "DeepseekV3ForCausalLM", "Kimi-K2 (DeepSeek-V3 under a name of its own)",
    {**V3, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}, published={"model_type": "kimi_k2"},
    variants={"plain-rope-top3": {**PLAIN_ROPE, "num_experts_per_tok": 3}, "tied-3layers": {**TIED, **LAYERS3}})
add("deepseek_v3_mtp", "DeepseekV3ForCausalLM", "DeepSeek-V3 with its prediction head", V3, mtp="deepseek",
    published={"num_nextn_predict_layers": 1},
    variants={"plain-rope": PLAIN_ROPE, "one-group": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}})
# With few heads many scores are exactly zero (ReLU), and a tie leaves the choice of keys open.
INDEXER = dict(index_topk=8, index_head_dim=12, index_n_heads=16, head_dim=8)
add("deepseek_v3.2", "DeepseekV32ForCausalLM", "DeepSeek-V3.2 (sparse attention by indexer)", {**V3, **INDEXER},
    variants={"top5-3layers": {"index_topk": 5, **LAYERS3}, "plain-rope-one-group": {**PLAIN_ROPE, "n_group": 1, "topk_group": 1}})
# Documents are 26 to 32 and 12 to 19 tokens: entries of 4 are more than are chosen, and some tokens have none. The first
# connection mixes streams that are equal: the gradient of its matrix is rounding alone (1e-9), of which an AdamW with an eps of
# 1e-8 makes steps.
V4_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.0}
V4_ROPES = {"main": rope(10000.0, partial_rotary_factor=0.5), "compress": rope(160000.0, partial_rotary_factor=0.5)}
V4 = dict(
    vocab_size=VOCAB, hidden_size=16, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=1, head_dim=12, q_lora_rank=14, o_groups=2, o_lora_rank=9, sliding_window=6,
    layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    mlp_layer_types=["hash_moe", "moe", "moe"], n_routed_experts=4, num_experts_per_tok=2, index_n_heads=16,
    index_head_dim=8, index_topk=3, hc_mult=3, swiglu_limit=1.0, rope_parameters=V4_ROPES, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, use_cache=False, max_position_embeddings=512)
# transformers 5.17 saves some tensors with published names and some as its modules are called.
V4_RENAMES = {r"^model\.embed_tokens\.": "embed.", r"^model\.hc_head\.hc_": "hc_head_", r"\.hc_head\.hc_": ".hc_head_", r"^model\.": "",
              r"\.attn\.norm\.": ".attn.kv_norm."}
add("deepseek_v4", "DeepseekV4ForCausalLM", "DeepSeek-V4 (compressed attention, hyper-connections, experts by token)", V4,
    renames=V4_RENAMES, adam_eps=1e-5,
    variants={"sparse-first-yarn": {"layer_types": ["compressed_sparse_attention", "sliding_attention", "compressed_sparse_attention"],
                                    "rope_parameters.compress": {**V4_ROPES["compress"], **V4_YARN}, "index_topk": 2},
              "heavy-2streams-tied": {**TIED, "hc_mult": 2, "hc_sinkhorn_iters": 3, "num_experts_per_tok": 3,
                                      "layer_types": ["heavily_compressed_attention", "heavily_compressed_attention", "compressed_sparse_attention"]},
              "balanced-no-hash": {"mlp_layer_types": ["moe", "moe", "hash_moe"], "output_router_logits": True,
                                   "router_aux_loss_coef": 0.05, "o_groups": 4, "scoring_func": "sigmoid", "sliding_window": 40},
              "whole-heads-turn": {"rope_parameters.main.partial_rotary_factor": 1.0, "rope_parameters.compress.partial_rotary_factor": 1.0,
                                   "index_head_dim": 12, "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 5}}})
add("deepseek_v4_mtp", "DeepseekV4ForCausalLM", "DeepSeek-V4 with its prediction head",
    {**V4, "num_hidden_layers": 2, "layer_types": V4["layer_types"][1:], "mlp_layer_types": ["hash_moe", "moe"]},
    mtp="deepseek_v4", renames=V4_RENAMES, adam_eps=1e-5,
    variants={"2streams": {"hc_mult": 2}, "tied-sliding-last": {**TIED, "layer_types": ["heavily_compressed_attention", "sliding_attention"]}})
GLM5 = text(**MLA, **{**NOAUX, "n_group": 1, "topk_group": 1}, rms_norm_eps=1e-5, rope_parameters=rope(1e6), **INDEXER)
GLM4 = text(head_dim=8, rms_norm_eps=1e-5, rope_parameters=rope(1e6, partial_rotary_factor=0.5), attention_bias=True,
            use_qk_norm=True, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
            moe_intermediate_size=12, **{**NOAUX, "n_group": 1, "topk_group": 1}, num_nextn_predict_layers=0)
add("glm4_moe", "Glm4MoeForCausalLM", "GLM-4.5, 4.6", GLM4,
    variants={"air": {"use_qk_norm": False, "attention_bias": False, "routed_scaling_factor": 1.0, "num_experts_per_tok": 3},
              "groups-no-norm-3layers": {**LAYERS3, "n_group": 4, "topk_group": 2, "norm_topk_prob": False,
                                         "rope_parameters.partial_rotary_factor": 1.0, "first_k_dense_replace": 2}})
add("glm4_moe_mtp", "Glm4MoeForCausalLM", "GLM-4.5 with its prediction head", {**GLM4, "n_routed_experts": 4}, mtp="deepseek",
    published={"num_nextn_predict_layers": 1},
    variants={"air": {"use_qk_norm": False, "attention_bias": False, "routed_scaling_factor": 1.0}, "top3-mqa": {"num_experts_per_tok": 3, **MQA}})
GLM_LITE = text(**{key: value for key, value in MLA.items() if key != "first_k_dense_replace"}, n_group=1, topk_group=1, norm_topk_prob=True,
                routed_scaling_factor=1.8, rms_norm_eps=1e-5, rope_parameters=rope(1e6))
add("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", GLM_LITE,
    variants={"no-query-lora-top3": {"q_lora_rank": None, "num_experts_per_tok": 3, "attention_bias": True},
              "half-rotation-groups-3layers": {**LAYERS3, "rope_interleave": False, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}})
add("glm5", "GlmMoeDsaForCausalLM", "GLM-5", GLM5,
    variants={"shared-indexer": {**LAYERS3, "indexer_types": ["full", "shared", "full"], "n_routed_experts": 6},
              "top5-no-norm": {"index_topk": 5, "norm_topk_prob": False, "num_experts_per_tok": 3}})
add("glm5_mtp", "GlmMoeDsaForCausalLM", "GLM-5 with its prediction head", {**GLM5, "n_routed_experts": 4}, mtp="deepseek",
    published={"num_nextn_predict_layers": 1}, variants={"top5": {"index_topk": 5}, "no-norm": {"norm_topk_prob": False}})

# ------------------------------------------------------------------------- no reference in transformers

add("mimo", "Qwen2ForCausalLM", "MiMo-7B (Qwen2.5's trunk, with its prediction head)", text(rope_parameters=rope(640000.0)),
    mtp="mimo", published={"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1},
    variants={"mqa-3layers": {**MQA, **LAYERS3}, "tied-theta": {**TIED, "rope_parameters.rope_theta": 10000.0}})
add("qwen1", "Qwen1", "Qwen (1)",
    dict(model_type="qwen", architectures=["QWenLMHeadModel"], vocab_size=VOCAB, hidden_size=24, intermediate_size=72,
         num_hidden_layers=2, num_attention_heads=4, kv_channels=6, rotary_emb_base=10000, rotary_pct=1.0,
         layer_norm_epsilon=1e-6, no_bias=True, seq_length=512, max_position_embeddings=512, scale_attn_weights=True,
         use_dynamic_ntk=True, use_logn_attn=True, emb_dropout_prob=0.0, attn_dropout_prob=0.0, bf16=False, fp16=False,
         fp32=True, tie_word_embeddings=False, use_cache=False),
    variants={"biases-kv10": {"no_bias": False, "kv_channels": 10}, "tied-theta-3layers": {**TIED, **LAYERS3, "rotary_emb_base": 1000000}})
INTERNLM2 = dict(model_type="internlm2", architectures=["InternLM2ForCausalLM"], vocab_size=VOCAB, hidden_size=24,
                 intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bias=False,
                 hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=1000000,
                 rope_scaling={"type": "dynamic", "factor": 2.0}, bos_token_id=1, eos_token_id=2, pad_token_id=2,
                 tie_word_embeddings=False, use_cache=False)
add("internlm2.5", "InternLM2", "InternLM2, InternLM2.5", INTERNLM2,
    variants={"dynamic-beyond": DYNAMIC, "bias-mha": {"bias": True, "num_key_value_heads": 4},
              "linear-mqa-tied": {"rope_scaling": {"type": "linear", "factor": 2.0}, **MQA, **TIED}})
add("internvl2.5_chat", "InternVLChat", "InternVL2.5 and 3.5 in their original layout (InternViT; InternLM2.5, Qwen2.5 or Qwen3)",
    dict(model_type="internvl_chat", architectures=["InternVLChatModel"], downsample_ratio=0.5, ps_version="v2",
         select_layer=-1, force_image_size=16, image_token_id=IMAGE, tie_word_embeddings=False, llm_config=INTERNLM2,
         vision_config=dict(model_type="intern_vit_6b", architectures=["InternVisionModel"], hidden_size=16,
                            intermediate_size=28, num_hidden_layers=2, num_attention_heads=2, image_size=16,
                            patch_size=4, num_channels=3, qkv_bias=True, qk_normalization=False,
                            norm_type="layer_norm", hidden_act="gelu", initializer_factor=0.1, layer_norm_eps=1e-6,
                            drop_path_rate=0.0)),
    kind="intern_chat",
    variants={"6b-vit": {"vision_config.qk_normalization": True, "vision_config.norm_type": "rms_norm",
                         "vision_config.qkv_bias": False},
              "bias-3layers": {"llm_config.bias": True, "llm_config.num_hidden_layers": 3},
              "qwen2": {"llm_config": {**text(rope_parameters=rope(1e6)), "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}},
              "qwen3": {"llm_config": {**text(head_dim=8, rope_parameters=rope(1e6)), "model_type": "qwen3",
                                       "architectures": ["Qwen3ForCausalLM"]}}})
add("llava_onevision1.5", "LlavaOneVision15", "LLaVA-OneVision-1.5 (Rice ViT on a Qwen3 decoder)",
    dict(model_type="llavaonevision1_5", architectures=["LLaVAOneVision1_5_ForConditionalGeneration"],
         image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=VISION_START,
         vision_end_token_id=VISION_END, tie_word_embeddings=False, vocab_size=VOCAB,
         text_config={**text(head_dim=8, attention_bias=False, hidden_act="silu", rope_theta=1e6),
                      "model_type": "LLaVAOneVision1_5_text"},
         vision_config=dict(model_type="rice_vit", depth=2, hidden_size=16, embed_dim=16, intermediate_size=28,
                            num_heads=2, in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=1,
                            text_hidden_size=24, hidden_act="gelu", layer_norm_eps=1e-5)),
    kind="rice",
    variants={"mqa-depth3": {"text_config.num_key_value_heads": 1, "vision_config.depth": 3},
              "bias-heads1": {"text_config.attention_bias": True, "vision_config.num_heads": 1}})

# --------------------------------------------------------------------------- models put together from parts


def composed(name, covers, tower, foundation, variants):
    add(name, "Composed", covers, dict(model_type="loongforge_vlm", image_encoder=tower, image_projector={}, image_token_id=IMAGE,
                                       foundation=foundation), kind="composed", variants=variants)


QWEN2 = {**text(rope_parameters=rope(1e6)), "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
LLAMA = {**text(rope_parameters=rope(10000.0)), "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
SMALL_VIT = dict(hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4,
                 num_channels=3)
SIGLIP = dict(model_type="siglip_vision_model", **SMALL_VIT, layer_norm_eps=1e-6, vision_use_head=False)
CLIP = dict(model_type="clip_vision_model", **{**SMALL_VIT, "num_hidden_layers": 3}, layer_norm_eps=1e-5, hidden_act="quick_gelu")
DINOV2 = dict(model_type="dinov2", hidden_size=16, mlp_ratio=2, num_hidden_layers=2, num_attention_heads=2, image_size=12,
              patch_size=4, num_channels=3, layer_norm_eps=1e-6, layerscale_value=0.8)
composed("siglip", "SigLIP's tower, a projector and a Qwen2 decoder, put together from parts", SIGLIP, QWEN2,
    variants={"depth3-gelu": {"image_encoder.num_hidden_layers": 3, "image_encoder.hidden_act": "gelu"},
              "odd-size-llama": {"image_encoder.image_size": 14, "image_encoder.num_attention_heads": 4, "foundation": LLAMA},
              "layer-2": {"image_encoder.num_hidden_layers": 3, "image_encoder.vision_feature_layer": -2}})
composed("clip", "CLIP's tower, a projector and a Llama decoder, put together from parts", CLIP, LLAMA,
    variants={"last-gelu-qwen2": {"image_encoder.vision_feature_layer": -1, "image_encoder.hidden_act": "gelu", "foundation": QWEN2},
              "odd-size-depth4": {"image_encoder.image_size": 15, "image_encoder.num_hidden_layers": 4,
                                  "image_encoder.num_attention_heads": 4}})
# Its pictures are of another size than its table of positions.
composed("dinov2", "DINOv2's tower, a projector and a Qwen2 decoder, put together from parts", DINOV2, QWEN2,
    variants={"giant": {"image_encoder.use_swiglu_ffn": True, "image_encoder.qkv_bias": False, "image_encoder.image_size": 20},
              "layer-2-no-mask": {"image_encoder.num_hidden_layers": 3, "image_encoder.vision_feature_layer": -2,
                                  "image_encoder.use_mask_token": False, "foundation": LLAMA}})

# Pictures are larger than its table of positions, or smaller.
composed("dinov2_registers", "DINOv2's tower with registers, a projector and a Qwen2 decoder, put together from parts",
    {**DINOV2, "model_type": "dinov2_with_registers", "num_register_tokens": 3}, QWEN2,
    variants={"giant-smaller": {"image_encoder.use_swiglu_ffn": True, "image_encoder.image_size": 28},
              "layer-2-one": {"image_encoder.num_hidden_layers": 3, "image_encoder.vision_feature_layer": -2,
                              "image_encoder.num_register_tokens": 1, "foundation": LLAMA}})

# ------------------------------------------------------------------------------ vision-language models

SPECIAL = dict(image_token_id=IMAGE, video_token_id=VIDEO)
STARTS = dict(vision_start_token_id=VISION_START, vision_end_token_id=VISION_END)


def vlm(name, model, covers, text_config, vision_config, kind="qwen", variants=None, renames=None, **config):
    config = {"text_config": text_config, "vision_config": vision_config, "tie_word_embeddings": False, **config}
    add(name, f"{model}ForConditionalGeneration", covers, config, kind=kind, variants=variants or {}, renames=renames or {})


def in_text(**changes) -> dict:
    return {f"text_config.{key}": value for key, value in changes.items()}


def in_vision(**changes) -> dict:
    return {f"vision_config.{key}": value for key, value in changes.items()}


TIED_VLM = {**TIED, "text_config.tie_word_embeddings": True}
vlm("qwen2.5_vl", "Qwen2_5_VL", "Qwen2.5-VL (windowed vision attention)",
    text(hidden_size=32, rope_parameters=rope(1e6, mrope_section=[1, 1, 2])),
    dict(depth=3, hidden_size=16, intermediate_size=28, num_heads=2, patch_size=4, spatial_merge_size=2,
         temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1], out_hidden_size=32),
    **SPECIAL, **STARTS,
    variants={"tied-window24": {**TIED_VLM, **in_vision(window_size=24, fullatt_block_indexes=[2])},
              "mqa-sections": {**in_text(num_key_value_heads=1), "text_config.rope_parameters.mrope_section": [2, 1, 1]}})
vlm("qwen2_vl", "Qwen2VL", "Qwen2-VL",
    text(rope_parameters=rope(1e6, mrope_section=[1, 1, 1])),
    dict(depth=2, embed_dim=16, mlp_ratio=2, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, hidden_size=24),
    **SPECIAL, **STARTS,
    variants={"tied-depth3": {**TIED_VLM, **in_vision(depth=3)},
              "mqa-gelu": {**in_text(num_key_value_heads=1), **in_vision(hidden_act="gelu", mlp_ratio=3)}})
add("qwen2.5_vl_lora", "Qwen2_5_VLForConditionalGeneration", "An adapter of PEFT on Qwen2.5-VL, of other rank on the tower",
    FAMILIES["qwen2.5_vl"].config, kind="qwen",
    lora={"r": 3, "lora_alpha": 7, "target_modules": "all-linear", "exclude_modules": ["visual.merger.mlp.2"],
          "rank_pattern": {r"visual\..*": 2}, "alpha_pattern": {r"visual\..*": 5}, "modules_to_save": ["visual.merger.mlp.2"]})
VISION3 = dict(depth=3, hidden_size=16, intermediate_size=28, num_heads=2, patch_size=4, spatial_merge_size=2,
               temporal_patch_size=2, out_hidden_size=24, num_position_embeddings=36)
DEEPSTACK = {**VISION3, "deepstack_visual_indexes": [0, 1]}
QWEN3_VL = text(head_dim=8, rope_parameters=rope(5e6, mrope_section=[2, 1, 1], mrope_interleaved=True))
vlm("qwen3_vl", "Qwen3VL", "Qwen3-VL dense", QWEN3_VL, DEEPSTACK, **SPECIAL, **STARTS,
    variants={"tied-deepstack1": {**TIED_VLM, **in_vision(deepstack_visual_indexes=[1])},
              "bias-layers3": in_text(attention_bias=True, num_hidden_layers=3),
              # Sections of fewer frequencies than there are, and a table that is not square.
              "loose-tables": {**in_text(head_dim=12), **in_vision(num_position_embeddings=40, deepstack_visual_indexes=[])}})
vlm("qwen3_vl_moe", "Qwen3VLMoe", "Qwen3-VL MoE", {**QWEN3_VL, **MOE, "decoder_sparse_step": 1, "mlp_only_layers": []},
    DEEPSTACK, **SPECIAL, **STARTS,
    variants={"mlp-only-top3": in_text(mlp_only_layers=[0], num_experts_per_tok=3, num_hidden_layers=3),
              "bias-deepstack1": {**in_text(attention_bias=True), **in_vision(deepstack_visual_indexes=[0])}})
QWEN3_5 = text(**{**LINEAR, "head_dim": 32}, rope_parameters=rope(1e7, mrope_section=[2, 1, 1], mrope_interleaved=True,
                                                                  partial_rotary_factor=0.25))
QWEN3_5_CHANGES = {"equal-heads-tied": {**TIED_VLM, **in_text(linear_num_value_heads=2, linear_conv_kernel_dim=3)},
                   "full-first": {**in_text(**FULL_FIRST), **in_vision(depth=2)}}
vlm("qwen3.5", "Qwen3_5", "Qwen3.5 and Qwen3.6 dense", QWEN3_5, VISION3, **SPECIAL, **STARTS, variants=QWEN3_5_CHANGES)
vlm("qwen3.5_moe", "Qwen3_5Moe", "Qwen3.5 and Qwen3.6 MoE",
    {**QWEN3_5, **MOE, "num_experts": 5, "shared_expert_intermediate_size": 20}, VISION3, **SPECIAL, **STARTS, variants=QWEN3_5_CHANGES)
vlm("kimi_k2.5", "Kimi_K25", "Kimi-K2.5, K2.6 (MoonViT-3d on a DeepSeek-V3 decoder)",
    {**V3, "n_group": 1, "topk_group": 1, "model_type": "deepseek_v3"},
    dict(hidden_size=16, intermediate_size=28, num_attention_heads=2, num_hidden_layers=2, patch_size=4,
         pos_emb_height=6, pos_emb_width=6, pos_emb_time=2),
    kind="kimi", **SPECIAL, **STARTS, projection_hidden_size=16,
    variants={"no-norm-top3": in_text(norm_topk_prob=False, num_experts_per_tok=3),
              "plain-rope-layers3": {**in_text(**PLAIN_ROPE), **in_vision(num_hidden_layers=3, pos_emb_height=8, pos_emb_width=8)}},
    # transformers 5.17 saves the decoder's layers under the vision tower's name, and one norm under its own prefix.
    renames={r"^language_model\.model\.blocks\.": "language_model.model.layers.", r"^model\.mm_projector\.": "mm_projector."})
vlm("ernie4.5_vl", "Ernie4_5_VLMoe", "ERNIE-4.5-VL 28B-A3B (text and vision experts)",
    text(hidden_size=32, num_hidden_layers=3, moe_intermediate_size=[12, 8], moe_k=2, moe_num_experts=4, moe_num_shared_experts=1,
         router_aux_loss_coef=0.01, mlp_layer_types=["dense", "sparse", "sparse"], rms_norm_eps=1e-5,
         rope_parameters=rope(500000.0, mrope_section=[1, 1, 2])),
    dict(depth=2, hidden_size=16, intermediate_size=32, num_heads=2, patch_size=4, spatial_merge_size=2,
         temporal_merge_size=2),
    kind="ernie", **SPECIAL, image_start_token_id=VISION_START, image_end_token_id=VISION_END,
    video_start_token_id=62, video_end_token_id=63, **{"tie_word_embeddings": True},
    variants={"bias-top3": in_text(use_bias=True, moe_k=3), "shared2-depth3": {**in_text(moe_num_shared_experts=2), **in_vision(depth=3)}})
INTERN_VISION = dict(hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2,
                     image_size=[16, 16], patch_size=[4, 4], layer_scale_init_value=0.1, attention_bias=True,
                     use_qk_norm=False, norm_type="layer_norm")
RMS_VISION = {"vision_config.use_qk_norm": True, "vision_config.norm_type": "rms_norm", "vision_config.attention_bias": False}
INTERN = dict(kind="intern", image_token_id=IMAGE, image_seq_length=4, downsample_ratio=0.5)
vlm("internvl2.5", "InternVL", "InternVL2.5 on a Qwen2.5 decoder",
    {**text(rope_parameters=rope(1e6)), "model_type": "qwen2"}, INTERN_VISION, **INTERN,
    variants={"6b-vit": RMS_VISION, "mqa-layers3": {**in_text(num_key_value_heads=1, num_hidden_layers=3), **in_vision(num_hidden_layers=3)}})
vlm("internvl3.5", "InternVL", "InternVL3.5 on a Qwen3 decoder",
    {**text(head_dim=8, rope_parameters=rope(1e6)), "model_type": "qwen3"}, INTERN_VISION, **INTERN,
    variants={"6b-vit": RMS_VISION, "bias-tied": {**TIED_VLM, **in_text(attention_bias=True)}})
vlm("internvl3.5_moe", "InternVL", "InternVL3.5 on a Qwen3-MoE decoder",
    {**text(head_dim=8, rope_parameters=rope(1e6), **MOE, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[]), "model_type": "qwen3_moe"}, INTERN_VISION, **INTERN,
    variants={"6b-vit": RMS_VISION, "sparse-step": in_text(decoder_sparse_step=2, num_hidden_layers=3, norm_topk_prob=False)})

# The published layout: transformers 5.17 saves a fresh tower without its inner name.
INNER = {r"^vision_tower\.(?!vision_model\.)": "vision_tower.vision_model."}
vlm("llava", "Llava", "LLaVA 1.5 (CLIP's tower on a Llama decoder)", LLAMA, CLIP, kind="llava", image_token_index=IMAGE,
    vision_feature_layer=-2, vision_feature_select_strategy="default", renames=INNER,
    variants={"siglip-qwen2-tied": {**TIED, "text_config": {**QWEN2, "tie_word_embeddings": True}, "vision_config": SIGLIP,
                                    "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
              "last-relu-layers3": {"vision_feature_layer": -1, "projector_hidden_act": "relu", **in_text(num_hidden_layers=3)}})
vlm("llava_dinov2", "Llava", "The LLaVA layout with DINOv2's tower on a Qwen3 decoder",
    {**text(head_dim=8, rope_parameters=rope(1e6)), "model_type": "qwen3"}, DINOV2, kind="llava", image_token_index=IMAGE,
    vision_feature_layer=-1, vision_feature_select_strategy="default")

# Pictures of more tokens than a window has.
SQUARE16 = {**SIGLIP, "image_size": 16, "patch_size": 2}
vlm("gemma3", "Gemma3", "Gemma 3 4B, 12B, 27B (SigLIP's tower on Gemma 3)",
    {**GEMMA, **WINDOWED, "rope_parameters": GEMMA3_ROPES, "layer_types": ["sliding_attention", "full_attention"]}, SQUARE16,
    kind="gemma3", image_token_index=IMAGE, boi_token_index=VISION_START, eoi_token_index=VISION_END, mm_tokens_per_image=16,
    renames=INNER, tie_word_embeddings=True,
    variants={"untied-mqa-3layers": {**UNTIED, **in_text(**MQA, **LAYERS3, sliding_window=20, layer_types=[
                  "sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=False)},
              "tokens4-depth3-gelu": {"mm_tokens_per_image": 4, **in_text(hidden_activation="gelu"), **in_vision(num_hidden_layers=3, image_size=12)}})
PALIGEMMA = dict(kind="paligemma", image_token_index=IMAGE, projection_dim=24, renames=INNER, tie_word_embeddings=True)
SQUARE8 = {**SIGLIP, "image_size": 8, "patch_size": 2}
vlm("paligemma", "PaliGemma", "PaliGemma (SigLIP's tower on Gemma 1)",
    {**GEMMA, "model_type": "gemma", "rope_parameters": rope(10000.0)}, SQUARE8, **PALIGEMMA,
    variants={"untied-mqa-3layers": {**UNTIED, **in_text(**MQA, **LAYERS3)}, "depth3-gelu": in_vision(num_hidden_layers=3, hidden_act="gelu")})
vlm("paligemma2", "PaliGemma", "PaliGemma 2 (SigLIP's tower on Gemma 2)",
    {**GEMMA, **WINDOWED, "model_type": "gemma2", "rope_parameters": rope(10000.0), "attn_logit_softcapping": 1.5}, SQUARE8, **PALIGEMMA,
    variants={"no-cap-window4": in_text(attn_logit_softcapping=None, sliding_window=4),
              "full-first-mqa": {**in_text(**MQA, layer_types=["full_attention", "sliding_attention"])}})

# A side of 13 pixels has six patches and a rest.
SPLIT_VIT = dict(hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2, image_size=13, patch_size=2, num_channels=3)
SPLIT = dict(kind="split", image_token_id=IMAGE, scale_factor=3)
vlm("smolvlm", "SmolVLM", "SmolVLM and SmolVLM2 (SigLIP's tower by each picture's grid, on SmolLM2)", LLAMA,
    {**SPLIT_VIT, "model_type": "smolvlm_vision"}, **SPLIT,
    variants={"tied-scale2": {**TIED, "scale_factor": 2, **in_text(num_key_value_heads=4)},
              "layers3-grid26": {"scale_factor": 13, **in_text(num_hidden_layers=3), **in_vision(image_size=26, patch_size=1, num_hidden_layers=1, hidden_size=4, intermediate_size=8)}})
vlm("idefics3", "Idefics3", "Idefics 3, SmolVLM 1", LLAMA, {**SPLIT_VIT, "model_type": "idefics3_vision"}, **SPLIT,
    variants={"tied-scale2": {**TIED, "scale_factor": 2}, "mqa-depth3": {**in_text(num_key_value_heads=1), **in_vision(num_hidden_layers=3)}})

# The middle block of the tower is followed by the step that halves rows and columns.
vlm("minicpm_v4.6", "MiniCPMV4_6", "MiniCPM-V 4.6 (SigLIP's tower with a window merger, on Qwen3.5)", {**QWEN3_5, **FULL_FIRST, "num_attention_heads": 2, "intermediate_size": 14, "model_type": "qwen3_5_text"},
    {**SPLIT_VIT, "hidden_size": 8, "intermediate_size": 7, "image_size": 12, "num_hidden_layers": 3}, kind="sliced", **SPECIAL, insert_layer_id=1, tie_word_embeddings=True,
    variants={"untied-last-depth2": {**UNTIED, "insert_layer_id": 1, **in_text(num_hidden_layers=3, layer_types=LINEAR["layer_types"]), **in_vision(num_hidden_layers=2, image_size=10)},
              "4x-heads4": {"downsample_mode": "4x", **in_vision(num_attention_heads=4), **in_text(linear_num_value_heads=2, linear_conv_kernel_dim=3)}})

# --------------------------------------------------------------------------------- audio-language models

AUDIO = dict(num_mel_bins=8, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=28, d_model=16)


def alm(name, model, covers, text_config, audio_config, kind, variants, renames=None, **config):
    config = {"text_config": text_config, "audio_config": audio_config, **config}
    add(name, f"{model}ForConditionalGeneration", covers, config, kind=kind, variants=variants or {}, renames=renames or {})


def in_audio(**changes) -> dict:
    return {f"audio_config.{key}": value for key, value in changes.items()}


# transformers 5.17 saves a model that was made from a config so; one that was loaded is saved as published.
DOUBLED = {r"^language_model\.model\.model\.": "language_model.model."}
alm("qwen2_audio", "Qwen2Audio", "Qwen2-Audio", {**text(rope_parameters=rope(10000.0)), "model_type": "qwen2"},
    {**AUDIO, "max_source_positions": 50}, "qwen2_audio", audio_token_index=IMAGE, renames=DOUBLED,
    variants={"mqa-layers3": {**in_text(num_key_value_heads=1), **in_audio(encoder_layers=3)},
              "bins12-heads4": in_audio(num_mel_bins=12, encoder_attention_heads=4)})
alm("voxtral", "Voxtral", "Voxtral Mini and Small",
    {**text(head_dim=8, rms_norm_eps=1e-5, rope_parameters=rope(1e8)), "model_type": "llama"},
    dict(num_mel_bins=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, hidden_size=16, max_source_positions=50),
    "voxtral", audio_token_id=IMAGE, renames=DOUBLED,
    variants={"mqa-layers3": {**in_text(num_key_value_heads=1), **in_audio(num_hidden_layers=3)},
              "stack5": in_audio(intermediate_size=80)})
alm("qwen3_asr", "Qwen3ASR", "Qwen3-ASR", {**text(head_dim=8, rope_parameters=rope(1e6)), "model_type": "qwen3"},
    {**AUDIO, "n_window": 50, "n_window_infer": 200, "output_dim": 24, "downsample_hidden_size": 6}, "qwen3_asr",
    audio_token_id=IMAGE, tie_word_embeddings=True,
    variants={"untied-layers3": {"tie_word_embeddings": False, **in_audio(encoder_layers=3)},
              "window800-bins12": in_audio(n_window_infer=800, num_mel_bins=12)})
OMNI_STARTS = dict(vision_start_token_id=VISION_START, vision_end_token_id=VISION_END, audio_start_token_id=AUDIO_START,
                   audio_end_token_id=AUDIO_END, user_token_id=3)
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
add("qwen2.5_omni", "Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2.5-Omni's thinker", kind="omni2.5", config=dict(
    text_config=text(**SMALL, rope_parameters=rope(1e6, mrope_section=[2, 1, 1])),
    vision_config=dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, spatial_merge_size=2,
                       temporal_patch_size=2, window_size=8, fullatt_block_indexes=[1], out_hidden_size=16),
    audio_config={**AUDIO, "n_window": 13, "output_dim": 16, "max_source_positions": 64},
    image_token_index=IMAGE, video_token_index=VIDEO, audio_token_index=AUDIO_TOKEN, position_id_per_seconds=25,
    seconds_per_chunk=2, **OMNI_STARTS),
    variants={"mha-act": {**in_text(num_key_value_heads=2), **in_vision(hidden_act="gelu")},
              "layers3-window10": {**in_audio(encoder_layers=3, n_window=10), **in_vision(window_size=12)},
              "video-sound": {"fixture.video_sound": True, "seconds_per_chunk": 1}})
add("qwen3_omni", "Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3-Omni's thinker", kind="omni3", config=dict(
    text_config=text(**SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True,
                     **AUX, rope_parameters=rope(1e6, mrope_section=[2, 1, 1], mrope_interleaved=True)),
    vision_config={**VISION3, "depth": 2, "hidden_size": 8, "intermediate_size": 12, "num_heads": 2, "patch_size": 2,
                   "out_hidden_size": 16, "deepstack_visual_indexes": [0]},
    audio_config={**AUDIO, "encoder_ffn_dim": 20, "n_window": 50, "n_window_infer": 200, "output_dim": 16, "downsample_hidden_size": 6,
                  "conv_chunksize": 2, "max_source_positions": 64},
    image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO_TOKEN, position_id_per_seconds=13, **OMNI_STARTS),
    variants={"top3-deepstack2": {**in_text(num_experts_per_tok=3), **in_vision(depth=3, deepstack_visual_indexes=[0, 1])},
              "layers3-window800": in_audio(encoder_layers=3, n_window_infer=800),
              "video-sound": {"fixture.video_sound": True}})
