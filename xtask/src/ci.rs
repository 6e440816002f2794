//! What must hold before a change lands: `cargo xtask ci`, which `.ci/run` calls.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;

use crate::tasks::{self, Profile, cargo, quiet_openmp, run};
use crate::{gpu, setup, soak, tools};

/// Seconds of fuzzing, over all targets.
const FUZZ_SECONDS: &str = "60";

type Step = (&'static str, fn(&Path) -> Result<ExitCode>);

/// Cheapest and most telling first. The whole must stay within 90 minutes from an empty target folder on two cores.
const STEPS: [Step; 8] = [
    ("formatting", |root| plain(cargo(root).args(["fmt", "--all", "--check"]))),
    ("dependencies", deny),
    ("tests", |root| tasks::test(root, &[])),
    ("lints", |root| plain(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
    ("quick start", |root| tasks::quickstart(root, Profile::Dev, &["train.steps=20".into()])),
    ("GPU kit on the CPU", |root| gpu::gpu(root, gpu::Device::Cpu, true)),
    ("soaks", soak::slices),
    ("fuzzing", fuzz),
];

/// Runs every step until one fails, and says what each took.
pub fn ci(root: &Path) -> Result<ExitCode> {
    setup::setup(root, false)?;
    let mut told = Vec::new();
    for (name, step) in STEPS {
        let begun = Instant::now();
        let code = step(root)?;
        let failed = code != ExitCode::SUCCESS;
        told.push(format!(
            "  {name}: {}, {:.0} s",
            if failed { "FAILED" } else { "ok" },
            begun.elapsed().as_secs_f64()
        ));
        if failed {
            eprintln!("ci:\n{}", told.join("\n"));
            return Ok(code);
        }
    }
    eprintln!("ci:\n{}", told.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn plain(command: &mut Command) -> Result<ExitCode> {
    Ok(ExitCode::from(run(command)?))
}

/// Licenses, bans and sources. Advisories need a database that is fetched: `cargo deny check` where that can be had.
fn deny(root: &Path) -> Result<ExitCode> {
    if tools::find("cargo-deny").is_none() {
        println!("not run: cargo-deny is not installed (`cargo install cargo-deny --locked`)");
        return Ok(ExitCode::SUCCESS);
    }
    plain(cargo(root).args(["deny", "--offline", "check", "bans", "licenses", "sources"]))
}

/// The fuzz functions on inputs mutated by a seed of the commit.
fn fuzz(root: &Path) -> Result<ExitCode> {
    let seed = soak::commit_seed(root)?;
    println!("fuzzing for {FUZZ_SECONDS} s with seed {seed}");
    let mut command = cargo(root);
    command.args(["test", "--quiet", "--workspace", "--lib", "fuzz_for_a_while", "--", "--ignored", "--nocapture"]);
    command.env("LOONGFORGE_FUZZ", format!("{seed}:{FUZZ_SECONDS}"));
    quiet_openmp(&mut command);
    plain(&mut command)
}
