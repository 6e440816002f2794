//! `loongforge run` of a file with stages: a process for each, one after another. All are checked before the first one trains.

use super::args::{ResumeFrom, RunArgs};
use super::folder::expect_no_run;
use crate::cli::check::{Against, Checked, stages_of};
use crate::cli::{UsageError, exit};
use loongforge_actors::launch::run_to_end;
use loongforge_core::config::{RunConfig, StageStart};
use loongforge_core::observe::print_line;
use std::process::{Command, ExitCode};

/// Runs all stages; `None` where the file has none or one of them is chosen.
///
/// # Errors
/// Fails if an option is for one stage, a stage has a mistake or a run already, or a process cannot be started.
pub fn run_stages(args: &RunArgs) -> anyhow::Result<Option<ExitCode>> {
    let stages = match stages_of(&args.file, &args.overrides) {
        Ok(stages) if !stages.is_empty() => stages,
        // What is wrong with a file is said where the whole of it is read.
        _ => return Ok(None),
    };
    let listed = || stages.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>().join(", ");
    if args.part.role.is_some() {
        let what = format!("--role applies to one stage: choose one with stage=NAME ({})", listed());
        return Err(UsageError(what).into());
    }
    if args.resume.as_ref().is_some_and(ResumeFrom::is_named) {
        let what = format!("--resume=CHECKPOINT applies to one stage: choose one with stage=NAME ({})", listed());
        return Err(UsageError(what).into());
    }
    let expect_no_run = |config: &RunConfig| match args.resume.is_none() && !args.overwrite {
        true => expect_no_run(config),
        false => Ok(()),
    };
    // The first one is checked by its own process. Where another one fails with the same model, that is the first one's mistake.
    let mut before = stages[0].load(StageStart::Checkpoint)?.config;
    expect_no_run(&before)?;
    for stage in &stages[1..] {
        let against = |before| Against { before, is_anew: args.overwrite, has_device: true };
        let checked = stage.check(against(Some(&before)));
        let Checked { config, .. } = match checked {
            Ok(checked) => checked,
            Err(error) => return stages[0].check(against(None)).and(Err(error)),
        };
        expect_no_run(&config)?;
        before = config;
    }
    let program = std::env::current_exe()?;
    for (number, stage) in stages.iter().enumerate() {
        print_line(&format!("stage `{}`, {} of {}", stage.name, number + 1, stages.len()));
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg(&stage.word);
        let status = run_to_end(command)?;
        if !status.success() {
            // The exit code counts, also where a terminal is closed.
            print_line(&format!("stage `{}` failed: {status}; `--resume` continues with it", stage.name));
            return Ok(Some(ExitCode::from(exit::of_status(status))));
        }
    }
    Ok(Some(ExitCode::SUCCESS))
}
