//! `loongforge parity`: compares our numbers with reference numbers of fixtures, and what we write of a fixture's model with what
//! the reference reads.

use super::outputs::local_path;
use super::parity_layout::{self as layouts, Layouts};
use crate::checkpoint::saved_config;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use loongforge_core::files;
use loongforge_torch::device::load_cuda;
use loongforge_torch::train::parity::{drift, export, parity as compare};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tch::{Device, Kind};

#[derive(Args)]
pub struct ParityArgs {
    /// Fixture folders written by tests/oracle, of language and vision-language models, robot policies and Florence-2:
    /// config.json, model.safetensors, inputs.safetensors, expected.safetensors
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Instead of comparing, train each fixture's model and write it to OUT/NAME in Hugging Face format, with the computed
    /// logits, for tests/oracle/roundtrip.py
    #[arg(long, value_name = "OUT", value_parser = local_path())]
    export: Option<PathBuf>,
    /// Number of AdamW steps on the fixture's batch before the export
    #[arg(long, value_name = "N", default_value_t = 3, requires = "export")]
    steps: usize,
    /// Instead of comparing with the reference, run each fixture's steps on several processes and compare with one:
    /// foundation.dp, .tp, .sp (sequence parallel, 0 or 1), .ep, .pp, .vp (virtual stages), .cp, .context (ring or
    /// ulysses), .chunk (tokens), .zero, and .dp, .tp, .zero of `encoder` or of a tower's own pool, as in
    /// `vision.tp=2,audio.dp=2,foundation.tp=2`
    #[arg(long, value_name = "AXES", conflicts_with = "export")]
    layout: Option<Layouts>,
    /// Device of the models
    #[arg(long, value_enum, default_value_t = On::Cpu, conflicts_with_all = ["export", "layout"])]
    device: On,
    /// Instead of comparing in float32, measure the error of bfloat16 against the reference's float32
    #[arg(long, conflicts_with_all = ["export", "layout"])]
    bf16: bool,
    /// Rank of this process in a layout; the command starts the processes itself
    #[arg(long, hide = true, requires = "meeting")]
    rank: Option<usize>,
    /// Rendezvous of a layout's processes
    #[arg(long, hide = true)]
    meeting: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum On {
    Cpu,
    Cuda,
}

/// Runs `loongforge parity`: compares fixtures with this program's numbers; the exit code is 1 if one differs too much.
pub fn parity(args: ParityArgs) -> anyhow::Result<ExitCode> {
    let device = match args.device {
        On::Cpu => Device::Cpu,
        On::Cuda => {
            load_cuda()?;
            Device::Cuda(0)
        }
    };
    let mut ok = true;
    if let (Some(layout), Some(rank), Some(meeting)) = (args.layout, args.rank, &args.meeting) {
        for folder in &args.folders {
            ok &= layouts::run_rank(folder, layout, rank, meeting)?;
        }
        return Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(super::exit::FAILED) });
    }
    for folder in &args.folders {
        let result = match (&args.export, args.layout) {
            (Some(out), _) => write(folder, out, args.steps).map(|()| true),
            (None, Some(layout)) => layouts::run(folder, layout),
            (None, None) if args.bf16 => {
                drift(folder, Kind::BFloat16, device).map_err(anyhow::Error::from).map(|drift| {
                    println!("{}\n{drift}\n", folder.display());
                    drift.is_ok()
                })
            }
            (None, None) => compare(folder, device).map_err(anyhow::Error::from).map(|report| {
                println!("{}\n{report}", folder.display());
                report.is_ok()
            }),
        };
        match result {
            Ok(fine) => ok &= fine,
            Err(error) => {
                eprintln!("error: {}: {error:#}", folder.display());
                ok = false;
            }
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(super::exit::FAILED) })
}

/// Exports one fixture to a new folder of its name in `out`.
fn write(folder: &Path, out: &Path, num_steps: usize) -> anyhow::Result<()> {
    let Some(name) = folder.file_name() else { bail!("the folder of a fixture must have a name") };
    let out = out.join(name);
    if out.exists() {
        bail!("{} already exists: choose another --export", out.display());
    }
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    export(folder, &out, num_steps)?;
    let path = folder.join("config.json");
    let text = files::read(&path, files::MAX_TEXT_BYTES).with_context(|| path.display().to_string())?;
    let config = saved_config(&serde_json::from_slice(&text)?, Some("float32"), &[]);
    let path = out.join("config.json");
    fs::write(&path, serde_json::to_vec_pretty(&config)?).with_context(|| path.display().to_string())?;
    println!("{}", out.display());
    Ok(())
}
