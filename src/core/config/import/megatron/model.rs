//! Translates the options of the model: a Hugging Face folder, or the sizes that the options give.

use serde_json::{Value, json};

use crate::config::import::sheet::Sheet;

const SAID: &str = "it comes from config.json in model.load; model.overrides changes it";
const BUILT_IN: &str = "it is built in";
/// Options that describe an architecture.
const SIZES: [&str; 59] = [
    "add_qkv_bias",
    "apply_layernorm_1p",
    "attention_softmax_in_fp32",
    "decoder_num_layers",
    "disable_bias_linear",
    "enable_fa_within_mla",
    "ffn_hidden_size",
    "glu_linear_offset",
    "group_query_attention",
    "hidden_size",
    "kv_channels",
    "kv_lora_rank",
    "language_model_type",
    "make_vocab_size_divisible_by",
    "max_position_embeddings",
    "moe_ffn_hidden_size",
    "moe_layer_freq",
    "moe_router_enable_expert_bias",
    "moe_router_group_topk",
    "moe_router_load_balancing_type",
    "moe_router_num_groups",
    "moe_router_pre_softmax",
    "moe_router_score_function",
    "moe_router_topk",
    "moe_router_topk_scaling_factor",
    "moe_shared_expert_intermediate_size",
    "mscale",
    "mscale_all_dim",
    "multi_latent_attention",
    "no_position_embedding",
    "norm_epsilon",
    "normalization",
    "num_attention_heads",
    "num_experts",
    "num_layers",
    "num_query_groups",
    "original_max_position_embeddings",
    "position_embedding_type",
    "q_lora_rank",
    "qk_head_dim",
    "qk_layernorm",
    "qk_pos_emb_head_dim",
    "quick_geglu",
    "rope_scaling_factor",
    "rope_type",
    "rotary_base",
    "rotary_percent",
    "rotary_scaling_factor",
    "rotary_seq_len_interpolation_factor",
    "softmax_type",
    "spec",
    "squared_relu",
    "swiglu",
    "untie_embeddings_and_output_weights",
    "use_rope_scaling",
    "use_rotary_position_embeddings",
    "v_head_dim",
    "vocab_extra_ids",
    "vocab_size",
];

/// Translates the options that name a model or give its sizes.
pub(super) fn read(sheet: &mut Sheet) {
    let hf = ["HFTokenizer", "HuggingFaceTokenizer", "MultimodalTokenizer"];
    let is_hf = hf.iter().any(|name| sheet.is("tokenizer_type", name));
    // A robot policy's checkpoint is a folder of lerobot.
    let is_policy = sheet.get("dataset_format").is_some();
    let folder = match () {
        () if is_policy => Some("pretrained_checkpoint"),
        () if sheet.get("hf_tokenizer_path").is_some() => Some("hf_tokenizer_path"),
        () if is_hf && sheet.get("tokenizer_model").is_some() => Some("tokenizer_model"),
        () => None,
    };
    let is_random = folder == Some("tokenizer_model") && starts_at_random(sheet);
    match folder {
        Some(key) if is_random && is_llama(sheet) => {
            sheet.copy(key, "model.tokenizer");
            sizes(sheet);
            sheet.settled("model.tokenizer names its folder", &["tokenizer_type"]);
            sheet.missing(
                "choose a built-in config (`loongforge models`) or a folder in model.load",
                &["model_name", "config_file"],
            );
        }
        Some(key) => {
            sheet.copy(key, "model.load");
            if is_random {
                sheet.set("model.weights", "random");
                sheet.note(
                    "the script loads no weights: those of model.load are not read (model.weights: random), only its config.json",
                );
            }
            sheet.note(
                "model.load must be a Hugging Face folder with config.json and weights; Megatron checkpoints are not read",
            );
            sheet.settled(SAID, &SIZES);
            sheet.settled(
                SAID,
                &["model_name", "config_file", "tokenizer_type", "use_checkpoint_args", "model_provider"],
            );
        }
        None => {
            sizes(sheet);
            sheet.missing(
                "choose a built-in config (`loongforge models`) or a folder in model.load",
                &["model_name", "config_file"],
            );
            sheet
                .missing("set model.tokenizer to a folder with tokenizer.json", &["tokenizer_type", "tokenizer_model"]);
        }
    }
    sheet.missing(
        "set model.tokenizer to a folder with tokenizer.json",
        &["vocab_file", "merge_file", "tiktoken_pattern"],
    );
    sheet.settled(
        "the tokenizer comes from model.load",
        &["tokenizer_path", "hf_processor_path", "no_use_tokenizer_model_from_checkpoint_args"],
    );
    sheet.missing("put it into the tokenizer's folder, or set data.template", &["tokenizer_prompt_format"]);
    let checkpoint = "Megatron checkpoints are not read: set model.load to a Hugging Face folder";
    sheet.missing(checkpoint, &["pretrained_checkpoint", "checkpoint_path"]);
    let load = sheet.get("load").cloned();
    if load.is_some() && load == sheet.get("save").cloned() {
        sheet.settled("use `loongforge run --resume` to continue from the run's own checkpoint", &["load"]);
    }
    sheet.missing(checkpoint, &["load"]);
    mixture(sheet);
    parts(sheet);
    sheet.settled(
        BUILT_IN,
        &[
            "attention_backend",
            "cross_entropy_fusion_impl",
            "cross_entropy_loss_fusion",
            "no_bias_dropout_fusion",
            "no_bias_gelu_fusion",
            "no_masked_softmax_fusion",
            "no_rope_fusion",
            "transformer_impl",
            "use_dsa_fused",
            "use_flash_attn",
            "use_mcore_models",
            "use_te",
        ],
    );
}

