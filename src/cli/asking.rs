//! Options shared by `generate`, `chat` and `serve`: the model, and how tokens are chosen.

mod ranks;

use super::UsageError;
use crate::answer::Wanted;
use crate::eval::generator::Reader;
use crate::model::locate::find_model;
use clap::{Args, ValueEnum};
use loongforge_core::config::Device;
use loongforge_core::observe::safe;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device_of;
use loongforge_torch::model::Sampling;
use ranks::{Layout, TrainedOn};
use serde_json::Value;
use tch::Kind;

/// New tokens of an answer to a prompt, unless told otherwise.
pub const MAX_NEW_TOKENS: usize = 128;

/// Options that name the model that answers.
#[derive(Args, Clone)]
pub struct AskedModel {
    /// Checkpoint (of adapters, too), run folder (its newest checkpoint), or Hugging Face folder or hub id of a supported model
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: String,
    /// Type of the weights in memory [default: bf16 on CUDA, f32 on the CPU]
    #[arg(long)]
    dtype: Option<Type>,
    /// Device, as in a config: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Tensor-parallel size: ranks that each layer is split over, one GPU per rank, or all on the CPU [default: on GPUs as in the run
    /// that trained the model, if there are that many; else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    tensor_parallel: Option<u32>,
    /// Pipeline-parallel size: stages of consecutive layers, one GPU per stage, or all on the CPU [default: on GPUs as in the run that
    /// trained the model, if there are that many; else 1]
    #[arg(long, value_name = "N", conflicts_with = "tensor_parallel", value_parser = clap::value_parser!(u32).range(1..=64))]
    pipeline_parallel: Option<u32>,
    /// Variable of the chat template for all prompts, as in `data.template_kwargs`: enable_thinking=false; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    template_kwargs: Vec<(String, Value)>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Type {
    Bf16,
    F32,
}

impl AskedModel {
    /// Loads the model.
    ///
    /// # Errors
    /// Fails if there is no such device, or, as a user error, if the folder is not as it should be.
    pub fn open(&self) -> anyhow::Result<Reader> {
        let folder = find_model(&self.checkpoint).map_err(UsageError::of)?;
        let open = |number: usize| open_device_of(&self.device, number).map_err(|error| anyhow::anyhow!("{error}"));
        let (device, gpus) = (open(0)?, usize::try_from(tch::Cuda::device_count()).unwrap_or(0));
        let is_one_gpu = matches!(self.device, Device::Cuda(Some(_)));
        let asked = match (self.tensor_parallel, self.pipeline_parallel) {
            (Some(ranks), _) => Some(("--tensor-parallel", Layout::Split(ranks as usize))),
            (None, Some(stages)) => Some(("--pipeline-parallel", Layout::Staged(stages as usize))),
            (None, None) => None,
        };
        let (layout, said) = match asked {
            Some((option, layout)) if layout.devices() > 1 && is_one_gpu => {
                return Err(UsageError::new(format!(
                    "{option} needs several GPUs, but --device names one; `cuda` means all of them"
                ))
                .into());
            }
            Some((option, layout)) if device.is_cuda() && layout.devices() > gpus => {
                let what = format!("{option} is {}, but there are {gpus} CUDA devices", layout.devices());
                return Err(UsageError::new(what).into());
            }
            Some((_, layout)) => (layout, None),
            None => TrainedOn::of(&folder).layout(if device.is_cuda() && !is_one_gpu { gpus } else { 0 }),
        };
        said.iter().for_each(|said| eprintln!("{said}"));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Stages take turns, ranks do not.
        set_intra_op_threads(if let Layout::Split(ranks) = layout { (threads / ranks).max(1) } else { threads });
        let kind = match self.dtype {
            Some(Type::Bf16) => Kind::BFloat16,
            Some(Type::F32) => Kind::Float,
            None if device.is_cuda() => Kind::BFloat16,
            None => Kind::Float,
        };
        let devices = || (0..layout.devices()).map(open).collect::<anyhow::Result<Vec<_>>>();
        let on_one = || Reader::open_as(&folder, kind, device);
        let divided = || match layout {
            Layout::Split(_) => Reader::open_among(&folder, kind, &devices()?),
            Layout::Staged(_) => Reader::open_staged(&folder, kind, &devices()?),
        };
        let reader = match asked {
            _ if layout.devices() == 1 => on_one(),
            Some(_) => divided(),
            // Nobody asked for several devices: what has one alone, as adapters, answers with one.
            None => divided().or_else(|error| {
                eprintln!("{}; the model is loaded onto one GPU", safe(&format!("{error:#}")));
                on_one()
            }),
        };
        self.with_variables(reader.map_err(UsageError::of_any)?)
    }

