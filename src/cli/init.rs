//! `loongforge init`: writes a first config for the user's model and data.

mod text;

use super::UsageError;
use anyhow::Context;
use clap::{Args, ValueEnum};
use loongforge_core::config::{self, Format, MODEL_INDEX, TrainFile};
use loongforge_core::data::DataError;
use loongforge_core::data::tools::Inputs;
use loongforge_core::files;
use loongforge_core::text::shell_word;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::{Choices, Kind, Learns, Method};

const EXAMPLES: &str = "\
Examples:
  loongforge init my.yaml                                                       asks for what is missing
  loongforge init my.yaml --model Qwen/Qwen3-0.6B --data my.jsonl --method lora
  loongforge init style.yaml --model Wan-AI/Wan2.1-T2V-1.3B-Diffusers --data clips/ --method lora --gpus 8
  loongforge init arm.yaml --model lerobot/smolvla_base --data my_robot/ --method full
The file has comments; `loongforge check my.yaml` then checks it against model, data and machine.";

/// Keys of a `config.json` that describe the parts of a model that see or hear.
const TOWER_KEYS: [&str; 3] = ["vision_config", "audio_config", "thinker_config"];
/// The `model_type` of a language model that is put together with towers.
const COMPOSED: &str = "loongforge_vlm";
/// Parts of the names of models that see or hear.
const TOWER_NAMES: [&str; 12] = [
    "-vl",
    "llava",
    "internvl",
    "smolvlm",
    "paligemma",
    "florence",
    "idefics",
    "minicpm-v",
    "-audio",
    "-omni",
    "-asr",
    "voxtral",
];

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// Config to write
    #[arg(default_value = "my.yaml", value_name = "FILE")]
    file: PathBuf,
    /// Hub id or folder of the model
    #[arg(long)]
    model: Option<String>,
    /// File or folder of training samples
    #[arg(long)]
    data: Option<String>,
    /// Train adapters, adapters on 4-bit weights, or all weights
    #[arg(long)]
    method: Option<Method>,
    /// Kind of the model [default: by its folder or name and the samples, else text]
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Number of GPUs of the run [default: what this machine has, a GPU or the CPU]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    gpus: Option<u32>,
    /// Replace the file
    #[arg(long)]
    overwrite: bool,
}

/// Runs `loongforge init`: asks for what options do not say, and writes a config.
pub fn init(args: InitArgs) -> anyhow::Result<ExitCode> {
    if args.file.exists() && !args.overwrite {
        let message = format!("{} exists: name another file, or replace it with --overwrite", args.file.display());
        return Err(UsageError(message).into());
    }
    let asks = std::io::stdin().is_terminal();
    let asks_more = asks && (args.model.is_none() || args.data.is_none() || args.method.is_none());
    let model = answer(args.model, "--model", "Model (a hub id or a folder): ", asks)?;
    let data = answer(args.data, "--data", "Training samples (a file or a folder): ", asks)?;
    let method = match args.method {
        Some(method) => method,
        None => {
            let question = "Train adapters, adapters on 4-bit weights, or all weights (lora, qlora, full): ";
            let answer = answer(None, "--method (lora, qlora or full)", question, asks)?;
            let unknown = |_| UsageError(format!("--method must be lora, qlora or full, not `{answer}`"));
            Method::from_str(&answer, false).map_err(unknown)?
        }
    };
    let gpus = match args.gpus {
        None if asks_more => num_gpus(&line("GPUs of the run (empty: what this machine has): ")?)?,
        given => given,
    };
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let pipeline = pipeline_of(&model);
    let named = args.kind.or(pipeline.as_ref().map(|_| Kind::Diffusion));
    let counted = count(&data, named);
    let found = counted.as_ref().ok().copied().flatten();
    let num_samples = found.map(|(count, _)| count);
    let format = found.map_or("", |(_, format)| format);
    let kind = named.unwrap_or_else(|| match Kind::of_format(format) {
        Kind::Policy => Kind::Policy,
        _ if sees_or_hears(&model) => Kind::Multimodal,
        kind => kind,
    });
    let makes_clips = !makes_pictures(&model, pipeline.as_deref());
    let learns = Learns::of_format(format);
    let choices = Choices { name, model, data, method, kind, makes_clips, gpus, num_samples, learns };
    let text = choices.text();
    write(&args.file, &text)?;
    println!("{}: edit it, then", args.file.display());
    println!("  loongforge check {}", shell_word(&args.file));
    println!("  loongforge run {}", shell_word(&args.file));
    // Files that are not there yet are no mistake of the text, and are told all the same.
    match (config::load(&args.file, &[], super::environment()), counted) {
        (Err(report), _) => eprintln!("{report}"),
        (Ok(_), Err(error)) => eprintln!("warning: {error}"),
        (Ok(_), Ok(_)) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of samples in files of this machine, of a LeRobot set that of episodes, and their format; `None`: they are
/// elsewhere.
///
/// # Errors
/// The data are missing, or are no samples.
fn count(data: &str, kind: Option<Kind>) -> Result<Option<(u64, &'static str)>, DataError> {
    if data.contains("://") {
        return Ok(None);
    }
    let format = if kind == Some(Kind::Diffusion) { Format::Captioned } else { Format::Auto };
    let inputs = Inputs::open(vec![TrainFile { format, ..TrainFile::new(data) }])?;
    Ok(Some((inputs.num_splittable(), inputs.formats().next().unwrap_or_default())))
}

/// Returns the class of a folder's pipeline, as Diffusers lists it; `None`: the model is no such folder on this machine.
fn pipeline_of(model: &str) -> Option<String> {
    let text = files::read(&Path::new(model).join(MODEL_INDEX), files::MAX_TEXT_BYTES).ok()?;
    let index: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(index["_class_name"].as_str().unwrap_or_default().to_owned())
}

/// Returns whether a diffusion model makes pictures alone: by its pipeline, else by its name.
fn makes_pictures(model: &str, pipeline: Option<&str>) -> bool {
    let name = pipeline.unwrap_or(model).to_ascii_lowercase().replace(['-', '_'], "");
    name.contains("qwenimage")
}

/// Returns whether a model sees pictures or hears sound: by the config in its folder, else by its name.
fn sees_or_hears(model: &str) -> bool {
    let config = files::read(&Path::new(model).join("config.json"), files::MAX_TEXT_BYTES).ok();
    match config.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok()) {
        Some(config) => config["model_type"] == COMPOSED || TOWER_KEYS.iter().any(|key| config[*key].is_object()),
        None => {
            let name = model.to_ascii_lowercase().replace('_', "-");
            TOWER_NAMES.iter().any(|part| name.contains(*part))
        }
    }
}

/// Replaces the file: an old one is there until the new one is whole.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    files::replace_shared(file, text.as_bytes(), 0o644).with_context(|| file.display().to_string())
}

