use std::collections::BTreeMap;

use loongforge_core::message::Tower;
use loongforge_core::schedule::TimeSampler;
use serde_json::{Value, json};

use super::{of_lerobot, published};
use crate::model::config::ModelConfig;
use crate::model::keys::Keys;
use crate::params::{ParamSpec, Role};

fn model(config: &Value) -> ModelConfig {
    ModelConfig::from_hf(config).unwrap()
}

fn specs(config: &Value) -> BTreeMap<String, ParamSpec> {
    model(config).specs().into_iter().map(|spec| (spec.name.clone(), spec)).collect()
}

fn small() -> Value {
    serde_json::from_str(include_str!("../../tests/policies/groot-seed1/config.json")).unwrap()
}

/// The reference's names, of the sizes in its source.
#[test]
fn published_configs_have_published_names_and_sizes() {
    let found = specs(&json!({"model_type": "Gr00tN1d7", "model_name": "nvidia/Cosmos-Reason2-2B"}));
    for (name, shape) in [
        ("backbone.model.model.language_model.embed_tokens.weight", vec![151_936, 2048]),
        ("backbone.model.model.language_model.layers.15.mlp.down_proj.weight", vec![2048, 6144]),
        ("backbone.model.model.language_model.norm.weight", vec![2048]),
        ("backbone.model.model.visual.blocks.23.attn.qkv.weight", vec![3072, 1024]),
        ("backbone.model.model.visual.deepstack_merger_list.2.linear_fc2.weight", vec![2048, 4096]),
        ("backbone.model.model.visual.merger.norm.weight", vec![1024]),
        ("action_head.vlln.weight", vec![2048]),
        ("action_head.vl_self_attention.transformer_blocks.3.attn1.to_out.0.weight", vec![2048, 2048]),
        ("action_head.vl_self_attention.transformer_blocks.0.norm3.bias", vec![2048]),
        ("action_head.state_encoder.layer1.W", vec![32, 132, 1024]),
        ("action_head.action_encoder.W2.W", vec![32, 3072, 1536]),
        ("action_head.action_decoder.layer2.b", vec![32, 132]),
        ("action_head.position_embedding.weight", vec![1024, 1536]),
        ("action_head.model.timestep_encoder.timestep_embedder.linear_1.weight", vec![1536, 256]),
        ("action_head.model.transformer_blocks.30.attn1.to_k.weight", vec![1536, 2048]),
        ("action_head.model.transformer_blocks.31.attn1.to_k.weight", vec![1536, 1536]),
        ("action_head.model.transformer_blocks.31.norm1.linear.weight", vec![3072, 1536]),
        ("action_head.model.transformer_blocks.31.ff.net.0.proj.weight", vec![6144, 1536]),
        ("action_head.model.proj_out_2.weight", vec![1024, 1536]),
    ] {
        assert_eq!(found[name].shape, shape, "{name}");
    }
    assert!(!found.contains_key("backbone.model.model.language_model.layers.16.input_layernorm.weight"));
    let of_lerobot = specs(&json!({"type": "groot", "chunk_size": 40, "base_model_path": "nvidia/GR00T-N1.7-3B"}));
    let renamed: Vec<String> = found.keys().map(|name| format!("_groot_model.{name}")).collect();
    assert_eq!(of_lerobot.keys().cloned().collect::<Vec<_>>(), renamed);
}

