//! `loongforge checkpoint`: commands for checkpoints and model folders, without a run.

use super::asking::not_negative;
use super::forecast::count;
use super::outputs::local_path;
use super::{UsageError, exit};
use crate::checkpoint::{self, Difference, Export, Exported, Format, GgufType, TensorDiff};
use crate::model::hub::Hub;
use crate::model::locate::{find_model, find_weights};
use crate::model::push::push;
use clap::{Args, Subcommand, ValueEnum};
use loongforge_core::config::Size;
use loongforge_core::observe;
use loongforge_torch::train::hf::{Checkpoint, Dtype, collapse};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge checkpoint inspect Qwen/Qwen3-0.6B                          tensors of a model; downloaded once
  loongforge checkpoint verify runs/my/checkpoints/step-00000500         hashes, headers, index, config; exit code 2 if damaged
  loongforge checkpoint diff before after                                which weights changed, and how much
  loongforge checkpoint export-hf runs/my/checkpoints/step-00000500 out  the model alone, for transformers; LoRA merged
  loongforge checkpoint export-gguf runs/my out.gguf --dtype q8_0        one file for llama.cpp; LoRA merged
  loongforge checkpoint push out me/my-model                             to the hub; HF_TOKEN needs write access
  loongforge checkpoint convert deepseek-fp8 plain --dtype bf16 --dequantize

A folder is a checkpoint, a run (its newest checkpoint), any Hugging Face folder, or a hub id org/name[@revision].";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List tensors, types and sizes
    #[command(after_help = "Example:\n  loongforge checkpoint inspect runs/my/checkpoints/step-00000500 --all")]
    Inspect {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "FOLDER")]
        folder: String,
        /// List every tensor on its own line
        #[arg(long)]
        all: bool,
    },
    /// Check that a folder is complete; exit code 2 if it is not
    #[command(after_help = "Example:\n  loongforge checkpoint verify runs/my/checkpoints/step-00000500")]
    Verify {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "FOLDER")]
        folder: String,
    },
    /// Compare the weights of two folders; exit code 1 if they differ
    #[command(after_help = "Example:\n  loongforge checkpoint diff before after --json")]
    Diff {
        /// Checkpoint, run, Hugging Face folder or hub id
        #[arg(value_name = "LEFT")]
        left: String,
        /// Folder to compare it with
        #[arg(value_name = "RIGHT")]
        right: String,
        /// Largest difference that counts as close, relative to a tensor's largest value
        #[arg(long, default_value_t = 1e-5, value_parser = not_negative)]
        tolerance: f64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write the model of a checkpoint as a Hugging Face folder; adapters (LoRA) are merged into their base
    #[command(
        visible_alias = "merge",
        after_help = "\
Examples:
  loongforge checkpoint export-hf runs/my/checkpoints/step-00000500 my-model --dtype bf16
  loongforge checkpoint export-hf runs/my-lora/checkpoints/step-00000500 merged
  loongforge checkpoint export-hf some-peft-adapter merged --base Qwen/Qwen3-0.6B"
    )]
    ExportHf {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "CHECKPOINT")]
        folder: String,
        /// Folder to write
        #[arg(value_name = "OUT", value_parser = local_path())]
        out: PathBuf,
        /// Type of the weights [default: the checkpoint's; for adapters, the base's]
        #[arg(long)]
        dtype: Option<Type>,
        /// Base model, a folder or a hub id [default: `base_model_name_or_path` of the adapter]
        #[arg(long, value_name = "FOLDER")]
        base: Option<String>,
        /// Unpack FP8, INT4 or MXFP4 weights
        #[arg(long)]
        dequantize: bool,
        /// Maximum size of a file; a robot policy is always one file, as lerobot requires
        #[arg(long, value_name = "SIZE", default_value = "5GB")]
        max_shard_size: Size,
    },
    /// Write a language model as one GGUF file, for llama.cpp; adapters (LoRA) are merged into their base
    #[command(after_help = "\
Examples:
  loongforge checkpoint export-gguf runs/my/checkpoints/step-00000500 my-model.gguf
  loongforge checkpoint export-gguf runs/my-lora my-model-q8_0.gguf --dtype q8_0
  loongforge checkpoint export-gguf Qwen/Qwen3-0.6B qwen3.gguf --dtype f16")]
    ExportGguf {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "CHECKPOINT")]
        folder: String,
        /// File to write
        #[arg(value_name = "OUT", value_parser = local_path())]
        out: PathBuf,
        /// Type of the matrices; vectors are float32 [default: the checkpoint's; for adapters, the base's]
        #[arg(long)]
        dtype: Option<GgufDtype>,
        /// Base model, a folder or a hub id [default: `base_model_name_or_path` of the adapter]
        #[arg(long, value_name = "FOLDER")]
        base: Option<String>,
        /// Unpack FP8, INT4 or MXFP4 weights
        #[arg(long)]
        dequantize: bool,
    },
    /// Export a diffusion model or its adapters in another program's format
    #[command(after_help = "\
