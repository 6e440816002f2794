//! Names that other trainers use for our keys. Using one is an error that names our key.

use super::node::join;

/// Lists names of transformers, TRL, LLaMA-Factory, ms-swift, VeOmni, LLaVA, Qwen-VL, torchtitan and Megatron-LM with our key and how
/// its value differs from theirs.
const NAMES: &[(&[&str], &str, &str)] = &[
    (
        &["model_name_or_path", "model_name", "base_model", "pretrained_model_name_or_path", "hf_assets_path"],
        "model.load",
        "",
    ),
    (
        &["dataset", "datasets", "dataset_path", "data_path", "train_file"],
        "data.train",
        "a list such as [{path: x.jsonl}]",
    ),
    (&["instance_prompt"], "data.train.0.caption", "of each data set"),
    (&["mix_strategy"], "data.mix", "sets or samples"),
    (
        &["hf_tokenizer_path", "tokenizer_model"],
        "model.tokenizer",
        "the folder of tokenizer.json; else that of model.load",
    ),
    (&["chat_template"], "data.template", ""),
    (&["default_system", "default_system_message", "system_prompt"], "data.system", ""),
    (
        &["cutoff_len", "max_seq_length", "max_length", "model_max_length", "seq_length", "seq_len"],
        "data.pack.max_tokens",
        "longer samples are skipped; data.pack.too_long: truncate cuts them",
    ),
    (&["truncation"], "data.pack.too_long", "skip or truncate"),
    (&["packing", "neat_packing", "data_packing", "data_flatten"], "data.pack", "samples are always packed"),
    (&["stage", "training_phase"], "train.phase", "sft or pretrain"),
    (&["num_train_epochs", "num_epochs"], "train.epochs", "or train.steps"),
    (&["max_steps", "train_iters", "training_steps", "num_steps"], "train.steps", ""),
    (
        &["per_device_train_batch_size", "local_batch_size"],
        "train.micro_batch_size",
        "maximum number of samples in a pack",
    ),
    (
        &["gradient_accumulation_steps", "train_batch_size", "batch_size"],
        "train.global_batch_size",
        "samples of a step, over all devices and accumulated packs",
    ),
    (&["learning_rate"], "train.lr", ""),
    (&["lr_scheduler_type", "lr_decay_style"], "train.schedule", ""),
    (&["lr_warmup_iters", "num_warmup_steps"], "train.warmup_steps", "a number of steps"),
    (&["lr_warmup_fraction"], "train.warmup_ratio", "a fraction of all steps"),
    (&["lr_wsd_decay_iters"], "train.decay_steps", "a number of steps, for `schedule: wsd`"),
    (&["pref_beta", "dpo_beta"], "train.preference.beta", ""),
    (&["pref_loss", "dpo_loss", "loss_type"], "train.preference.loss", ""),
    (&["pref_ftx", "rpo_alpha"], "train.preference.nll_weight", ""),
    (&["kto_chosen_weight", "kto_desirable_weight"], "train.preference.desirable_weight", ""),
    (&["kto_rejected_weight", "kto_undesirable_weight"], "train.preference.undesirable_weight", ""),
    (&["label_smoothing_factor"], "train.label_smoothing", ""),
    (&["loss_reduction"], "train.loss_weighting", "token, sample or square"),
    (&["neftune_noise_alpha"], "train.neftune_alpha", ""),
    (&["max_grad_norm", "max_norm", "gradient_clipping", "gradient_clip_val", "grad_clip"], "train.clip_grad", ""),
    (&["adam_beta1", "adam_beta2", "beta1", "beta2"], "train.optimizer.betas", "both, as in [0.9, 0.95]"),
    (&["adam_epsilon", "adam_eps"], "train.optimizer.eps", ""),
    (&["optim"], "train.optimizer.type", "adamw, adamw_8bit or muon"),
    (
        &["optimizer_cpu_offload", "offload_optimizer"],
        "train.optimizer.offload",
        "{ to: cpu }, or { to: disk, path: DIR }",
    ),
    (&["optimizer_offload_fraction", "offload_optimizer_percent"], "train.optimizer.offload.fraction", ""),
    (&["nvme_path"], "train.optimizer.offload.path", ""),
    (&["use_muon"], "train.optimizer.type", "muon"),
    (&["muon_momentum"], "train.optimizer.muon.momentum", ""),
    (&["adjust_lr_fn"], "train.optimizer.muon.adjust_lr", ""),
    (&["bf16", "fp16", "dtype", "torch_dtype", "mixed_precision"], "train.precision", "float32 or bf16"),
    (&["finetuning_type", "use_peft"], "model.foundation.lora", "{} for adapters; leave it out to train all weights"),
    (&["lora_rank", "lora_r"], "model.foundation.lora.r", ""),
    (&["use_rslora", "rslora"], "model.foundation.lora.use_rslora", ""),
    (&["use_dora", "dora"], "model.foundation.lora.use_dora", ""),
    (&["loraplus_lr_ratio"], "model.foundation.lora.loraplus_lr_ratio", ""),
    (&["modules_to_save", "additional_target"], "model.foundation.lora.modules_to_save", "a list"),
    (&["lora_alpha"], "model.foundation.lora.alpha", ""),
    (&["lora_dropout"], "model.foundation.lora.dropout", ""),
    (&["lora_target", "lora_target_modules"], "model.foundation.lora.target_modules", "a list"),
    (&["adapter_name_or_path"], "model.foundation.lora.adapter", ""),
    (&["freeze_vision_tower", "freeze_vit", "freeze_vision_model"], "model.image_encoder.freeze", ""),
    (&["tune_mm_vision", "unfreeze_mm_vision_tower"], "model.image_encoder.freeze", "false trains it"),
    (
        &["freeze_multi_modal_projector", "freeze_aligner", "freeze_mm_mlp_adapter", "freeze_merger"],
        "model.image_projector.freeze",
        "",
    ),
    (&["tune_mm_mlp", "tune_mm_mlp_adapter"], "model.image_projector.freeze", "false trains it"),
    (&["freeze_audio_tower"], "model.audio_encoder.freeze", ""),
    (&["freeze_language_model", "freeze_llm"], "model.foundation.freeze", ""),
    (&["tune_mm_llm"], "model.foundation.freeze", "false trains it"),
    (
        &["vit_lr", "vision_lr", "vision_tower_lr", "mm_vision_tower_lr"],
        "pools.encoder.lr",
        "of towers and their projectors",
    ),
    (
        &["mm_projector_lr", "aligner_lr", "merger_lr"],
        "model.image_projector.lr_ratios",
        "such as {\"*\": 10}: relative to the rate of its pool",
    ),
    (
        &["gradient_checkpointing", "activation_checkpoint", "recompute_granularity", "recompute_activations"],
        "model.foundation.recompute",
        "all; or memory.activation_budget",
    ),
    (&["fp8_base", "fp8_scaled", "transformer_dtype"], "model.foundation.frozen_precision", "fp8_e4m3fn"),
    (
        &["load_in_4bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "double_quantization"],
        "model.foundation.frozen_precision",
        "nf4, or nf4_double with double quantization",
    ),
    (
        &["quantization_bit", "quantization_method", "quantization"],
        "model.foundation.frozen_precision",
        "nf4 or nf4_double for 4 bits, int8 for 8",
    ),
    (&["load_in_8bit"], "model.foundation.frozen_precision", "int8"),
    (
        &["blocks_to_swap", "block_swap"],
        "memory.weight_budget.foundation",
        "bytes that weights may take on the device, such as 12GiB",
    ),
    (&["data_parallel_replicate_degree", "data_parallel_size", "dp_size", "dp"], "pools.foundation.replicas", ""),
    (
        &["tensor_model_parallel_size", "tensor_parallel_degree", "tensor_parallel_size", "tp_size", "tp"],
        "pools.foundation.tensor_parallel",
        "",
    ),
    (
        &["pipeline_model_parallel_size", "pipeline_parallel_degree", "pp_size", "pp"],
        "pools.foundation.pipeline_parallel",
        "",
    ),
    (&["context_parallel_size", "context_parallel_degree", "cp_size", "cp"], "pools.foundation.context_parallel", ""),
    (
        &["expert_model_parallel_size", "expert_parallel_degree", "ep_size", "ep"],
        "pools.foundation.expert_parallel",
        "",
    ),
    (
        &["fsdp", "deepspeed", "zero_stage", "data_parallel_shard_degree", "use_distributed_optimizer"],
        "pools.foundation.zero",
        "a level, 0 to 3; 1 is Megatron's distributed optimizer",
    ),
    (&["num_virtual_stages_per_pipeline_rank"], "pools.foundation.virtual_stages", ""),
    (&["context_parallel_ulysses_degree"], "pools.foundation.context_attention", "ring or ulysses"),
    (&["moe_aux_loss_coeff", "router_aux_loss_coef"], "model.moe.aux_loss_coef", ""),
    (&["moe_z_loss_coeff"], "model.moe.z_loss_coef", ""),
    (&["moe_router_bias_update_rate"], "model.moe.bias_update_rate", ""),
    (&["mtp_num_layers"], "model.mtp.num_layers", ""),
    (&["mtp_loss_scaling_factor"], "model.mtp.loss_weight", ""),
    (&["timestep_sampling", "timestep_sample_method", "weighting_scheme", "timestep_type"], "train.sigma.density", ""),
    (&["discrete_flow_shift", "flow_shift", "sigma_shift", "timestep_shift"], "train.sigma.shift", "a number or auto"),
    (
        &["caption_dropout_rate", "caption_dropout_percent", "uncond_prob"],
        "data.caption_dropout",
        "a fraction, such as 0.1",
    ),
    (&["ema_decay", "use_ema"], "train.ema", "a number such as 0.999"),
    (&["resolution", "max_area"], "data.image.area", "1024x1024, or a number of pixels"),
    (&["max_pixels"], "data.image.max_pixels", "of diffusion models data.image.area; of videos data.video.max_pixels"),
    (&["image_max_pixels"], "data.image.max_pixels", ""),
    (&["image_min_pixels"], "data.image.min_pixels", ""),
    (&["video_max_pixels"], "data.video.max_pixels", ""),
    (&["video_min_pixels"], "data.video.min_pixels", ""),
    (&["video_fps"], "data.video.fps", ""),
    (&["video_maxlen", "video_max_frames", "fps_max_frames"], "data.video.max_frames", ""),
    (&["video_min_frames", "fps_min_frames"], "data.video.min_frames", ""),
    (&["nframes"], "data.video.max_frames", "with data.video.min_frames for exactly so many"),
    (&["max_duration", "max_duration_in_seconds", "max_audio_length"], "data.audio.max_seconds", ""),
    (&["min_duration", "min_duration_in_seconds"], "data.audio.min_seconds", ""),
    (&["bucket_reso_steps"], "data.image.bucket", "a number of pixels; without it pictures keep their shape"),
    (&["num_frames", "target_frames", "frame_buckets"], "data.video.frames", ""),
    (&["frame_extraction", "video_clip_mode"], "data.video.take", "head, middle, sliding, chunks, uniform or whole"),
    (&["sample_every", "sample_every_n_steps", "validation_steps"], "sample.every_steps", ""),
    (&["guidance_scale", "cfg_scale"], "sample.guidance", ""),
    (&["num_inference_steps", "sample_steps"], "sample.steps", ""),
    (&["output_dir", "dump_folder"], "run.dir", ""),
    (&["run_name"], "run.name", ""),
    (&["seed", "random_seed"], "run.seed", ""),
    (&["logging_steps", "log_interval", "log_freq"], "log.every_steps", ""),
    (&["metrics"], "log", ""),
    (&["report_to"], "log.wandb", "or log.mlflow; TensorBoard's files are always written"),
    (&["wandb_project"], "log.wandb.project", ""),
    (&["wandb_entity"], "log.wandb.entity", ""),
    (&["wandb_exp_name", "wandb_name", "wandb_run_name"], "log.wandb.name", ""),
    (&["save", "save_dir", "checkpoint_dir"], "checkpoint.dir", ""),
    (&["save_steps", "save_interval", "interval"], "checkpoint.every_steps", ""),
    (&["save_total_limit", "keep_latest_k"], "checkpoint.keep_last", ""),
    (&["eval_interval", "eval_steps"], "eval.every_steps", ""),
    (&["eval_iters"], "eval.max_samples", "a number of samples"),
    (
        &["split", "val_set_size", "val_split", "val_ratio", "validation_split", "test_size", "split_dataset_ratio"],
        "data.val_size",
        "a number of samples, or their fraction",
    ),
    (
        &["early_stopping_patience", "early_stopping_steps", "early_stopping"],
        "eval.patience",
        "a number of evaluations",
    ),
    (&["early_stopping_threshold"], "eval.min_delta", "a difference of losses"),
    (&["load_best_model_at_end"], "eval.save_best", "`checkpoint.dir` has a link `best`"),
    (&["metric_for_best_model"], "eval.best", "the name of the set whose loss decides"),
    (
        &["dataloader_num_workers", "num_workers", "preprocessing_num_workers", "dataset_num_proc"],
        "pools.data.replicas",
        "",
    ),
    (&["training"], "train", ""),
    (&["parallelism"], "pools.foundation", ""),
    (&["lr_scheduler", "scheduler"], "train.schedule", ""),
    (&["profiling"], "watch.profile", ""),
];

/// Names, or keys with their sections (without numbers of lists), for which there is no key, and what there is instead.
const REMARKS: &[(&[&str], &str)] = &[
    (
        &["resume", "resume_from_checkpoint", "auto_resume_from_checkpoints"],
        "`loongforge run FILE --resume` continues from the last checkpoint, `--resume=CHECKPOINT` from that one",
    ),
    (&["overwrite_output_dir"], "`loongforge run FILE --overwrite` starts over"),
    (
        &["grpo", "ppo", "rloo", "reward", "reward_funcs", "reward_model", "num_generations", "rollout"],
        "there is no reinforcement learning: `train.preference` learns from pairs, or with `loss: kto` from answers that a \
         verifier labels (`loongforge generate --prompts FILE --num-answers N` draws them)",
    ),
    (&["do_train"], "leave it out: `loongforge run` trains"),
    (&["do_eval"], "leave it out: a run evaluates the sets of `eval`, and `loongforge evaluate` any file"),
    (
        &["flash_attn", "use_flash_attn", "attn_implementation", "use_liger_kernel", "enable_liger_kernel"],
        "leave it out: attention and losses are always fused",
    ),
    (&["ddp_timeout", "plot_loss", "overwrite_cache"], "leave it out: there is nothing to set"),
    (
        &["num_layers", "num_hidden_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size"],
        "it is a key of the model's config.json: `model.overrides` changes keys of it, `model.config` is a whole one",
    ),
    (&["push_to_hub", "hub_model_id"], "`loongforge checkpoint push FOLDER ORG/NAME` uploads a model"),
    (
        &["per_device_eval_batch_size", "eval_batch_size"],
        "leave it out: evaluation uses packs of the same size as training",
    ),
    (&["dataset_dir"], "leave it out: `data.train` names each file with its folder"),
    (
        &[
            "media_dir",
            "image_folder",
            "image_dir",
            "video_folder",
            "video_dir",
            "audio_folder",
            "audio_dir",
            "dataset_base_path",
        ],
        "name the folder of the pictures with its data set: `data.train: [{ path: FILE, media_dir: FOLDER }]`",
    ),
    (
        &["data.train.data_path", "data.train.dataset_path", "data.train.annotation_path"],
        "`path` is the file or folder of a data set: `data.train: [{ path: FILE }]`",
    ),
    (
        &["sampling_rate", "sample_rate", "target_sample_rate"],
        "leave it out: recordings are converted to the rate of the model's preprocessor_config.json, and to one channel",
    ),
    (&["image_aspect_ratio"], "leave it out: pictures are resized as the preprocessor_config.json of the model says"),
    (
        &["group_by_length", "group_by_modality_length"],
        "leave it out: samples are packed without padding, and packs are balanced over replicas",
    ),
    (
        &["episodes", "exclude_episodes"],
        "name the episodes with their data set: `data.train: [{ path: SET, episodes: [0-99, 120, 200-] }]`",
    ),
    (
        &["max_samples", "max_train_samples"],
        "name the number with its data set: `data.train: [{ path: FILE, max_samples: 1000 }]`",
    ),
    (
        &["data.train.split", "data.train.subset"],
        "name it in the path, as `hf://datasets/ORG/NAME/SPLIT` or `hf://datasets/ORG/NAME/CONFIGURATION/SPLIT`",
    ),
    (&["dataset_text_field"], "name the field of a data set: `data.train: [{ path: FILE, columns: { text: FIELD } }]`"),
    (
        &["train_on_prompt", "assistant_only_loss", "completion_only_loss"],
        "`train.phase: sft` learns answers alone, `pretrain` all tokens",
    ),
    (&["max_prompt_length"], "leave it out: `data.pack.max_tokens` limits a prompt with its answers"),
    (&["train_samples"], "set `train.steps`, or `train.epochs`"),
    (
        &["tensorboard_dir", "logging_dir"],
        "leave it out: TensorBoard's files are in the folder `tensorboard` of `run.dir`",
    ),
    (
        &["wandb_mode", "log.wandb.mode", "log.wandb.offline"],
        "leave it out: a run is always written to files, which `wandb sync` sends",
    ),
    (
        &["swanlab", "use_swanlab", "enable_swanlab_log", "swanlab_project"],
        "set `log.wandb: {}`, whose file `swanlab convert -t wandb-local` sends",
    ),
    (
        &["hydra"],
        "Hydra's own settings do not apply: `run.dir` is the folder of a run, and the working directory stays",
    ),
];

/// Names that other trainers use for values, each with ours, which applies if a key accepts it.
const VALUES: &[(&[&str], &str)] = &[
    (&["dpo"], "sigmoid"),
    (&["bfloat16"], "bf16"),
    (&["fp32", "float"], "float32"),
    (&["adamw_torch", "adamw_torch_fused"], "adamw"),
    (&["adamw_bnb_8bit", "paged_adamw_8bit", "adam8bit"], "adamw_8bit"),
];

/// Returns which of `choices` other trainers call `text`.
pub(super) fn our_value<'a>(text: &str, choices: &[&'a str]) -> Option<&'a str> {
    let is_name = |theirs: &[&str]| theirs.iter().any(|theirs| theirs.eq_ignore_ascii_case(text));
    let named = VALUES.iter().filter(|(theirs, _)| is_name(theirs));
    named.filter_map(|(_, ours)| choices.iter().find(|choice| *choice == ours)).next().copied()
}

