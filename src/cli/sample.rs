//! `loongforge sample`: generates pictures and clips with a diffusion model.

use super::UsageError;
use super::asking::{not_negative, positive};
use super::outputs::local_path;
use crate::eval::painter::Painter;
use crate::eval::samples;
use crate::model::locate::{ModelFolders, find_model};
use crate::preflight::machine;
use anyhow::anyhow;
use clap::Args;
use loongforge_core::checkpoint::Manifest;
use loongforge_core::config::{Area, Device, FrameSize, ImageLimits, Sampler, Sampling, VideoLimits};
use loongforge_core::data::{
    AskedBy, Captioned, Content, FlowOptions, InProcess, Locator, MediaSource, ProcessorOptions, Sample, Sampled,
    VideoSource,
};
use loongforge_core::message::SampleId;
use loongforge_core::observe::bytes;
use loongforge_core::text::grouped;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge sample runs/diffusion_digits --prompt \"three hundred and seven\" --size 8x24 --guidance 2 --out 307
  loongforge sample Qwen/Qwen-Image --prompt \"a red house\" --size 1024x1024 --steps 50 --guidance 4
  loongforge sample lora.safetensors --base Wan-AI/Wan2.1-T2V-1.3B-Diffusers --prompt \"a cat\" --size 480x832 --frames 49
  loongforge sample Wan-AI/Wan2.1-I2V-14B-480P-Diffusers --image first.png --prompt \"it turns\" --size 480x832 --frames 49")]
pub struct SampleArgs {
    /// Checkpoint, run folder (its newest checkpoint), folder or hub id of a diffusion model, or a LoRA file
    checkpoint: String,
    /// Base model, a folder or a hub id; required for a LoRA file [default: `base_model_name_or_path` of the adapter]
    #[arg(long, value_name = "FOLDER")]
    base: Option<String>,
    /// Prompt; may be repeated
    #[arg(long, value_name = "TEXT", required = true)]
    prompt: Vec<String>,
    /// First frame of a clip, or picture to edit; may be repeated if the model takes several
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Size at which the autoencoder reads a picture to edit, in pixels [default: 1024x1024; other models keep its size]
    #[arg(long, value_name = "ROWSxCOLUMNS", requires = "image")]
    area: Option<Area>,
    /// Rows and columns of the result, such as 480x832 [default: those of the first frame; required for editing]
    #[arg(long, value_name = "ROWSxCOLUMNS")]
    size: Option<FrameSize>,
    /// Number of frames of the result
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Seed of the noise
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of results per prompt, each from different noise
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Number of sampler steps
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Guidance scale, as `sample.guidance`: 1 is the prompt alone; two numbers for two transformers
    #[arg(
        long, value_name = "SCALE", value_delimiter = ',', default_value = "1", num_args = 1..=2,
        value_parser = not_negative
    )]
    guidance: Vec<f64>,
    /// The prompt that guidance leads away from [default: empty for Wan, a space for Qwen-Image]
    #[arg(long, value_name = "TEXT")]
    negative: Option<String>,
    /// Sampler, euler or unipc [default: from the model's scheduler config, else euler]
    #[arg(long, value_parser = sampler)]
    sampler: Option<Sampler>,
    /// Shift of the noise levels [default: from the model's scheduler config, else 1]
    #[arg(long, value_name = "S", value_parser = positive)]
    shift: Option<f64>,
    /// Use the averaged weights (`train.ema`) of a run's checkpoint
    #[arg(long)]
    ema: bool,
    /// File to write, without extension: a PNG for a picture; a GIF, and its frames as PNG, for a clip
    #[arg(long, value_name = "NAME", default_value = "sample", value_parser = local_path())]
    out: PathBuf,
    /// Frames per second of a clip [default: 16; 24 for TI2V-5B]
    #[arg(long, value_parser = positive, requires = "frames")]
    fps: Option<f64>,
    /// Device, as in a config: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