/// Returns whether Megatron-LM starts from random weights, of which its tokenizer's folder says nothing: it loads none, or what the
/// run itself has saved.
fn starts_at_random(sheet: &Sheet) -> bool {
    let is_there = |key: &str| sheet.get(key).is_some() || sheet.is_unsaid(key);
    let loads = ["pretrained_checkpoint", "checkpoint_path", "use_checkpoint_args"].into_iter().any(is_there);
    let is_own = !sheet.is_unsaid("load") && sheet.get("load") == sheet.get("save");
    sheet.is("tokenizer_type", "HuggingFaceTokenizer") && !loads && (!is_there("load") || is_own)
}

/// Makes a LLaMA or a Mixtral of the given sizes, with random weights.
fn sizes(sheet: &mut Sheet) {
    if !is_llama(sheet) {
        let other = "only LLaMA and Mixtral models can be built from options: set model.load or model.config";
        return sheet.missing(other, &SIZES);
    }
    let config = llama(sheet);
    let has_vocabulary = config.get("vocab_size").is_some();
    sheet.set("model.config", config);
    sheet.set("model.weights", "random");
    if !sheet.has_set("model.tokenizer") {
        sheet.note("set model.tokenizer to a folder with tokenizer.json");
    }
    if !has_vocabulary {
        sheet.note("the options do not give the size of the vocabulary: set model.config.vocab_size");
    }
    arrive(sheet);
    if sheet.number("rotary_percent") == Some(1.0) {
        sheet.settled("the whole head is rotated", &["rotary_percent"]);
    }
    if sheet.is("moe_router_load_balancing_type", "aux_loss") {
        sheet.settled("model.moe.aux_loss_coef balances the experts", &["moe_router_load_balancing_type"]);
    }
    sheet.settled("a vocabulary is not padded", &["make_vocab_size_divisible_by"]);
    sheet.missing("this model.config has no such key", &SIZES);
}

/// Returns whether the options describe a LLaMA or a Mixtral, and give the sizes that it needs.
fn is_llama(sheet: &Sheet) -> bool {
    let rotates = sheet.is("position_embedding_type", "rope") || sheet.is_true("use_rotary_position_embeddings");
    let is_llama = sheet.is_true("swiglu") && sheet.is("normalization", "RMSNorm") && rotates;
    let has_other =
        ["add_qkv_bias", "qk_layernorm", "multi_latent_attention", "apply_layernorm_1p", "use_rope_scaling"]
            .iter()
            .any(|key| sheet.is_true(key));
    // Mixtral's experts have no biases, which theirs have unless told otherwise.
    let has_other = has_other || (sheet.number("num_experts").is_some() && has_biases(sheet));
    let needed = ["num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"];
    is_llama && !has_other && needed.iter().all(|key| sheet.number(key).is_some())
}

/// Returns whether linear layers have biases, as Megatron's have by default.
fn has_biases(sheet: &Sheet) -> bool {
    !sheet.is_true("disable_bias_linear")
}