Examples:
  loongforge checkpoint export runs/digits/checkpoints/step-00000500 digits --format diffusers --ema
  loongforge checkpoint export Wan-AI/Wan2.1-T2V-1.3B-Diffusers comfy --format comfyui
  loongforge checkpoint export runs/my-lora/checkpoints/step-00000500 lora --format comfyui")]
    Export {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "CHECKPOINT")]
        folder: String,
        /// Folder or file to write, depending on the format
        #[arg(value_name = "OUT", value_parser = local_path())]
        out: PathBuf,
        /// Diffusers folders, files for ComfyUI, tensor names of Wan's own releases, or adapters for kohya's scripts
        #[arg(long)]
        format: Form,
        /// Type of the weights [default: the checkpoint's]
        #[arg(long)]
        dtype: Option<Type>,
        /// Write the averaged weights (`train.ema`)
        #[arg(long)]
        ema: bool,
    },
    /// Upload a model to the Hugging Face hub, or to HF_ENDPOINT; HF_TOKEN needs write access
    #[command(after_help = "\
Examples:
  loongforge checkpoint push out me/my-model --private
  loongforge checkpoint push runs/my/checkpoints/step-00000500 me/my-model --revision step-500

Files that only a run needs (optimizer state, manifest) are not uploaded. If a push is interrupted, repeat it: files already on the
hub are not sent again.")]
    Push {
        /// Checkpoint, run (its newest checkpoint) or Hugging Face folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Repository on the hub; created if it does not exist
        #[arg(value_name = "ORG/NAME")]
        id: String,
        /// Create the repository as private, if it does not exist
        #[arg(long)]
        private: bool,
        /// Branch; created if it does not exist
        #[arg(long, value_name = "BRANCH", default_value = "main")]
        revision: String,
    },
    /// Write a folder's weights in another type
    #[command(after_help = "Example:\n  loongforge checkpoint convert org/name-FP8 plain --dtype bf16 --dequantize")]
    Convert {
        /// Checkpoint, run (its newest checkpoint), Hugging Face folder, or hub id org/name[@revision]
        #[arg(value_name = "IN")]
        folder: String,
        /// Folder to write
        #[arg(value_name = "OUT", value_parser = local_path())]
        out: PathBuf,
        /// Type of the weights
        #[arg(long)]
        dtype: Type,
        /// Unpack FP8, INT4 or MXFP4 weights
        #[arg(long)]
        dequantize: bool,
        /// Maximum size of a file
        #[arg(long, value_name = "SIZE", default_value = "5GB")]
        max_shard_size: Size,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Diffusers,
    Comfyui,
    Original,
    Kohya,
}

