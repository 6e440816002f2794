//! The `loongforge` program: parse, prepare the process, dispatch.

use clap::Parser;
use loongforge::cli::{Cli, exit};
use loongforge_core::engine::error_chain;
use loongforge_torch::device::{QUIET_OPENMP, needs_relaunch};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.computes() && needs_relaunch() {
        // OpenMP reads its environment when libtorch is loaded, which was before `main`.
        let missing = QUIET_OPENMP.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let error = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).envs(missing).exec();
        eprintln!("error: cannot start again with a quiet OpenMP: {error}");
        return ExitCode::from(exit::FAILED);
    }
    match cli.dispatch() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", error_chain(error.as_ref()));
            ExitCode::from(exit::of(&error))
        }
    }
}
