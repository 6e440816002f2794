//! The `loongforge` program: parse, prepare the process, dispatch.

use loongforge::cli::{dotted, exit};
use loongforge_core::engine::error_chain;
use loongforge_torch::device::{QUIET_OPENMP, needs_relaunch};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    stop_with_the_reader();
    let cli = dotted::parse(std::env::args_os());
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
            let text = error_chain(error.as_ref());
            // Mistakes in a config say so themselves, with their codes.
            let begin = if text.starts_with("error[") { "" } else { "error: " };
            eprintln!("{begin}{text}");
            ExitCode::from(exit::of(&error))
        }
    }
}

/// Whoever reads what is printed may have read enough, as `head` has: that is no panic. The exit code is a shell's for it.
fn stop_with_the_reader() {
    let panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        match info.payload_as_str().and_then(|text| text.strip_prefix("failed printing to stdout: ")) {
            Some(error) if error.starts_with("Broken pipe") => std::process::exit(141),
            Some(error) => {
                eprintln!("error: standard output: {error}");
                std::process::exit(exit::FAILED.into())
            }
            None => panic(info),
        }
    }));
}
