//! `loongforge check`: everything that is wrong with a config, or what it comes to.

use super::exit;
use clap::{Args, ValueEnum};
use loongforge_core::config;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct CheckArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print every key with its value and where that comes from
    #[arg(long)]
    show_origin: bool,
    /// Print the composed config
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "yaml")]
    format: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    // The model's own config is part of the run's: the same mistakes stop both commands.
    if let Err(error) = crate::folder::ModelFolder::open(&loaded.config.model) {
        eprintln!("error: {error}");
        return Ok(ExitCode::from(exit::USAGE));
    }
    match args.format {
        Some(Format::Yaml) => print!("{}", loaded.to_yaml()),
        Some(Format::Json) => println!("{}", loaded.to_json()),
        None if args.show_origin => print!("{}", loaded.show_origin()),
        None => println!("{} is a valid config of run `{}`", args.file.display(), loaded.config.run.name),
    }
    Ok(ExitCode::SUCCESS)
}