/// Runs `loongforge sample`: makes pictures or clips of prompts with a diffusion model, and prints the paths of the files.
pub fn sample(args: SampleArgs) -> anyhow::Result<ExitCode> {
    set_intra_op_threads(std::thread::available_parallelism().map_or(1, usize::from));
    let (out_folder, stem) = place(&args.out).map_err(UsageError::of_any)?;
    let device = open_device(&args.device).map_err(|error| anyhow!("{error}"))?;
    let folder = find_model(&args.checkpoint).map_err(UsageError::of)?;
    // Files that are not what they should be are for the user to change.
    let folders = ModelFolders::find_any(&folder, args.base.as_deref()).map_err(UsageError::of)?;
    let painter = Painter::load(&folders, args.ema, device).map_err(UsageError::of_any)?;
    let json = &painter.folder().json;
    let sampling = sampling(&args);
    let settings = samples::settings(json, &sampling, "--guidance", args.seed).map_err(UsageError::of)?;
    let prompts = prompts(&args, &painter, goes_without(&folder)).map_err(UsageError::of_any)?;
    expect_memory(&prompts, &painter, device)?;
    let fps = args.fps.unwrap_or_else(|| samples::fps_of(json));
    for draw in 0..args.count {
        for (number, prompt) in prompts.iter().enumerate() {
            // One by one: a result does not depend on what else is asked for.
            let clip = painter.make(prompt, &settings, draw, fps)?;
            let several = [(prompts.len() > 1, number as u32), (args.count > 1, draw)];
            let numbers = several.iter().filter(|(has, _)| *has).map(|(_, number)| format!("-{number}"));
            let stem = stem.clone() + &numbers.collect::<String>();
            // A clip has one, too: its frames.
            let replaces = out_folder.join(format!("{stem}.png")).exists();
            let name = clip.write(&out_folder, &stem)?;
            let path = out_folder.join(name);
            if replaces {
                eprintln!("{} replaces an existing file; --out names another one", path.display());
            }
            println!("{}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells how large the results are, and refuses those that this machine cannot hold.
///
/// # Errors
/// Computing one takes more memory than there is.
fn expect_memory(prompts: &[Sample], painter: &Painter, device: tch::Device) -> Result<(), UsageError> {
    let Some((tokens, needed)) = prompts.iter().map(|prompt| painter.size(prompt)).max() else { return Ok(()) };
    eprintln!("a result has {} tokens, all computed in every step", grouped(tokens));
    match machine().filter(|there| device == tch::Device::Cpu && needed > *there) {
        Some(there) => Err(UsageError(format!(
            "--size, --frames: with {} tokens, one block of the transformer needs at least {}, but this machine or its \
             container has {} of memory: make the result smaller",
            grouped(tokens),
            bytes(needed),
            bytes(there)
        ))),
        None => Ok(()),
    }
}

/// Returns the folder of a file and its name without an ending of pictures.
///
/// # Errors
/// The ending is that of a kind of pictures or clips which is not written.
fn place(out: &Path) -> anyhow::Result<(PathBuf, String)> {
    if let Some(end) = out.extension().map(|end| end.to_string_lossy().to_lowercase())
        && ["jpg", "jpeg", "webp", "mp4", "webm", "mov"].contains(&end.as_str())
    {
        return Err(anyhow!("--out {}: pictures are written as .png and clips as .gif, not as .{end}", out.display()));
    }
    let is_picture =
        out.extension().is_some_and(|end| ["png", "gif"].iter().any(|known| end.eq_ignore_ascii_case(known)));
    let name = if is_picture { out.file_stem() } else { out.file_name() };
    let name = name.map_or_else(|| "sample".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok((out.parent().unwrap_or(Path::new("")).to_owned(), name))
}

/// Returns the section `sample` of a config that says the same.
fn sampling(args: &SampleArgs) -> Sampling {
    Sampling {
        prompts: PathBuf::new(),
        max_prompts: None,
        every_steps: 0,
        every_epochs: None,
        sampler: args.sampler,
        steps: args.steps as usize,
        guidance: args.guidance.clone(),
        negative: args.negative.clone(),
        shift: args.shift,
        size: args.size,
        frames: Some(args.frames as usize),
        seed: None,
        ema: args.ema,
    }
}

/// Returns whether a folder is a checkpoint of a run that has dropped the pictures that the model is given.
fn goes_without(folder: &Path) -> bool {
    let manifest = Manifest::read(folder).ok();
    manifest.and_then(|manifest| manifest.config["data"]["condition_dropout"].as_f64()).is_some_and(|part| part > 0.0)
}

/// Returns the sample that the model reads of each prompt; one that `goes_without` pictures need not have any.
fn prompts(args: &SampleArgs, painter: &Painter, goes_without: bool) -> anyhow::Result<Vec<Sample>> {
    let folder = painter.folder();
    let guides = args.guidance.iter().any(|guidance| *guidance != 1.0);
    if args.negative.is_some() && !guides {
        return Err(anyhow!("--negative has no effect without guidance: set --guidance above 1"));
    }
    let sampled = Sampled {
        asked_by: AskedBy::Options,
        size: args.size,
        frames: Some(args.frames as usize),
        negative: guides.then(|| args.negative.clone()),
        goes_without,
    };
    let flow = FlowOptions { seed: args.seed, sampled: Some(sampled), ..FlowOptions::default() };
    let locators: Vec<Locator> = args.image.iter().map(|path| Locator::File(path.display().to_string())).collect();
    let images: Vec<MediaSource> = locators.iter().cloned().map(MediaSource::Image).collect();
    let (target, references) = match (takes(&folder.json), images.len()) {
        (Takes::References, _) => (None, images),
        (Takes::First | Takes::FirstAndLast, 0) if goes_without => (None, Vec::new()),
        (Takes::First, 0) => return Err(anyhow!("--image is missing: the model continues a first frame")),
        (Takes::First | Takes::FirstOrNothing, 0 | 1) => (images.into_iter().next(), Vec::new()),
        (Takes::FirstAndLast, 2) => (Some(MediaSource::Video(VideoSource { locators, fps: None })), Vec::new()),
        (Takes::Nothing, 0) => (None, images),
        (Takes::First | Takes::FirstOrNothing, _) => {
            return Err(anyhow!("--image: the model takes one picture, the first frame"));
        }
        (Takes::FirstAndLast, _) => {
            return Err(anyhow!("--image: the model takes two pictures, the first frame and the last"));
        }
        (Takes::Nothing, _) => return Err(anyhow!("--image: the model takes no picture")),
    };
    let begins = matches!(takes(&folder.json), Takes::FirstOrNothing) && target.is_some();
    let video = VideoLimits { first_frame: begins.then_some(1.0), ..VideoLimits::default() };
    let image = ImageLimits { area: args.area, ..ImageLimits::default() };
    let options = ProcessorOptions { flow, image, video, ..ProcessorOptions::default() };
    let maker = folder.maker(&options, Arc::new(InProcess))?;
    if args.size.is_none() && target.is_none() {
        let what = if args.image.is_empty() { "the result" } else { "the edited picture" };
        return Err(anyhow!("--size is missing: rows and columns of {what}, such as 480x832"));
    }
    let prompt = |(number, text): (usize, &String)| {
        let record = Captioned {
            target: target.clone(),
            captions: vec![text.clone()],
            references: references.clone(),
            mask: None,
            answer: None,
            area: None,
        };
        let id = SampleId(number as u64);
        let made = maker.prompt(id, Content::Captioned(record), Path::new(""));
        let which = if args.prompt.len() > 1 { format!("--prompt {text:?}: ") } else { String::new() };
        made.map_err(|reason| anyhow!("{which}{reason}"))
    };
    args.prompt.iter().enumerate().map(prompt).collect()
}

/// Pictures that a model takes beside a prompt.
enum Takes {
    Nothing,
    /// The first frame of a clip.
    First,
    /// The first frame of a clip and, as a second picture, its last one.
    FirstAndLast,
    /// The first frame of a clip, or no picture (TI2V-5B).
    FirstOrNothing,
    /// Pictures that are changed (Qwen-Image-Edit).
    References,
}

fn takes(json: &Value) -> Takes {
    let transformer = &json["transformer"];
    let channels = |key: &str| transformer[key].as_u64().unwrap_or(16);
    match transformer["_class_name"].as_str() {
        Some("QwenImageTransformer2DModel") => Takes::References,
        _ if json["expand_timesteps"] == true => Takes::FirstOrNothing,
        _ if channels("in_channels") <= channels("out_channels") => Takes::Nothing,
        _ if !transformer["pos_embed_seq_len"].is_null() => Takes::FirstAndLast,
        _ => Takes::First,
    }
}

fn sampler(text: &str) -> Result<Sampler, String> {
    match text {
        "euler" => Ok(Sampler::Euler),
        "unipc" => Ok(Sampler::Unipc),
        _ => Err("expected euler or unipc".into()),
    }
}

#[cfg(test)]
#[path = "sample_pipelines.rs"]
mod pipelines;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_an_ending() {
        let at = |out: &str| place(Path::new(out)).unwrap();
        assert_eq!(at("a/cat.png"), ("a".into(), "cat".into()));
        assert_eq!(at("cat.v2"), ("".into(), "cat.v2".into()));
        assert_eq!(at("x/b.GIF"), ("x".into(), "b".into()));
        let error = place(Path::new("x/b.MP4")).unwrap_err().to_string();
        assert!(error.contains("--out x/b.MP4") && error.contains("clips as .gif, not as .mp4"), "{error}");
    }
}