/// Returns the value of an option, or what the user answers.
fn answer(given: Option<String>, option: &str, question: &str, asks: bool) -> anyhow::Result<String> {
    if let Some(given) = given {
        return Ok(given);
    }
    if !asks {
        return Err(UsageError(format!("{option} is missing")).into());
    }
    match line(question)? {
        none if none.is_empty() => Err(UsageError(format!("no answer was given, and {option} is missing")).into()),
        answer => Ok(answer),
    }
}

/// Asks the user; returns the line without the blanks around it.
fn line(question: &str) -> std::io::Result<String> {
    print!("{question}");
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Returns the number of GPUs that the user answers, if any.
fn num_gpus(answer: &str) -> Result<Option<u32>, UsageError> {
    match answer.parse::<u32>() {
        _ if answer.is_empty() => Ok(None),
        Ok(count @ 1..=1024) => Ok(Some(count)),
        _ => Err(UsageError(format!("--gpus must be a number from 1 to 1024, not `{answer}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn models_of_pictures_are_known_by_their_pipeline_or_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        assert_eq!(pipeline_of(folder), None);
        std::fs::write(dir.path().join(MODEL_INDEX), r#"{"_class_name": "QwenImageEditPipeline"}"#).unwrap();
        let pipeline = pipeline_of(folder);
        assert!(makes_pictures(folder, pipeline.as_deref()), "{pipeline:?}");
        assert!(makes_pictures("Qwen/Qwen-Image-2512", None) && !makes_pictures("qwen-image", Some("WanPipeline")));
        assert!(!makes_pictures("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", None));
    }

    #[test]
    fn models_that_see_or_hear_are_known_by_their_config_or_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        for (config, sees) in [
            (r#"{"model_type": "qwen3", "vision_config": null}"#, false),
            (r#"{"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}"#, true),
            (r#"{"model_type": "qwen2_audio", "audio_config": {}}"#, true),
            (r#"{"model_type": "loongforge_vlm", "image_encoder": {}}"#, true),
            ("[]", false),
        ] {
            std::fs::write(dir.path().join("config.json"), config).unwrap();
            assert_eq!(sees_or_hears(folder), sees, "{config}");
        }
        assert!(sees_or_hears("Qwen/Qwen2.5-VL-3B-Instruct") && sees_or_hears("llava-hf/llava-1.5-7b-hf"));
        assert!(sees_or_hears("Qwen/Qwen2-Audio-7B") && !sees_or_hears("Qwen/Qwen3-0.6B"));
    }

    #[test]
    fn gpus_may_be_left_to_the_machine() {
        assert_eq!((num_gpus("").ok(), num_gpus("8").ok()), (Some(None), Some(Some(8))));
        for wrong in ["0", "1025", "-1", "two"] {
            assert!(num_gpus(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn others_can_read_a_config_as_any_file() {
        let dir = tempfile::tempdir().unwrap();
        let (usual, config) = (dir.path().join("usual.yaml"), dir.path().join("my.yaml"));
        std::fs::write(&usual, "a: 1\n").unwrap();
        write(&config, "a: 1\n").unwrap();
        let [usual, config] = [usual, config].map(|path| path.metadata().unwrap().permissions().mode());
        assert_eq!(config & 0o777, usual & 0o644);
    }
}
