//! `loongforge judge-policy`: counts a policy's successes, or compares its actions with recorded ones.

use super::UsageError;
use super::outputs::local_path;
use crate::model::hub_data::fetch_paths;
use crate::policy::judge::judge_pads;
use crate::policy::open_loop::{Given, missing_cameras, names_in, open_loop};
use crate::policy::{Choice, Purpose, Wanted, open};
use clap::Args;
use loongforge_core::data::lerobot::Set;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Recorded episodes that are compared with where nothing else is said.
const NUM_EPISODES: usize = 10;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge judge-policy runs/pads_policy --layouts 400 --sheet pads.png      successes in the task Pads
  loongforge judge-policy --policy pads-expert                                 the same for its expert
  loongforge judge-policy my-pi05 --episodes my-set --plots plots              errors on recorded episodes

Counts successes in the task Pads, and for comparison those of random actions, the expert, another instruction and a covered camera.
With --episodes, compares actions with recorded ones, and with baselines that need no policy: this does not measure success.")]
pub struct JudgePolicyArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Number of layouts to judge on, none of which is in the demonstrations
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "episodes")]
    layouts: u32,
    /// PNG to write, with frames of the first episodes
    #[arg(long, value_name = "FILE", conflicts_with = "episodes")]
    sheet: Option<PathBuf>,
    /// Number of recorded episodes to compare with, the first ones of --episodes [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "episodes")]
    num_episodes: Option<u32>,
    /// Number of frames between chunks [default: the number of executed actions]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "episodes")]
    every: Option<u32>,
    /// The policy's camera for a feature of the data set; may be repeated [default: as in the policy's training, or the same name]
    #[arg(long, value_name = "FEATURE=CAMERA", value_parser = pair, requires = "episodes")]
    camera: Vec<(String, String)>,
    /// Feature of the robot's state in the data set [default: as in the policy's training, or observation.state]
    #[arg(long, value_name = "FEATURE", requires = "episodes")]
    state: Option<String>,
    /// Folder of plots to write: recorded and predicted actions of the first episode
    #[arg(long, value_name = "FOLDER", value_parser = local_path(), requires = "episodes")]
    plots: Option<PathBuf>,
}

/// Runs `loongforge judge-policy`: counts successes in the task Pads, or compares actions with recorded ones.
pub fn judge_policy(args: JudgePolicyArgs) -> anyhow::Result<ExitCode> {
    let of_recorded = [
        ("--num-episodes", args.num_episodes.is_some()),
        ("--every", args.every.is_some()),
        ("--camera", !args.camera.is_empty()),
        ("--state", args.state.is_some()),
        ("--plots", args.plots.is_some()),
    ];
    if let Some((option, _)) = of_recorded.iter().find(|(_, given)| *given && args.wanted.policy == Choice::Replay) {
        let reason = "compares with recorded actions, which --policy replay sends itself: leave it out";
        return Err(UsageError(format!("{option} {reason}")).into());
    }
    let mut policy = open(&args.wanted, Purpose::Judging).map_err(UsageError::of_any)?;
    let policy = policy.as_mut();
    if let Some(set) = args.wanted.episodes.as_ref().filter(|_| args.wanted.policy != Choice::Replay) {
        let [count, every] = [args.num_episodes, args.every].map(|count| count.map(|count| count as usize));
        fetch_paths(set.to_str()).map_err(UsageError::of)?;
        let set = Arc::new(Set::open(set).map_err(UsageError::of)?);
        let given = Given { cameras: args.camera, state: args.state, action: args.wanted.action };
        let names = names_in(&set, policy.spec(), given).map_err(UsageError)?;
        for camera in missing_cameras(policy.spec(), &set, &names.cameras) {
            let place = set.folder().display();
            eprintln!("note: {place} has no camera {camera}, which is masked: map one with --camera FEATURE={camera}");
        }
        let found = open_loop(policy, &set, count.unwrap_or(NUM_EPISODES), every, &names);
        let found = found.map_err(UsageError::of_any)?;
        println!("{}", found.text());
        if let Some(folder) = &args.plots {
            found.draw(folder)?;
            println!("plots: {}", folder.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let judged = judge_pads(policy, args.wanted.seed(), args.layouts as usize, |trial| eprintln!("judging: {trial}"))
        .map_err(UsageError::of_any)?;
    println!("{}", judged.text());
    if let Some(path) = &args.sheet {
        judged.save(path)?;
        println!("frames of the first episodes: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, camera) = text.split_once('=').ok_or("expected FEATURE=CAMERA")?;
    Ok((key.to_owned(), camera.to_owned()))
}
