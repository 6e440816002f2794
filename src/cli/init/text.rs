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
    /// Robot policy
    Policy,
}

impl Kind {
    /// Returns the kind of models that learn from samples of a format, by its name in `data.train`.
    pub fn of_format(format: &str) -> Self {
        match format {
            "captioned" => Self::Diffusion,
            "lerobot" => Self::Policy,
            _ => Self::Text,
        }
    }
}

/// The weights that are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Low-rank adapters
    Lora,
    /// Low-rank adapters; the other weights are frozen in 4 bits
    Qlora,
    /// All weights
    Full,
}

/// Says what a run learns from samples, as their format shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learns {
    /// The assistant's messages
    Answers,
    /// The better of two answers
    Pairs,
    /// The good answers, and not the bad ones
    Labels,
    /// All tokens
    Texts,
}

impl Learns {
    /// Returns what is learned from samples of a format, by its name in `data.train`.
    pub fn of_format(format: &str) -> Self {
        match format {
            "pairs" => Self::Pairs,
            "labeled" => Self::Labels,
            "text" | "plain" | "tokens" => Self::Texts,
            _ => Self::Answers,
        }
    }

    fn line(self) -> Option<&'static str> {
        match self {
            Self::Answers => None,
            Self::Pairs => {
                Some("  preference: { loss: sigmoid }         # DPO; orpo and simpo need no reference model")
            }
            Self::Labels => Some("  preference: { loss: kto }             # answers that are good or bad"),
            Self::Texts => Some("  phase: pretrain                       # every token is learned"),
        }
    }
}

/// The choices of the user.
pub struct Choices {
    pub name: String,
    pub model: String,
    pub data: String,
    pub method: Method,
    pub kind: Kind,
    /// A diffusion model makes clips, not pictures alone.
    pub makes_clips: bool,
    pub gpus: Option<u32>,
    /// Samples of the data, or episodes; `None` where they cannot be counted here.
    pub num_samples: Option<u64>,
    pub learns: Learns,
}

/// The fraction of the samples that is held out.
const SHARE: f64 = 0.02;

impl Choices {
    /// Returns the config, with comments on what to change first.
    pub fn text(&self) -> String {
        let mut lines = vec![
            "# Every key: docs/configuration.md. `loongforge check` reports every mistake at once, `loongforge plan` the memory."
                .to_owned(),
            format!("run: {{ name: {} }}    # it writes into runs/NAME", quoted(&self.name)),
            "model:".to_owned(),
            format!("  load: {}", quoted(&self.model)),
        ];
        let rank = if self.kind == Kind::Diffusion { 32 } else { 16 };
        let which = match self.kind {
            Kind::Diffusion => "",
            _ => "    # all linear layers; target_modules: [q_proj, v_proj] for some",
        };
        match self.method {
            Method::Lora => lines.push(format!("  foundation: {{ lora: {{ r: {rank}, alpha: 32 }} }}{which}")),
            Method::Qlora => lines.extend([
                "  foundation:".to_owned(),
                "    frozen_precision: nf4              # QLoRA; nf4_double takes less memory".to_owned(),
                format!("    lora: {{ r: {rank}, alpha: 32 }}{which}"),
            ]),
            Method::Full => {}
        }
        let lora = self.method != Method::Full;
        if self.kind == Kind::Multimodal {
            let why = match lora {
                true => "also image_projector; else they train whole",
                false => "train the projector and the language model only",
            };
            lines.push(format!("  # image_encoder: {{ freeze: true }}    # {why}; audio_encoder for sound"));
        }
        lines.push("data:".to_owned());
        lines.push(format!("  train: [{{ path: {} }}]", quoted(&self.data)));
        let set_aside = self.set_aside();
        lines.extend(set_aside.clone());
        lines.extend(self.data_lines().iter().map(|&line| line.to_owned()));
        lines.push("train:".to_owned());
        lines.extend(self.train_lines());
        let (every, what) = if self.kind == Kind::Policy { (1000, "episodes") } else { (100, "samples") };
        lines.push(format!("checkpoint: {{ every_steps: {every} }}"));
        if set_aside.is_some() {
            lines.push(format!("eval: {{ every_steps: {every} }}    # on the {what} that val_size holds out"));
        }
        if self.kind == Kind::Diffusion {
            lines.push("edges: { pixels: { credit: 1GiB } }    # frames of a micro-batch: 12 bytes per pixel, twice that for I2V models".to_owned());
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

    /// Writes the line that sets samples aside: a share, of few samples one, of a single one nothing.
    fn set_aside(&self) -> Option<String> {
        let what = if self.kind == Kind::Policy { "episodes" } else { "samples" };
        match self.num_samples {
            Some(0 | 1) => None,
            Some(few) if (SHARE * few as f64).round() < 1.0 => Some(format!(
                "  val_size: 1                          # one of {few} {what} is held out and evaluated; below 1: a fraction"
            )),
            _ => Some(format!(
                "  val_size: {SHARE}                       # this fraction is held out and evaluated; 1 or more: a number of {what}"
            )),
        }
    }

    fn data_lines(&self) -> &'static [&'static str] {
        match (self.kind, self.makes_clips) {
            (Kind::Text | Kind::Multimodal, _) => {
                &["  pack: { max_tokens: 4096 }           # longer samples are skipped; too_long: truncate cuts them"]
            }
            (Kind::Diffusion, true) => &[
                "  pack: { max_tokens: 32768 }          # tokens of a micro-batch; larger pictures and clips are skipped",
                "  image: { area: 1024x1024 }           # pictures with more pixels are reduced; smaller ones keep their size",
                "  video: { area: 480x832, frames: 49 }",
                "  caption_dropout: 0.1",
            ],
            (Kind::Diffusion, false) => &[
                "  pack: { max_tokens: 32768 }          # tokens of a micro-batch; larger pictures are skipped",
                "  image: { area: 1024x1024 }           # pictures with more pixels are reduced; smaller ones keep their size",
                "  caption_dropout: 0.1",
            ],
            (Kind::Policy, _) => &["  pack: { max_tokens: 8192 }           # tokens of a micro-batch"],
        }
    }

    fn train_lines(&self) -> Vec<String> {
        let is_preference = matches!(self.learns, Learns::Pairs | Learns::Labels);
        let rate = match (is_preference, self.method != Method::Full) {
            (false, true) => "1e-4",
            (false, false) if self.kind == Kind::Policy => "2.5e-5",
            (false, false) => "1e-5",
            (true, true) => "5e-6",
            (true, false) => "5e-7",
        };
        let batch = if self.kind == Kind::Diffusion { 8 } else { 32 };
        let length = match self.kind {
            Kind::Text | Kind::Multimodal => "epochs: 3",
            Kind::Diffusion => "epochs: 10",
            Kind::Policy => "steps: 20000",
        };
        let mut lines: Vec<String> = self.learns.line().map(str::to_owned).into_iter().collect();
        lines.extend([
            format!("  {length}"),
            format!("  global_batch_size: {batch}                 # samples per step, over all replicas"),
            format!("  lr: {rate}"),
            "  warmup_ratio: 0.03                   # fraction of steps over which the learning rate rises".to_owned(),
            "  precision: bf16                       # float32 on CPUs without bfloat16".to_owned(),
        ]);
        if self.kind == Kind::Diffusion {
            lines.push("  sigma: { density: logit_normal, shift: 3 }".to_owned());
        }
        lines
    }
}

/// Returns a text in YAML, in quotes where it could be something else.
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
    use loongforge_core::config::{Device, Phase, PreferenceLoss, load_text};

