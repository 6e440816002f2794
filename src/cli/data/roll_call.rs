//! `loongforge data roll-call`: the example of real speech.

use super::UsageError;
use crate::cli::outputs::local_path;
use anyhow::Result;
use clap::Args;
use loongforge_core::data::roll_call::{PACKAGES, RollCall, compose};
use loongforge_core::observe::{Bar, Console, safe};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example, from three Debian packages under GPL-2, which this command neither fetches nor installs:
  apt-get download fillets-ng-data fillets-ng-data-cs fillets-ng-data-nl
  for package in fillets-ng-data*.deb; do dpkg -x $package fillets; done
  loongforge data roll-call --from fillets --out runs/roll_call/data
  loongforge run configs/roll_call.yaml";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RollCallArgs {
    /// Folder of the unpacked packages; / if they are installed
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Seed of the held-out levels and of the recordings
    #[arg(long, default_value_t = RollCall::default().seed)]
    seed: u64,
    /// Number of training recordings, of 94 KiB and three samples each
    #[arg(long, value_name = "N", default_value_t = RollCall::default().num_train)]
    recordings: usize,
}

/// Runs `loongforge data roll-call`: makes recordings from the clips of a game, and a model folder without weights.
pub fn roll_call(args: RollCallArgs) -> Result<ExitCode> {
    if args.recordings == 0 {
        return Err(UsageError("--recordings must be 1 or more".to_owned()).into());
    }
    let console = Console::stderr();
    let settings = RollCall { seed: args.seed, num_train: args.recordings, ..RollCall::default() };
    let mut bar = None;
    let made = compose(&args.out, &args.from, &settings, |num_clips| {
        bar.get_or_insert_with(|| Bar::start(&console, "clips", num_clips as u64)).tick();
    });
    drop(bar);
    let made = made?;
    made.bad.iter().for_each(|bad| console.line(&format!("left out: {}", safe(bad))));
    println!(
        "{} clips of {} levels, {} of them held out; left out: {} clips shorter than 1.1 s, {} without a second that is loud \
         enough, {} with another sample rate than most of their language (probably other voices), and {} that cannot be decoded",
        made.num_clips,
        made.num_levels,
        made.num_held_out_levels,
        made.num_short,
        made.num_quiet,
        made.num_other_rate,
        made.bad.len()
    );
    println!("{} training and {} held-out samples in {}", made.num_train, made.num_held_out, args.out.display());
    println!("model folder, without weights: {}", args.out.join("model").display());
    println!("the speech is of {} and {}, GPL-2: see NOTICE there", PACKAGES[1], PACKAGES[2]);
    Ok(ExitCode::SUCCESS)
}
