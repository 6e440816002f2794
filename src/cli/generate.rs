//! `loongforge generate`: ask a trained model.

use crate::reader::Reader;
use clap::Args;
use loongforge_core::config::Device;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Example:
  loongforge generate runs/quickstart/checkpoints/step-00000750 --image 4071.png --prompt \"Read the number.\"")]
pub struct GenerateArgs {
    /// Checkpoint of a run, or any Hugging Face folder of a model that is built in
    checkpoint: PathBuf,
    /// A picture; may be repeated
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// The question
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Length of the answer at most
    #[arg(long, default_value_t = 128)]
    max_new_tokens: usize,
    /// Use the first CUDA device
    #[arg(long)]
    cuda: bool,
}

pub fn generate(args: GenerateArgs) -> anyhow::Result<ExitCode> {
    set_intra_op_threads(std::thread::available_parallelism().map_or(1, usize::from));
    let device = if args.cuda { Device::Cuda(None) } else { Device::Cpu };
    let device = open_device(&device).map_err(|error| anyhow::anyhow!("{error}"))?;
    let reader = Reader::open(&args.checkpoint, device)?;
    let question = reader.question(&args.prompt, &args.image)?;
    let answers = reader.answer(&[&question], args.max_new_tokens)?;
    println!("{}", answers[0]);
    Ok(ExitCode::SUCCESS)
}