    #[test]
    fn every_choice_is_a_config() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("my samples.jsonl");
        std::fs::write(&data, "{}\n").unwrap();
        for kind in [Kind::Text, Kind::Multimodal, Kind::Diffusion, Kind::Policy] {
            for (method, gpus, num_samples, format) in [
                (Method::Full, None, Some(9), "pairs"),
                (Method::Qlora, Some(8), None, "messages"),
                (Method::Lora, None, Some(1), "labeled"),
                (Method::Full, None, Some(2), "plain"),
            ] {
                // A diffusion model's samples are pictures and clips, and a policy's are frames.
                let format = match kind {
                    Kind::Text | Kind::Multimodal => format,
                    Kind::Diffusion => "captioned",
                    Kind::Policy => "lerobot",
                };
                let (learns, makes_clips) = (Learns::of_format(format), gpus.is_some());
                assert_eq!(Kind::of_format(format) == kind, kind != Kind::Multimodal, "{format}");
                let (model, data) = ("org/model-1".to_owned(), data.display().to_string());
                let name = "12 runs".to_owned();
                let choices =
                    Choices { name, model, data: data.clone(), method, kind, makes_clips, gpus, num_samples, learns };
                let text = choices.text();
                let config = load_text(&text).unwrap_or_else(|report| panic!("{kind:?}\n{text}\n{report}")).config;
                assert_eq!(
                    (config.run.name.as_str(), config.data.train[0].path.0[0].as_str()),
                    ("12 runs", data.as_str())
                );
                let val_size = match num_samples {
                    Some(1) => 0.0,
                    Some(_) => 1.0,
                    None => 0.02,
                };
                assert_eq!((config.data.val_size, config.eval.is_some()), (val_size, num_samples != Some(1)), "{text}");
                assert_eq!(config.model.foundation.lora.is_some(), method != Method::Full);
                assert_eq!(text.contains("frozen_precision: nf4 "), method == Method::Qlora, "{text}");
                assert_eq!(text.contains("# image_encoder: { freeze: true }"), kind == Kind::Multimodal, "{text}");
                assert_eq!(text.contains("  video: {"), kind == Kind::Diffusion && makes_clips, "{text}");
                assert_eq!(text.contains("  steps: 20000"), kind == Kind::Policy, "{text}");
                assert_eq!(config.train.phase == Phase::Pretrain, learns == Learns::Texts, "{text}");
                let loss = config.train.preference.as_ref().map(|preference| preference.loss);
                let expected = match learns {
                    Learns::Pairs => Some(PreferenceLoss::Sigmoid),
                    Learns::Labels => Some(PreferenceLoss::Kto),
                    Learns::Answers | Learns::Texts => None,
                };
                assert_eq!(loss, expected, "{text}");
                assert_eq!(config.device == Device::Cuda(None), gpus.is_some(), "{text}");
                assert!(text.lines().all(|line| line.len() <= 130), "{text}");
            }
        }
    }
}
