//! The text of a first config.

use clap::ValueEnum;

/// Kinds of models, whose configs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Language model
    Text,
    /// Language model that sees pictures or hears sound
    Multimodal,
    /// Diffusion transformer: Wan, Qwen-Image
    Diffusion,
}

/// What the user has chosen.
pub struct Choices {
    pub name: String,
    pub model: String,
    pub data: String,
    pub lora: bool,
    pub kind: Kind,
    pub gpus: Option<u32>,
}

impl Choices {
    /// The config, with a comment for what one changes first.
    pub fn text(&self) -> String {
        let mut lines = vec![
            "# Every key: docs/configuration.md. `loongforge check` reports every mistake at once, `loongforge plan` the memory."
                .to_owned(),
            format!("run: {{ name: {} }}    # it writes into runs/NAME", quoted(&self.name)),
            "model:".to_owned(),
            format!("  load: {}", quoted(&self.model)),
        ];
        match (self.lora, self.kind) {
            (true, Kind::Diffusion) => lines.push("  foundation: { lora: { r: 32, alpha: 32 } }".to_owned()),
            (true, _) => lines.push(
                "  foundation: { lora: { r: 16, alpha: 32 } }    # all linear maps; target_modules: [q_proj, v_proj] for some".to_owned(),
            ),
            (false, Kind::Multimodal) => {
                lines.push("  # image_encoder: { freeze: true }    # train the projector and the language model only".to_owned());
            }
            (false, _) => {}
        }
        lines.push("data:".to_owned());
        lines.push(format!("  train: [{{ path: {} }}]", quoted(&self.data)));
        lines.extend(self.data_lines().map(str::to_owned));
        lines.push("train:".to_owned());
        lines.extend(self.train_lines());
        lines.push("checkpoint: { every_steps: 100 }".to_owned());
        lines.push("eval: { every_steps: 100 }    # of the samples that val_size sets aside".to_owned());
        if self.kind == Kind::Diffusion {
            lines.push("edges: { pixels: { credit: 1GiB } }    # frames of a micro-batch, 12 bytes a pixel, twice where the first is given".to_owned());
        }
        if let Some(gpus) = self.gpus {
            lines.push("device: cuda".to_owned());
            lines.push("pools:".to_owned());
            lines.push(format!(
                "  foundation: {{ replicas: {gpus}, zero: 2 }}    # tensor_parallel, pipeline_parallel: docs/parallelism.md"
            ));
        }
        lines.join("\n") + "\n"
    }

    fn data_lines(&self) -> impl Iterator<Item = &'static str> {
        let lines: &[&str] = match self.kind {
            Kind::Text | Kind::Multimodal => &[
                "  val_size: 0.02                       # this part is set aside and evaluated",
                "  pack: { max_tokens: 4096 }           # longer samples are skipped; too_long: truncate cuts them",
            ],
            Kind::Diffusion => &[
                "  val_size: 0.02                       # this part is set aside and evaluated",
                "  pack: { max_tokens: 32768 }          # tokens of a micro-batch; larger pictures and clips are skipped",
                "  image: { area: 1024x1024 }           # pictures with more pixels are reduced; smaller ones keep their size",
                "  video: { area: 480x832, frames: 49 }",
                "  caption_dropout: 0.1",
            ],
        };
        lines.iter().copied()
    }

    fn train_lines(&self) -> Vec<String> {
        let rate = if self.lora { "1e-4" } else { "1e-5" };
        let batch = if self.kind == Kind::Diffusion { 8 } else { 32 };
        let mut lines = vec![
            format!("  epochs: {}", if self.kind == Kind::Diffusion { 10 } else { 3 }),
            format!("  global_batch_size: {batch}                 # samples a step, over all replicas"),
            format!("  lr: {rate}"),
            "  warmup_steps: 20".to_owned(),
            "  precision: bf16                       # float32 on CPUs without bfloat16".to_owned(),
        ];
        if self.kind == Kind::Diffusion {
            lines.push("  sigma: { density: logit_normal, shift: 3 }".to_owned());
        }
        lines
    }
}

/// A text in YAML, in quotes where it could be something else.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let begins_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.');
    match begins_plain && text.chars().all(is_plain) && !matches!(text, "true" | "false" | "null" | "yes" | "no") {
        true => text.to_owned(),
        false => serde_json::Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{Device, load_text};

    #[test]
    fn every_choice_is_a_config() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("my samples.jsonl");
        std::fs::write(&data, "{}\n").unwrap();
        for kind in [Kind::Text, Kind::Multimodal, Kind::Diffusion] {
            for (lora, gpus) in [(false, None), (true, Some(8))] {
                let (model, data) = ("org/model-1".to_owned(), data.display().to_string());
                let choices = Choices { name: "12 runs".to_owned(), model, data: data.clone(), lora, kind, gpus };
                let text = choices.text();
                let config = load_text(&text).unwrap_or_else(|report| panic!("{kind:?}\n{text}\n{report}")).config;
                assert_eq!(
                    (config.run.name.as_str(), config.data.train[0].path.0[0].as_str()),
                    ("12 runs", data.as_str())
                );
                assert_eq!(config.model.foundation.lora.is_some(), lora);
                assert_eq!(config.device == Device::Cuda(None), gpus.is_some(), "{text}");
                assert!(text.lines().all(|line| line.len() <= 130), "{text}");
            }
        }
    }
}