/// NVIDIA's names of N1.6, of the sizes in its source.
#[test]
fn published_configs_of_n1_6_have_published_names_and_sizes() {
    let config = json!({"model_type": "Gr00tN1d6", "model_name": "nvidia/Eagle-Block2A-2B-v2", "state_dropout_prob": 0.8,
        "max_state_dim": 128, "max_action_dim": 128, "action_horizon": 50, "apply_sincos_state_encoding": true});
    let found = specs(&config);
    for (name, shape) in [
        ("backbone.model.language_model.model.embed_tokens.weight", vec![151_680, 2048]),
        ("backbone.model.language_model.model.layers.15.self_attn.q_norm.weight", vec![128]),
        ("backbone.model.language_model.model.norm.weight", vec![2048]),
        ("backbone.model.vision_model.vision_model.embeddings.patch_embedding.weight", vec![1152, 588]),
        ("backbone.model.vision_model.vision_model.embeddings.position_embedding.weight", vec![256, 1152]),
        ("backbone.model.vision_model.vision_model.encoder.layers.26.mlp.fc1.weight", vec![4304, 1152]),
        ("backbone.model.vision_model.vision_model.post_layernorm.bias", vec![1152]),
        ("backbone.model.vision_model.vision_model.head.attention.in_proj_weight", vec![3456, 1152]),
        ("backbone.model.mlp1.0.weight", vec![4608]),
        ("backbone.model.mlp1.1.weight", vec![2048, 4608]),
        ("backbone.model.mlp1.3.bias", vec![2048]),
        ("action_head.mask_token", vec![1, 1, 1536]),
        ("action_head.vlln.weight", vec![2048]),
        ("action_head.state_encoder.layer1.W", vec![32, 128, 1024]),
        ("action_head.model.transformer_blocks.30.attn1.to_k.weight", vec![1536, 2048]),
    ] {
        assert_eq!(found[name].shape, shape, "{name}");
    }
    let has = |part: &str| found.keys().any(|name| name.contains(part));
    assert!(!has("language_model.model.layers.16.") && !has("vl_self_attention") && !has("lm_head"));
    // The last four layers learn (`tune_top_llm_layers`), and neither the others nor the norm.
    let trained = |part: &str| found.iter().any(|(name, spec)| name.contains(part) && spec.role == Role::Trained);
    assert!(trained("model.layers.12.") && trained("model.layers.15.") && trained("mask_token"));
    assert!(!trained("model.layers.11.") && !trained("language_model.model.norm"));
    assert!(specs(&json!({"model_type": "Gr00tN1d6"})).keys().all(|name| !name.contains("mask_token")));
    for (key, value, wanted) in [
        ("vl_self_attention_cfg", json!({"num_layers": 4}), "vl_self_attention_cfg"),
        ("backbone_model_type", json!("qwen"), "backbone_model_type"),
        ("state_additive_noise_scale", json!(-1.0), "state_additive_noise_scale"),
        ("model_name", json!("nvidia/other"), "model_name"),
    ] {
        let mut wrong = config.clone();
        wrong[key] = value;
        let message = ModelConfig::from_hf(&wrong).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
    let mut windows: Value =
        serde_json::from_str(include_str!("../../tests/policies/groot-n1_6-seed1/config.json")).unwrap();
    windows["backbone_config"]["vision_config"]["use_windows_attn"] = json!(true);
    let message = ModelConfig::from_hf(&windows).unwrap_err().to_string();
    assert!(message.contains("use_windows_attn"), "{message}");
}

/// Times of the reference are 1 minus ours: 0.999 · (1 − b) is 1 − (0.999 · b + 0.001).
#[test]
fn settings_are_read_from_both_configs() {
    let (published, _) = published(&Keys::new(&json!({"model_type": "Gr00tN1d7"}))).unwrap();
    let TimeSampler::Beta { alpha, beta, scale, offset } = published.times else { panic!("Beta") };
    assert_eq!((alpha, beta, scale), (1.5, 1.0, 0.999));
    assert!((offset - 0.001).abs() < 1e-12);
    assert_eq!((published.num_steps, published.state_dropout, published.actions.dropout), (4, 0.2, 0.2));
    let mut sizes = small();
    sizes.as_object_mut().unwrap().remove("model_type");
    let lerobot = json!({"type": "groot", "chunk_size": 5, "max_state_dim": 5, "max_action_dim": 6, "num_inference_timesteps": 8,
        "tune_top_llm_layers": 1, "tune_visual": true, "sizes": sizes});
    let (found, _) = of_lerobot(&Keys::new(&lerobot)).unwrap();
    assert_eq!((found.horizon, found.num_steps, found.tuned.top_llm_layers), (5, 8, 1));
    assert!(found.tuned.visual && !found.tuned.llm);
}

#[test]
fn what_is_not_tuned_is_frozen() {
    let frozen = |changes: &[(&str, Value)]| {
        let mut config = small();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        let model = model(&config);
        assert_eq!(model.foundation.as_policy().unwrap().freezes_tower(), config["tune_visual"] != true);
        let specs = model.foundation.specs().into_iter().filter(|spec| spec.role == Role::Frozen);
        specs.map(|spec| spec.name).collect::<Vec<_>>()
    };
    let norm = "backbone.model.model.language_model.norm.weight";
    assert_eq!(frozen(&[]), [norm]);
    let begins = |found: &[String], prefixes: &[&str]| {
        !found.is_empty() && found.iter().all(|name| name == norm || prefixes.iter().any(|it| name.starts_with(it)))
    };
    let text = "backbone.model.model.language_model.";
    let llm = frozen(&[("tune_llm", json!(false)), ("tune_visual", json!(false))]);
    assert!(begins(&llm, &[text]) && llm.contains(&format!("{text}embed_tokens.weight")));
    let top = frozen(&[("tune_llm", json!(false)), ("tune_top_llm_layers", json!(1))]);
    assert_eq!(llm.iter().filter(|name| !top.contains(name)).count(), 11);
    assert!(llm.iter().filter(|name| !top.contains(name)).all(|name| name.contains("layers.1.")));
    let vlln = frozen(&[("tune_vlln", json!(false))]);
    assert!(begins(&vlln, &["action_head.vlln.", "action_head.vl_self_attention."]) && vlln.len() == 19);
    let projector = frozen(&[("tune_projector", json!(false))]);
    let maps = ["action_head.state_encoder.", "action_head.action_", "action_head.position_embedding."];
    assert!(begins(&projector, &maps) && projector.len() == 16, "{projector:?}");
    let diffusion = frozen(&[("tune_diffusion_model", json!(false))]);
    assert!(begins(&diffusion, &["action_head.model."]) && diffusion.len() > 40);
}

/// A policy in two parts has all names, and of the language model the roles.
#[test]
fn both_parts_of_a_policy_have_the_parameters_of_the_whole() {
    let of = |model: &ModelConfig| -> BTreeMap<String, Role> {
        model.specs().into_iter().map(|spec| (spec.name, spec.role)).collect()
    };
    for name in ["Gr00tN1d7", "Gr00tN1d6"] {
        let whole = model(&json!({"model_type": name}));
        let apart = whole.with_prefix_tower().unwrap();
        let in_tower = |spec: &ParamSpec| spec.name.starts_with("backbone.");
        assert!(apart.towers.specs().iter().all(in_tower) && !apart.foundation.specs().iter().any(in_tower));
        assert!(of(&apart).keys().eq(of(&whole).keys()), "{name}");
        let (towers, inputs) = (apart.towers.set(), apart.inputs());
        assert!(towers.iter().eq([Tower::Text]) && (inputs[0].tower, inputs[0].width) == (Tower::Text, 2048));
        assert!(apart.with_prefix_tower().is_none(), "there is nothing left to split");
        assert!(apart.towers.part_of("backbone.model.mlp1.0.weight").is_some());
    }
    for (llm, top, visual) in [(true, 0, true), (false, 0, true), (false, 1, false), (false, 0, false)] {
        let mut config = small();
        let tuned = [("tune_llm", json!(llm)), ("tune_top_llm_layers", json!(top)), ("tune_visual", json!(visual))];
        tuned.into_iter().for_each(|(key, value)| config[key] = value);
        let whole = model(&config);
        let apart = whole.with_prefix_tower().unwrap();
        let (found, expected) = (of(&apart), of(&whole));
        // Whether the tower of pictures is trained is otherwise the run's settings'.
        let role = |name: &str| match name.contains(".visual.") && !visual {
            true => Role::Frozen,
            false => expected[name],
        };
        assert!(found.iter().all(|(name, own)| *own == role(name)), "{llm} {top} {visual}");
        let is_trained = apart.towers.specs().iter().any(|spec| spec.role == Role::Trained);
        assert_eq!(apart.foundation.as_policy().unwrap().freezes_tower(), !is_trained, "{llm} {top} {visual}");
    }
    let other = json!({"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4});
    assert!(model(&other).with_prefix_tower().is_none());
}

#[test]
fn errors_name_the_key() {
    let error = |pointer: &str, value: Value| {
        let mut config = small();
        let (holder, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(holder).unwrap()[key] = value;
        ModelConfig::from_hf(&config).unwrap_err().to_string()
    };
    for (pointer, value, expected) in [
        ("/use_alternate_vl_dit", json!(false), "use_alternate_vl_dit is false; supported: true"),
        ("/strict_action_padding_mask", json!(true), "strict_action_padding_mask is true"),
        ("/action_hidden", json!(3), "action_hidden is 3"),
        ("/select_layer", json!(4), "select_layer is 4, but must be at most text_config.num_hidden_layers (3)"),
        ("/select_layer", json!(1), "select_layer is 1, but must be more than the levels"),
        ("/max_seq_len", json!(4), "max_seq_len is 4, but must be at least action_horizon (5)"),
        ("/hidden_size", json!(11), "diffusion_model_cfg.output_dim is 10, but must equal hidden_size (11)"),
        ("/input_embedding_dim", json!(13), "input_embedding_dim is 13"),
        ("/state_dropout_prob", json!(1.5), "state_dropout_prob is 1.5"),
        (
            "/diffusion_model_cfg/positional_embeddings",
            json!("sinusoidal"),
            "diffusion_model_cfg.positional_embeddings",
        ),
        ("/diffusion_model_cfg/norm_type", json!("layer_norm"), "diffusion_model_cfg.norm_type"),
        ("/vl_self_attention_cfg/attention_head_dim", json!(4), "vl_self_attention_cfg is 8, but must equal"),
        ("/vl_self_attention_cfg/other", json!(4), "vl_self_attention_cfg.other"),
    ] {
        let message = error(pointer, value);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
    let message = ModelConfig::from_hf(&json!({"type": "groot", "chunk_size": 16})).unwrap_err().to_string();
    assert!(message.contains("chunk_size is 16; supported: 40, 50"), "{message}");
    let message = ModelConfig::from_hf(&json!({"model_type": "Gr00tN1d7", "model_name": "other"})).unwrap_err();
    assert!(message.to_string().contains("model_name"), "{message}");
}
