//! `cargo xtask wheel`: the program as a Python package, which finds libtorch in the `torch` package beside it. Python only
//! starts it. Nothing is uploaded.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::libtorch::Libtorch;
use crate::setup;
use crate::tasks::{self, Profile, run};

const SUMMARY: &str =
    "Trains language, vision-language, audio and diffusion models and robot policies as pools of actors";

/// Builds the program and packs it; says where the wheel is.
pub fn wheel(root: &Path, profile: Profile) -> Result<PathBuf> {
    setup::setup(root, false)?;
    let built = tasks::build(root, profile)?;
    let folder = root.join("target/wheel");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let program = folder.join("loongforge");
    if run(Command::new("strip").arg("-o").arg(&program).arg(built))? != 0 {
        bail!("strip failed");
    }
    let mut pack = Command::new("python3");
    pack.arg(root.join("xtask/wheel/build.py")).arg(&program);
    pack.args([env!("CARGO_PKG_VERSION"), SUMMARY]).arg(&folder).stderr(Stdio::inherit());
    let output = pack.output().context("python3")?;
    if !output.status.success() {
        bail!("the wheel cannot be packed");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// Tries the wheel in an empty environment, where it trains two steps on the libtorch that set-up fetched.
pub fn try_wheel(root: &Path, profile: Profile) -> Result<ExitCode> {
    let wheel = wheel(root, profile)?;
    let venv = root.join("target/wheel/venv");
    let _ = std::fs::remove_dir_all(&venv);
    let python = venv.join("bin/python");
    if run(Command::new("python3").args(["-m", "venv"]).arg(&venv))? != 0 {
        println!("not run: python3 makes no virtual environment");
        return Ok(ExitCode::SUCCESS);
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel);
    if run(&mut pip)? != 0 {
        return Ok(ExitCode::FAILURE);
    }
    // What pip would install of `torch` and of the packages of CUDA's run-time that its CPU library links to.
    let site = Command::new(&python).args(["-c", "import site; print(site.getsitepackages()[0])"]).output()?;
    let site = PathBuf::from(String::from_utf8(site.stdout)?.trim());
    let torch = match Libtorch::from_env(root) {
        Libtorch::Given(path) => path,
        Libtorch::Ours => root.join(".libtorch/torch"),
    };
    let cuda = torch.with_file_name("nvidia");
    symlink(&torch, site.join("torch")).with_context(|| torch.display().to_string())?;
    if cuda.is_dir() {
        symlink(&cuda, site.join("nvidia")).with_context(|| cuda.display().to_string())?;
    }
    let mut train = Command::new(venv.join("bin/loongforge"));
    train.args(["run", "configs/sft_text.yaml", "train.steps=2", "train.warmup_steps=1", "run.dir=target/wheel/run"]);
    train.arg("--overwrite").current_dir(root);
    Ok(ExitCode::from(run(&mut train)?))
}
