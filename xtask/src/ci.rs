//! Checks what must hold before a change lands: `cargo xtask ci`, which `.ci/run` calls.

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
const STEPS: [Step; 9] = [
    ("formatting", |root| plain(cargo(root).args(["fmt", "--all", "--check"]))),
    ("dependencies", deny),
    ("tests", |root| tasks::test(root, &[])),
    ("lints", |root| plain(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
    ("quick start", |root| {
        tasks::quickstart(root, Profile::Dev, &["train.steps=20".into(), "train.warmup_steps=2".into()])
    }),
    ("GPU kit on the CPU", |root| gpu::gpu(root, gpu::Device::Cpu, true)),
    ("Kubernetes manifests", kubernetes),
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

/// Two jobs against Kubernetes' schemas, which a Python package brings; where it cannot be had, that is said.
fn kubernetes(root: &Path) -> Result<ExitCode> {
    let venv = root.join("target/kubernetes");
    let python = venv.join("bin/python");
    if !python.exists() {
        let made = run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let package = ["-m", "pip", "install", "--quiet", "kubernetes-validate==1.37.0"];
        if made != 0 || run(Command::new(&python).args(package))? != 0 {
            println!("not run: kubernetes-validate cannot be installed");
            let _ = std::fs::remove_dir_all(&venv);
            return Ok(ExitCode::SUCCESS);
        }
    }
    let (cpus, gpus) = (root.join("target/kubernetes/cpus.yaml"), root.join("target/kubernetes/gpus.yaml"));
    let common = ["launch", "configs/quickstart.yaml", "--on", "k8s", "--image", "registry/x:1", "--claim", "runs"];
    let on_gpus = ["device=cuda", "pools.foundation.replicas=8", "--gpus-per-node", "4", "--node-selector", "a=b"];
    for (file, more) in
        [(&cpus, &["--insecure-allow-plaintext"][..]), (&gpus, &[&on_gpus[..], &["--tls", "x"]].concat())]
    {
        let mut launch = tasks::loongforge(root, Profile::Dev, common);
        let output = launch.args(more).current_dir(root).stderr(std::process::Stdio::inherit()).output()?;
        if !output.status.success() {
            return Ok(ExitCode::FAILURE);
        }
        std::fs::write(file, output.stdout)?;
    }
    plain(Command::new(&python).arg(root.join("tests/oracle/kubernetes.py")).arg(&cpus).arg(&gpus))
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
