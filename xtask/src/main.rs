//! `cargo xtask …`: everything a new clone needs, in one small program that compiles in seconds.
//!
//! It has the set-up, the tests and the quick start. Training itself is done by the `loongforge` binary, which never calls this one.

mod args;
mod book;
mod ci;
mod fetch;
mod gpu;
mod house;
mod image;
mod libtorch;
mod modules;
mod pages;
mod release;
mod setup;
mod soak;
mod source;
mod stamp;
mod tasks;
mod tools;
mod venv;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::Task;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let task = match args::parse(&args) {
        Ok(task) => task,
        Err(message) => {
            eprintln!("error: {message}\n       `cargo xtask --help` lists what there is.");
            return ExitCode::from(2);
        }
    };
    match run(task, &root()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task, root: &Path) -> anyhow::Result<ExitCode> {
    match task {
        Task::Help => print!("{}", args::HELP),
        Task::Setup { force } => setup::setup(root, force)?,
        Task::CheckRules => return house::report(root),
        Task::Fixtures => print!("{}", tasks::FIXTURES),
        Task::Quickstart(overrides) => return tasks::quickstart(root, tasks::Profile::Release, &overrides),
        Task::Test(args) => return tasks::test(root, &args),
        Task::Parity(folders) => return tasks::parity(root, &folders),
        Task::Gpu { device, quick } => return gpu::kit(root, device, quick),
        Task::Soak { name: None, .. } => return soak::list(root),
        Task::Soak { name: Some(name), part } => return soak::soak(root, &name, &part),
        Task::Wheel => println!("{}", wheel::wheel(root, tasks::Profile::Release)?.display()),
        Task::Release => println!("{}", release::release(root, tasks::Profile::Release)?.display()),
        Task::Book => return book::book(root, true),
        Task::Ci { from } => return ci::ci(root, from.as_deref()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the repository root. Cargo says at run time where this package is, so that a moved clone works.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    package.parent().map(Path::to_path_buf).unwrap_or(package)
}
