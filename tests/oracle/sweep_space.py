"""The space that `sweep.py` draws configs from: for every key that a config class has, the values that it may take.

`ABSENT` leaves the key out, so that the class's default holds; null stands where null has a meaning of its own. Keys that hang
together (heads, layers, rotary embeddings, experts, grids of pictures) are drawn by a function. What the reference then refuses
is drawn again.
"""

from __future__ import annotations

import random

ABSENT = "(absent)"
BOOL = [True, False, ABSENT]
ACTS = ["silu", "gelu", "gelu_pytorch_tanh", "relu", "quick_gelu", "gelu_new", "relu2", ABSENT]
EPS = [1e-3, 1e-5, 1e-6, 1e-12, ABSENT]

# Of language models.
TEXT = {
    "vocab_size": [64, 67, 101], "intermediate_size": [20, 36, 50], "hidden_act": ACTS, "hidden_activation": ACTS,
    "rms_norm_eps": EPS, "pad_token_id": [None, 0, 5, -1, ABSENT], "tie_word_embeddings": BOOL, "attention_bias": BOOL,
    "mlp_bias": BOOL, "use_bias": BOOL, "use_qk_norm": BOOL, "norm_topk_prob": BOOL, "rope_interleave": BOOL,
    "use_bidirectional_attention": [None, False, ABSENT], "max_position_embeddings": [512, 4096, ABSENT],
    "query_pre_attn_scalar": [7, 24, 256, ABSENT], "attn_logit_softcapping": [None, 0.8, 5.0, ABSENT],
    "final_logit_softcapping": [None, 0.8, 5.0, ABSENT], "pretraining_tp": [1, ABSENT, 2], "attention_dropout": [0.0, ABSENT],
    "resid_pdrop": [0.0, ABSENT], "embd_pdrop": [0.0, ABSENT], "router_jitter_noise": [0.0, ABSENT],
    "router_aux_loss_coef": [0.0, 0.02, 0.5, ABSENT], "output_router_logits": BOOL, "routed_scaling_factor": [1.0, 2.5, 0.7, ABSENT],
    "moe_intermediate_size": [8, 12, 14], "shared_expert_intermediate_size": [8, 20], "n_shared_experts": [0, 1, 2, 3, None, ABSENT],
    "moe_num_shared_experts": [0, 1, 3, ABSENT], "moe_norm_min": [1e-12, 0.3, ABSENT], "q_lora_rank": [None, 9, 20],
    "kv_lora_rank": [10, 24], "qk_nope_head_dim": [6, 12], "qk_rope_head_dim": [4, 8], "v_head_dim": [6, 10, 16],
    "first_k_dense_replace": [0, 1, 2, 5, ABSENT], "decoder_sparse_step": [1, 2, 3, ABSENT], "num_mtp_layers": [0, 1, ABSENT],
    "linear_conv_kernel_dim": [2, 3, 4, ABSENT], "linear_key_head_dim": [6, 8], "linear_value_head_dim": [6, 12], "index_topk": [3, 8, 64],
    "index_head_dim": [8, 12, 16], "index_n_heads": [16, 20], "o_lora_rank": [5, 9], "o_groups": [1, 2, 4], "hc_mult": [1, 2, 3, ABSENT],
    "hc_sinkhorn_iters": [1, 3, ABSENT], "hc_eps": [1e-6, 1e-3, ABSENT], "swiglu_limit": [0.5, 1.0, 10.0, ABSENT],
    "scoring_func": ["sqrtsoftplus", "sigmoid", "softmax", ABSENT], "num_nextn_predict_layers": [0, 1, ABSENT], "use_cache": [True, False],
    "initializer_range": [0.02, 0.5], "moe_layer_start_index": [0, 1, 2, ABSENT], "moe_layer_end_index": [-1, 1, 2, ABSENT],
    "moe_layer_interval": [1, 2, ABSENT], "topk_method": ["greedy", "group_limited_greedy", ABSENT], "head_dim": None,
    "attention_out_bias": BOOL, "residual_dropout": [0.0, ABSENT], "embedding_multiplier": [1.0, 12.0, 0.5, ABSENT],
    "attention_multiplier": [0.1, 1.0, 0.5, ABSENT], "residual_multiplier": [0.22, 1.0, 1.5, ABSENT], "logits_scaling": [8.0, 1.0, 0.7, ABSENT],
    "qkv_bias": BOOL, "clip_qkv": [None, 0.5, ABSENT], "sliding_window_pattern": [1, 2, 3, ABSENT], "eod_token_id": [3, ABSENT],
    "no_rope_layer_interval": [1, 2, 3, ABSENT], "original_max_position_embeddings": [8, 16, 64, ABSENT],
}