/// Returns the `config.json` that the options describe.
fn llama(sheet: &Sheet) -> Value {
    let number = |key: &str| sheet.number(key).map(|number| number as u64);
    let heads = number("num_attention_heads");
    let groups = if sheet.is_true("group_query_attention") { number("num_query_groups").or(Some(1)) } else { heads };
    let mut config = json!({
        "model_type": "llama",
        "num_hidden_layers": number("num_layers"),
        "hidden_size": number("hidden_size"),
        "intermediate_size": number("ffn_hidden_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "rope_theta": sheet.number("rotary_base").unwrap_or(10_000.0),
        "rms_norm_eps": sheet.number("norm_epsilon").unwrap_or(1e-5),
        "max_position_embeddings": number("max_position_embeddings"),
        "initializer_range": sheet.number("init_method_std").unwrap_or(0.02),
        "tie_word_embeddings": !sheet.is_true("untie_embeddings_and_output_weights"),
    });
    if let Some(size) = number("vocab_size") {
        config["vocab_size"] = json!(size);
    }
    if let Some(channels) = number("kv_channels") {
        config["head_dim"] = json!(channels);
    }
    if has_biases(sheet) {
        (config["attention_bias"], config["mlp_bias"]) = (json!(true), json!(true));
    }
    if let Some(experts) = number("num_experts") {
        config["model_type"] = json!("mixtral");
        config["num_local_experts"] = json!(experts);
        config["num_experts_per_tok"] = json!(number("moe_router_topk").unwrap_or(2));
    }
    config
}

/// Tells of the options that `model.config` holds.
fn arrive(sheet: &mut Sheet) {
    let sizes = [
        ("num_layers", "num_hidden_layers"),
        ("hidden_size", "hidden_size"),
        ("ffn_hidden_size", "intermediate_size"),
        ("num_attention_heads", "num_attention_heads"),
        ("num_query_groups", "num_key_value_heads"),
        ("group_query_attention", "num_key_value_heads"),
        ("kv_channels", "head_dim"),
        ("rotary_base", "rope_theta"),
        ("norm_epsilon", "rms_norm_eps"),
        ("max_position_embeddings", "max_position_embeddings"),
        ("init_method_std", "initializer_range"),
        ("untie_embeddings_and_output_weights", "tie_word_embeddings"),
        ("vocab_size", "vocab_size"),
        ("num_experts", "num_local_experts"),
        ("moe_router_topk", "num_experts_per_tok"),
    ];
    sizes.iter().for_each(|(theirs, ours)| sheet.arrived(theirs, &format!("model.config.{ours}")));
    let of_type = [
        "swiglu",
        "normalization",
        "position_embedding_type",
        "use_rotary_position_embeddings",
        "disable_bias_linear",
        "no_position_embedding",
    ];
    of_type.iter().for_each(|key| sheet.arrived(key, "model.config.model_type"));
}

fn mixture(sheet: &mut Sheet) {
    for (theirs, ours) in [
        ("moe_aux_loss_coeff", "model.moe.aux_loss_coef"),
        ("moe_z_loss_coeff", "model.moe.z_loss_coef"),
        ("moe_router_bias_update_rate", "model.moe.bias_update_rate"),
        ("mtp_num_layers", "model.mtp.num_layers"),
        ("mtp_loss_scaling_factor", "model.mtp.loss_weight"),
    ] {
        sheet.copy_number(theirs, ours);
    }
    sheet.settled(
        BUILT_IN,
        &[
            "moe_enable_deepep",
            "moe_flex_dispatcher_backend",
            "moe_grouped_gemm",
            "moe_per_layer_logging",
            "moe_permute_fusion",
            "moe_router_fusion",
            "moe_shared_expert_overlap",
            "moe_token_dispatcher_type",
            "should_get_embedding_weights_for_mtp",
        ],
    );
    if sheet.is("moe_router_dtype", "fp32") {
        sheet.settled("routers compute in float32", &["moe_router_dtype"]);
    }
    sheet.missing(
        "tokens are never dropped, and routers are never forced to balance",
        &["moe_expert_capacity_factor", "moe_router_force_load_balancing"],
    );
}

/// Parts that are frozen or adapted, and the size of pictures.
fn parts(sheet: &mut Sheet) {
    for (theirs, ours) in [("freeze_ViT", "model.image_encoder.freeze"), ("freeze_LM", "model.foundation.freeze")] {
        sheet.copy(theirs, ours);
    }
    if sheet.is("trainable_modules", "all") {
        sheet.settled("all parts are trained by default", &["trainable_modules"]);
    }
    let freeze = "freeze the other parts: model.image_encoder.freeze, image_projector.freeze, foundation.freeze";
    sheet.missing(freeze, &["trainable_modules"]);
    if sheet.is_true("use_lora") || sheet.get("lora_dim").is_some() {
        sheet.copy_all(&[
            ("lora_dim", "model.foundation.lora.r"),
            ("lora_r", "model.foundation.lora.r"),
            ("lora_alpha", "model.foundation.lora.alpha"),
            ("lora_dropout", "model.foundation.lora.dropout"),
        ]);
        sheet.arrived("use_lora", "model.foundation.lora");
    }
    let frames = [("min_num_frame", "data.video.min_frames"), ("max_num_frame", "data.video.max_frames")];
    frames.iter().for_each(|(theirs, ours)| sheet.copy(theirs, ours));
    let pictures = "the model's preprocessor_config.json and config.json determine how pictures are processed; \
                    data.image and model.overrides change it";
    sheet.settled(
        pictures,
        &[
            "disable_vision_class_token",
            "dynamic_image_size",
            "dynamic_resolution",
            "image_tag_type",
            "image_token_id",
            "img_h",
            "img_w",
            "patch_dim",
            "pixel_shuffle",
            "use_tile_tags",
            "use_tiling",
            "vision_model_type",
        ],
    );
    sheet.missing(pictures, &["max_dynamic_patch", "max_num_tiles", "use_thumbnail", "conv_style"]);
    let diffusion = "set data.image.area and data.video.frames, the size of a diffusion model's samples";
    sheet.missing(diffusion, &["num_latent_frames", "max_latent_height", "max_latent_width", "num_frames"]);
    sheet.copy("max_text_length", "model.text.max_tokens");
    sheet.missing(
        "set model.experts, which selects the transformer for high or low noise",
        &["min_timestep_boundary", "max_timestep_boundary"],
    );
}
