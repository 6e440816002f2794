//! `loongforge act`: the actions of a policy for one observation.

use super::UsageError;
use crate::policy::{Purpose, Wanted, open};
use anyhow::Context;
use clap::Args;
use loongforge_core::data::{Limits, Locator, read_rgb};
use loongforge_core::files;
use loongforge_core::robot::{Moment, Observation};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge act runs/pads_policy --image top=table.png --state 0.2,0.7 --prompt \"go to the red pad\"
  loongforge act my-pi05 --image base_0_rgb=a.png --image left_wrist_0_rgb=b.png --state 0,0,0,0,0,0,0 --prompt \"fold the towel\"

Prints one line per action of the chunk, in the robot's units.")]
pub struct ActArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Picture of a camera, by the camera's name or its last part; may be repeated. Cameras without a picture are masked
    #[arg(long, value_name = "CAMERA=FILE", value_parser = picture)]
    image: Vec<(String, PathBuf)>,
    /// State of the robot, in its units
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', allow_hyphen_values = true, value_parser = number)]
    state: Vec<f32>,
    /// Instruction to the robot; `--prompt ''` gives none
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// File of the initial noise, instead of noise drawn from the seed: chunk_size rows of max_action_dim numbers
    #[arg(long, value_name = "FILE")]
    noise: Option<PathBuf>,
    /// File of the first actions of the chunk, in the robot's units, that are already being executed: the policy continues them
    /// (policy.max_delay)
    #[arg(long, value_name = "FILE")]
    begun: Option<PathBuf>,
}

/// Runs `loongforge act`: prints one line of numbers per action of a chunk.
pub fn act(args: ActArgs) -> anyhow::Result<ExitCode> {
    let mut policy = open(&args.wanted, Purpose::Once).map_err(UsageError::of_any)?;
    if let Some(path) = &args.noise {
        let noise = numbers(path).map_err(UsageError::of_any)?;
        policy.begin_with(noise).map_err(|reason| UsageError(format!("--noise: {reason}")))?;
    }
    let begun = args.begun.as_deref().map(numbers).transpose().map_err(UsageError::of_any)?.unwrap_or_default();
    if let Some(path) = args.begun.as_ref().filter(|_| begun.is_empty()) {
        return Err(UsageError(format!("--begun: {} has no numbers", path.display())).into());
    }
    if !begun.is_empty() && !policy.spec().continues_chunks {
        return Err(UsageError("--begun: this policy cannot continue a chunk that has begun".to_owned()).into());
    }
    let cameras = &policy.spec().cameras;
    let image = |(name, path): &(String, PathBuf)| {
        let is_alike = |camera: &&String| camera.rsplit('.').next() == Some(name.as_str());
        let whole = policy.spec().camera_named(name).map(|number| &cameras[number]);
        let alike: Vec<&String> = whole.map_or_else(|| cameras.iter().filter(is_alike).collect(), |one| vec![one]);
        let &[camera] = alike.as_slice() else {
            let many = if alike.is_empty() { "no such camera" } else { "several such cameras" };
            anyhow::bail!("--image {name}: the policy has {many}; its cameras are {}", cameras.join(", "));
        };
        let picture = read_rgb(&Locator::File(path.display().to_string()), Path::new(""), &Limits::NONE)?;
        Ok((camera.clone(), picture))
    };
    let images: Vec<_> = args.image.iter().map(image).collect::<anyhow::Result<_>>().map_err(UsageError::of_any)?;
    let twice = (1..images.len()).find(|&at| images[..at].iter().any(|(before, _)| *before == images[at].0));
    if let Some(at) = twice {
        return Err(UsageError(format!("--image: two pictures are given for {}", images[at].0)).into());
    }
    let observation = Observation { images, state: args.state, prompt: args.prompt, begun };
    let actions = policy.act(&observation, Moment::default()).map_err(UsageError)?;
    actions.check().map_err(anyhow::Error::msg)?;
    for step in 0..actions.num_steps() {
        let values: Vec<String> = actions.step(step).iter().map(f32::to_string).collect();
        println!("{}", values.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the numbers in a file, separated by white space.
fn numbers(path: &Path) -> anyhow::Result<Vec<f32>> {
    let text = files::read_text(path).with_context(|| path.display().to_string())?;
    let number = |word: &str| {
        let value = word.parse::<f32>().ok().filter(|value| value.is_finite());
        value.with_context(|| format!("{}: {word:?} is not a number", path.display()))
    };
    text.split_whitespace().map(number).collect()
}

/// Reads a number of the state.
fn number(text: &str) -> Result<f32, String> {
    text.trim().parse().map_err(|_| "expected numbers with commas between them, such as 0.2,0.7".to_owned())
}

fn picture(text: &str) -> Result<(String, PathBuf), String> {
    let (camera, file) = text.split_once('=').ok_or("expected CAMERA=FILE")?;
    Ok((camera.to_owned(), file.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_state_are_separated_by_commas() {
        assert_eq!((number("-0.5"), number(" 2")), (Ok(-0.5), Ok(2.0)));
        assert!(number("0.5 0.5").unwrap_err().contains("with commas between them"));
    }
}
