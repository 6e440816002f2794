//! `loongforge models`: lists the built-in model configs, and what each costs.

use crate::model::size::{ModelSize, Training};
use clap::Args;
use loongforge_core::config::{ModelFile, model_files};
use loongforge_core::observe::{bytes, short};
use loongforge_torch::model::ModelConfig;
use serde_json::{Value, json};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge models                    all built-in model configs
  loongforge models qwen3_vl           those with `qwen3_vl` in group, name or hub id
  loongforge models --json 72b         the same as JSON, with how the values were checked

A config uses one through its `defaults` list, as the whole model or as a part:
  defaults: [models/qwen3: qwen3_0_6b, _self_]
  defaults: [models/image_encoder: qwen3_vit, models/llama3@model.foundation: llama3_8b, _self_]";

const FOOTER: &str = "\
params: total, and active per token. FLOPs: per token of the language model, forward and backward: 6 x the parameters it is
multiplied with, plus causal attention at the given sequence length. Memory: weights, gradients and optimizer state without
activations; adamw: all float32 (16 B per parameter); bf16: bf16 weights, float32 masters, gradients and moments (18 B);
lora: bf16 weights and rank-16 adapters on the language model's linear layers. A dash: not counted by this program.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelsArgs {
    /// List only configs with this text in group, name or hub id
    filter: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Sequence length for attention FLOPs
    #[arg(long, default_value_t = 4096, value_name = "TOKENS")]
    seq_len: usize,
}