/// Returns our key for what other trainers call `name`, and a remark on its value, which may be empty.
pub(super) fn ours(name: &str) -> Option<(&'static str, &'static str)> {
    let is_name = |theirs: &[&str]| theirs.iter().any(|theirs| theirs.eq_ignore_ascii_case(name));
    NAMES.iter().find(|(theirs, ..)| is_name(theirs)).map(|(_, key, note)| (*key, *note))
}

/// Returns what there is instead of a key that other trainers call `name`, or that a user looks for in the section `path`.
pub(super) fn remark(name: &str, path: &str) -> Option<&'static str> {
    let sections: Vec<&str> = path.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
    let key = join(&sections.join("."), name);
    let is_meant = |theirs: &&str| theirs.eq_ignore_ascii_case(name) || **theirs == key;
    REMARKS.iter().find(|(theirs, _)| theirs.iter().any(is_meant)).map(|(_, remark)| *remark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::shape::{SCHEMA, walk};
    use std::collections::BTreeSet;

    #[test]
    fn every_key_is_there_and_every_name_is_told_once() {
        let (mut keys, mut names) = (BTreeSet::new(), BTreeSet::new());
        walk(&SCHEMA, "", &mut |path, _| {
            keys.insert(path.to_owned());
        });
        for (theirs, key, _) in NAMES {
            assert!(keys.contains(*key), "{key}");
            theirs.iter().for_each(|name| assert!(names.insert(*name), "{name} twice"));
        }
        for (theirs, _) in REMARKS {
            theirs.iter().for_each(|name| assert!(!keys.contains(*name) && names.insert(*name), "{name} twice"));
        }
        assert_eq!(ours("Learning_Rate"), Some(("train.lr", "")));
        assert_eq!(ours("lr"), None);
        assert_eq!(ours("instance_prompt"), Some(("data.train.0.caption", "of each data set")));
    }

    #[test]
    fn keys_of_a_data_set_are_shown_with_it() {
        assert!(remark("image_folder", "data").is_some_and(|remark| remark.contains("media_dir: FOLDER")));
        assert!(remark("audio_dir", "data.train.0").is_some_and(|remark| remark.contains("media_dir: FOLDER")));
        assert!(remark("data_path", "data.train.0").is_some_and(|remark| remark.starts_with("`path` is")));
        assert_eq!(remark("data_path", ""), None);
        assert!(remark("episodes", "data").is_some_and(|remark| remark.contains("episodes: [0-99")));
        assert!(remark("max_samples", "data").is_some_and(|remark| remark.contains("max_samples: 1000")));
    }
}
