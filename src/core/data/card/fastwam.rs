//! The frozen networks of FastWAM by its `config.json`. lerobot takes them from `Wan-AI/Wan2.2-TI2V-5B-Diffusers`, whose configs are
//! built in; a policy with others has theirs under `sizes`.

use std::sync::LazyLock;

use serde_json::{Value as Json, json};

use crate::config::model_files;

/// lerobot's `type`.
pub const FASTWAM: &str = "fastwam";
/// The built-in config that has the networks.
const PUBLISHED: &str = "wan2_2_ti2v_5b";
/// The text around a task where the config does not say.
const TEMPLATE: &str = "A video recorded from a robot's point of view executing the following instruction: {task}";
/// Tokens of a text where the config does not say.
const MAX_TOKENS: u64 = 128;

static NETWORKS: LazyLock<Json> = LazyLock::new(|| {
    let file = model_files().find(|file| file.name == PUBLISHED);
    file.map_or(Json::Null, |file| Json::Object(file.config))
});

/// Returns whether a `config.json` is FastWAM's.
pub fn is_fastwam(config: &Json) -> bool {
    config["model_type"].is_null() && config["type"] == FASTWAM
}

/// Returns the frozen networks of a policy as a diffusion model's `config.json` has them: `vae`, `text_encoder`, the template and length
/// of texts (`text`), and the patches of the transformer. The reader of the model refuses a `prompt_template` that is no text with one
/// `{task}`.
pub fn fastwam_networks(config: &Json) -> Json {
    let network = |name: &str| match &config["sizes"][name] {
        Json::Null => NETWORKS[name].clone(),
        own => own.clone(),
    };
    let patch = match &config["video_dit_config"]["patch_size"] {
        Json::Null => json!([1, 2, 2]),
        own => own.clone(),
    };
    let template = config["prompt_template"].as_str().unwrap_or(TEMPLATE).replace("{task}", "{}");
    let max_tokens = config["tokenizer_max_len"].as_u64().unwrap_or(MAX_TOKENS);
    json!({
        "vae": network("vae"), "text_encoder": network("text_encoder"), "transformer": { "patch_size": patch },
        "text": { "template": template, "max_tokens": max_tokens },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fastwam_networks;

    #[test]
    fn networks_are_the_published_ones_or_those_of_sizes() {
        let published = fastwam_networks(&json!({"type": "fastwam"}));
        assert_eq!((&published["vae"]["z_dim"], &published["text_encoder"]["d_model"]), (&json!(48), &json!(4096)));
        assert_eq!(published["text"]["max_tokens"], 128);
        assert!(published["text"]["template"].as_str().unwrap().ends_with("instruction: {}"));
        let own = fastwam_networks(&json!({"type": "fastwam", "sizes": {"vae": {"z_dim": 4}}, "tokenizer_max_len": 9,
            "prompt_template": "do {task}"}));
        assert_eq!((&own["vae"], &own["text"]["max_tokens"]), (&json!({"z_dim": 4}), &json!(9)));
        assert_eq!((&own["text"]["template"], &own["text_encoder"]["d_ff"]), (&json!("do {}"), &json!(10240)));
    }
}