# Of vision and audio towers, and of what is around the parts.
TOWER = {
    "intermediate_size": [20, 28], "mlp_ratio": [2, 3], "hidden_act": ACTS, "activation_function": ACTS, "layer_norm_eps": EPS,
    "rms_norm_eps": EPS, "attention_dropout": [0.0, ABSENT], "patch_size": [2, 4, 6], "temporal_patch_size": [1, 2, 3], "window_size": [8, 16, 24, 30],
    "tokens_per_second": [1, 2, 4, ABSENT], "num_position_embeddings": [16, 25, 36, 50], "pos_emb_height": [4, 6, 9], "pos_emb_time": [2, 4],
    "attention_bias": BOOL, "qkv_bias": BOOL, "use_qk_norm": BOOL, "norm_type": ["layer_norm", "rms_norm"], "use_mask_token": BOOL,
    "use_absolute_position_embeddings": [True, False, ABSENT], "layer_scale_init_value": [0.1, 1.0, ABSENT], "use_mean_pooling": BOOL,
    "layerscale_value": [0.8, 1.0, ABSENT], "use_swiglu_ffn": BOOL, "vision_use_head": [False, True, ABSENT], "temporal_merge_size": [2, 1],
    "num_mel_bins": [8, 12, 16], "encoder_ffn_dim": [20, 28], "scale_embedding": BOOL, "n_window": None, "n_window_infer": [100, 200, 800],
    "downsample_hidden_size": [4, 6, 9], "conv_chunksize": [1, 2, 500], "max_source_positions": None, "initializer_range": [0.02, 0.5],
    "initializer_factor": [1.0, 0.5], "num_register_tokens": [1, 3], "projection_dim": None, "drop_path_rate": [0.0], "apply_layernorm": BOOL,
    "dropout": [0.0, ABSENT], "activation_dropout": [0.0, ABSENT], "vision_feature_layer": [-1, -2, 1],
}
WHOLE = {
    "tie_word_embeddings": BOOL, "projector_hidden_act": ACTS, "vision_feature_layer": [-1, -2, 1, ABSENT], "multimodal_projector_bias": BOOL,
    "vision_feature_select_strategy": ["default", "full", ABSENT], "downsample_ratio": [0.5, 1.0], "scale_factor": [2, 3],
    "mm_tokens_per_image": [4, 16], "projection_layer_norm_eps": EPS, "projection_hidden_size": None, "position_id_per_seconds": [13, 25, 10],
    "seconds_per_chunk": [1, 2, 3], "downsample_mode": ["16x", "4x", ABSENT], "drop_vision_last_layer": BOOL, "initializer_range": [0.02, 0.5],
    "token_classification_bias": BOOL, "image_seq_length": [4, ABSENT],
}


def rope_of(rng: random.Random, head_dim: int, kept: dict) -> dict:
    """Rotary embeddings of any law; `kept`: what they are to have beside it."""
    theta = rng.choice([500.0, 10000.0, 1e6])
    made = {"rope_type": "default", "rope_theta": theta}
    kind = rng.choice(["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
    turning = int(head_dim * kept.get("partial_rotary_factor", 1.0))
    original = rng.choice([8, 16, 24, 64])
    if kind == "linear":
        made.update(rope_type=kind, factor=rng.choice([1.0, 2.0, 3.5]))
    elif kind == "dynamic":
        made.update(rope_type=kind, factor=rng.choice([2.0, 4.0]))
    elif kind == "llama3":
        made.update(rope_type=kind, factor=rng.choice([4.0, 32.0]), low_freq_factor=1.0, high_freq_factor=rng.choice([2.0, 4.0]),
                    original_max_position_embeddings=original)
    elif kind == "yarn":
        made.update(rope_type=kind, factor=rng.choice([2.0, 4.0, 40.0]), original_max_position_embeddings=original)
        more = {"beta_fast": rng.choice([32, 8]), "beta_slow": rng.choice([1, 2]), "attention_factor": rng.choice([1.0, 1.3]), "truncate": rng.choice([True, False]),
                "mscale": rng.choice([1.0, 0.707]), "mscale_all_dim": rng.choice([1.0, 0.707, 0.0])}
        made.update({key: value for key, value in more.items() if rng.random() < 0.5})
    elif kind == "longrope":
        frequencies = max(turning // 2, 1)
        made.update(rope_type=kind, original_max_position_embeddings=original,
                    short_factor=[round(1 + 0.1 * i, 2) for i in range(frequencies)],
                    long_factor=[round(1.5 + i, 2) for i in range(frequencies)])
        made.update(rng.choice([{"factor": 4.0}, {"factor": 2.0, "attention_factor": 1.2}, {}]))
    return {**made, **kept}