impl Form {
    fn format(self) -> Format {
        match self {
            Self::Diffusers => Format::Diffusers,
            Self::Comfyui => Format::ComfyUi,
            Self::Original => Format::Original,
            Self::Kohya => Format::Kohya,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Type {
    Bf16,
    F16,
    F32,
}

impl Type {
    fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum GgufDtype {
    F32,
    F16,
    Bf16,
    /// 8 bits per value, and one scale per 32 values
    #[value(name = "q8_0")]
    Q8,
}

impl GgufDtype {
    fn kind(self) -> GgufType {
        match self {
            Self::F32 => GgufType::F32,
            Self::F16 => GgufType::F16,
            Self::Bf16 => GgufType::Bf16,
            Self::Q8 => GgufType::Q8_0,
        }
    }
}

/// Runs the commands of `loongforge checkpoint`; all of their errors are usage errors.
pub fn checkpoint(args: CheckpointArgs) -> anyhow::Result<ExitCode> {
    // A folder that is not what it should be is for the user to change.
    act(args.action).map_err(|error| UsageError::of_any(error).into())
}

fn act(action: Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Inspect { folder, all } => {
            print!("{}", checkpoint::inspect(&find_weights(&folder)?, all)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Verify { folder } => verify(&find_weights(&folder)?),
        Action::Diff { left, right, tolerance, json } => {
            let open = |named: &str| anyhow::Ok(Checkpoint::open_any(&find_weights(named)?)?);
            let (a, b) = (open(&left)?, open(&right)?);
            let found = checkpoint::diff(&a, &b)?;
            if json {
                show_json(&found, tolerance);
            } else {
                show(&found, tolerance);
            }
            let equal = found.iter().all(|difference| difference.is_close(tolerance));
            Ok(if equal { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
        }
        Action::ExportHf { folder, out, dtype, base, dequantize, max_shard_size } => {
            let (dtype, max_shard_size) = (dtype.map(Type::dtype), max_shard_size.bytes());
            export(&folder, &out, &Export { base, dtype, max_shard_size, dequantize, for_transformers: true })
        }
        Action::ExportGguf { folder, out, dtype, base, dequantize } => {
            let (folder, kind) = (find_model(&folder)?, dtype.map(GgufDtype::kind));
            show_exported(&out, checkpoint::export_gguf(&folder, &out, base.as_deref(), kind, dequantize)?)
        }
        Action::Export { folder, out, format, dtype, ema } => {
            let (folder, dtype) = (find_model(&folder)?, dtype.map(Type::dtype));
            show_exported(&out, checkpoint::export_diffusion(&folder, &out, format.format(), dtype, ema)?)
        }
        Action::Push { folder, id, private, revision } => {
            let folder = find_model(&folder.to_string_lossy())?;
            let pushed = push(Hub::of_models(), &folder, &id, private, &revision, &mut |line| {
                eprintln!("{}", observe::safe(&line))
            })?;
            let ([bytes, sent], files) = (pushed.bytes.map(observe::bytes), count(pushed.num_files, "file"));
            println!("{}: {files}, {bytes}, of which {sent} were sent", observe::safe(&pushed.url));
            if let Some(first) = pushed.left_out.first() {
                let more = pushed.left_out.len() - 1;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                println!("left out, not part of the model: {first}{more}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::Convert { folder, out, dtype, dequantize, max_shard_size } => {
            let (dtype, max_shard_size) = (Some(dtype.dtype()), max_shard_size.bytes());
            export(&folder, &out, &Export { base: None, dtype, max_shard_size, dequantize, for_transformers: false })
        }
    }
}

fn export(folder: &str, out: &std::path::Path, how: &Export) -> anyhow::Result<ExitCode> {
    let ends_with = |extension: &str| out.extension().is_some_and(|it| it.eq_ignore_ascii_case(extension));
    let of_files =
        [("gguf", "`loongforge checkpoint export-gguf` writes a file for llama.cpp"), ("safetensors", "name a folder")];
    if let Some((extension, other)) = of_files.into_iter().find(|(extension, _)| ends_with(extension)) {
        let out = out.display();
        return Err(UsageError::new(format!("{out}: a folder is written, and no .{extension} file: {other}")).into());
    }
    show_exported(out, checkpoint::export(&find_model(folder)?, out, how)?)
}

fn show_exported(out: &std::path::Path, written: Exported) -> anyhow::Result<ExitCode> {
    let (bytes, files) = (observe::bytes(written.bytes), count(written.num_files, "file"));
    println!("{}: {bytes} of weights in {files}", out.display());
    written.said.iter().for_each(|said| println!("{said}"));
    Ok(ExitCode::SUCCESS)
}

fn verify(folder: &std::path::Path) -> anyhow::Result<ExitCode> {
    let checks = checkpoint::verify(folder);
    for (name, result) in &checks {
        match result {
            Ok(what) => println!("ok     {name}: {what}"),
            Err(what) => eprintln!("error: {name}: {}", what.trim_end()),
        }
    }
    let whole = checks.iter().all(|(_, result)| result.is_ok());
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(exit::USAGE) })
}

fn show(found: &[Difference], tolerance: f64) {
    let rows = found.iter().filter(|difference| difference.diff != TensorDiff::Exact).map(|difference| {
        let what = match &difference.diff {
            TensorDiff::Values { max_abs, max_left } => format!("max abs difference {max_abs:.3e} of {max_left:.3e}"),
            TensorDiff::Shapes(left, right) => format!("{left:?} and {right:?}"),
            _ => String::new(),
        };
        (difference.name.as_str(), (difference.verdict(tolerance), what))
    });
    for (name, (verdict, what), count) in collapse(rows) {
        let count = if count > 1 { format!("  ({count} tensors)") } else { String::new() };
        println!("{verdict:<11}  {name}  {what}{count}");
    }
    let count = |verdict: &str| found.iter().filter(|difference| difference.verdict(tolerance) == verdict).count();
    let other = found.len() - count("exact") - count("close") - count("different");
    println!(
        "{} tensors: {} exact, {} close, {} different, {other} missing or with another shape",
        found.len(),
        count("exact"),
        count("close"),
        count("different")
    );
}

fn show_json(found: &[Difference], tolerance: f64) {
    let tensors: Vec<_> = found.iter().map(|difference| difference.to_json(tolerance)).collect();
    let equal = found.iter().all(|difference| difference.is_close(tolerance));
    println!("{}", json!({ "equal": equal, "tolerance": tolerance, "tensors": tensors }));
}
