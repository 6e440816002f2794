//! `cargo xtask gpu`: a kit for a quarter of an hour with a GPU. It holds the program, fixtures, recipes, the tests of whole runs, a
//! benchmark and `run.sh`, whose stages check the program there without network or compiler; with `--device` the stages run here
//! at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::tasks::{self, Profile, run};

/// Says where the stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda,
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

const KIT: &str = "target/gpu-kit";

/// Makes the kit of a release build, packs it into `target/gpu-kit.tar.xz`, and runs it here where `device` is given.
pub fn kit(root: &Path, device: Option<Device>, quick: bool) -> Result<ExitCode> {
    match device {
        Some(device) => gpu(root, device, quick),
        None => {
            make(root, Profile::Release)?;
            let packed = root.join("target/gpu-kit.tar.xz");
            let mut tar = Command::new("tar");
            tar.env("XZ_OPT", "-T0").arg("-cJf").arg(&packed).args(["-C", "target", "gpu-kit"]).current_dir(root);
            if run(&mut tar)? != 0 {
                bail!("tar failed");
            }
            let size = fs::metadata(&packed)?.len() >> 20;
            println!("{} ({size} MiB): unpack it on the machine and call gpu-kit/run.sh", packed.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Makes the kit and runs its stages; with `quick` of the tests' build and at the smallest sizes.
pub fn gpu(root: &Path, device: Device, quick: bool) -> Result<ExitCode> {
    make(root, if quick { Profile::Dev } else { Profile::Release })?;
    let mut command = Command::new("bash");
    command.arg(root.join(KIT).join("run.sh")).args(["--device", device.name()]);
    if quick {
        command.arg("--quick");
    }
    Ok(ExitCode::from(run(&mut command)?))
}

fn make(root: &Path, profile: Profile) -> Result<()> {
    setup::setup(root, false)?;
    let program = tasks::build(root, profile)?;
    let kit = root.join(KIT);
    if kit.exists() {
        fs::remove_dir_all(&kit).with_context(|| kit.display().to_string())?;
    }
    copy(&program, &kit.join("loongforge"))?;
    for name in ["run.sh", "first_steps.py"] {
        copy(&root.join("xtask/gpu").join(name), &kit.join(name))?;
    }
    copy(&root.join("configs"), &kit.join("configs"))?;
    copy(&root.join("tests/data"), &kit.join("tests/data"))?;
    copy(&root.join("benches/sft_packed.py"), &kit.join("bench/sft_packed.py"))?;
    for fixture in one_a_family(&root.join(FIXTURES))? {
        copy(&root.join(FIXTURES).join(&fixture), &kit.join("fixtures").join(&fixture))?;
    }
    // The tests look for the repository where they were built, and there for the program and fixtures.
    let runs = tasks::build_test(root, "runs")?;
    copy(&runs, &kit.join("runs"))?;
    fs::write(kit.join("root.txt"), root.display().to_string())?;
    let [deep, built] = [kit.join(FIXTURES), kit.join("target/debug/loongforge")];
    for folder in [&deep, &built].into_iter().filter_map(|path| path.parent()) {
        fs::create_dir_all(folder)?;
    }
    symlink("../../../fixtures", deep)?;
    symlink("../../loongforge", built)?;
    if profile == Profile::Release {
        // Debug information is most of it; a machine without `strip` carries it along.
        let _ = Command::new("strip").args([kit.join("loongforge"), kit.join("runs")]).status();
    }
    Ok(())
}

const FIXTURES: &str = "src/torch/tests/fixtures";

/// Returns the fixtures of one seed and of adapters: all of them would be too much to carry.
fn one_a_family(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with("-seed1") || name.contains("lora") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Copies a file, or a folder with all in it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let named = || format!("{} to {}", from.display(), to.display());
    if !from.is_dir() {
        fs::create_dir_all(to.parent().expect("a folder above")).with_context(named)?;
        return fs::copy(from, to).map(drop).with_context(named);
    }
    for entry in fs::read_dir(from).with_context(named)? {
        let entry = entry.with_context(named)?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