    /// Sets the chat template's variables.
    fn with_variables(&self, reader: Reader) -> anyhow::Result<Reader> {
        if self.template_kwargs.is_empty() {
            return Ok(reader);
        }
        let template = reader.processor().expect_template().map_err(UsageError::of)?;
        if let Some((name, _)) = self.template_kwargs.iter().find(|(name, _)| !template.knows(name)) {
            let reason = format!("--template-kwargs {name}: the model's chat template has no such variable");
            return Err(UsageError::new(reason).into());
        }
        reader.with_template_kwargs(self.template_kwargs.iter().cloned().collect())
    }
}

/// Options for the choice of tokens.
#[derive(Args, Clone)]
pub struct Choosing {
    /// Sampling temperature; 0: greedy [default: greedy]
    #[arg(long, value_parser = not_negative)]
    temperature: Option<f64>,
    /// Sample only from the K most likely tokens; 0: all
    #[arg(long, default_value_t = 0, requires = "temperature", value_parser = clap::value_parser!(i64).range(0..))]
    top_k: i64,
    /// Sample only from the most likely tokens, with probabilities that add up to P
    #[arg(long, default_value_t = 1.0, requires = "temperature", value_parser = part)]
    top_p: f64,
    /// Sample only from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0, requires = "temperature", value_parser = fraction)]
    min_p: f64,
    /// Sampling seed
    #[arg(long, default_value_t = 0, requires = "temperature")]
    seed: u64,
    /// Penalize tokens that already occurred by this factor
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    repetition_penalty: Option<f64>,
    /// Stop string: ends the answer and is not part of it; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
}

impl Choosing {
    /// Returns whether the likeliest token is taken each time, so that all answers to a prompt are the same.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_none_or(|temperature| temperature == 0.0)
    }

    /// Answer number `index` has draws of its own.
    pub fn wanted(&self, max_new_tokens: usize, index: u64) -> Wanted {
        let Self { top_k, top_p, min_p, seed, .. } = *self;
        let seed = seed.wrapping_add(index);
        let temperature = self.temperature.filter(|_| !self.is_greedy());
        let sampling = temperature.map(|temperature| Sampling { temperature, top_k, top_p, min_p, seed });
        let (repetition_penalty, stops) = (self.repetition_penalty, self.stop.clone());
        Wanted { max_new_tokens, sampling, repetition_penalty, stops, ..Wanted::default() }
    }
}

/// Reads a number of tokens, of which an answer needs some.
///
/// # Errors
/// Fails if the text is no number, or 0.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|error| format!("{error}"))?;
    if number > 0 { Ok(number) } else { Err("must be 1 or more".into()) }
}

/// Reads a number above 0, of an option.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err("must be above 0".into()) }
}

/// Reads a number above 0 and of at most 1, of an option.
pub(super) fn part(text: &str) -> Result<f64, String> {
    positive(text)
        .and_then(|number| if number <= 1.0 { Ok(number) } else { Err("must be above 0, and at most 1".into()) })
}

/// Reads a number of at least 0, of an option.
pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number >= 0.0 && number.is_finite() { Ok(number) } else { Err("must be 0 or more".into()) }
}

/// Reads a variable and its value: JSON, or a text.
fn variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as enable_thinking=false")?;
    Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

fn fraction(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=1.0).contains(&number) { Ok(number) } else { Err("must be from 0 to 1".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        choosing: Choosing,
    }

    #[test]
    fn a_temperature_of_0_is_greedy() {
        let draws = |words: &[&str]| {
            let line = Line::try_parse_from([&["x"][..], words].concat()).unwrap_or_else(|error| panic!("{error}"));
            line.choosing.wanted(4, 0).sampling.is_some()
        };
        assert!(!draws(&[]) && !draws(&["--temperature", "0"]) && !draws(&["--temperature", "0.0", "--top-p", "0.9"]));
        assert!(draws(&["--temperature", "0.7"]));
        assert!(Line::try_parse_from(["x", "--temperature", "nan"]).is_err());
    }

    #[test]
    fn values_of_variables_are_json_or_texts() {
        let value = |text: &str| variable(text).map(|(name, value)| json!([name, value]));
        assert_eq!(value("enable_thinking=false"), Ok(json!(["enable_thinking", false])));
        assert_eq!(value("reasoning_effort=low"), Ok(json!(["reasoning_effort", "low"])));
        assert_eq!(value("a=\"1=2\""), Ok(json!(["a", "1=2"])));
        assert!(value("enable_thinking").unwrap_err().contains("NAME=VALUE"));
    }
}