/// Runs `loongforge models`: prints built-in model configs with parameters, FLOPs and memory.
pub fn models(args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let filter = args.filter.as_deref().unwrap_or_default().to_lowercase();
    let matches = |file: &ModelFile| {
        let hub_id = file.hub_id.as_deref().unwrap_or_default();
        [file.group, file.name, hub_id].iter().any(|text| text.to_lowercase().contains(&filter))
    };
    let found: Vec<(ModelFile, Result<ModelSize, String>)> =
        model_files().filter(matches).map(|file| (size(&file), file)).map(|(size, file)| (file, size)).collect();
    if args.json {
        let rows: Vec<Value> = found.iter().map(|(file, size)| as_json(file, size, args.seq_len)).collect();
        println!("{:#}", Value::Array(rows));
    } else if found.is_empty() {
        println!("no built-in model config has `{filter}` in its name; `loongforge models` lists all");
    } else {
        print!("{}", table(&found, args.seq_len));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the sizes of a whole model, or of a vision tower alone. The error says why they are not known.
fn size(file: &ModelFile) -> Result<ModelSize, String> {
    let config = Value::Object(file.config.clone());
    match file.group {
        "models/image_projector" => Err("its sizes follow from the other parts".to_owned()),
        "models/image_encoder" => tower(&config),
        _ => Ok(ModelSize::of(&ModelConfig::from_hf(&config).map_err(|error| error.to_string())?)),
    }
}

/// Returns a tower's size: that of a model put together from it, without the rest.
fn tower(config: &Value) -> Result<ModelSize, String> {
    let json = json!({
        "model_type": "loongforge_vlm", "image_token_id": 1, "image_encoder": config, "image_projector": {},
        "foundation": {"model_type": "llama", "vocab_size": 2, "hidden_size": 4096, "intermediate_size": 1,
            "num_hidden_layers": 8, "num_attention_heads": 1, "num_key_value_heads": 1},
    });
    let model = ModelConfig::from_hf(&json).map_err(|error| error.to_string())?;
    let specs = model.towers.specs().into_iter();
    let tower = specs.filter(|spec| spec.name.starts_with("image_encoder."));
    let parameters = tower.map(|spec| spec.shape.iter().product::<i64>() as u64).sum();
    Ok(ModelSize::tower(parameters))
}

fn as_json(file: &ModelFile, size: &Result<ModelSize, String>, seq_len: usize) -> Value {
    let mut row = json!({"group": file.group, "name": file.name, "hub_id": file.hub_id, "checked": file.checked,
        "model_type": file.config.get("model_type").or(file.config.get("type"))});
    match size {
        Ok(size) => {
            row["parameters"] = json!(size.parameters);
            row["active_parameters"] = json!(size.active);
            row["encoder_parameters"] = json!(size.encoder);
            row["seq_len"] = json!(seq_len);
            row["flops_per_token"] = json!(size.flops_per_token(seq_len));
            row["memory_bytes"] = json!({"adamw_float32": size.memory(Training::Float32),
                "adamw_bf16": size.memory(Training::Bf16), "lora_r16_bf16": size.memory(Training::Lora)});
        }
        Err(why) => row["not_counted"] = json!(why),
    }
    row
}

fn table(found: &[(ModelFile, Result<ModelSize, String>)], seq_len: usize) -> String {
    let flops = format!("FLOPs/token@{seq_len}");
    let head = ["group", "config", "params", "active", &flops, "adamw", "bf16", "lora r16", "published as"];
    let mut rows = vec![head.map(str::to_owned)];
    for (file, size) in found {
        let whole = |size: &ModelSize| size.encoder < size.parameters;
        let cell = |show: &dyn Fn(&ModelSize) -> String, needs_whole: bool| match size {
            Ok(size) if !needs_whole || whole(size) => show(size),
            _ => "-".to_owned(),
        };
        let memory = |training: Training| cell(&|size| bytes(size.memory(training)), true);
        rows.push([
            file.group.to_owned(),
            file.name.to_owned(),
            cell(&|size| short(size.parameters as f64), false),
            cell(&|size| short(size.active as f64), true),
            cell(&|size| short(size.flops_per_token(seq_len)).replace('B', "G"), true),
            memory(Training::Float32),
            memory(Training::Bf16),
            memory(Training::Lora),
            file.hub_id.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut text = String::new();
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        // Names to the left, figures to the right.
        let padded = cells.map(|(i, (cell, width))| match i {
            2..=7 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        text += padded.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    format!("{text}\n{FOOTER}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_config_is_listed_and_some_are_counted() {
        let found: Vec<_> = model_files().map(|file| (size(&file), file)).map(|(size, file)| (file, size)).collect();
        let text = table(&found, 4096);
        assert_eq!(text.lines().take_while(|line| !line.is_empty()).count(), found.len() + 1);
        let line = text.lines().find(|line| line.contains(" llama3_8b ")).unwrap();
        assert!(["8.03B", "48.2G", "128 GB", "145 GB"].iter().all(|cell| line.contains(cell)), "{line}");
    }

    /// Returns the number of parameters that the comment at a file's head claims.
    fn claimed(file: &ModelFile) -> Option<u64> {
        let (_, rest) = file.checked.split_once("parameter count is the published ")?;
        let digits = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(char::is_ascii_digit);
        Some(digits.collect::<String>().parse().unwrap())
    }

    #[test]
    fn every_config_is_read_and_has_the_parameters_it_claims() {
        let mut num_claims = 0;
        for file in model_files().filter(|file| file.group != "models/image_projector") {
            let size = size(&file).unwrap_or_else(|error| panic!("{}: {error}", file.name));
            println!("{:24} {:>17}", file.name, size.parameters);
            assert!(size.parameters > 100_000_000 || file.config.contains_key("sizes"), "{}", file.name);
            assert!(size.active <= size.parameters && size.encoder <= size.parameters, "{}", file.name);
            if let Some(parameters) = claimed(&file) {
                assert_eq!(size.parameters, parameters, "{}", file.name);
                num_claims += 1;
            }
        }
        assert!(num_claims > 40, "{num_claims}");
    }

    #[test]
    fn every_tower_and_projector_goes_with_a_language_model() {
        let of = |group: &'static str| model_files().filter(move |file| file.group == group);
        let foundation = of("models/llama3").find(|file| file.name == "llama3_8b").unwrap().config;
        for tower in of("models/image_encoder") {
            let deepstack = tower.config.get("deepstack_visual_indexes").and_then(Value::as_array);
            let has_deepstack = deepstack.is_some_and(|levels| !levels.is_empty());
            for projector in of("models/image_projector") {
                let json = json!({"model_type": "loongforge_vlm", "image_token_id": 1, "image_encoder": tower.config,
                    "image_projector": projector.config, "foundation": foundation});
                let read = ModelConfig::from_hf(&json);
                // DeepStack has features of every frame, a resampler of pairs.
                let fits = projector.name != "resampler" || !has_deepstack;
                assert_eq!(read.is_ok(), fits, "{} with {}: {:?}", tower.name, projector.name, read.err());
            }
        }
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 999.0, 1234.0, 8.03e9, 999.6e6, 4.8e10, 4.06e11].map(short);
        assert_eq!(shown, ["0", "999", "1.23K", "8.03B", "1.00B", "48.0B", "406B"]);
    }
}
