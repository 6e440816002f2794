//! The program: register, parse, prepare the process, dispatch.

use super::open_files::expect_open_files;
use super::{dotted, exit, version};
use crate::run::families::Families;
use loongforge_core::engine::error_chain;
use loongforge_core::observe::print_line;
use loongforge_torch::device::missing_variables;
use loongforge_torch::native::{exit_at_once, fail_writes_at_file_limit, keep_freed_memory};
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the whole command line of `loongforge` with families of one's own beside the built-in ones: it is the `main` of a program that
/// has some. Every process of a run is this program again, so all of them know the families.
///
/// ```no_run
/// use loongforge::compose::Families;
///
/// // Pictures and clips may be given to this maker of samples, by `data.maker: mine`.
/// let families = Families::new().sample_maker("mine", |_config, built_in| built_in());
/// let code: std::process::ExitCode = loongforge::cli::main_with(families);
/// ```
pub fn main_with(families: Families) -> ExitCode {
    stop_with_the_reader();
    keep_freed_memory();
    fail_writes_at_file_limit();
    if let Err(error) = families.register() {
        eprintln!("error: {error}");
        return ExitCode::from(exit::USAGE);
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if version::is_asked(&words) {
        print!("{}", version::verbose());
        return ExitCode::SUCCESS;
    }
    let cli = dotted::parse(std::env::args_os());
    if cli.computes()
        && let Err(error) = expect_open_files()
    {
        eprintln!("error: {error}");
        return ExitCode::from(exit::USAGE);
    }
    if cli.computes()
        && let Some((name, value)) = missing_variables().next()
    {
        eprintln!(
            "error: the program could not start itself again with the environment that libtorch needs: set {name}={value}"
        );
        return ExitCode::from(exit::FAILED);
    }
    match cli.dispatch() {
        Ok(code) => code,
        Err(error) if exit::of(&error) == exit::READER_GONE => ExitCode::from(exit::READER_GONE),
        Err(error) => {
            let text = error_chain(error.as_ref());
            // Mistakes in a config say so themselves, with their codes.
            let begin = if text.starts_with("error[") { "" } else { "error: " };
            // The exit code counts, whether anyone reads the error or not.
            print_line(&format!("{begin}{text}"));
            ExitCode::from(exit::of(&error))
        }
    }
}

/// Whoever reads what is printed may have read enough, as `head` has: that is no panic. The exit code is a shell's for it.
fn stop_with_the_reader() {
    let panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if text.strip_prefix("failed printing to stderr: ").is_some_and(|error| error.starts_with("Broken pipe")) {
            exit_at_once(exit::READER_GONE);
        }
        match text.strip_prefix("failed printing to stdout: ") {
            Some(error) if error.starts_with("Broken pipe") => exit_at_once(exit::READER_GONE),
            Some(error) => {
                eprintln!("error: standard output: {error}");
                exit_at_once(exit::FAILED)
            }
            None => panic(info),
        }
    }));
}
