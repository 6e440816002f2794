//! The keys of GR00T's configs, those that say nothing of the model included.

use loongforge_core::data::GrootVersion;
use serde_json::json;

use crate::model::keys::{Keys, ModelConfigError};

/// Keys of NVIDIA's config.
pub(super) const NVIDIA_KEYS: &[&str] = &[
    "model_type",
    "backbone_config",
    // Of the backbone.
    "model_name",
    "backbone_model_type",
    "backbone_embedding_dim",
    "select_layer",
    "reproject_vision",
    // Of the action head.
    "max_state_dim",
    "max_action_dim",
    "action_horizon",
    "hidden_size",
    "input_embedding_dim",
    "state_history_length",
    "add_pos_embed",
    "use_vlln",
    "max_seq_len",
    "use_alternate_vl_dit",
    "attend_text_every_n_blocks",
    "diffusion_model_cfg",
    "vl_self_attention_cfg",
    "num_inference_timesteps",
    "noise_beta_alpha",
    "noise_beta_beta",
    "noise_s",
    "num_timestep_buckets",
    "state_dropout_prob",
    "strict_action_padding_mask",
    "exclude_state",
    "max_num_embodiments",
    // What is trained.
    "tune_llm",
    "tune_top_llm_layers",
    "tune_visual",
    "tune_projector",
    "tune_diffusion_model",
    "tune_vlln",
    // Precision and kernels, which a run chooses; a key that nothing reads; where the backbone came from; guidance by an
    // unfinished chunk, which nobody asks for.
    "model_dtype",
    "dtype",
    "torch_dtype",
    "use_flash_attention",
    "load_bf16",
    "backbone_trainable_params_fp32",
    "attn_dropout",
    "model_revision",
    "rtc_ramp_rate",
    "architectures",
    "transformers_version",
    "_name_or_path",
    "auto_map",
    // How samples are made, of which the processor's files have the last word.
    "image_crop_size",
    "image_target_size",
    "shortest_image_edge",
    "crop_fraction",
    "letter_box_transform",
    "random_rotation_angle",
    "color_jitter_params",
    "use_albumentations_transforms",
    "extra_augmentation_config",
    "formalize_language",
    "apply_sincos_state_encoding",
    "use_percentiles",
    "use_relative_action",
    "use_mean_std",
    // What a run adds to a policy's config: features of the data, as lerobot has them.
    "input_features",
    "output_features",
    "normalization_mapping",
    "embodiment_tag",
    "n_action_steps",
    "use_relative_actions",
    "relative_exclude_joints",
    "action_feature_names",
];

/// Keys of NVIDIA's config of N1.6 beside these.
pub(super) const N1_6_KEYS: &[&str] = &[
    "state_additive_noise_scale",
    // What its own collator does with pictures, and the implementation of attention.
    "eagle_collator",
    "collator_overwrite_image_inputs",
    "gemma_collator",
    "attn_implementation",
];

/// Keys of lerobot's config.
pub(super) const LEROBOT_KEYS: &[&str] = &[
    "type",
    "sizes",
    "n_obs_steps",
    "chunk_size",
    "max_state_dim",
    "max_action_dim",
    "num_inference_timesteps",
    "use_peft",
    "tune_llm",
    "tune_top_llm_layers",
    "tune_visual",
    "tune_projector",
    "tune_diffusion_model",
    "tune_vlln",
    // Of samples, of acting and of its server.
    "input_features",
    "output_features",
    "n_action_steps",
    "normalization_mapping",
    "action_decode_transform",
    "embodiment_tag",
    "use_relative_actions",
    "relative_exclude_joints",
    "action_feature_names",
    "rtc_config",
    "rtc_ramp_rate",
    // Of lerobot's own training and of the hub, which a run's config says.
    "device",
    "use_amp",
    "push_to_hub",
    "repo_id",
    "private",
    "tags",
    "license",
    "pretrained_path",
    "pretrained_revision",
    "base_model_path",
    "use_flash_attention",
    "optimizer_lr",
    "optimizer_betas",
    "optimizer_eps",
    "optimizer_weight_decay",
    "warmup_ratio",
    "use_bf16",
    "model_params_fp32",
    "dtype",
    // Nothing in lerobot reads these.
    "image_size",
    "tokenizer_assets_repo",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_full_model",
    "video_backend",
    "balance_dataset_weights",
    "balance_trajectory_weights",
    "dataset_paths",
    "output_dir",
    "save_steps",
    "max_steps",
    "batch_size",
    "dataloader_num_workers",
    "report_to",
    "resume",
];

/// Keys of a transformer; the last ones are read by nothing.
pub(super) const TRANSFORMER_KEYS: &[&str] = &[
    "positional_embeddings",
    "num_layers",
    "num_attention_heads",
    "attention_head_dim",
    "norm_type",
    "dropout",
    "final_dropout",
    "output_dim",
    "interleave_self_attention",
    "activation_fn",
    "attention_bias",
    "norm_eps",
    "norm_elementwise_affine",
    "upcast_attention",
    "num_embeds_ada_norm",
    "max_num_positional_embeddings",
    "compute_dtype",
];

/// Refuses what the reference can do, or NVIDIA's own code, and this cannot.
pub(super) fn refuse_others(version: GrootVersion, keys: &Keys<'_>) -> Result<(), ModelConfigError> {
    let is_n1_6 = version == GrootVersion::N1_6;
    keys.only("backbone_model_type", &[json!(if is_n1_6 { "eagle" } else { "qwen" })])?;
    if is_n1_6 {
        keys.only("vl_self_attention_cfg", &[])?;
    }
    // Without it the transformer sees the padding of prompts.
    keys.only("use_alternate_vl_dit", &[json!(true)])?;
    keys.only("state_history_length", &[json!(1)])?;
    for key in ["reproject_vision", "strict_action_padding_mask", "exclude_state"] {
        keys.only(key, &[json!(false)])?;
    }
    // The published N1.6 turns it on; it is of the numbers that a robot's `sin_cos_embedding_keys` name, of which none is known here.
    if !is_n1_6 {
        keys.only("apply_sincos_state_encoding", &[json!(false)])?;
    }
    Ok(())
}
